"""DP-SGD whose noise follows a public schedule, fixed before the data is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsweep.mechanisms.arguments import choice, number, whole
from dpsweep.mechanisms.base import Account, Data, Mechanism, Optimizer, Plan, Schedule, State, Target
from dpsweep.privacy.accounting import SampledGaussian
from dpsweep.privacy.calibration import Scaled
from dpsweep.privacy.sampling import Poisson

if TYPE_CHECKING:
    import torch


class Scheduled(Mechanism):
    """Clipped sums with noise of multiplier sigma f_t, where f falls or rises from 1 to `final` in equal stages of the run.

    With optimizer=adamw it is the form of ADP-AdamW that can be told: that method's rule isn't public, and one that looked at
    the gradients would have to pay for it.

    Args:
        max_grad_norm: C, the l2 norm to which every record's gradient is clipped.
        shape: how f goes from 1 to `final` over the stages: ``geometric``, by equal factors, or ``linear``, by equal amounts.
        final: f in the last stage.
        stages: how many; within one the noise is constant, so that the account counts as many events. A run of fewer steps
            has one step a stage.

    Guarantee: the schedule is public and doesn't depend on the data, so T sampled Gaussians with their own noise multipliers
    compose as they are; sigma is the least with which all stages together meet the target.
    """

    departs = "The noise of every step was fixed by a public schedule before the data was read."

    def __init__(self, max_grad_norm: float, shape: str, final: float, stages: int) -> None:
        self.max_grad_norm = max_grad_norm
        self.shape = choice("shape", shape, "geometric", "linear")
        self.final = number("final", final, above=1e-6, below=1e6)
        self.stages = whole("stages", stages)

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The least noise for the target, in the proportion of the schedule; a given noise multiplier is the first stage's."""
        assert target is not None, "without a budget the configuration stands `none` in for this mechanism"
        q, steps = schedule.sample_rate, schedule.steps
        stages = min(self.stages, steps)
        starts = [-(-stage * steps // stages) for stage in range(stages + 1)]  # the first step t with t stages // T = stage
        lengths = [end - start for start, end in zip(starts, starts[1:], strict=False)]
        factors = self.factors(stages)
        others = [Scaled(q, length, factor) for length, factor in zip(lengths[1:], factors[1:], strict=True)]
        sigma = account.noise_multiplier(q, lengths[0], target, others)
        events = [(SampledGaussian(q, sigma * factor),) for factor in factors]
        return Plan(
            Poisson(q), lambda step: events[step * stages // steps], steps, self.max_grad_norm, sigma,
            {"final_noise_multiplier": sigma * factors[-1]},
        )  # fmt: skip

    def factors(self, stages: int) -> list[float]:
        """f by stage: from 1 to `final`."""
        way = [stage / max(1, stages - 1) for stage in range(stages)]
        if self.shape == "linear":
            return [1 + (self.final - 1) * part for part in way]
        return [self.final**part for part in way]

    def start(self, plan: Plan, model: torch.nn.Module, optimizer: Optimizer | None) -> State:
        """No step is taken."""
        state = super().start(plan, model, optimizer)
        state.memory["taken"] = 0
        return state

    def step(self, state: State, data: Data) -> None:
        """A step of DP-SGD with the noise that the plan has for it."""
        (event,) = state.plan.allowed(state.memory["taken"])
        state.memory["taken"] += 1
        assert isinstance(event, SampledGaussian)
        total = data.clipped_sum(data.draw(), self.max_grad_norm)
        state.update(data.release(total, self.max_grad_norm, event.noise_multiplier).div_(data.normalizer))
