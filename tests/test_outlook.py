"""The estimate of a plan: arithmetic on invented times, and its words."""

import pytest

from dpsweep import outlook
from dpsweep.cli import main
from dpsweep.config import Composer
from dpsweep.records import Records
from dpsweep.sweep import span, status_of
from dpsweep.tasks import enumerate_tasks

COMPOSER = Composer()
SIZES = {("digits", ""): 64, ("mnist", ""): 784, ("cifar10", ""): 3072}


def tasks(*overrides):
    return enumerate_tasks(list(overrides), COMPOSER, multirun=True).tasks


def record(train, rest, *overrides, threads=1):
    (task,) = tasks(*overrides)
    total = None if train is None else train + rest
    return {"id": task.id, "config": task.config, "seconds_train": train, "seconds_total": total, "threads": threads}


def estimate(to_run, *finished, cores=2):
    return outlook.estimate(to_run, finished, SIZES, cores)


def test_a_kind_takes_the_mean_of_its_finished_tasks_whatever_their_budget_and_seed():
    to_run = tasks("dataset=mnist", "epsilon=1,2", "seed=1,2,3")
    found = estimate(to_run, record(3.0, 1.0, "dataset=mnist", "epsilon=4"), record(5.0, 3.0, "dataset=mnist", "seed=9"))
    assert found.total == pytest.approx(6 * 6.0)
    assert found.share_extrapolated == 0 and not found.unknown


def test_threads_count_as_cores_up_to_those_that_there_are():
    one = record(3.0, 1.0, "dataset=mnist", threads=8)
    assert estimate(tasks("dataset=mnist"), one, cores=2).total == pytest.approx(8)


def test_another_schedule_scales_training_alone():
    found = estimate(tasks("dataset=mnist", "epochs=10"), record(3.0, 1.0, "dataset=mnist", "epochs=1"))
    assert found.total == pytest.approx(10 * 3.0 + 1.0) and found.share_extrapolated == 1
    by_rate = tasks("dataset=mnist", "sample_rate=1/200", "steps=2000")
    assert estimate(by_rate, record(3.0, 1.0, "dataset=mnist", "epochs=10")).total == pytest.approx(4.0)


def test_other_data_is_scaled_by_steps_and_the_size_of_a_record_from_the_most_similar():
    finished = [record(0.1, 0.2, "dataset=digits"), record(30.0, 1.0, "dataset=mnist")]
    found = estimate(tasks("dataset=cifar10", "epsilon=1,2"), *finished)
    ratio = 1670 * 3072 / (2000 * 784)
    assert found.total == pytest.approx(2 * (30.0 * ratio + 1.0)) and found.share_extrapolated == 1


def test_measured_and_extrapolated_shares_and_what_is_unknown():
    finished = [record(3.0, 1.0, "dataset=mnist", "model=rvfl"), record(None, None, "dataset=mnist", "model=cnn")]
    to_run = tasks("dataset=mnist", "model=rvfl,cnn", "seed=1,2") + tasks("dataset=mnist", "model=rvfl", "epsilon=none")
    found = estimate(to_run, *finished)
    assert found.unknown == {"cnn": 2}  # its time is withheld
    assert found.total == pytest.approx(3 * 4.0) and found.share_extrapolated == pytest.approx(1 / 3)
    words = " ".join(outlook.in_words(found, len(to_run), 2))
    for part in ("5 to run: 3 take about 6 s on 2 cores", "rvfl on mnist 100%", "33% of it is extrapolated", "2 of cnn"):
        assert part in words


def test_another_width_is_another_model():
    found = estimate(tasks("dataset=mnist", "model.hidden=800"), record(3.0, 1.0, "dataset=mnist"))
    assert not found.seconds and found.unknown == {"rvfl": 1}
    assert "no finished task" in outlook.in_words(found, 1, 2)[0]


def test_data_that_is_not_configured_here_is_passed_over():
    strange = record(3.0, 1.0, "dataset=mnist")
    strange["config"] = strange["config"] | {"dataset": {"name": "elsewhere", "reference_size": 5}}
    sizes = outlook.sizes_of(tasks("dataset=cifar10"), [strange, record(1.0, 1.0, "dataset=digits")], COMPOSER)
    assert sizes == {("cifar10", ""): 3072, ("digits", ""): 64}
    assert not estimate(tasks("dataset=cifar10"), strange).seconds


def test_counts_by_stage_and_repeat(tmp_path):
    whole = tasks("suite=quickstart", "repeat=null,2", "model=rvfl")
    lines = outlook.counts(whole, status_of(whole, Records(tmp_path)))
    assert [line.split() for line in lines] == [
        ["no", "label", "18", "tasks", "0", "done", "0", "failed", "18", "missing"],
        ["no", "label", "repeat", "2", "18", "tasks", "0", "done", "0", "failed", "18", "missing"],
    ]


def test_spans():
    assert [span(s) for s in (3.2, 300, 7200)] == ["3 s", "5 min", "2.0 h"]


def test_plan_tells_of_the_whole_paper(tmp_path, capsys):
    assert main(["plan", "suite=dp_rvfl", f"output_dir={tmp_path}"]) == 0
    text = capsys.readouterr().out
    for part in ("dp_rvfl_primary", "1540 tasks", "dp_rvfl_attention", "36 tasks", "2536 tasks: 0 done, 0 failed, 2536 missing"):
        assert part in text


def test_no_time_is_said_of_data_that_is_not_public(tmp_path, capsys):
    common = ["run", "-m", "dataset=breast_cancer", "model=logistic_raw", "epochs=1", "executor=inline", f"output_dir={tmp_path}"]
    assert main([*common, "seed=1,2"]) == 0
    assert " s  (about " in capsys.readouterr().err
    assert main([*common, "seed=3,4", "dataset.public=false"]) == 0
    said = capsys.readouterr().err
    assert said.count("accuracy") == 2 and "left" not in said and " s" not in said.replace(" seed", "")
