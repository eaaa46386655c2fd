"""Filters of releases: their weights by hand, their formulas against an independent implementation, what they read."""

import copy
import math

import pytest
import torch
from fo_spec import DEFAULTS, SpecMemory
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpsweep.mechanisms.memory import ReleaseFilter


def filter_of(**options):
    return ReleaseFilter(**DEFAULTS | options)


def releases(n, size=5, seed=0, dtype=torch.float64, scale=1.0):
    return list(scale * torch.randn(n, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype))


def outputs(chosen, given_releases):
    state = chosen.start(given_releases[0])
    return [chosen.apply(state, y.clone()) for y in given_releases], state


def weights_after(steps, **options):
    chosen = filter_of(**options)
    return chosen.weights(
        outputs(chosen, releases(steps + 1)[:steps] or releases(1))[1] if steps else chosen.start(releases(1)[0])
    )


@pytest.mark.parametrize(
    ("options", "unscaled"),
    [({"design": "uniform"}, [1, 1, 1]),
     ({"design": "exponential", "lam": 0.3}, [math.exp(-0.3), math.exp(-0.6), math.exp(-0.9)]),
     ({"design": "exponential", "lam": 0.0}, [1, 1, 1]),
     ({"tau": 0.0, "lam": 0.0, "alpha": 0.5}, [2**-0.5, 3**-0.5, 4**-0.5]),
     ({"tau": 0.0, "lam": 0.05, "alpha": 0.8}, [math.exp(-0.05) / 2**0.2, math.exp(-0.1) / 3**0.2, math.exp(-0.15) / 4**0.2]),
     ({"tau": 0.0, "lam": 0.0, "alpha": 1.0}, [1, 1, 1])],
)  # fmt: skip
def test_the_weights_of_the_designs_by_hand(options, unscaled):
    assert weights_after(9, depth=4, **options) == pytest.approx([w / sum(unscaled) for w in unscaled], rel=1e-14)


def test_tempered_weights_by_hand():
    """Two releases of one number each: 2 and then -1."""
    chosen = filter_of(beta=0.5, depth=3, alpha=0.5, lam=0.1, tau=0.7, gamma=0.25, kappa=0.1, zeta=2.0, eps_num=0.0)
    (first, second), state = outputs(chosen, [torch.tensor([2.0]).double(), torch.tensor([-1.0]).double()])
    assert (float(first), float(second)) == (1.0, 0.0)  # 0.5 * 2, and 0.5 * -1 + 0.5 * 1
    trend = 0.75 * 0.25  # of 1 and then 0
    trust = trend / (trend + 2)
    newer = 2**-0.5 * math.exp(-(0.1 + trust * 0.7 * trend / trend))
    older = 3**-0.5 * math.exp(-(0.1 + trust * 0.7 * (1 - trend) / trend) * 2)
    assert chosen.weights(state) == pytest.approx([newer / (newer + older), older / (newer + older)], rel=1e-14)


def test_a_small_trend_is_measured_by_kappa():
    small = filter_of(kappa=10.0, zeta=0.5, eps_num=1.0, depth=2)
    _, state = outputs(small, releases(1))
    assert small.weights(state) == [1.0]
    reference = SpecMemory(kappa=10.0, zeta=0.5, eps_num=1.0, depth=6)
    chosen = filter_of(kappa=10.0, zeta=0.5, eps_num=1.0, depth=6)
    state = chosen.start(releases(1)[0])
    for y in releases(5):
        reference.remember(chosen.apply(state, y.clone()))
    assert reference.m.norm() < 10
    assert chosen.weights(state) == pytest.approx([float(w) for w in reference.weights()], rel=1e-12)


