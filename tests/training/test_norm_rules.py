"""Sums whose weights a mechanism chooses by the gradients' norms: right, and bounded whatever the mechanism answers."""

from fractions import Fraction

import pytest
import torch
from zoo import batch, make

from dpsweep.mechanisms.base import Plan, dp_sgd_events
from dpsweep.models.base import trained
from dpsweep.privacy.ledger import LedgerError
from dpsweep.privacy.noise import Randomness
from dpsweep.privacy.sampling import Poisson
from dpsweep.training.engines import prepare
from dpsweep.training.loop import LoopData
from dpsweep.training.per_example import VmapEngine

MODELS = [("dense", "table"), ("tanh_mlp", "gray"), ("cnn", "gray"), ("rvfl", "table")]
ENGINES = ["default", "vmap", "reference"]


def door(name="dense", kind="table", engine="default", n=12, dtype=torch.float64, physical=None, x=None, sigma=1.0):
    """A model, its records, and a door to them; each batch has all records."""
    model = make(name, kind, dtype).train()
    records, y, _ = batch(model, kind, 13, dtype)
    records, y = records[:n] if x is None else x, y[:n]
    plan = Plan(Poisson(Fraction(1)), dp_sgd_events(Fraction(1), sigma), 9, 1.0, sigma)
    ready = prepare(engine, model, records, f"rules {name} {kind} {dtype} {n} {x is None}", physical)
    data = LoopData(ready, y, model, plan, 10, Randomness.seeded(5), "none", physical)
    data._masks = lambda count: tuple(torch.ones(count, *shape, dtype=dtype) for shape in model.mask_shapes)  # no dropout
    return model, records, y, data


def rows(model, x, y):
    """Gradients one by one, float64 (n, parameters)."""
    masks = [torch.ones(1, *shape, dtype=x.dtype) for shape in model.mask_shapes]
    alone = VmapEngine(model, None)
    return torch.stack(
        [alone.weighted_sum((x[i : i + 1], *masks), y[i : i + 1], torch.ones_like) for i in range(len(x))]
    ).double()


def value(data, weigh, sensitivity=1.0):
    return data._sums[data.weighted_sum(data.draw(), weigh, sensitivity).number]


@pytest.mark.parametrize("model_and_kind", MODELS, ids="-".join)
@pytest.mark.parametrize("engine", ENGINES)
def test_weights_are_those_of_the_rule(model_and_kind, engine):
    model, x, y, data = door(*model_and_kind, engine)
    gradients = rows(model, x, y)
    norms = gradients.norm(dim=1)
    bound = float(norms.median())
    kept = {}

    def rule(found, uniform):
        torch.testing.assert_close(found, norms, rtol=1e-9, atol=1e-12)
        assert found.dtype == uniform.dtype == torch.float64
        kept["weights"] = (uniform < 0.6) / (1 + found)
        return kept["weights"]

    found = value(data, rule, bound)
    expected = torch.minimum(kept["weights"], bound / norms) @ gradients
    assert 0 < (kept["weights"] > 0).sum() < 12
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


HOSTILE = {
    "huge": lambda norms, u: torch.full_like(norms, 1e300),
    "infinite": lambda norms, u: torch.full_like(norms, float("inf")),
    "not a number": lambda norms, u: torch.full_like(norms, float("nan")),
    "negative": lambda norms, u: torch.full_like(norms, -1e300),
    "inverse": lambda norms, u: 1 / norms,
    "inverse square": lambda norms, u: norms**-2,
    "mixed": lambda norms, u: torch.where(u < 0.3, float("nan"), torch.where(u < 0.6, float("inf"), 1e9 * u)),
    "one": lambda norms, u: torch.ones_like(norms),
}


