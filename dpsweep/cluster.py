"""Tasks on a Ray cluster: one that runs already, or one that is started on this machine.

The process that starts the sweep, the *head*, holds every claim and writes every record; a worker of the cluster trains and
sends the record (and the weights, if they are kept) back. So no disk is shared. A task whose worker or node is lost before its
record came back was seen by nobody: it is run again, elsewhere, as a new run with new keys of noise.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from dpsweep.errors import UsageError
from dpsweep.executors import HEAVY, Outcome, Stop, TaskQueue, affinity, ended, overdue
from dpsweep.provenance import data_of, edition
from dpsweep.records import Records
from dpsweep.tasks import PROTOCOL, Settings, Task, available_cores, default_data_dir

LOSSES = 3  # times that a task's worker may be lost before the task counts as failed
STARTS = 5  # workers that fail to start, one after another, after which a sweep gives up
DESERTED = 60.0  # seconds without any node that fits a task, after which it does too


class Ray:
    """Workers of ``executor.cpus`` cores and ``executor.gpus`` GPUs each, as many as the cluster's nodes hold."""

    ends_tasks = True  # that take too long

    def __init__(self, settings: Settings) -> None:
        wanted = settings.executor
        if settings.checkpoint_every:
            raise UsageError(
                f"checkpoint.every={settings.checkpoint_every}: a node's checkpoints are lost with it and would be charged for. "
                "Leave it out with executor=ray"
            )
        self._settings = replace(settings, threads=max(1, int(wanted["cpus"])))
        self._needs = {"num_cpus": wanted["cpus"], "num_gpus": wanted["gpus"]}

    def run(self, tasks: list[Task], stop: Stop) -> Iterator[Outcome]:
        """Run the tasks, each on the first worker that is free.

        Raises:
            UsageError: Ray isn't installed, the cluster isn't there, or no node of it can hold a task.
            ConnectionError: no node is left that could, or none starts a worker.
        """
        with _connected(self._settings.executor["address"]):
            import ray

            if not self._room():
                needs = f"{self._needs['num_cpus']} cores and {self._needs['num_gpus']:g} GPUs"
                raise UsageError(f"executor=ray: no node of the cluster has {needs}. Lower executor.cpus or executor.gpus")
            worker = ray.remote(max_restarts=0, max_task_retries=0, **self._needs)(_Worker)  # the board decides what runs again
            board, shelf = _Board(tasks), _Shelf(self._settings)
            seats: list[_Seat] = []
            peopled = time.monotonic()
            try:
                while board.open:
                    if asked := stop():
                        board.clear()
                    if asked > 1:
                        return
                    room = self._room()
                    seats = [seat for seat in seats if seat.is_alive()]
                    while len(seats) < min(room, board.open, self._settings.workers or room):
                        seats.append(_Seat(worker.remote(self._settings, sys.path), board, shelf, self._settings))
                    peopled = time.monotonic() if room else peopled
                    if time.monotonic() - peopled > DESERTED:
                        raise ConnectionError("the cluster has no node left that can hold a task; what was finished is kept")
                    with contextlib.suppress(queue.Empty):
                        yield board.next_outcome()
            finally:
                for seat in seats:
                    seat.end()
                for seat in seats:
                    seat.join(timeout=5)

    def _room(self) -> int:
        """How many workers the nodes that are alive could hold."""
        import ray

        sizes = {"CPU": self._needs["num_cpus"], "GPU": self._needs["num_gpus"]}
        return sum(
            int(min(node["Resources"].get(kind, 0) / size for kind, size in sizes.items() if size))
            for node in ray.nodes()
            if node["Alive"]
        )


