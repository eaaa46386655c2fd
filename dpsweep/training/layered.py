"""The fast engine for networks: clipped sums at nearly the price of ordinary training.

One forward pass keeps the input a of every trained layer; one backward pass goes to the layers' outputs only and gives
their gradients b. A layer's per-example gradient is a product of the two, so its norm and the clipped sum come from a
and b directly, without a second forward pass and, for linear layers, without any per-example gradient:

* linear, one position: g_i = b_i a_i', so |g_i|^2 = |a_i|^2 |b_i|^2 (Goodfellow 2015) and sum_i f_i g_i = (f b)' a;
* linear over positions, and convolutions: g_i = b_i' unfold(a_i), a small matrix a record, is formed once and used for
  both the norm and the sum (cheaper than the Gram form |a a'||b b'| at the sizes of these models).

It holds for models whose trained parameters all belong to such layers, each called once a pass; others fall back to
:class:`~dpsweep.training.per_example.VmapEngine`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from dpsweep.models.base import Model, example_losses, trained, trial, unflatten
from dpsweep.training.frozen import row_squares
from dpsweep.training.per_example import Engine, Inputs, VmapEngine, Weigh, clipping, cut, gradient_sum

Layer = nn.Linear | nn.Conv1d | nn.Conv2d
_PHYSICAL = 512  # records that pass through the network at a time
_COLUMNS = 2**19  # numbers of unfolded input that are formed at a time: 2 MB in float32, the size of an L2 cache


def supports(model: Model, shape: tuple[int, ...]) -> bool:
    """Whether the rules hold for a model: every trained parameter belongs to a layer with a rule, and on a trial the
    clipped sum is that of ``torch.func``. That fails where a layer is called twice or its weight is used elsewhere, where
    an operation changes a layer's output in place, or where records aren't the first dimension of what a layer reads.
    """
    if {id(p) for layer in _layers(model) for p in layer.parameters(recurse=False)} != {id(p) for p in trained(model)}:
        return False
    return agrees(LayeredEngine, model, shape)


def agrees(engine: Callable[[Model, int | None], Engine], model: Model, shape: tuple[int, ...]) -> bool:
    """Whether an engine's clipped sum on a trial of the model is that of ``torch.func``, which sees one record at a time."""
    duplicate, inputs = trial(model, shape)
    try:
        rows = VmapEngine(duplicate, None)
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
    def has_rule(layer: nn.Module) -> TypeGuard[Layer]:
        if isinstance(layer, nn.Conv1d | nn.Conv2d):
            return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return type(layer) is nn.Linear

    def is_trained(layer: nn.Module) -> bool:
        return any(p.requires_grad for p in layer.parameters(recurse=False))

    return [layer for layer in filter(has_rule, model.modules()) if is_trained(layer)]


@dataclass
class _Entry:
    """What one pass leaves of one layer.

    Attributes:
        a: the layer's input.
        b: the gradient of the summed losses with respect to its output.
        product: per-example weight gradients (n, out, inputs), in the order of kernel rows, columns, channels; None for a
            linear layer with one position.
    """

    layer: Layer
    a: Tensor
    b: Tensor
    product: Tensor | None = None

    def bias_rows(self) -> Tensor:
        """Per-example bias gradients, shape (n, out)."""
        if isinstance(self.layer, nn.Linear):
            return self.b if self.b.dim() == 2 else self.b.flatten(1, -2).sum(1)
        return self.b.flatten(2).sum(2)

    def take(self, kept: Tensor) -> _Entry:
        """The same for some of the records."""
        product = None if self.product is None else self.product[kept]
        return _Entry(self.layer, self.a[kept], self.b[kept], product)


