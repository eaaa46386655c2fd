"""What a mechanism is: the one place where training becomes private.

A mechanism owns how its noise is calibrated, what happens between the clipped sum and the optimizer, and which
guarantee that gives. It never touches the dataset: it draws batches and asks for sums through :class:`Data`, whose
ledger charges every release and refuses what the plan doesn't allow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

from dpsweep.privacy.accounting import Event, SampledGaussian, Unbounded, epsilon, in_words, merged_noise_multiplier
from dpsweep.privacy.calibration import Scaled, calibrate
from dpsweep.privacy.sampling import Everything, Poisson, Shuffle

if TYPE_CHECKING:
    import torch

    from dpsweep.privacy.anisotropic import Anisotropy
    from dpsweep.privacy.ledger import Ledger


@dataclass(frozen=True)
class Schedule:
    """The public numbers of a run, fixed before the data is read.

    Attributes:
        reference_size: N0, a public number, never the count of the private records.
        sample_rate: q, exact.
        steps: T.
        normalizer: m0 = max(1, floor(q N0)), the fixed divisor of every noisy sum.
        batch_size: for training without privacy, the size of a shuffled batch.
        model: the keys of the model's YAML, such as its width, where a method's noise depends on them.
        classes: how many the dataset has.
    """

    reference_size: int
    sample_rate: Fraction
    steps: int
    normalizer: int
    batch_size: int
    model: Mapping[str, Any] = field(default_factory=dict)
    classes: int = 2


@dataclass(frozen=True)
class Target:
    """What a run is asked to meet: a budget, or a noise multiplier, whose epsilon is then an outcome.

    Attributes:
        epsilon: the budget of the whole run; None if the noise is given.
        noise_multiplier: of each release, as the method's paper counts it; None if a budget is given.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None


@dataclass(frozen=True)
class Account:
    """How privacy is counted: by which accountant, at which delta (0 for pure differential privacy)."""

    accountant: str
    delta: float

    def epsilon(self, events: list[tuple[Event, int]]) -> float:
        """The epsilon that a composition of events satisfies at this delta."""
        return epsilon(events, self.delta, self.accountant).epsilon

    def noise_multiplier(self, sample_rate: Fraction, steps: int, target: Target, others: Sequence[Scaled] = ()) -> float:
        """The least noise (to the search's tolerance) with which `steps` sampled Gaussians satisfy the target's epsilon,
        together with `others` at multipliers in a fixed proportion to it; or the noise multiplier that the target gives."""
        if target.noise_multiplier is not None:
            return target.noise_multiplier
        assert target.epsilon is not None, "a target has an epsilon or a noise multiplier"
        return calibrate(sample_rate, steps, target.epsilon, self.delta, self.accountant, others=others).noise_multiplier


@dataclass(frozen=True)
class Plan:
    """What a run will do, fixed before the data is read: the guarantee is this plan's bound.

    Attributes:
        sampler: how batches are drawn.
        step_events: the most that one step may charge to the ledger; by step (from 0) where steps differ.
        steps: how many steps are taken, neither more nor fewer.
        max_grad_norm: C, where the mechanism clips.
        noise_multiplier: of Gaussian noise, what the account used, where there is one.
        public: further public numbers of the method, for the record.
        repeated: for each number j in it, the first j steps were released once more besides the run (see
            :mod:`dpsweep.training.checkpoint`).
    """

    sampler: Poisson | Shuffle | Everything
    step_events: tuple[Event, ...] | Callable[[int], tuple[Event, ...]]
    steps: int
    max_grad_norm: float | None = None
    noise_multiplier: float | None = None
    public: Mapping[str, float] = field(default_factory=dict)
    repeated: tuple[int, ...] = ()

    def allowed(self, step: int) -> tuple[Event, ...]:
        """The most that a step, counted from 0, may charge."""
        return self.step_events(step) if callable(self.step_events) else self.step_events

    def unbounded(self) -> list[str]:
        """Why the plan has no epsilon: the reasons of its reads without noise; empty where every event is bounded."""
        return [event.reason for event, _ in self.events() if isinstance(event, Unbounded)]

    def events(self, steps: int | None = None) -> list[tuple[Event, int]]:
        """The most that the first `steps` steps charge, or all, and what was repeated: distinct events with their counts."""
        counts: Counter[Event] = Counter()
        for number in (self.steps if steps is None else steps, *self.repeated):
            if callable(self.step_events):
                counts.update(event for step in range(number) for event in self.step_events(step))
            else:
                counts.update({event: number * count for event, count in Counter(self.step_events).items()})
        return [(event, count) for event, count in counts.items() if count]

    def epsilon(self, account: Account, steps: int | None = None) -> float:
        """What the whole plan, or its first `steps` steps, can cost at most."""
        return account.epsilon(self.events(steps))


