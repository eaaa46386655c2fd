"""Diagnostics of a run, epoch by epoch: training loss, gradient norms, how many gradients were clipped.

They are read from the training records without noise, so no guarantee covers them, and they are refused for records that
aren't public. They watch and change nothing: no random number is drawn, no parameter is touched, and the sums that train
the model are those of a run without them, bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpsweep.models.base import example_losses
from dpsweep.training.engines import Prepared
from dpsweep.training.per_example import cut

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_KEPT = ("steps", "clipped", "clips", "epochs", "all_draws", "all_clipped")  # by a checkpoint, besides the norms
_ROWS = 500  # records whose losses are taken at a time: of ResNet-18 they hold 131 MB in each layer


class Diagnostics:
    """Watches the sums of a run, and takes the loss at the end of each epoch of J steps.

    Args:
        model: what is trained; it is in evaluation mode (no dropout) for the loss, and in its own mode afterwards.
        prepared: its inputs.
        labels: shape (n,).
        steps_per_epoch: J = ceil(1/q).
    """

    def __init__(self, model: nn.Module, prepared: Prepared, labels: Tensor, steps_per_epoch: int) -> None:
        self._model, self._prepared, self._labels = model, prepared, labels
        self._steps_per_epoch = steps_per_epoch
        self._steps = 0  # of the open epoch
        self._norms: list[np.ndarray] = []  # of the open epoch
        self._clipped = 0  # of the open epoch
        self._clips = False  # whether the run clips at all
        self._epochs: list[dict[str, Any]] = []
        self._all_draws = self._all_clipped = 0  # of closed epochs

    def note(self, norms: Tensor, max_grad_norm: float) -> None:
        """Take note of gradient norms, float64 (n,), that are clipped to `max_grad_norm` (infinite: formed for their own sake).
        A record counts once for each time it is drawn, with the model as it was in that step."""
        self._norms.append(norms.cpu().numpy())
        if max_grad_norm < math.inf:  # what isn't finite is clipped to nothing
            self._clips = True
            self._clipped += int((~(norms <= max_grad_norm)).sum())

    def close_step(self) -> None:
        """End a step, and with an epoch's last step the epoch."""
        self._steps += 1
        if self._steps == self._steps_per_epoch:
            self._close_epoch()

    def result(self) -> dict[str, Any]:
        """What was seen. The last epoch may be shorter than J steps.

        Returns:
            ``epochs``, a list of: ``epoch`` (from 1), ``loss`` (mean over the training records at its end), ``draws`` (how
            many records were drawn, each as often as it was), ``clipped_fraction`` (of the draws), ``norm_quantiles`` (of
            the draws' gradient norms, interpolated linearly, by the quantile as text); and ``clipped_fraction``, of all
            draws of the run. None stands where there were no draws, nothing is clipped, or a number isn't finite.
        """
        if self._steps:
            self._close_epoch()
        return {"epochs": self._epochs, "clipped_fraction": self._fraction(self._all_clipped, self._all_draws)}

    def state(self) -> dict[str, Any]:
        """What was seen so far: tensors and plain values."""
        norms = torch.from_numpy(np.concatenate([np.empty(0), *self._norms]))
        return {"norms": norms} | {name: getattr(self, f"_{name}") for name in _KEPT}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._norms = [state["norms"].numpy()]
        for name in _KEPT:
            setattr(self, f"_{name}", state[name])

    def _close_epoch(self) -> None:
        norms = np.concatenate([np.empty(0), *self._norms])
        self._epochs.append(
            {
                "epoch": len(self._epochs) + 1,
                "loss": self._mean_loss(),
                "draws": len(norms),
                "clipped_fraction": self._fraction(self._clipped, len(norms)),
                "norm_quantiles": _quantiles(norms),
            }
        )
        self._all_draws += len(norms)
        self._all_clipped += self._clipped
        self._norms.clear()
        self._steps = self._clipped = 0

    def _fraction(self, clipped: int, draws: int) -> float | None:
        return clipped / draws if self._clips and draws else None

    @torch.no_grad()
    def _mean_loss(self) -> float | None:
        mode = self._model.training
        self._model.eval()
        parts = cut(self._prepared.inputs, self._labels, _ROWS)
        total = sum(float(example_losses(self._prepared.forward(part), y).double().sum()) for part, y in parts)
        self._model.train(mode)
        return _finite(total / len(self._labels)) if len(self._labels) else None


def _quantiles(norms: np.ndarray) -> dict[str, float | None]:
    if not len(norms):
        return {str(q): None for q in QUANTILES}
    with np.errstate(invalid="ignore"):  # between an infinite norm and its neighbour
        found = np.quantile(np.nan_to_num(norms, nan=np.inf, posinf=np.inf), QUANTILES)
    return {str(q): _finite(float(value)) for q, value in zip(QUANTILES, found, strict=True)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