class LayeredEngine:
    """See the module. Physical batches bound memory: a record's share is its activations and its small products."""

    def __init__(self, model: Model, physical_batch: int | None) -> None:
        self._model = model
        self._asked = physical_batch
        self._images = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
        self._parameters = trained(model)
        self._tape: list[tuple[Layer, Tensor, Tensor]] | None = None
        for layer in _layers(model):
            layer.register_forward_hook(self._record)

    def _record(self, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self._tape is not None:
            self._tape.append((layer, inputs[0].detach(), output))

    def weighted_sum(self, inputs: Inputs, y: Tensor, weigh: Weigh) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        total = inputs[0].new_empty(sum(p.numel() for p in self._parameters))
        if len(y) == 0:
            return total.zero_()
        views = {id(p): view for p, view in zip(self._parameters, unflatten(total, self._parameters), strict=True)}
        first = True
        for part, labels in cut(inputs, y, self._asked or _PHYSICAL):
            entries = self._pass(part, labels)
            squared: Any = sum(_squares(entry) for entry in entries)
            factors = weigh(squared.sqrt())
            kept = factors > 0
            if not bool(kept.all()):  # a zero weight doesn't remove a NaN: take the rows out
                factors, entries = factors[kept], [entry.take(kept) for entry in entries]
            for entry in entries:
                _add(entry, factors.to(total.dtype), views, first)
            first = False
        return total

    def gradient_sum(self, inputs: Inputs, y: Tensor) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        return gradient_sum(self._model, lambda rows: self._model(*self._laid_out(rows)), inputs, y, self._asked)

    def _laid_out(self, inputs: Inputs) -> Inputs:
        x, *masks = inputs
        return (x.contiguous(memory_format=torch.channels_last), *masks) if self._images else inputs

    def _pass(self, inputs: Inputs, y: Tensor) -> list[_Entry]:
        tape: list[tuple[Layer, Tensor, Tensor]] = []
        self._tape = tape
        try:
            loss = example_losses(self._model(*self._laid_out(inputs)), y).sum()
        finally:
            self._tape = None
        if len({id(layer) for layer, _, _ in tape}) != len(tape):
            raise RuntimeError("a trained layer is called more than once a pass: its parts can't be clipped apart")
        gradients = torch.autograd.grad(loss, [output for _, _, output in tape])
        return [_Entry(layer, a, b) for (layer, a, _), b in zip(tape, gradients, strict=True)]


def _squares(entry: _Entry) -> Tensor:
    """Squared norms of a layer's per-example gradients, weight and bias together: float64, shape (n,)."""
    bias = 0 if entry.layer.bias is None else row_squares(entry.bias_rows())
    if isinstance(entry.layer, nn.Linear):
        if entry.b.dim() == 2:
            return row_squares(entry.a) * row_squares(entry.b) + bias
        entry.product = torch.bmm(entry.b.flatten(1, -2).transpose(1, 2), entry.a.flatten(1, -2))
        return row_squares(entry.product.flatten(1)) + bias
    columns, b = _columns(entry)
    n, positions, inputs = len(b), b.shape[1], columns.shape[3:].numel()
    entry.product = b.new_empty(n, b.shape[2], inputs)
    squares = torch.empty(n, dtype=torch.float64, device=b.device)
    rows = max(1, _COLUMNS // (positions * inputs)) if b.device.type == "cpu" else n
    for start in range(0, n, rows):  # copy a part, multiply, take norms: all while it is in the cache
        part = slice(start, start + rows)
        unfolded = columns[part].reshape(-1, positions, inputs)
        torch.bmm(b[part].transpose(1, 2), unfolded, out=entry.product[part])
        squares[part] = row_squares(entry.product[part].flatten(1))
    return squares + bias


def _columns(entry: _Entry) -> tuple[Tensor, Tensor]:
    """A convolution's input windows as a view (n, rows, columns, kernel rows, kernel columns, channels), and its output
    gradients (n, positions, out), channels innermost."""
    layer, a, b = entry.layer, entry.a, entry.b
    assert isinstance(layer, nn.Conv1d | nn.Conv2d) and not isinstance(layer.padding, str)
    kernel, dilation, padding, stride = layer.kernel_size, layer.dilation, layer.padding, layer.stride
    if isinstance(layer, nn.Conv1d):
        a, b = a.unsqueeze(2), b.unsqueeze(2)
        kernel, dilation, padding, stride = (1, *kernel), (1, *dilation), (0, *padding), (1, *stride)
    a = nn.functional.pad(a.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0])).contiguous()
    b = b.permute(0, 2, 3, 1).contiguous()
    per_record, per_row, per_column, _ = a.stride()
    windows = a.as_strided(
        (len(a), b.shape[1], b.shape[2], *kernel, a.shape[3]),
        (per_record, per_row * stride[0], per_column * stride[1], per_row * dilation[0], per_column * dilation[1], 1),
    )
    return windows, b.flatten(1, 2)


def _add(entry: _Entry, factors: Tensor, views: dict[int, Tensor], first: bool) -> None:
    """Put (first) or add the weighted sum of a layer's per-example gradients into the views of its weight and bias."""
    layer, keep = entry.layer, 0 if first else 1
    weight, bias = views.get(id(layer.weight)), views.get(id(layer.bias))
    if weight is not None:
        if entry.product is None:
            weight.addmm_((entry.b * factors[:, None]).t(), entry.a, beta=keep)
        else:
            summed = factors @ entry.product.flatten(1)
            if not isinstance(layer, nn.Linear):  # channels innermost, as the product has them
                summed = summed.view(layer.out_channels, *layer.kernel_size, layer.in_channels).movedim(-1, 1)
            summed = summed.reshape(weight.shape)
            weight.copy_(summed) if first else weight.add_(summed)
    if bias is not None:
        bias.addmv_(entry.bias_rows().t(), factors, beta=keep)
