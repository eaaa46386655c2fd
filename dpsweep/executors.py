"""Where tasks run: in this process, or in a pool of worker processes (or on a cluster: ``cluster.py``).

An executor is built as ``Executor(settings)`` and is asked to ``run(tasks, stop)``: it yields one :class:`Outcome` for
each task that it finished, and starts nothing new once ``stop()`` is true. A worker that dies takes one task with it.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from multiprocessing.connection import Connection, wait
from typing import Any

from dpsweep.checks import fraction
from dpsweep.tasks import Settings, Task, available_cores

HEAVY = ("dpsweep.training.engines", "dpsweep.training.loop", "dpsweep.runner", "torch._dynamo")  # seconds, before any task
Stop = Callable[[], int]  # how often the user asked to stop: 1 finishes what runs, 2 ends it


@dataclass(frozen=True)
class Outcome:
    """What became of one task: ``done``, ``failed``, ``claimed`` (another process has it), ``lost`` (its worker died, so that
    its failure isn't written yet) or ``unwritten`` (no record can be).

    Attributes:
        record: of a done or failed task; of an unwritten one, what says why.
        error, reason: of a lost task, for its record.
        starved: whether it failed for lack of memory, as far as that can be told.
    """

    task: Task
    status: str
    record: dict[str, Any] | None = None
    reason: str = ""
    error: str = "WorkerLost"
    starved: bool = False

    @property
    def refused(self) -> bool:
        """Whether it failed by a mistake of the user's, which no second try mends."""
        error = (self.record or {}).get("error") or {}
        return error.get("type") in ("UsageError", "MissingData")


class Inline:
    """One task after another in this process, with all threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self, tasks: list[Task], stop: Stop) -> Iterator[Outcome]:
        """Run the tasks in order."""
        from dpsweep.runner import attempt

        for task in tasks:
            if stop():
                return
            yield ended(task, *attempt(task, self._settings, alone=True))


class Pool:
    """Worker processes on this machine; the threads are shared out among them, big tasks start first.

    Workers come from a fork server that has imported torch and run nothing, so that a worker starts in milliseconds and
    inherits no thread and no generator. A worker ends as soon as its parent is gone, and is ended when its task takes longer
    than ``task_timeout``.
    """

    ends_tasks = True  # that take too long

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self, tasks: list[Task], stop: Stop) -> Iterator[Outcome]:
        """Run the tasks, each on the first worker that is free."""
        count = min(len(tasks), self._settings.workers or min(available_cores(), self._settings.threads))
        settings = replace(self._settings, threads=max(1, self._settings.threads // count))
        context = multiprocessing.get_context(
            "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        )
        if context.get_start_method() == "forkserver":
            context.set_forkserver_preload(list(HEAVY))
        queue = TaskQueue(tasks)
        workers = [_Worker(context, settings, alone=count == 1) for _ in range(count)]
        try:
            while queue.groups or any(worker.task for worker in workers):
                asked = stop()
                if asked:
                    queue.groups.clear()
                if asked > 1:
                    return
                for i, worker in enumerate(workers):
                    if queue.groups and worker.task is None:
                        task = queue.take(worker.last)
                        if not worker.give(task):
                            workers[i] = worker = _Worker(context, settings, alone=count == 1)
                            worker.give(task)
                busy = {worker.connection: worker for worker in workers if worker.task}
                for ready in wait(list(busy), timeout=0.2):
                    worker = busy[ready]  # type: ignore[index]
                    if (outcome := worker.collect()) is not None:
                        yield outcome
                for i, worker in enumerate(workers):
                    if settings.task_timeout and worker.seconds() > settings.task_timeout:
                        yield overdue(worker.kill(), settings)
                        workers[i] = _Worker(context, settings, alone=count == 1)
        finally:
            for worker in workers:
                worker.end()


def ended(task: Task, status: str, record: dict[str, Any] | None) -> Outcome:
    """The outcome of an attempt in a process that could tell of it."""
    from dpsweep.runner import OUT_OF_MEMORY

    error = (record or {}).get("error") or {}
    return Outcome(task, status, record, starved=error.get("type") == OUT_OF_MEMORY)


def overdue(task: Task, settings: Settings) -> Outcome:
    """The outcome of a task that was ended since it took too long."""
    return Outcome(task, "lost", reason=f"it took longer than task_timeout={settings.task_timeout:g} s", error="TaskTimeout")


def affinity(task: Task) -> str:
    """Tasks with equal ones share frozen features in a worker's memory; a task that shares nothing has one of its own."""
    if not task.values["model"].get("frozen", False):
        return task.id
    values = task.values
    return f"{values['dataset']['name']} {values['split']} {values['split_seed']} {values['seed']}"


def cost(task: Task) -> float:
    """A rough size of a task, to start the big ones first: records passed, times their size, times the model's cost."""
    values = task.values
    records = values["dataset"]["reference_size"] * (values["epochs"] or 1)
    if values["steps"] is not None:
        records = values["dataset"]["reference_size"] * float(fraction(values["sample_rate"])) * values["steps"]
    return records * prod(values["dataset"]["shape"]) * values["model"].get("cost", 10)


class TaskQueue:
    """Tasks in groups that share features, the most work first."""

    def __init__(self, tasks: list[Task]) -> None:
        groups: dict[str, list[Task]] = {}
        for task in tasks:
            groups.setdefault(affinity(task), []).append(task)
        self.groups = dict(sorted(groups.items(), key=lambda group: -sum(map(cost, group[1]))))
        self._started: set[str] = set()

    def take(self, last: str | None) -> Task:
        """The next task for a worker: of its own group, else of a new one, else of the one with the most left."""
        fresh = (name for name in self.groups if name not in self._started)
        name = last if last in self.groups else next(fresh, None) or max(self.groups, key=lambda g: len(self.groups[g]))
        self._started.add(name)
        task = self.groups[name].pop(0)
        if not self.groups[name]:
            del self.groups[name]
        return task

    def put_back(self, task: Task) -> None:
        """A task that was taken, to be taken again."""
        self.groups.setdefault(affinity(task), []).insert(0, task)


class _Worker:
    """One worker process and the pipe to it."""

    def __init__(self, context: Any, settings: Settings, alone: bool) -> None:
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self.task: Task | None = None
        self.last: str | None = None
        self._since = math.inf  # when the task in hand began, by the clock of `seconds`
        for pause in (0.2, 1.0, 3.0, None):
            self._process = context.Process(target=_serve, args=(theirs, settings, alone), daemon=True)
            try:
                self._process.start()
                break
            except (EOFError, OSError) as error:  # the fork server was killed; the next start makes another
                if pause is None:
                    raise ChildProcessError("worker processes can't be started: what starts them is killed each time") from error
                time.sleep(pause)  # while it dies it still counts as running
        theirs.close()

    def give(self, task: Task) -> bool:
        """Hand over a task; False if the worker is gone."""
        try:
            self.connection.send(task)
        except OSError:
            return False
        self.task, self.last, self._since = task, affinity(task), math.inf
        return True

    def seconds(self) -> float:
        """For how long the task in hand has been running."""
        return time.monotonic() - self._since if self.task else 0.0

    def collect(self) -> Outcome | None:
        """The outcome of the task in hand, once the pipe is readable; None if the task has only begun."""
        task = self.task
        assert task is not None
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self.task = None
            self._process.join(timeout=5)
            code = self._process.exitcode
            how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}"
            reason = f"its worker process ended ({how}); out of memory, or killed"
            return Outcome(task, "lost", reason=reason, starved=code == -signal.SIGKILL)
        if message is None:
            self._since = time.monotonic()
            return None
        self.task = None
        return ended(task, *message)

    def kill(self) -> Task:
        """End the task in hand, which is returned, and the worker with it."""
        task = self.task
        assert task is not None
        self.end()
        self.task = None
        return task

    def end(self) -> None:
        """Let an idle worker leave by itself; end a busy one."""
        self.connection.close()
        if self.task is not None:
            self._process.kill()
        self._process.join(timeout=5)


def _serve(connection: Connection, settings: Settings, alone: bool) -> None:
    """A worker's life: tasks in, outcomes out, until the pipe closes or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    from dpsweep.runner import attempt

    while True:
        try:
            task = connection.recv()
            connection.send(None)  # it begins: not before all is imported
        except (EOFError, OSError):
            return
        outcome = attempt(task, settings, alone)
        with contextlib.suppress(OSError):  # nobody waits for it any more: the record is written
            connection.send(outcome)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        time.sleep(0.5)
    os._exit(1)
