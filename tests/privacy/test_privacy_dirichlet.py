"""The Dirichlet mechanism's account: the paper's r*, Lemma 8 against exact divergences, Theorem 9 in 60 digits."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf, zeta
from scipy.integrate import quad
from scipy.special import gammaln

from dpsweep.errors import UsageError
from dpsweep.privacy.dirichlet import DirichletAccount, effective_scale, release_rdp

DELTA = 1e-5
CIFAR10 = (Fraction(1, 200), 20000)
SCHEDULES = {  # q, T, the floor as r goes to 0, r* and the best order by epsilon
    "cifar10": (*CIFAR10, 0.675, {1: (0.23489, 12), 2: (0.40346, 7), 4: (0.67871, 4), 8: (0.90306, 3)}),
    "mnist": (Fraction(250, 60000), 9600, 0.422,
              {0.5: (0.13565, 21), 1: (0.27707, 10), 2: (0.47222, 6), 4: (0.71055, 4), 8: (0.95242, 3)}),
    "dermamnist": (Fraction(70, 7007), 6006, 0.916, {1: (0.13680, 14), 2: (0.39496, 7), 4: (0.64466, 4), 8: (0.86909, 3)}),
    "svhn": (Fraction(250, 73257), 11722, 0.366,
             {0.5: (0.14999, 19), 1: (0.28421, 10), 2: (0.47536, 6), 4: (0.71713, 4), 8: (0.96358, 3)}),
}  # fmt: skip
BY_ALPHA = {0.1: 0.0867, 0.2: 0.0867, 0.3: 0.0866, 0.5: 0.0866, 1: 0.0864, 2: 0.0790, 3: 0.0783, 5: 0.0695, 10: 0.0535}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_papers_r(name):
    q, steps, floor, found = SCHEDULES[name]
    account = DirichletAccount(q, steps, DELTA, 3.0)
    assert account.epsilon(0.0) == pytest.approx(floor, abs=1e-3)
    for epsilon, (expected, order) in found.items():
        r = account.calibrate(epsilon)
        assert r == pytest.approx(expected, abs=1e-4 * expected)
        assert 2 + int(np.argmin(account.by_order(r))) == order
        assert account.epsilon(r) <= epsilon < account.epsilon(r * (1 + 1e-9))
    assert (0.5 in found) == (floor < 0.5)


@pytest.mark.parametrize("alpha", BY_ALPHA)
def test_r_by_alpha(alpha):
    r = DirichletAccount(*CIFAR10, DELTA, alpha).calibrate(1.0)
    assert r / alpha == pytest.approx(BY_ALPHA[alpha], abs=6e-5)


def test_the_mean_over_the_papers_alphas_is_what_it_prints():
    assert round(sum(BY_ALPHA.values()) / 9, 2) == 0.08


def test_the_tight_bound():
    tight = DirichletAccount(*CIFAR10, DELTA, 3.0, "tight")
    assert tight.calibrate(1.0) == pytest.approx(0.25706, abs=1e-5)
    assert tight.epsilon(0.0) < 0.02  # nothing is left of the floor but the conversion from Renyi's divergence
    tight.calibrate(0.5)


@pytest.mark.parametrize(
    "name,epsilon,floor", [("cifar10", 0.5, "0.67"), ("dermamnist", 0.5, "0.915"), ("dermamnist", 0.9, "0.915")]
)
def test_an_infeasible_target_is_refused_with_the_floor(name, epsilon, floor):
    q, steps, *_ = SCHEDULES[name]
    with pytest.raises(UsageError, match=rf"epsilon={epsilon}.*q = {q}, T = {steps}.*{floor}.*mechanism.bound=tight"):
        DirichletAccount(q, steps, DELTA, 3.0).calibrate(epsilon)


def test_a_budget_is_calibrated_in_under_two_seconds():
    start = time.process_time()
    DirichletAccount(*CIFAR10, DELTA, 3.0).calibrate(1.0)
    assert time.process_time() - start < 2


def test_a_large_budget_takes_the_largest_r_that_lemma_8_allows():
    account = DirichletAccount(Fraction(1, 1000), 1, 1e-3, 3.0)
    assert account.calibrate(200.0) < 3.0
    assert 2.99 < account.calibrate(1e6) < 3.0 and account.epsilon(account.calibrate(1e6)) == pytest.approx(1e6)


def theorem_9(order, q, steps, delta, r, alpha, factor):
    """Theorem 9 as it is printed, in 60 digits; the trigamma function is the Hurwitz zeta function at 2."""
    with mp.workdps(60):
        q, r, alpha, delta, lam = mpf(q.numerator) / q.denominator, mpf(r), mpf(alpha), mpf(delta), mpf(order)

        def e(picked):
            return picked * r**2 * zeta(2, alpha - (picked - 1) * r)

        total = (1 - q) ** (lam - 1) * (lam * q - q + 1)
        total += mp.binomial(lam, 2) * q**2 * (1 - q) ** (lam - 2) * mp.exp(e(2))
        for picked in range(3, order + 1):
            total += factor * mp.binomial(lam, picked) * q**picked * (1 - q) ** (lam - picked) * mp.exp((picked - 1) * e(picked))
        return float(steps / (lam - 1) * mp.log(total) + mp.log(1 - 1 / lam) - mp.log(lam * delta) / (lam - 1))


@settings(max_examples=25, deadline=None)
@given(
    st.fractions(Fraction(1, 5000), Fraction(1, 3), max_denominator=5000),
    st.integers(1, 30000),
    st.floats(0.1, 10),
    st.floats(0.005, 0.9),
    st.sampled_from(["published", "tight"]),
    st.data(),
)
def test_theorem_9_against_exact_numbers(q, steps, alpha, share, bound, data):
    r = share * alpha
    by_order = DirichletAccount(q, steps, DELTA, alpha, bound).by_order(r)
    order = data.draw(st.integers(2, min(60, len(by_order) + 1)))
    expected = theorem_9(order, q, steps, DELTA, r, alpha, {"published": 3, "tight": 1}[bound])
    assert by_order[order - 2] == pytest.approx(expected, rel=1e-7, abs=1e-7)


def divergence(order, a, b):
    """Renyi's divergence of Dirichlet(a) from Dirichlet(b), a closed form: by log B(c), c = order a + (1 - order) b."""

    def log_beta(v):
        return gammaln(v).sum() - gammaln(v.sum())

    c = order * a + (1 - order) * b
    return (log_beta(c) - order * log_beta(a) - (1 - order) * log_beta(b)) / (order - 1) if (c > 0).all() else math.inf


