"""Intervals and exact tests for a handful of seeds."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

MAX_PAIRS = 40
"""The most pairs for which `sign_flip_p` counts all assignments (2^20 half-sums on either side)."""


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Student's t interval of the mean of independent values, in their unit.

    Returns (low, high), or None for fewer than two values, where no spread and so no interval is defined.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: it must lie strictly between 0 and 1")
    n = len(values)
    if n < 2:
        return None
    sample = np.asarray(values, dtype=np.float64)
    mean = float(sample.mean())
    half = float(stdtrit(n - 1, 0.5 + confidence / 2)) * float(sample.std(ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def welch_interval(
    first: tuple[float, float, int], second: tuple[float, float, int], confidence: float = 0.95
) -> tuple[float, float] | None:
    """Welch's t interval of first mean - second mean, each given as (mean, sample SD, number of values), in their unit.

    The variances need not be equal; the degrees of freedom are Welch and Satterthwaite's. None where a sample has fewer
    than two values; the difference itself where neither has any spread.
    """
    (mean_a, sd_a, n_a), (mean_b, sd_b, n_b) = first, second
    if min(n_a, n_b) < 2:
        return None
    a, b = sd_a**2 / n_a, sd_b**2 / n_b
    if a + b == 0:
        return mean_a - mean_b, mean_a - mean_b
    freedom = (a + b) ** 2 / (a**2 / (n_a - 1) + b**2 / (n_b - 1))
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * math.sqrt(a + b)
    return mean_a - mean_b - half, mean_a - mean_b + half


def sign_flip_p(differences: Sequence[float]) -> float:
    """Exact two-sided sign-flip (paired randomisation) p-value of the mean difference.

    All 2^n sign assignments are counted; one counts as extreme when |mean| >= |observed mean| - 1e-14 (in units of the
    largest difference where that exceeds 1), so ties count. The count stays exact for many pairs because it meets in
    the middle (Horowitz and Sahni, 1974): the signed sums of either half of the pairs are listed and, sorted, searched.
    The null hypothesis is that each difference is symmetric about zero (Fisher's randomisation test).

    Raises ValueError without a difference, for a non-finite one, and beyond `MAX_PAIRS`.
    """
    values = np.asarray(differences, dtype=np.float64)
    n = values.size
    if n == 0:
        raise ValueError("no differences: a sign-flip test needs at least one pair")
    if not np.isfinite(values).all():
        raise ValueError("a difference is not finite: leave out pairs without a value")
    if n > MAX_PAIRS:
        raise ValueError(f"{n} pairs: all 2^{n} sign assignments are counted for {MAX_PAIRS} pairs at most")
    left, right = _signed_sums(values[: n // 2]), np.sort(_signed_sums(values[n // 2 :]))
    threshold = abs(float(values.sum())) - n * 1e-14 * max(1.0, float(np.abs(values).max()))
    if threshold <= 0:
        return 1.0
    above = right.size - np.searchsorted(right, threshold - left, side="left")
    below = np.searchsorted(right, -threshold - left, side="right")
    return int(above.sum() + below.sum()) / 2**n


def _signed_sums(values: np.ndarray) -> np.ndarray:
    """All 2^n sums of +-values, float64 of shape (2^n,)."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values (Holm, 1979), in the order given: the family-wise error rate over them all."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted.tolist()


def least_p(n: int) -> float:
    """The least two-sided p that n pairs can reach in a sign-flip test, 2/2^n: all differences of one sign."""
    return min(1.0, 2.0 ** (1 - n))


def seeds_needed(k: int, alpha: float = 0.05) -> int:
    """The fewest pairs with which one of k contrasts can reach alpha under Holm: the least n with 2/2^n <= alpha/k."""
    if k < 1 or not 0 < alpha < 1:
        raise ValueError(f"k={k}, alpha={alpha}: at least one contrast and an alpha between 0 and 1 are needed")
    n = 1
    while least_p(n) * k > alpha:
        n += 1
    return n
