"""The loop and its one door to the data."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from zoo import NARROW, batch, make

from dpsweep.mechanisms.base import Plan, Schedule, dp_sgd_events
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.mechanisms.none import NonPrivate
from dpsweep.privacy.accounting import SampledGaussian, Unbounded
from dpsweep.privacy.ledger import LedgerError
from dpsweep.privacy.noise import Randomness
from dpsweep.privacy.sampling import Poisson
from dpsweep.training.engines import over_records, prepare
from dpsweep.training.layered import LayeredEngine
from dpsweep.training.loop import LoopData, train


def setting(name="dense", kind="table", n=40, q=Fraction(1, 4), steps=6, sigma=1.0, engine=LayeredEngine, dtype=torch.float64,
            seed=0, physical=None):  # fmt: skip
    model = make(name, kind, dtype)
    x, y, _ = batch(model, kind, n, dtype)
    plan = Plan(Poisson(q), dp_sgd_events(q, sigma), steps, 1.0, sigma)
    data = LoopData(over_records(engine(model, physical), model, x), y, model, plan, 10, Randomness.seeded(seed), "none")
    return model, plan, data


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def test_exactly_t_steps_are_taken_and_charged():
    model, plan, data = setting(steps=7)
    trained = train(Gaussian(1.0), plan, model, data, adam)
    assert trained.ledger.steps_taken == 7
    assert trained.ledger.events() == [(SampledGaussian(Fraction(1, 4), 1.0), 7)]


def test_empty_batches_take_noise_only_steps_and_are_charged():
    """Invariant 1: with no records at all, every batch is empty and all the same happens."""
    model, plan, data = setting(n=0, steps=5)
    before = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
    trained = train(Gaussian(1.0), plan, model, data, adam)
    assert trained.ledger.events() == [(SampledGaussian(Fraction(1, 4), 1.0), 5)]
    assert (trained.state.theta != before).all()


def test_the_divisor_is_public(monkeypatch):
    """Invariant 2: an update is (sum + noise)/m0 whatever the batch's size."""
    model, plan, data = setting(sigma=1e-9, steps=1, q=Fraction(1))
    draw, release, got = data.draw, data.release, {}

    def drawing():
        batch = draw()
        got["size"] = len(data._indices[batch.number])
        return batch

    def releasing(*arguments):
        noisy = release(*arguments)
        got["noisy"] = noisy.clone()
        return noisy

    monkeypatch.setattr(data, "draw", drawing)
    monkeypatch.setattr(data, "release", releasing)
    start = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
    trained = train(Gaussian(1.0), plan, model, data, lambda p: torch.optim.SGD(p, lr=1.0))
    assert got["size"] == 40 != data.normalizer
    torch.testing.assert_close(start - trained.state.theta, got["noisy"] / data.normalizer, rtol=1e-6, atol=1e-8)


def test_noise_has_the_deviation_of_the_plan():
    model, plan, data = setting(name="dense", kind="gray", sigma=3.0, n=0, steps=1)
    noisy = []

    class Keeping(Gaussian):
        def step(self, state, loop):
            noisy.append(loop.release(loop.clipped_sum(loop.draw(), self.max_grad_norm), self.max_grad_norm, 3.0))

    train(Keeping(0.5), plan, model, data, adam)
    assert float(noisy[0].std()) == pytest.approx(1.5, rel=0.02)  # about 50,000 parameters: standard error 0.3%


def test_noise_draws_do_not_depend_on_the_data():
    """Invariant 3: the same noise, step for step, whichever records there are."""

    def noises(n):
        model, plan, data = setting(n=n, steps=4)
        kept = []

        class Keeping(Gaussian):
            def step(self, state, loop):
                total = loop.clipped_sum(loop.draw(), 1.0)
                kept.append(loop.release(total, 1.0, 1.0) - loop._sums[total.number])

        train(Keeping(1.0), plan, model, data, adam)
        return torch.stack(kept)

    torch.testing.assert_close(noises(40), noises(41), rtol=0, atol=1e-12)
    torch.testing.assert_close(noises(40), noises(0), rtol=0, atol=1e-12)


def test_a_step_cannot_charge_more_than_the_plan_allows():
    for noise, sums in ((0.5, 1), (1.0, 2)):
        model, plan, data = setting()

        class Greedy(Gaussian):
            def step(self, state, loop, noise=noise, sums=sums):
                total = loop.clipped_sum(loop.draw(), 1.0)
                for _ in range(sums):
                    loop.release(total, 1.0, noise)

        with pytest.raises(LedgerError):
            train(Greedy(1.0), plan, model, data, adam)


