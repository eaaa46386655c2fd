"""Weighted sums of per-example gradients: the engines behind ``data.clipped_sum``.

An engine turns a batch into sum_i w(|g_i|) g_i, where g_i is the gradient of record i's loss with respect to all trainable
parameters together and w a rule such as clipping, w(n) = min(1, C/n). All engines agree to rounding. Two rules keep a
single record from breaking the bound: a record whose gradient norm is not finite contributes exactly zero (its row is
selected away, since a zero weight would not remove a NaN), and norms are float64 wherever float32 squares could leave
their range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpsweep.models.base import example_losses, flatten, flatten_rows, trained
from dpsweep.privacy.anisotropic import RowMap

#: How many records pass at a time: so many; or a share, below 1, of what would be chosen; or (None) what is chosen.
Physical = int | float | None
Inputs = tuple[Tensor, ...]  # what the model takes, one row a record each: the data (or features of it), then dropout masks


class Engine(Protocol):
    """Sums of gradients over the records of a batch."""

    def weighted_sum(self, inputs: Inputs, y: Tensor, weigh: Weigh, metric: Metric = None) -> Tensor:
        """Shape (trainable parameters,), from inputs (n, ...) and labels (n,). `weigh` is asked once a physical batch, in the
        batch's order, of the norms, or of those in the `metric`; a record of weight 0 is taken out."""

    def gradient_sum(self, inputs: Inputs, y: Tensor) -> Tensor:
        """The same with all weights 1."""


#: One map S a trained parameter, or None for the identity: norms are |S^-1 g|. None altogether: the l2 norm.
Metric = Sequence[RowMap | None] | None
Weigh = Callable[[Tensor], Tensor]  # from the norms of a physical batch's gradients, float64 (n,), to their weights (n,)


def physical(asked: Physical, chosen: int) -> int:
    """How many records pass at a time, at least one."""
    if asked is None:
        return chosen
    return max(1, int(asked if asked >= 1 else asked * chosen))


def clipping(max_grad_norm: float) -> Weigh:
    """The weights of clipping: see `clip_factors`."""
    return lambda norms: clip_factors(norms, max_grad_norm)


def clip_factors(norms: Tensor, max_grad_norm: float) -> Tensor:
    """min(1, C/|g_i|) from float64 norms, shape (n,); 0 where the norm is not finite."""
    return (max_grad_norm / norms).clamp_max_(1.0).nan_to_num_(nan=0.0)  # C/0 = inf, C/inf = 0


def sum_of_rows(rows: list[Tensor], like: list[nn.Parameter], weigh: Weigh, metric: Metric = None) -> Tensor:
    """Weigh and sum materialised per-example gradients: one tensor (n, ...) a parameter, in parameter order."""
    flat = flatten_rows(rows, like)
    measured = flat
    if metric is not None:
        measured = [row if by is None else by.inverse(row.unflatten(1, (-1, len(by.basis)))).flatten(1)
                    for row, by in zip(flat, metric, strict=True)]  # fmt: skip
    squared: Any = sum(torch.linalg.vector_norm(row, dim=1, dtype=torch.float64).square() for row in measured)
    factors = weigh(squared.sqrt())
    kept = factors > 0
    pieces = [factors.to(row.dtype) @ torch.where(kept[:, None], row, torch.zeros_like(row)) for row in flat]
    return torch.cat(pieces)


class VmapEngine:
    """Per-example gradients of any model by ``torch.func``, in physical batches of bounded memory."""

    def __init__(self, model: nn.Module, physical_batch: Physical) -> None:
        self._model = model
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._fixed = {name: p for name, p in model.named_parameters() if not p.requires_grad} | dict(model.named_buffers())
        self._asked = physical_batch
        self._physical = physical(physical_batch, max(1, 2**26 // sum(p.numel() for p in self._trained.values())))
        self._rows: Callable[..., dict[str, Tensor]] | None = None

    def _loss(self, trained: dict[str, Tensor], y: Tensor, *inputs: Tensor) -> Tensor:
        logits = functional_call(self._model, (trained, self._fixed), tuple(part.unsqueeze(0) for part in inputs))
        return example_losses(logits, y.unsqueeze(0)).squeeze(0)

    def weighted_sum(self, inputs: Inputs, y: Tensor, weigh: Weigh, metric: Metric = None) -> Tensor:
        """See :class:`Engine`."""
        if self._rows is None:
            self._rows = vmap(grad(self._loss), in_dims=(None, 0, *(0 for _ in inputs)))
        # Copies in the plain order: with the channels innermost, float64 convolutions of single pixels fail under vmap.
        detached = {name: p.detach().clone(memory_format=torch.contiguous_format) for name, p in self._trained.items()}
        parameters = list(self._trained.values())
        total = inputs[0].new_zeros(sum(p.numel() for p in parameters))
        for part, labels in cut(inputs, y, self._physical):
            with sdpa_kernel(SDPBackend.MATH):  # torch.func knows no rule for fused attention
                rows = self._rows(detached, labels, *part)
            total += sum_of_rows([rows[name] for name in detached], parameters, weigh, metric)
        return total

    def gradient_sum(self, inputs: Inputs, y: Tensor) -> Tensor:
        """See :class:`Engine`."""
        return gradient_sum(self._model, lambda rows: self._model(*rows), inputs, y, self._asked)


def cut(inputs: Inputs, y: Tensor, physical: int) -> Iterator[tuple[Inputs, Tensor]]:
    """A batch in physical batches of at most so many records; none for an empty batch."""
    for start in range(0, len(y), physical):
        part = slice(start, start + physical)
        yield tuple(rows[part] for rows in inputs), y[part]


def gradient_sum(model: nn.Module, forward: Callable[[Inputs], Tensor], inputs: Inputs, y: Tensor, asked: Physical,
                 losses: Callable[..., Tensor] = example_losses, *extra: Tensor) -> Tensor:  # fmt: skip
    """The gradient of the summed losses by one ordinary backward pass a physical batch, flat.

    Args:
        model: whose trained parameters it is taken by.
        forward: from rows of the inputs to logits.
        inputs, y: of the batch.
        asked: how many records pass at a time; all of them by default.
        losses: from logits, labels and the rows of `extra` to one loss a record.
    """
    parameters = trained(model)
    total = inputs[0].new_zeros(sum(p.numel() for p in parameters))
    for part, labels in cut((*inputs, *extra), y, physical(asked, max(1, len(y)))):
        rows, more = part[: len(inputs)], part[len(inputs) :]
        total += flatten(torch.autograd.grad(losses(forward(rows), labels, *more).sum(), parameters), parameters)
    return total