@pytest.mark.parametrize("model_and_kind", MODELS, ids="-".join)
@pytest.mark.parametrize("rule", HOSTILE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_record_moves_the_sum_by_at_most_the_sensitivity(model_and_kind, rule, dtype):
    """The other records get the same uniform numbers: the new one comes last."""
    for sensitivity in (0.3, 1e4):
        one, other = (value(door(*model_and_kind, n=n, dtype=dtype)[-1], HOSTILE[rule], sensitivity).double() for n in (12, 13))
        assert one.isfinite().all() and other.isfinite().all()
        rounding = 1e-5 * (sensitivity + float(one.norm()))
        assert float((one - other).norm()) <= sensitivity + rounding


@pytest.mark.parametrize("rule", HOSTILE)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38, 1e-30, 0.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_awkward_records_are_bounded_too(rule, bad, dtype):
    """The last record is not finite, overflows, or has a gradient near zero, which a large weight must not blow up."""
    for name in ("dense", "tanh_mlp"):
        x = batch(make(name, "table", dtype), "table", 13, dtype)[0]
        x[12] = bad
        one = value(door(name, x=x[:12], n=12, dtype=dtype)[-1], HOSTILE[rule], 0.5).double()
        other = value(door(name, x=x, n=13, dtype=dtype)[-1], HOSTILE[rule], 0.5).double()
        assert other.isfinite().all()
        assert float((one - other).norm()) <= 0.5 * (1 + 1e-5) + 1e-5 * float(one.norm())
        if not x[12].isfinite().all():
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)  # exactly zero, to the order of the summation


def test_a_tiny_gradient_without_a_bias_is_not_blown_up():
    """|g| = |a| |b| can be so small that a sensitivity over it is infinite in float32."""
    model, _, _, _ = door(dtype=torch.float32)
    for layer in (model.hidden1, model.hidden2, model.head):
        layer.bias.requires_grad_(False).zero_()
    assert len(trained(model)) == 3
    ready = prepare("vmap", model, torch.full((4, 13), 1e-37), "tiny", None)
    plan = Plan(Poisson(Fraction(1)), dp_sgd_events(Fraction(1), 1.0), 9, 1.0, 1.0)
    data = LoopData(ready, torch.tensor([0, 1, 0, 1]), model, plan, 10, Randomness.seeded(5), "none")
    found = value(data, HOSTILE["huge"], 1e6)
    assert found.isfinite().all() and 0 < float(found.norm()) <= 4e6


@pytest.mark.parametrize("engine", ENGINES)
def test_physical_batches_change_nothing(engine):
    def rule(norms, uniform):
        return (uniform < norms / norms.clamp_min(1)) / norms

    whole, cut = (value(door(engine=engine, physical=physical)[-1], rule) for physical in (None, 5))
    torch.testing.assert_close(whole, cut, rtol=1e-12, atol=1e-12)
    sums = []
    for physical in (None, 5):
        data = door(engine=engine, physical=physical)[-1]
        total = data.weighted_sum(data.draw(), rule, 1.0)
        sums.append(data._sums[data.norm_sum(total, torch.atan, 2.0).number])
    torch.testing.assert_close(*sums, rtol=1e-12, atol=1e-12)


def test_thinning_is_uniform_anew_for_each_sum_and_apart_from_the_noise():
    data, seen = door(n=13)[-1], []
    batch_of_all = data.draw()
    for _ in range(300):
        data.weighted_sum(batch_of_all, lambda norms, u: seen.append(u.clone()) or u, 1.0)
    drawn = torch.cat(seen)
    assert drawn.min() >= 0 and drawn.max() < 1 and len(drawn.unique()) == 300 * 13
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.02)  # standard error 0.0046
    assert float(drawn.var()) == pytest.approx(1 / 12, abs=0.006)
    total = data.clipped_sum(batch_of_all, 1.0)
    fresh = door(n=13)[-1]
    expected = fresh.release(fresh.clipped_sum(fresh.draw(), 1.0), 1.0, 1.0)
    assert torch.equal(data.release(total, 1.0, 1.0), expected)