def integrated(order, a, b):
    """The same of two classes by quadrature over p = sin^2 t."""

    def log_density(x, v):
        return (v[0] - 1) * math.log(x) + (v[1] - 1) * math.log1p(-x) - (gammaln(v).sum() - gammaln(v.sum()))

    def integrand(t):
        x = math.sin(t) ** 2
        return math.exp(order * log_density(x, a) + (1 - order) * log_density(x, b)) * 2 * math.sin(t) * math.cos(t)

    return math.log(quad(integrand, 0, math.pi / 2, limit=200, epsabs=0, epsrel=1e-10)[0]) / (order - 1)


@pytest.mark.parametrize("order", [1.5, 2, 5, 9])
def test_the_closed_form_is_the_integral(order):
    generator = np.random.default_rng(int(order * 10))
    for _ in range(5):
        a, b = (0.3 * np.array([p, 1 - p]) + 3 for p in generator.random(2))
        assert divergence(order, a, b) == pytest.approx(integrated(order, a, b), rel=1e-6, abs=1e-9)


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 12), st.floats(0.1, 10), st.floats(0.01, 0.95), st.floats(0, 1), st.integers(0, 2**31), st.booleans())
def test_lemma_8_is_never_below_the_exact_divergence(classes, alpha, share, where, seed, corners):
    r = share * alpha
    order = 1.01 + where * (alpha / r - 0.02)  # up to just below 1 + alpha / r
    generator = np.random.default_rng(seed)
    if corners:  # the farthest that two probability vectors can be from each other
        s, t = np.eye(classes)[generator.choice(classes, 2, replace=False)]
    else:
        s, t = generator.dirichlet(np.full(classes, 0.3), 2)
    exact = divergence(order, r * s + alpha, r * t + alpha)
    assert release_rdp(order, r, alpha) >= exact - 1e-9
    assert release_rdp(1 + alpha / r, r, alpha) == math.inf


def test_lemma_8_is_nearly_reached_by_the_worst_pair_at_low_orders():
    """So it can fail: two corners at order 2; at high orders the bound gives away more (tenfold at order 10)."""
    s, t = np.eye(10)[:2]
    exact = divergence(2, 0.05 * s + 3, 0.05 * t + 3)
    assert exact <= release_rdp(2, 0.05, 3.0) <= 1.1 * exact


def test_epsilon_grows_with_r_q_and_t():
    account = DirichletAccount(*CIFAR10, DELTA, 3.0)
    values = [account.epsilon(r) for r in (0.0, 1e-6, 0.1, 0.2, 0.4, 0.8, 1.5, 2.5)]
    assert values == sorted(values) and values[0] == pytest.approx(values[1], rel=1e-6)
    assert account.epsilon(0.2) < DirichletAccount(Fraction(1, 100), 20000, DELTA, 3.0).epsilon(0.2)
    assert account.epsilon(0.2) < DirichletAccount(Fraction(1, 200), 40000, DELTA, 3.0).epsilon(0.2)
    assert account.epsilon(3.0) == math.inf  # no integer order is left below 2


@pytest.mark.parametrize(
    "change,match",
    [
        ({"bound": "exact"}, "mechanism.bound=exact"),
        ({"alpha": 0.01}, "mechanism.alpha=0.01"),
        ({"alpha": math.inf}, "mechanism.alpha=inf"),
        ({"alpha": math.nan}, "mechanism.alpha=nan"),
        ({"sample_rate": Fraction(1)}, "sample_rate=1"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(change, match):
    with pytest.raises(UsageError, match=match):
        DirichletAccount(**{"sample_rate": Fraction(1, 200), "steps": 10, "delta": DELTA, "alpha": 3.0, **change})


def test_the_effective_scale_at_the_papers_figure():
    """kappa by a central difference: r s psi'(alpha + r s) is the derivative of s' -> psi(alpha + r s') at s times s."""
    from scipy.special import digamma

    r, s, h = 0.23489, 0.9, 1e-5
    derivative = (digamma(3 + r * (s + h)) - digamma(3 + r * (s - h))) / (2 * h)
    assert effective_scale(r, 3.0) == pytest.approx(s * derivative, rel=1e-6)
