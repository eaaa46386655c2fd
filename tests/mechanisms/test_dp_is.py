"""DP-IS: who enters with which probability, that the estimate is unbiased, and that the cap is what is paid for."""

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
from dpsweep.mechanisms.dp_is import DPIS, keeping
from dpsweep.privacy.accounting import SampledGaussian
from dpsweep.privacy.ledger import LedgerError
from dpsweep.training.loop import train
from dpsweep.training.per_example import VmapEngine


def made(clip=1.0, floor=0.5, every=2, noise=4.0):
    return DPIS(clip, floor, every, noise)


def gradients(network, data):
    """Per-example gradients of all records, (n, parameters), by one-record sums without clipping."""
    engine = VmapEngine(network, None)
    rows = ((x[None], y[None]) for x, y in zip(data._records, data._y, strict=True))
    return torch.stack([engine.gradient_sum((x,), y) for x, y in rows])


@given(norm=st.floats(1e-9, 1e9), clip=st.floats(1e-3, 1e3), ratio=st.floats(1, 100))
@settings(deadline=None)
def test_a_record_is_kept_with_probability_proportional_to_its_clipped_norm(norm, clip, ratio):
    """By an even grid of uniform numbers, so without chance; and what is kept is a unit vector."""
    uniform = torch.arange(10_000, dtype=torch.float64) / 10_000
    weights = keeping(clip, ratio)(torch.full((10_000,), norm, dtype=torch.float64), uniform)
    kept = weights > 0
    assert float(kept.double().mean()) == pytest.approx(min(norm, clip) / (clip * ratio), abs=1.01e-4)
    torch.testing.assert_close(weights[kept] * norm, torch.ones(int(kept.sum()), dtype=torch.float64))


def test_records_without_a_direction_are_never_kept():
    norms = torch.tensor([0.0, float("nan"), float("inf"), 1.0], dtype=torch.float64)
    assert keeping(1.0, 1.0)(norms, torch.zeros(4, dtype=torch.float64)).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_the_estimate_is_unbiased_and_inclusion_follows_its_law():
    """Through the door, noise left away: the mean of many steps at one theta against (1/N0) sum of clipped gradients, and the
    mean number of kept records against b sum |gbar_i|/K~. The norm sum stays above its floor, so that thinning is at work."""
    n, steps, clip = 24, 4000, 0.9
    mechanism = made(clip, floor=0.6, every=10**9)
    network, plan, data = opened(mechanism, n=n, q=Fraction(1, 3), steps=steps, sigma=1e-9, model="logistic_raw")
    rows = gradients(network, data)
    norms = torch.linalg.vector_norm(rows, dim=1)
    clipped = rows * (clip / norms).clamp(max=1)[:, None]
    expected, lengths = clipped.sum(0) / n, clipped.norm(dim=1)
    assert (norms < clip).any() and (norms > clip).any()
    state = mechanism.start(plan, network, None)
    updates, kept = [], []
    state.update = updates.append
    weighted = data.weighted_sum

    def counting(batch, weigh, sensitivity):
        def noted(norms, uniform):
            weights = weigh(norms, uniform)
            kept.append(int((weights > 0).sum()))
            return weights

        return weighted(batch, noted, sensitivity)

    data.weighted_sum = counting
    mechanism.step(state, data)
    data.close_step()
    ratio = state.memory["ratio"] = 1.3  # whatever the norm sum was said to be
    updates.clear()
    kept.clear()
    for _ in range(steps - 1):
        mechanism.step(state, data)
        data.close_step()
    found = torch.stack(updates)
    error = found.std(0) / math.sqrt(len(found))
    assert float(((found.mean(0) - expected) / error.clamp(min=1e-12)).square().mean()) < 2.5  # a chi-square over its degrees
    assert float((found.mean(0) - expected).norm()) < 0.1 * float(expected.norm())
    b, total = data.normalizer, ratio * 0.6 * n * clip
    law = b * lengths / total  # each record's inclusion
    deviation = math.sqrt(float((law * (1 - law)).sum()) / len(kept))
    assert abs(np.mean(kept) - float(law.sum())) < 4 * deviation


def test_the_probe_estimates_the_norm_sum_and_never_falls_below_the_floor():
    n = 400
    for clip, floor, above in ((0.5, 0.6, True), (3.0, 1.0, False)):
        mechanism = made(clip, floor, every=1, noise=1.0)
        network, plan, data = opened(mechanism, n=n, q=Fraction(1, 2), steps=1, sigma=1e-6, model="logistic_raw")
        rows = gradients(network, data)
        total = float(torch.linalg.vector_norm(rows, dim=1).clamp(max=clip).sum())
        state = mechanism.start(plan, network, None)
        state.update = lambda gradient: None
        mechanism.step(state, data)
        expected = total / (floor * n * clip)
        assert (expected > 1) is above
        assert state.memory["ratio"] == (pytest.approx(expected, rel=0.1) if above else 1.0)


def test_noise_and_scale_of_an_update():
    """No records: the update is noise of deviation sigma K~/(N0 b), here at the floor."""
    mechanism = made(0.5, floor=0.8)
    network, plan, data = opened(mechanism, records=0, steps=1, sigma=3.0, kind="gray")
    state = mechanism.start(plan, network, None)
    updates = []
    state.update = updates.append
    mechanism.step(state, data)
    assert float(updates[0].std()) == pytest.approx(3.0 * (0.8 * 40 * 0.5) / (40 * 10), rel=0.03)


