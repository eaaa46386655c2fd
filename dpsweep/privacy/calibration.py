"""The least noise for a budget: from (sample rate, steps, epsilon, delta) to a noise multiplier.

Calibration is conservative and tight: epsilon(sigma) <= target < epsilon(0.999 sigma) under the accountant asked for.
Under "rdp" the search is the papers' (bisection from sigma = 20 upwards), so that its digits are theirs too. Results
are kept on disk; a kept value is believed only after one evaluation of the accountant has confirmed it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache as cache_calls
from importlib.metadata import version
from numbers import Integral, Rational
from pathlib import Path
from typing import Literal

import platformdirs

from dpsweep.errors import UsageError
from dpsweep.privacy import accounting
from dpsweep.privacy.accounting import ORDERS, Event, SampledGaussian, Spent

_ALGORITHM = 2  # part of the cache key: raise it whenever the search or an accountant changes its results
_TIGHT = 0.999


@dataclass(frozen=True)
class Scaled:
    """``steps`` Poisson-sampled Gaussian releases at ``scale`` times the noise multiplier that is sought."""

    sample_rate: Fraction
    steps: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scale is {self.scale}; it must be finite and above 0")


@dataclass(frozen=True)
class Calibration:
    """A noise multiplier and the epsilon it spends (at most the target); ``cached`` says it came from disk."""

    noise_multiplier: float
    epsilon: float
    order: float | None
    accountant: str
    cached: bool


def calibrate(
    sample_rate: Fraction,
    steps: int,
    epsilon: float,
    delta: float,
    accountant: str = "rdp",
    cache: Path | None | Literal["default"] = "default",
    others: Sequence[Scaled] = (),
) -> Calibration:
    """The noise multiplier for ``steps`` Poisson-sampled Gaussian releases within (epsilon, delta), add-or-remove.

    Args:
        sample_rate: exact rate in (0, 1]; 1 is the Gaussian mechanism without sampling.
        steps: number of independent batches that are released, at least 1.
        epsilon: target, finite and above 0.
        delta: in (0, 1).
        accountant: "rdp" or "pld"; see ``accounting``.
        cache: folder of the kept results; by default ``default_cache_folder()``, None for no cache.
        others: what else the same run releases, at noise multipliers in a fixed proportion to the one sought.

    Raises:
        UsageError: an argument is out of range, or no noise multiplier can be certified for this target.
    """
    parts = [Scaled(_check(sample_rate, steps, delta, accountant), int(steps)), *others]
    for other in others:
        _check(other.sample_rate, other.steps, delta, accountant)
    if not 0 < epsilon < math.inf:
        raise UsageError(
            f"The target epsilon is {epsilon}, but it must be finite and above 0. "
            "Give such a number, or epsilon=none for training without privacy."
        )
    epsilon, delta = float(epsilon), float(delta)
    folder = default_cache_folder() if cache == "default" else cache
    entry = None if folder is None else folder / f"{_key(parts, epsilon, delta, accountant)}.json"

    @cache_calls
    def spent(sigma: float) -> Spent:
        return _spent(parts, sigma, delta, accountant)

    if entry is not None and (kept := _read(entry)) is not None:
        found = spent(kept)
        # Above the target it would break the promise; further below than a search ends, it would waste utility.
        slack = min(1e-4, 1e-3 * epsilon) if accountant == "rdp" else 5e-3 * epsilon
        if epsilon - slack <= found.epsilon <= epsilon and not _untight(found, accountant):
            return Calibration(kept, found.epsilon, found.order, accountant, cached=True)
    sigma = _search_rdp(lambda s: _spent(parts, s, delta, "rdp"), epsilon, refuse=accountant == "rdp")
    if accountant == "pld":

        def coarse(s: float) -> float:
            # The error of the grid is quadratic in interval / epsilon: at this one it is a few 1e-4 of epsilon.
            return accounting.epsilon_pld(_events(parts, s), delta, min(max(1e-4, 2e-4 * epsilon), 1e-3)).epsilon

        sigma = _search_pld(lambda s: spent(s).epsilon, coarse, epsilon, sigma)
    found = spent(sigma)
    if _untight(found, accountant):
        raise _no_tight_order(epsilon)
    result = Calibration(sigma, found.epsilon, found.order, accountant, cached=False)
    if entry is not None:
        _write(entry, result)
    return result


def epsilon_for(sample_rate: Fraction, steps: int, noise_multiplier: float, delta: float, accountant: str = "rdp") -> Spent:
    """The inverse of ``calibrate``: what ``steps`` releases at ``noise_multiplier`` spend at ``delta``.

    A multiplier of 0 spends ``inf``. Raises UsageError for arguments out of range, and where RDP isn't tight.
    """
    rate = _check(sample_rate, steps, delta, accountant)
    if not 0 <= noise_multiplier < math.inf:
        raise UsageError(f"The noise multiplier is {noise_multiplier}, but it must be finite and not negative.")
    try:
        return accounting.epsilon([(SampledGaussian(rate, noise_multiplier), int(steps))], delta, accountant)
    except accounting.AccountingError as error:
        raise UsageError(str(error)) from error


def _check(sample_rate: Rational, steps: int, delta: float, accountant: str) -> Fraction:
    if not (isinstance(steps, Integral) and steps >= 1):
        raise UsageError(f"The number of steps is {steps}, but it must be a whole number, at least 1.")
    if not 0 < delta < 1:
        raise UsageError(
            f"delta is {delta}, but it must lie strictly between 0 and 1. "
            "Choose it well below 1 over the number of records, such as 1e-5."
        )
    if accountant not in accounting.ACCOUNTANTS:
        raise UsageError(f"accountant={accountant} is unknown. Choose one of: {', '.join(accounting.ACCOUNTANTS)}.")
    try:
        return accounting.exact_fraction(sample_rate)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{error}.") from error


def _events(parts: Sequence[Scaled], sigma: float) -> list[tuple[Event, int]]:
    return [(SampledGaussian(part.sample_rate, part.scale * sigma), part.steps) for part in parts]


def _spent(parts: Sequence[Scaled], sigma: float, delta: float, accountant: str) -> Spent:
    """As ``accounting.epsilon``, but without its refusal at the largest order: a search may pass through there."""
    events = _events(parts, sigma)
    if accountant == "rdp" and sigma > 0:
        return accounting.epsilon_rdp(events, delta)
    return accounting.epsilon(events, delta, accountant)


def _untight(spent: Spent, accountant: str) -> bool:
    return accountant == "rdp" and spent.order == ORDERS[-1] and spent.epsilon > 0


def _no_tight_order(target: float) -> UsageError:
    return UsageError(
        f"No noise multiplier can be certified for epsilon={target:g} by RDP: the bound is reached at the largest "
        f"order of the grid ({ORDERS[-1]:g}), where it isn't tight. Use accountant=pld, a larger epsilon, or a larger "
        "delta."
    )


def _search_rdp(spent: Callable[[float], Spent], target: float, refuse: bool) -> float:
    """The papers' search: double sigma from 20 until it suffices, bisect [0, sigma], keep the upper end.

    The papers stop when the upper end's epsilon is within 1e-4 of the target. For targets below 0.1 that is loose, so
    the gap must also be below a thousandth of the target, and the result tight: target < epsilon(0.999 sigma).
    Without ``refuse`` it gives up doubling where RDP ends, and returns a starting point for another accountant.
    """
    low, high = 0.0, 20.0  # the papers bisect from 0, which their last digits depend on
    while (at_high := spent(high)).epsilon > target:
        if _untight(at_high, "rdp"):
            if refuse:
                raise _no_tight_order(target)
            return high
        high = 2 * high
    while target - at_high.epsilon >= min(1e-4, 1e-3 * target) or spent(_TIGHT * high).epsilon <= target:
        middle = (low + high) / 2
        if not low < middle < high:  # the target is too large for the first condition in float64
            break
        if (at_middle := spent(middle)).epsilon > target:
            low = middle
        else:
            high, at_high = middle, at_middle
    return high


def _search_pld(fine: Callable[[float], float], coarse: Callable[[float], float], target: float, start: float) -> float:
    """The least sigma with fine(sigma) <= target, to a thousandth, in about two evaluations of ``fine``.

    ``coarse`` is nearly the same curve and cheaper: secant steps on log epsilon over log sigma find its root. The
    answer rests on ``fine`` alone: epsilon(sigma) <= target, and epsilon > target at a point above 0.999 sigma.
    """
    x, slope = math.log(start), -1.2
    y = math.log(max(coarse(start), 1e-3 * target) / target)
    for _ in range(60):
        step = min(max(-y / slope, -0.5), 0.5)
        if abs(step) < 1e-4:
            break
        before, x = y, x + step
        y = math.log(max(coarse(math.exp(x)), 1e-3 * target) / target)
        slope = min((y - before) / step, -0.3)  # epsilon falls; a flat piece is the floor of the discretisation
    else:
        raise UsageError(
            f"No noise multiplier can be certified for epsilon={target:g}: it is below what the PLD accountant "
            "resolves. Use a larger epsilon or a larger delta."
        )
    low, high, width = 0.0, math.inf, 8e-4
    sigma = math.exp(x + step + width / 2)
    while low < _TIGHT * high:
        if fine(sigma) <= target:
            high = sigma
        else:
            low = sigma
        if low > 0 and high < math.inf:
            sigma = math.sqrt(low * high)
        else:
            sigma = low * (1 + width) if low else high * (1 - width)
            width *= 2
    return high


def default_cache_folder() -> Path:
    """``calibration`` inside the user's cache folder for dpsweep, or inside the folder that DPSWEEP_CACHE names."""
    named = os.environ.get("DPSWEEP_CACHE")
    return (Path(named) if named else platformdirs.user_cache_path("dpsweep")) / "calibration"


def _key(parts: Sequence[Scaled], target: float, delta: float, accountant: str) -> str:
    named = {
        "algorithm": _ALGORITHM,
        "releases": [[str(part.sample_rate), part.steps, float(part.scale).hex()] for part in parts],
        "epsilon": target.hex(),
        "delta": delta.hex(),
        "accountant": accountant,
        "orders": ORDERS,
        "dp_accounting": version("dp-accounting") if accountant == "pld" else None,
    }
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:32]


def _read(entry: Path) -> float | None:
    """The kept noise multiplier, or None when there is none that could be right: a cache is never an error."""
    try:
        sigma = float(json.loads(entry.read_text(encoding="utf-8"))["noise_multiplier"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return sigma if 0 < sigma < math.inf else None


def _write(entry: Path, result: Calibration) -> None:
    with suppress(OSError):
        entry.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=entry.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(vars(result), file)
            os.replace(temporary, entry)
        except OSError:
            os.unlink(temporary)
