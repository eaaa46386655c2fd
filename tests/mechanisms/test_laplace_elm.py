"""Closed-form DP-ELM: its sensitivities, its noise, its solve, and what it promises; against NumPy and SciPy throughout."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from scipy.special import expit

from dpsweep.build import build
from dpsweep.config import Composer, parse
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Account, Schedule, Target
from dpsweep.mechanisms.laplace_elm import LaplaceELM, sensitivity_of, solve
from dpsweep.models.elm import ELM
from dpsweep.privacy.accounting import PureDP, Unbounded
from dpsweep.privacy.noise import Randomness
from dpsweep.runner import guarantee_fields, run_task
from dpsweep.tasks import Settings, Task
from dpsweep.training.engines import prepare
from dpsweep.training.loop import LoopData, train

RELEASES = ("published", "triangle")
PURE = Account("rdp", 0.0)
FEATURES, CLASSES = 6, 3


def records(n, seed=0, classes=CLASSES):
    generator = np.random.default_rng(seed)
    return generator.standard_normal((n, FEATURES)).astype(np.float32), generator.integers(classes, size=n)


def schedule(hidden, n=50):
    return Schedule(n, Fraction(1), 1, n, n, {"hidden": hidden})


def fit(x, y, release="published", hidden=4, epsilon=None, classes=CLASSES, randomness=None, physical=None):
    """Train through the loop: the model, its plan, what was trained, the door."""
    mechanism = LaplaceELM(release)
    plan = mechanism.calibrate(schedule(hidden), Target(epsilon) if epsilon else None, PURE)
    model = ELM((FEATURES,), classes, 5, hidden)
    x = torch.as_tensor(x)
    data = LoopData(prepare("default", model, x, "elm", physical), torch.as_tensor(y, dtype=torch.int64), model, plan, 50,
                    randomness or Randomness.seeded(0), "none", physical)  # fmt: skip
    return model, plan, train(mechanism, plan, model, data, None), data


def hidden_of(x, hidden=4, seed=5):
    """H by SciPy: weights, then biases, from the seed."""
    generator = torch.Generator().manual_seed(seed)
    weight, bias = (
        torch.randn(*size, generator=generator, dtype=torch.float64).numpy() for size in ((FEATURES, hidden), (hidden,))
    )
    return expit(np.float64(x) @ weight + bias)


def statistics_of(h, y, release, classes=CLASSES):
    """The released numbers by NumPy: H'H or its triangle, then H'Y."""
    gram, cross = h.T @ h, h.T @ np.eye(classes)[y]
    return np.concatenate([(gram if release == "published" else gram[np.triu_indices(len(gram))]).ravel(), cross.ravel()])


def moved(h, g, same_label, release):
    """The l1 distance of two records' contributions; g = None: one record against none."""
    labels = np.array([0]), np.array([0 if same_label else 1])
    one = statistics_of(h[None], labels[0], release)
    return float(np.abs(one - (0 if g is None else statistics_of(g[None], labels[1], release))).sum())


@settings(max_examples=200, deadline=None)
@given(data=st.data(), hidden=st.integers(1, 6), release=st.sampled_from(RELEASES), same=st.booleans())
def test_no_pair_of_records_exceeds_the_sensitivities(data, hidden, release, same):
    h, g = (np.array(data.draw(st.lists(st.floats(0, 1), min_size=hidden, max_size=hidden))) for _ in range(2))
    bound = sensitivity_of(release, hidden)
    assert moved(h, None, same, release) <= bound.add_remove * (1 + 1e-12)
    assert moved(h, g, same, release) <= bound.replace_one * (1 + 1e-12)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_both_suprema_are_reached_by_an_optimiser_and_not_exceeded(hidden, release):
    """Powell's method over open cubes, from random starts, knowing nothing of the proof."""
    generator = np.random.default_rng(hidden)
    bound = sensitivity_of(release, hidden)

    def best(function, size):
        box = [(1e-9, 1 - 1e-9)] * size
        return -min(optimize.minimize(lambda v: -function(v), generator.random(size), method="Powell", bounds=box).fun
                    for _ in range(8))  # fmt: skip

    alone = best(lambda h: moved(h, None, True, release), hidden)
    replaced = best(lambda v: max(moved(v[:hidden], v[hidden:], same, release) for same in (True, False)), 2 * hidden)
    assert bound.add_remove * (1 - 1e-3) < alone <= bound.add_remove
    assert bound.replace_one * (1 - 1e-3) < replaced <= bound.replace_one


def test_the_sensitivities_at_the_papers_widths():
    assert (sensitivity_of("published", 10).add_remove, sensitivity_of("published", 10).replace_one) == (110, 110.25)
    assert sensitivity_of("triangle", 10).add_remove == 65
    assert sensitivity_of("triangle", 10).replace_one == pytest.approx(65.4545454545)
    for hidden in (1, 3, 5, 10):  # the published scale covers both relations
        assert sensitivity_of("published", hidden).replace_one < hidden * (hidden + 2)


