"""Filters of private releases that remember earlier ones (FO-DP-SGD paper, sections 3.2, A.3, A.9).

A filter reads nothing but releases, so that what it makes of them is post-processing: it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

DESIGNS = ("fractional", "exponential", "uniform", "none")
HISTORIES = ("outputs", "raw")

_COLUMNS = 2**14  # entries of all vectors that are worked on at a time: at depth 8 half a megabyte, which stays in an L2 cache


@dataclass(frozen=True)
class ReleaseFilter:
    """``s_t = beta y_t + (1 - beta) u_t``: from the releases y to outputs s, with u a weighted mean of what is remembered.

    u is over the lags j = 1 .. K_t - 1 with K_t = min(K, t + 1); it is zero where there is no lag. With r what is remembered,
    the weights are, up to their sum, by `design`:

    * ``fractional``: (j+1)^(alpha-1) exp(-(lam + chi tau nu_j) j): a power law of the lag, damped, and tempered by how far r_j
      lies from the trend m: nu_j = |r_j - m| / (max(|m|, kappa) + eps_num). chi = |m| / (|m| + zeta) says how far the trend is
      to be trusted. m <- (1-gamma) m + gamma r over all that was ever remembered, 0 at first;
    * ``exponential``: exp(-lam j);
    * ``uniform``: 1;
    * ``none``: there is no memory, and s_t = beta y_t.

    With depth 2 the weights don't matter, and the filter is momentum with coefficient 1 - beta and dampening 1 - beta.

    Args:
        beta: the share of the current release, in (0, 1]; 1 leaves releases as they are, and nothing is remembered.
        history: what is remembered: ``outputs`` s (recursive) or ``raw`` releases y.
        design: see above.
        depth: K, the current release included: 1 is no memory.
        alpha: the fractional order, in (0, 1].
        lam: lambda, the damping a lag.
        tau: the tempering; 0 spares the trend.
        gamma: of the trend, in (0, 1].
        kappa: the least size of the trend by which distances are measured, in the unit of the releases.
        zeta: the size of the trend at which it is trusted by half, in the same unit.
        eps_num: against division by zero.

    Raises:
        ValueError: an argument is out of range; it names ``mechanism.KEY``.
    """

    beta: float
    history: str
    design: str
    depth: int
    alpha: float
    lam: float
    tau: float
    gamma: float
    kappa: float
    zeta: float
    eps_num: float

    def __post_init__(self) -> None:
        for name, known in (("design", DESIGNS), ("history", HISTORIES)):
            if getattr(self, name) not in known:
                raise ValueError(f"mechanism.{name}={getattr(self, name)}: one of {', '.join(known)} is needed")
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 1:
            raise ValueError(f"mechanism.depth={self.depth}: an integer of at least 1 is needed (1: no memory)")
        for name in ("beta", "alpha", "gamma"):
            if not (_is_real(value := getattr(self, name)) and 0 < value <= 1):
                raise ValueError(f"mechanism.{name}={value}: a number above 0 and at most 1 is needed")
        for name in ("lam", "tau", "kappa", "zeta", "eps_num"):
            if not (_is_real(value := getattr(self, name)) and 0 <= value < math.inf):
                raise ValueError(f"mechanism.{name}={value}: a finite number of at least 0 is needed")
        if self.tempered and not (self.zeta > 0 and self.kappa + self.eps_num > 0):
            raise ValueError(
                f"mechanism.tau={self.tau} with zeta={self.zeta}, kappa={self.kappa}, eps_num={self.eps_num}: zeta, and kappa or "
                "eps_num, must be above 0, or a trend of 0 would divide by 0. Raise them, or set mechanism.tau=0"
            )

    @property
    def tempered(self) -> bool:
        """Whether the weights depend on the releases, by their distance from the trend."""
        return self.slots > 0 and self.design == "fractional" and self.tau > 0

    @property
    def slots(self) -> int:
        """How many vectors are remembered at most."""
        return 0 if self.design == "none" or self.beta == 1 else self.depth - 1

    def start(self, like: torch.Tensor) -> dict[str, Any]:
        """An empty memory of vectors like the one given, shape (parameters,).

        ``rows`` is a ring of the last vectors, below it the trend if it is needed; ``products`` holds each row's inner product
        with the trend, ``squares`` each remembered vector's with itself, so that no distance needs a pass over the vectors.
        """
        import torch

        state: dict[str, Any] = {"t": 0}
        if self.slots:
            state["rows"] = like.new_zeros(self.slots + self.tempered, len(like))
        if self.tempered:
            state["products"] = torch.zeros(self.slots + 1, dtype=torch.float64)
            state["squares"] = torch.zeros(self.slots, dtype=torch.float64)
        return state

    def weights(self, state: dict[str, Any]) -> np.ndarray:
        """The weights by lag, float64 (K_t - 1,): nonnegative, with sum 1."""
        kept = min(state["t"], self.slots)
        if not kept:
            return np.zeros(0)
        logs = self._logs[:kept]
        if self.tempered:
            places = self._places(state, kept)
            products, squares = state["products"].numpy(), state["squares"].numpy()
            # |r - m|^2 = |r|^2 - 2 r m + |m|^2
            distances = np.sqrt(np.maximum(squares[places] - 2 * products[places] + products[-1], 0))
            size = math.sqrt(max(products[-1], 0))
            trust = size / (size + self.zeta)
            inconsistency = distances / (max(size, self.kappa) + self.eps_num)
            logs = logs - trust * self.tau * inconsistency * np.arange(1, kept + 1)
        unscaled = np.exp(logs - logs.max())  # the largest is 1: the sum can't underflow
        return unscaled / unscaled.sum()

    def apply(self, state: dict[str, Any], release: torch.Tensor) -> torch.Tensor:
        """The output for a release, shape (parameters,), formed in place; and what is to be remembered of it.

        The vectors are cut into columns that fit in the cache, and each column is read from memory once: mixed, remembered,
        multiplied with what is remembered, and taken into the trend.
        """
        import torch

        if not self.slots:
            return release.mul_(self.beta)
        rows: torch.Tensor = state["rows"]
        by_lag = self.weights(state)
        by_row = np.zeros(len(rows))
        by_row[self._places(state, len(by_lag))] = by_lag * (1 - self.beta)
        weights = torch.from_numpy(by_row).to(rows)
        place = state["t"] % self.slots
        with_newest = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        for column in _columns(release):
            output, kept = release[column], rows[:, column]
            newest = output.clone() if self.history == "raw" else output
            output.addmv_(kept.t(), weights, beta=self.beta)
            kept[place] = newest
            if self.tempered:
                with_newest += torch.mv(kept, newest)
                kept[-1].lerp_(newest, self.gamma)
        if self.tempered:
            self._follow(state, place, with_newest.cpu())
        state["t"] += 1
        return release

    def _follow(self, state: dict[str, Any], place: int, with_newest: torch.Tensor) -> None:
        """Update the inner products to the trend's next value, from those of the rows with the newest vector; the last is the
        former trend's."""
        products: torch.Tensor = state["products"]
        products[place] = with_newest[-1]
        state["squares"][place] = with_newest[place]
        products.lerp_(with_newest, self.gamma)
        products[-1].lerp_(products[place], self.gamma)  # it was the former trend's with the new one

    def _places(self, state: dict[str, Any], kept: int) -> np.ndarray:
        """The rows of the lags 1 .. kept: what was remembered at t went to row t modulo the slots."""
        return (state["t"] - np.arange(1, kept + 1)) % self.slots

    @cached_property
    def _logs(self) -> np.ndarray:
        """Logarithms of the weights before tempering and scaling, by lag."""
        lags = np.arange(1, self.slots + 1, dtype=np.float64)
        if self.design == "fractional":
            return (self.alpha - 1) * np.log1p(lags) - self.lam * lags
        return -self.lam * lags if self.design == "exponential" else np.zeros(self.slots)


def _columns(vector: torch.Tensor) -> list[slice]:
    width = _COLUMNS if vector.device.type == "cpu" else len(vector)
    return [slice(start, start + width) for start in range(0, len(vector), width)]


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
