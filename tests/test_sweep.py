"""What a sweep does with tasks that fail, where no process of its own is needed to see it (the rest: tests/test_faults.py)."""

import pytest

from dpsweep import runner
from dpsweep.config import Composer
from dpsweep.errors import OutputError, UsageError
from dpsweep.records import Records
from dpsweep.sweep import run_tasks
from dpsweep.tasks import enumerate_tasks
from dpsweep.training.per_example import physical

ONE = ("dataset=breast_cancer", "model=logistic_raw", "epochs=1", "executor=inline", "threads=1")


def sweep(folder, *overrides):
    plan = enumerate_tasks([*ONE, f"output_dir={folder}", *overrides], Composer(), multirun=True)
    return run_tasks(plan.tasks, plan.settings, quiet=True)


def test_a_mistake_of_the_users_is_not_tried_twice(tmp_path, monkeypatch):
    def refuse(*_):
        raise UsageError("mechanism.x=1: no")

    monkeypatch.setattr(runner, "_train", refuse)
    assert sweep(tmp_path, "retry=all").exit_code == 2
    assert [record["attempts"] for record in Records(tmp_path).scan().records] == [1]


def test_with_no_room_for_records_nothing_more_is_started(tmp_path, monkeypatch):
    written = []

    def full(self, record, again=False):
        written.append(record["id"])
        raise OutputError.of(self.folder, OSError(28, "No space left on device"))

    monkeypatch.setattr(Records, "write", full)
    with pytest.raises(OutputError, match=r"No space left.*output_dir=PATH"):
        sweep(tmp_path, "seed=1,2,3", "retry=all")
    assert len(written) == 1


@pytest.mark.parametrize(("asked", "halved", "of_100"), [(None, 0.5, 50), (64, 32, 32), (1, 1, 1), (3, 1, 1)])
def test_half_of_what_was_asked_or_would_be_chosen(asked, halved, of_100):
    overrides = [] if asked is None else [f"physical_batch={asked}"]
    less = enumerate_tasks(overrides, Composer()).settings.with_less_memory().physical_batch
    assert less == halved and physical(less, 100) == of_100


def test_a_failed_task_releases_no_weights(tmp_path, monkeypatch):
    def unlucky(*_):
        raise MemoryError("no such luck")

    monkeypatch.setattr(runner, "model_resources", unlucky, raising=False)
    monkeypatch.setattr("dpsweep.resources.model_resources", unlucky)
    assert sweep(tmp_path, "save_model=true").failed == 1
    (record,) = Records(tmp_path).scan().records
    assert record["weights_sha256"] is None and not list(tmp_path.rglob("*.pt"))
