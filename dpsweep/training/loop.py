"""The one training loop, and the one door through which a mechanism reaches the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Batch, Losses, Mechanism, Optimizer, Plan, Rule, State, Statistic, Sum
from dpsweep.models.base import Model
from dpsweep.privacy.accounting import PureDP, Unbounded
from dpsweep.privacy.anisotropic import Anisotropy
from dpsweep.privacy.ledger import Ledger, LedgerError
from dpsweep.privacy.noise import Hardening, Randomness
from dpsweep.privacy.sampling import Poisson
from dpsweep.training.augment import Augment
from dpsweep.training.checkpoint import Checkpoint
from dpsweep.training.diagnostics import Diagnostics
from dpsweep.training.engines import Prepared
from dpsweep.training.per_example import Inputs, Physical, Weigh, clipping, gradient_sum, physical
from dpsweep.training.statistics import bounded_sum

_PASS = 128  # records whose own losses pass through a network at a time
# A larger weight could leave float32, in the weight itself or times an activation, and one record would break the model.
_LARGEST_WEIGHT = 2.0**63


class LoopData:
    """:class:`~dpsweep.mechanisms.base.Data` over tensors in memory.

    Every random number of a step (inclusion, augmentation and dropout by record, noise) comes from a stream of its own and is
    drawn for the logical batch, before any engine cuts it: physical batch sizes change nothing, and a record's presence
    shifts neither noise nor the number of draws.
    """

    def __init__(self, prepared: Prepared, y: Tensor, model: Model, plan: Plan, normalizer: int,
                 randomness: Randomness, hardening: Hardening, physical_batch: Physical = None,
                 diagnostics: Diagnostics | None = None, augment: Augment | None = None) -> None:  # fmt: skip
        self.normalizer = normalizer
        self._diagnostics = diagnostics
        self.ledger = Ledger(plan.allowed, plan.steps, besides=plan.events(0))
        self._inputs, self._y = prepared.inputs, y
        self._records, self._forward = prepared.data, prepared.forward
        self._model, self._engine, self._plan = model, prepared.engine, plan
        self._drawn = 0
        self._batches = plan.sampler.batches(len(y), randomness.stream("sampling"))
        self._noise = randomness.stream("noise")
        self._dropout = randomness.stream("dropout")
        self._randomness = randomness
        self._augment, self._augmentation = augment, randomness.stream("augmentation")
        self._hardening = hardening
        self._physical = physical_batch
        self._count = 0
        self._indices: dict[int, np.ndarray] = {}  # of this step's batches
        self._sums: dict[int, Tensor] = {}  # of this step's sums, not yet private
        self._norms: dict[int, list[Tensor]] = {}  # of the gradients in this step's sums, by physical batch

    def draw(self) -> Batch:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        self._count += 1
        self._drawn += 1
        self._indices[self._count] = next(self._batches)
        return Batch(self._count)

    def clipped_sum(self, batch: Batch, max_grad_norm: float, metric: Anisotropy | None = None) -> Sum:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        return self._weighted(batch, clipping(max_grad_norm), max_grad_norm, metric)

    def weighted_sum(self, batch: Batch, weigh: Rule, sensitivity: float) -> Sum:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        uniform = self._uniform("thinning", len(self._chosen(batch)), 1).squeeze(1)  # the engine asks in the batch's order
        done = 0

        def bounded(norms: Tensor) -> Tensor:
            nonlocal done
            weights = _of_each(weigh(norms, uniform[done : done + len(norms)]), norms)
            done += len(norms)
            largest = (sensitivity / norms).clamp_max(_LARGEST_WEIGHT)
            return torch.minimum(weights, largest).clamp_min_(0).nan_to_num_(nan=0.0)  # NaN: of a norm that is

        return self._weighted(batch, bounded, sensitivity)

    def _weighted(self, batch: Batch, weigh: Weigh, sensitivity: float, metric: Anisotropy | None = None) -> Sum:
        self._count += 1
        norms = self._norms[self._count] = []
        noted = self._noted(weigh, norms, sensitivity)
        total = self._engine.weighted_sum(*self._gather(batch), noted, metric.maps if metric else None)
        self._sums[self._count] = metric.inverse(total) if metric else total
        return Sum(self._count, batch, sensitivity)

    def norm_sum(self, total: Sum, of: Callable[[Tensor], Tensor], bound: float) -> Sum:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        if total.number not in self._norms:
            raise LedgerError(f"Sum {total.number} belongs to an earlier step, or isn't one of gradients.")
        self._count += 1
        values = torch.cat([self._sums[total.number].new_empty(0, dtype=torch.float64), *self._norms[total.number]])
        self._sums[self._count] = _of_each(of(values), values).clamp_(-bound, bound).sum().reshape(1)
        return Sum(self._count, total.batch, bound)

    def statistics(self, batch: Batch, record: Statistic, bound: float, sensitivity: float | None = None) -> Sum:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        sensitivity = bound if sensitivity is None else sensitivity
        if not 0 < bound <= sensitivity:
            raise ValueError(
                f"contributions of up to {bound} and a sensitivity of {sensitivity}: it can't be less than that, nor 0"
            )
        if self._augment:
            raise UsageError("augment: this mechanism sums statistics of the records as they are. Leave augment out")
        self._count += 1
        self._sums[self._count] = bounded_sum(record, self._records, self._y, self._chosen(batch), bound, self._physical)
        return Sum(self._count, batch, sensitivity, norm=1)

    def gradient(self, batch: Batch, losses: Losses | None = None, uniforms: int = 0, realised: bool = True) -> Tensor:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        self.ledger.charge_event(Unbounded("trained without privacy" if losses is None else "gradients without clipping"))
        inputs, y = self._gather(batch)
        if self._diagnostics:
            self._engine.weighted_sum(inputs, y, self._noted(torch.ones_like, [], math.inf))  # for its norms alone
        if losses is None:
            total = self._engine.gradient_sum(inputs, y)
        else:
            uniform = self._uniform("losses", len(y), uniforms)
            total = gradient_sum(self._model, self._forward, inputs, y, physical(self._physical, _PASS), losses, uniform)
        return total.div_(max(1, len(y)) if realised else self.normalizer)

    def _uniform(self, purpose: str, n: int, columns: int) -> Tensor:
        """Numbers in (0, 1), float64 (n, columns), drawn for the logical batch."""
        words = self._randomness.stream(purpose).uint64(n * columns)
        words >>= np.uint64(12)  # 52 bits: with one more, the largest would round to 1
        return torch.from_numpy((words + 0.5) * 2.0**-52).view(n, columns).to(self._y.device)

    def release(self, total: Sum, sensitivity: float, noise_multiplier: float, shape: Anisotropy | None = None) -> Tensor:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        if total.sensitivity > sensitivity:
            raise ValueError(f"the sum moves by up to {total.sensitivity} and the noise was set for {sensitivity}")
        if total.norm == 1:
            if shape is not None:
                raise ValueError("Laplace noise has no shape")
            return self._release_statistics(total, sensitivity, noise_multiplier)
        rate = self._plan.sampler.sample_rate if isinstance(self._plan.sampler, Poisson) else Fraction(1)
        least = 1.0 if shape is None else shape.least
        self.ledger.charge(total.batch.number, rate, noise_multiplier * least * (sensitivity / total.sensitivity))
        values = self._sums[total.number]
        if shape is None:
            return self._noise.add_normal(values, noise_multiplier * sensitivity, self._hardening)
        noise = self._noise.add_normal(torch.zeros_like(values), noise_multiplier * sensitivity, self._hardening)
        return shape.apply(noise).add_(values)

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
        self._norms.clear()
        if self._diagnostics:
            self._diagnostics.close_step()

    def state(self) -> dict[str, Any]:
        """Between two steps, what a run needs to go on, for a checkpoint: counts and the ledger, and with seeded noise the
        randomness. Of secure noise nothing: its key and positions would tell who was drawn, and the noise."""
        randomness = None if self._randomness.is_secure else self._randomness.state()
        return {"count": self._count, "drawn": self._drawn, "ledger": self.ledger.state(), "randomness": randomness}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; with seeded noise this was made with a randomness in that state."""
        self._count, self._drawn = state["count"], state["drawn"]
        self._batches = self._plan.sampler.batches(len(self._y), self._randomness.stream("sampling"), self._drawn)
        self.ledger.restore(state["ledger"])

    def _noted(self, weigh: Weigh, seen: list[Tensor], max_grad_norm: float) -> Weigh:
        """The same weights, with the norms put aside."""

        def noted(norms: Tensor) -> Tensor:
            seen.append(norms)
            if self._diagnostics:
                self._diagnostics.note(norms, max_grad_norm)
            return weigh(norms)

        return noted

    def _gather(self, batch: Batch) -> tuple[Inputs, Tensor]:
        indices = self._chosen(batch)
        rows = [part.index_select(0, indices) for part in self._inputs]
        if self._augment:
            rows = [self._augment(rows[0], self._augmentation)]
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


