"""README's own-data example through the command line: a CSV that isn't public, and an NPZ."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
NPZ = """
name: scans
about: x
_target_: dpsweep.datasets.npz_arrays.NpzArrays
kind: image
shape: [1, 8, 8]
classes: 3
reference_size: 140
public: true
schedule: {batch_size: 32, epochs: 2}
file: scans.npz
train: [x, y]
bounds: [0, 255]
"""


@pytest.fixture
def home(tmp_path):
    (text,) = re.findall(r"^`mine/dataset/clinic.yaml`\n```yaml\n(.*?)^```", README, re.M | re.S)
    (tmp_path / "mine" / "dataset").mkdir(parents=True)
    (tmp_path / "mine" / "dataset" / "clinic.yaml").write_text(text)
    (tmp_path / "mine" / "dataset" / "scans.yaml").write_text(NPZ)
    (tmp_path / "files").mkdir()
    rng = np.random.default_rng(0)
    rows = [
        f"{k};{age};{'fm'[k % 2]};{1 + k % 5};{k % 23};{'died' if age > 90 else 'readmitted' if age > 60 else 'home'}"
        for k, age in enumerate(rng.integers(18, 100, 400))
    ]
    (tmp_path / "files" / "clinic.csv").write_text("\n".join(["patient;age;sex;triage;lactate;outcome", *rows]))
    np.savez(tmp_path / "files" / "scans.npz", x=rng.integers(0, 256, (200, 8, 8), dtype=np.uint8), y=rng.integers(0, 3, 200))
    return tmp_path


def dpsweep(home, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "dpsweep.cli", *arguments, "--config-dir", "mine"],
        cwd=home, capture_output=True, text=True, env={**os.environ, "DPSWEEP_DATA": "files"},
    )  # fmt: skip


def records(home):
    return {r["dataset"]: r for r in (json.loads(f.read_text()) for f in (home / "outputs" / "records").glob("*.json"))}


def test_own_files_are_trained_on_by_yaml_alone(home):
    done = dpsweep(home, "run", "-m", "dataset=clinic,scans", "epochs=2", "epsilon=2", "model=rvfl", "threads=1")
    assert done.returncode == 0 and "2 of 2 tasks done" in done.stdout, done.stderr
    clinic, scans = records(home)["clinic"], records(home)["scans"]
    assert clinic["status"] == scans["status"] == "done" and 0 < clinic["epsilon"] <= 2 and 0 < scans["epsilon"] <= 2
    assert not clinic["public"] and clinic["data_fingerprint"] is None and clinic["train_size"] is None
    assert scans["public"] and scans["train_size"] == 140
    plan = dpsweep(home, "plan", "-m", "dataset=clinic,scans", "epochs=2", "epsilon=2", "model=rvfl")
    assert "2 tasks: 2 done" in plan.stdout, plan.stderr


def test_a_mistake_in_a_private_file_is_told_to_its_owner_alone(home):
    path = home / "files" / "clinic.csv"
    path.write_text(path.read_text().replace("\n7;", "\n7;secret7;", 1))
    failed = dpsweep(home, "run", "dataset=clinic", "epochs=1")
    assert failed.returncode == 2 and "dpsweep data verify NAME" in failed.stdout + failed.stderr
    (record,) = records(home).values()
    assert record["error"]["message"].startswith("withheld") and "secret7" not in json.dumps(record)
    told = dpsweep(home, "data", "verify", "clinic")
    assert told.returncode == 1 and "clinic.csv, line 9: 7 cells" in told.stdout and "secret7" not in told.stdout


def test_wrong_shapes_are_refused_before_anything_runs_with_the_right_one(home):
    for name, right in (("clinic", r"Write shape: \[13\]"), ("scans", r"give shape: \[1, 8, 8\]")):
        path = home / "mine" / "dataset" / f"{name}.yaml"
        path.write_text(re.sub(r"shape: \[.*\]", "shape: [4]", path.read_text()))
        failed = dpsweep(home, "run", f"dataset={name}")
        assert failed.returncode == 2 and re.search(right, failed.stderr), failed.stderr
    assert not list((home / "outputs").rglob("*.json"))


def test_names_may_follow_an_option_of_data_verify(home):
    told = subprocess.run(
        [sys.executable, "-m", "dpsweep.cli", "data", "verify", "clinic", "--config-dir", "mine", "scans", "data.dir=files"],
        cwd=home, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0 and "clinic  " in told.stdout and "scans  " in told.stdout, told.stderr


def test_verify_takes_the_keys_of_the_dataset_that_it_is_asked_for(home):
    told = dpsweep(home, "data", "verify", "clinic", "dataset.file=other.csv")
    assert told.returncode == 1 and "other.csv" in told.stdout, told.stderr


def test_a_yaml_without_public_takes_it_from_the_command_line(home):
    path = home / "mine" / "dataset" / "scans.yaml"
    path.write_text(path.read_text().replace("public: true\n", ""))
    done = dpsweep(home, "run", "dataset=scans", "epochs=1", "dataset.public=true", "diagnostics=true")
    assert done.returncode == 0, done.stderr
    (record,) = records(home).values()
    assert record["public"] and record["diagnostics"]["epochs"]
