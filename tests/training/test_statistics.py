"""Statistics through the door: bounded for every record by construction, released with Laplace noise, charged as pure."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from zoo import batch, make

from dpsweep.mechanisms.base import Mechanism, Plan
from dpsweep.privacy.accounting import PureDP, Unbounded
from dpsweep.privacy.ledger import LedgerError
from dpsweep.privacy.noise import Randomness
from dpsweep.privacy.sampling import Everything
from dpsweep.training.engines import prepare
from dpsweep.training.loop import LoopData, train
from dpsweep.training.statistics import bounded_sum

BOUND = 5.0


def everyone(x):
    return torch.arange(len(x))


def flat(x, label):
    return x.flatten()


def setting(x=None, y=None, model="logistic_raw", physical=None, epsilon=0.5, randomness=None):
    """A model, a plan of one pure release and the door to some records."""
    model = make(model, "table")
    if x is None:
        x, y, _ = batch(model, "table", 30)
    plan = Plan(Everything(), (PureDP(epsilon, "laplace"),), 1)
    ready = prepare("default", model, x, f"statistics {torch.rand(1)}", physical)
    data = LoopData(ready, y, model, plan, len(x), randomness or Randomness.seeded(0), "none", physical)
    return model, plan, data


class Stepping(Mechanism):
    """A mechanism whose step is a function."""

    def __init__(self, step):
        self.step = lambda state, data: step(data)


def steps(step, **keys):
    model, plan, data = setting(**keys)
    train(Stepping(step), plan, model, data, None)
    return data


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=3, max_size=3), min_size=1, max_size=6
    ),
    bound=st.floats(1e-3, 1e3),
)
def test_one_record_moves_a_sum_by_at_most_the_bound_whatever_it_holds(rows, bound):
    """Nothing shared with the code: each record's share is the difference of two sums."""
    x = torch.tensor(rows, dtype=torch.float32)
    y = torch.zeros(len(x), dtype=torch.int64)
    whole = bounded_sum(flat, x, y, everyone(x), bound, None)
    assert whole.isfinite().all()
    for i, row in enumerate(rows):
        rest = torch.tensor([j for j in range(len(x)) if j != i], dtype=torch.int64)
        share = whole - bounded_sum(flat, x, y, rest, bound, None)
        assert float(share.abs().sum()) <= bound * (1 + 1e-9)
        norm = float(np.abs(np.float64(row)).sum())
        expected = np.float64(row) * min(1.0, bound / norm if norm else 1.0) if np.isfinite(norm) else np.zeros(3)
        np.testing.assert_allclose(share.numpy(), expected, rtol=1e-9, atol=1e-9 * bound)


@pytest.mark.parametrize("physical", [1, 7, None])
def test_parts_change_nothing(physical):
    x, y = torch.randn(3000, 4), torch.zeros(3000, dtype=torch.int64)
    x[17] = float("nan")
    by_hand = sum(row.double() * min(1.0, BOUND / float(row.double().abs().sum())) for row in x if row.isfinite().all())
    torch.testing.assert_close(bounded_sum(flat, x, y, everyone(x), BOUND, physical), by_hand, rtol=1e-12, atol=1e-10)


def test_an_empty_batch_and_one_without_a_finite_record_sum_to_zero():
    for x in (torch.zeros(0, 4), torch.full((3, 4), float("inf"))):
        total = bounded_sum(flat, x, torch.zeros(len(x), dtype=torch.int64), everyone(x), BOUND, None)
        assert total.shape == (4,) and not total.any()


def test_what_is_not_finite_never_reaches_the_statistic():
    """A bounded function would make an ordinary contribution of an infinite input."""
    x = torch.tensor([[1.0, 2.0], [float("inf"), 0.0], [0.0, float("nan")]])
    total = bounded_sum(lambda x, y: torch.sigmoid(x), x, torch.zeros(3, dtype=torch.int64), everyone(x), BOUND, None)
    torch.testing.assert_close(total, torch.sigmoid(x[0]).double(), rtol=1e-6, atol=0)


def test_a_statistic_sees_one_record():
    x, y = torch.randn(6, 4), torch.arange(6)
    seen = []

    def centred(record, label):
        seen.append((record.shape, label.shape))
        return record - record.mean(0)

    total = bounded_sum(centred, x, y, everyone(x), 1e9, None)
    assert set(seen) == {((4,), ())}
    torch.testing.assert_close(total, (x - x.mean(1, keepdim=True)).sum(0).double(), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="must be a vector"):
        bounded_sum(lambda record, label: record.sum(), x, y, everyone(x), 1.0, None)


