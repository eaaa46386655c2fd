import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpsweep.privacy import sampling
from dpsweep.privacy.noise import Randomness
from dpsweep.privacy.sampling import Everything, Poisson, Shuffle, protocol_numbers


def draw(sampler, n, count, seed=5):
    return list(itertools.islice(sampler.batches(n, Randomness.seeded(seed).stream("sampling")), count))


def size_p_value(sizes, n, rate):
    """Chi-square p-value of batch sizes against Binomial(n, rate), in bins of at least 20 expected."""
    edges = np.unique(stats.binom.ppf(np.linspace(0, 1, 40), n, rate))
    edges[0] = -1
    expected = len(sizes) * np.diff(stats.binom.cdf(edges, n, rate))
    observed = np.histogram(sizes, bins=edges + 0.5)[0]
    keep = expected > 20
    return stats.chisquare(observed[keep], expected[keep] * observed[keep].sum() / expected[keep].sum()).pvalue


@pytest.mark.parametrize("n,rate", [(1000, Fraction(1, 50)), (212, Fraction(1, 4)), (300, Fraction(3, 4))])
def test_the_batch_size_follows_the_binomial_law(n, rate):
    sizes = [len(b) for b in draw(Poisson(rate), n, 5_000)]
    assert size_p_value(sizes, n, float(rate)) > 1e-3
    # The test has the power to see a rate that is 5% off.
    assert size_p_value([len(b) for b in draw(Poisson(rate * Fraction(21, 20)), n, 5_000)], n, float(rate)) < 1e-6
    assert size_p_value([len(b) for b in draw(Poisson(rate * Fraction(19, 20)), n, 5_000)], n, float(rate)) < 1e-6


@pytest.mark.parametrize("rate", [Fraction(1, 4), Fraction(4, 5)])
def test_each_record_and_each_pair_enter_at_their_rates(rate):
    n, count, q = 12, 20_000, float(rate)
    inside = np.zeros((count, n))
    for row, batch in zip(inside, draw(Poisson(rate), n, count), strict=True):
        row[batch] = 1
    pairs = inside.T @ inside
    marginal = np.diag(pairs)
    assert (np.abs(marginal - count * q) < 4.5 * np.sqrt(count * q * (1 - q))).all()
    assert abs(marginal.sum() - count * n * q) < 4 * np.sqrt(count * n * q * (1 - q)) < 0.02 * count * n * q
    together = pairs[np.triu_indices(n, 1)]
    assert (np.abs(together - count * q**2) < 4.5 * np.sqrt(count * q**2 * (1 - q**2))).all()
    # Consecutive batches are independent.
    again = (inside[1:] * inside[:-1]).sum(0)
    assert (np.abs(again - count * q**2) < 4.5 * np.sqrt(count * q**2 * (1 - q**2))).all()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 3000), st.fractions(Fraction(1, 10**9), 1), st.integers(0, 100))
def test_batches_are_sorted_sets_of_valid_indices(n, rate, seed):
    for batch in draw(Poisson(rate or Fraction(1)), n, 3, seed):
        assert batch.dtype == np.int64 and batch.ndim == 1
        assert (np.diff(batch) > 0).all() and (batch >= 0).all() and (batch < n).all()


def test_the_edges_of_poisson_sampling():
    assert [len(b) for b in draw(Poisson(Fraction(1, 3)), 0, 3)] == [0, 0, 0]
    assert [len(b) for b in draw(Poisson(Fraction(1)), 0, 2)] == [0, 0]
    np.testing.assert_array_equal(draw(Poisson(Fraction(1)), 5, 2), [np.arange(5)] * 2)
    assert sum(len(b) for b in draw(Poisson(Fraction(1, 10**15)), 1000, 1000)) == 0
    single = np.array([len(b) for b in draw(Poisson(Fraction(1, 3)), 1, 9000)])
    assert set(single) == {0, 1} and abs(single.mean() - 1 / 3) < 0.02
    with pytest.raises(TypeError, match="exact"):
        Poisson(0.1)
    with pytest.raises(ValueError, match="sampling rate"):
        Poisson(Fraction(0))


@pytest.mark.parametrize(
    "n,rate", [(51_000, Fraction(1, 200)), (10, Fraction(1, 10**6)), (10**6, Fraction(1, 2)), (999, Fraction(998, 999))]
)
def test_the_size_table_is_the_binomial_law_within_the_stated_distance(n, rate):
    low, thresholds = sampling._binomial_thresholds(n, rate)
    steps = np.diff(np.array([0, *thresholds.tolist(), 2**64], dtype=object)) / 2**64
    exact = exact_binomial(n, rate, low, len(steps))
    s = (n * float(rate) * (1 - float(rate))) ** 0.5
    distance = sum(abs(Fraction(a) - b) for a, b in zip(steps.tolist(), exact, strict=True)) / 2
    assert float(distance) <= (40 * s + 160) * 2**-53 + 2**-80


def exact_binomial(n, rate, low, count):
    """Binomial probabilities of low .. low + count - 1 by mpmath at 40 digits."""
    import mpmath as mp

    with mp.workdps(40):
        q = mp.mpf(rate.numerator) / rate.denominator
        p = mp.binomial(n, low) * q**low * (1 - q) ** (n - low)
        found = []
        for k in range(low, low + count):
            found.append(Fraction(str(p)) if p > mp.mpf(10) ** -60 else Fraction(0))
            p = p * (n - k) / (k + 1) * q / (1 - q)
        return found


def test_shuffle_covers_every_record_once_an_epoch_and_reshuffles():
    batches = draw(Shuffle(4), 10, 9)
    assert [len(b) for b in batches] == [4, 4, 2] * 3
    epochs = [np.concatenate(batches[i : i + 3]) for i in (0, 3, 6)]
    assert all(sorted(e) == list(range(10)) for e in epochs)
    assert len({tuple(e) for e in epochs}) == 3 and batches[0].dtype == np.int64
    assert [len(b) for b in draw(Shuffle(4), 0, 2)] == [0, 0]
    with pytest.raises(ValueError, match="batch_size"):
        Shuffle(0)


def test_shuffled_orders_are_uniform():
    orders = [tuple(b) for b in draw(Shuffle(4), 4, 4800)]
    counts = [orders.count(p) for p in itertools.permutations(range(4))]
    assert sum(counts) == 4800 and stats.chisquare(counts).pvalue > 1e-3


def test_everything_is_everything():
    for batch in draw(Everything(), 3, 2):
        np.testing.assert_array_equal(batch, [0, 1, 2])


def test_the_papers_protocol_numbers():
    assert protocol_numbers(51_000, 256, 10) == (Fraction(1, 200), 2000, 255)
    assert protocol_numbers(42_500, 256, 10) == (Fraction(1, 167), 1670, 254)
    assert protocol_numbers(48_025, 256, 30) == (Fraction(1, 188), 5640, 255)
    assert protocol_numbers(212, 64, 30) == (Fraction(1, 4), 120, 53)
    assert protocol_numbers(3, 10, 2) == (Fraction(1), 2, 3)
    for bad in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            protocol_numbers(*bad)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(1, 500))
def test_protocol_numbers_are_exact(size, batch, epochs):
    rate, steps, normalizer = protocol_numbers(size, batch, epochs)
    assert rate.numerator == 1 and steps == epochs * rate.denominator
    assert batch * (rate.denominator - 1) < size <= batch * rate.denominator
    assert normalizer >= 1 and normalizer <= max(1, rate * size) < normalizer + 1
