"""The reference engine: per-example gradients by Opacus' hooks, which the other engines are held against."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn

from dpsweep.models.base import example_losses, trained
from dpsweep.training.per_example import Inputs, Metric, Physical, Weigh, cut, gradient_sum, physical, sum_of_rows


class ReferenceEngine:
    """Opacus' ``GradSampleModule``, fed in physical batches.

    It works on a copy of the model with contiguous weights, renewed before each sum: Opacus unfolds a convolution's
    input by strides that only hold for contiguous tensors, and is silently wrong with the channels innermost.
    """

    def __init__(self, model: nn.Module, physical_batch: Physical) -> None:
        from opacus import GradSampleModule

        self._model = model
        self._asked = physical_batch
        duplicate = copy.deepcopy(model).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self._parameters = trained(duplicate)
        self._hooked = GradSampleModule(duplicate, loss_reduction="sum")

    def weighted_sum(self, inputs: Inputs, y: Tensor, weigh: Weigh, metric: Metric = None) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        originals = trained(self._model)
        with torch.no_grad():
            for mine, theirs in zip(self._parameters, originals, strict=True):
                mine.copy_(theirs)
        total = inputs[0].new_zeros(sum(p.numel() for p in originals))
        for part, labels in cut(inputs, y, physical(self._asked, 1024)):
            with warnings.catch_warnings():  # "backward hook is firing ... no inputs require gradients": as intended
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                example_losses(self._hooked(*part), labels).sum().backward()
            rows = [p.grad_sample for p in self._parameters]  # type: ignore[attr-defined]
            total += sum_of_rows(rows, originals, weigh, metric)
            for p in self._parameters:
                p.grad = None
                p.grad_sample = None  # type: ignore[attr-defined]
        return total

    def gradient_sum(self, inputs: Inputs, y: Tensor) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        return gradient_sum(self._model, lambda rows: self._model(*rows), inputs, y, self._asked)
