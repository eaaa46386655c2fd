import json
import math
import time
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.privacy import accounting
from dpsweep.privacy.accounting import (
    ORDERS,
    AccountingError,
    PureDP,
    SampledGaussian,
    Spent,
    Unbounded,
    epsilon,
    event_from_json,
    merged_noise_multiplier,
    rdp,
)

Q = Fraction(1, 200)


def test_orders_are_the_papers():
    assert ORDERS[:2] == (1.1, 1.2) and ORDERS[98] == 10.9 and ORDERS[99:101] == (12, 13)
    assert ORDERS[-8:] == (255, 256, 512, 1024, 2048, 4096, 8192, 16384) and len(ORDERS) == 350


@pytest.mark.parametrize("rate", [Q, Fraction(1, 4), Fraction(1, 2), Fraction(9, 10)])
@pytest.mark.parametrize("sigma", [0.3, 0.9, 8.0])
def test_rdp_agrees_with_opacus(rate, sigma):
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = [*ORDERS[::7], 2.0, 3.0, 64.0, 255.0, 1024.0]
    theirs = compute_rdp(q=float(rate), noise_multiplier=sigma, steps=1, orders=orders)
    log_moment = np.array(theirs) * (np.array(orders) - 1)
    finite = np.array(orders) <= 1024  # beyond, Opacus' binomials overflow
    # Opacus computes log A and cuts its series at exp(-30) = 1e-13, so an absolute term comes with the relative one.
    mine = rdp(SampledGaussian(rate, sigma), orders) * (np.array(orders) - 1)
    np.testing.assert_allclose(mine[finite], log_moment[finite], rtol=1e-9, atol=2e-13)


@pytest.mark.parametrize("order", [1.1, 1.5, 2.0, 3.7, 10.9, 40.0, 255.0])
@pytest.mark.parametrize("rate,sigma", [(Q, 1.1), (Fraction(1, 2), 2.0), (Fraction(4, 5), 0.7)])
def test_rdp_is_the_integral_that_defines_it(rate, sigma, order):
    import mpmath as mp

    q = mp.mpf(rate.numerator) / rate.denominator

    def integrand(x):  # E over N(0, sigma^2) of ((1 - q) + q exp((2 x - 1) / (2 sigma^2)))^order
        return mp.npdf(x, 0, sigma) * ((1 - q) + q * mp.exp((2 * x - 1) / (2 * mp.mpf(sigma) ** 2))) ** order

    points = [-20 * sigma, -5 * sigma, 0, 1, order / 2, order, order + 8 * sigma, order + 30 * sigma]
    exact = mp.log(mp.quad(integrand, points)) / (order - 1)
    assert rdp(SampledGaussian(rate, sigma), [order])[0] == pytest.approx(float(exact), rel=1e-9, abs=1e-13)


def test_rdp_keeps_its_digits_at_tiny_rates():
    # To second order in q, A - 1 = C(a, 2) q^2 (exp(1 / sigma^2) - 1): with a tiny q, A rounds to 1 in float64.
    q, a = 1e-9, 12
    expected = math.log1p(a * (a - 1) / 2 * q**2 * math.expm1(1 / 9)) / (a - 1)
    assert rdp(SampledGaussian(Fraction(1, 10**9), 3.0), [a])[0] == pytest.approx(expected, rel=1e-6, abs=0)


@settings(deadline=None, max_examples=30)
@given(st.fractions(Fraction(1, 10**6), 1), st.floats(0.05, 1e4))
def test_rdp_curve_is_finite_rising_and_below_the_unsampled_one(rate, sigma):
    if rate == 0:
        return
    curve = rdp(SampledGaussian(rate, sigma))
    plain = rdp(SampledGaussian(Fraction(1), sigma))
    tolerance = 1e-12 / (np.array(ORDERS) - 1)
    assert np.isfinite(curve).all() and (curve >= 0).all()
    assert (np.diff(curve) >= -1e-9 * curve[1:] - tolerance[1:] - tolerance[:-1]).all()
    assert (curve <= plain * (1 + 1e-9) + tolerance).all()


