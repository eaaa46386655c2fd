"""Checkpoints: a killed run goes on, bit for bit where noise is seeded; and nothing on disk goes uncounted."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
from zoo import COMPOSER, partner

from dpsweep.config import parse
from dpsweep.privacy.accounting import epsilon, event_from_json
from dpsweep.records import Records
from dpsweep.runner import attempt
from dpsweep.tasks import Settings, Task
from dpsweep.training import loop

MECHANISMS = [m for m in COMPOSER.options("mechanism") if "optimizer" not in COMPOSER.node("mechanism", m).get("unused", [])
              or m == "dp_adam_bc"]  # fmt: skip
PLACE = ("alone", "attempts", "resumed_at", "checksum", "started", "finished", "host", "peak_memory_growth")


class Killed(BaseException):
    """Stands in for the end of the process: nothing handles it."""


def compose(folder, *overrides, mechanism="gaussian"):
    unused = COMPOSER.node("mechanism", mechanism).get("unused", ())
    model = "dense" if mechanism.startswith("hero") else "rvfl"  # a head of one row has nothing for hero to shape
    items = [("mechanism", mechanism), ("model", model), *partner("mechanism", mechanism)]
    items += [item for item in (("epochs", 4),) if item[0] not in unused]
    given = ["dataset=breast_cancer", "device=cpu", "threads=1", "checkpoint.every=5", f"output_dir={folder}", *overrides]
    config = COMPOSER.compose([*items, *parse(given)[0]])
    return Task.from_config(config), Settings.from_config(config)


def run(folder, *overrides, mechanism="gaussian"):
    status, record = attempt(*compose(folder, *overrides, mechanism=mechanism), alone=True)
    assert status == "done", record["error"]
    return record


def cut_off(monkeypatch, step, folder, *overrides, mechanism="gaussian"):
    """The same run, killed within a step (counted from 1)."""
    close, taken = loop.LoopData.close_step, 0

    def closing(self):
        nonlocal taken
        taken += 1
        if taken == step:
            raise Killed
        close(self)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(loop.LoopData, "close_step", closing)
        attempt(*compose(folder, *overrides, mechanism=mechanism), alone=True)


def files(folder):
    return sorted((folder / "records" / "checkpoints").iterdir())


def science(record):
    return {key: value for key, value in record.items() if key not in PLACE and not key.startswith("seconds")}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("budget", ["epsilon=4", "epsilon=none"])
def test_a_seeded_run_goes_on_bit_for_bit(tmp_path, monkeypatch, mechanism, budget):
    more = ["noise.source=seeded", "curves=true", "diagnostics=true", "save_model=true"]
    if budget == "epsilon=4" and not COMPOSER.node("mechanism", mechanism).get("private", True):
        pytest.skip("it takes no budget")
    whole = run(tmp_path / "whole", budget, *more, mechanism=mechanism)
    for step in (13, 9):  # after two checkpoints; then after one more, in the same epoch
        cut_off(monkeypatch, step, tmp_path / "cut", budget, *more, mechanism=mechanism)
    record = run(tmp_path / "cut", budget, *more, mechanism=mechanism)
    assert record["resumed_at"] == [10, 15] and whole["resumed_at"] is None
    assert science(record) == science(whole)
    models = [torch.load(Records(tmp_path / name).model_path(whole["id"]), weights_only=True) for name in ("whole", "cut")]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert not files(tmp_path / "cut") and not files(tmp_path / "whole")


def test_a_network_with_dropout_and_augmentation_goes_on_bit_for_bit(tmp_path, monkeypatch):
    more = ["noise.source=seeded", "dataset=digits", "model=cnn", "augment=crop_flip", "optimizer=sgd", "optimizer.momentum=0.9"]
    more += ["sample_rate=1/40", "epochs=null", "steps=8"]
    whole = run(tmp_path / "whole", *more)
    cut_off(monkeypatch, 7, tmp_path / "cut", *more)
    record = run(tmp_path / "cut", *more)
    assert record["resumed_at"] == [5] and science(record) == science(whole)


def test_a_process_killed_by_the_system_goes_on_bit_for_bit(tmp_path):
    more = ["dataset=digits", "model=dense", "epsilon=4", "seed=3", "epochs=30", "noise.source=seeded", "checkpoint.every=20"]
    more += ["threads=1", "save_model=true"]
    command = [sys.executable, "-m", "dpsweep.cli", "run", *more]
    assert subprocess.run([*command, f"output_dir={tmp_path / 'whole'}"]).returncode == 0
    process = subprocess.Popen([*command, f"output_dir={tmp_path / 'cut'}"])
    deadline = time.monotonic() + 170
    while not list(tmp_path.glob("cut/records/checkpoints/*.pt")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert subprocess.run([*command, f"output_dir={tmp_path / 'cut'}"]).returncode == 0
    (whole,), (record,) = (Records(tmp_path / name).scan().records for name in ("whole", "cut"))
    assert record["resumed_at"] and science(record) == science(whole)
    models = [torch.load(Records(tmp_path / name).model_path(whole["id"]), weights_only=True) for name in ("whole", "cut")]
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])


def test_a_secure_run_goes_on_with_other_noise_at_the_same_price(tmp_path, monkeypatch):
    cut_off(monkeypatch, 13, tmp_path)
    (file,) = files(tmp_path)
    record = run(tmp_path)
    assert record["resumed_at"] == [10] and record["epsilon"] <= 1 and "checkpoint" not in record["guarantee_text"]
    assert sum(count for _, count in record["events"]) == record["steps"] == 28
    assert not files(tmp_path)


def test_a_secure_checkpoint_holds_neither_generator_nor_unprotected_numbers(tmp_path, monkeypatch):
    keys = []
    streams = loop.Randomness.stream

    def noted(self, purpose):
        keys.append(self.current_key())
        return streams(self, purpose)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Randomness, "stream", noted)
        cut_off(monkeypatch, 8, tmp_path, "dataset.public=false", "curves=true")
    (file,) = files(tmp_path)
    content = file.read_bytes()
    assert keys and not any(key in content or key.hex().encode() in content for key in keys)
    found = torch.load(file, weights_only=True)
    assert set(found) == {"origin", "step", "resumed_at", "theta", "memory", "optimizer", "data", "parts"}
    assert set(found["parts"]) == {"curves"} and found["origin"]["data"] is None
    assert set(found["data"]) == {"count", "drawn", "ledger", "randomness"} and found["data"]["randomness"] is None
    assert found["data"]["count"] == 10 and found["data"]["drawn"] == 5  # a batch and a sum a step, whatever was drawn
    record = run(tmp_path, "dataset.public=false", "curves=true")
    assert record["resumed_at"] == [5] and record["seconds_train"] is None


def damage(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def foreign(file, part="code", key="dpsweep"):
    """A whole file of another version, under a right name."""
    from dpsweep.training.checkpoint import _digest

    found = torch.load(file, weights_only=True)
    assert found["origin"][part][key]
    found["origin"][part][key] = "0.0.1"
    torch.save(found, file)
    file.rename(file.with_name(file.name.replace(file.name.split(".")[-2], _digest(file.read_bytes()))))


def of_another_plan(file):
    """A whole file of a run that may have charged more a step."""
    foreign(file, "plan", 3)


def half_written(file):
    file.write_bytes(file.read_bytes()[:1000])
    file.rename(file.with_suffix(".tmp"))


@pytest.mark.parametrize("harm", [damage, foreign, of_another_plan, half_written, lambda file: file.write_bytes(b"")])
def test_steps_of_a_checkpoint_that_cannot_be_used_are_charged_twice_and_the_record_says_so(tmp_path, monkeypatch, harm):
    cut_off(monkeypatch, 13, tmp_path)
    harm(files(tmp_path)[0])
    cut_off(monkeypatch, 2, tmp_path)  # an interruption before the next checkpoint doesn't forget it
    (mark,) = files(tmp_path)
    assert mark.suffix == ".lost" and not mark.read_bytes()
    cut_off(monkeypatch, 7, tmp_path)  # nor does one after it
    record = run(tmp_path)
    assert record["resumed_at"] == [5]
    charged = [(event_from_json(event), count) for event, count in record["events"]]
    assert sum(count for _, count in charged) == record["steps"] + 10
    assert record["epsilon"] == pytest.approx(epsilon(charged, record["delta"]).epsilon)
    assert record["epsilon"] > record["target_epsilon"] and record["epsilon_claimed"] == record["epsilon"]
    assert "after 10 steps" in record["guarantee_text"] and "charged twice" in record["guarantee_text"]
    assert not files(tmp_path)


def test_another_state_of_the_code_is_told(tmp_path, monkeypatch):
    from dpsweep import runner
    from dpsweep.config import Composer
    from dpsweep.tasks import enumerate_tasks

    file = tmp_path / "own_mechanism.py"
    file.write_text("from dpsweep.mechanisms.gaussian import Gaussian\n\nclass Own(Gaussian):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mechanism").mkdir()
    (tmp_path / "mechanism" / "own.yaml").write_text("name: own\n_target_: own_mechanism.Own\nmax_grad_norm: 1.0\n")
    (plan,) = enumerate_tasks(["mechanism=own"], Composer([tmp_path])).tasks
    before = runner._code_of(plan.values)
    file.write_text(file.read_text() + "    # charges five times a step\n")
    after = runner._code_of(plan.values)
    assert [key for key in before if before[key] != after[key]] == ["mechanism"]
    assert before["dpsweep"].split("+")[0] == version("dpsweep") and len(before["dpsweep"].split("+")[1]) == 10


def test_other_data_is_not_gone_on_with(tmp_path, monkeypatch):
    cut_off(monkeypatch, 13, tmp_path)
    from dpsweep import runner

    real = runner.load_data

    def other(*arguments):
        dataset, x, y = real(*arguments)
        return replace(dataset, fingerprint="0" * 64), x, y

    monkeypatch.setattr(runner, "load_data", other)
    record = run(tmp_path)
    assert record["resumed_at"] is None and record["epsilon"] > 1


def test_what_only_claims_says_that_the_claim_does_not_cover_it(tmp_path, monkeypatch):
    cut_off(monkeypatch, 13, tmp_path, "epsilon=4", mechanism="dirichlet")
    damage(files(tmp_path)[0])
    record = run(tmp_path, "epsilon=4", mechanism="dirichlet")
    assert record["epsilon"] is None and "more than any claim here covers" in record["guarantee_text"]


def test_a_seeded_run_whose_checkpoint_is_damaged_starts_again_and_is_the_same(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", "noise.source=seeded")
    cut_off(monkeypatch, 13, tmp_path / "cut", "noise.source=seeded")
    damage(files(tmp_path / "cut")[0])
    assert science(run(tmp_path / "cut", "noise.source=seeded")) == science(whole)


def test_a_failed_attempt_leaves_its_checkpoint_for_the_next(tmp_path, monkeypatch):
    close = loop.LoopData.close_step
    with monkeypatch.context() as patch:

        def closing(self):
            if self.ledger.steps_taken == 12:
                raise ValueError("no such luck")
            close(self)

        patch.setattr(loop.LoopData, "close_step", closing)
        status, failed = attempt(*compose(tmp_path), alone=True)
    assert status == "failed"
    task, settings = compose(tmp_path)
    assert attempt(task, settings, alone=True) == ("failed", Records(tmp_path).load(task.id))  # to be asked for anew
    _, record = attempt(task, replace(settings, tried_again=frozenset({failed["checksum"]})), alone=True)
    assert record["status"] == "done" and record["resumed_at"] == [10] and record["attempts"] == 2


def test_a_checkpoint_that_cannot_be_written_stops_the_task_and_leaves_no_release_behind(tmp_path, monkeypatch):
    from dpsweep.training import checkpoint

    def full(path, content):
        path.write_bytes(content[:500])
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_through", full)
        status, record = attempt(*compose(tmp_path), alone=True)
    assert status == "unwritten" and "No space left" in record["error"]["message"]
    assert [file.stat().st_size for file in files(tmp_path)] == [0]
    assert run(tmp_path)["epsilon"] > 1  # it was on the disk in part


def test_checkpoints_are_read_as_data(tmp_path, monkeypatch):
    import pickle

    from dpsweep.training.checkpoint import _digest

    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "run"),)

    cut_off(monkeypatch, 13, tmp_path)
    (file,) = files(tmp_path)
    content = pickle.dumps(Code())
    file.write_bytes(content)
    file.rename(file.with_name(file.name.replace(file.name.split(".")[-2], _digest(content))))
    record = run(tmp_path)
    assert record["resumed_at"] is None and not (tmp_path / "run").exists() and json.dumps(record)


def test_a_process_that_died_between_record_and_checkpoint_leaves_nothing_for_good(tmp_path, monkeypatch):
    cut_off(monkeypatch, 8, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Records, "_forget_checkpoints", lambda self, name: None)
        record = run(tmp_path)
    assert files(tmp_path)
    later = tmp_path / "records" / "checkpoints" / f"{record['id']}.5.0123456789abcdef.pt"
    later.touch()  # of an execution with force=true that was cut off
    os.utime(later, ns=(2**62, 2**62))
    Records(tmp_path).tidy([record["id"]])
    assert files(tmp_path) == [later]