class _Board:
    """What is still to do, shared by the threads of all seats."""

    def __init__(self, tasks: list[Task]) -> None:
        self._lock = threading.Lock()
        self._waiting = TaskQueue(tasks)
        self._losses: Counter[str] = Counter()
        self._failed_starts = 0
        self._outcomes: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
        self.open = len(tasks)  # tasks that wait or run, and outcomes that nobody took yet

    def take(self, last: str | None) -> Task | None:
        """The next task for a worker, as `TaskQueue.take`; None if none waits now."""
        with self._lock:
            return self._waiting.take(last) if self._waiting.groups else None

    def clear(self) -> None:
        """Start nothing new."""
        with self._lock:
            self.open -= sum(map(len, self._waiting.groups.values()))
            self._waiting.groups.clear()

    def finished(self, outcome: Outcome | BaseException) -> None:
        """Hand an outcome, or what stopped a seat, to the sweep."""
        self._outcomes.put(outcome)

    def lost(self, task: Task, reason: str) -> None:
        """A worker was lost with its task: it waits again, unless that happened too often."""
        with self._lock:
            self._losses[task.id] += 1
            again = self._losses[task.id] < LOSSES
            if again:
                self._waiting.put_back(task)
        if again:
            print(f"a worker was lost with {task.id}, which runs again ({reason})", file=sys.stderr, flush=True)
        else:
            self.finished(Outcome(task, "lost", reason=f"its worker was lost {LOSSES} times; last: {reason}"))

    def started(self, reason: str | None = None) -> None:
        """A worker started, or failed to, for a reason. When too many in a row failed, the sweep ends."""
        with self._lock:
            self._failed_starts = 0 if reason is None else self._failed_starts + 1
            if self._failed_starts >= STARTS:
                self.finished(ConnectionError(f"the cluster starts no workers: {reason}"))

    def next_outcome(self) -> Outcome:
        """The next outcome; `queue.Empty` if none comes within a moment. Raises what stopped a seat."""
        found = self._outcomes.get(timeout=0.2)
        if isinstance(found, BaseException):
            raise found
        self.open -= 1
        return found


class _Shelf:
    """Datasets in the cluster's object store, each put there once, when the first task needs it."""

    def __init__(self, settings: Settings) -> None:
        self._data_dir, self._ships = settings.data_dir, settings.executor["data"] == "ship"
        self._lock = threading.Lock()
        self._stored: dict[str, Any] = {}

    def reference(self, task: Task) -> Any:
        """A reference to the task's dataset, or None where nodes read their own, or this machine can't read it."""
        import ray

        from dpsweep.runner import read_data

        key = data_of(task.values)
        with self._lock:
            if self._ships and key not in self._stored:
                try:
                    self._stored[key] = ray.put(read_data(key, self._data_dir))
                except Exception:  # whatever a reader raises: the worker meets it too, and it becomes the task's record
                    self._stored[key] = None
            return self._stored.get(key)