def _of_each(found: Tensor, norms: Tensor) -> Tensor:
    """What a mechanism's function made of the norms (n,): one number each, 0 where it isn't finite.

    Raises:
        ValueError: it has another shape, so that a record might count more than once.
    """
    if found.shape != norms.shape:
        raise ValueError(f"a function of the norms gave shape {tuple(found.shape)} for {len(norms)} records; one number each")
    return found.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


@dataclass(frozen=True)
class Trained:
    """What a run leaves: the state after the last step, the ledger, and whether the parameters are still finite."""

    state: State
    ledger: Ledger
    diverged: bool


def train(mechanism: Mechanism, plan: Plan, model: Model, data: LoopData, optimizer: Optimizer | None,
          after: Callable[[int], None] = lambda step: None, checkpoint: Checkpoint | None = None) -> Trained:  # fmt: skip
    """Take exactly ``plan.steps`` steps, those before a checkpoint included; each is closed in the ledger, which refuses more
    than the plan allows. `after` is told how many are taken, each time."""
    model.train()
    state = mechanism.start(plan, model, optimizer)
    taken = checkpoint.resume(state, data) if checkpoint else 0
    for step in range(taken, plan.steps):
        mechanism.step(state, data)
        data.close_step()
        after(step + 1)
        if checkpoint:
            checkpoint.after(step + 1, state, data)
    return Trained(state, data.ledger, not bool(state.theta.isfinite().all()))