def test_statistics_are_of_the_records_where_training_is_on_cached_features():
    _, _, data = setting(model="rvfl")
    assert data._x.shape[1] == 213
    total = data.statistics(data.draw(), flat, 1e9)
    x, _, _ = batch(make("rvfl", "table"), "table", 30)
    torch.testing.assert_close(data._sums[total.number], x.sum(0))


def test_handles_of_statistics_carry_no_numbers_of_the_data():
    _, _, data = setting()
    drawn = data.draw()
    total = data.statistics(drawn, flat, 2.0, 3.0)
    assert vars(total) == {"number": 2, "batch": drawn, "sensitivity": 3.0, "norm": 1}


def test_noise_is_laplace_of_the_scale_and_the_same_for_any_data():
    """Scale 6 x 0.5 = 3, by a Kolmogorov-Smirnov test; the noise is what the release adds, whoever the records are."""
    noises = []
    for n in (0, 30):
        x, y = torch.zeros(n, 20_000), torch.zeros(n, dtype=torch.int64)
        _, _, data = setting(x, y, epsilon=2.0)
        total = data.statistics(data.draw(), flat, 6.0)
        noises.append(data.release(total, 6.0, 0.5))
        assert data.ledger.events() == [(PureDP(2.0, "laplace"), 1)]
    assert torch.equal(*noises) and noises[0].dtype == torch.float64
    assert stats.kstest(noises[0].numpy(), stats.laplace(scale=3.0).cdf).pvalue > 1e-3


def test_more_noise_than_needed_costs_less():
    data = steps(lambda data: data.release(data.statistics(data.draw(), flat, 1.0, 1.5), 3.0, 2.0))
    assert data.ledger.events() == [(PureDP(0.25, "laplace"), 1)]


@pytest.mark.parametrize(
    ("step", "error", "said"),
    [
        (lambda d: d.release(d.statistics(d.draw(), flat, 1.0), 1.0, 1.9), LedgerError, "would release"),
        (lambda d: d.release(d.statistics(d.draw(), flat, 1.0), 1.0, 0.0), LedgerError, "would release"),
        (lambda d: [d.release(d.statistics(d.draw(), flat, 1.0), 1.0, 2.0) for _ in range(2)], LedgerError, "would release"),
        (lambda d: d.release(d.statistics(d.draw(), flat, 1.0, 3.0), 2.0, 2.0), ValueError, "noise was set for"),
        (lambda d: d.statistics(d.draw(), flat, 2.0, 1.0), ValueError, "sensitivity of 1.0"),
        (lambda d: d.statistics(d.draw(), flat, 0.0), ValueError, "nor 0"),
        (lambda d: d.statistics(d.draw(), flat, 1.0), LedgerError, "released nothing"),
    ],
)
def test_what_a_plan_does_not_allow_is_refused(step, error, said):
    with pytest.raises(error, match=said):
        steps(step)


def test_an_earlier_sum_and_an_earlier_batch_are_gone():
    model, _, data = setting()
    plan = Plan(Everything(), (PureDP(0.5, "laplace"),), 2)
    data = LoopData(prepare("default", model, data._x, "x", None), data._y, model, plan, 30, Randomness.seeded(0), "none")
    drawn = data.draw()
    total = data.statistics(drawn, flat, 1.0)
    data.release(total, 1.0, 2.0)
    data.close_step()
    with pytest.raises(LedgerError, match="earlier step"):
        data.release(total, 1.0, 2.0)
    with pytest.raises(LedgerError, match="earlier step"):
        data.statistics(drawn, flat, 1.0)


def test_statistics_without_noise_are_charged_as_unbounded():
    model, _, data = setting()
    plan = Plan(Everything(), (Unbounded("as an example"),), 1)
    data = LoopData(prepare("default", model, data._x, "x", None), data._y, model, plan, 30, Randomness.seeded(0), "none")
    exact = data.release(data.statistics(data.draw(), flat, 1e9), 1e9, 0.0)
    torch.testing.assert_close(exact, data._x.sum(0))
    ((event, count),) = data.ledger.events()
    assert isinstance(event, Unbounded) and count == 1
