"""The ledger of a run: what each step released, checked against what the plan allows before it is released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from dpsweep.privacy.accounting import Event, PureDP, SampledGaussian, Unbounded, event_from_json, merged_noise_multiplier

_RELATIVE_SLACK = 1e-12  # two routes to one noise multiplier may differ by rounding


class LedgerError(Exception):
    """A release that the plan doesn't allow; it must not happen. The ledger is as it was before the attempt."""


class Ledger:
    """Holds a run to its plan: at most ``steps`` steps, each charging at most ``allowed(step)``, counted from 0.

    Charge first, use the noisy value afterwards. Gaussian releases of one batch within a step are one event (see
    ``merged_noise_multiplier``); distinct batches must be independent Poisson samples, and so are distinct events.
    Batch ids are handed out in ascending order over the whole run. Each step must charge something: one that releases
    nothing either does nothing or went around the ledger. `besides` was charged besides the steps, and the plan counts it in.

    Attributes:
        steps_taken: closed steps.
    """

    def __init__(self, allowed: Callable[[int], tuple[Event, ...]], steps: int,
                 besides: Iterable[tuple[Event, int]] = ()) -> None:  # fmt: skip
        if steps < 0:
            raise ValueError(f"steps is {steps}; it must not be negative")
        self._allowed = allowed
        self.steps = steps
        self.steps_taken = 0
        self._besides = Counter(dict(besides))
        self._closed: Counter[Event] = Counter()
        self._last_closed_batch = -1
        self._batches: dict[int, SampledGaussian] = {}  # of the open step
        self._others: list[Event] = []

    def charge(self, batch_id: int, sample_rate: Fraction, noise_multiplier: float) -> None:
        """Enter a Gaussian release of the batch ``batch_id``, drawn by Poisson sampling at ``sample_rate``.

        Raises LedgerError if the step would exceed the plan, all steps are taken, the batch belongs to an earlier
        step, or it was charged at another rate.
        """
        if batch_id <= self._last_closed_batch:
            raise LedgerError(
                f"Batch {batch_id} belongs to an earlier step: its releases would no longer be one event with those of "
                "that step. Draw a new batch in each step."
            )
        event = SampledGaussian(sample_rate, noise_multiplier)
        if (before := self._batches.get(batch_id)) is not None:
            if before.sample_rate != event.sample_rate:
                raise LedgerError(
                    f"Batch {batch_id} was charged at sample rate {before.sample_rate} and now at {sample_rate}; "
                    "a batch has one rate, that of its sampler."
                )
            event = SampledGaussian(event.sample_rate, merged_noise_multiplier([before.noise_multiplier, noise_multiplier]))
        batches = {**self._batches, batch_id: event}
        self._require(batches, self._others)
        self._batches = batches

    def charge_event(self, event: Event) -> None:
        """Enter any other release: a pure-DP one, an unprotected read. Raises LedgerError as ``charge`` does."""
        others = [*self._others, event]
        self._require(self._batches, others)
        self._others = others

    def close_step(self) -> None:
        """End the step. Raises LedgerError if it charged nothing, or if all planned steps are taken."""
        self._require_open()
        if not self._batches and not self._others:
            raise LedgerError(f"Step {self.steps_taken + 1} released nothing: a step must go through data.release.")
        self._closed.update(self._batches.values())
        self._closed.update(self._others)
        self._last_closed_batch = max(self._batches, default=self._last_closed_batch)
        self._batches, self._others = {}, []
        self.steps_taken += 1

    def events(self) -> list[tuple[Event, int]]:
        """All that was charged, the open step included: distinct events with their counts, for ``epsilon``."""
        return list((self._besides + self._closed + Counter(self._batches.values()) + Counter(self._others)).items())

    def state(self) -> dict[str, Any]:
        """Between two steps, what a run needs to go on: plain values."""
        closed = [[event.to_json(), count] for event, count in self._closed.items()]
        return {"steps_taken": self.steps_taken, "closed": closed, "last_closed_batch": self._last_closed_batch}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.steps_taken, self._last_closed_batch = state["steps_taken"], state["last_closed_batch"]
        self._closed = Counter({event_from_json(event): count for event, count in state["closed"]})

    def _require_open(self) -> None:
        if self.steps_taken >= self.steps:
            raise LedgerError(
                f"The plan has {self.steps} steps and all are taken: one more would spend more than was calibrated. "
                "Plan more steps."
            )

    def _require(self, batches: dict[int, SampledGaussian], others: list[Event]) -> None:
        self._require_open()
        charged = (*batches.values(), *others)
        allowed = self._allowed(self.steps_taken)
        if not dominates(allowed, charged):
            raise LedgerError(
                f"Step {self.steps_taken + 1} would release {_describe(charged)}, but its plan allows "
                f"{_describe(allowed)}. Add more noise, or plan for what the step does."
            )


def dominates(allowed: tuple[Event, ...], charged: tuple[Event, ...]) -> bool:
    """Whether the charged events spend no more than the allowed ones, whatever the accountant.

    Each charged event needs an allowed event of its own kind to itself: the same sample rate and at least its noise
    multiplier (to 1e-12), or at most its pure epsilon. An unbounded read is within the plan if, and only if, the
    plan allows one; then any number is, since nothing is proved any more.
    """
    if any(isinstance(e, Unbounded) for e in charged) and not any(isinstance(e, Unbounded) for e in allowed):
        return False

    def costs(events: tuple[Event, ...]) -> dict[Fraction | None, list[float]]:
        """Ascending noise multipliers by sample rate, and pure epsilons, negated and ascending, under None."""
        found: dict[Fraction | None, list[float]] = {}
        for event in events:
            if isinstance(event, SampledGaussian):
                found.setdefault(event.sample_rate, []).append(event.noise_multiplier)
            elif isinstance(event, PureDP):
                found.setdefault(None, []).append(-event.epsilon)
        return {kind: sorted(values) for kind, values in found.items()}

    # Within one kind the events are totally ordered, so a matching exists iff the sorted lists match one by one.
    room = costs(allowed)
    return all(
        len(values) <= len(room.get(kind, ()))
        and all(c >= a - _RELATIVE_SLACK * abs(a) for c, a in zip(values, room[kind], strict=False))
        for kind, values in costs(charged).items()
    )


def _describe(events: tuple[Event, ...]) -> str:
    return ", ".join(map(repr, events)) or "nothing"
