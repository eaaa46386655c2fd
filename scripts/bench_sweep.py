"""Measure what the sweep itself costs a task: thousands of tasks that take one step each.

    python scripts/bench_sweep.py                            2,536 tasks, as many as the largest suite has, on the pool
    python scripts/bench_sweep.py --executor ray             the same on a Ray cluster that is started for it
    python scripts/bench_sweep.py --tasks 300 --workers 2

A task is one step of a small model on 398 embedded records. Its own time is in its record (`seconds_total`); what is left is the
sweep's: starting the workers, handing out, claiming, writing records. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from dpsweep.config import Composer
from dpsweep.records import Records
from dpsweep.sweep import run_tasks
from dpsweep.tasks import available_cores, enumerate_tasks


def main() -> None:
    """Run the tasks and print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=2536)
    parser.add_argument("--workers", type=int, default=available_cores())
    parser.add_argument("--executor", choices=("pool", "ray"), default="pool")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = ["dataset=breast_cancer", "model=logistic_raw", "sample_rate=1/8", "steps=1", f"seed=range({asked.tasks})"]
        words += [f"executor={asked.executor}", f"workers={asked.workers}", f"output_dir={folder}"]
        words += [f"threads={asked.workers}"] if asked.executor == "pool" else []
        plan = enumerate_tasks(words, Composer(), multirun=True)
        begun = time.perf_counter()
        result = run_tasks(plan.tasks, plan.settings, quiet=True)
        whole = time.perf_counter() - begun
        done = [record for record in Records(Path(folder)).scan().records if record["status"] == "done"]
    own = sum(record["seconds_total"] for record in done) / asked.workers
    each, rest = 1000 * whole / result.done, 1000 * (whole - own) / result.done
    print(f"{result.done} tasks on {asked.workers} workers ({asked.executor}): {whole:.1f} s, {each:.1f} ms a task;")
    print(f"{rest:.1f} ms of that are the sweep's, the start of its workers included")


if __name__ == "__main__":
    main()
