"""Checks of a mechanism's keys, in words that name key, value and remedy; ``build`` turns their ValueError into a UsageError."""

from __future__ import annotations

from math import inf, isfinite
from typing import Any


def number(key: str, value: Any, above: float = -inf, below: float = inf) -> float:
    """The value, if it is a finite number strictly between two others; ValueError else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and above < value < below:
        return float(value)
    limits = [f"{word} {limit:g}" for word, limit in (("above", above), ("below", below)) if isfinite(limit)]
    raise ValueError(f"mechanism.{key}={value}: a finite number {' and '.join(limits)}".rstrip() + " is needed")


def whole(key: str, value: Any, least: int = 1) -> int:
    """The value, if it is an integer of at least `least`; ValueError else."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise ValueError(f"mechanism.{key}={value}: an integer of at least {least} is needed")


def choice(key: str, value: Any, *names: str) -> str:
    """The value, if it is one of the names; ValueError else."""
    if value in names:
        return str(value)
    raise ValueError(f"mechanism.{key}={value}: {' or '.join(names)} is needed")


def pair(key: str, value: Any, above: float = -inf, below: float = inf) -> tuple[float, float]:
    """The value, if it is a list of two numbers strictly between two others; ValueError else."""
    if isinstance(value, list | tuple) and len(value) == 2:
        return number(key, value[0], above, below), number(key, value[1], above, below)
    raise ValueError(f"mechanism.{key}={value}: a list of two numbers is needed")
