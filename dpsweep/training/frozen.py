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
from dpsweep.training.per_example import Inputs, Metric, Physical, Weigh, cut, physical

LIMIT = 4 * 2**30  # bytes of representations that a process keeps
_ROWS = 1024  # records that pass through a frozen layer at a time


@dataclass(frozen=True)
class Features:
    """A representation of all records.

    Attributes:
        blocks: z in pieces side by side, (n, some width) each: the input that a stage leaves in place is not copied.
        norms: of (z', 1), float64 (n,).
        seconds: that computing it took, shared with other tasks or not.
    """

    blocks: tuple[Tensor, ...]
    norms: Tensor
    seconds: float


class FeatureCache:
    """Results of frozen layers in this process, the least recently used dropped first."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[object, ...], tuple[Tensor, float]] = OrderedDict()

    def of(self, model: HeadModel, x: Tensor, key: str) -> Features | None:
        """The representation of the records `x` under the data's `key`; None if a layer's result is over the limit."""
        blocks, seconds = [x.flatten(1)], 0.0
        path: tuple[object, ...] = (key, str(x.dtype), str(x.device))
        for stage in model.stages():
            path = (*path, stage.key)
            if path not in self._kept:
                begun = time.perf_counter()
                values = self._compute(stage, blocks[-1])
                if values is None:
                    return None
                self._kept[path] = values, time.perf_counter() - begun
            self._kept.move_to_end(path)
            value, took = self._kept[path]
            blocks, seconds = [*blocks, value] if stage.beside else [value], seconds + took
        begun = time.perf_counter()
        norms = sum(map(row_squares, blocks), start=x.new_ones(len(x), dtype=torch.float64)).sqrt_()
        return Features(tuple(blocks), norms, seconds + time.perf_counter() - begun)

    def _compute(self, stage: Stage, values: Tensor) -> Tensor | None:
        size = len(values) * stage.width * values.element_size()
        if size > self._limit:
            return None
        while self._kept and self._bytes() + size > self._limit:
            self._kept.popitem(last=False)
        out = values.new_empty(len(values), stage.width)
        with torch.no_grad():
            for start in range(0, len(values), _ROWS):
                stage.apply(values[start : start + _ROWS], out=out[start : start + _ROWS])
        return out

    def _bytes(self) -> int:
        return sum(values.numel() * values.element_size() for values, _ in self._kept.values())


class HeadEngine:
    """Clipped sums of a linear head over its features z, in closed form.

    With p the predicted probabilities and y the one-hot label, the gradient of a record's cross-entropy is
    (p - y) (z', 1), so its norm is |p - y| sqrt(|z|^2 + 1), and the clipped sum is one product.

    Args:
        model: the model, of whose parameters only the head's are trained.
        cached: whether it is fed `Features`, blocks and then norms, rather than the data.
    """

    def __init__(self, model: HeadModel, cached: bool, physical_batch: Physical) -> None:
        self._model, self._cached = model, cached
        self._physical = physical(physical_batch, 2**15)

    def weighted_sum(self, inputs: Inputs, y: Tensor, weigh: Weigh, metric: Metric = None) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        return self._sum(inputs, y, weigh, metric)

    def gradient_sum(self, inputs: Inputs, y: Tensor) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        return self._sum(inputs, y, None)

    @torch.no_grad()
    def _sum(self, inputs: Inputs, y: Tensor, weigh: Weigh | None, metric: Metric = None) -> Tensor:
        weight, bias = self._model.head.weight, self._model.head.bias
        total = weight.new_zeros(weight.numel() + bias.numel())
        into = total[: weight.numel()].view(weight.shape)
        for part, labels in cut(inputs, y, self._physical):
            *blocks, norms = part if self._cached else self._features(*part)
            columns = [block.shape[1] for block in blocks]
            logits = bias.unsqueeze(1)  # (outputs, n): few outputs in front make the product a third faster than behind
            for block, piece in zip(blocks, weight.split(columns, dim=1), strict=True):
                logits = torch.addmm(logits, piece, block.t())
            r = residuals(logits, labels)
            if metric is not None and metric[0] is not None:  # |S^-1 z|, in place of |z|
                mapped = metric[0].inverse(torch.cat(blocks, dim=1)).split(columns, dim=1)  # summed as the features' own are
                norms = sum(map(row_squares, mapped), start=norms.new_ones(len(norms))).sqrt_()
            if weigh is not None:
                factors = weigh(torch.linalg.vector_norm(r, dim=0, dtype=torch.float64).mul_(norms))
                if not float(factors.amin()) > 0:  # a zero weight doesn't remove a NaN: take the rows out
                    kept = factors > 0
                    r, factors, blocks = r[:, kept], factors[kept], [block[kept] for block in blocks]
                r *= factors
            for block, piece in zip(blocks, into.split(columns, dim=1), strict=True):
                piece.addmm_(r, block)
            total[weight.numel() :] += r.sum(1)
        return total

    def _features(self, x: Tensor) -> Inputs:
        z = self._model.features(x)
        return z, row_squares(z).add_(1).sqrt_()


def residuals(logits: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the cross-entropy with respect to the logits: p - y, shape (outputs, n)."""
    if len(logits) == 1:
        return torch.sigmoid(logits) - labels
    p = torch.softmax(logits, dim=0)
    return p.scatter_(0, labels.unsqueeze(0), -1.0, reduce="add")


def row_squares(rows: Tensor) -> Tensor:
    """|row|^2 in float64, shape (n,): summed in the rows' own dtype, and again in float64 for a row whose squares may have
    left that dtype's range, above or below (a small factor of a large product counts)."""
    norms = torch.linalg.vector_norm(rows, dim=1).double()
    if len(norms) and not 1e-12 < float(norms.min()) <= float(norms.max()) < 1e15:  # min and max are NaN if any row is
        unsafe = ~((norms > 1e-12) & (norms < 1e15))
        norms[unsafe] = torch.linalg.vector_norm(rows[unsafe], dim=1, dtype=torch.float64)
    return norms.square_()