def test_rdp_takes_milliseconds():
    event = SampledGaussian(Fraction(1, 167), 0.9)
    rdp(event)
    start = time.process_time()
    for _ in range(20):
        rdp(event)
    assert time.process_time() - start < 20 * 0.03


def test_pure_rdp_is_that_of_randomized_response():
    for eps in (0.01, 1.0, 5.0):
        p = math.exp(eps) / (1 + math.exp(eps))
        for a in (1.5, 2.0, 30.0):
            exact = math.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
            assert rdp(PureDP(eps, "laplace"), [a])[0] == pytest.approx(exact, rel=1e-9)
    tiny, huge = rdp(PureDP(1e-8, "x"), [2.0])[0], rdp(PureDP(1e4, "x"), [2.0, 500.0])
    assert tiny == pytest.approx(1e-16, rel=1e-6)  # alpha eps^2 / 2
    np.testing.assert_allclose(huge, 1e4, rtol=1e-3)


def test_events_survive_json_and_are_hashable():
    events = [SampledGaussian(Q, 1.1), PureDP(0.5, "laplace"), Unbounded("loss was read")]
    assert [event_from_json(json.loads(json.dumps(e.to_json()))) for e in events] == events
    assert len(set(events)) == 3
    with pytest.raises(ValueError, match="no privacy event"):
        event_from_json({"event": "magic"})


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(3, 2), Fraction(-1, 2)])
def test_a_rate_outside_its_range_is_refused(rate):
    with pytest.raises(ValueError, match="sampling rate"):
        SampledGaussian(rate, 1.0)


def test_inexact_rates_and_senseless_noise_are_refused():
    with pytest.raises(TypeError, match="exact"):
        SampledGaussian(0.005, 1.0)
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="noise_multiplier"):
            SampledGaussian(Q, bad)
        with pytest.raises(ValueError, match="epsilon"):
            PureDP(bad, "x")
    with pytest.raises(ValueError, match="orders"):
        rdp(SampledGaussian(Q, 1.0), [1.0])


def test_epsilon_agrees_with_opacus():
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    orders = [a for a in ORDERS if a <= 1024]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        curve = compute_rdp(q=float(Q), noise_multiplier=1.1, steps=2000, orders=orders)
        theirs, order = get_privacy_spent(orders=orders, rdp=curve, delta=1e-5)
    spent = epsilon([(SampledGaussian(Q, 1.1), 2000)], 1e-5)
    assert spent.epsilon == pytest.approx(theirs, rel=1e-9) and spent.order == order


def test_epsilon_of_events_that_protect_nothing_is_infinite():
    good = (SampledGaussian(Q, 1.1), 10)
    for accountant in ("rdp", "pld"):
        assert epsilon([good, (Unbounded("plain gradient"), 1)], 1e-5, accountant).epsilon == math.inf
        assert epsilon([good, (SampledGaussian(Q, 0.0), 1)], 1e-5, accountant).epsilon == math.inf


def test_epsilon_of_nothing_is_zero():
    assert epsilon([], 1e-5) == Spent(0.0, None)
    assert epsilon([(SampledGaussian(Q, 1.0), 0)], 1e-5) == Spent(0.0, None)


def test_pure_events_sum_exactly_when_that_is_less():
    assert epsilon([(PureDP(0.5, "laplace"), 1), (PureDP(0.25, "vote"), 2)], 1e-5) == Spent(1.0, None)
    assert epsilon([(PureDP(2.0, "laplace"), 1)], 0.0) == Spent(2.0, None)
    many = epsilon([(PureDP(0.01, "laplace"), 10_000)], 1e-5)  # advanced composition wins
    assert many.epsilon < 10 and many.order is not None
    assert epsilon([(PureDP(1.0, "laplace"), 3)], 1e-5, "pld").epsilon <= 3


