"""DP-SGD whose Gaussian noise, or whose clip, has a shape made of released weights: what all such ideas share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpsweep.errors import UsageError
from dpsweep.mechanisms.arguments import choice, number, whole
from dpsweep.mechanisms.base import (
    Account,
    Data,
    Guarantee,
    Mechanism,
    Optimizer,
    Plan,
    Schedule,
    State,
    Target,
    counted,
    dp_sgd_events,
    of_target,
)
from dpsweep.privacy.accounting import Event, SampledGaussian, Unbounded
from dpsweep.privacy.anisotropic import Anisotropy, RowMap, three_digits
from dpsweep.privacy.sampling import Poisson

if TYPE_CHECKING:
    import torch

    from dpsweep.privacy.ledger import Ledger

_LEAST_NOISE = 1e-12  # of a plan without a bound: as little as the accountant takes
_LEAST_FLOOR = 1e-3
_MOST_DISTINCT = 16  # s_min in a reading by privacy loss distributions: each takes half a second, with little noise several
_REASON = "the noise of a step is scaled by a number s_min that the run itself chooses, and nothing bounds it beforehand"


class Anisotropic(Mechanism):
    """A subclass says in `map_of` which directions of a weight matrix weigh how much, by released weights alone; here that map S
    is normalised and used.

    ``clip=l2``: gradients are clipped to l2 norm C as in DP-SGD and the sum is released with noise S n, n ~ N(0, sigma^2 C^2 I).
    Its account is the sampled Gaussian at sigma s_min(S), step by step (see :mod:`dpsweep.privacy.anisotropic`).

    ``clip=mahalanobis``: the h_i = S^-1 g_i are clipped to l2 norm C, their sum is released with noise n, and S maps the release
    back. That is DP-SGD's release, and S post-processing: the account is at sigma, for every S.

    Args:
        max_grad_norm: C.
        clip: ``l2`` or ``mahalanobis``.
        normalise: of each matrix' map: ``min``, its least weight is 1; ``max``, its largest is; ``trace``, the mean of the
            squared weights over all n directions is.
        s_floor: no weight is below it; 0 (none), or from 0.001 to 1. Noise is calibrated at 1/s_floor times DP-SGD's: a smaller
            floor would drown every step, and a far smaller one leave single precision.
        refresh: S is made anew every so many steps.

    Guarantee, add/remove: with ``mahalanobis`` at sigma; with ``l2`` at sigma times a lower bound of s_min whatever the data is:
    1 for ``min``, else s_floor. (S depends on earlier releases only, so the composition is adaptive, and each step is
    no worse than the bound's.) Noise is calibrated by that bound. `bound` is it, or 0.
    """

    def __init__(self, max_grad_norm: float, clip: str, normalise: str, s_floor: float, refresh: int) -> None:
        self.max_grad_norm = max_grad_norm
        self.clip = choice("clip", clip, "l2", "mahalanobis")
        self.normalise = choice("normalise", normalise, "min", "trace", "max")
        self.s_floor = number("s_floor", s_floor)
        self.refresh = whole("refresh", refresh)
        if s_floor and not _LEAST_FLOOR <= s_floor <= 1:
            raise ValueError(
                f"mechanism.s_floor={s_floor}: 0 (no floor), or a number from {_LEAST_FLOOR:g} to 1, is needed (biases always "
                "weigh 1, and noise is 1/s_floor times DP-SGD's)"
            )
        # What every step's noise is at least, as a share of sigma; 0: unknown beforehand.
        self.bound = 1.0 if self.clip == "mahalanobis" or self.normalise == "min" else three_digits(self.s_floor)

    def map_of(self, matrix: torch.Tensor) -> RowMap | None:
        """S of a weight matrix (m, n), m > 1, finite, up to a factor; None for the identity."""
        raise NotImplementedError

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The least sigma whose bound meets the target; where there is no bound, the sigma with which DP-SGD meets it."""
        assert target is not None, "without a budget the configuration stands `none` in for this mechanism"
        q, steps = schedule.sample_rate, schedule.steps
        sigma = account.noise_multiplier(q, steps, target)
        if target.noise_multiplier is None and self.bound:
            sigma /= self.bound
        events = dp_sgd_events(q, sigma * self.bound) if self.bound else (SampledGaussian(q, _LEAST_NOISE), Unbounded(_REASON))
        return Plan(Poisson(q), events, steps, self.max_grad_norm, sigma)

    def calibrated(self, plan: Plan, schedule: Schedule, account: Account, target: Target | None) -> str | None:
        """Sigma, and what of it the account is made by."""
        assert plan.noise_multiplier is not None
        found = f"sigma {plan.noise_multiplier:.6f} "
        if self.bound:
            found += f"gives epsilon {plan.epsilon(account):.6f}{of_target(target)} at s_min >= {self.bound:g}"
        else:
            found += f"gives a claim of epsilon {self._claim(plan, account, target):.6f}; nothing is proved, since {_REASON}"
        return f"{found}, {counted(account, schedule)}"

    def start(self, plan: Plan, model: torch.nn.Module, optimizer: Optimizer | None) -> State:
        """No map yet.

        Raises:
            UsageError: the model has no weights to shape anything by, so that this would be DP-SGD under another name.
        """
        from dpsweep.models.base import trained

        if not any(len(p) > 1 and p[0].numel() > 1 for p in trained(model) if p.dim() > 1):
            raise UsageError(
                f"There is nothing to shape: no trained matrix of model {type(model).__name__} has two rows and two columns (a "
                "head for two classes has one row). mechanism=gaussian is the same here; for a shape choose a model with trained "
                "hidden layers, such as model=dense, or a dataset of more classes"
            )
        state = super().start(plan, model, optimizer)
        state.memory.update(taken=0, maps=[], least=float("inf"), total=0.0)
        return state

    def step(self, state: State, data: Data) -> None:
        """Make S of the released weights where it is due; draw, clip and sum, add noise, divide by m0, update."""
        assert state.plan.noise_multiplier is not None
        clip, sigma, shape = self.max_grad_norm, state.plan.noise_multiplier, self._shape(state)
        batch = data.draw()
        if self.clip == "mahalanobis":
            noisy = shape.apply(data.release(data.clipped_sum(batch, clip, metric=shape), clip, sigma))
        else:
            noisy = data.release(data.clipped_sum(batch, clip), clip, sigma, shape=shape)
        state.update(noisy.div_(data.normalizer))

    def outcome(self, state: State) -> Mapping[str, float]:
        """The least s_min of all steps, and the mean."""
        return {"s_min_least": state.memory["least"], "s_min_mean": state.memory["total"] / max(1, state.memory["taken"])}

    def guarantee(self, plan: Plan, ledger: Ledger, account: Account, target: Target | None) -> Guarantee:
        """The bound's; where there is none, the claim and what the run turned out to spend, and no guarantee."""
        if self.bound:
            return super().guarantee(plan, ledger, account, target)
        claim = self._claim(plan, account, target)
        text = (
            f"No privacy of the released model is proved: {_REASON}. The method's own analysis claims ({claim:.6g}, "
            f"{account.delta:g})-differential privacy for adding or removing any one training record; "
        )
        if plan.repeated:
            realised = None
            text += "what was spent isn't known: the s_min of steps that were lost with a checkpoint were lost with it."
        else:
            events = ledger.events()
            realised = account.epsilon(_fewer(events) if account.accountant == "pld" else events)
            text += f"composed over the s_min of this run it would be {realised:.6g}, an odometer reading and no guarantee."
        return Guarantee("add_remove", "record", claim, None, text, epsilon_realised=realised, reason=_REASON)

    def _claim(self, plan: Plan, account: Account, target: Target | None) -> float:
        """DP-SGD's epsilon at sigma."""
        if target is not None and target.epsilon is not None:
            return target.epsilon
        assert isinstance(plan.sampler, Poisson) and plan.noise_multiplier is not None
        return account.epsilon([(SampledGaussian(plan.sampler.sample_rate, plan.noise_multiplier), plan.steps)])

    def _shape(self, state: State) -> Anisotropy:
        """This step's S; the maps are kept as tuples of tensors and numbers."""
        from dpsweep.models.base import trained

        memory, parameters = state.memory, trained(state.model)
        sizes = [p.numel() for p in parameters]
        if memory["taken"] % self.refresh == 0:
            pieces = zip(state.theta.split(sizes), parameters, strict=True)
            memory["maps"] = [self._normalised(piece, p) for piece, p in pieces]
        shape = Anisotropy([None if row is None else RowMap(*row) for row in memory["maps"]], sizes)
        memory["taken"] += 1
        memory["least"], memory["total"] = min(memory["least"], shape.least), memory["total"] + shape.least
        return shape

    def _normalised(self, piece: torch.Tensor, parameter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float, float] | None:
        """The map of one parameter's piece of theta, in its memory order; None for the identity."""
        if parameter.dim() < 2 or len(parameter) < 2 or not bool(piece.isfinite().all()):
            return None
        row = self.map_of(piece.view(len(parameter), -1))
        if row is None:
            return None
        if not row.least > 0:
            raise UsageError(
                f"{type(self).__name__}: the weights of a map of rows of {len(row.basis)} numbers lie so far apart that, with "
                "rounding, the least has no bound above 0. They must lie nearer to each other (in hero: more ridge)"
            )
        (size, columns), slack = row.basis.shape, 1 + 1e-9  # so that a bound of 1 is reached in spite of rounding
        rest = [] if columns == size else [row.rest]
        if self.normalise == "min":
            factor = slack / row.least
        elif self.normalise == "max":
            factor = 1 / max(float(row.weights.max()), *rest, 0.0)
        else:
            square = float(row.weights.square().sum()) + (size - columns) * row.rest**2
            factor = (size / square) ** 0.5
        return tuple(row.scaled(factor).at_least(self.s_floor))  # type: ignore[return-value]


def _fewer(events: list[tuple[Event, int]]) -> list[tuple[Event, int]]:
    """What spends no less than these events, and has few different ones: of sampled Gaussians (all of one rate) neighbours
    count as the one of them with the least noise."""
    gaussians = [(event, count) for event, count in events if isinstance(event, SampledGaussian)]
    gaussians.sort(key=lambda item: item[0].noise_multiplier)
    size = max(1, math.ceil(len(gaussians) / _MOST_DISTINCT))
    groups = [gaussians[start : start + size] for start in range(0, len(gaussians), size)]
    others = [(event, count) for event, count in events if not isinstance(event, SampledGaussian)]
    return [*others, *((group[0][0], sum(count for _, count in group)) for group in groups)]
