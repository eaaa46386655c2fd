"""DP-Hero: noise shaped by a principal component analysis of the weights that earlier steps released."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpsweep.mechanisms.anisotropic import Anisotropic
from dpsweep.mechanisms.arguments import choice, number
from dpsweep.privacy.anisotropic import RowMap, row_map

if TYPE_CHECKING:
    import torch


# Of the largest variance: a direction with less weighs what one without any does, and its vector is all rounding.
_NOTHING = 1e-10
# Weights lie at most a factor (1 + K/ridge)^(1/2) apart, K the lesser side of a matrix, and the rounding of U (up to about 1e-4,
# where many variances are just above _NOTHING) counts times twice that against the bound of the least. From here on the bound
# stays above 0 for K up to 2,000 (of the models here it is 512); a map without one is refused when it is made.
_LEAST_RIDGE = 1e-3


class Hero(Anisotropic):
    """DP-Hero (section 4): M_t = s_t + S n, S made of the last released weights.

    The text leaves S open. Here, for each weight matrix W (m, n) with its rows as samples (the text prefers all parameters as
    one vector, of which there is one sample only): the variances l_k of the centred rows along their principal directions U,
    and the weights (l_k + ridge mean(l))^(-1/2) for ``inverse`` ("smaller noise in high-variance directions") or ^(+1/2) for
    ``aligned`` ("noise in the subspace in which features exist"); the text says both. Directions without variance weigh what
    l = 0 does. Convolutions are matrices (outputs, inputs of a window); what isn't a matrix, or has rows that don't differ,
    weighs 1.

    Args:
        direction: ``inverse`` or ``aligned``.
        ridge: at least 0.001: without it the directions without variance would get no noise, or infinitely much.
        max_grad_norm, clip, normalise, s_floor, refresh: see :class:`~dpsweep.mechanisms.anisotropic.Anisotropic`.

    Guarantee: Anisotropic's, by a bound fixed before the data is read. The published claim, DP-SGD's guarantee at sigma for
    any S, holds if s_min >= 1; a choice of keys for which nothing says so is refused here and is `hero_claimed`.
    """

    def __init__(self, max_grad_norm: float, direction: str, ridge: float, normalise: str, s_floor: float, clip: str,
                 refresh: int) -> None:  # fmt: skip
        super().__init__(max_grad_norm, clip, normalise, s_floor, refresh)
        self.direction = choice("direction", direction, "inverse", "aligned")
        self.ridge = number("ridge", ridge)
        if ridge < _LEAST_RIDGE:
            raise ValueError(
                f"mechanism.ridge={ridge:g}: at least {_LEAST_RIDGE:g} is needed. With less, weights lie so far apart that the "
                "least of them is lost in rounding"
            )
        self._check_bound()

    def _check_bound(self) -> None:
        if not self.bound:
            raise ValueError(
                f"mechanism.normalise={self.normalise} with clip=l2 and s_floor=0: the noise may be any share of sigma, so "
                "that no epsilon holds. Give normalise=min, clip=mahalanobis or an s_floor above 0; or mechanism=hero_claimed, "
                "whose epsilon is only claimed"
            )

    def map_of(self, matrix: torch.Tensor) -> RowMap | None:
        """The principal component analysis of the rows: by the eigenvectors of the smaller of the two products of the centred
        matrix with itself, in double precision (four times as fast as a thin singular value decomposition in single)."""
        import torch

        centred = matrix.double()
        centred = centred - centred.mean(0)
        wide = centred.shape[0] < centred.shape[1]
        try:
            squares, vectors = torch.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
        except torch.linalg.LinAlgError:  # it may fail to converge; the identity is as sound
            return None
        scale = self.ridge * float(squares.clamp(min=0).mean()) / (len(matrix) - 1)
        if not 0 < scale < math.inf:
            return None
        kept = squares > _NOTHING * squares.max()
        squares, basis = squares[kept], vectors[:, kept]
        if wide:
            basis = centred.T @ (basis / squares.sqrt())
        power = -0.5 if self.direction == "inverse" else 0.5
        return row_map(basis.to(matrix.dtype), (squares / (len(matrix) - 1) + scale) ** power, scale**power)


class HeroClaimed(Hero):
    """DP-Hero under the published claim alone: noise whose least direction may fall below sigma by any factor.

    Guarantee: none. The claim (DP-SGD's epsilon at sigma) is recorded as a claim, beside what the run turned out to spend.
    """

    def _check_bound(self) -> None:
        if self.bound:
            raise ValueError(
                f"mechanism.normalise={self.normalise}, clip={self.clip}, s_floor={self.s_floor:g} has a proved bound: use "
                "mechanism=hero, whose noise is calibrated by it"
            )
