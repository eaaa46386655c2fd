"""Per-example gradients of layers, from what one pass leaves of them: the rules behind the fast engine.

With a a layer's input and b the gradient of the summed losses with respect to its output, a record's gradient is

* linear, one position: g_i = b_i a_i', so |g_i|^2 = |a_i|^2 |b_i|^2 (Goodfellow 2015) and sum_i f_i g_i = (f b)' a;
* linear over positions, and convolutions: g_i = b_i' unfold(a_i), a small matrix a record, is formed once and used for
  both the norm and the sum. The Gram form |a a'||b b'| of the norm would spare the matrix, and for wide layers memory;
  but where a record's gradient is a small difference of large terms it is off, and the sum wouldn't be clipped by the norm
  of what is summed;
* group normalisation y = w n(a) + c, n(a) having mean 0 and variance 1 in each group of channels: the gradients of w and c
  are the sums over positions of b n(a) and of b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch import Tensor, nn

from dpsweep.privacy.anisotropic import RowMap
from dpsweep.training.frozen import row_squares

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.GroupNorm
_COLUMNS = {"cpu": 2**19, "cuda": 2**26}  # numbers of unfolded input that are formed at a time: on a CPU, what its L2 holds


def has_rule(layer: nn.Module) -> TypeGuard[Layer]:
    """Whether there is a rule for a layer."""
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) in (nn.Linear, nn.GroupNorm)


@dataclass
class Entry:
    """What one pass leaves of one layer.

    Attributes:
        a: the layer's input.
        b: the gradient of the summed losses with respect to its output.
        product: per-example weight gradients: (n, out, inputs), in the order of kernel rows, columns, channels, or (n,
            channels) of a normalisation; None for a linear layer with one position.
    """

    layer: Layer
    a: Tensor
    b: Tensor
    product: Tensor | None = None

    def bias_rows(self) -> Tensor:
        """Per-example bias gradients, shape (n, out)."""
        if isinstance(self.layer, nn.Linear):
            return self.b if self.b.dim() == 2 else self.b.flatten(1, -2).sum(1)
        return _over_positions(self.b)

    def take(self, kept: Tensor) -> Entry:
        """The same for some of the records."""
        product = None if self.product is None else self.product[kept]
        return Entry(self.layer, self.a[kept], self.b[kept], product)


def squares(entry: Entry, metric: RowMap | None = None) -> Tensor:
    """Squared norms of a layer's per-example gradients, weight and bias together: float64, shape (n,). With a metric S the norm
    of a weight gradient is |G S^-1|, and for G = b a' that is |b| |S^-1 a|."""
    bias = 0 if entry.layer.bias is None else row_squares(entry.bias_rows())
    if isinstance(entry.layer, nn.Linear):
        if entry.b.dim() == 2:
            return row_squares(entry.a if metric is None else metric.inverse(entry.a)) * row_squares(entry.b) + bias
        entry.product = torch.bmm(entry.b.flatten(1, -2).transpose(1, 2), entry.a.flatten(1, -2))
        return row_squares((entry.product if metric is None else metric.inverse(entry.product)).flatten(1)) + bias
    if isinstance(entry.layer, nn.GroupNorm):
        entry.product = _over_positions(entry.b * nn.functional.group_norm(entry.a, entry.layer.num_groups, eps=entry.layer.eps))
        return row_squares(entry.product) + bias
    columns, b = _columns(entry)
    metric = None if metric is None else _for_products(metric, entry.layer)
    n, positions, inputs = len(b), b.shape[1], columns.shape[3:].numel()
    entry.product = b.new_empty(n, b.shape[2], inputs)
    squares = torch.empty(n, dtype=torch.float64, device=b.device)
    rows = max(1, _COLUMNS[b.device.type] // (positions * inputs))
    for start in range(0, n, rows):  # copy a part, multiply, take norms: all while it is in the cache
        part = slice(start, start + rows)
        unfolded = columns[part].reshape(-1, positions, inputs)
        torch.bmm(b[part].transpose(1, 2), unfolded, out=entry.product[part])
        product = entry.product[part]
        squares[part] = row_squares((product if metric is None else metric.inverse(product)).flatten(1))
    return squares + bias


def _for_products(metric: RowMap, layer: nn.Conv1d | nn.Conv2d) -> RowMap:
    """A convolution's map, given for the weight's order in memory, for products, whose channels are innermost."""
    if not layer.weight.is_contiguous():  # they are there too
        return metric
    basis = metric.basis.unflatten(0, (layer.in_channels, -1)).transpose(0, 1).flatten(0, 1)
    return metric._replace(basis=basis)


def _over_positions(values: Tensor) -> Tensor:
    """Summed over whatever positions there are: (n, channels, ...) to (n, channels)."""
    return values.sum(tuple(range(2, values.dim()))) if values.dim() > 2 else values


def _columns(entry: Entry) -> tuple[Tensor, Tensor]:
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


def add(entry: Entry, factors: Tensor, views: dict[int, Tensor], first: bool) -> None:
    """Put (first) or add the weighted sum of a layer's per-example gradients into the views of its weight and bias."""
    layer, keep = entry.layer, 0 if first else 1
    weight, bias = views.get(id(layer.weight)), views.get(id(layer.bias))
    if weight is not None:
        if entry.product is None:
            weight.addmm_((entry.b * factors[:, None]).t(), entry.a, beta=keep)
        else:
            summed = factors @ entry.product.flatten(1)
            if isinstance(layer, nn.Conv1d | nn.Conv2d):  # channels innermost, as the product has them
                summed = summed.view(layer.out_channels, *layer.kernel_size, layer.in_channels).movedim(-1, 1)
            summed = summed.reshape(weight.shape)
            weight.copy_(summed) if first else weight.add_(summed)
    if bias is not None:
        bias.addmv_(entry.bias_rows().t(), factors, beta=keep)
