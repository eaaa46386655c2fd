"""The reference engine: per-example gradients by Opacus' hooks, which the other engines are held against."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from dpsweep.models.base import example_losses
from dpsweep.training.per_example import gradient_sum, weighted_sum


class ReferenceEngine:
    """Opacus' ``GradSampleModule``, fed in physical batches."""

    def __init__(self, model: nn.Module, physical_batch: int | None) -> None:
        from opacus import GradSampleModule

        self._model = model
        self._asked = physical_batch
        self._physical = physical_batch or 1024
        self._hooked = GradSampleModule(model, loss_reduction="sum")
        self._hooked.disable_hooks()  # the model is shared with evaluation and with plain gradients

    def clipped_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...], max_grad_norm: float) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        total = torch.cat([torch.zeros_like(p).reshape(-1) for p in parameters])
        self._hooked.enable_hooks()
        for start in range(0, len(x), self._physical):
            part = slice(start, start + self._physical)
            with warnings.catch_warnings():  # "backward hook is firing ... no inputs require gradients": as intended
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                example_losses(self._hooked(x[part], *(mask[part] for mask in masks)), y[part]).sum().backward()
            total += weighted_sum([p.grad_sample for p in parameters], max_grad_norm)  # type: ignore[attr-defined]
            for p in parameters:
                p.grad = None
                p.grad_sample = None  # type: ignore[attr-defined]
        self._hooked.disable_hooks()
        return total

    def gradient_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        return gradient_sum(self._model, x, y, masks, self._asked)