@pytest.mark.parametrize("hidden", [1, 3, 5, 10])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1, 2, 4, 8, 1.3])
def test_scales_and_what_they_prove(hidden, epsilon):
    published = LaplaceELM("published").calibrate(schedule(hidden), Target(epsilon) if epsilon else None, PURE)
    triangle = LaplaceELM("triangle").calibrate(schedule(hidden), Target(epsilon) if epsilon else None, PURE)
    assert published.public["laplace_scale"] == pytest.approx(hidden * (hidden + 2) / epsilon, rel=1e-14)
    needed = hidden * (hidden + 3) / 2 + hidden / (2 * (hidden + 1))
    assert triangle.public["laplace_scale"] == pytest.approx(needed / epsilon, rel=1e-14)
    assert published.epsilon(PURE) == pytest.approx(epsilon * (hidden**2 + hidden + 0.25) / (hidden**2 + 2 * hidden), rel=1e-14)
    assert epsilon * (1 - 1e-14) <= triangle.epsilon(PURE) <= epsilon


@pytest.mark.parametrize("release", RELEASES)
def test_neighbouring_datasets_lose_no_more_than_the_plan_says(release):
    """The loss of Laplace noise is at most |difference|_1 / scale: of the sums behind the door, checked by NumPy."""
    x, y = records(40)
    sums, plan = {}, None
    extreme, other = np.full(FEATURES, 1e4, np.float32), np.full(FEATURES, -1e4, np.float32)
    for name, row, label in (
        ("without", None, 0),
        ("one", extreme, 0),
        ("another", other, 1),
        ("infinite", np.full(FEATURES, np.inf, np.float32), 1),
    ):
        xs, ys = (x, y) if row is None else (np.vstack([x, row]), np.append(y, label))
        kept = []

        def keeping(self, total, *arguments, kept=kept, release_it=LoopData.release):
            kept.append(self._sums[total.number].numpy().copy())
            return release_it(self, total, *arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LoopData, "release", keeping)
            _, plan, _, _ = fit(xs, ys, release, epsilon=1.0)
        (sums[name],) = kept
        finite = np.isfinite(xs).all(1)
        np.testing.assert_allclose(sums[name], statistics_of(hidden_of(xs[finite]), ys[finite], release), rtol=1e-12)
    for one in sums.values():
        for two in sums.values():
            assert np.abs(one - two).sum() / plan.public["laplace_scale"] <= plan.epsilon(PURE) * (1 + 1e-12) <= 1 + 1e-12
    assert np.array_equal(sums["infinite"], sums["without"])


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("release", RELEASES)
def test_without_a_budget_it_is_plain_least_squares(release, classes):
    x, y = records(200, classes=classes)
    model, plan, trained, _ = fit(x, y, release, classes=classes)
    expected, *_ = np.linalg.lstsq(hidden_of(x), np.eye(classes)[y], rcond=None)
    np.testing.assert_allclose(model.beta.weight.detach().numpy().T, expected, rtol=1e-7, atol=1e-9)
    ((event, _),) = trained.ledger.events()
    assert isinstance(event, Unbounded)
    guarantee = LaplaceELM(release).guarantee(plan, trained.ledger, PURE, None)
    assert guarantee.epsilon is None and guarantee.text.startswith("No privacy")


@pytest.mark.parametrize("release", RELEASES)
def test_the_solution_is_that_of_the_noisy_system(release):
    """The noise is read from the stream by the seed; entries of the published H'H have noise of their own."""
    x, y = records(100)
    model, plan, _, _ = fit(x, y, release, epsilon=2.0, randomness=Randomness.seeded(9))
    numbers = statistics_of(hidden_of(x), y, release)
    noise = Randomness.seeded(9).stream("noise").laplace(len(numbers)) * plan.public["laplace_scale"]
    if release == "published":
        gram = (numbers + noise)[:16].reshape(4, 4)
        assert np.abs(gram - gram.T).max() > 1
    else:
        gram = np.zeros((4, 4))
        gram[np.triu_indices(4)] = (numbers + noise)[:10]
        gram = np.triu(gram) + np.triu(gram, 1).T
    cross = (numbers + noise)[-12:].reshape(4, 3)
    np.testing.assert_allclose(model.beta.weight.detach().numpy().T, np.linalg.solve(gram, cross), rtol=1e-9)


@pytest.mark.parametrize("release", RELEASES)
def test_the_noise_follows_the_law_of_the_paper(release):
    """All releases over no records at all: 60 runs of secure noise, scale L (L + 2)/epsilon, or the triangle's."""
    noises = []

    def keeping(self, *arguments, release_it=LoopData.release):
        noises.append(release_it(self, *arguments))
        return noises[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoopData, "release", keeping)
        for _ in range(60):
            fit(*records(0), release, hidden=10, epsilon=2.0, randomness=Randomness.secure())
    scale = 60.0 if release == "published" else (65 + 10 / 22) / 2
    entries = (100 if release == "published" else 55) + 10 * CLASSES
    assert {len(noise) for noise in noises} == {entries}
    assert stats.kstest(torch.cat(noises).numpy(), stats.laplace(scale=scale).cdf).pvalue > 1e-4


