"""Protocols are never mixed: records of other data, another version or another configuration count for nothing."""

import json
from pathlib import Path

import pytest

from dpsweep import cli, provenance
from dpsweep.config import Composer
from dpsweep.errors import UsageError
from dpsweep.records import SCHEMA, Records, checksum
from dpsweep.sweep import run_tasks, status_of
from dpsweep.tasks import enumerate_tasks, task_id

SUITE = """
name: two
about: two short tasks
grids:
  - {dataset: breast_cancer, model: logistic_raw, epsilon: 4, seed: [1, 2], epochs: 1}
report: {metrics: [accuracy]}
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "mine" / "suite").mkdir(parents=True)
    (tmp_path / "mine" / "suite" / "two.yaml").write_text(SUITE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_of(*overrides):
    return enumerate_tasks(["suite=two", "threads=1", "executor=inline", *overrides], Composer([Path("mine")]))


def sweep(*overrides):
    plan = plan_of(*overrides)
    return run_tasks(plan.tasks, plan.settings, quiet=True), plan, Records(plan.settings.output_dir)


def rewrite(records, record, **values):
    """Put another record in a file of its own id, whole and with a right checksum."""
    path = records.path(record["id"])
    changed = {**json.loads(path.read_text()), **values}
    changed["id"], changed["schema"] = task_id(changed["config"]), SCHEMA
    changed["checksum"] = checksum(changed)
    path.unlink()
    records.path(changed["id"]).write_text(json.dumps(changed))
    return changed


def dpsweep(capsys, *arguments):
    code = cli.main([*arguments, "--config-dir", "mine"])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_record_of_other_data_is_not_done_and_runs_again(home, capsys):
    result, plan, records = sweep()
    assert result.done == 2
    old = rewrite(records, records.load(plan.tasks[0].id), data_fingerprint="0" * 64)
    code, out, _ = dpsweep(capsys, "plan", "suite=two")
    assert "1 done, 0 failed, 1 missing" in out and "not done: 1 record made of other data of breast_cancer" in out
    code, out, _ = dpsweep(capsys, "report", "suite=two")
    assert (
        code == 1
        and "1 of 2 tasks done" in out
        and "Left out of every table: 1 record made of other data" in " ".join(out.split())
    )
    result, _, _ = sweep()
    assert result.done == 2 and result.exit_code == 0
    new = records.load(plan.tasks[0].id)
    assert new["attempts"] == 2 and new["data_fingerprint"] == records.load(plan.tasks[1].id)["data_fingerprint"]
    (kept,) = (records.folder / "superseded").iterdir()
    assert json.loads(kept.read_text())["checksum"] == old["checksum"]
    assert status_of(plan.tasks, records, plan.settings.data_dir).other_data == {}


def test_a_record_that_keeps_no_fingerprint_is_not_held_against_anything(home):
    _, plan, records = sweep()
    rewrite(records, records.load(plan.tasks[0].id), data_fingerprint=None)
    assert len(status_of(plan.tasks, records, plan.settings.data_dir).done) == 2


def test_a_report_never_mixes_two_states_of_one_dataset(home, capsys):
    _, plan, records = sweep()
    first, second = (records.load(task.id) for task in plan.tasks)
    rewrite(records, first, data_fingerprint="0" * 64)
    code, out, err = dpsweep(capsys, "report")  # of all records: no suite says which data is meant
    assert code == 2 and "000000000000 (1, such as" in err and second["data_fingerprint"][:12] in err and "data.dir" in err
    rewrite(records, second, data_fingerprint="1" * 64)  # neither is what lies here
    code, out, err = dpsweep(capsys, "report", "suite=two")
    assert code == 2 and "000000000000" in err and "111111111111" in err
    assert provenance.of_one_data([first, second], lambda group: pytest.fail("asked though all agree")) == {}


def test_data_that_is_not_here_says_nothing_against_a_record(home, monkeypatch):
    _, plan, records = sweep()

    def absent(*_):
        raise UsageError("no such file")

    monkeypatch.setattr("dpsweep.build.build", absent)
    assert len(status_of(plan.tasks, records, plan.settings.data_dir).done) == 2


def test_another_protocol_or_configuration_is_left_out_with_its_reason(home, capsys):
    _, plan, records = sweep()
    first, second = (records.load(task.id) for task in plan.tasks)
    rewrite(records, first, config={**first["config"], "protocol": 0})
    rewrite(records, second, config={**second["config"], "epochs": 7})
    sweep("seed=1")
    reasons = ("1 record made under protocol version 0 (this one is 1)", "1 record of a task of the same name under another")
    for arguments in (("plan", "suite=two"), ("report", "suite=two")):
        code, out, err = dpsweep(capsys, *arguments)
        words = " ".join(out.split())
        assert all(reason in words for reason in reasons), out
    _, out, _ = dpsweep(capsys, "report")
    assert "2 of 2 tasks done" in out and reasons[0] in " ".join(out.split())  # of all records: those of this protocol


def test_a_report_shows_the_first_execution_unless_told(home, capsys):
    """Rerunning for the outcome is selection."""
    _, plan, records = sweep()
    first = rewrite(records, records.load(plan.tasks[0].id), test_accuracy=0.25)
    sweep("force=true")
    assert records.load(first["id"])["test_accuracy"] != 0.25
    _, out, _ = dpsweep(capsys, "report", "suite=two")
    assert "2 other executions" in out and "0.25" in (home / "outputs/reports/two/records.csv").read_text()
    dpsweep(capsys, "report", "suite=two", "executions=last")
    assert "0.25" not in (home / "outputs/reports/two/records.csv").read_text()


def test_several_versions_are_told_in_one_line(home, capsys):
    _, plan, records = sweep()
    record = records.load(plan.tasks[0].id)
    rewrite(records, record, versions={**record["versions"], "torch": "1.2.3"})
    for arguments in (("plan", "suite=two"), ("report", "suite=two")):
        _, out, _ = dpsweep(capsys, *arguments)
        assert "made by several versions: torch" in " ".join(out.split()) and "1.2.3 (1)" in out
    assert provenance.versions_in_words([record, record]) is None