@pytest.mark.parametrize("design", ["fractional", "exponential", "uniform"])
def test_short_histories(design):
    assert weights_after(0, design=design) == []
    for steps in range(1, 12):
        assert len(weights_after(steps, design=design, depth=8)) == min(7, steps)
    (first, second), _ = outputs(filter_of(design=design), releases(2))
    torch.testing.assert_close(first, 0.9 * releases(2)[0], rtol=1e-15, atol=0)
    torch.testing.assert_close(second, 0.9 * releases(2)[1] + 0.1 * first, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("options", [{"depth": 1}, {"design": "none"}])
def test_without_lags_a_release_shrinks(options):
    found, _ = outputs(filter_of(**options), releases(4))
    assert all(torch.equal(s, 0.9 * y) for s, y in zip(found, releases(4), strict=True))


@pytest.mark.parametrize("history", ["outputs", "raw"])
@pytest.mark.parametrize(("depth", "tau"), [(2, 0.5), (3, 30.0), (8, 0.0), (8, 0.5), (32, 5.0)])
def test_the_specifications_formulas(history, depth, tau):
    """To 1e-12 over 120 steps, with releases that keep a direction, so that a trend is trusted, and outliers that it tempers."""
    chosen, reference = filter_of(history=history, depth=depth, tau=tau), SpecMemory(depth=depth, tau=tau)
    given_releases = [y + 2 + 20 * (i % 7 == 3) for i, y in enumerate(releases(120, size=30))]
    for y, found in zip(given_releases, outputs(chosen, given_releases)[0], strict=True):
        expected = 0.9 * y + 0.1 * reference.u()
        reference.remember(expected if history == "outputs" else y)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


sizes = st.floats(0, 4)
drawn = st.fixed_dictionaries({
    "beta": st.floats(0.05, 0.99), "depth": st.integers(2, 12), "alpha": st.floats(0.01, 1), "lam": sizes, "tau": sizes,
    "gamma": st.floats(0.01, 1), "kappa": st.floats(1e-3, 4), "zeta": st.floats(1e-3, 4), "eps_num": st.floats(0, 1),
    "design": st.sampled_from(["fractional", "exponential", "uniform"]), "history": st.sampled_from(["outputs", "raw"]),
})  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(drawn, st.integers(0, 20), st.integers(0, 5), st.floats(-3, 3).map(lambda x: 10**x))
def test_weights_are_nonnegative_with_sum_one(options, steps, seed, scale):
    chosen = filter_of(**options)
    state = chosen.start(releases(1)[0])
    for y in releases(steps, seed=seed, scale=scale):
        chosen.apply(state, y)
        found = chosen.weights(state)
        assert min(found) >= 0 and sum(found) == pytest.approx(1, abs=1e-12)
        assert len(found) == min(options["depth"] - 1, state["t"])


@settings(deadline=None, max_examples=30)
@given(drawn, st.integers(0, 99))
def test_any_parameters_follow_the_formulas(options, seed):
    options |= {"design": "fractional", "history": "outputs"}
    chosen, reference = filter_of(**options), SpecMemory(**options)
    given_releases = releases(25, seed=seed)
    for y, found in zip(given_releases, outputs(chosen, given_releases)[0], strict=True):
        reference.remember(options["beta"] * y + (1 - options["beta"]) * reference.u())
        torch.testing.assert_close(found, reference.past[-1], rtol=1e-7, atol=1e-7)  # near the trend a distance cancels


@settings(deadline=None, max_examples=30)
@given(drawn, st.integers(0, 99), st.integers(1, 6), st.floats(1.01, 10))
def test_the_farther_from_the_trend_the_less_weight(options, seed, lag, farther):
    """One vector's distance grows, all else equal: it loses weight, and the others keep their proportions."""
    options |= {"design": "fractional", "depth": 8, "tau": max(options["tau"], 0.01)}
    chosen = filter_of(**options)
    _, state = outputs(chosen, releases(20, seed=seed))
    before = chosen.weights(state)
    changed = copy.deepcopy(state)
    place = (state["t"] - lag) % chosen.slots
    products, squares = state["products"], state["squares"]
    square = squares[place] - 2 * products[place] + products[-1]
    assume(square > 1e-9 * squares[place])  # with gamma = 1 the trend is the last release: it is no distance away, and stays so
    changed["squares"][place] = squares[place] + (farther**2 - 1) * square
    after = chosen.weights(changed)
    assert after[lag - 1] < before[lag - 1] or before[lag - 1] < 1e-300
    others = [i for i in range(7) if i != lag - 1 and before[i] > 1e-200 and after[i] > 1e-200]
    assert all(after[i] >= before[i] for i in others)
    ratios = [after[i] / before[i] for i in others]
    assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-9) if ratios else True


