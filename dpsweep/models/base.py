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


def mixes_records(model: Model, shape: tuple[int, ...]) -> bool:
    """Whether the logits of a record change with the other records of its batch, as with batch normalisation.

    Per-example gradients, and with them every guarantee, need models that don't. Tried on random inputs, in training
    mode, with dropout off; layers that draw randomness of their own show as well.
    """
    generator = torch.Generator().manual_seed(0)
    p = next(model.parameters())
    x = torch.rand(3, *shape, generator=generator).to(p.device, p.dtype)
    masks = [torch.ones(3, *mask, device=p.device, dtype=p.dtype) for mask in model.mask_shapes]
    model.train()
    with torch.no_grad():
        try:
            together, alone = model(x, *masks)[:1], model(x[:1], *(mask[:1] for mask in masks))
        except ValueError:  # batch normalisation refuses a single record
            return True
    return not torch.allclose(together, alone, rtol=1e-3, atol=1e-4)
