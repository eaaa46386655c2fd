"""DP-Adam-AC: the norm that follows a quantile, and the one event that sum and count are."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from doors import RDP, opened, schedule, scripted, sgd, size
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.build import build
from dpsweep.config import Composer
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Schedule, Target
from dpsweep.mechanisms.dp_adam_ac import DPAdamAC
from dpsweep.privacy.accounting import SampledGaussian, epsilon
from dpsweep.training.loop import train


def made(clip=1.0, quantile=0.5, rate=0.2, count_noise=None, clip_range=(1e-3, 1e3)):
    return DPAdamAC(clip, quantile, rate, count_noise, clip_range)


def test_sum_and_count_of_one_batch_are_one_event():
    """The spec's figures (sigma_g = 0.910435): 2.567 for the one event; 2.064, too little, where the two are sampled apart."""
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    q, steps, z = Fraction(1, 167), 1670, (0.910435**-2 + 2.0**-2) ** -0.5
    plan = made(count_noise=1.0).calibrate(schedule(5010, q, steps), Target(noise_multiplier=z), RDP)
    assert plan.public["gradient_noise_multiplier"] == pytest.approx(0.910435, rel=1e-12)
    assert plan.epsilon(RDP) == pytest.approx(2.567, abs=1e-3)
    apart = [(SampledGaussian(q, 0.910435), steps), (SampledGaussian(q, 2.0), steps)]
    assert epsilon(apart, 1e-5).epsilon == pytest.approx(2.064, abs=1e-3)
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 256))
    curve = compute_rdp(q=1 / 167, noise_multiplier=z, steps=steps, orders=orders)
    assert plan.epsilon(RDP) == pytest.approx(get_privacy_spent(orders=orders, rdp=curve, delta=1e-5)[0], rel=1e-6)


@settings(max_examples=10, deadline=None)
@given(record=st.integers(0, 39), clip=st.sampled_from([0.01, 0.7, 50.0]), seed=st.integers(0, 5))
def test_one_record_moves_sum_and_count_together_by_at_most_one_over_z(record, clip, seed):
    """Both in units of their noise, on neighbouring datasets with everyone in the batch."""
    mechanism = made(clip, count_noise=3.0)
    vectors = []
    for records in (None, [i for i in range(40) if i != record]):
        network, plan, data = opened(mechanism, q=Fraction(1), records=records, seed=seed, model="logistic_raw")
        total = data.clipped_sum(data.draw(), clip)
        passed = data.norm_sum(total, lambda norms: (norms <= clip).double() - 0.5, 0.5)
        gradient, count = plan.public["gradient_noise_multiplier"], plan.public["count_noise"]
        vectors.append(torch.cat([data._sums[total.number] / (gradient * clip), data._sums[passed.number] / count]))
    assert float((vectors[0] - vectors[1]).norm()) <= (1 + 1e-9) / plan.noise_multiplier


def test_the_ledger_charges_one_event_a_step():
    network, plan, data = opened(made(count_noise=2.0), sigma=1.5)
    ((event, count),) = train(made(count_noise=2.0), plan, network, data, sgd).ledger.events()
    assert count == 6 and event.noise_multiplier == pytest.approx(1.5, rel=1e-12)
    with pytest.raises(Exception, match="allows"):  # without the count's part the sum would be too precise
        _, plan, data = opened(made(count_noise=2.0), sigma=1.5)
        data.release(data.clipped_sum(data.draw(), 1.0), 1.0, 1.4)


def test_a_step_uses_the_norm_of_releases_before_it():
    """The clipping norm, the count's threshold and the noise of step t are those of C_t; its count sets C_{t+1}."""
    mechanism = made(clip=2.0, quantile=0.6, rate=0.3, count_noise=2.0)
    plan = mechanism.calibrate(schedule(), Target(noise_multiplier=1.0), RDP)
    counts = [3.0, -4.0, 1.0]
    noisy = [t for c in counts for t in (torch.zeros(size(), dtype=torch.float64), torch.tensor([c]))]
    state, door = scripted(mechanism, plan, noisy, normalizer=10)
    clip = 2.0
    for t, count in enumerate(counts):
        mechanism.step(state, door)
        asked = door.calls[5 * t :]
        batch = asked[1][1]
        assert asked[1] == ("clipped_sum", batch, clip)
        norms = torch.tensor([0.0, clip, clip * 1.0001, float("inf")], dtype=torch.float64)
        assert asked[2][2](norms).tolist() == [0.5, 0.5, -0.5, -0.5]
        assert [call[1] for call in asked[2:]] == [batch, batch, batch]  # one batch for all
        assert asked[3][2] == pytest.approx(plan.public["gradient_noise_multiplier"] * clip) and asked[4][2] == pytest.approx(2.0)
        clip *= math.exp(-0.3 * (count / 10 + 0.5 - 0.6))
        assert state.memory["clip"] == pytest.approx(clip, rel=1e-12)


