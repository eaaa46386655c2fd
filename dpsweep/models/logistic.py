"""Logistic regression on the whole prepared input."""

from __future__ import annotations

from math import prod

import torch
from torch import nn

from dpsweep.models.base import HeadModel, outputs


class LogisticRaw(HeadModel):
    """One affine map to the logits (DP-RVFL paper, section 3.5); torch's default initialisation from the seed."""

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.head = nn.Linear(prod(shape), outputs(classes))
