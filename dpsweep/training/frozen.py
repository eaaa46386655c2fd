"""Frozen heads: representations computed once and shared, and the closed form of a linear head's clipped sum.

A frozen representation depends on public seeds and the record alone, so computing it once for all records changes
nothing about privacy: a step still sees only its batch's rows. Representations are kept in memory only, never on disk,
and are shared between the tasks of one process whose frozen layers are the same (every budget of a seed; RVFL, ELM-SGD
and LogisticProjected share the projection). Batches and noise are never shared.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from dpsweep.models.base import HeadModel, Stage
from dpsweep.training.per_example import clip_factors

LIMIT = 4 * 2**30  # bytes of representations that a process keeps
_ROWS = 1024  # records that pass through a frozen layer at a time


@dataclass(frozen=True)
class Features:
    """A representation of all records: values (n, features), and the seconds that computing it took, shared or not."""

    values: Tensor
    seconds: float


class FeatureCache:
    """Representations of this process, the least recently used dropped first."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[object, ...], Features] = OrderedDict()

    def of(self, model: HeadModel, x: Tensor, key: str) -> Features | None:
        """The representation of the records `x` under the data's `key`; None if it doesn't fit into the limit."""
        found = Features(x.flatten(1), 0.0)
        path: tuple[object, ...] = (key, str(x.dtype), str(x.device))
        for stage in model.stages():
            path = (*path, stage.key)
            kept = self._kept.get(path)
            if kept is None:
                begun = time.perf_counter()
                values = self._compute(stage, found.values)
                if values is None:
                    return None
                kept = self._kept[path] = Features(values, found.seconds + time.perf_counter() - begun)
            self._kept.move_to_end(path)
            found = kept
        return found

    def _compute(self, stage: Stage, values: Tensor) -> Tensor | None:
        size = len(values) * stage.width * values.element_size()
        if size > self._limit:
            return None
        while self._kept and self._bytes() + size > self._limit:
            self._kept.popitem(last=False)
        out = values.new_empty(len(values), stage.width)
        with torch.no_grad():
            for start in range(0, len(values), _ROWS):
                out[start : start + _ROWS] = stage.apply(values[start : start + _ROWS])
        return out

    def _bytes(self) -> int:
        return sum(kept.values.numel() * kept.values.element_size() for kept in self._kept.values())


class HeadEngine:
    """Clipped sums of a linear head over its features z, in closed form.

    With p the predicted probabilities and y the one-hot label, the gradient of a record's cross-entropy is
    (p - y) (z', 1), so its norm is |p - y| sqrt(|z|^2 + 1), and the clipped sum is one product.

    Args:
        model: the model, of whose parameters only the head's are trained.
        cached: whether it is fed features (n, features) rather than inputs.
    """

    def __init__(self, model: HeadModel, cached: bool, physical_batch: int | None) -> None:
        self._head = model.head
        self._features = (lambda z: z) if cached else model.features
        self._physical = physical_batch or 2**15

    def clipped_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...], max_grad_norm: float) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        return self._sum(x, y, max_grad_norm)

    def gradient_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        return self._sum(x, y, None)

    @torch.no_grad()
    def _sum(self, x: Tensor, y: Tensor, max_grad_norm: float | None) -> Tensor:
        weight, bias = self._head.weight, self._head.bias
        total = torch.zeros(weight.numel() + bias.numel(), dtype=weight.dtype, device=weight.device)
        for start in range(0, len(x), self._physical):
            z = self._features(x[start : start + self._physical])
            r = residuals(torch.addmm(bias, z, weight.t()), y[start : start + self._physical])
            if max_grad_norm is not None:
                squared = (row_squares(z) + 1) * row_squares(r)
                factors = clip_factors(squared, max_grad_norm)
                kept = factors > 0
                if not bool(kept.all()):  # a zero weight doesn't remove a NaN: take the rows out
                    z, r, factors = z[kept], r[kept], factors[kept]
                r = r * factors[:, None].to(r.dtype)
            total[: weight.numel()].view(weight.shape).addmm_(r.t(), z)
            total[weight.numel() :] += r.sum(0)
        return total


def residuals(logits: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the cross-entropy with respect to the logits: p - y, shape (n, outputs)."""
    if logits.shape[1] == 1:
        return torch.sigmoid(logits) - labels[:, None]
    p = torch.softmax(logits, dim=1)
    return p.scatter_add_(1, labels[:, None], p.new_full((len(p), 1), -1.0))


def row_squares(rows: Tensor) -> Tensor:
    """|row|^2 in float64, shape (n,): summed in the rows' own dtype, and again in float64 for a row whose squares may have
    left that dtype's range, above or below (a small factor of a large product counts)."""
    norms = torch.linalg.vector_norm(rows, dim=1).double()
    if len(norms) and not 1e-12 < float(norms.min()) <= float(norms.max()) < 1e15:  # min and max are NaN if any row is
        unsafe = ~((norms > 1e-12) & (norms < 1e15))
        norms[unsafe] = torch.linalg.vector_norm(rows[unsafe], dim=1, dtype=torch.float64)
    return norms.square_()
