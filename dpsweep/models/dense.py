"""Fully connected networks: the baseline of the DP-RVFL paper (section 3.3, equations 7 to 9), and FO-DP-SGD's network."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from dpsweep.models.base import Model, outputs

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class Dense(Model):
    """Two hidden layers, dropout after the first; all weights trained; dropout stays active under DP.

    Args:
        shape, classes, seed: as for every model.
        image_widths, table_widths: the hidden widths on images and on tables.
        dropout: the rate.
        activation: of the hidden layers, ``relu`` or ``tanh``.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int, image_widths: list[int],
                 table_widths: list[int], dropout: float, activation: str = "relu") -> None:  # fmt: skip
        super().__init__()
        if activation not in _ACTIVATIONS:
            raise ValueError(f"model.activation={activation}: one of {', '.join(_ACTIVATIONS)} is needed")
        if not 0 <= dropout < 1:
            raise ValueError(f"model.dropout={dropout}: a rate in [0, 1) is needed")
        first, second = image_widths if len(shape) == 3 else table_widths
        torch.manual_seed(seed)
        self.hidden1 = nn.Linear(prod(shape), first)
        self.hidden2 = nn.Linear(first, second)
        self.head = nn.Linear(second, outputs(classes))
        self.activation = _ACTIVATIONS[activation]
        self.dropout = dropout
        self.mask_shapes = ((first,),) if dropout else ()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits, shape (n, outputs); `mask`, shape (n, first width), holds 0 and 1/(1-dropout); None in evaluation."""
        a = self.activation(self.hidden1(x.flatten(1)))
        if mask is not None:
            a = a * mask
        return self.head(self.activation(self.hidden2(a)))
