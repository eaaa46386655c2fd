"""Paired contrasts: which cells meet, what is tested, and what few seeds can say."""

import pytest
from report_factory import failed, grid, record, seeded, task

from dpsweep.errors import UsageError
from dpsweep.report import contrasts
from dpsweep.report.load import METRICS, join

ONE = {"accuracy": METRICS["accuracy"]}


def run(records, compare=None, metrics=ONE, tasks=()):
    results = join(tasks, records)
    return contrasts.compute(results, metrics, *contrasts.choose(results, compare)), results


def two_models(seeds, gap=0.1):
    return [
        record(task(model=model, seed=seed), 0.8 + (gap + seed / 1000 if model == "dense" else 0))
        for model in ("rvfl", "dense")
        for seed in seeds
    ]


def test_differences_are_paired_by_seed():
    values = {"rvfl": {1: 0.5, 2: 0.7, 3: 0.9}, "dense": {3: 0.8, 1: 0.6, 2: 0.9}}
    records = [record(task(model=m, seed=s), v) for m, by_seed in values.items() for s, v in by_seed.items()]
    found, results = run(records, {"by": "model", "reference": "rvfl"})
    (contrast,) = found.tested
    assert sorted(contrast.differences) == pytest.approx([-0.1, 0.1, 0.2])
    table = contrasts.table(found, ONE, results)
    # mean 20/3 points, SD 15.2753, half-width 4.30265 * 15.2753 / sqrt(3) = 37.946; |sum| >= 0.2 in 6 of 8 assignments
    place = ["Accuracy", "digits", "ε=1", "dense", "rvfl"]
    assert table.rows == [[*place, "3", "+6.67", "−31.28 to +44.61", "0.75", "0.75"]]


def test_a_seed_without_a_value_leaves_the_pair_out():
    tasks = grid(budgets=(1.0,))
    records = [failed(t) if (t["model"], t["seed"]) == ("dense", 43) else record(t) for t in tasks]
    found, results = run(records, tasks=tasks)
    assert len(found.tested[0].differences) == 2
    assert contrasts.table(found, ONE, results).rows[0][5] == "2 of 3"


def test_one_pair_has_no_interval():
    found, results = run(two_models([1]), {"by": "model", "reference": "rvfl"})
    assert contrasts.table(found, ONE, results).rows[0][5:] == ["1", "+10.10", "n/a", "1", "1"]


def test_holm_runs_over_all_metrics_and_cells():
    found, _ = run(two_models(range(6)), metrics={name: METRICS[name] for name in ("accuracy", "f1")})
    assert [(c.p, c.p_holm) for c in found.tested] == [(2 / 64, 4 / 64)] * 2


@pytest.mark.parametrize(
    ("seeds", "metrics", "words"),
    [
        (5, ["accuracy"], ["2/2^5 = 0.0625", "nothing can reach 0.05", "Holm over 1 contrast needs 6 seeds"]),
        (6, ["accuracy", "f1"], ["p ≤ 0.05/2 = 0.025", "no contrast can reach 0.05", "7 seeds would do"]),
        (7, ["accuracy", "f1"], ["2 significant at 0.05", "can be reached"]),
    ],
)
def test_the_report_says_what_so_many_seeds_can_reach(seeds, metrics, words):
    found, _ = run(two_models(range(seeds)), metrics={name: METRICS[name] for name in metrics})
    text = " ".join(contrasts.sentences(found))
    assert all(word in text for word in words), text


def test_models_with_mechanisms_of_their_own_meet_the_one_reference():
    tasks = grid(models=("rvfl",)) + [
        task(model="elm", mechanism="laplace_elm", epsilon=e, seed=s) for e in (None, 1.0) for s in (42, 43, 44)
    ]
    found, _ = run([record(t) for t in tasks], {"by": "model", "reference": "rvfl"}, tasks=tasks)
    assert [(c.row, c.budget.name) for c in found.tested] == [(("elm",), "non-private"), (("elm",), "ε=1")]


def test_runs_meet_only_their_own_label():
    tasks = [task(model=m, run=r, seed=s) for m in ("rvfl", "dense") for r in ("1", "2") for s in (1, 2)]
    records = [record(t, 0.9 if t["run"] == "1" else 0.5) for t in tasks]
    found, _ = run(records, tasks=tasks)
    assert [(c.row, c.reference) for c in found.tested] == [(("dense", r), ("rvfl", r)) for r in ("1", "2")]
    assert [c.differences for c in found.tested] == [(0.0, 0.0)] * 2


def test_a_run_without_a_reference_of_its_label_is_not_compared_with_another():
    tasks = [task(run="1"), task(model="dense", run="1"), task(model="dense", run="2")]
    found, _ = run([record(t) for t in tasks], tasks=tasks)
    assert [c.row for c in found.tested] == [("dense", "1")]


def test_several_possible_references_are_counted_not_guessed():
    tasks = [task(mechanism=m) for m in ("gaussian", "hero")] + [task(model="dense", mechanism="laplace")]
    found, _ = run([record(t) for t in tasks], {"by": "model", "reference": "rvfl"}, tasks=tasks)
    assert (found.tested, found.unpaired) == ([], 1)
    assert "could not be paired" in " ".join(contrasts.sentences(found))


def test_default_is_models_then_mechanisms_then_nothing():
    assert contrasts.choose(join(grid(), []), None) == ("model", "rvfl")
    mechanisms = [task(mechanism=m, epsilon=e) for m, e in (("none", None), ("gaussian", 1.0), ("hero", 1.0))]
    assert contrasts.choose(join(mechanisms, []), None) == ("mechanism", "gaussian")
    assert contrasts.choose(join([task()], []), None) is None


@pytest.mark.parametrize("compare", [{"by": "colour", "reference": "x"}, {"by": "model", "reference": "cnn"}])
def test_a_comparison_that_is_not_there_is_refused(compare):
    with pytest.raises(UsageError, match="Choose from"):
        contrasts.choose(join(grid(), []), compare)


def test_too_many_pairs_are_said_to_be_untested():
    found, _ = run(two_models(range(41)))
    assert (found.tested, found.too_many) == ([], 1)
    assert "not tested" in " ".join(contrasts.sentences(found))


def test_contrasts_carry_the_marks_of_their_cells():
    records = [record(task(model="rvfl")), seeded(task(model="dense"))]
    found, results = run(records)
    table = contrasts.table(found, ONE, results)
    assert table.rows[0][2] == "ε=1‡" and table.notes[0][0] == "‡"


def test_significant_times_of_runs_that_shared_the_machine_are_told_apart():
    made = [
        record(task(model=model, seed=seed), 0.8 + 0.01 * (model == "dense"), seconds_train=seconds + seed / 100, alone=alone)
        for model, seconds, alone in (("rvfl", 1.0, True), ("dense", 2.0, False))
        for seed in range(10)
    ]
    metrics = {name: METRICS[name] for name in ("accuracy", "seconds_train")}
    found, _ = run(made, {"by": "model", "reference": "rvfl"}, metrics)
    text = " ".join(contrasts.sentences(found))
    assert "2 contrasts" in text and ": 2 significant" in text
    assert "1 of them, marked ~, are of times that don't compare" in text and "1 of the significant ones is among these" in text
    alone, _ = run([r | {"alone": True} for r in made], {"by": "model", "reference": "rvfl"}, metrics)
    assert "marked ~" not in " ".join(contrasts.sentences(alone))
