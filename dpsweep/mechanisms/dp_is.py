"""DP-IS: records enter a sum with probability proportional to their clipped gradient norm (Wei et al., CCS 2022)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from dpsweep.errors import UsageError
from dpsweep.mechanisms.arguments import number, whole
from dpsweep.mechanisms.base import Account, Data, Mechanism, Optimizer, Plan, Rule, Schedule, State, Target
from dpsweep.privacy.accounting import Event, SampledGaussian
from dpsweep.privacy.calibration import Scaled
from dpsweep.privacy.sampling import Poisson

if TYPE_CHECKING:
    import torch


class DPIS(Mechanism):
    """Importance sampling with a public cap on every record's sampling rate.

    Write gbar_i = g_i min(1, C/|g_i|), b = m0 for the expected number of records in a sum, K_floor = norm_floor N0 C and
    K~ >= K_floor for an estimate of the sum of |gbar_i| over all records. A record should enter with probability
    b |gbar_i|/K~ and add its unit vector u_i = gbar_i/|gbar_i|; then K~/(N0 b) times the sum has expectation
    (1/N0) sum gbar_i, whatever K~ is (given all that was released before; to the probabilities' rounding by 2^-53). Its
    noise is that of a sum of sensitivity 1, not C.

    Who may enter is drawn first, without a look at any gradient: a Poisson batch at the public rate q_cap = b C/K_floor. Of it
    record i is kept with probability (K_floor/K~) |gbar_i|/C, by a uniform number of its own. The product of both is
    b |gbar_i|/K~. No norm outside the batch is computed.

    K~ is released anew every `probe_every` steps: from a Poisson batch of its own, at q_cap too, the sum of |gbar_i| with
    Gaussian noise, divided by q_cap, and raised to K_floor where it is less. With r = K~/K_floor and q_cap K_floor = m0 C:
    r = max(1, (noisy norm sum)/(m0 C)), the probability of keeping is |gbar_i|/(r C), and K~/(N0 b) = r norm_floor C/m0.

    Args:
        max_grad_norm: C, the l2 norm to which gradients are clipped.
        norm_floor: K_floor/(N0 C), in (0, 1]: which mean of |gbar_i|/C is taken for granted. The rate q_cap is m0/N0 over it, so
            a low floor costs privacy; where norms are lower the batches kept are smaller, and nothing else happens.
        probe_every: k, the steps between two probes; the first is made at the first step.
        probe_noise: the noise multiplier of a probe over that of a step.

    Guarantee, add/remove: fix all earlier releases (so theta and r) and the uniform number of each record; those numbers have
    one law whatever the data. Then what a record adds to the sum is a fixed vector of norm at most 1 (zero where it isn't
    kept), and the record is in the batch with probability q_cap, independently of the others: a sampled Gaussian at rate
    q_cap and noise multiplier sigma. The bound on the divergence holds for every value of the uniform numbers, so for the
    mixture over them, by joint convexity (Renyi and hockey-stick alike). It holds whatever K~ was, since q_cap is public; a
    smaller rate that the run itself chose would be no guarantee. Each probe is a sampled Gaussian at q_cap of sensitivity C
    from an independent batch: one event more.
    """

    departs = (
        "A sampling rate that depends on the run is no guarantee: every step is charged at the public cap sample_rate_cap, "
        "whatever norm sum was released, and that sum is released with noise, from batches of its own."
    )

    def __init__(self, max_grad_norm: float, norm_floor: float, probe_every: int, probe_noise: float) -> None:
        self.max_grad_norm = max_grad_norm
        self.norm_floor = number("norm_floor", norm_floor, above=0)
        self.probe_every = whole("probe_every", probe_every)
        self.probe_noise = number("probe_noise", probe_noise, above=1e-6, below=1e6)
        if norm_floor > 1:
            raise ValueError(f"mechanism.norm_floor={norm_floor}: at most 1 is needed, for no clipped norm is above C")

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The least noise with which steps and probes together meet the target; a given noise multiplier is that of a step.

        Raises:
            UsageError: the cap on the sampling rate would be above 1.
        """
        assert target is not None, "without a budget the configuration stands `none` in for this mechanism"
        cap = Fraction(schedule.normalizer) / (Fraction(str(self.norm_floor)) * schedule.reference_size)
        if cap > 1:
            raise UsageError(
                f"mechanism.norm_floor={self.norm_floor:g}: the floor K_floor/C = norm_floor N0 must be at least the batch, "
                f"m0 = {schedule.normalizer}. Give at least {schedule.normalizer / schedule.reference_size:.4g}, or a smaller "
                "batch"
            )
        steps, every = schedule.steps, self.probe_every
        probes = [Scaled(cap, -(-steps // every), self.probe_noise)]
        sigma = account.noise_multiplier(cap, steps, target, probes)
        of_step, of_probe = SampledGaussian(cap, sigma), SampledGaussian(cap, sigma * self.probe_noise)

        def events(step: int) -> tuple[Event, ...]:
            return (of_step,) if step % every else (of_step, of_probe)

        public = {"sample_rate_cap": float(cap), "probe_noise_multiplier": of_probe.noise_multiplier}
        return Plan(Poisson(cap), events, steps, self.max_grad_norm, sigma, public)

    def start(self, plan: Plan, model: torch.nn.Module, optimizer: Optimizer | None) -> State:
        """No step is taken, and the norm sum is taken to be at its floor."""
        state = super().start(plan, model, optimizer)
        state.memory.update(taken=0, ratio=1.0)
        return state

    def step(self, state: State, data: Data) -> None:
        """Probe where it is due; draw at the cap, keep by norm, sum unit vectors, add noise, scale, update."""
        assert state.plan.noise_multiplier is not None
        memory = state.memory
        if memory["taken"] % self.probe_every == 0:
            memory["ratio"] = self._probe(state.plan, data)
        memory["taken"] += 1
        total = data.weighted_sum(data.draw(), keeping(self.max_grad_norm, memory["ratio"]), 1.0)
        noisy = data.release(total, 1.0, state.plan.noise_multiplier)
        state.update(noisy.mul_(memory["ratio"] * self.norm_floor * self.max_grad_norm / data.normalizer))

    def _probe(self, plan: Plan, data: Data) -> float:
        """r = K~/K_floor, from a batch of its own."""
        clip = self.max_grad_norm
        total = data.clipped_sum(data.draw(), clip)  # for its norms; never released
        norms = data.norm_sum(total, lambda norms: norms.clamp(max=clip), clip)
        noisy = float(data.release(norms, clip, plan.public["probe_noise_multiplier"]))
        return max(1.0, noisy / (data.normalizer * clip))


def keeping(max_grad_norm: float, ratio: float) -> Rule:
    """The weight that makes a unit vector of a gradient, with probability min(|g|, C)/(r C); else 0."""

    import torch

    def weigh(norms: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
        kept = uniform < norms.clamp(max=max_grad_norm) / (ratio * max_grad_norm)
        return torch.where(kept, 1 / norms, 0.0)

    return weigh
