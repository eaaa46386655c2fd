"""DP-SAM: sharpness-aware minimisation with both gradients private, from two batches or from one (Park et al., ICML 2023)."""

from __future__ import annotations

import math

from dpsweep.mechanisms.arguments import choice, number
from dpsweep.mechanisms.base import Account, Data, Mechanism, Plan, Schedule, State, Target, rounded_up
from dpsweep.privacy.accounting import Event, SampledGaussian, merged_noise_multiplier
from dpsweep.privacy.sampling import Poisson


class DPSAM(Mechanism):
    """A noisy clipped sum at theta gives the ascent direction; a second one, at theta + rho g/|g|, is what theta steps with.

    Args:
        max_grad_norm: C, the l2 norm to which every record's gradient is clipped, in both sums.
        rho: the length of the ascent, in l2 norm.
        batch: ``independent``: each sum has a Poisson batch of its own. ``shared``: one batch serves both.

    Guarantee, with noise of multiplier sigma in each sum. ``independent``: 2 T sampled Gaussians at sigma. ``shared``: given
    who is in the batch, the two releases are one Gaussian at sigma/sqrt(2), adaptive as the second one is, and sampling
    amplifies once, since the batch is drawn once (see :func:`~dpsweep.privacy.accounting.merged_noise_multiplier`): T
    sampled Gaussians at sigma/sqrt(2). For rates well below 1 that is the larger epsilon of the two.
    """

    def __init__(self, max_grad_norm: float, rho: float, batch: str) -> None:
        self.max_grad_norm = max_grad_norm
        self.rho = number("rho", rho, above=0, below=1e15)
        self.batch = choice("batch", batch, "independent", "shared")

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The least noise for the target. A given noise multiplier is that of each release, in both forms."""
        assert target is not None, "without a budget the configuration stands `none` in for this mechanism"
        q, steps = schedule.sample_rate, schedule.steps
        if self.batch == "independent":
            sigma = merged = account.noise_multiplier(q, 2 * steps, target)
            events: tuple[Event, ...] = (SampledGaussian(q, sigma), SampledGaussian(q, sigma))
        else:
            sigma = account.noise_multiplier(q, steps, target)  # a given one is the release's
            if target.epsilon is not None:
                sigma = rounded_up(math.sqrt(2) * sigma, sigma, lambda each: [each, each])
            merged = merged_noise_multiplier([sigma, sigma])
            events = (SampledGaussian(q, merged),)
        public = {"release_noise_multiplier": sigma}
        return Plan(Poisson(q), events, steps, self.max_grad_norm, merged, public)

    def step(self, state: State, data: Data) -> None:
        """One release says where to climb, the second one, taken there, is what theta steps with."""
        sigma = state.plan.public["release_noise_multiplier"]
        batch = data.draw()
        ascent = data.release(data.clipped_sum(batch, self.max_grad_norm), self.max_grad_norm, sigma)
        if self.batch == "independent":
            batch = data.draw()
        with state.moved(ascent, self.rho):
            total = data.clipped_sum(batch, self.max_grad_norm)
        state.update(data.release(total, self.max_grad_norm, sigma).div_(data.normalizer))
