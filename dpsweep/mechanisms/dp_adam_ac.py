"""DP-Adam-AC in a private form: the clipping norm follows a quantile of the gradient norms, released with noise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dpsweep.errors import UsageError
from dpsweep.mechanisms.arguments import number, pair
from dpsweep.mechanisms.base import Account, Data, Mechanism, Optimizer, Plan, Schedule, State, Target, dp_sgd_events, rounded_up
from dpsweep.privacy.sampling import Poisson

if TYPE_CHECKING:
    import torch


class DPAdamAC(Mechanism):
    """Clipping norm C_t and clipped sum as in Andrew, Thakkar, McMahan, Ramaswamy (NeurIPS 2021); use it with optimizer=adamw.

    After each step, b = 1/2 + (sum over the batch of (1[|g_i| <= C_t] - 1/2) + N(0, sigma_b^2))/m0 estimates which share of
    the gradients the norm C_t lets pass, and C_{t+1} = C_t exp(-rate (b - quantile)).

    Args:
        max_grad_norm: C_0; every later C_t is a function of releases before t.
        quantile: the share of the gradients that should pass unclipped.
        rate: eta_C, how fast log C moves.
        count_noise: sigma_b, in records. None: m0/20, but no less than the noise multiplier z of the whole step, so that the
            count never takes more than a quarter of the step's budget.
        clip_range: C_t stays between these, so that a run of gradients all below or all above it ends somewhere.

    Guarantee: sum and count come from one batch. A record that joins it moves the sum by at most C_t, in units of its noise
    1/sigma_g, and the count by 1/2, in units of its noise 1/(2 sigma_b); together the two are one Gaussian at
    z = (sigma_g^-2 + (2 sigma_b)^-2)^(-1/2), and sampling amplifies once: T sampled Gaussians at z. To compose sum and count
    as two sampled mechanisms would be wrong, and too small. Given z, sigma_g = (z^-2 - (2 sigma_b)^-2)^(-1/2).
    """

    departs = (
        "DP-Adam-AC as published sets the clipping norm by a percentile of the gradient norms, read without noise; here it "
        "follows a count of norms that is released with noise in the same event (Andrew et al. 2021)."
    )

    def __init__(self, max_grad_norm: float, quantile: float, rate: float, count_noise: float | None,
                 clip_range: tuple[float, float]) -> None:  # fmt: skip
        self.max_grad_norm = max_grad_norm
        self.quantile = number("quantile", quantile, above=0, below=1)
        self.rate = number("rate", rate, above=0, below=100)
        self.count_noise = None if count_noise is None else number("count_noise", count_noise, above=0)
        self.clip_range = pair("clip_range", clip_range, above=1e-15, below=1e15)
        if not self.clip_range[0] <= max_grad_norm <= self.clip_range[1]:
            raise ValueError(
                f"mechanism.clip_range={list(clip_range)}: a range that contains max_grad_norm={max_grad_norm} is needed"
            )

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The least noise for the target, shared between sum and count. A given noise multiplier is that of the step, z.

        Raises:
            UsageError: the count alone, with the given noise, would cost more than the step may.
        """
        assert target is not None, "without a budget the configuration stands `none` in for this mechanism"
        q, steps = schedule.sample_rate, schedule.steps
        z = account.noise_multiplier(q, steps, target)
        count_noise = max(schedule.normalizer / 20, z) if self.count_noise is None else self.count_noise
        if not 2 * count_noise > z:
            raise UsageError(
                f"mechanism.count_noise={count_noise:g}: with it the count alone costs as much as the whole step may (noise "
                f"multiplier {z:g}). Give more than {z / 2:g}, or null"
            )
        exact = (z**-2 - (2 * count_noise) ** -2) ** -0.5
        gradient = rounded_up(exact, z, lambda each: [each, 2 * count_noise])
        public = {"gradient_noise_multiplier": gradient, "count_noise": count_noise}
        return Plan(Poisson(q), dp_sgd_events(q, z), steps, self.max_grad_norm, z, public)

    def start(self, plan: Plan, model: torch.nn.Module, optimizer: Optimizer | None) -> State:
        """The clipping norm is C_0."""
        state = super().start(plan, model, optimizer)
        state.memory["clip"] = self.max_grad_norm
        return state

    def step(self, state: State, data: Data) -> None:
        """Release the clipped sum and the count of what wasn't clipped; step; move the norm for the next step."""
        clip, public = state.memory["clip"], state.plan.public
        total = data.clipped_sum(data.draw(), clip)
        passed = data.norm_sum(total, lambda norms: (norms <= clip).double() - 0.5, 0.5)
        noisy = data.release(total, clip, public["gradient_noise_multiplier"])
        count = float(data.release(passed, 0.5, 2 * public["count_noise"]))
        state.update(noisy.div_(data.normalizer))
        share = count / data.normalizer + 0.5
        low, high = self.clip_range
        factor = math.exp(min(-self.rate * (share - self.quantile), 700.0))  # beyond, exp overflows, and `high` decides anyway
        state.memory["clip"] = min(max(clip * factor, low), high)
