"""What README promises about extensions: its own example, outside the package, in a checkout and from the wheel."""

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def write_example(home):
    """The files that README shows under their paths."""
    files = re.findall(r"^`(mine/[\w/.]+)`\n```\w+\n(.*?)^```", README, re.M | re.S)
    assert len(files) == 3
    for path, text in files:
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)


def run_example(home, *command):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def dpsweep(*arguments):
        return subprocess.run([*command, *arguments], cwd=home, capture_output=True, text=True, env=environment)

    done = dpsweep(
        "run",
        "-m",
        "dataset=breast_cancer",
        "epochs=1",
        "mechanism=gaussian,normalized",
        "epsilon=1,4",
        "--config-dir",
        "mine",
    )
    assert done.returncode == 0 and "4 of 4 tasks done" in done.stdout, done.stderr
    records = [json.loads(f.read_text()) for f in (home / "outputs" / "records").glob("*.json")]
    own = [r for r in records if r["mechanism"] == "normalized"]
    assert len(own) == 2 and all(0 < r["epsilon"] <= r["target_epsilon"] for r in own)
    report = dpsweep("report", "--config-dir", "mine")
    assert report.returncode == 0 and "normalized" in report.stdout, report.stderr
    assert "normalized" in (home / "outputs" / "reports" / "all" / "index.html").read_text()


def test_the_readme_example_runs_and_is_reported(tmp_path):
    write_example(tmp_path)
    run_example(tmp_path, sys.executable, "-m", "dpsweep.cli")


def test_the_readme_suite_is_valid(tmp_path):
    from dpsweep.config import Composer
    from dpsweep.tasks import enumerate_tasks

    (text,) = re.findall(r"^```yaml\n(name: widths.*?)^```", README, re.M | re.S)
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "widths.yaml").write_text(text)
    assert len(enumerate_tasks(["suite=widths"], Composer([tmp_path])).tasks) == 3 * 3 * 6


def test_every_command_of_the_readme_is_understood():
    """The examples of `dpsweep run|plan|status|calibrate` name options that exist."""
    from dpsweep.config import Composer
    from dpsweep.tasks import enumerate_tasks

    lines = re.findall(r"^dpsweep (?:run|plan|status|calibrate) ([^#\n]*)", README.replace("\\\n", " "), re.M)
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line)
        if "--help" in words or "--config-dir" in words:
            continue
        assert enumerate_tasks([w for w in words if w != "-m"], Composer(), "-m" in words).tasks


@pytest.mark.slow
def test_the_wheel_carries_everything(tmp_path):
    """Install the wheel where the checkout can't be seen; dependencies are lent by the environment of the tests."""
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path / "dist", ROOT],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel], capture_output=True, text=True
    )
    assert installed.returncode == 0, installed.stderr
    here = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "lent.pth").write_text(here + "\n")
    where = subprocess.run(
        [python, "-c", "import dpsweep; print(dpsweep.__file__)"], cwd=tmp_path, capture_output=True, text=True
    )
    assert str(site) in where.stdout
    (tmp_path / "work").mkdir()
    write_example(tmp_path / "work")
    run_example(tmp_path / "work", python, "-m", "dpsweep.cli")
