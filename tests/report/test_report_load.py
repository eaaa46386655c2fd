"""Which runs share a cell, and what is refused."""

import pytest
from report_factory import grid, record, task

from dpsweep.errors import UsageError
from dpsweep.report.load import Budget, join


def configured(made, **config):
    return record(made, config={"model": {"name": made["model"]}, "seed": made["seed"], **config})


def test_non_private_runs_stand_in_the_row_of_their_model():
    tasks = grid()
    results = join(tasks, [record(t) for t in tasks])
    assert results.columns == ("model",)
    assert results.rows == [("rvfl",), ("dense",)]
    assert results.budgets == [Budget(None, False), Budget(1.0, True)]
    assert [run.seed for run in results.cell(("dense",), "digits", Budget(None, False))] == [42, 43, 44]


def test_a_baseline_of_two_mechanisms_has_its_own_row():
    tasks = [task(mechanism=m) for m in ("gaussian", "hero")] + [task(epsilon=None)]
    results = join(tasks, [record(t) for t in tasks])
    assert results.columns == ("model", "mechanism")
    assert results.rows == [("rvfl", "gaussian"), ("rvfl", "hero"), ("rvfl", "none")]


def test_a_row_is_named_by_what_varies():
    tasks = [task(mechanism=m) for m in ("gaussian", "hero")]
    results = join(tasks, [])
    assert [results.row_name(row) for row in results.rows] == ["gaussian", "hero"]
    assert join([task()], []).row_name(("rvfl",)) == "rvfl"


def test_a_mechanism_that_comes_with_its_model_is_no_label():
    laplace = [task(model="elm", mechanism="laplace_elm", epsilon=epsilon) for epsilon in (None, 1.0)]
    tasks = [task(), *laplace]
    assert join(tasks, [record(t) for t in tasks]).columns == ("model",)


def test_runs_are_never_pooled():
    tasks = [task(run=run, seed=seed) for run in ("1", "2") for seed in (1, 2)]
    results = join(tasks, [])
    assert results.columns == ("model", "run")
    assert {len(runs) for runs in results.cells.values()} == {2}


def test_a_key_that_differs_inside_a_cell_becomes_a_column():
    tasks = [task(seed=seed, name=str(split)) for split in (2026, 2027) for seed in (42, 43)]
    records = [configured(t, dataset={"split_seed": int(t["id"][-4:]), "a": int(t["id"][-4:])}) for t in tasks]
    results = join(tasks, records)
    assert results.columns == ("model", "a")  # one of two keys that say the same
    assert {len(runs) for runs in results.cells.values()} == {2}


def test_mixed_protocols_split_even_when_seeds_differ():
    tasks = [task(seed=1), task(seed=2)]
    records = [configured(tasks[0], optimizer={"lr": 0.1}), configured(tasks[1], optimizer={"lr": 0.2})]
    assert join(tasks, records).rows == [("rvfl", "0.1"), ("rvfl", "0.2")]


def test_a_left_out_key_is_the_default_and_other_models_lack_it():
    tasks = [task(), task(model="elm", name="a"), task(model="elm", name="b")]
    records = [configured(tasks[0]), configured(tasks[1], width=3), configured(tasks[2])]
    results = join(tasks, records)
    assert results.columns == ("model", "width")
    assert results.rows == [("rvfl", "—"), ("elm", "3"), ("elm", "default")]
    assert results.row_name(("elm", "3")) == "elm, width=3"


def test_seeds_in_the_configuration_are_no_label():
    tasks = [task(seed=1), task(seed=2)]
    records = [configured(t, model={"seed": t["seed"]}) for t in tasks]
    assert join(tasks, records).columns == ("model",)


def test_two_records_of_one_id_are_refused():
    with pytest.raises(UsageError, match="Two records have the id digits-rvfl-gaussian"):
        join([task()], [record(task()), record(task(), 0.8)])


def test_two_tasks_of_one_id_are_refused():
    with pytest.raises(UsageError, match="Two tasks"):
        join([task(), task()], [])


def test_executions_that_nothing_tells_apart_are_refused():
    tasks = [task(name="a"), task(name="b")]
    with pytest.raises(UsageError, match="run` labels"):
        join(tasks, [record(t) for t in tasks])


def test_records_of_other_suites_are_left_out():
    results = join([task()], [record(task()), record(task(dataset="heart"))])
    assert (len(results.runs), results.datasets) == (1, ["digits"])


def test_without_tasks_each_record_is_one():
    results = join([], [record(task(seed=2)), record(task(seed=1))])
    assert [run.seed for run in results.runs] == [1, 2]


def test_noise_without_a_target_is_not_called_non_private():
    made = task(epsilon=None, mechanism="gaussian")
    (budget,) = join([made], [record(made, noise_multiplier=1.0, epsilon=3.0)]).budgets
    assert budget.name == "no target"


def test_a_merely_claimed_budget_has_a_column_of_its_own_also_while_it_is_missing():
    tasks = [task(mechanism="dirichlet", seed=s) | {"claim_only": True} for s in (1, 2)] + [task(mechanism="gaussian", seed=1)]
    results = join(tasks, [record(tasks[0], epsilon=None, noise_multiplier=None), record(tasks[2])])
    assert [budget.name for budget in results.budgets] == ["ε=1", "claimed ε=1"]
    assert [run.status for run in results.cell(("rvfl", "dirichlet"), "digits", Budget(1.0, True, claimed=True))] == [
        "done",
        "missing",
    ]
    assert results.cell(("rvfl", "dirichlet"), "digits", Budget(1.0, True)) == []
