"""Who enters each batch: Poisson sampling for private training, shuffling and the whole set for the rest.

The accountant's events assume that every record enters a batch independently with probability exactly q. Comparing
float32 uniforms with q, the usual shortcut, misses that rate by up to 2^-24, on the wrong side for half of all rates.
Here q is a fraction, the size of a batch comes first, from 64 random bits, and integers choose the members.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpsweep.privacy.accounting import exact_fraction
from dpsweep.privacy.noise import Stream


@dataclass(frozen=True)
class Poisson:
    """Each record enters each batch independently with probability ``sample_rate``; batches may be empty.

    The law: the size K of a batch is Binomial(n, q), and given K the batch is uniform among the subsets of that size;
    together this is Poisson sampling. The subset is exactly uniform, given uniform bits (integers by rejection). The
    size comes from 64 bits by an inverse distribution function in float64. Its total variation distance from the
    binomial law is at most (40 s + 160) 2^-53 with s = sqrt(n q (1 - q)), below 3e-11 for all n <= 10^8: the weight
    of k is a product of |k - mode| ratios with four roundings each (4 (s + 1) on average), each of the at most
    24 s + 102 thresholds is rounded when it is summed and when it is normalised, and the sizes left out have mass
    below 2^-90 (Bernstein's inequality). Over the steps of a run the distances add up.
    """

    sample_rate: Fraction

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", exact_fraction(self.sample_rate))

    def batches(self, n: int, stream: Stream, drawn: int = 0) -> Iterator[np.ndarray]:
        """Independent batches without end: sorted int64 arrays of indices in 0 .. n - 1. How many were drawn doesn't matter."""
        first, thresholds = _binomial_thresholds(n, self.sample_rate)
        while True:
            size = first + int(np.searchsorted(thresholds, stream.uint64(1)[0], side="right"))
            yield _uniform_subset(n, size, stream)


@dataclass(frozen=True)
class Shuffle:
    """A new order each epoch, cut into batches of ``batch_size``; the last, smaller one is kept.

    For training without privacy: no guarantee by sampling is claimed for it.
    """

    batch_size: int

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it must be at least 1")

    def batches(self, n: int, stream: Stream, drawn: int = 0) -> Iterator[np.ndarray]:
        """Batches without end, epoch after epoch: int64 arrays of indices in 0 .. n - 1; empty ones if n is 0. To go on after
        some were drawn, the order of the epoch that they end in is taken from the stream again."""
        epochs, taken = divmod(drawn, -(-max(n, 1) // self.batch_size))
        if drawn:
            stream.seek(8 * n * epochs)
        first = taken * self.batch_size
        while True:
            order = np.argsort(stream.uint64(n), kind="stable")
            for start in range(first, max(n, 1), self.batch_size):
                yield order[start : start + self.batch_size]
            first = 0


@dataclass(frozen=True)
class Everything:
    """All records in every batch."""

    def batches(self, n: int, stream: Stream, drawn: int = 0) -> Iterator[np.ndarray]:
        """int64 arrays 0 .. n - 1 without end; ``stream`` is not read."""
        while True:
            yield np.arange(n, dtype=np.int64)


def protocol_numbers(reference_size: int, batch_size: int, epochs: int) -> tuple[Fraction, int, int]:
    """Sample rate, steps and normalizer from public numbers: J = ceil(N0 / B), q = 1 / J, T = E J, m0.

    The normalizer m0 = max(1, floor(q N0)) divides every noisy sum, whatever the batch's realised size. Raises
    ValueError for arguments below 1.
    """
    for name, value in (("reference_size", reference_size), ("batch_size", batch_size), ("epochs", epochs)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    batches = -(-reference_size // batch_size)
    rate = Fraction(1, batches)
    return rate, epochs * batches, max(1, math.floor(rate * reference_size))


@lru_cache(maxsize=16)
def _binomial_thresholds(n: int, rate: Fraction) -> tuple[int, np.ndarray]:
    """The least size k0 that is considered, and uint64 thresholds t: P(size <= k0 + i) = t[i] / 2^64.

    Probabilities are built from the mode outwards by their exact ratios and then normalised: no factorials, whose
    logarithms would cost ten digits.
    """
    if rate == 1 or n == 0:
        return (n if rate == 1 else 0), np.empty(0, dtype=np.uint64)
    odds = float(rate / (1 - rate))
    mode = math.floor((n + 1) * rate)
    # Beyond 12 standard deviations and 50 more, the mass is below 2^-90 by Bernstein's inequality for every s.
    reach = math.ceil(12 * math.sqrt(n * rate * (1 - rate))) + 50
    low, high = max(0, mode - reach), min(n, mode + reach)
    up = np.arange(mode, high, dtype=np.float64)
    down = np.arange(mode, low, -1, dtype=np.float64)
    rising = np.cumprod((n - up) / (up + 1) * odds)
    falling = np.cumprod(down / ((n - down + 1) * odds))
    weights = np.concatenate([falling[::-1], [1.0], rising])
    distribution = np.cumsum(weights) / math.fsum(weights)
    return low, np.array([min(int(p * 2**64), 2**64 - 1) for p in distribution[:-1]], dtype=np.uint64)


def _uniform_subset(n: int, size: int, stream: Stream) -> np.ndarray:
    """A uniformly random subset of 0 .. n - 1: sorted int64 array [size].

    Draws with replacement until enough distinct numbers came: by symmetry every set is equally likely. A set of more
    than half is drawn as its complement, so that duplicates stay few.
    """
    missing = min(size, n - size)
    chosen = np.zeros(n, dtype=bool)
    drawn = 0
    while drawn < missing:
        chosen[stream.below(n, missing - drawn)] = True
        drawn = int(np.count_nonzero(chosen))
    return np.flatnonzero(chosen if missing == size else ~chosen)
