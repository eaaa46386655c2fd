"""What happens when tasks fail and things die. tests/test_storm.py kills at random."""

import json
import resource
import subprocess
import sys

import pytest

from dpsweep import runner
from dpsweep.config import Composer
from dpsweep.errors import UsageError
from dpsweep.sweep import run_tasks
from dpsweep.tasks import enumerate_tasks

MODEL = """
import os, pathlib, signal, time
import torch
from torch import nn
from dpsweep.models.base import Model


class Net(Model):
    def __init__(self, shape, classes, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(shape[0], 1)

    def forward(self, x):
        return self.layer(x)


class Hungry(Net):  # of more than 40 records at a time it says what a full memory says
    def forward(self, x):
        if self.training and len(x) > 40:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")
        return super().forward(x)


class Once(Net):  # its first process dies as the system ends one that takes too much memory
    def __init__(self, *arguments):
        super().__init__(*arguments)
        died = pathlib.Path("died")
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Hanging(Net):
    def forward(self, x):
        time.sleep(600)


class Moody(Net):  # fails until it has been tried so often
    def __init__(self, *arguments):
        super().__init__(*arguments)
        tried = pathlib.Path("tried")
        tried.write_text((tried.read_text() if tried.exists() else "") + ".")
        if len(tried.read_text()) < 3:
            raise RuntimeError("not in the mood")
"""
needs_mounts = pytest.mark.skipif(
    subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode != 0,
    reason="no mounts here",
)
SHORT = ("dataset=breast_cancer", "epochs=1", "--config-dir", "mine")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A working folder with models that fail in their own ways."""
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "awkward.py").write_text(MODEL)
    for name in ("hungry", "once", "hanging", "moody"):
        text = f"name: {name}\nabout: fails in its own way\n_target_: awkward.{name.capitalize()}\n"
        (tmp_path / "mine" / "model" / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def dpsweep(home, *arguments, **options):
    done = subprocess.run([sys.executable, "-m", "dpsweep.cli", *arguments], cwd=home, capture_output=True, text=True,
                          timeout=600, **options)  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def records(home):
    """By model."""
    found = [json.loads(file.read_text()) for file in (home / "outputs" / "records").glob("*.json")]
    return {record["model"]: record for record in found}


def superseded(home):
    return [json.loads(file.read_text()) for file in (home / "outputs" / "records" / "superseded").glob("*.json")]


def litter(home):
    """Files of unfinished work."""
    return [file.name for file in (home / "outputs" / "records").rglob("*") if file.suffix in (".tmp", ".lost", ".pt")]


def sweep(home, *overrides):
    """The same in this process."""
    plan = enumerate_tasks(["executor=inline", "threads=1", *SHORT[:2], *overrides], Composer([home / "mine"]), multirun=True)
    return run_tasks(plan.tasks, plan.settings)


def test_a_task_out_of_memory_is_tried_once_more_with_half_the_batch_and_the_others_go_on(home, capsys):
    result = sweep(home, "model=hungry,rvfl", "physical_batch=60")
    assert result.done == 2 and result.exit_code == 0
    err = capsys.readouterr().err
    assert "OutOfMemory" in err and "tried once more" in err
    found = records(home)
    assert found["hungry"]["status"] == "done" and found["hungry"]["attempts"] == 2 and found["rvfl"]["attempts"] == 1
    (failed,) = superseded(home)
    assert failed["error"]["type"] == "OutOfMemory" and "allocate memory" in failed["error"]["message"]


def test_half_a_batch_that_is_too_large_still_fails_with_its_reason(home):
    assert sweep(home, "model=hungry", "physical_batch=1000").exit_code == 1
    assert records(home)["hungry"]["error"]["type"] == "OutOfMemory" and records(home)["hungry"]["attempts"] == 2


def test_a_worker_that_the_system_kills_is_replaced_and_its_task_tried_once_more(home):
    code, out, err = dpsweep(home, "run", "-m", *SHORT, "model=once,rvfl", "workers=2")
    assert code == 0 and "signal 9" in err, err
    assert records(home)["once"]["status"] == "done" and records(home)["once"]["attempts"] == 2
    assert [record["error"]["type"] for record in superseded(home)] == ["WorkerLost"]


def test_a_task_that_hangs_is_ended_and_says_so(home):
    code, out, err = dpsweep(home, "run", "-m", *SHORT, "model=hanging,rvfl", "workers=2", "task_timeout=15")
    assert code == 1 and "1 of 2 tasks done" in out, err
    found = records(home)
    assert found["rvfl"]["status"] == "done"
    assert found["hanging"]["error"]["type"] == "TaskTimeout" and "task_timeout=15 s" in found["hanging"]["error"]["message"]


def test_an_executor_that_cannot_end_a_task_says_so(home):
    with pytest.raises(UsageError, match="task_timeout=5.*executor=pool"):
        sweep(home, "model=rvfl", "task_timeout=5")


def test_which_failed_tasks_run_again_is_the_users_choice(home, capsys):
    assert sweep(home, "model=moody").exit_code == 1
    assert sweep(home, "model=moody", "retry=none").exit_code == 1
    assert "left as they are" in capsys.readouterr().err and records(home)["moody"]["attempts"] == 1
    assert sweep(home, "model=moody", "retry=all").exit_code == 0  # the second try fails, the third is in the same run
    assert records(home)["moody"]["attempts"] == 3
    assert [record["status"] for record in superseded(home)] == ["failed", "failed"]


def test_what_another_process_saw_fail_since_the_sweep_began_is_not_run_again(home, monkeypatch):
    """Two sweeps on one folder: the second one's turn comes after the first one has written the failure."""
    from dpsweep import executors

    whole, met = executors.Inline.run, []

    def later(self, tasks, stop):
        if not met:
            met.append(True)
            assert sweep(home, "model=moody").exit_code == 1
        return whole(self, tasks, stop)

    monkeypatch.setattr(executors.Inline, "run", later)
    assert sweep(home, "model=moody").failed == 1
    assert records(home)["moody"]["attempts"] == 1 and not superseded(home)