def test_the_ledger_sees_the_cap_whatever_the_norm_sum_was():
    mechanism = made(every=4)
    network, plan, data = opened(mechanism, sigma=1.3)
    trained = train(mechanism, plan, network, data, sgd)
    cap = Fraction(1, 2)
    assert plan.sampler.sample_rate == cap and plan.public["sample_rate_cap"] == 0.5
    assert dict(trained.ledger.events()) == {SampledGaussian(cap, 1.3): 6, SampledGaussian(cap, 5.2): 2} == dict(plan.events())


def test_a_probe_out_of_turn_and_a_clipped_sum_at_its_price_are_refused():
    mechanism = made(every=4)
    network, plan, data = opened(mechanism)
    state = mechanism.start(plan, network, sgd)
    mechanism.step(state, data)
    data.close_step()
    data.release(data.clipped_sum(data.draw(), 1.0), 1.0, 1.0)
    with pytest.raises(LedgerError, match="Step 2 would release"):
        mechanism._probe(plan, data)


@settings(max_examples=8, deadline=None)
@given(epsilon=st.floats(0.3, 15), every=st.integers(1, 60), noise=st.floats(0.5, 8), floor=st.sampled_from([0.04, 0.3, 1.0]))
def test_steps_and_probes_meet_the_budget_together(epsilon, every, noise, floor):
    plan = made(1.0, floor, every, noise).calibrate(schedule(5000, Fraction(1, 25), 100), Target(epsilon=epsilon), RDP)
    assert epsilon - max(1e-4, 1e-3 * epsilon) <= plan.epsilon(RDP) <= epsilon
    counted = {event.noise_multiplier: count for event, count in plan.events()}
    probes = -(-100 // every)
    assert counted == {plan.noise_multiplier: 100, plan.noise_multiplier * noise: probes} or noise == 1


def test_the_account_against_dp_accounting():
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    plan = made(every=25).calibrate(schedule(5000, Fraction(1, 25), 500), Target(noise_multiplier=2.2), RDP)
    theirs = RdpAccountant(list(range(2, 256)))
    for noise, count in ((2.2, 500), (8.8, 20)):
        theirs.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.08, GaussianDpEvent(noise)), count))
    assert plan.epsilon(RDP) == pytest.approx(theirs.get_epsilon(1e-5), rel=0.01)


@settings(max_examples=8, deadline=None)
@given(record=st.integers(0, 19), ratio=st.floats(1, 3), seed=st.integers(0, 9))
def test_one_record_moves_the_sum_by_at_most_one(record, ratio, seed):
    """Invariant 3 for thinned sums: given the uniform numbers, neighbouring batches differ by a vector of norm 0 or 1."""
    network, plan, data = opened(made(0.3), n=20, q=Fraction(1, 2), steps=1)
    uniform = torch.rand(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rest = [i for i in range(20) if i != record]
    sums, weigh = [], keeping(0.3, ratio)
    for keep in (list(range(20)), rest):
        engine = VmapEngine(network, None)
        numbers = uniform[keep]
        sums.append(engine.weighted_sum((data._records[keep],), data._y[keep], lambda norms, u=numbers: weigh(norms, u)))
    moved = float((sums[0] - sums[1]).norm())
    assert moved == pytest.approx(0, abs=1e-9) or moved == pytest.approx(1, rel=1e-9)


def test_the_update_by_hand():
    """Given releases: the probe sets r = max(1, S/(m0 C)), and the step is taken with r f C/m0 times the noisy sum."""
    mechanism = made(2.0, floor=0.5, every=2)
    plan = mechanism.calibrate(schedule(), Target(noise_multiplier=1.0), RDP)
    unit = torch.ones(size(), dtype=torch.float64)
    state, door = scripted(mechanism, plan, [torch.tensor([30.0]), unit, unit, torch.tensor([-5.0]), unit], normalizer=10)
    before = state.theta.clone()
    for ratio in (1.5, 1.5, 1.0):
        mechanism.step(state, door)
        before -= ratio * 0.5 * 2.0 / 10
        assert state.memory["ratio"] == ratio
        torch.testing.assert_close(state.theta, before, rtol=1e-12, atol=1e-12)
    assert [c[2] for c in door.calls if c[0] == "release"] == [8.0, 1.0, 1.0, 8.0, 1.0]


def test_a_cap_above_one_is_refused_with_the_least_floor():
    asked = Schedule(100, Fraction(1, 2), 10, 50, 50), Target(epsilon=1.0), RDP
    assert made(floor=0.5).calibrate(*asked).sampler.sample_rate == 1
    with pytest.raises(UsageError, match=r"mechanism\.norm_floor=0\.4.*at least 0\.5"):
        made(floor=0.4).calibrate(*asked)


@pytest.mark.parametrize(
    ("key", "value"), [("norm_floor", 0), ("norm_floor", 1.5), ("probe_every", 0), ("probe_noise", float("nan"))]
)
def test_bad_keys_are_refused_by_name(key, value):
    with pytest.raises(UsageError, match=rf"mechanism\.{key}="):
        build("mechanism", {**Composer().node("mechanism", "dp_is"), key: value})
