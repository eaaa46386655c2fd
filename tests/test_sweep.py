"""What a sweep does with tasks that fail: whether they are tried again, how, and what stays of each attempt."""

import json
import os
import subprocess
import sys

import pytest

from dpsweep import runner
from dpsweep.config import Composer
from dpsweep.errors import OutputError, UsageError
from dpsweep.records import Records
from dpsweep.sweep import run_tasks
from dpsweep.tasks import enumerate_tasks

# A model that does as the environment says, and is logistic regression otherwise.
MODEL = """
import os, signal, time, torch
from dpsweep.models.logistic import Logistic

class Moody(Logistic):
    def forward(self, x):
        mood = os.environ.get("MOOD")
        if mood == "large" and self.training and len(x) > 32:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return super().forward(x)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        mood = os.environ.get("MOOD")
        if mood == "broken":
            raise ValueError("no such luck")
        if mood == "dead":
            os.kill(os.getpid(), signal.SIGKILL)
        if mood == "hanging":
            time.sleep(600)
"""
ONE = ["dataset=breast_cancer", "model=moody", "epochs=1", "executor=inline", "threads=1"]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with the model; the working folder is beside it."""
    folder = tmp_path / "mine"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "moody.yaml").write_text("name: moody\nabout: as told\n_target_: moody.Moody\n")
    (folder / "moody.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOOD", raising=False)
    return folder


def sweep(mine, *overrides):
    plan = enumerate_tasks([*ONE, *overrides], Composer([mine]), multirun=True)
    return run_tasks(plan.tasks, plan.settings, quiet=True)


def records(folder="outputs"):
    from pathlib import Path

    return Records(Path(folder)).scan().records


def old(where="superseded"):
    from pathlib import Path

    return [json.loads(file.read_text()) for file in (Path("outputs") / "records" / where).glob("*")]


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "dpsweep.cli", "run", "-m", *arguments, "--config-dir", "mine"],
        capture_output=True, text=True, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_later_run_tries_what_failed_again_unless_told_not_to(mine, monkeypatch):
    monkeypatch.setenv("MOOD", "broken")
    assert sweep(mine).failed == 1
    assert records()[0]["attempts"] == 1
    result = sweep(mine, "retry=none")
    assert (result.failed, result.exit_code) == (1, 1) and records()[0]["attempts"] == 1
    assert sweep(mine).failed == 1
    assert [r["attempts"] for r in records()] == [2] and [r["attempts"] for r in old()] == [1]
    monkeypatch.delenv("MOOD")
    assert sweep(mine).done == 1
    (record,) = records()
    assert (record["status"], record["attempts"]) == ("done", 3)
    assert sweep(mine, "retry=all").done == 1 and records()[0]["attempts"] == 3  # what is done is left alone


def test_retry_all_tries_once_more_in_the_same_run(mine, monkeypatch):
    monkeypatch.setenv("MOOD", "broken")
    result = sweep(mine, "retry=all", "seed=1,2")
    assert (result.done, result.failed) == (0, 2)
    assert [r["attempts"] for r in records()] == [2, 2] and len(old()) == 2


def test_a_mistake_of_the_users_is_not_tried_twice(mine, monkeypatch):
    def refuse(*_):
        raise UsageError("mechanism.x=1: no")

    monkeypatch.setattr(runner, "_train", refuse)
    assert sweep(mine, "retry=all").exit_code == 2
    assert records()[0]["attempts"] == 1


def test_force_runs_what_is_done_and_keeps_the_earlier_record(mine, monkeypatch):
    sweep(mine)
    (first,) = records()
    assert sweep(mine, "force=true").done == 1
    (second,) = records()
    assert second["attempts"] == 2 and second["checksum"] != first["checksum"]
    assert [r["checksum"] for r in old()] == [first["checksum"]]
    monkeypatch.setenv("MOOD", "broken")
    assert sweep(mine, "force=true").failed == 1
    assert records()[0]["checksum"] == second["checksum"], "a failure took the place of a result"


def test_a_task_without_memory_is_tried_once_more_in_halves(mine, monkeypatch):
    monkeypatch.setenv("MOOD", "large")
    assert sweep(mine, "engine=vmap", "physical_batch=64", "seed=1,2").done == 2
    assert [r["attempts"] for r in records()] == [2, 2]
    assert {(r["error"]["type"], "memory" in r["error"]["message"]) for r in old()} == {("OutOfMemory", True)}
    assert sweep(mine, "engine=vmap", "physical_batch=128", "seed=3").failed == 1  # half of it is still too much
    assert max(r["attempts"] for r in records()) == 2
    assert sweep(mine, "engine=vmap", "physical_batch=64", "seed=4", "retry=none").failed == 1


@pytest.mark.parametrize(("asked", "halved"), [(None, 0.5), (64, 32), (1, 1), (3, 1)])
def test_half_of_what_was_asked_or_chosen(asked, halved):
    overrides = ["executor=inline"] + ([] if asked is None else [f"physical_batch={asked}"])
    settings = enumerate_tasks(overrides, Composer()).settings
    assert settings.with_less_memory().physical_batch == halved


@pytest.mark.parametrize("engine", ["default", "uncached", "vmap", "reference"])
def test_half_of_what_an_engine_chose_changes_nothing(tmp_path, engine):
    """The second try is the same task: its result differs by rounding alone."""
    from dataclasses import replace

    plan = enumerate_tasks(["dataset=breast_cancer", "model=dense", "epochs=1", "noise.source=seeded", f"engine={engine}",
                            f"output_dir={tmp_path}", "threads=1"], Composer())  # fmt: skip
    first = runner.run_task(plan.tasks[0], plan.settings)
    second = runner.run_task(plan.tasks[0], replace(plan.settings, physical_batch=0.001))
    assert first["error"] is None and second["error"] is None
    assert abs(first["test_auroc"] - second["test_auroc"]) < 1e-3


@pytest.mark.slow
def test_a_hanging_task_is_ended_and_says_why(mine):
    (mine / "model" / "calm.yaml").write_text("name: calm\nabout: calm\n_target_: dpsweep.models.logistic.Logistic\n")
    done = command("dataset=breast_cancer", "epochs=1", "model=moody,calm", "seed=1,2", "task_timeout=3", "workers=2",
                   MOOD="hanging")  # fmt: skip
    assert done.returncode == 1 and "2 of 4 tasks done, 2 failed" in done.stdout, done.stderr
    assert "task_timeout=3 s" in done.stderr
    assert {r["model"]: (r["error"] or {}).get("type") for r in records()} == {"moody": "TaskTimeout", "calm": None}


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_task_one_more_try(mine):
    done = command("dataset=breast_cancer", "epochs=1", "model=moody,logistic_raw", "workers=2", MOOD="dead")
    assert done.returncode == 1 and "1 of 2 tasks done, 1 failed" in done.stdout, done.stderr
    lost = next(r for r in records() if r["status"] == "failed")
    assert lost["attempts"] == 2 and lost["error"]["type"] == "WorkerLost" and "signal 9" in lost["error"]["message"]
    assert "tried once more" in done.stderr


def test_a_time_that_nobody_can_hold_a_task_to_is_refused(mine):
    with pytest.raises(UsageError, match=r"task_timeout=5 s.*executor=pool"):
        sweep(mine, "task_timeout=5")


def test_with_no_room_for_records_nothing_more_is_started(mine, monkeypatch):
    written = []

    def full(self, record, again=False):
        written.append(record["id"])
        raise OutputError.of(self.folder, OSError(28, "No space left on device"))

    monkeypatch.setattr(Records, "write", full)
    with pytest.raises(OutputError, match=r"No space left.*output_dir=PATH"):
        sweep(mine, "seed=1,2,3", "retry=all")
    assert len(written) == 1
