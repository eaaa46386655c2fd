"""DP-SAM: two releases a step, and what they cost from two batches and from one."""

import math
from fractions import Fraction

import pytest
import torch
from doors import RDP, opened, schedule, scripted, sgd, size
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.mechanisms.base import Account, Target
from dpsweep.mechanisms.dp_sam import DPSAM
from dpsweep.privacy.accounting import SampledGaussian
from dpsweep.privacy.ledger import LedgerError
from dpsweep.training.loop import train

FIGURES = [  # q, sigma, T, one batch, two batches: spec/fo_dp_sgd.md
    (Fraction(1, 25), 1.1, 6250, 48.16, 35.57),
    (Fraction(1, 167), 0.910435, 1670, 5.48, 2.62),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "shared", "independent"), FIGURES)
def test_one_batch_for_both_costs_more_than_two(q, sigma, steps, shared, independent):
    """The figures of the spec, by our accountant and by opacus'."""
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 256))
    for batch, expected in (("shared", shared), ("independent", independent)):
        plan = DPSAM(1.0, 0.03, batch).calibrate(schedule(5010, q, steps), Target(noise_multiplier=sigma), RDP)
        assert plan.epsilon(RDP) == pytest.approx(expected, abs=0.006)
        noise, releases = (sigma / math.sqrt(2), steps) if batch == "shared" else (sigma, 2 * steps)
        curve = compute_rdp(q=float(q), noise_multiplier=noise, steps=releases, orders=orders)
        assert plan.epsilon(RDP) == pytest.approx(get_privacy_spent(orders=orders, rdp=curve, delta=1e-5)[0], rel=1e-6)


def test_two_gaussians_of_one_batch_are_one_at_sigma_over_root_two():
    """Without sampling, by the exact law of the Gaussian mechanism: two releases of sensitivity 1 at sigma give the privacy
    profile of one at sigma/sqrt(2), and so does dp-accounting's composition."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    pair = pld.from_gaussian_mechanism(1.3).self_compose(2).get_epsilon_for_delta(1e-5)
    assert pair == pytest.approx(pld.from_gaussian_mechanism(1.3 / math.sqrt(2)).get_epsilon_for_delta(1e-5), rel=1e-3)
    sampled = [pld.from_gaussian_mechanism(s, sampling_prob=0.04).self_compose(n) for s, n in ((1.3, 2), (1.3 / 2**0.5, 1))]
    apart, together = (found.get_epsilon_for_delta(1e-5) for found in sampled)
    assert together > 1.1 * apart  # to compose the two as sampled apart would be too small


@pytest.mark.parametrize("batch", ["independent", "shared"])
def test_the_ledger_charges_what_was_planned(batch):
    mechanism = DPSAM(1.0, 0.1, batch)
    network, plan, data = opened(mechanism, sigma=1.3)
    events = train(mechanism, plan, network, data, sgd).ledger.events()
    expected = (SampledGaussian(Fraction(1, 4), 1.3), 12) if batch == "independent" else (
        SampledGaussian(Fraction(1, 4), plan.noise_multiplier), 6
    )  # fmt: skip
    assert events == [expected]
    assert plan.noise_multiplier == pytest.approx(1.3 if batch == "independent" else 1.3 / math.sqrt(2), rel=1e-12)


def test_a_plan_for_two_batches_does_not_allow_one_and_the_other_way_round():
    for planned, taken in (("independent", "shared"), ("shared", "independent")):
        network, plan, data = opened(DPSAM(1.0, 0.1, planned))
        with pytest.raises(LedgerError, match="allows"):
            train(DPSAM(1.0, 0.1, taken), plan, network, data, sgd)


@pytest.mark.parametrize("batch", ["independent", "shared"])
def test_the_step_is_taken_with_the_second_release_at_the_first_ones_point(batch):
    climb, step = (torch.randn(size(), dtype=torch.float64) for _ in range(2))
    mechanism = DPSAM(2.0, 0.5, batch)
    plan = mechanism.calibrate(schedule(), Target(noise_multiplier=1.0), RDP)
    state, door = scripted(mechanism, plan, [climb, step], normalizer=4)
    theta = state.theta.clone()
    mechanism.step(state, door)
    torch.testing.assert_close(door.points[0], theta, rtol=0, atol=0)
    torch.testing.assert_close(door.points[1], theta + 0.5 * climb / climb.norm(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state.theta, theta - step / 4, rtol=1e-12, atol=1e-12)
    assert door.calls.count("draw") == (2 if batch == "independent" else 1)
    assert [c[2] for c in door.calls if c[0] == "release"] == [2.0, 2.0]  # sigma C, whichever batch


@settings(max_examples=15, deadline=None)
@given(epsilon=st.floats(0.2, 20), batch=st.sampled_from(["independent", "shared"]), q=st.integers(2, 300))
def test_a_budget_is_met_and_not_wasted(epsilon, batch, q):
    plan = DPSAM(1.0, 0.03, batch).calibrate(schedule(5000, Fraction(1, q), 50), Target(epsilon=epsilon), RDP)
    assert epsilon - max(1e-4, 1e-3 * epsilon) <= plan.epsilon(RDP) <= epsilon
    sigma = plan.public["release_noise_multiplier"]
    charged = sigma if batch == "independent" else (sigma**-2 + sigma**-2) ** -0.5
    assert charged >= plan.noise_multiplier * (1 - 1e-15)


def test_pld_proves_less():
    asked = schedule(5000, Fraction(1, 25), 100), Target(noise_multiplier=1.1)
    plan = DPSAM(1.0, 0.03, "shared").calibrate(*asked, RDP)
    assert plan.epsilon(Account("pld", 1e-5)) < plan.epsilon(RDP)


def test_another_kind_of_batch_is_refused():
    with pytest.raises(ValueError, match=r"mechanism\.batch=both: independent or shared"):
        DPSAM(1.0, 0.03, "both")
