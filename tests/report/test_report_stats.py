"""Exact tests and intervals against scipy, statsmodels and hand computation."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test, ttest_ind
from statsmodels.stats.multitest import multipletests

from dpsweep.report import stats

differences = st.lists(st.integers(-40, 40).map(lambda k: k / 270), min_size=1, max_size=9)


def brute_force(values):
    observed = abs(np.mean(values))
    flips = [abs(np.mean(np.array(signs) * values)) for signs in itertools.product((1, -1), repeat=len(values))]
    return np.mean([flip >= observed - 1e-14 for flip in flips])


@settings(deadline=None, max_examples=40)
@given(differences)
def test_sign_flip_counts_all_assignments_and_ties(values):
    assert stats.sign_flip_p(values) == brute_force(values)


def test_sign_flip_agrees_with_scipy():
    values = np.random.default_rng(0).normal(0.4, 1, 8)
    result = permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert stats.sign_flip_p(values) == pytest.approx(result.pvalue, abs=1e-12)


def test_sign_flip_by_hand():
    # All of one sign: only the two extreme assignments of 2^5.
    assert stats.sign_flip_p([0.1, 0.2, 0.3, 0.4, 0.5]) == 2 / 32
    # |sum| of 3 +- 1: 4, 2, 2, 4; the observed 2 is reached by all four.
    assert stats.sign_flip_p([3, -1]) == 1.0
    assert stats.sign_flip_p([0.0, 0.0, 0.0]) == 1.0
    assert stats.sign_flip_p([5.0]) == 1.0


def test_sign_flip_stays_exact_for_many_pairs():
    assert stats.sign_flip_p([1.0] * 30) == 2 / 2**30
    # |sum| >= 36 of 40 unit signs: at most 2 of either sign, so 2 (1 + 40 + 780) assignments.
    assert stats.sign_flip_p([1.0] * 38 + [-1.0] * 2) == 2 * (1 + 40 + 780) / 2**40
    with pytest.raises(ValueError, match="40 pairs at most"):
        stats.sign_flip_p([1.0] * 41)


@pytest.mark.parametrize("values", [[], [0.1, float("nan")], [float("inf")]])
def test_sign_flip_refuses_what_has_no_mean(values):
    with pytest.raises(ValueError):
        stats.sign_flip_p(values)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_agrees_with_statsmodels(p_values):
    np.testing.assert_allclose(stats.holm(p_values), multipletests(p_values, method="holm")[1], atol=1e-12)


def test_holm_by_hand_and_empty():
    np.testing.assert_allclose(stats.holm([0.04, 0.01, 0.03]), [0.06, 0.03, 0.06])
    assert stats.holm([]) == []


def test_t_interval_by_hand():
    # mean 0.92, SD 0.02, t(.975; 2) = 4.30265, half-width 4.30265 * 0.02 / sqrt(3).
    low, high = stats.t_interval([0.90, 0.92, 0.94])
    assert (low, high) == pytest.approx((0.870317, 0.969683), abs=1e-6)
    assert stats.t_interval([0.9]) is None
    assert stats.t_interval([]) is None
    with pytest.raises(ValueError):
        stats.t_interval([1, 2], confidence=95)


@pytest.mark.parametrize(("k", "needed"), [(1, 6), (960, 16), (2, 7)])
def test_seeds_needed_is_the_least_that_reaches_alpha(k, needed):
    # 5 seeds give .0625, 6 give .03125.
    assert stats.seeds_needed(k) == needed
    assert stats.least_p(needed) * k <= 0.05 < stats.least_p(needed - 1) * k


def test_least_p():
    assert [stats.least_p(n) for n in (1, 2, 5)] == [1.0, 0.5, 0.0625]


samples = st.lists(st.integers(-50, 50).map(lambda k: k / 7), min_size=2, max_size=9)


@pytest.mark.filterwarnings("ignore:Precision loss")  # scipy's word on samples that are nearly constant
@settings(deadline=None, max_examples=60)
@given(samples, samples)
def test_welch_interval_agrees_with_scipy(first, second):
    told = [(float(np.mean(values)), float(np.std(values, ddof=1)), len(values)) for values in (first, second)]
    found = stats.welch_interval(*told)
    if told[0][1] == told[1][1] == 0:
        assert found == (told[0][0] - told[1][0],) * 2
        return
    expected = ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert found == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-9)


def test_welch_interval_needs_two_values_on_either_side():
    assert stats.welch_interval((1.0, 0.0, 1), (2.0, 1.0, 5)) is None


def test_welch_marks_about_five_percent_of_equal_cells():
    dice = np.random.default_rng(1)
    draws = dice.normal(0, [[1.0], [2.5]], (4000, 2, 5))
    outside = 0
    for first, second in draws:
        low, high = stats.welch_interval(*((values.mean(), values.std(ddof=1), 5) for values in (first, second)))
        outside += not low <= 0 <= high
    assert 0.035 < outside / len(draws) < 0.06  # 4.7% (SE 0.3%)


@pytest.mark.parametrize("n", [5, 12])
def test_sign_flip_agrees_with_scipy_on_ties(n):
    values = np.random.default_rng(n).integers(-4, 5, n) / 46
    result = permutation_test((values,), lambda x: abs(np.round(x.mean(), 12)), permutation_type="samples", n_resamples=np.inf,
                              alternative="greater")  # fmt: skip
    assert stats.sign_flip_p(values) == pytest.approx(result.pvalue, abs=1e-12)
