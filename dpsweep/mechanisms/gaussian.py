"""DP-SGD: Poisson sampling, clipped sums, Gaussian noise, a fixed divisor, any optimizer (Abadi et al. 2016)."""

from __future__ import annotations

from dpsweep.mechanisms.base import Account, Data, Mechanism, Plan, Schedule, State, Target, dp_sgd_events
from dpsweep.privacy.sampling import Poisson


class Gaussian(Mechanism):
    """The sampled Gaussian mechanism on clipped gradients (DP-RVFL paper, section 3.2, algorithm 1).

    Args:
        max_grad_norm: C, the l2 norm to which every record's gradient is clipped.

    Guarantee: (epsilon, delta) under add/remove adjacency: given the earlier releases a record moves the clipped sum
    by at most C, and the optimizer sees only the noisy sum.
    """

    def __init__(self, max_grad_norm: float) -> None:
        self.max_grad_norm = max_grad_norm

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The least noise multiplier for the target at this schedule."""
        assert target is not None, "without a budget the configuration stands `none` in for this mechanism"
        sigma = account.noise_multiplier(schedule.sample_rate, schedule.steps, target)
        events = dp_sgd_events(schedule.sample_rate, sigma)
        return Plan(Poisson(schedule.sample_rate), events, schedule.steps, self.max_grad_norm, sigma)

    def step(self, state: State, data: Data) -> None:
        """Draw, clip and sum, add noise, divide by m0, update: equations (2) to (6)."""
        assert state.plan.noise_multiplier is not None
        batch = data.draw()
        total = data.clipped_sum(batch, self.max_grad_norm)
        noisy = data.release(total, self.max_grad_norm, state.plan.noise_multiplier)
        state.update(noisy.div_(data.normalizer))
