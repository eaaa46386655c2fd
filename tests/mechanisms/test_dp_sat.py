"""DP-SAT: where the gradients are taken, and that nothing is paid for it."""

import pytest
import torch
from doors import RDP, opened, schedule, scripted, sgd, size

from dpsweep.build import build
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Target
from dpsweep.mechanisms.dp_sat import DPSAT
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.training.loop import train


def test_gradients_are_taken_along_the_last_release_and_theta_steps_from_itself():
    """Against the definition, with given releases: the point of step t is theta_t + rho g_{t-1}/|g_{t-1}|."""
    releases = [torch.randn(size(), dtype=torch.float64) for _ in range(4)]
    mechanism = DPSAT(1.0, 0.5)
    state, door = scripted(mechanism, mechanism.calibrate(schedule(), Target(noise_multiplier=1.0), RDP), releases, normalizer=4)
    theta, last = state.theta.clone(), torch.zeros(size(), dtype=torch.float64)
    for release in releases:
        mechanism.step(state, door)
        length = last.norm()
        torch.testing.assert_close(door.points[-1], theta + (0.5 * last / length if length > 0 else 0), rtol=1e-12, atol=1e-12)
        last, theta = release / 4, theta - release / 4
        torch.testing.assert_close(state.theta, theta, rtol=1e-12, atol=1e-12)


def test_the_account_is_that_of_dp_sgd():
    asked = schedule(5000, steps=100), Target(epsilon=2.0), RDP
    ours, theirs = DPSAT(1.0, 0.03).calibrate(*asked), Gaussian(1.0).calibrate(*asked)
    assert ours == theirs


@pytest.mark.parametrize("model", ["rvfl", "logistic_projected", "dense"])
def test_every_engine_sees_the_perturbed_point(model):
    """A frozen head in closed form over cached features too: the same trajectory as by torch.func, and not that of DP-SGD."""

    def end(mechanism, engine):
        network, plan, data = opened(mechanism, model=model, engine=engine, steps=12)
        return train(mechanism, plan, network, data, sgd).state.theta

    torch.testing.assert_close(end(DPSAT(1.0, 0.5), "default"), end(DPSAT(1.0, 0.5), "vmap"), rtol=1e-9, atol=1e-9)
    assert float((end(DPSAT(1.0, 0.5), "default") - end(Gaussian(1.0), "default")).abs().max()) > 1e-6


@pytest.mark.parametrize("rho", [0, -1.0, float("inf"), None, "far"])
def test_a_bad_radius_is_refused_by_name(rho):
    node = {"name": "dp_sat", "_target_": "dpsweep.mechanisms.dp_sat.DPSAT", "max_grad_norm": 1.0, "rho": rho}
    with pytest.raises(UsageError, match=r"mechanism\.rho=.*above 0"):
        build("mechanism", node)
