"""Tasks as jobs of Hydra's launchers: joblib, submitit on Slurm, and whatever other plugin is installed.

The output folder is shared by all machines: every job claims its tasks and writes their records there, as any sweep does.
What became of a task is read from the folder, so that a job that was killed, or a launcher that failed, loses no record.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib
import os
import signal
import threading
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from dpsweep.errors import UsageError
from dpsweep.executors import HEAVY, Outcome, Stop, ended
from dpsweep.records import Records
from dpsweep.tasks import Settings, Task


class Hydra:
    """Hands all tasks to a launcher at once, and waits until it has finished."""

    def __init__(self, settings: Settings) -> None:
        self._settings = replace(settings, output_dir=settings.output_dir.resolve())

    def run(self, tasks: list[Task], stop: Stop) -> Iterator[Outcome]:
        """Run the tasks, `tasks_per_job` in a job. Outcomes come when the launcher has ended.

        Raises:
            UsageError: there is no such launcher here, it has no such option, or it failed before any task had begun.
        """
        if stop():
            return
        size = self._settings.executor["tasks_per_job"]
        jobs = [f"+tasks='{_pack(tasks[i : i + size])}'" for i in range(0, len(tasks), size)]
        reason = "its job ended without a record"
        mark = self._folder / f"stop-{uuid.uuid4().hex}"
        launcher, records = self._launcher(_Job(self._settings, mark, os.getpid())), Records(self._settings.output_dir)
        before = {task.id: records.load(task.id) for task in tasks}
        with _relayed(stop, mark):
            try:
                launcher.launch([[job] for job in jobs], initial_job_idx=0)
            except Exception as error:  # some job failed: what the others did is in the folder
                told = f"{type(error).__name__}: {error}".replace("\n", " ")
                if not any(records.begun(task.id) or records.load(task.id) != before[task.id] for task in tasks):
                    raise UsageError(
                        f"executor.launcher={self._settings.executor['launcher']} failed before any task had begun: {told}. No "
                        "record was written. Mend the launcher or its executor.options, or run here: executor=pool"
                    ) from None
                reason += f" ({told})"
            stopped = mark.exists()
        for task in tasks:
            record = records.load(task.id)
            if record is not None and record != before[task.id]:
                yield ended(task, record["status"], record)
            elif records.claimed(task.id):
                yield Outcome(task, "claimed")
            elif not stopped:
                yield Outcome(task, "lost", reason=reason)

    @property
    def _folder(self) -> Path:
        """Where the launcher itself writes, such as Slurm's logs."""
        return self._settings.output_dir / "launcher"

    def _launcher(self, job: _Job) -> Any:
        from hydra import initialize_config_dir
        from hydra._internal.callbacks import Callbacks
        from hydra.core.global_hydra import GlobalHydra
        from hydra.core.plugins import Plugins
        from hydra.errors import HydraException
        from hydra.types import HydraContext, RunMode
        from omegaconf.errors import OmegaConfBaseException

        wanted = self._settings.executor
        options = [f"hydra.launcher.{key}={value}" for key, value in (wanted["options"] or {}).items()]
        own = ["hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null", "hydra.job.name=dpsweep"]
        own += [f"hydra.sweep.dir='{self._folder}'", "hydra.sweep.subdir=."]
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(str(Path(__file__).resolve().parent), version_base="1.3"):
                loader = GlobalHydra.instance().config_loader()
                choice = [f"hydra/launcher={wanted['launcher']}", *options, *own]
                config = loader.load_configuration(None, choice, run_mode=RunMode.MULTIRUN)
                context = HydraContext(config_loader=loader, callbacks=Callbacks(config))
                return Plugins.instance().instantiate_launcher(context, job, config)
        except (HydraException, OmegaConfBaseException) as error:
            raise UsageError(
                f"executor.launcher={wanted['launcher']}: {str(error).splitlines()[0]}. Launchers are plugins of Hydra, such as "
                "hydra-joblib-launcher and hydra-submitit-launcher (pip install them); executor.options takes its keys"
            ) from None


@contextlib.contextmanager
def _relayed(stop: Stop, mark: Path) -> Iterator[None]:
    """While it is entered, a file appears as soon as `stop` says so: jobs that see it begin no further task."""
    over = threading.Event()
    mark.parent.mkdir(exist_ok=True)

    def watch() -> None:
        while not over.wait(0.2):
            if stop():
                mark.touch()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        mark.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Job:
    """What a launcher runs on some machine: the tasks that its override tells, unless the sweep is to stop."""

    settings: Settings
    stop: Path
    head: int  # the process that submits

    def __call__(self, config: Any) -> None:
        if os.getpid() != self.head:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the submitting process's to handle
        for module in HEAVY:
            importlib.import_module(module)
        from dpsweep.runner import attempt

        for task in _unpack(config.tasks):
            if self.stop.exists():
                return
            status, _ = attempt(task, self.settings, alone=False)
            if status in ("failed", "unwritten") and self.settings.on_error == "stop":
                self.stop.touch()


def _pack(tasks: list[Task]) -> str:
    """Tasks as one word of letters, digits, - and _: an override that a launcher passes on as it is."""
    return base64.urlsafe_b64encode(zlib.compress(repr([astuple(task) for task in tasks]).encode())).decode()


def _unpack(word: str) -> list[Task]:
    return [Task(*fields) for fields in ast.literal_eval(zlib.decompress(base64.urlsafe_b64decode(word)).decode())]
