"""Curves of a run: test accuracy, test loss and what was spent, epoch by epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dpsweep.models.base import Model, example_losses

MOST = 1000  # points that a record keeps: of longer runs every second epoch is kept, or every third, ...
_ROWS = 500  # records whose losses are taken at a time: of ResNet-18 they hold 131 MB in each layer


class Curves:
    """Evaluates a model at the end of each epoch of J steps, and after the last step. It draws no random number.

    Args:
        model: what is trained; it is in evaluation mode while it is looked at, and in its own mode afterwards.
        x, y: the test records, which are public.
        steps_per_epoch: J = ceil(1/q).
        steps: T, of the whole run.
        spent: from a number of steps to the epsilon that the plan allows them; None where nothing is counted.
    """

    def __init__(self, model: Model, x: Tensor, y: Tensor, steps_per_epoch: int, steps: int,
                 spent: Callable[[int], float] | None) -> None:  # fmt: skip
        self._model, self._x, self._y, self._spent, self._steps = model, x, y, spent, steps
        self._every = steps_per_epoch * math.ceil(steps / steps_per_epoch / MOST)
        self._per_epoch = steps_per_epoch
        self._points: dict[str, list[float | None]] = {name: [] for name in ("epoch", "accuracy", "loss", "epsilon")}
        self.seconds = 0.0  # that the looking took

    def after(self, step: int) -> None:
        """Take a point, if `step` steps end an epoch."""
        if step % self._every and step != self._steps:
            return
        begun = time.perf_counter()
        accuracy, loss = self._look()
        spent = self._spent(step) if self._spent else None
        for name, value in (("epoch", step / self._per_epoch), ("accuracy", accuracy), ("loss", loss), ("epsilon", spent)):
            self._points[name].append(value)
        self.seconds += time.perf_counter() - begun

    def result(self) -> dict[str, Any]:
        """``epoch`` (a fraction where the run ends inside one), ``accuracy``, ``loss`` (mean cross-entropy; None where it isn't
        finite) and ``epsilon`` (of the plan up to there), lists of one length; and ``best_accuracy`` with its ``best_epoch``:
        a diagnostic, for it is chosen by the test set."""
        best = max(range(len(self._points["epoch"])), key=lambda i: self._points["accuracy"][i] or 0.0, default=None)
        found = {} if best is None else {f"best_{name}": self._points[name][best] for name in ("accuracy", "epoch")}
        return {**self._points, **found}

    def state(self) -> dict[str, Any]:
        """The points so far."""
        return self._points

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from these points."""
        self._points = state

    @torch.no_grad()
    def _look(self) -> tuple[float, float | None]:
        mode = self._model.training
        self._model.eval()
        hits, loss = 0, 0.0
        for x, y in zip(self._x.split(_ROWS), self._y.split(_ROWS), strict=True):
            logits = self._model(x)
            guess = logits.argmax(1) if logits.shape[1] > 1 else (logits.squeeze(1) >= 0).long()
            hits += int((guess == y).sum())
            loss += float(example_losses(logits, y).double().sum())
        self._model.train(mode)
        mean = loss / len(self._y)
        return hits / len(self._y), mean if math.isfinite(mean) else None