def test_force_keeps_the_old_record_and_counts(home):
    task = ("model=rvfl", "noise.source=seeded")
    sweep(home, *task)
    first = records(home)["rvfl"]
    assert sweep(home, *task, "force=true").exit_code == 0
    second = records(home)["rvfl"]
    assert (first["attempts"], second["attempts"]) == (1, 2) and superseded(home) == [first]
    assert second["checksum"] != first["checksum"] and second["test_auroc"] == first["test_auroc"]
    sweep(home, *task)
    assert records(home)["rvfl"] == second  # once, not from now on


def test_a_forced_task_that_fails_takes_nothing_away(home, monkeypatch):
    sweep(home, "model=rvfl")
    first = records(home)["rvfl"]

    def fail(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(runner, "_train", fail)
    assert sweep(home, "model=rvfl", "force=true").exit_code == 1
    assert records(home)["rvfl"] == first and not superseded(home) and not litter(home)


@pytest.mark.parametrize("command", [("model=rvfl",), ("-m", "model=rvfl,dense,logistic_raw", "seed=1,2")])
def test_a_full_disk_is_one_clear_line_and_nothing_torn(home, command):
    """A limit on the size of files stands in for the disk: a record is larger than a kilobyte."""
    code, out, err = dpsweep(home, "run", *SHORT, *command, "workers=2",
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))  # fmt: skip
    assert code == 1 and "Traceback" not in err, err
    assert "can't be written (File too large)" in err and "output_dir=PATH" in err and str(home / "outputs") not in out
    assert not records(home) and not litter(home)
    assert len([line for line in err.splitlines() if "can't be written" in line]) <= 2  # one by worker
    assert dpsweep(home, "run", *SHORT, *command)[0] == 0


@needs_mounts
def test_a_disk_that_is_really_full(home):
    script = f"""
mkdir outputs && mount -t tmpfs -o size=24k none outputs && mkdir -p outputs/records &&
{sys.executable} -m dpsweep.cli run -m {" ".join(SHORT)} model=logistic_raw seed=1,2,3,4,5,6,7,8 workers=1
echo code $?
ls -A outputs/records | grep -c tmp
for file in outputs/records/*.json; do {sys.executable} -m json.tool "$file" >/dev/null || echo torn; done
"""
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], cwd=home, capture_output=True, text=True, timeout=180)
    assert "code 1\n0\n" in done.stdout and "torn" not in done.stdout, done
    assert "No space left on device" in done.stderr and "Traceback" not in done.stderr


@needs_mounts
def test_a_folder_that_may_not_be_written(home):
    script = f"""
mkdir outputs && mount -t tmpfs -o ro none outputs
{sys.executable} -m dpsweep.cli run {" ".join(SHORT)} model=rvfl
echo code $?
"""
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], cwd=home, capture_output=True, text=True, timeout=600)
    assert "code 2\n" in done.stdout and "Traceback" not in done.stderr, done
    assert "outputs/records can't be written (Read-only file system)" in done.stderr and "output_dir=PATH" in done.stderr
