"""Filters of private releases that remember earlier ones (FO-DP-SGD paper, sections 3.2, A.3, A.9).

A filter reads nothing but releases, so that what it makes of them is post-processing: it costs no privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

DESIGNS = ("fractional", "exponential", "uniform", "none")
HISTORIES = ("outputs", "raw")


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
        state: dict[str, Any] = {"t": 0}
        if self.slots:
            state["rows"] = like.new_zeros(self.slots + self.tempered, len(like))
        if self.tempered:
            state |= {"products": [0.0] * (self.slots + 1), "squares": [0.0] * self.slots}
        return state

    def weights(self, state: dict[str, Any]) -> list[float]:
        """The weights by lag, 1 .. K_t - 1: nonnegative, with sum 1."""
        t = state["t"]
        logs = self._logs[:t]
        if not logs:
            return []
        if self.tempered:
            products, squares = state["products"], state["squares"]
            square = max(products[-1], 0.0)
            size = math.sqrt(square)
            rate = size / (size + self.zeta) * self.tau / (max(size, self.kappa) + self.eps_num)
            for lag in range(1, len(logs) + 1):
                place = (t - lag) % self.slots
                distance = math.sqrt(max(squares[place] - 2 * products[place] + square, 0.0))
                logs[lag - 1] -= rate * distance * lag
        top = max(logs)  # so that the sum can't underflow
        unscaled = [math.exp(log - top) for log in logs]
        total = sum(unscaled)
        return [weight / total for weight in unscaled]

    def apply(self, state: dict[str, Any], release: torch.Tensor) -> torch.Tensor:
        """The output for a release, shape (parameters,), formed in place; and what is to be remembered of it."""
        if not self.slots:
            return release.mul_(self.beta)
        rows: torch.Tensor = state["rows"]
        t, newest = state["t"], release.clone() if self.history == "raw" else release
        by_row = [0.0] * self.slots
        for lag, weight in enumerate(self.weights(state), 1):
            by_row[(t - lag) % self.slots] = weight * (1 - self.beta)  # what was remembered at t is in row t modulo the slots
        release.addmv_(rows[: self.slots].t(), rows.new_tensor(by_row), beta=self.beta)
        rows[t % self.slots].copy_(newest)
        if self.tempered:
            self._follow(state, rows.mv(newest).tolist())
            rows[-1].lerp_(newest, self.gamma)
        state["t"] = t + 1
        return release

    def _follow(self, state: dict[str, Any], with_newest: list[float]) -> None:
        """Move the inner products on to the trend's next value, from those of the rows with the newest vector; the last row is
        the former trend."""
        products, place, gamma = state["products"], state["t"] % self.slots, self.gamma
        state["squares"][place], products[place] = with_newest[place], with_newest[-1]
        products[:] = [(1 - gamma) * former + gamma * newest for former, newest in zip(products, with_newest, strict=True)]
        products[-1] = (1 - gamma) * products[-1] + gamma * products[place]  # it was the former trend's with the new one

    @cached_property
    def _logs(self) -> list[float]:
        """Logarithms of the weights before tempering and scaling, by lag."""
        lags = range(1, self.slots + 1)
        if self.design == "fractional":
            return [(self.alpha - 1) * math.log(lag + 1) - self.lam * lag for lag in lags]
        return [-self.lam * lag if self.design == "exponential" else 0.0 for lag in lags]


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