def test_all_weight_can_leave_a_vector_without_losing_the_sum():
    assert sum(weights_after(9, lam=800.0)) == pytest.approx(1)
    assert weights_after(9, lam=800.0)[0] == pytest.approx(1)
    assert sum(weights_after(9, tau=1e9)) == pytest.approx(1)


def test_gamma_one_makes_the_newest_the_trend():
    chosen = filter_of(gamma=1.0)
    found, state = outputs(chosen, releases(6))
    assert torch.equal(state["rows"][-1], found[-1])
    assert state["products"][(6 - 1) % 7] == state["squares"][(6 - 1) % 7] == state["products"][-1]  # no distance left


@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_single_precision_is_near_double(tau):
    chosen = filter_of(tau=tau)
    single, double = (outputs(chosen, releases(100, size=2000, dtype=dtype))[0] for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(torch.stack(single).double(), torch.stack(double), rtol=1e-5, atol=1e-5)


def test_momentum_is_the_memory_of_one_output():
    """torch's SGD from a buffer of zeros (it starts without one, and doesn't dampen its first step)."""
    theta = torch.zeros(5, dtype=torch.float64)
    optimizer = torch.optim.SGD([theta], lr=1.0, momentum=0.1, dampening=0.1)
    optimizer.state[theta]["momentum_buffer"] = torch.zeros_like(theta)
    for y, found in zip(releases(50), outputs(filter_of(depth=2, tau=0.0), releases(50))[0], strict=True):
        before, theta.grad = theta.clone(), y
        optimizer.step()
        torch.testing.assert_close(before - theta, found, rtol=1e-12, atol=1e-12)


def test_what_is_remembered_is_the_ring_alone():
    chosen = filter_of(depth=8)
    _, state = outputs(chosen, releases(30))
    assert state["rows"].shape == (8, 5)  # seven vectors and the trend
    _, state = outputs(filter_of(depth=8, tau=0.0), releases(30))
    assert set(state) == {"t", "rows"} and state["rows"].shape == (7, 5)
    _, state = outputs(filter_of(beta=1.0), releases(30))
    assert set(state) == {"t"}


BAD = [("design", "linear"), ("history", "inputs"), ("depth", 0), ("depth", 2.0), ("depth", True), ("depth", None), ("beta", 0.0),
       ("beta", 1.1), ("beta", None), ("beta", float("nan")), ("alpha", 0.0), ("alpha", 1.5), ("gamma", 0.0), ("gamma", True),
       ("lam", -0.1), ("lam", float("inf")), ("tau", -1.0), ("tau", None), ("kappa", -1.0), ("zeta", "x"), ("eps_num", -1e-9),
       ("zeta", 0.0)]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_bad_value_is_refused_by_name(key, value):
    with pytest.raises(ValueError, match=f"{key}={value}.*(needed|above 0)"):
        filter_of(**{key: value})


def test_divisions_by_zero_are_refused_only_where_they_can_be():
    with pytest.raises(ValueError, match="tau=0.5 with .*kappa=0.0, eps_num=0.0"):
        filter_of(kappa=0.0, eps_num=0.0)
    filter_of(kappa=0.0, eps_num=0.0, zeta=0.0, tau=0.0)
