"""The fast engine for networks: clipped sums at nearly the price of ordinary training.

One forward pass keeps the input a of every trained layer; one backward pass goes to the layers' outputs only and gives
their gradients b. A layer's per-example gradient is a product of the two, so its norm and the clipped sum come from a
and b directly (:mod:`~dpsweep.training.rules`), without a second forward pass.

It holds for models whose trained parameters all belong to layers with a rule, each called once a pass; others fall back to
:class:`~dpsweep.training.per_example.VmapEngine`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dpsweep.models.base import Model, example_losses, trained, trial, unflatten
from dpsweep.training.per_example import (
    Engine,
    Inputs,
    Metric,
    Physical,
    VmapEngine,
    Weigh,
    clipping,
    cut,
    gradient_sum,
    physical,
)
from dpsweep.training.rules import Entry, Layer, add, has_rule, squares

_PHYSICAL = 512  # records that pass through the network at a time, or fewer:
_BYTES = {"cpu": 2**29, "cuda": 2**32}  # of activations, their gradients and per-example gradients at a time


def supports(model: Model, shape: tuple[int, ...]) -> bool:
    """Whether the rules hold for a model: every trained parameter belongs to a layer with a rule, and on a trial the
    clipped sum is that of ``torch.func``. That fails where a layer is called twice or its weight is used elsewhere, where
    an operation changes a layer's output in place, or where records aren't the first dimension of what a layer reads.
    """
    if {id(p) for layer in _layers(model) for p in layer.parameters(recurse=False)} != {id(p) for p in trained(model)}:
        return False
    return agrees(LayeredEngine, model, shape)


def agrees(engine: Callable[[Model, Physical], Engine], model: Model, shape: tuple[int, ...]) -> bool:
    """Whether an engine's clipped sum on a trial of the model is that of ``torch.func``, which sees one record at a time."""
    duplicate, inputs = trial(model, shape)
    try:
        rows = VmapEngine(duplicate, 1)  # one at a time, to spare memory
        with torch.no_grad():
            classes = duplicate(*inputs).shape[1]
        y = torch.arange(len(inputs[0])) % max(2, classes)
        for max_grad_norm in (1e-4, 1e9):  # all records clipped, none clipped
            expected = rows.weighted_sum(tuple(inputs), y, clipping(max_grad_norm))
            found = engine(duplicate, None).weighted_sum(tuple(inputs), y, clipping(max_grad_norm))
            if not torch.allclose(found, expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max())):
                return False
    except Exception:  # what doesn't fit shows in many ways, Opacus' own among them
        return False
    return True


def _layers(model: nn.Module) -> list[Layer]:
    def is_trained(layer: nn.Module) -> bool:
        return any(p.requires_grad for p in layer.parameters(recurse=False))

    return [layer for layer in filter(has_rule, model.modules()) if is_trained(layer)]


class LayeredEngine:
    """See the module. Physical batches bound memory: a record's share is its activations and its per-example gradients."""

    def __init__(self, model: Model, physical_batch: Physical) -> None:
        self._model = model
        self._asked = physical_batch
        self._images = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
        self._parameters = trained(model)
        self._fit: int | None = None
        self._tape: list[tuple[Layer, Tensor, Tensor]] | None = None
        for layer in _layers(model):
            layer.register_forward_hook(self._record)

    def _record(self, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self._tape is not None:
            self._tape.append((layer, inputs[0].detach(), output))

    def weighted_sum(self, inputs: Inputs, y: Tensor, weigh: Weigh, metric: Metric = None) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        total = inputs[0].new_empty(sum(p.numel() for p in self._parameters))
        if len(y) == 0:
            return total.zero_()
        views = {id(p): view for p, view in zip(self._parameters, unflatten(total, self._parameters), strict=True)}
        maps = {} if metric is None else {id(p): by for p, by in zip(self._parameters, metric, strict=True)}
        first = True
        for part, labels in cut(inputs, y, self._physical(inputs, _PHYSICAL)):
            entries = self._pass(part, labels)
            squared: Any = sum(squares(entry, maps.get(id(entry.layer.weight))) for entry in entries)
            factors = weigh(squared.sqrt())
            kept = factors > 0
            if not bool(kept.all()):  # a zero weight doesn't remove a NaN: take the rows out
                factors, entries = factors[kept], [entry.take(kept) for entry in entries]
            for entry in entries:
                add(entry, factors.to(total.dtype), views, first)
            first = False
        return total

    def gradient_sum(self, inputs: Inputs, y: Tensor) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        at_once = self._physical(inputs, max(1, len(y)))
        return gradient_sum(self._model, lambda rows: self._model(*self._laid_out(rows)), inputs, y, at_once)

    def _physical(self, inputs: Inputs, most: int) -> int:
        return physical(self._asked, min(most, self._fitting(inputs)))

    def _fitting(self, inputs: Inputs) -> int:
        """How many records a pass may hold, at least one: found on a record of zeros, so that it's the same for all data."""
        if self._fit is None:
            with torch.no_grad():
                tape = self._taped(tuple(part.new_zeros(1, *part.shape[1:]) for part in inputs))[1]
            numbers = sum(a.numel() + 2 * b.numel() + (layer.weight.numel() if b.dim() > 2 else 0) for layer, a, b in tape)
            self._fit = max(1, _BYTES[inputs[0].device.type] // (numbers * inputs[0].element_size()))
        return self._fit

    def _laid_out(self, inputs: Inputs) -> Inputs:
        x, *masks = inputs
        images = self._images and x.dim() == 4
        return (x.contiguous(memory_format=torch.channels_last), *masks) if images else inputs

    def _taped(self, inputs: Inputs) -> tuple[Tensor, list[tuple[Layer, Tensor, Tensor]]]:
        """A forward pass: logits, and each layer with its input and output, in the order of their calls."""
        tape: list[tuple[Layer, Tensor, Tensor]] = []
        self._tape = tape
        try:
            return self._model(*self._laid_out(inputs)), tape
        finally:
            self._tape = None

    def _pass(self, inputs: Inputs, y: Tensor) -> list[Entry]:
        logits, tape = self._taped(inputs)
        if len({id(layer) for layer, _, _ in tape}) != len(tape):
            raise RuntimeError("a trained layer is called more than once a pass: its parts can't be clipped apart")
        gradients = torch.autograd.grad(example_losses(logits, y).sum(), [output for _, _, output in tape])
        return [Entry(layer, a, b) for (layer, a, _), b in zip(tape, gradients, strict=True)]