def test_the_largest_order_is_refused_with_a_remedy():
    with pytest.raises(AccountingError, match="accountant=pld"):
        epsilon([(SampledGaussian(Q, 1e7), 1)], 1e-5)
    # A bound of 0 can't get tighter.
    assert epsilon([(SampledGaussian(Q, 1e7), 1)], 0.5).epsilon == 0


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_delta_outside_its_range_is_refused(delta):
    with pytest.raises(ValueError, match="delta"):
        epsilon([(SampledGaussian(Q, 1.0), 1)], delta)


def test_unknown_accountant_is_refused():
    with pytest.raises(ValueError, match="rdp and pld"):
        epsilon([(SampledGaussian(Q, 1.0), 1)], 1e-5, "gdp")


def test_pld_is_below_rdp_and_covers_mixtures():
    events = [(SampledGaussian(Q, 2.0), 500), (SampledGaussian(Fraction(1), 30.0), 9), (PureDP(0.1, "laplace"), 1)]
    renyi, pld = epsilon(events, 1e-5), epsilon(events, 1e-5, "pld")
    assert 0.6 * renyi.epsilon < pld.epsilon < renyi.epsilon
    # Nine Gaussians of 30 are one of 10, whose epsilon is known in closed form (Balle, Wang 2018).
    from scipy.optimize import brentq
    from scipy.special import ndtr

    mu = 0.1
    exact = brentq(lambda e: ndtr(mu / 2 - e / mu) - math.exp(e) * ndtr(-mu / 2 - e / mu) - 1e-5, 0, 5)
    assert exact <= epsilon(events[1:2], 1e-5, "pld").epsilon <= exact * 1.001


def test_accounting_loads_neither_torch_nor_dp_accounting():
    import subprocess
    import sys
    from pathlib import Path

    code = (
        "import sys, dpsweep.privacy.accounting, dpsweep.privacy.calibration, dpsweep.privacy.sampling\n"
        "sys.exit(bool({'torch', 'opacus', 'dp_accounting'} & set(sys.modules)))"
    )
    root = Path(accounting.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_charges_in_words():
    one, two = SampledGaussian(Q, 1.0), SampledGaussian(Q / 2, 4.0)
    assert accounting.in_words([]) == "nothing"
    assert accounting.in_words([(one, 7)]) == "7 sampled Gaussians at q = 1/200, sigma 1"
    told = "7 sampled Gaussians at q = 1/200, sigma 1, and 3 at q = 1/400, sigma 4, and 2 times pure 0.5-DP, and 1 times a look"
    assert accounting.in_words([(one, 7), (two, 3), (PureDP(0.5, "laplace"), 2), (Unbounded("a look"), 1)]) == told
    many = [(SampledGaussian(Q, 1 + i), 2) for i in range(5)]
    assert accounting.in_words(many) == "10 sampled Gaussians at q = 1/200, sigma from 1 to 5"


def test_merged_noise_is_one_gaussian():
    assert merged_noise_multiplier([2.0]) == 2.0
    assert merged_noise_multiplier([2.0, 2.0]) == pytest.approx(math.sqrt(2))
    assert merged_noise_multiplier([1.0, 0.0]) == 0
    assert merged_noise_multiplier([3.0, 4.0]) == pytest.approx(2.4)
    for bad in ([], [1.0, -1.0], [math.nan]):
        with pytest.raises(ValueError):
            merged_noise_multiplier(bad)


@settings(deadline=None, max_examples=10)
@given(st.lists(st.floats(0.5, 20), min_size=2, max_size=4))
def test_merged_noise_spends_what_the_unsampled_releases_spend_together(multipliers):
    together = sum(rdp(SampledGaussian(Fraction(1), z)) for z in multipliers)
    merged = SampledGaussian(Fraction(1), merged_noise_multiplier(multipliers))
    np.testing.assert_allclose(rdp(merged), together, rtol=1e-12)


def test_flushed_denormals_leave_the_account_alone():
    """Training flushes denormal floats to zero; an account in the same process must not notice."""
    import torch

    for sigma in (0.3, 1.0, 8.0):
        event = SampledGaussian(Fraction(1, 200), sigma)
        plain = rdp(event)
        torch.set_flush_denormal(True)
        try:
            np.testing.assert_array_equal(rdp(event), plain)
        finally:
            torch.set_flush_denormal(False)
