"""Records: whole or not at all, verified when read, never overwritten."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from dpsweep import outlook
from dpsweep.config import Composer
from dpsweep.describe import describe
from dpsweep.errors import OutputError, UsageError
from dpsweep.record_types import KINDS
from dpsweep.records import FIELDS, Records, checksum, problem
from dpsweep.status import pace_of
from dpsweep.tasks import enumerate_tasks, task_id

TASK = enumerate_tasks([], Composer()).tasks[0]
OTHER = enumerate_tasks(["seed=7"], Composer()).tasks[0]


def record(task=TASK, status="done", **values):
    error = {"type": "ValueError", "message": "no"} if status == "failed" else None
    return task.labels | {"id": task.id, "status": status, "test_accuracy": 0.5, "error": error, **values}


@pytest.fixture
def records(tmp_path):
    made = Records(tmp_path)
    made.prepare()
    return made


def test_what_is_written_is_read(records):
    records.write(record())
    read = records.load(TASK.id)
    assert read["test_accuracy"] == 0.5 and problem(json.loads(records.path(TASK.id).read_text()), TASK.id) is None
    assert set(FIELDS) <= set(read)  # a field of a later version is null in an earlier record
    assert [r["id"] for r in records.scan().records] == [TASK.id]
    assert not list(records.folder.glob(".*.tmp"))


def test_a_done_record_is_never_overwritten(records):
    records.write(record())
    with pytest.raises(FileExistsError):
        records.write(record(test_accuracy=0.9))
    assert records.load(TASK.id)["test_accuracy"] == 0.5
    assert not list(records.folder.glob(".*.tmp"))


def test_a_failed_record_gives_way_and_is_kept(records):
    records.write(record(status="failed"))
    records.write(record())
    assert records.load(TASK.id)["status"] == "done"
    assert len(list((records.folder / "superseded").iterdir())) == 1


def test_weights_reach_the_disk_after_their_record_alone(records, monkeypatch):
    weights, link = b"weights" * 1000, os.link
    seen = []

    def linked(*names):
        seen.append([file.read_bytes() for file in records.folder.glob(".*.tmp")])
        link(*names)

    monkeypatch.setattr(os, "link", linked)
    written = records.write(record(), weights=weights)
    ((one, other),) = seen  # the record, and room for the weights
    assert weights not in (one, other) and bytes(len(weights)) in (one, other)
    assert records.weights_of(written) == (records.model_path(TASK.id), "") and not list(records.folder.glob(".*.tmp"))
    assert records.model_path(TASK.id).read_bytes() == weights


def test_weights_that_are_lost_or_others_are_named(records):
    assert "without save_model=true" in records.weights_of(records.write(record(OTHER)))[1]
    written = records.write(record(), weights=b"1234")
    records.model_path(TASK.id).write_bytes(b"1235")
    path, reason = records.weights_of(written)
    assert path is None and "other weights than the record tells of" in reason
    assert "tells nothing of the weights" in records.weights_of({**written, "weights_sha256": None})[1]
    records.model_path(TASK.id).unlink()
    assert "lost" in records.weights_of(written)[1]


def test_whole_weights_of_a_process_that_died_are_put_in_their_place(records):
    written = records.write(record(), weights=b"1234")
    leftover = records.folder / f".{TASK.id}.abc.tmp"
    os.rename(records.model_path(TASK.id), leftover)
    (records.folder / f".{TASK.id}.abd.tmp").write_bytes(b"12")
    records.tidy([TASK.id])
    assert records.weights_of(written)[0].read_bytes() == b"1234" and not list(records.folder.glob(".*.tmp"))


def test_no_room_for_weights_leaves_no_record_either(records, monkeypatch):
    from dpsweep import records as module

    whole = module.write_through

    def full(path, content):
        if len(content) > 10_000:
            raise OSError(28, "No space left on device")
        whole(path, content)

    monkeypatch.setattr(module, "write_through", full)
    with pytest.raises(OutputError, match="No space left"):
        records.write(record(), weights=b"1234" * 10_000)
    assert records.load(TASK.id) is None and not [*records.folder.glob("*.pt"), *records.folder.glob(".*.tmp")]


def test_earlier_weights_are_kept_with_their_record(records):
    first = records.write(record(), weights=b"first")
    records.write(record(test_accuracy=0.6), again=True, weights=b"second")
    (kept,) = (records.folder / "superseded").glob("*.json")
    assert records.weights_of(first, kept.with_suffix(".pt"))[0].read_bytes() == b"first"
    records.path(TASK.id).unlink()  # weights that no record tells of are nobody's to overwrite
    records.write(record(), weights=b"third")
    assert [file.read_bytes() for file in (records.folder / "set-aside").iterdir()] == [b"second"]


@pytest.mark.parametrize("kill", ["before", "after"])
def test_a_whole_record_of_a_process_that_died_is_put_in_its_place(records, kill):
    written = records.write(record(), weights=b"1234")
    leftover = records.folder / f".{TASK.id}.abc.tmp"
    os.rename(records.path(TASK.id), leftover)
    if kill == "after":
        os.link(leftover, records.path(TASK.id))
    records.sweep_leftovers(TASK.id)
    assert records.load(TASK.id)["checksum"] == written["checksum"] and not leftover.exists()


@pytest.mark.parametrize("content", [lambda text: text[:-9], lambda text: "", lambda text: text.replace("0.5", "0.9")])
def test_what_is_no_whole_record_of_a_done_run_is_removed(records, content):
    leftover = records.folder / f".{TASK.id}.abc.tmp"
    leftover.write_text(content(json.dumps(records.write(record()))))
    records.path(TASK.id).unlink()
    records.sweep_leftovers(TASK.id)
    assert records.load(TASK.id) is None and not leftover.exists()
    failed = records.write(record(status="failed"))
    os.rename(records.path(TASK.id), leftover)
    records.sweep_leftovers(TASK.id)
    assert failed["status"] == "failed" and records.load(TASK.id) is None and not leftover.exists()


def test_leftovers_of_a_task_that_is_done_are_removed(records):
    written = records.write(record())
    leftover = records.folder / f".{TASK.id}.abc.tmp"
    leftover.write_bytes(b"weights")
    records.tidy([TASK.id])
    assert not leftover.exists() and records.load(TASK.id)["checksum"] == written["checksum"]


def test_what_runs_is_told_in_a_folder_that_can_only_be_read(records, monkeypatch):
    import filelock

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    records.note(TASK.id, "there")
    monkeypatch.setattr(filelock.FileLock, "acquire", refused)
    assert records.running()[TASK.id]["host"] == "there"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "truncated"),
        (lambda text: "", "truncated"),
        (lambda text: "[]", "not a record"),
        (lambda text: "[" * 100000, "nested too deeply|truncated"),
        (lambda text: text.replace("0.5", "0.9"), "edited"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "format"),
        (lambda text: text.replace("0.5", "NaN"), "no record's"),
        (lambda text: "\udcff".encode("utf-8", "surrogateescape").decode("latin-1") + text, "truncated"),
    ],
)
def test_a_damaged_file_is_named_and_set_aside(records, damage, said):
    import re

    records.write(record())
    records.path(TASK.id).write_text(damage(records.path(TASK.id).read_text()))
    assert records.load(TASK.id) is None
    ((name, reason),) = records.scan().damaged
    assert name == f"{TASK.id}.json" and re.search(said, reason)
    moved = records.set_aside_damaged(TASK.id)
    assert TASK.id in moved and "set-aside" in moved
    assert records.scan().damaged == [] and len(list((records.folder / "set-aside").iterdir())) == 1
    records.write(record())


def test_a_record_of_another_task_under_a_right_name(records):
    records.write(record(OTHER))
    os.rename(records.path(OTHER.id), records.path(TASK.id))
    assert records.load(TASK.id) is None
    assert OTHER.id in records.scan().damaged[0][1]


def test_a_record_whose_configuration_was_changed(records):
    forged = record() | {"schema": 1, "config": {**TASK.config, "seed": 99}}
    forged["checksum"] = checksum(forged)
    records.path(TASK.id).write_text(json.dumps(forged))
    assert "belongs to" in records.scan().damaged[0][1]


@pytest.mark.parametrize(
    "forgery", [{"status": "banana"}, {"status": "failed", "error": None}, {"config": {**TASK.config, "epsilon": "1"}}]
)
def test_a_forged_record_with_a_right_checksum_is_set_aside(records, forgery):
    forged = record() | {"schema": 1} | forgery
    forged["checksum"] = checksum(forged)
    records.path(TASK.id).write_text(json.dumps(forged))
    assert records.load(TASK.id) is None and len(records.scan().damaged) == 1
    assert "set-aside" in records.set_aside_damaged(TASK.id)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("test_accuracy", "x", "not a number from 0 to 1"), ("test_accuracy", 1.5, "a number"), ("seed", True, "whole number"),
        ("seconds_train", -1, "0 or more"), ("seconds_train", 10**400, "0 or more"), ("epsilon", [1], "a number"),
        ("events", [["x", 1]], "pairs"), ("events", [[{}, "1"]], "pairs"), ("versions", "2.6", "mapping"), ("alone", 1, "true"),
        ("diagnostics", {"epochs": [{"norm_quantiles": {}, "loss": 1, "clipped_fraction": 1}]}, "diagnostics"),
        ("sample_rate", "1/0", "rate"), ("sample_rate", "x", "rate"), ("diagnostics", {"epochs": 3}, "diagnostics"),
        ("diagnostics", {"epochs": [{"loss": "x"}]}, "diagnostics"),
        ("dataset", None, "lacks its dataset"), ("guarantee_text", 7, "not a text"), ("unprotected", ["a", 1], "list of texts"),
    ],
)  # fmt: skip
def test_a_field_of_a_wrong_type_is_set_aside_by_name(records, field, value, said):
    forged = record() | {"schema": 1, field: value}
    forged["checksum"] = checksum(forged)
    records.path(TASK.id).write_text(json.dumps(forged))
    ((_, reason),) = records.scan().damaged
    assert field in reason and said in reason and records.load(TASK.id) is None


@pytest.mark.parametrize("label, value", [("mechanism", "none"), ("target_epsilon", 0.5), ("repeat", 2), ("model", "cnn")])
def test_a_label_that_is_not_the_configurations(records, label, value):
    forged = record() | {"schema": 1, label: value}
    forged["checksum"] = checksum(forged)
    records.path(TASK.id).write_text(json.dumps(forged))
    ((_, reason),) = records.scan().damaged
    assert reason == f"its {label} is not that of its configuration"


def test_every_field_has_a_kind():
    assert set(FIELDS) <= set(KINDS)


def test_a_link_to_nothing_is_set_aside(records):
    records.path(TASK.id).symlink_to("/nonexistent/x")
    assert "link to nothing" in records.scan().damaged[0][1]
    assert records.set_aside_damaged(TASK.id)
    records.write(record())


def test_nan_is_never_written(records):
    with pytest.raises(ValueError, match="JSON"):
        records.write(record(test_accuracy=float("nan")))
    assert list(records.folder.glob("*")) == [records.folder / ".claims"]


def _hold(folder, ready):
    from pathlib import Path

    with Records(Path(folder)).claim(TASK.id) as free:
        ready.put(free)
        time.sleep(60)


def test_a_claim_holds_against_another_process_and_dies_with_its_own(records):
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    holder = context.Process(target=_hold, args=(records.folder.parent, ready))
    holder.start()
    assert ready.get(timeout=30)
    assert records.claimed(TASK.id) and not records.claimed(OTHER.id)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    assert not records.claimed(TASK.id)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="output_dir"):
        Records(tmp_path / "file").prepare()


def test_reading_records_needs_no_torch(records):
    records.write(record())
    code = (
        f"import sys, dpsweep; print(len(dpsweep.load_records({str(records.folder.parent)!r}))); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


def leaves(tree, path=()):
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


FULL = record(optimizer="adam") | {
    "schema": 1, "reference_size": 1257, "sample_rate": "1/20", "steps": 600, "normalizer": 62, "batch_size": 64, "epochs": 30,
    "delta": 1e-5, "max_grad_norm": 1.0, "noise_multiplier": 1.1, "epsilon": 0.99, "epsilon_claimed": 1.0, "guarantee_text": "x",
    "diverged": False, "seconds_train": 2.0, "seconds_setup": 0.1, "seconds_total": 2.2, "threads": 1, "unprotected": ["x"],
    "trainable_parameters": 10, "stored_parameters": 20, "train_size": 1257, "test_size": 270, "public": False, "alone": True,
    "started": "2026-01-01T00:00:00+00:00", "finished": "2026-01-01T00:00:02+00:00", "laplace_scale": 1.0, "macs": 5,
    "versions": {"torch": "2.6"}, "host": "there", "data_official": True,
}  # fmt: skip


@pytest.mark.parametrize("dropped", [(), ("noise_multiplier",), ("noise_multiplier", "laplace_scale")])
def test_whatever_a_field_holds_a_record_is_refused_or_can_be_read(dropped):
    """A forger knows how to make a checksum and an id. What he can write must stop neither `show` nor `plan` nor `status`."""
    wrong, composer, refused, read = (None, "x", -1, 0, 1.5, True, [], {}, {"a": [1]}, 10**400), Composer(), 0, 0
    whole = {key: value for key, value in FULL.items() if key not in dropped} | {"kappa": 0.9, "r": 0.5, "alpha": 2.0}
    for path in leaves(whole):
        for value in wrong:
            forged = json.loads(json.dumps(whole))
            node = forged
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = value
            with contextlib.suppress(Exception):  # then `problem` finds the id of no configuration
                forged["id"] = task_id(forged["config"]) if path[0] == "config" else forged["id"]
            with contextlib.suppress(Exception):
                forged["checksum"] = checksum(forged)
            if problem(forged, forged["id"]) is not None:
                refused += 1
                continue
            read += 1
            full = dict.fromkeys(FIELDS) | forged
            assert describe(full).startswith(forged["id"])
            outlook.estimate([TASK], [full], outlook.sizes_of([TASK], [full], composer), 2)
            pace_of([full], 1_800_000_000.0)
    assert refused > 300 and read > 100