@dataclass(frozen=True)
class Guarantee:
    """What a run promises, about whom, and by which argument.

    Attributes:
        adjacency: ``add_remove``, ``replace_one``, ``replace_features``; several, joined by `` and ``, where the same
            epsilon holds for each; None where nothing is promised.
        protects: ``record`` or ``features``.
        epsilon_claimed: by the method's own analysis.
        epsilon: proved for the released model and fixed before the data was read; None where nothing is proved.
        epsilon_if_secure: what `epsilon` would be, had the noise not been seeded.
        epsilon_realised: where the noise used depends on the run, an odometer reading (no guarantee).
        reason: why `epsilon` is None.
        text: the guarantee in words, for people.
    """

    adjacency: str | None
    protects: str | None
    epsilon_claimed: float | None
    epsilon: float | None
    text: str
    epsilon_if_secure: float | None = None
    epsilon_realised: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Batch:
    """A handle of an independent sample of records; which and how many they are stays behind the door.

    Attributes:
        number: its name in the ledger, ascending over the run.
    """

    number: int


@dataclass(frozen=True)
class Sum:
    """A handle of a sum over one batch, not yet private: its value stays behind the door until it is released.

    Attributes:
        number: names it.
        batch: the batch that it was formed over.
        sensitivity: the most by which it moves between neighbouring datasets.
        norm: in which norm: 2 (clipped sums, released with Gaussian noise) or 1 (statistics, with Laplace noise).
    """

    number: int
    batch: Batch
    sensitivity: float
    norm: int = 2


#: What one record contributes to a sum: from its inputs, in the dataset's shape, and its label, a scalar, to a vector of
#: a length that is the same for every record. It runs under ``torch.func.vmap`` and so can't see another record.
Statistic = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


#: Weights of records from the norms of their gradients, float64 (n,), and a uniform number in [0, 1) for each, float64 (n,).
Rule = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


#: Losses (n,) of records from logits (n, outputs), labels (n,) and uniform numbers (n, some).
Losses = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]


class Data(Protocol):
    """The one door to the private records: handles go out, and only releases come back as numbers."""

    normalizer: int

    def draw(self) -> Batch:
        """A new independent sample."""

    def clipped_sum(self, batch: Batch, max_grad_norm: float, metric: Anisotropy | None = None) -> Sum:
        """The sum over the batch of per-example gradients, each scaled to an l2 norm of at most `max_grad_norm`; with a `metric`
        S, which must come from releases, of S^-1 g in place of every gradient g."""

    def weighted_sum(self, batch: Batch, weigh: Rule, sensitivity: float) -> Sum:
        """The sum over the batch of per-example gradients, each times a weight.

        Args:
            batch: the records.
            weigh: from gradient norms (n,) and independent uniform numbers (n,), one a record, to weights (n,): of a record it
                must look at that record's numbers alone. A weight is cut so that no record contributes more than
                `sensitivity`, and at 2^63; one that is negative or not finite is 0.
            sensitivity: the most that one record contributes, in l2 norm.
        """

    def norm_sum(self, total: Sum, of: Callable[[torch.Tensor], torch.Tensor], bound: float) -> Sum:
        """The sum, shape (1,), of a function of the norms (n,) of the gradients that `total` was formed of.

        The function must look at each norm alone. Values are cut to [-bound, bound], and one that isn't finite is 0, so
        that one record moves the sum by at most `bound`.
        """

    def statistics(self, batch: Batch, record: Statistic, bound: float, sensitivity: float | None = None) -> Sum:
        """The sum over the batch of what `record` makes of each record, in float64.

        A contribution of l1 norm above `bound` is scaled down to it; a record with non-finite inputs or contribution adds
        zero. So one record more or less moves the sum by at most `bound` in l1 norm, whatever `record` does.

        Args:
            batch: the records.
            record: what one record contributes.
            bound: on the l1 norm of every contribution.
            sensitivity: what the release is charged for, if the mechanism proves its bound for a further relation between
                datasets: at least `bound`, which is the default.
        """

    def gradient(self, batch: Batch, losses: Losses | None = None, uniforms: int = 0, realised: bool = True) -> torch.Tensor:
        """The mean of unclipped per-example gradients: not private, and charged to the ledger as unbounded.

        Args:
            batch: the records.
            losses: of which loss: from logits (n, outputs), labels (n,) and uniform numbers in (0, 1), float64 (n, uniforms), to
                one loss a record (n,). By default the cross-entropy.
            uniforms: how many numbers a record gets; they are drawn before the batch is cut.
            realised: divide by the number of records drawn, or by the public `normalizer`.
        """

    def release(self, total: Sum, sensitivity: float, noise_multiplier: float, shape: Anisotropy | None = None) -> torch.Tensor:
        """The sum plus independent noise of size ``noise_multiplier * sensitivity``, charged to the ledger first.

        For a sum bounded in l2 norm it is Gaussian, and that size its standard deviation; with a `shape` S, which must come from
        releases, S times such noise, charged at ``noise_multiplier * shape.least``. For one bounded in l1 norm it is
        Laplace, and that size its scale: with ``sensitivity = total.sensitivity`` that is ``1 / noise_multiplier``-DP
        (Dwork, McSherry, Nissim, Smith 2006). Statistics without noise (0) are charged as unbounded.
        """


Optimizer = Callable[..., "torch.optim.Optimizer"]  # makes one over given tensors


