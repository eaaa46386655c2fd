"""DP-SAT: sharpness-aware steps whose ascent direction is the last release, which costs nothing (Park et al., ICML 2023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsweep.mechanisms.arguments import number
from dpsweep.mechanisms.base import Data, Optimizer, Plan, State
from dpsweep.mechanisms.gaussian import Gaussian

if TYPE_CHECKING:
    import torch


class DPSAT(Gaussian):
    """Per-example gradients are taken at theta + rho g/|g|, g the last step's noisy sum (0 at the first), and theta moves.

    Args:
        max_grad_norm: C, the l2 norm to which every record's gradient is clipped.
        rho: how far the point of the gradients lies from theta, in l2 norm.

    Guarantee: that of DP-SGD at the same noise multiplier. The perturbed point is a function of earlier releases, so given
    those a record moves the clipped sum by at most C, wherever the gradients are taken.
    """

    def __init__(self, max_grad_norm: float, rho: float) -> None:
        super().__init__(max_grad_norm)
        self.rho = number("rho", rho, above=0, below=1e15)

    def start(self, plan: Plan, model: torch.nn.Module, optimizer: Optimizer | None) -> State:
        """Nothing is released yet, so the first step is taken at theta itself."""
        state = super().start(plan, model, optimizer)
        state.memory["last"] = state.theta.new_zeros(state.theta.shape)
        return state

    def step(self, state: State, data: Data) -> None:
        """Clip and sum at the perturbed point, add noise, step from theta."""
        assert state.plan.noise_multiplier is not None
        batch = data.draw()
        with state.moved(state.memory["last"], self.rho):
            total = data.clipped_sum(batch, self.max_grad_norm)
        noisy = data.release(total, self.max_grad_norm, state.plan.noise_multiplier).div_(data.normalizer)
        state.memory["last"] = noisy  # optimizers read gradients and leave them as they are
        state.update(noisy)