def test_a_function_of_norms_is_summed_and_bounded():
    model, x, y, data = door()
    norms = rows(model, x, y).norm(dim=1)
    total = data.clipped_sum(data.draw(), 1.0)

    def found(of, bound):
        handle = data.norm_sum(total, of, bound)
        assert (handle.batch, handle.sensitivity, handle.norm) == (total.batch, bound, 2)
        assert data._sums[handle.number].shape == (1,)
        return float(data._sums[handle.number])

    assert found(lambda n: (n <= 1).double() - 0.5, 0.5) == float((norms <= 1).sum()) - 6
    assert found(lambda n: n, 1e9) == pytest.approx(float(norms.sum()), rel=1e-9)
    assert found(lambda n: n, 0.1) == pytest.approx(float(norms.clamp_max(0.1).sum()), rel=1e-9)
    assert found(lambda n: -1e300 * n, 2.0) == -24
    assert found(lambda n: n * float("nan"), 2.0) == found(lambda n: n / 0, 2.0) == found(lambda n: -n / 0, 2.0) == 0


def test_norms_that_are_not_finite_are_bounded_too():
    x = batch(make("dense", "table"), "table", 13)[0]
    x[12] = float("nan")
    sums = []
    for n in (12, 13):
        data = door(x=x[:n], n=n)[-1]
        total = data.clipped_sum(data.draw(), 1.0)
        sums.append([float(data._sums[data.norm_sum(total, of, 0.5).number])
                     for of in (lambda v: v, lambda v: (v <= 1).double() - 0.5)])  # fmt: skip
    assert sums[0][0] == sums[1][0] and abs(sums[0][1] - sums[1][1]) == 0.5


def test_an_empty_batch_has_empty_sums():
    data = door(n=0)[-1]
    total = data.weighted_sum(data.draw(), HOSTILE["inverse"], 1.0)
    counted = data.norm_sum(total, torch.ones_like, 1.0)
    assert not data._sums[total.number].any() and float(data._sums[counted.number]) == 0


def test_a_function_must_give_one_number_a_record():
    data = door()[-1]
    handle = data.draw()
    for wrong in (lambda norms, u: norms[:3], lambda norms, u: torch.ones(()), lambda norms, u: norms[:, None]):
        with pytest.raises(ValueError, match="one number each"):
            data.weighted_sum(handle, wrong, 1.0)
    total = data.clipped_sum(handle, 1.0)
    with pytest.raises(ValueError, match="one number each"):
        data.norm_sum(total, lambda norms: norms.repeat(1000), 1.0)


def test_sum_and_count_of_one_batch_are_one_event():
    data = door(sigma=(1 / 2**2 + 1 / 3**2) ** -0.5 * (1 - 1e-12))[-1]
    total = data.weighted_sum(data.draw(), HOSTILE["one"], 0.7)
    data.release(total, 0.7, 2.0)
    data.release(data.norm_sum(total, torch.tanh, 1.0), 1.0, 3.0)
    ((event, count),) = data.ledger.events()
    assert count == 1 and event.noise_multiplier == pytest.approx((1 / 4 + 1 / 9) ** -0.5, rel=1e-12)
    with pytest.raises(LedgerError):
        data.release(data.norm_sum(total, torch.tanh, 1.0), 1.0, 3.0)  # another one is more than the plan's


def test_sums_of_an_earlier_step_have_no_norms_left():
    data = door()[-1]
    total = data.clipped_sum(data.draw(), 1.0)
    data.release(total, 1.0, 1.0)
    data.close_step()
    with pytest.raises(LedgerError, match="earlier step"):
        data.norm_sum(total, torch.tanh, 1.0)
    with pytest.raises(LedgerError, match="earlier step"):
        data.weighted_sum(total.batch, HOSTILE["one"], 1.0)


def test_noise_is_set_for_the_sensitivity_of_the_sum():
    data = door()[-1]
    total = data.weighted_sum(data.draw(), HOSTILE["one"], 2.0)
    with pytest.raises(ValueError, match="noise was set for 1.0"):
        data.release(total, 1.0, 1.0)
    with pytest.raises(ValueError, match="noise was set for 1.0"):
        data.release(data.norm_sum(total, torch.tanh, 1.5), 1.0, 1.0)
