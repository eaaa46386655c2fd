"""The measurement of a sweep's own cost runs and counts its tasks."""

import re
import subprocess
import sys
from pathlib import Path


def test_it_says_what_the_sweep_costs(tmp_path):
    script = Path(__file__).parents[1] / "scripts" / "bench_sweep.py"
    done = subprocess.run(
        [sys.executable, str(script), "--tasks", "4", "--workers", "1"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = re.match(r"4 tasks on 1 workers \(pool\): ([\d.]+) s, ([\d.]+) ms a task;\n([\d.]+) ms of that are", done.stdout)
    whole, each, rest = map(float, found.groups())
    assert 0 < rest < each <= 1000 * (whole + 0.1) / 4
