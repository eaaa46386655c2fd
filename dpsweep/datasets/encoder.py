"""Encoding of tables by bounds and levels fixed beforehand, so that nothing is learned from private records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsweep.errors import UsageError


@dataclass(frozen=True)
class FixedBoundEncoder:
    """Record-wise encoding: the row of a record depends on that record and on public constants only.

    `numeric` maps a field to its bounds (lo, hi), in the field's unit, and gives two columns: the value clipped and
    scaled to [-1, 1], `2*(clip(x, lo, hi) - lo)/(hi - lo) - 1`, and a flag. A missing or non-finite x has value 0 and
    flag 1. `categorical` maps a field to its levels and gives one column a level and one for "unknown" (any other
    value, a missing one too): exactly one of them is 1. Numeric fields come first, each in the order given.

    Since no statistic of the data enters, the encoding costs no privacy.
    """

    numeric: Mapping[str, tuple[float, float]]
    categorical: Mapping[str, Sequence[float]]

    def __post_init__(self) -> None:
        for field, (lo, hi) in self.numeric.items():
            if not (math.isfinite(lo) and math.isfinite(hi) and lo < hi):
                raise UsageError(f"The bounds of {field!r} are {lo} and {hi}. Give two finite numbers, the lower first.")
        for field, levels in self.categorical.items():
            if not levels or len(set(levels)) != len(levels) or not all(math.isfinite(level) for level in levels):
                raise UsageError(f"The levels of {field!r} are {list(levels)}. Give one or more distinct numbers.")
        both = set(self.numeric) & set(self.categorical)
        if both:
            raise UsageError(f"{sorted(both)} stand both among the numeric and the categorical fields. Choose one.")

    @property
    def features(self) -> int:
        """The number of columns of the encoded table."""
        return 2 * len(self.numeric) + sum(len(levels) + 1 for levels in self.categorical.values())

    def encode(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Encode float64 columns of shape (n,), NaN where missing, into float32 (n, features)."""
        n = len(next(iter(columns.values())))
        encoded = np.zeros((n, self.features), dtype=np.float32)
        at = 0
        for field, (lo, hi) in self.numeric.items():
            x = columns[field]
            present = np.isfinite(x)
            clipped = np.clip(x[present], lo, hi)
            encoded[present, at] = 2.0 * (clipped - lo) / (hi - lo) - 1.0
            encoded[:, at + 1] = ~present
            at += 2
        for field, levels in self.categorical.items():
            known = columns[field][:, None] == np.asarray(levels, dtype=np.float64)
            encoded[:, at : at + len(levels)] = known
            encoded[:, at + len(levels)] = ~known.any(axis=1)
            at += len(levels) + 1
        return encoded


def read_bounds(pair: Any, what: str) -> tuple[float, float]:
    """The bounds that a YAML lists as [lowest, highest].

    Raises `UsageError` that names `what` unless they are two finite numbers, the lower first and apart in 32 bits too.
    """
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        numbers = [bound for bound in pair if isinstance(bound, (int, float)) and not isinstance(bound, bool)]
        if len(numbers) == 2 and all(map(math.isfinite, numbers)) and np.float32(numbers[0]) < np.float32(numbers[1]):
            return float(numbers[0]), float(numbers[1])
    raise UsageError(f"{what}={pair!r}: two finite numbers are needed, the lower first: [lowest, highest]")
