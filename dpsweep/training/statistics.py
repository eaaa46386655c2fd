"""Sums of bounded statistics over records: what stands behind ``data.statistics``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from dpsweep.mechanisms.base import Statistic
from dpsweep.training.per_example import Physical, physical

ROWS = 1024  # records that are summed at a time
_NUMBERS = 2**24  # numbers of contributions that are held at a time: 128 MB


@torch.no_grad()
def bounded_sum(record: Statistic, x: Tensor, y: Tensor, indices: Tensor, bound: float, physical_batch: Physical) -> Tensor:
    """The sum of what some records contribute, each contribution scaled to an l1 norm of at most `bound`.

    The length of the sum is found on a record of zeros, so that it is known for an empty batch too. A record with inputs
    that are not finite never reaches `record`; one whose contribution is not finite is taken out.

    Args:
        record: what one record contributes; ``vmap`` shows it one record at a time.
        x: all records, shape (n, ...).
        y: their labels, shape (n,), int64.
        indices: which to sum, int64.
        bound: above 0.
        physical_batch: how many at a time; None: 1,024, or fewer where contributions are long.

    Returns:
        float64, shape (length of a contribution,).

    Raises:
        ValueError: `record` doesn't give a vector.
    """
    trial = record(x.new_zeros(x.shape[1:]), y.new_zeros(()))
    if trial.dim() != 1:
        raise ValueError(f"a statistic of shape {tuple(trial.shape)}: what a record contributes must be a vector")
    total = torch.zeros(len(trial), dtype=torch.float64, device=x.device)
    rows = physical(physical_batch, max(1, min(ROWS, _NUMBERS // max(1, len(trial)))))
    for part in indices.split(rows):
        inputs, labels = x.index_select(0, part), y.index_select(0, part)
        finite = inputs.flatten(1).isfinite().all(1)
        if not bool(finite.all()):
            inputs, labels = inputs[finite], labels[finite]
        if not len(inputs):
            continue
        contributions = vmap(record)(inputs, labels).double()
        norms = contributions.abs().sum(1)
        factors = (bound / norms.clamp_min(bound)).nan_to_num(0.0)  # 0 for an infinite norm too
        kept = factors > 0
        if not bool(kept.all()):  # a zero weight doesn't remove a NaN: take the rows out
            contributions, factors = contributions[kept], factors[kept]
        total += factors @ contributions
    return total