@pytest.mark.parametrize("physical", [1, 7, None])
def test_chunks_change_nothing_beyond_rounding(physical):
    x, y = records(2500)
    whole, *_ = fit(x, y, epsilon=4.0, physical=2500)
    cut, *_ = fit(x, y, epsilon=4.0, physical=physical)
    torch.testing.assert_close(cut.beta.weight, whole.beta.weight, rtol=1e-8, atol=1e-10)


def test_records_that_are_not_finite_contribute_nothing():
    x, y = records(80)
    clean, *_ = fit(x, y, epsilon=4.0)
    poisoned = np.vstack([x, np.full((3, FEATURES), np.nan, np.float32), np.full((2, FEATURES), -np.inf, np.float32)])
    model, _, trained, _ = fit(poisoned, np.append(y, [0, 1, 2, 0, 1]), epsilon=4.0)
    assert not trained.diverged
    torch.testing.assert_close(model.beta.weight, clean.beta.weight, rtol=1e-9, atol=1e-12)


def test_a_singular_system_takes_the_pseudo_inverse_and_no_other():
    generator = torch.Generator().manual_seed(0)
    cross = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    gram = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    assert torch.equal(solve(gram, cross), torch.linalg.solve(gram, cross))
    singular = torch.ones(3, 3, dtype=torch.float64)
    np.testing.assert_allclose(solve(singular, cross), np.linalg.pinv(singular.numpy()) @ cross.numpy(), rtol=1e-9)
    model, *_ = fit(*records(0))  # no records and no noise: zeros
    assert not model.beta.weight.any()


def test_the_guarantee_names_both_relations_its_looseness_and_the_precision():
    _, plan, trained, _ = fit(*records(50), hidden=10, epsilon=2.0)
    guarantee = LaplaceELM("published").guarantee(plan, trained.ledger, PURE, Target(2.0))
    assert (guarantee.adjacency, guarantee.protects, guarantee.epsilon_claimed) == ("add_remove and replace_one", "record", 2.0)
    assert guarantee.epsilon == pytest.approx(110.25 / 60)
    for part in ("(1.8375, 0)", "adding or removing", "replacing", "scale 60", "1.83333", "target was 2", "float64", "Mironov"):
        assert part in guarantee.text
    assert trained.ledger.events() == [(PureDP(guarantee.epsilon, "laplace"), 1)]
    fields = guarantee_fields(guarantee, seeded=True)
    assert fields["epsilon"] is None and fields["epsilon_if_secure"] == guarantee.epsilon


def test_impossible_settings_are_refused_by_name():
    with pytest.raises(UsageError, match="mechanism.release=square"):
        build("mechanism", {**Composer().node("mechanism", "laplace_elm"), "release": "square"})
    for target in (None, 1.0):
        with pytest.raises(UsageError, match=r"model.hidden=0"):
            LaplaceELM("published").calibrate(schedule(0), Target(target) if target else None, PURE)
    with pytest.raises(UsageError, match=r"epsilon=1e-308"):
        LaplaceELM("published").calibrate(schedule(10), Target(1e-308), PURE)


def record_of(*overrides):
    items = parse(["model=dp_elm", "mechanism=laplace_elm", "device=cpu", "threads=1", *overrides])[0]
    config = Composer().compose(items)
    record = run_task(Task.from_config(config), Settings.from_config(config))
    assert record["status"] == "done", record["error"]
    return record


def test_the_record_of_a_private_run():
    record = record_of("dataset=digits", "epsilon=2", "seed=7")
    assert record["delta"] == 0 and record["epsilon"] == pytest.approx(1.8375)
    assert record["laplace_scale"] == pytest.approx(60) and record["steps"] == 1
    for key in ("optimizer", "accountant", "batch_size", "epochs", "max_grad_norm", "noise_multiplier"):
        assert record[key] is None
    assert record["trainable_parameters"] == 100 and record["stored_parameters"] == 100 + 64 * 10 + 10
    assert record["config"]["mechanism"] == {"name": "laplace_elm", "release": "published"}


def test_without_noise_it_learns_and_repeats():
    for dataset, least in (("digits", 0.5), ("breast_cancer", 0.8)):
        first, second = (record_of(f"dataset={dataset}", "epsilon=none") for _ in range(2))
        assert first["test_auroc"] == second["test_auroc"] and first["test_accuracy"] > least
        assert first["epsilon"] is None and first["delta"] is None and "laplace_scale" not in first


def test_little_noise_costs_little():
    exact, noisy = record_of("dataset=digits", "epsilon=none"), record_of("dataset=digits", "epsilon=1e6")
    assert math.isclose(exact["test_accuracy"], noisy["test_accuracy"], abs_tol=0.01)
