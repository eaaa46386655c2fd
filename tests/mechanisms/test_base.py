"""Targets and plans: what a given noise spends, steps that differ, and the ledger that holds a run to them."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import COMPOSER, batch, make

from dpsweep.config import parse
from dpsweep.mechanisms.base import Account, Plan, Target
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.privacy.accounting import SampledGaussian, Unbounded
from dpsweep.privacy.calibration import Scaled
from dpsweep.privacy.ledger import LedgerError
from dpsweep.privacy.noise import Randomness
from dpsweep.privacy.sampling import Poisson
from dpsweep.runner import run_task
from dpsweep.tasks import Settings, Task
from dpsweep.training.engines import over_records
from dpsweep.training.layered import LayeredEngine
from dpsweep.training.loop import LoopData, train

Q = Fraction(1, 25)
ACCOUNT = Account("rdp", 1e-5)


def event(sigma):
    return SampledGaussian(Q, sigma)


def test_a_noise_multiplier_is_taken_as_it_is():
    assert ACCOUNT.noise_multiplier(Q, 100, Target(noise_multiplier=1.1)) == 1.1
    assert ACCOUNT.noise_multiplier(Q, 100, Target(noise_multiplier=1.1), [Scaled(Q, 5, 2.0)]) == 1.1


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_a_budget_covers_what_else_is_released(accountant):
    account = Account(accountant, 1e-5)
    sigma = account.noise_multiplier(Q, 100, Target(epsilon=1.0), [Scaled(Fraction(1, 5), 10, 1.5)])

    def spent(s):
        return account.epsilon([(event(s), 100), (SampledGaussian(Fraction(1, 5), 1.5 * s), 10)])

    assert spent(sigma) <= 1.0 < spent(0.998 * sigma)
    assert sigma > account.noise_multiplier(Q, 100, Target(epsilon=1.0))


def plan_with(sigmas):
    return Plan(Poisson(Q), lambda step: (event(sigmas[step]),), len(sigmas), 1.0, sigmas[0])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([0.8, 1.0, 1.3]), min_size=1, max_size=30), st.data())
def test_a_prefix_costs_what_its_steps_cost(sigmas, data):
    plan = plan_with(sigmas)
    steps = data.draw(st.integers(1, len(sigmas)))
    assert dict(plan.events(steps)) == {event(s): sigmas[:steps].count(s) for s in set(sigmas[:steps])}
    assert plan.epsilon(ACCOUNT, steps) == pytest.approx(ACCOUNT.epsilon([(event(s), 1) for s in sigmas[:steps]]), rel=1e-12)
    assert plan.events() == plan.events(len(sigmas)) and plan.epsilon(ACCOUNT) >= plan.epsilon(ACCOUNT, steps)
    assert all(plan.allowed(step) == (event(s),) for step, s in enumerate(sigmas))


def test_equal_steps_may_be_written_either_way():
    events = (event(1.0), event(1.0), event(2.0))
    one, two = Plan(Poisson(Q), events, 7), Plan(Poisson(Q), lambda step: events, 7)
    assert sorted(one.events(), key=str) == sorted(two.events(), key=str) == [(event(1.0), 14), (event(2.0), 7)]
    assert sorted(one.events(3), key=str) == sorted(two.events(3), key=str) and one.allowed(4) == two.allowed(4)


def test_one_unbounded_step_makes_a_plan_unbounded():
    plan = Plan(Poisson(Q), lambda step: (event(1.0),) if step < 4 else (Unbounded("looked once"),), 5)
    assert plan.unbounded() == ["looked once"]
    assert Gaussian(1.0).guarantee(plan, None, ACCOUNT, Target(noise_multiplier=1.0)).epsilon is None


class Sequence(Gaussian):
    """DP-SGD with a noise multiplier of its own in each step, whatever the plan says."""

    def __init__(self, sigmas):
        super().__init__(1.0)
        self.left = list(sigmas)

    def step(self, state, data):
        state.update(data.release(data.clipped_sum(data.draw(), 1.0), 1.0, self.left.pop(0)))


def run(sigmas, planned):
    model = make("logistic_raw", "table")
    x, y, _ = batch(model, "table", 40)
    data = LoopData(
        over_records(LayeredEngine(model, None), model, x), y, model, plan_with(planned), 1, Randomness.seeded(0), "none"
    )
    return train(Sequence(sigmas), plan_with(planned), model, data, lambda p: torch.optim.SGD(p, lr=0.1)).ledger


def test_a_run_is_held_to_its_plan_step_by_step():
    planned = [2.0, 1.0, 1.5]
    assert sorted(run(planned, planned).events(), key=str) == sorted([(event(s), 1) for s in planned], key=str)
    run([2.0, 1.1, 1.5], planned)  # more noise than planned is allowed
    for order, refused in (([1.0, 2.0, 1.5], 1), ([2.0, 1.0, 1.0], 3), ([2.0, 0.99, 1.5], 2)):
        with pytest.raises(LedgerError, match=f"Step {refused} would release"):
            run(order, planned)


def recorded(*overrides):
    config = COMPOSER.compose(parse(["dataset=breast_cancer", "epochs=2", "device=cpu", "threads=1", *overrides])[0])
    record = run_task(Task.from_config(config), Settings.from_config(config))
    assert record["status"] == "done", record["error"]
    return record


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_epsilon_is_an_outcome_of_given_noise(accountant):
    record = recorded("noise_multiplier=1.7", f"accountant={accountant}")
    expected = Account(accountant, 1e-5).epsilon([(SampledGaussian(Fraction(record["sample_rate"]), 1.7), record["steps"])])
    assert record["epsilon"] == record["epsilon_claimed"] == expected
    assert record["noise_multiplier"] == record["target_noise_multiplier"] == 1.7 and record["target_epsilon"] is None
    assert f"({expected:.6g}, 1e-05)-differential privacy" in record["guarantee_text"]
    seeded = recorded("noise_multiplier=1.7", f"accountant={accountant}", "noise.source=seeded")
    assert seeded["epsilon"] is None and seeded["epsilon_if_secure"] == expected


def test_calibrated_and_given_noise_are_one_computation():
    """The noise that a budget buys, given as a number, trains the same model bit for bit."""
    bought = recorded("epsilon=1.5", "noise.source=seeded")
    sigma = bought["noise_multiplier"]
    given_noise = recorded(f"noise_multiplier={sigma!r}", "noise.source=seeded")
    for key in ("test_accuracy", "test_auroc", "test_auprc", "epsilon_if_secure", "events"):
        assert bought[key] == given_noise[key]
    assert bought["epsilon_claimed"] == 1.5 and given_noise["epsilon_claimed"] == given_noise["epsilon_if_secure"] <= 1.5


def test_neither_budget_nor_noise_is_training_without_privacy():
    record = recorded("epsilon=none", "mechanism=fractional")
    assert record["mechanism"] == "none" and record["target_noise_multiplier"] is None and record["epsilon"] is None
    assert record["guarantee_text"].startswith("No privacy")
