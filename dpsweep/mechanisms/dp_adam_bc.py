"""DP-AdamBC: Adam whose second moment is freed of what the noise adds to it (Tang, Shpilevskiy, Lecuyer, AAAI 2024)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dpsweep.mechanisms.arguments import number, pair
from dpsweep.mechanisms.base import Account, Data, Optimizer, Plan, Schedule, State, Target
from dpsweep.mechanisms.gaussian import Gaussian

if TYPE_CHECKING:
    import torch


class DPAdamBC(Gaussian):
    """Adam on the noisy mean g, with the step lr mhat / sqrt(max(vhat - Phi, floor)).

    Noise of variance Phi = (sigma C/m0)^2 stands in every coordinate of g, whatever the gradient, so that E[vhat] is Adam's
    vhat of the clipped means plus Phi exactly: the bias-corrected weights of vhat sum to 1. Phi is public. Adam itself, taken
    on g, divides by about sqrt(Phi) everywhere and so is DP-SGD with momentum.

    The optimizer is part of the method: its denominator needs the noise of the release, which no optimizer of PyTorch takes.
    So the mechanism writes theta itself and its YAML leaves `optimizer` out.

    Args:
        max_grad_norm: C, the l2 norm to which every record's gradient is clipped.
        lr: the learning rate.
        betas: decay of the first and the second moment, each in (0, 1).
        floor: the least that is put under the root, in the unit of a squared gradient.

    Guarantee: that of DP-SGD at the same noise multiplier; moments and steps are functions of releases.
    """

    def __init__(self, max_grad_norm: float, lr: float, betas: tuple[float, float], floor: float) -> None:
        super().__init__(max_grad_norm)
        self.lr = number("lr", lr, above=0)
        self.betas = pair("betas", betas, above=0, below=1)
        self.floor = number("floor", floor, above=0)

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """DP-SGD's plan, and Phi."""
        plan = super().calibrate(schedule, target, account)
        assert plan.noise_multiplier is not None
        return replace(plan, public={"noise_variance": (plan.noise_multiplier * self.max_grad_norm / schedule.normalizer) ** 2})

    def start(self, plan: Plan, model: torch.nn.Module, optimizer: Optimizer | None) -> State:
        """Moments of zero."""
        state = super().start(plan, model, optimizer)
        zeros = state.theta.new_zeros(state.theta.shape)
        state.memory.update(first=zeros, second=zeros.clone(), taken=0)
        return state

    def step(self, state: State, data: Data) -> None:
        """Release as DP-SGD does; then Adam's step with the corrected denominator."""
        assert state.plan.noise_multiplier is not None
        total = data.clipped_sum(data.draw(), self.max_grad_norm)
        gradient = data.release(total, self.max_grad_norm, state.plan.noise_multiplier).div_(data.normalizer)
        memory, (decay1, decay2) = state.memory, self.betas
        memory["taken"] += 1
        memory["first"].lerp_(gradient, 1 - decay1)
        memory["second"].mul_(decay2).addcmul_(gradient, gradient, value=1 - decay2)
        root = memory["second"].div(1 - decay2 ** memory["taken"])
        root.sub_(state.plan.public["noise_variance"]).clamp_min_(self.floor).sqrt_()
        state.theta.addcdiv_(memory["first"], root, value=-self.lr / (1 - decay1 ** memory["taken"]))
