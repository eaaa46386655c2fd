"""Levels that a YAML names, found in the cells of a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsweep.errors import UsageError


class Levels:
    """The levels of one field, as a YAML lists them: numbers and texts.

    A number stands for every way of writing it (1 for `1`, `1.0` and ` 1`), a text for itself without the blanks around it.

    Args:
        levels: at least one; no two of them may stand for the same cell.
        what: the key that they are listed under, for messages.

    Raises:
        UsageError: one is neither a number nor a text, or two stand for the same cell.
    """

    def __init__(self, levels: Any, what: str) -> None:
        if not isinstance(levels, (list, tuple)) or not levels:
            raise UsageError(f"{what}: {levels!r} is not a list of levels. Write one, such as [0, 1] or [low, high].")
        self._texts: dict[str, int] = {}
        self._numbers: dict[float, int] = {}
        for code, level in enumerate(levels):
            if isinstance(level, bool) or not isinstance(level, (str, int, float)):
                raise UsageError(
                    f"{what}: the level {level!r} is neither a number nor a text. YAML turns unquoted yes, no, true, false "
                    "and null into something else than text: put quotes around it."
                )
            if self.code(str(level)) >= 0:
                raise UsageError(f"{what}: the level {level!r} and an earlier one stand for the same cell. Leave one out.")
            if isinstance(level, str):
                self._texts[level.strip()] = code
            elif math.isfinite(level):
                self._numbers[float(level)] = code
            else:
                raise UsageError(f"{what}: the level {level!r} is not a finite number. Put quotes around it if it is a text.")
        self._count = len(levels)

    def __len__(self) -> int:
        return self._count

    def code(self, cell: str) -> int:
        """The position of the level that a cell stands for; -1 for none."""
        text = cell.strip()
        if text in self._texts:
            return self._texts[text]
        try:
            return self._numbers.get(float(text), -1)
        except ValueError:
            return -1

    def codes(self, cells: Sequence[str]) -> np.ndarray:
        """`code` of each cell, int64 (n,)."""
        known = {cell: self.code(cell) for cell in set(cells)}
        return np.array([known[cell] for cell in cells], dtype=np.int64)
