"""The one training loop, and the one door through which a mechanism reaches the data."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from dpsweep.mechanisms.base import Batch, Mechanism, Optimizer, Plan, State, Statistic, Sum
from dpsweep.models.base import Model
from dpsweep.privacy.accounting import PureDP, Unbounded
from dpsweep.privacy.ledger import Ledger, LedgerError
from dpsweep.privacy.noise import Hardening, Randomness
from dpsweep.privacy.sampling import Poisson
from dpsweep.training.engines import Prepared
from dpsweep.training.per_example import Inputs
from dpsweep.training.statistics import bounded_sum


class LoopData:
    """:class:`~dpsweep.mechanisms.base.Data` over tensors in memory.

    Every random number of a step (inclusion, dropout by record, noise) comes from a stream of its own and is drawn for
    the logical batch, before any engine cuts it: physical batch sizes change nothing, and a record's presence shifts
    neither noise nor the number of draws.
    """

    def __init__(self, prepared: Prepared, y: Tensor, model: Model, plan: Plan, normalizer: int,
                 randomness: Randomness, hardening: Hardening, physical_batch: int | None = None) -> None:  # fmt: skip
        self.normalizer = normalizer
        self.ledger = Ledger(plan.step_events, plan.steps)
        self._inputs, self._y = prepared.inputs, y
        self._records = prepared.inputs[0] if prepared.data is None else prepared.data
        self._model, self._engine, self._plan = model, prepared.engine, plan
        self._batches = plan.sampler.batches(len(y), randomness.stream("sampling"))
        self._noise = randomness.stream("noise")
        self._dropout = randomness.stream("dropout")
        self._hardening = hardening
        self._physical = physical_batch
        self._count = 0
        self._indices: dict[int, np.ndarray] = {}  # of this step's batches
        self._sums: dict[int, Tensor] = {}  # of this step's sums, not yet private

    def draw(self) -> Batch:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        self._count += 1
        self._indices[self._count] = next(self._batches)
        return Batch(self._count)

    def clipped_sum(self, batch: Batch, max_grad_norm: float) -> Sum:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        self._count += 1
        self._sums[self._count] = self._engine.clipped_sum(*self._gather(batch), max_grad_norm)
        return Sum(self._count, batch, max_grad_norm)

    def statistics(self, batch: Batch, record: Statistic, bound: float, sensitivity: float | None = None) -> Sum:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        sensitivity = bound if sensitivity is None else sensitivity
        if not 0 < bound <= sensitivity:
            raise ValueError(
                f"contributions of up to {bound} and a sensitivity of {sensitivity}: it can't be less than that, nor 0"
            )
        self._count += 1
        self._sums[self._count] = bounded_sum(record, self._records, self._y, self._chosen(batch), bound, self._physical)
        return Sum(self._count, batch, sensitivity, norm=1)

    def gradient(self, batch: Batch) -> Tensor:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        self.ledger.charge_event(Unbounded("trained without privacy"))
        return self._engine.gradient_sum(*self._gather(batch)).div_(max(1, len(self._indices[batch.number])))

    def release(self, total: Sum, sensitivity: float, noise_multiplier: float) -> Tensor:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        if total.sensitivity > sensitivity:
            raise ValueError(f"the sum moves by up to {total.sensitivity} and the noise was set for {sensitivity}")
        if total.norm == 1:
            return self._release_statistics(total, sensitivity, noise_multiplier)
        rate = self._plan.sampler.sample_rate if isinstance(self._plan.sampler, Poisson) else Fraction(1)
        self.ledger.charge(total.batch.number, rate, noise_multiplier * sensitivity / total.sensitivity)
        return self._noise.add_normal(self._sums[total.number], noise_multiplier * sensitivity, self._hardening)

    def _release_statistics(self, total: Sum, sensitivity: float, noise_multiplier: float) -> Tensor:
        """Nothing is claimed from sampling: a pure epsilon holds whichever records were drawn."""
        if total.number not in self._sums:
            raise LedgerError(f"Batch {total.batch.number} belongs to an earlier step. Draw a new batch in each step.")
        values = self._sums[total.number]
        if noise_multiplier == 0:
            self.ledger.charge_event(Unbounded("statistics released without noise"))
            return values.clone()
        self.ledger.charge_event(PureDP(total.sensitivity / sensitivity / noise_multiplier, "laplace"))
        noise = torch.from_numpy(self._noise.laplace(len(values))).to(values.device)
        return noise.mul_(noise_multiplier * sensitivity).add_(values)

    def close_step(self) -> None:
        """Close the step in the ledger; what it drew and summed is gone."""
        self.ledger.close_step()
        self._indices.clear()
        self._sums.clear()

    def _gather(self, batch: Batch) -> tuple[Inputs, Tensor]:
        indices = self._chosen(batch)
        rows = (part.index_select(0, indices) for part in self._inputs)
        return (*rows, *self._masks(len(indices))), self._y.index_select(0, indices)

    def _chosen(self, batch: Batch) -> Tensor:
        if batch.number not in self._indices:
            raise LedgerError(f"Batch {batch.number} belongs to an earlier step. Draw a new batch in each step.")
        return torch.from_numpy(self._indices[batch.number]).to(self._y.device)

    def _masks(self, n: int) -> tuple[Tensor, ...]:
        keep = 1 - self._model.dropout
        masks = []
        for shape in self._model.mask_shapes:
            size = n * int(np.prod(shape))
            bits = self._dropout.uint64((size + 1) // 2).view(np.uint32)[:size]
            mask = torch.from_numpy(bits < round(keep * 2**32)).reshape(n, *shape)
            masks.append(mask.to(self._y.device, self._inputs[0].dtype).mul_(1 / keep))
        return tuple(masks)


@dataclass(frozen=True)
class Trained:
    """What a run leaves: the state after the last step, the ledger, and whether the parameters are still finite."""

    state: State
    ledger: Ledger
    diverged: bool


def train(mechanism: Mechanism, plan: Plan, model: Model, data: LoopData,
          optimizer: Optimizer | None) -> Trained:  # fmt: skip
    """Take exactly ``plan.steps`` steps; each is closed in the ledger, which refuses more than the plan allows."""
    model.train()
    state = mechanism.start(plan, model, optimizer)
    for _ in range(plan.steps):
        mechanism.step(state, data)
        data.close_step()
    return Trained(state, data.ledger, not bool(state.theta.isfinite().all()))
