"""DP-AdamBC: what the noise adds to the second moment is taken off, exactly and no more."""

import math
from fractions import Fraction

import pytest
import torch
from doors import RDP, opened, schedule, scripted, size

from dpsweep.build import build, plan_of
from dpsweep.config import Composer
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Plan, Target, dp_sgd_events
from dpsweep.mechanisms.dp_adam_bc import DPAdamBC
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.privacy.sampling import Poisson
from dpsweep.training.loop import train


def test_without_a_gradient_the_corrected_moment_is_zero_on_average():
    """No records at all: vhat is noise alone, and Phi is its expectation at every step count."""
    mechanism = DPAdamBC(0.5, 1e-3, [0.9, 0.99], 1e-8)
    for steps in (1, 30):
        network, plan, data = opened(mechanism, records=0, steps=steps, sigma=2.0, kind="gray")
        memory = train(mechanism, plan, network, data, None).state.memory
        vhat = memory["second"] / (1 - 0.99**steps)
        phi = (2.0 * 0.5 / 10) ** 2
        assert plan.public["noise_variance"] == pytest.approx(phi, rel=1e-12)
        error = float(vhat.std()) / math.sqrt(len(vhat))
        assert abs(float((vhat - phi).mean())) < 4 * error < 0.05 * phi


def test_without_noise_it_is_adam():
    """The same releases, sigma 0 and no floor to speak of: torch's Adam with eps 0."""
    mechanism = DPAdamBC(1.0, 0.02, [0.8, 0.95], 1e-300)
    q = Fraction(1, 4)
    plan = Plan(Poisson(q), dp_sgd_events(q, 0.0), 20, 1.0, 0.0, {"noise_variance": 0.0})
    releases = [torch.randn(size(), dtype=torch.float64) for _ in range(20)]
    state, door = scripted(mechanism, plan, releases, None, normalizer=5)
    theta = state.theta.clone()
    adam = torch.optim.Adam([theta], lr=0.02, betas=(0.8, 0.95), eps=0.0)
    for release in releases:
        mechanism.step(state, door)
        theta.grad = release / 5
        adam.step()
        torch.testing.assert_close(state.theta, theta, rtol=1e-11, atol=1e-12)


def test_the_denominator_by_hand():
    """Two steps by the formula: mhat / sqrt(max(vhat - Phi, floor)), above the floor in one coordinate and below it in others."""
    mechanism = DPAdamBC(1.0, 0.1, [0.9, 0.99], 1e-2)
    plan = mechanism.calibrate(schedule(), Target(noise_multiplier=2.0), RDP)
    phi = (2.0 / 10) ** 2
    releases = [torch.full((size(),), 0.3, dtype=torch.float64) for _ in range(2)]
    for release in releases:
        release[0] = 9.0
    state, door = scripted(mechanism, plan, releases, None, normalizer=10)
    before = state.theta.clone()
    for _ in range(2):
        mechanism.step(state, door)
    moved = (state.theta - before).tolist()  # constant releases: mhat = g and vhat = g^2 at every step
    assert 0.03**2 - phi < 1e-2 < 0.9**2 - phi
    assert moved[0] == pytest.approx(-2 * 0.1 * 0.9 / math.sqrt(0.9**2 - phi), rel=1e-9)
    assert moved[1] == pytest.approx(-2 * 0.1 * 0.03 / math.sqrt(1e-2), rel=1e-9)


def test_the_account_is_that_of_dp_sgd():
    asked = schedule(5000, steps=100), Target(epsilon=2.0), RDP
    ours, theirs = DPAdamBC(1.0, 1e-3, [0.9, 0.999], 1e-8).calibrate(*asked), Gaussian(1.0).calibrate(*asked)
    assert ours.events() == theirs.events() and ours.noise_multiplier == theirs.noise_multiplier


def test_an_optimizer_of_ones_own_is_refused():
    with pytest.raises(UsageError, match="doesn't use optimizer"):
        Composer().compose([("mechanism", "dp_adam_bc"), ("optimizer", "sgd")])
    config = Composer().compose([("mechanism", "dp_adam_bc"), ("mechanism.lr", 0.01)])
    assert plan_of(config.values)[0].lr == 0.01


@pytest.mark.parametrize(("key", "value"), [("lr", 0), ("betas", [0.9]), ("betas", [0.9, 1.0]), ("floor", -1e-8), ("lr", True)])
def test_bad_keys_are_refused_by_name(key, value):
    node = {**Composer().node("mechanism", "dp_adam_bc"), key: value}
    with pytest.raises(UsageError, match=rf"mechanism\.{key}="):
        build("mechanism", node)
