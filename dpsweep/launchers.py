"""Tasks as jobs of Hydra's launchers: joblib, submitit on Slurm, and whatever other plugin is installed.

The output folder is shared by all machines: every job claims its tasks and writes their records there, as any sweep does.
What became of a task is told there too, so that a job that was killed, or a launcher that failed, loses none.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
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
        board = _Board(self._folder / f"sweep-{uuid.uuid4().hex}")
        launcher, records = self._launcher(_Job(self._settings, board, os.getpid())), Records(self._settings.output_dir)
        failed = False
        with board.relaying(stop):
            try:
                launcher.launch([[job] for job in jobs], initial_job_idx=0)
            except Exception as error:  # some job failed: what the others did is in the folder
                told = f"{type(error).__name__}: {error}".replace("\n", " ")
                if not any(records.begun(task.id) or board.told(task) for task in tasks):
                    raise UsageError(
                        f"executor.launcher={self._settings.executor['launcher']} failed before any task had ended: {told}. No "
                        "record was written. Mend the launcher or its executor.options, or run here: executor=pool"
                    ) from None
                reason, failed = f"{reason} ({told})", True
            outcomes = [board.told(task) for task in tasks]
            broken = any(outcome is not None and outcome.status in ("failed", "unwritten") for outcome in outcomes)
            skipped = stop() or (board.stopped and broken and not failed)
        for task, outcome in zip(tasks, outcomes, strict=True):
            if outcome is not None:
                yield outcome
            elif not skipped:
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


@dataclass(frozen=True)
class _Board:
    """A folder that the jobs and the submitting process see: what became of a task, and whether to begin no further one.

    A record alone doesn't tell it: a forced task that failed leaves the earlier one, and another process may have written it.
    """

    folder: Path

    @property
    def stopped(self) -> bool:
        """Whether no further task is to begin."""
        return (self.folder / "stop").exists()

    def stop(self) -> None:
        """Let no further task begin."""
        (self.folder / "stop").touch()

    def tell(self, task: Task, status: str, record: dict[str, Any] | None) -> None:
        """Put up what `attempt` returned for a task."""
        partial = self.folder / f"{task.id}.tmp"
        partial.write_text(json.dumps([status, record]), encoding="utf-8")
        partial.replace(self.folder / f"{task.id}.json")

    def told(self, task: Task) -> Outcome | None:
        """The outcome of a task, if a job told it."""
        with contextlib.suppress(OSError, ValueError):
            return ended(task, *json.loads((self.folder / f"{task.id}.json").read_bytes()))
        return None

    @contextlib.contextmanager
    def relaying(self, stop: Stop) -> Iterator[None]:
        """Make the folder and pass on what `stop` says; jobs that are left behind by a second Ctrl-C still find it."""
        self.folder.mkdir(parents=True)
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.2):
                if stop():
                    self.stop()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            over.set()
            watcher.join()
            if not isinstance(sys.exception(), KeyboardInterrupt):
                shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class _Job:
    """What a launcher runs on some machine: the tasks that its override tells, unless the sweep is to stop."""

    settings: Settings
    board: _Board
    head: int  # the process that submits

    def __call__(self, config: Any) -> None:
        if os.getpid() != self.head:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the submitting process's to handle
        for module in HEAVY:
            importlib.import_module(module)
        from dpsweep.runner import attempt

        for task in _unpack(config.tasks):
            if self.board.stopped:
                return
            status, record = attempt(task, self.settings, alone=False)
            with contextlib.suppress(OSError):  # a full disk, which the submitting process will meet too
                self.board.tell(task, status, record)
            if status in ("failed", "unwritten") and self.settings.on_error == "stop":
                self.board.stop()


def _pack(tasks: list[Task]) -> str:
    """Tasks as one word of letters, digits, - and _: an override that a launcher passes on as it is."""
    return base64.urlsafe_b64encode(zlib.compress(repr([astuple(task) for task in tasks]).encode())).decode()


def _unpack(word: str) -> list[Task]:
    return [Task(*fields) for fields in ast.literal_eval(zlib.decompress(base64.urlsafe_b64decode(word)).decode())]
