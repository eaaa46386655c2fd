"""`dpsweep status`: what lies in a folder, in words; and the notes of running tasks."""

import re
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from dpsweep.cli import main
from dpsweep.config import Composer
from dpsweep.outlook import Estimate
from dpsweep.records import Records
from dpsweep.runner import failed_record
from dpsweep.status import lines, pace_of
from dpsweep.sweep import Status, status_of
from dpsweep.tasks import Settings, enumerate_tasks

PLAN = enumerate_tasks(["suite=quickstart", "dataset=digits", "model=rvfl"], Composer())
NOW = 1_800_000_000.0


def stamp(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def done(task, begun, ended, threads=1):
    return {"id": task.id, "status": "done", "started": stamp(begun), "finished": stamp(ended), "threads": threads}


def test_every_task_stands_in_one_place_and_reasons_are_grouped():
    first, *rest = PLAN.tasks
    error = {"type": "MemoryError", "message": "no room\nsecond line"}
    status = Status(done={first.id: done(first, NOW - 60, NOW - 50)}, missing=rest[2:])
    status.failed = {task.id: {"error": error} for task in rest[:2]}
    running = {
        rest[1].id: {"pid": 7, "host": "there", "since": NOW - 30},
        "of another suite": {"pid": 1, "host": "x", "since": 1.0},
    }
    text = "\n".join(lines(PLAN.tasks, status, running, Estimate(), NOW))
    assert f"{len(PLAN.tasks)} tasks: 1 done, 1 failed, 1 running, {len(rest) - 2} missing" in text
    assert f"  failed 1: MemoryError: no room  (such as {rest[0].id})" in text and "second line" not in text
    assert f"running {rest[1].id}: for 30 s on there (process 7)" in text and "another suite" not in text
    assert "1 tasks done in the last 60 s: 60 an hour" in text
    assert "about 8 min left" in text


def test_the_pace_counts_cores_in_the_window_and_is_silent_where_nothing_tells_it():
    a, b, *_ = PLAN.tasks
    pace = pace_of([done(a, NOW - 100, NOW - 50, threads=2), done(b, NOW - 100, NOW, threads=1)], NOW)
    assert pace.tasks == 2 and pace.seconds == pytest.approx(100) and pace.cores == pytest.approx(2)
    assert pace_of([done(a, NOW - 9000, NOW - 8000)], NOW) is None
    assert pace_of([done(a, NOW - 10, NOW) | {"finished": None}], NOW) is None


def test_a_note_lasts_as_long_as_its_claim(tmp_path):
    records = Records(tmp_path)
    records.prepare()
    with records.claim("task"), records.noted("task", "here"):
        note = records.running()["task"]
        assert note["host"] == "here" and abs(note["since"] - time.time()) < 5
    assert records.running() == {} and not list(tmp_path.rglob("*.running"))
    records.note("task", "here")  # as a killed process leaves it
    assert records.running() == {}
    for forged in ("[]", "{", '{"pid": 1, "host": {}, "since": 1.0}'):
        (tmp_path / "records" / ".claims" / "task.running").write_text(forged)
        with records.claim("task"):
            assert records.running() == {}
    records.sweep_leftovers("task")
    assert not list(tmp_path.rglob("*.running"))


def test_status_and_show_of_a_folder(tmp_path, capsys):
    words = ["dataset=breast_cancer", "model=logistic_raw", "epochs=1", f"output_dir={tmp_path}"]
    assert main(["run", *words]) == 0
    assert main(["status", "-m", *words, "epsilon=1,2"]) == 0
    said = capsys.readouterr().out
    assert "2 tasks: 1 done, 0 failed, 0 running, 1 missing" in said and "nothing runs now" in said
    assert main(["status", *words, "--watch"]) == 0
    assert capsys.readouterr().out.endswith("nothing is left to run\n")
    plan = enumerate_tasks(words, Composer())
    (name,) = status_of(plan.tasks, Records(tmp_path)).done
    for word in (name, "breast", str(Records(tmp_path).path(name))):
        assert main(["show", word, f"output_dir={tmp_path}"]) == 0
        said = capsys.readouterr().out
        assert f"{name}: done" in said and re.search(r"made +20\S+ to 20\S+ on \S+, by dpsweep \S+, torch", said)


def test_show_tells_what_failed_and_names_what_is_near(tmp_path, capsys):
    records = Records(tmp_path)
    records.prepare()
    settings = Settings.from_config(Composer().compose([("output_dir", str(tmp_path))]))
    for task in PLAN.tasks[:2]:
        record = failed_record(task, settings, "WorkerLost", "it was killed")
        record["error"]["traceback"] = "where\nit happened"
        records.write(record)
    first, second = sorted(task.id for task in PLAN.tasks[:2])
    where = f"output_dir={tmp_path}"
    assert main(["show", first, where]) == 0
    assert capsys.readouterr().out.endswith("where\nit happened\n")
    for word, words in (
        ("digits", f"2 records begin so:\n  {first}"),
        ("rvfl", f"Near it:\n  {first}"),
        ("zzz", "none of the 2"),
    ):
        assert main(["show", word, where]) == 2
        assert words in capsys.readouterr().err
    with records.claim(PLAN.tasks[2].id), records.noted(PLAN.tasks[2].id, "there"):
        assert main(["show", PLAN.tasks[2].id, where]) == 2
        assert "it runs since" in capsys.readouterr().err
    records.path(first).write_text("{")
    assert main(["show", first, where]) == 2
    assert "is no valid record: it is no JSON" in capsys.readouterr().err


def test_neither_imports_torch(tmp_path):
    for command in ("status", "show"):
        code = (
            f"import sys; from dpsweep.cli import main; main(['{command}', *sys.argv[1:]]); "
            "sys.exit(bool({'torch', 'opacus', 'ray'} & sys.modules.keys()))"
        )
        word = "suite=quickstart" if command == "status" else "digits"
        subprocess.run([sys.executable, "-c", code, word, f"output_dir={tmp_path}"], check=True, capture_output=True)
