"""What every model shares: how it is built, its output size and its dropout.

A model is a ``torch.nn.Module`` built as ``Model(shape, classes, seed, **options of its YAML)``. Parameters with
``requires_grad`` are trained; what is frozen is a buffer. Its forward pass takes the batch, and one dropout mask for
each entry of `mask_shapes`, so that masks are drawn by record before a batch is cut, by whoever trains it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """Base of the models.

    Attributes:
        mask_shapes: the shape of each dropout mask of one record.
        dropout: the rate at which masks drop; kept entries are scaled by 1/(1-dropout).
    """

    mask_shapes: tuple[tuple[int, ...], ...] = ()
    dropout: float = 0.0


def outputs(classes: int) -> int:
    """Logits of the head: one for two classes (sigmoid), else one a class (softmax)."""
    return 1 if classes == 2 else classes


def example_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every record, shape (n,): logits (n, 1) and binary labels, or logits (n, K) (equations 10, 11)."""
    if logits.shape[-1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(logits.squeeze(-1), labels.to(logits.dtype), reduction="none")
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def probabilities(logits: Tensor) -> Tensor:
    """Class probabilities in float64: (n,) of class 1 for one logit, else (n, K)."""
    logits = logits.double()
    return torch.sigmoid(logits.squeeze(-1)) if logits.shape[-1] == 1 else torch.softmax(logits, dim=-1)
