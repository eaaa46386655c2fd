"""Linear maps S of flat parameter vectors: the shape of anisotropic Gaussian noise S n, or the metric |S^-1 g| of a clip.

S treats each weight matrix by itself and maps its rows: on a row of n numbers it is w0 I + U diag(w - w0) U', with U (n, k) of
orthonormal columns. So k directions have a weight of their own and all others w0, and no n x n matrix is made. On what isn't a
weight matrix S is the identity.

Noise N(0, sigma^2 C^2 S S') hides a sum that moves by a vector d of l2 norm at most C as well as isotropic noise sigma C hides
S^-1 d, whose norm is at most C / s_min(S): one release is a Gaussian mechanism at multiplier sigma s_min(S), no better and no
worse. (The likelihood ratio of x depends on d through S^-1 d alone, and equality holds for d along the least direction.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor


class RowMap(NamedTuple):
    """S on the rows of one weight matrix. Make it by :func:`row_map`.

    Attributes:
        basis: U, (n, k).
        weights: w, float64 (k,).
        rest: w0.
        least: a proved lower bound of its least singular value, whatever U's rounding.
    """

    basis: Tensor
    weights: Tensor
    rest: float
    least: float

    def apply(self, rows: Tensor) -> Tensor:
        """S on rows (..., n)."""
        return self._times(rows, self.weights, self.rest)

    def inverse(self, rows: Tensor) -> Tensor:
        """S^-1 on rows (..., n), to the rounding of U."""
        return self._times(rows, 1 / self.weights, 1 / self.rest)

    def scaled(self, factor: float) -> RowMap:
        """The map times a positive number."""
        return RowMap(self.basis, self.weights * factor, self.rest * factor, self.least * factor)

    def at_least(self, floor: float) -> RowMap:
        """The map with no weight below a number, and raised as a whole by what rounding takes from that."""
        if self.least >= floor:
            return self
        clamped = row_map(self.basis, self.weights.clamp(min=floor), max(self.rest, floor))
        return clamped if clamped.least >= floor else clamped.scaled(_SLACK * floor / clamped.least)

    def _times(self, rows: Tensor, weights: Tensor, rest: float) -> Tensor:
        return ((rows @ self.basis) * (weights - rest).to(rows.dtype)) @ self.basis.T + rows * rest


_SLACK = 1 + 1e-9  # rounding of a product doesn't fall below what was asked for


def row_map(basis: Tensor, weights: Tensor, rest: float) -> RowMap:
    """The map of a basis and weights, with its bound.

    U has orthonormal columns to rounding only. With H = (U'U)^(1/2) it is Q H for a Q that has them exactly, |H - I| <= e =
    |U'U - I|, and S = w0 I + Q H D H Q' with D = diag(w - w0) lies within |D| (2 e + e^2) of the map of Q, whose least singular
    value is the least weight. Where U has n columns w0 belongs to no direction and drops out.

    Args:
        basis: U, (n, k).
        weights: w > 0, float64 (k,).
        rest: w0 > 0.
    """
    import torch

    size, columns = basis.shape
    spread = float((weights - rest).abs().max()) if columns else 0.0
    least = min([float(weights.min())] if columns else [], default=rest)
    if columns < size:
        least = min(least, rest)
    if spread > 0:  # else S is w0 I, whatever U is
        precise = basis.double()
        e = float((precise.T @ precise - torch.eye(columns, dtype=torch.float64, device=basis.device)).norm())
        least -= spread * (2 * e + e * e)
    return RowMap(basis, weights, rest, least)


class Anisotropy:
    """S on flat vectors of all trained parameters.

    Args:
        maps: one for each trained parameter, in their order; None for the identity.
        sizes: how many numbers each parameter has.
    """

    def __init__(self, maps: Sequence[RowMap | None], sizes: Sequence[int]) -> None:
        self.maps = list(maps)
        self._sizes = list(sizes)

    @property
    def least(self) -> float:
        """A lower bound of the least singular value, rounded down to three digits: what is charged by it has few values."""
        return three_digits(min(1.0 if row is None else row.least for row in self.maps))

    def apply(self, vector: Tensor) -> Tensor:
        """S times a flat vector."""
        return self._mapped(vector, RowMap.apply)

    def inverse(self, vector: Tensor) -> Tensor:
        """S^-1 times a flat vector."""
        return self._mapped(vector, RowMap.inverse)

    def _mapped(self, vector: Tensor, how: Callable[[RowMap, Tensor], Tensor]) -> Tensor:
        out = vector.clone()
        for piece, row in zip(out.split(self._sizes), self.maps, strict=True):
            if row is not None:
                rows = piece.view(-1, len(row.basis))
                rows.copy_(how(row, rows))
        return out


def three_digits(value: float) -> float:
    """A number rounded down to three significant digits; 0 where it isn't positive."""
    if not value > 0:
        return 0.0
    scale = 10.0 ** (2 - math.floor(math.log10(value)))
    return min(value, math.floor(value * scale * (1 + 1e-12)) / scale)
