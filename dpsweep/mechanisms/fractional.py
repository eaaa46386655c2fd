"""FO-DP-SGD: a memory of earlier releases inside the private query ("Deep Learning under Fractional-Order Differential
Privacy", algorithm 1), and Post-FM, the same memory after an ordinary release (section A.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsweep.mechanisms.base import Account, Data, Mechanism, Plan, Schedule, State, Target, dp_sgd_events
from dpsweep.mechanisms.memory import ReleaseFilter
from dpsweep.privacy.sampling import Poisson

if TYPE_CHECKING:
    import torch

    from dpsweep.mechanisms.base import Optimizer


class Fractional(Mechanism):
    """FO-DP-SGD at noise multiplier sigma releases ``r_t = beta s_t + (1 - beta) u_t + Z_t`` with Z_t ~ N(0, sigma^2 C^2 I), s_t
    the clipped sum over a Poisson batch and u_t a weighted mean of earlier releases; the step is along r_t / m0.

    Given the earlier releases only beta s_t depends on the records, and it moves by at most beta C: each step is a sampled
    Gaussian at multiplier sigma/beta. In other words, y_t = (r_t - (1 - beta) u_t) / beta = s_t + Z_t / beta is DP-SGD's
    release at that multiplier, and r_t = beta y_t + (1 - beta) u_t a filter of such releases. It is computed so, and the
    ledger is charged for y_t: (r_0 .. r_t) and (y_0 .. y_t) are functions of each other that read no record.

    With ``beta=1`` it is DP-SGD, with ``depth=2`` DP-SGD with momentum 1 - beta, dampened as much, with ``depth=1`` DP-SGD at
    beta times the learning rate.

    Args:
        max_grad_norm: C, the l2 norm to which every record's gradient is clipped.
        beta, design, depth, alpha, lam, tau, gamma, kappa, zeta, eps_num, history: see
            :class:`~dpsweep.mechanisms.memory.ReleaseFilter`; the method as published remembers its own releases (``outputs``).

    Guarantee: (epsilon, delta) under add/remove adjacency, DP-SGD's at noise multiplier sigma/beta.
    """

    def __init__(self, max_grad_norm: float, beta: float, design: str, depth: int, alpha: float, lam: float, tau: float,
                 gamma: float, kappa: float, zeta: float, eps_num: float, history: str = "outputs") -> None:  # fmt: skip
        self.max_grad_norm = max_grad_norm
        self.filter = ReleaseFilter(beta, history, design, depth, alpha, lam, tau, gamma, kappa, zeta, eps_num)

    @property
    def share(self) -> float:
        """What the given noise multiplier is divided by to give that of the clipped sum."""
        return self.filter.beta

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """Sampled Gaussians at sigma/beta. A noise multiplier that is given is sigma, as the paper counts it."""
        assert target is not None, "without a budget the configuration stands `none` in for this mechanism"
        q, steps = schedule.sample_rate, schedule.steps
        of_sum = account.noise_multiplier(q, steps, target)
        if target.noise_multiplier is not None:
            of_sum /= self.share
        public = {"beta": self.filter.beta, "release_noise_multiplier": of_sum * self.share}
        return Plan(Poisson(q), dp_sgd_events(q, of_sum), steps, self.max_grad_norm, of_sum, public)

    def start(self, plan: Plan, model: torch.nn.Module, optimizer: Optimizer | None) -> State:
        """An empty memory."""
        state = State(plan, model, optimizer)
        state.memory |= self.filter.start(state.theta)
        return state

    def step(self, state: State, data: Data) -> None:
        """Draw, clip and sum, add noise, mix with what is remembered, divide by m0, update."""
        assert state.plan.noise_multiplier is not None
        total = data.clipped_sum(data.draw(), self.max_grad_norm)
        noisy = data.release(total, self.max_grad_norm, state.plan.noise_multiplier)
        state.update(self.filter.apply(state.memory, noisy).div_(data.normalizer))


class PostMemory(Fractional):
    """Post-FM: DP-SGD's releases at noise multiplier sigma, filtered by the same memory afterwards.

    Over its own outputs it is FO-DP-SGD at sigma times beta. ``history=raw`` remembers the releases instead.

    Args and guarantee: as for :class:`Fractional`, at noise multiplier sigma.
    """

    share = 1.0