class Norms:
    """A door to gradients of which only the norms are known: one draws a batch of them, counts, and adds noise."""

    def __init__(self, norms, q, rng):
        self.norms, self.q, self.rng, self.normalizer = norms, q, rng, int(q * len(norms))

    def draw(self):
        return self.norms[self.rng.random(len(self.norms)) < self.q]

    def clipped_sum(self, batch, max_grad_norm):
        return batch

    def norm_sum(self, total, of, bound):
        return of(torch.from_numpy(total)).sum().reshape(1)

    def release(self, total, sensitivity, noise_multiplier):
        if not isinstance(total, torch.Tensor):
            return torch.zeros(size(), dtype=torch.float64)
        return total + noise_multiplier * sensitivity * self.rng.standard_normal()


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.9])
def test_the_norm_finds_the_quantile_from_far_off(quantile):
    rng = np.random.default_rng(7)
    norms = rng.lognormal(1.0, 0.8, 4000)
    for start in (0.05, 200.0):
        mechanism = made(clip=start, quantile=quantile, rate=0.3)
        plan = mechanism.calibrate(Schedule(4000, Fraction(1, 10), 400, 400, 400), Target(noise_multiplier=1.0), RDP)
        state, _ = scripted(mechanism, plan, [])
        door, reached = Norms(norms, 0.1, rng), []
        for _ in range(400):
            mechanism.step(state, door)
            reached.append(state.memory["clip"])
        assert np.mean(norms <= np.mean(reached[-150:])) == pytest.approx(quantile, abs=0.03)


def test_the_norm_stays_in_its_range():
    mechanism = made(clip=0.5, clip_range=(0.4, 0.6))
    plan = mechanism.calibrate(schedule(), Target(noise_multiplier=1.0), RDP)
    zero = torch.zeros(size(), dtype=torch.float64)
    state, door = scripted(mechanism, plan, [zero, torch.tensor([1e6]), zero, torch.tensor([-1e300])])
    reached = [mechanism.step(state, door) or state.memory["clip"] for _ in range(2)]
    assert reached == [0.4, 0.6]


@settings(max_examples=15, deadline=None)
@given(epsilon=st.floats(0.1, 30), q=st.integers(2, 100))
def test_any_budget_is_met_with_the_default_noise_of_the_count(epsilon, q):
    plan = made().calibrate(schedule(5000, Fraction(1, q), 50), Target(epsilon=epsilon), RDP)
    assert plan.epsilon(RDP) <= epsilon
    gradient, count, z = plan.public["gradient_noise_multiplier"], plan.public["count_noise"], plan.noise_multiplier
    assert z <= (gradient**-2 + (2 * count) ** -2) ** -0.5 * (1 + 1e-15) and gradient <= z * 4 / 3
    assert count == max((5000 // q) / 20, z)


def test_a_count_that_costs_too_much_is_refused():
    with pytest.raises(UsageError, match=r"mechanism\.count_noise=0\.5.*more than 0\.5, or null"):
        made(count_noise=0.5).calibrate(schedule(), Target(noise_multiplier=1.0), RDP)
    tight = made(count_noise=0.5 + 1e-9).calibrate(schedule(), Target(noise_multiplier=1.0), RDP)
    assert tight.public["gradient_noise_multiplier"] > 1e4


@pytest.mark.parametrize(
    ("key", "value"), [("quantile", 1.0), ("rate", 0), ("count_noise", -1), ("clip_range", [2.0, 3.0]), ("clip_range", 5)]
)
def test_bad_keys_are_refused_by_name(key, value):
    with pytest.raises(UsageError, match=rf"mechanism\.{key}="):
        build("mechanism", {**Composer().node("mechanism", "dp_adam_ac"), key: value})