class _Seat(threading.Thread):
    """One worker of the cluster, and the thread that leads it: from claim to record, task after task."""

    def __init__(self, worker: Any, board: _Board, shelf: _Shelf, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._worker, self._board, self._shelf, self._settings = worker, board, shelf, settings
        self._host = ""
        self._ended = False
        self.start()

    def run(self) -> None:
        """Lead the worker until nothing is open, or it is lost."""
        from ray.exceptions import RayError

        try:
            if self._starts():
                self._board.started()
                self._lead()
        except RayError as error:
            if not self._ended:
                self._board.started(_reason(error))
        except BaseException as error:  # for whoever waits for outcomes: a thread's own end would be silent
            self._board.finished(error)
        finally:
            self.end()

    def _starts(self) -> bool:
        """Wait until the worker has a place, and see whether it is fit to run tasks."""
        import ray

        greeting = self._worker.greet.remote()
        while not ray.wait([greeting], timeout=0.5)[0]:
            if self._ended:
                return False
        self._host, theirs = ray.get(greeting)
        if theirs != (ours := _edition()):
            raise UsageError(f"executor=ray: {self._host} has {theirs} and this machine {ours}. Install one version everywhere")
        return True

    def _lead(self) -> None:
        from ray.exceptions import GetTimeoutError, RayError

        from dpsweep.runner import attempt

        last = None
        while self._board.open and not self._ended:
            task = self._board.take(last)
            if task is None:  # others still run, and what they lose is run again here
                time.sleep(0.1)
                continue
            last = affinity(task)
            try:
                status, record = attempt(task, self._settings, alone=False, run=self._remotely)
            except GetTimeoutError:  # the worker ends with this thread, and another takes its place
                self._board.finished(overdue(task, self._settings))
                return
            except RayError as error:  # its process, its node, or what it sent back is gone
                if not self._ended:
                    self._board.lost(task, _reason(error))
                return
            self._board.finished(ended(task, status, record))

    def _remotely(self, task: Task, settings: Settings, alone: bool, keep: Callable[[bytes], None]) -> dict[str, Any]:
        """Run a task in the worker."""
        import ray

        from dpsweep.runner import failed_record

        records = Records(settings.output_dir)
        if records.checkpoints_of(task.id):
            reason = "it has checkpoints here, which must be gone on from or charged for: run it with executor=pool"
            return failed_record(task, settings, "UsageError", f"executor=ray: {reason}")
        records.note(task.id, self._host)
        running = self._worker.run.remote(task, settings, alone, self._shelf.reference(task))
        record, weights = ray.get(running, timeout=settings.task_timeout)
        for content in weights:
            keep(content)
        return cast(dict[str, Any], record)

    def end(self) -> None:
        """End the worker, whatever it does; its thread follows."""
        import ray

        self._ended = True
        with contextlib.suppress(Exception):  # it is gone already, or the cluster is
            ray.kill(self._worker)


class _Worker:
    """What runs in the cluster: a process that trains one task after another."""

    def __init__(self, settings: Settings, path: list[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]  # where the user's own classes lie
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the head's to handle
        import ray

        for module in HEAVY:
            importlib.import_module(module)
        self._data_dir = settings.data_dir if settings.data_dir.is_dir() else Path(default_data_dir())
        self._host = f"{socket.gethostname()} node {ray.get_runtime_context().get_node_id()[:12]}"

    def greet(self) -> tuple[str, str]:
        """Where this is, and which edition of dpsweep runs here."""
        return self._host, _edition()

    def run(self, task: Task, settings: Settings, alone: bool, dataset: Any) -> tuple[dict[str, Any], list[bytes]]:
        """The record of a task, and its weights if they are to be kept; `dataset` is None where the node reads its own. Nothing
        is put on the node's disk: should the record not come back, nobody has seen the run."""
        from dpsweep import runner

        if dataset is not None:
            runner.given[data_of(task.values)] = dataset
        weights: list[bytes] = []
        try:
            settings = replace(settings, output_dir=Path(os.devnull), data_dir=self._data_dir)
            return runner.run_task(task, settings, alone, weights.append) | {"host": self._host}, weights
        finally:
            runner.given.clear()  # what is used again stays in the runner's own memory of datasets


def _edition() -> str:
    return f"dpsweep {edition()}, protocol {PROTOCOL}"


def _reason(error: Exception) -> str:
    """What Ray says, in one line."""
    cause = getattr(error, "cause", None)
    text = f"{type(cause).__name__}: {cause}" if isinstance(cause, Exception) else str(error)
    return next(filter(None, map(str.strip, text.splitlines())), type(error).__name__)


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Join a cluster, or start one on this machine, and leave it (or end it) afterwards."""
    try:
        import ray
    except ImportError:
        raise UsageError("executor=ray: Ray is not installed. Install it: pip install 'ray>=2.9,<3'") from None
    if ray.is_initialized():  # by whoever called us in their own process
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
    named = address or os.environ.get("RAY_ADDRESS")
    if named:
        _call_on(named)
    try:
        ray.init(named or "auto", **quiet)
    except ConnectionError as error:
        if named:
            raise UsageError(f"executor.address={named}: the Ray cluster can't be joined ({_reason(error)})") from None
        ray.init("local", num_cpus=available_cores(), **quiet)
    try:
        # Ray repeats the logs of lost nodes on standard output, page by page; a sweep itself says nothing there.
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        ray.shutdown()


def _call_on(address: str) -> None:
    """Refuse an address where nobody answers: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host.removeprefix("ray://").strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"executor.address={address}: no Ray cluster answers there ({error}). Start one with `ray start --head`, or leave "
            "the address (and RAY_ADDRESS) out for one on this machine"
        ) from None
