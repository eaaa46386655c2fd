"""The feature view, from saved weights to a picture."""

import subprocess
import sys
from pathlib import Path

import pytest

from dpsweep.cli import main

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "show_features.py"


def shown(folder, *tasks):
    return subprocess.run([sys.executable, SCRIPT, "--output-dir", folder, "--out", folder / "view.png", *tasks],
                          capture_output=True, text=True)  # fmt: skip


def run(folder, *words):
    assert main(["run", "dataset=digits", "epochs=1", "threads=1", f"output_dir={folder}", *words]) == 0
    return max((folder / "records").glob("*.json"), key=lambda path: path.stat().st_mtime).stem


@pytest.mark.parametrize("model", ["dense", "cnn"])
def test_filters_and_class_means_of_two_tasks(tmp_path, model):
    ids = [run(tmp_path, f"model={model}", f"mechanism={name}", "save_model=true") for name in ("gaussian", "hero")]
    done = shown(tmp_path, *ids)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "view.png").stat().st_size > 5000


def test_what_it_cannot_show_is_said(tmp_path):
    name = run(tmp_path, "model=dense")
    assert "save_model=true" in shown(tmp_path, name).stderr
    assert "no done record" in shown(tmp_path, "nothing").stderr
    name = run(tmp_path, "dataset=breast_cancer", "model=dense", "save_model=true")
    assert "no set of image filters" in shown(tmp_path, name).stderr
