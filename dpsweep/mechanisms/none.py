"""Training without privacy: the reference that private runs are compared with."""

from __future__ import annotations

from dpsweep.mechanisms.base import Account, Data, Mechanism, Plan, Schedule, State, Target
from dpsweep.privacy.accounting import Unbounded
from dpsweep.privacy.sampling import Shuffle


class NonPrivate(Mechanism):
    """Shuffled batches, plain averaged gradients, no clipping, no noise; repeatable from the seed."""

    def calibrate(self, schedule: Schedule, target: Target | None, account: Account) -> Plan:
        """A plan without any bound."""
        return Plan(Shuffle(schedule.batch_size), (Unbounded("trained without privacy"),), schedule.steps)

    def step(self, state: State, data: Data) -> None:
        """One step on the mean gradient of a batch."""
        state.update(data.gradient(data.draw()))