def test_a_step_that_releases_nothing_is_refused():
    model, plan, data = setting()

    class Idle(Gaussian):
        def step(self, state, loop):
            loop.clipped_sum(loop.draw(), 1.0)

    with pytest.raises(LedgerError, match="released nothing"):
        train(Idle(1.0), plan, model, data, adam)


def test_handles_carry_no_numbers_of_the_data():
    _, _, data = setting()
    batch = data.draw()
    total = data.clipped_sum(batch, 1.0)
    assert vars(batch) == {"number": 1} and vars(total) == {"number": 2, "batch": batch, "sensitivity": 1.0, "norm": 2}


def test_an_earlier_batch_cannot_be_released_again():
    model, plan, data = setting()

    class Hoarding(Gaussian):
        def step(self, state, loop):
            self.total = getattr(self, "total", None) or loop.clipped_sum(loop.draw(), 1.0)
            loop.release(self.total, 1.0, 1.0)

    with pytest.raises(LedgerError):
        train(Hoarding(1.0), plan, model, data, adam)


def test_noise_for_a_smaller_sensitivity_is_refused():
    model, plan, data = setting()

    class Cheating(Gaussian):
        def step(self, state, loop):
            loop.release(loop.clipped_sum(loop.draw(), 2.0), 1.0, 1.0)

    with pytest.raises(ValueError, match="noise was set for"):
        train(Cheating(1.0), plan, model, data, adam)


def test_a_plain_gradient_is_refused_in_a_private_plan():
    model, plan, data = setting()
    with pytest.raises(LedgerError):
        train(NonPrivate(), plan, model, data, adam)


def test_plain_training_is_charged_as_unbounded():
    model, _, _ = setting()
    schedule = Schedule(40, Fraction(1, 4), 8, 10, 10)
    plan = NonPrivate().calibrate(schedule, None, None)
    x, y, _ = batch(model, "table", 40)
    data = LoopData(over_records(LayeredEngine(model, None), model, x), y, model, plan, 10, Randomness.seeded(0), "none")
    ((event, count),) = train(NonPrivate(), plan, model, data, adam).ledger.events()
    assert isinstance(event, Unbounded) and count == 8


def trajectories_agree(name, kind, other, steps):
    ends = []
    for engine, cut in (("default", None), (other, 7)):
        model = make(name, kind)
        x, y, _ = batch(model, kind, 40)
        q = Fraction(1, 4)
        plan = Plan(Poisson(q), dp_sgd_events(q, 1.0), steps, 1.0, 1.0)
        ready = prepare(engine, model, x, f"{name} {kind}", cut)
        data = LoopData(ready, y, model, plan, 10, Randomness.seeded(0), "none")
        train(Gaussian(1.0), plan, model, data, lambda p: torch.optim.Adam(p, lr=1e-3))  # the papers' rate
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("other", ["uncached", "vmap", "reference"])
def test_trajectories_agree_between_engines(other, name, kind):
    """Invariants 6 and 7 over the whole loop: dropout, sampling, noise and optimizer included."""
    trajectories_agree(name, kind, other, 200 if kind == "gray" and name not in NARROW else 12)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["uncached", "vmap", "reference"])
@pytest.mark.parametrize("deep", NARROW)
def test_long_trajectories_of_deep_networks_agree_between_engines(deep, other):
    trajectories_agree(deep, "gray", other, 200)


def test_seeded_runs_repeat_bit_for_bit_and_secure_ones_do_not():
    def theta(randomness):
        model, plan, data = setting()
        x, y, _ = batch(model, "table", 40)
        data = LoopData(over_records(LayeredEngine(model, None), model, x), y, model, plan, 10, randomness, "none")
        return train(Gaussian(1.0), plan, model, data, adam).state.theta

    assert torch.equal(theta(Randomness.seeded(5)), theta(Randomness.seeded(5)))
    assert not torch.equal(theta(Randomness.seeded(5)), theta(Randomness.seeded(6)))
    assert not torch.equal(theta(Randomness.secure()), theta(Randomness.secure()))


def test_dropout_masks_drop_at_their_rate():
    model, plan, data = setting("dense", "gray")
    (mask,) = data._masks(2000)
    assert set(np.unique(mask.numpy())) == {0.0, 1.25}
    assert float((mask == 0).double().mean()) == pytest.approx(0.2, abs=0.003)  # 512,000 entries


def test_divergence_is_a_result():
    model, plan, data = setting(steps=3)
    trained = train(Gaussian(1.0), plan, model, data, lambda p: torch.optim.SGD(p, lr=float("inf")))
    assert trained.diverged
