"""Identity of tasks, and their enumeration."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.config import Composer
from dpsweep.errors import UsageError
from dpsweep.tasks import enumerate_tasks, task_id

COMPOSER = Composer()


def tasks(*overrides, multirun=False):
    return enumerate_tasks(list(overrides), COMPOSER, multirun).tasks


def ident(*overrides):
    (task,) = tasks(*overrides)
    return task.id


def test_one_budget_written_three_ways_is_one_task():
    assert len({ident(f"epsilon={text}") for text in ("0.1", "1e-1", ".1", "0.10")}) == 1
    assert ident("epsilon=1") == ident("epsilon=1.0") == ident()


@pytest.mark.parametrize(
    "performance", ["threads=3", "device=cpu", "physical_batch=7", "engine=reference", "output_dir=elsewhere", "workers=2",
                    "save_model=true", "executor=inline", "data.dir=/nowhere", "on_error=stop"])  # fmt: skip
def test_performance_is_not_identity(performance):
    assert ident(performance) == ident()


@pytest.mark.parametrize(
    "science", ["epsilon=2", "seed=1", "delta=1e-6", "model=cnn", "model.hidden=10", "optimizer.lr=0.1", "optimizer=sgd",
                "accountant=pld", "epochs=2", "batch_size=3", "noise.source=seeded", "noise.hardening=sum4", "run=again",
                "split_seed=1", "repeat=2", "mechanism.max_grad_norm=2", "dataset.reference_size=1000",
                "dataset=breast_cancer", "diagnostics=true", "curves=true", "noise_multiplier=1"])  # fmt: skip
def test_science_is_identity(science):
    assert ident(science) != ident()


@pytest.mark.parametrize("irrelevant", ["delta=1e-6", "accountant=pld", "noise.source=seeded", "mechanism.max_grad_norm=2"])
def test_what_cannot_change_the_result_is_not_identity(irrelevant):
    assert ident("epsilon=none", irrelevant) == ident("epsilon=none") == ident("mechanism=none")


def test_a_noise_multiplier_names_a_task_in_place_of_the_budget():
    (task,) = tasks("noise_multiplier=1")
    assert "sigma1-" in task.id and "eps" not in task.id and "epsilon" not in task.config
    assert task.config["noise_multiplier"] == task.labels["target_noise_multiplier"] == 1.0
    assert task.labels["target_epsilon"] is None
    assert task.id == ident("noise_multiplier=1.0") == ident("noise_multiplier=1", "epsilon=none")
    assert len({task.id, ident(), ident("noise_multiplier=1.1"), ident("noise_multiplier=1", "delta=1e-6")}) == 4
    assert ident("noise_multiplier=null") == ident()


def test_a_closed_form_is_named_by_what_it_uses():
    elm = ("model=dp_elm", "mechanism=laplace_elm")
    (task,) = tasks(*elm)
    assert task.config.keys() == {"protocol", "dataset", "model", "mechanism", "epsilon", "noise", "split", "split_seed", "seed"}
    assert task.labels["optimizer"] is None and task.labels["accountant"] is None
    assert len({ident(*elm, "mechanism.release=triangle"), ident(*elm, "model.hidden=3"), ident(*elm)}) == 3
    without = ident(*elm, "epsilon=none")
    assert (
        without == ident(*elm, "epsilon=none", "mechanism.release=triangle") == ident(*elm, "epsilon=none", "noise.source=seeded")
    )


def test_a_grid_leaves_out_what_does_not_go_together():
    plan = enumerate_tasks(["model=rvfl,dp_elm", "mechanism=gaussian,laplace_elm", "epsilon=none,2"], COMPOSER, multirun=True)
    kinds = {(t.labels["model"], t.labels["mechanism"]) for t in plan.tasks}
    assert kinds == {("rvfl", "gaussian"), ("rvfl", "none"), ("dp_elm", "laplace_elm")}
    assert any("model=dp_elm with mechanism=gaussian" in reason for reason in plan.impossible)


def test_a_new_option_that_is_off_leaves_old_identities():
    (task,) = tasks()
    values = {**task.values, "model": {**task.values["model"], "invented": None}}
    from dpsweep.config import Config
    from dpsweep.tasks import Task

    assert Task.from_config(Config(values, frozenset())).id == task.id


def test_equal_rates_are_one_task():
    assert (
        ident("sample_rate=1/20", "steps=10") == ident("sample_rate=0.05", "steps=10") == ident("sample_rate=5/100", "steps=10")
    )


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(["dataset", "model", "mechanism"]), st.text(min_size=1), min_size=3), st.integers(0))
def test_ids_are_file_names(names, seed):
    canonical = {group: {"name": name} for group, name in names.items()} | {"seed": seed}
    ident = task_id(canonical)
    assert "/" not in ident and "\0" not in ident and ident.isascii() and ident not in (".", "..")
    assert ident == task_id(dict(reversed(canonical.items())))


def test_a_grid_leaves_the_impossible_out_and_runs_nothing_twice():
    plan = enumerate_tasks(["mechanism=none,gaussian", "epsilon=none,1,2"], COMPOSER, multirun=True)
    assert [t.labels["target_epsilon"] for t in plan.tasks] == [None, 1.0, 2.0]
    assert len(plan.impossible) == 2
    with pytest.raises(UsageError, match="none of the combinations"):
        enumerate_tasks(["mechanism=none", "epsilon=1,2"], COMPOSER, multirun=True)


def test_planning_loads_neither_torch_nor_opacus():
    code = (
        "import sys; from dpsweep.cli import main; main(['plan', 'suite=quickstart']);"
        "main(['calibrate', 'dataset=heart', 'epsilon=2']);"
        "loaded = {'torch', 'opacus', 'dp_accounting'} & set(sys.modules); sys.exit(str(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_fields_named_by_numbers_have_an_identity_too(tmp_path):
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "odd.yaml").write_text(
        "name: odd\n_target_: x.Y\nkind: table\nshape: [4]\nclasses: 2\nreference_size: 90\n"
        "schedule: {batch_size: 9, epochs: 1}\nnumeric: {7: [0, 1], age: [0, 120]}\n"
    )
    (task,) = enumerate_tasks(["dataset=odd"], Composer([tmp_path])).tasks
    assert task.config["dataset"]["numeric"] == {"7": [0, 1], "age": [0, 120]}


def test_how_a_rate_was_chosen_is_told_and_names_no_task():
    composer = Composer()
    plain, told = (enumerate_tasks(["optimizer.lr=0.01", *more], composer).tasks[0] for more in ([], ["selection='by a grid'"]))
    assert plain.id == told.id and told.values["selection"] == "by a grid" and "selection" not in told.config
    for wrong in ("selection=3", f"selection={'x' * 501}", "selection=[a]"):
        with pytest.raises(UsageError, match="selection=.*a text of at most 500 characters"):
            enumerate_tasks([wrong], composer)
