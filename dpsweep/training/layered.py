"""The fast engine: clipped sums at nearly the price of ordinary training.

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

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from dpsweep.models.base import example_losses
from dpsweep.training.per_example import clip_factors, gradient_sum

Layer = nn.Linear | nn.Conv1d | nn.Conv2d


def supports(model: nn.Module) -> bool:
    """Whether every trained parameter belongs to a layer with a rule."""
    owned = [p for layer in _layers(model) for p in layer.parameters(recurse=False)]
    trained = [p for p in model.parameters() if p.requires_grad]
    return len(owned) == len(trained) and {id(p) for p in owned} == {id(p) for p in trained}


def _layers(model: nn.Module) -> list[Layer]:
    def has_rule(layer: nn.Module) -> TypeGuard[Layer]:
        if isinstance(layer, nn.Conv1d | nn.Conv2d):
            return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return type(layer) is nn.Linear

    def trained(layer: nn.Module) -> bool:
        return any(p.requires_grad for p in layer.parameters(recurse=False))

    return [layer for layer in filter(has_rule, model.modules()) if trained(layer)]


@dataclass
class _Entry:
    """What one pass leaves of one layer: its input, then its output, replaced by the output's gradient."""

    layer: Layer
    a: Tensor
    b: Tensor


class LayeredEngine:
    """See the module. Physical batches bound memory: a record's share is its activations and its small products."""

    def __init__(self, model: nn.Module, physical_batch: int | None) -> None:
        self._model = model
        self._asked = physical_batch
        self._physical = physical_batch or 512
        self._tape: list[_Entry] | None = None
        self._slices: dict[int, slice] = {}
        offset = 0
        for p in model.parameters():
            if p.requires_grad:
                self._slices[id(p)] = slice(offset, offset + p.numel())
                offset += p.numel()
        self._size = offset
        for layer in _layers(model):
            layer.register_forward_hook(self._record)

    def _record(self, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self._tape is not None:
            self._tape.append(_Entry(layer, inputs[0].detach(), output))

    def clipped_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...], max_grad_norm: float) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        total = torch.zeros(self._size, dtype=x.dtype, device=x.device)
        for start in range(0, len(x), self._physical):
            part = slice(start, start + self._physical)
            self._add(total, x[part], y[part], tuple(mask[part] for mask in masks), max_grad_norm, first=start == 0)
        return total

    def gradient_sum(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...]) -> Tensor:
        """See :class:`~dpsweep.training.per_example.Engine`."""
        return gradient_sum(self._model, x, y, masks, self._asked)

    def _add(self, total: Tensor, x: Tensor, y: Tensor, masks: tuple[Tensor, ...], max_grad_norm: float, first: bool) -> None:
        tape = self._pass(x, y, masks)
        products = [_product(entry) for entry in tape]
        squared = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for entry, product in zip(tape, products, strict=True):
            squared += _squared_norms(entry, product)
        factors = clip_factors(squared, max_grad_norm)
        kept = factors > 0
        if not bool(kept.all()):  # a zero weight doesn't remove a NaN: take the rows out
            factors = factors[kept]
            tape = [_Entry(e.layer, e.a[kept], e.b[kept]) for e in tape]
            products = [None if p is None else p[kept] for p in products]
        for entry, product in zip(tape, products, strict=True):
            self._add_layer(total, entry, product, factors.to(x.dtype), first)

    def _pass(self, x: Tensor, y: Tensor, masks: tuple[Tensor, ...]) -> list[_Entry]:
        self._tape = []
        try:
            loss = example_losses(self._model(x, *masks), y).sum()
            tape = self._tape
        finally:
            self._tape = None
        if len({id(e.layer) for e in tape}) != len(tape):
            raise RuntimeError("a trained layer is called more than once a pass: its parts can't be clipped apart")
        gradients = torch.autograd.grad(loss, [e.b for e in tape])
        return [_Entry(e.layer, e.a, b) for e, b in zip(tape, gradients, strict=True)]

    def _add_layer(self, total: Tensor, entry: _Entry, product: Tensor | None, factors: Tensor, first: bool) -> None:
        layer = entry.layer
        view = total[self._slices[id(layer.weight)]]
        if product is None:
            weighted = entry.b * factors[:, None]
            torch.addmm(
                view.view(layer.weight.shape),
                weighted.t(),
                entry.a,
                beta=0 if first else 1,
                out=view.view(layer.weight.shape),
            )
            if layer.bias is not None:
                total[self._slices[id(layer.bias)]] += weighted.sum(0)
            return
        view += factors @ product.flatten(1)
        if layer.bias is not None:
            total[self._slices[id(layer.bias)]] += factors @ _bias_gradients(entry)


def _product(entry: _Entry) -> Tensor | None:
    """The per-example weight gradients, shape (n, out, in), of a layer with positions; None for a plain linear one."""
    layer, a, b = entry.layer, entry.a, entry.b
    if isinstance(layer, nn.Linear):
        return None if a.dim() == 2 else torch.bmm(b.flatten(1, -2).transpose(1, 2), a.flatten(1, -2))
    kernel, dilation, padding, stride = layer.kernel_size, layer.dilation, layer.padding, layer.stride
    assert not isinstance(padding, str)
    if isinstance(layer, nn.Conv1d):
        a, kernel, dilation, padding, stride = a.unsqueeze(2), (1, *kernel), (1, *dilation), (0, *padding), (1, *stride)
    columns = nn.functional.unfold(a, kernel, dilation, padding, stride)
    return torch.bmm(b.flatten(2), columns.transpose(1, 2))


def _bias_gradients(entry: _Entry) -> Tensor:
    """The per-example bias gradients, shape (n, out)."""
    if isinstance(entry.layer, nn.Linear):
        return entry.b if entry.b.dim() == 2 else entry.b.flatten(1, -2).sum(1)
    return entry.b.flatten(2).sum(2)


def _squared_norms(entry: _Entry, product: Tensor | None) -> Tensor:
    """Squared norms of a layer's per-example gradients, weight and bias together: float64, shape (n,)."""
    bias = 0 if entry.layer.bias is None else _row_squares(_bias_gradients(entry))
    if product is None:
        return _row_squares(entry.a) * _row_squares(entry.b) + bias
    return _row_squares(product.flatten(1)) + bias


def _row_squares(rows: Tensor) -> Tensor:
    """|row|^2 in float64: summed in the rows' own dtype where that is exact enough, again in float64 on overflow."""
    squares = torch.linalg.vector_norm(rows, dim=1).double().square()
    if not bool(squares.isfinite().all()):
        squares = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).square()
    return squares
