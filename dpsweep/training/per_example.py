"""Clipped sums of per-example gradients: the engines behind ``data.clipped_sum``.

An engine turns a batch into sum_i g_i min(1, C/|g_i|), where g_i is the gradient of record i's loss with respect to
all trainable parameters together. All engines agree to rounding. Two rules keep a single record from breaking the
bound: a record whose gradient norm is not finite contributes exactly zero (its row is selected away, since a zero
weight would not remove a NaN), and norms are float64 wherever float32 squares could leave their range.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpsweep.models.base import example_losses, flatten, flatten_rows, trained


class Engine(Protocol):
    """Sums of gradients over the records of a batch."""

    def clipped_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...], max_grad_norm: float) -> Tensor:
        """Shape (trainable parameters,): inputs (n, ...), labels (n,), one mask (n, ...) for each of the model's."""

    def gradient_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        """The same without clipping."""


_LISTENER: ContextVar[Callable[[Tensor], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def norms_told_to(listener: Callable[[Tensor], None]) -> Iterator[None]:
    """Within it, whatever engine clips tells the gradient norms of the records: float64, shape (n,), a physical batch at a
    time, before they are clipped. Only diagnostics may listen: the norms are not private."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def clip_factors(squared_norms: Tensor, max_grad_norm: float) -> Tensor:
    """min(1, C/|g_i|) from float64 squared norms, shape (n,); 0 where the norm is not finite."""
    norms = squared_norms.sqrt()
    if (listener := _LISTENER.get()) is not None:
        listener(norms)
    factors = (max_grad_norm / norms.clamp_min(torch.finfo(torch.float64).tiny)).clamp_max(1.0)
    return torch.where(norms.isfinite(), factors, torch.zeros_like(factors))


def weighted_sum(rows: list[Tensor], like: list[nn.Parameter], max_grad_norm: float) -> Tensor:
    """Clip and sum materialised per-example gradients: one tensor (n, ...) a parameter, in parameter order."""
    flat = flatten_rows(rows, like)
    squared = sum(torch.linalg.vector_norm(row, dim=1, dtype=torch.float64).square() for row in flat)
    factors = clip_factors(squared, max_grad_norm)  # type: ignore[arg-type]
    kept = factors > 0
    pieces = [factors.to(row.dtype) @ torch.where(kept[:, None], row, torch.zeros_like(row)) for row in flat]
    return torch.cat(pieces)


class VmapEngine:
    """Per-example gradients of any model by ``torch.func``, in physical batches of bounded memory."""

    def __init__(self, model: nn.Module, physical_batch: int | None) -> None:
        self._model = model
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._fixed = {name: p for name, p in model.named_parameters() if not p.requires_grad} | dict(model.named_buffers())
        self._asked = physical_batch
        self._physical = physical_batch or max(1, 2**26 // sum(p.numel() for p in self._trained.values()))
        self._rows: Callable[..., dict[str, Tensor]] | None = None

    def _loss(self, trained: dict[str, Tensor], x: Tensor, y: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        inputs = (x.unsqueeze(0), *(mask.unsqueeze(0) for mask in masks))
        logits = functional_call(self._model, (trained, self._fixed), inputs)
        return example_losses(logits, y.unsqueeze(0)).squeeze(0)

    def clipped_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...], max_grad_norm: float) -> Tensor:
        """See :class:`Engine`."""
        if self._rows is None:
            self._rows = vmap(grad(self._loss), in_dims=(None, 0, 0, 0 if masks else None))
        detached = {name: p.detach() for name, p in self._trained.items()}
        parameters = list(self._trained.values())
        total = torch.zeros(sum(p.numel() for p in parameters), dtype=x.dtype, device=x.device)
        for start in range(0, len(x), self._physical):
            part = slice(start, start + self._physical)
            rows = self._rows(detached, x[part], y[part], tuple(mask[part] for mask in masks))
            total += weighted_sum([rows[name] for name in detached], parameters, max_grad_norm)
        return total

    def gradient_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        """See :class:`Engine`."""
        return gradient_sum(self._model, x, y, masks, self._asked)


def gradient_sum(model: nn.Module, x: Tensor, y: Tensor, masks: tuple[Tensor, ...], physical: int | None) -> Tensor:
    """The gradient of the summed losses by one ordinary backward pass a physical batch, flat."""
    parameters = trained(model)
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=x.dtype, device=x.device)
    physical = physical or max(1, len(x))
    for start in range(0, len(x), physical):
        part = slice(start, start + physical)
        loss = example_losses(model(x[part], *(mask[part] for mask in masks)), y[part]).sum()
        total += flatten(torch.autograd.grad(loss, parameters), parameters)
    return total