class State:
    """All that a run carries from step to step.

    The trainable parameters are views into one flat tensor, `theta` of shape (parameters,), so that sums, noise and
    optimizer work on single vectors. `memory` holds what a mechanism remembers: tensors and numbers only. There is no
    `optimizer` for a mechanism that uses none and writes `theta` itself.
    """

    def __init__(self, plan: Plan, model: torch.nn.Module, optimizer: Optimizer | None) -> None:
        from dpsweep.models.base import flatten, trained, unflatten

        self.plan = plan
        self.model = model
        parameters = trained(model)
        self.theta = flatten([p.detach() for p in parameters], parameters)
        for p, view in zip(parameters, unflatten(self.theta, parameters), strict=True):
            p.data = view
        self.optimizer = optimizer([self.theta]) if optimizer is not None else None
        self.memory: dict[str, Any] = {}

    def update(self, gradient: torch.Tensor) -> None:
        """One optimizer step on a flat gradient."""
        assert self.optimizer is not None, "this mechanism's YAML says that it uses no optimizer"
        self.theta.grad = gradient
        self.optimizer.step()

    @contextmanager
    def moved(self, direction: torch.Tensor, length: float) -> Iterator[None]:
        """Inside the block the parameters stand at theta + length direction/|direction|, or at theta where the direction, shape
        (parameters,), is zero; afterwards they are bit for bit what they were."""
        saved, norm = self.theta.clone(), float(direction.norm())
        if norm > 0:
            self.theta.add_(direction, alpha=length / norm)
        try:
            yield
        finally:
            self.theta.copy_(saved)


class Mechanism:
    """The face of a mechanism; a subclass gives `calibrate` and `step`, and `guarantee` where it isn't DP-SGD's.

    Attributes:
        departs: where the method as published isn't private, or not as it counts, and what is done here: a sentence that
            ends the record's guarantee.
    """

    departs = ""

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """The plan that meets the target (None: training without privacy).

        Raises:
            UsageError: no plan can meet it.
        """
        raise NotImplementedError

    def calibrated(self, plan: Plan, schedule: Schedule, account: Account, target: Target | None) -> str | None:
        """What calibration found, in words; None where nothing is sought."""
        if plan.noise_multiplier is None:
            return None
        usual = dp_sgd_events(schedule.sample_rate, plan.noise_multiplier)
        charged = "" if plan.step_events == usual else f"; charged are {in_words(plan.events())}"
        return (
            f"sigma {plan.noise_multiplier:.6f} gives epsilon {plan.epsilon(account):.6f}{of_target(target)} at "
            f"{counted(account, schedule)}{charged}"
        )

    def start(self, plan: Plan, model: torch.nn.Module, optimizer: Optimizer | None) -> State:
        """The state before the first step."""
        return State(plan, model, optimizer)

    def step(self, state: State, data: Data) -> None:
        """One step, in the order in which the paper tells it."""
        raise NotImplementedError

    def outcome(self, state: State) -> Mapping[str, float]:
        """Numbers for the record that the run decided, by what it released alone."""
        return {}

    def guarantee(self, plan: Plan, ledger: Ledger, account: Account, target: Target | None) -> Guarantee:
        """What holds after the run: the plan's bound under add/remove adjacency, if every event has one."""
        if unbounded := plan.unbounded():
            reason = "; ".join(unbounded)
            return Guarantee(None, None, None, None, f"No privacy: {reason}.", reason=reason)
        bound = plan.epsilon(account)
        return Guarantee(
            "add_remove", "record", bound if target is None or target.epsilon is None else target.epsilon, bound,
            f"({bound:.6g}, {account.delta:g})-differential privacy of the released model for adding or removing any one "
            f"training record, by the {account.accountant.upper()} accountant over {plan.steps} steps; the record beside "
            "the model, other models of the same data and the test metrics are not covered." + f" {self.departs}".rstrip(),
        )  # fmt: skip


def dp_sgd_events(sample_rate: Fraction, noise_multiplier: float) -> tuple[Event, ...]:
    """What a step charges that releases one clipped sum of one Poisson batch."""
    return (SampledGaussian(sample_rate, noise_multiplier),)


def counted(account: Account, schedule: Schedule) -> str:
    """How privacy is counted, and over which schedule, in words."""
    return (
        f"delta {account.delta:g} ({account.accountant.upper()}; q = {schedule.sample_rate}, T = {schedule.steps}, "
        f"N0 = {schedule.reference_size}, m0 = {schedule.normalizer})"
    )


def of_target(target: Target | None) -> str:
    """ " of 2" for a budget of 2; nothing where there is none."""
    return "" if target is None or target.epsilon is None else f" of {target.epsilon:g}"


def rounded_up(release: float, merged: float, together: Callable[[float], Sequence[float]]) -> float:
    """`release`, a noise multiplier, raised by as little as it takes that a batch's releases at ``together(release)`` are one
    event at no less than `merged`: formulas meet that to rounding alone, which may fall on the wrong side."""
    step = math.ulp(1.0)
    while merged_noise_multiplier(together(release)) < merged:
        release, step = release * (1 + step), 2 * step
    return release
