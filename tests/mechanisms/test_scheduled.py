"""A public noise schedule: which noise when, and what all of it costs together."""

from collections import Counter
from fractions import Fraction

import pytest
from doors import RDP, opened, schedule, sgd
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.build import build
from dpsweep.config import Composer
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Account, Target
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.mechanisms.scheduled import Scheduled
from dpsweep.privacy.accounting import SampledGaussian
from dpsweep.privacy.ledger import LedgerError
from dpsweep.training.loop import train


@given(st.sampled_from(["geometric", "linear"]), st.floats(0.05, 5), st.integers(1, 40), st.integers(1, 300))
def test_stages_are_equal_parts_and_go_from_one_to_final(shape, final, stages, steps):
    plan = Scheduled(1.0, shape, final, stages).calibrate(schedule(steps=steps), Target(noise_multiplier=2.0), RDP)
    noise = [plan.allowed(step)[0].noise_multiplier for step in range(steps)]
    assert noise[0] == 2.0 == plan.noise_multiplier
    assert noise == sorted(noise, reverse=final < 1)
    stages = min(stages, steps)
    if stages > 1:
        assert noise[-1] == plan.public["final_noise_multiplier"] == pytest.approx(2.0 * final)
        middle = Scheduled(1.0, shape, final, stages).factors(stages)
        ways = [b / a if shape == "geometric" else b - a for a, b in zip(middle, middle[1:], strict=False)]
        assert ways == pytest.approx([ways[0]] * len(ways), abs=1e-9)
    lengths = [steps * (k + 1) // stages - steps * k // stages for k in range(stages)]
    if final != 1 and len(set(noise)) == stages:
        assert sorted(Counter(noise).values()) == sorted(lengths)


@settings(max_examples=10, deadline=None)
@given(st.floats(0.3, 10), st.floats(0.2, 3), st.integers(1, 12), st.sampled_from(["geometric", "linear"]))
def test_a_budget_is_met_and_not_wasted(epsilon, final, stages, shape):
    """All stages together, counted from the plan's own steps: the calibration grouped them as they are."""
    plan = Scheduled(1.0, shape, final, stages).calibrate(schedule(5000, Fraction(1, 25), 103), Target(epsilon=epsilon), RDP)
    assert epsilon - max(1e-4, 1e-3 * epsilon) <= plan.epsilon(RDP) <= epsilon
    assert sum(count for _, count in plan.events()) == 103 and len(plan.events()) <= stages


def test_the_account_against_dp_accounting():
    """The composition of unlike steps, by an RDP accountant that isn't ours, at whole orders, and by its PLDs."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    plan = Scheduled(1.0, "linear", 0.6, 4).calibrate(schedule(5000, Fraction(1, 25), 200), Target(noise_multiplier=1.4), RDP)
    theirs = [RdpAccountant(list(range(2, 256))), PLDAccountant()]
    for step in range(0, 200, 50):
        noise = 1.4 * (1 - 0.4 * step / 150)
        event = SelfComposedDpEvent(PoissonSampledDpEvent(0.04, GaussianDpEvent(noise)), 50)
        for accountant in theirs:
            accountant.compose(event)
    rdp, pld = (accountant.get_epsilon(1e-5) for accountant in theirs)
    assert plan.epsilon(RDP) == pytest.approx(rdp, rel=0.01) and plan.epsilon(RDP) <= rdp * (1 + 1e-9)  # it has more orders
    assert plan.epsilon(Account("pld", 1e-5)) == pytest.approx(pld, rel=1e-3)


def test_a_constant_schedule_is_dp_sgd():
    asked = schedule(5000, Fraction(1, 25), 100), Target(epsilon=2.0), RDP
    ours, theirs = Scheduled(1.0, "geometric", 1.0, 1).calibrate(*asked), Gaussian(1.0).calibrate(*asked)
    assert ours.events() == theirs.events()
    several = Scheduled(1.0, "linear", 1.0, 7).calibrate(*asked)
    assert several.events()[0][0].noise_multiplier == pytest.approx(theirs.noise_multiplier, rel=1e-3)


def test_every_step_is_charged_for_its_own_noise():
    mechanism = Scheduled(1.0, "geometric", 0.25, 3)
    network, plan, data = opened(mechanism, sigma=4.0)
    events = train(mechanism, plan, network, data, sgd).ledger.events()
    assert events == plan.events()
    assert [(e.noise_multiplier, n) for e, n in events] == [(4.0, 2), (2.0, 2), (1.0, 2)]
    assert plan.events(3) == [(SampledGaussian(Fraction(1, 4), 4.0), 2), (SampledGaussian(Fraction(1, 4), 2.0), 1)]


def test_a_later_steps_noise_is_refused_before_its_time():
    network, plan, data = opened(Scheduled(1.0, "geometric", 0.25, 3), sigma=4.0)
    with pytest.raises(LedgerError, match="Step 1 would release"):
        data.release(data.clipped_sum(data.draw(), 1.0), 1.0, 1.0)


@pytest.mark.parametrize(("key", "value"), [("shape", "cosine"), ("final", 0), ("stages", 0), ("stages", 2.5)])
def test_bad_keys_are_refused_by_name(key, value):
    with pytest.raises(UsageError, match=rf"mechanism\.{key}="):
        build("mechanism", {**Composer().node("mechanism", "scheduled"), key: value})
