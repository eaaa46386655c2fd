"""Sweeps through Hydra's launchers: their tasks land where those of any sweep do."""

import os
import re
import signal
import time

import pytest

from dpsweep.cli import main
from dpsweep.config import Composer
from dpsweep.errors import OutputError
from dpsweep.launchers import _pack, _unpack
from dpsweep.records import Records
from dpsweep.tasks import Task, enumerate_tasks

WORDS = ["run", "-m", "dataset=breast_cancer", "model=logistic_raw", "epochs=1", "epsilon=1", "seed=1,2"]


def test_a_task_is_told_in_one_word():
    tasks = enumerate_tasks(["suite=quickstart", "model=rvfl", "dataset=digits"], Composer()).tasks
    tasks.append(Task("x", {"a": 1e-5}, {"levels": {1: "it's", 2.5: [None, True, '"quoted"\n']}}))
    word = _pack(tasks)
    assert _unpack(word) == tasks and re.fullmatch(r"[A-Za-z0-9_=-]+", word)


@pytest.mark.parametrize("launcher, options", [("basic", []), ("joblib", ["executor.options={n_jobs: 2}"])])
def test_one_folder_for_a_launchers_tasks_and_any_others(tmp_path, capsys, launcher, options):
    if launcher == "joblib":
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="pip install hydra-joblib-launcher")
    words = [*WORDS, f"output_dir={tmp_path}"]
    assert main([*words[:-2], "seed=1", words[-1]]) == 0
    assert main([*words, "executor=hydra", f"executor.launcher={launcher}", *options]) == 0
    assert "1 of 2 tasks are done already; 1 to run" in capsys.readouterr().err
    first, second = Records(tmp_path).scan().records
    assert {first["seed"], second["seed"]} == {1, 2} and first["status"] == second["status"] == "done"
    assert main(words) == 0 and "2 of 2 tasks done, 0 failed" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["launcher", "records"]


def test_a_job_without_a_record_is_a_failure_and_the_others_count(tmp_path, capsys, monkeypatch):
    from dpsweep import runner

    whole = runner.run_task

    def dies(task, *rest):
        if task.config["seed"] == 2:
            raise SystemError("the job was killed")
        return whole(task, *rest)

    monkeypatch.setattr(runner, "run_task", dies)
    assert main([*WORDS, "executor=hydra", f"output_dir={tmp_path}"]) == 1
    records = {record["seed"]: record for record in Records(tmp_path).scan().records}
    assert records[1]["status"] == "done"
    assert records[2]["error"]["type"] == "WorkerLost" and "its job ended without a record" in records[2]["error"]["message"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["executor.launcher=nowhere"], "Could not find 'hydra/launcher/nowhere'. Launchers are plugins"),
        (["executor.launcher=../x"], "the name of one of Hydra's launchers"),
        (["executor.options={n_jobs: 2}"], "executor.launcher=basic"),
        (["executor.options=4"], "executor.options=4: a mapping"),
    ],
)
def test_mistakes_are_named(tmp_path, capsys, words, said):
    assert main([*WORDS, "executor=hydra", *words, f"output_dir={tmp_path}"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("done", [False, True])
def test_a_launcher_that_cannot_start_is_one_mistake_and_no_failed_task(tmp_path, capsys, monkeypatch, done):
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher

    def launch(self, job_overrides, initial_job_idx):
        raise RuntimeError('Could not detect "srun",\nare you indeed on a slurm cluster?')

    monkeypatch.setattr(BasicLauncher, "launch", launch)
    words = [*WORDS, f"output_dir={tmp_path}"]
    assert not done or main(words) == 0
    assert main([*words, "executor=hydra", *(["force=true"] if done else [])]) == 2
    assert 'executor.launcher=basic failed before any task had ended: RuntimeError: Could not detect "srun", are' in (
        capsys.readouterr().err
    )
    assert [record["status"] for record in Records(tmp_path).scan().records] == ["done"] * 2 * done


def test_a_forced_task_that_fails_is_not_told_as_done(tmp_path, capsys, monkeypatch):
    from dpsweep import runner

    assert main([*WORDS, f"output_dir={tmp_path}"]) == 0
    before = Records(tmp_path).scan().records

    def fail(*_):
        raise MemoryError("no such luck")

    monkeypatch.setattr(runner, "_train", fail)
    words = [*WORDS, f"output_dir={tmp_path}", "executor=hydra", "force=true"]
    for on_error, failed in (("continue", 2), ("stop", 1)):
        assert main([*words, f"on_error={on_error}"]) == 1
        out, err = capsys.readouterr()
        assert f"0 of 2 tasks done, {failed} failed" in out and "OutOfMemory: no such luck" in err
        assert ("it is tried once more" in err) == (on_error == "continue")
    assert Records(tmp_path).scan().records == before and not list((tmp_path / "launcher").iterdir())


@pytest.mark.parametrize("on_error", ["continue", "stop"])
def test_a_full_disk_is_told(tmp_path, capsys, monkeypatch, on_error):
    def full(*_):
        raise OutputError.of(tmp_path, OSError(28, "No space left on device"))

    monkeypatch.setattr(Records, "write", full)
    assert main([*WORDS, f"output_dir={tmp_path}", "executor=hydra", f"on_error={on_error}"]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_what_another_process_saw_fail_is_told_as_it_was(tmp_path, capsys, monkeypatch):
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher

    from dpsweep import runner

    launch = BasicLauncher.launch

    def later(self, job_overrides, initial_job_idx):
        with monkeypatch.context() as patch:
            patch.setattr(runner, "_train", lambda *_: 1 / 0)
            main([*WORDS, f"output_dir={tmp_path}", "executor=inline"])
        return launch(self, job_overrides, initial_job_idx)

    monkeypatch.setattr(BasicLauncher, "launch", later)
    assert main([*WORDS, f"output_dir={tmp_path}", "executor=hydra"]) == 1
    assert {(r["attempts"], r["error"]["type"]) for r in Records(tmp_path).scan().records} == {(1, "ZeroDivisionError")}


@pytest.mark.parametrize("how", ["ctrl-c", "on_error"])
def test_a_sweep_that_is_to_stop_begins_no_further_task(tmp_path, capsys, monkeypatch, how):
    from dpsweep import runner

    whole = runner._train

    def breaks(*arguments):
        if how == "on_error":
            raise RuntimeError("no such luck")
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
        return whole(*arguments)

    monkeypatch.setattr(runner, "_train", breaks)
    code = main([*WORDS[:-1], "seed=1,2,3", f"output_dir={tmp_path}", "executor=hydra", "on_error=stop"])
    (record,) = Records(tmp_path).scan().records
    assert (code, record["status"]) == ((130, "done") if how == "ctrl-c" else (1, "failed"))
    assert not list((tmp_path / "launcher").iterdir())
