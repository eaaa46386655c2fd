"""dpsweep: run, compare and check differentially private training experiments.

From Python::

    import dpsweep
    record = dpsweep.run(["dataset=digits", "model=rvfl", "epsilon=2", "seed=7"])
    frame = dpsweep.load_records("outputs")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

__version__ = "0.1.0"
__all__ = ["load_records", "run"]


def run(overrides: Sequence[str] = (), config_dirs: Sequence[str | Path] = ()) -> dict[str, Any]:
    """Run the one task that the overrides name (or find it done) and return its record.

    Args:
        overrides: what stands after ``dpsweep run`` on the command line, such as ``["dataset=heart", "epsilon=2"]``.
        config_dirs: folders with further groups, as after ``--config-dir``.

    Raises:
        dpsweep.errors.UsageError: the overrides name no possible task.
        dpsweep.errors.OutputError: its record can't be written.
        RuntimeError: the task failed; the message names the error, the record keeps its traceback.
    """
    from dpsweep.config import Composer, parse
    from dpsweep.errors import UsageError
    from dpsweep.records import Records
    from dpsweep.sweep import run_tasks
    from dpsweep.tasks import Settings, Task

    (items,) = parse(overrides)
    if any(key == "suite" for key, _ in items):
        raise UsageError("dpsweep.run runs one task; a suite is run by the command `dpsweep run suite=NAME`")
    composer = Composer(tuple(Path(folder) for folder in config_dirs))
    config = composer.compose(items)
    task, settings = Task.from_config(config), Settings.from_config(config)
    run_tasks([task], settings, quiet=True)
    record = Records(settings.output_dir).load(task.id)
    if record is None or record["status"] != "done":
        error = (record or {}).get("error") or {"type": "no record", "message": "the task was interrupted"}
        raise RuntimeError(f"{task.id} failed: {error['type']}: {error['message']}")
    return record


def load_records(folder: str | Path = "outputs") -> pandas.DataFrame:
    """The valid records under an output folder, one row a task (nested values stay Python objects)."""
    import pandas

    from dpsweep.records import Records

    return pandas.DataFrame(Records(Path(folder)).scan().records)
