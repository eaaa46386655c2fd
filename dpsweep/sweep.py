"""A sweep: which tasks are missing, run them, say how it goes, lose nothing."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpsweep import provenance
from dpsweep.errors import OutputError, UsageError
from dpsweep.executors import Outcome
from dpsweep.records import Records
from dpsweep.tasks import Settings, Task


@dataclass
class Status:
    """Where the tasks of a plan stand."""

    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: list[Task] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    other_data: dict[str, str] = field(default_factory=dict)  # missing ones, with a done record that doesn't count: why
    strangers: list[str] = field(default_factory=list)  # in words, records in the folder that are of no task here
    others: list[dict[str, Any]] = field(default_factory=list)  # done records of other tasks in the same folder

    def to_run(self, settings: Settings) -> set[str]:
        """Ids of the tasks that a sweep would run: missing ones, failed ones unless retry=none, and with force=true all."""
        failed = set() if settings.retry == "none" and not settings.force else set(self.failed)
        return {task.id for task in self.missing} | failed | (set(self.done) if settings.force else set())


def status_of(tasks: list[Task], records: Records, data_dir: Path | None = None) -> Status:
    """Look every task's record up, and hold it against the data in a folder, if one is named."""
    scan = records.scan()
    known = {record["id"]: record for record in scan.records}
    strangers = provenance.strangers([{"id": task.id} for task in tasks], scan.records)
    other_data = {}
    if data_dir is not None:
        mine = [known[task.id] for task in tasks if task.id in known]
        other_data = provenance.made_of_other_data(tasks, mine, data_dir)
    damaged = {name.removesuffix(".json"): reason for name, reason in scan.damaged}
    status = Status(other_data=other_data, strangers=strangers)
    for task in tasks:
        record = known.pop(task.id, None)
        if record is None or task.id in other_data:
            status.missing.append(task)
            if task.id in damaged:
                status.damaged[task.id] = damaged[task.id]
        else:
            (status.done if record["status"] == "done" else status.failed)[task.id] = record
    status.others = [record for record in known.values() if record["status"] == "done"]
    return status


@dataclass
class Result:
    """What a sweep did: how many tasks ended how, and whether the user broke it off."""

    done: int = 0
    failed: int = 0
    refused: int = 0  # of the failed: by a mistake in the configuration or the data
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        """130 interrupted, 2 if mistakes in configuration or data are all that failed, 1 if a task failed, else 0."""
        return 130 if self.interrupted else 0 if not self.failed else 2 if self.refused == self.failed else 1


def run_tasks(tasks: list[Task], settings: Settings, quiet: bool = False) -> Result:
    """Run what is missing or failed (`retry`, `force`); every other task is left as it is.

    A task that failed for lack of memory is tried once more with half the physical batch, after the others; with retry=all so
    is every other that failed, unless by a mistake in the configuration or the data. With on_error=stop nothing is.

    Raises:
        UsageError: the output folder can't be written, data is missing, or a budget can't be met (before any training).
        OutputError: the folder took no more; what ran was finished, nothing new was started.
    """
    records = Records(settings.output_dir)
    records.prepare()
    say = (lambda text: None) if quiet else _say
    status = status_of(tasks, records, settings.data_dir)
    for line in provenance.summed_up(status.other_data):
        say(f"not done: {line}; such tasks run again, and these records are kept as superseded")
    for name in status.damaged:
        with records.claim(name) as free:
            if free and (moved := records.set_aside_damaged(name)):
                say(moved)
    records.tidy(status.done)
    wanted = status.to_run(settings)
    todo = [task for task in tasks if task.id in wanted]
    left = Counter(task.id in status.done for task in tasks if task.id not in wanted)
    result = Result(done=left[True], failed=left[False])
    if result.failed:
        say(f"failed tasks are left as they are (retry=none): {result.failed}")
    if not todo:
        return result
    preflight(todo, settings)
    if result.done:
        say(f"{result.done} of {len(tasks)} tasks are done already; {len(todo)} to run")
    public = all(task.values["dataset"].get("public", False) for task in todo)
    stale = [records.load(task.id) for task in todo if task.id in status.done or task.id in status.other_data]
    before = {record["id"]: record["checksum"] for record in stale if record is not None}  # done, and made anew
    settings = replace(settings, tried_again=frozenset(record["checksum"] for record in status.failed.values()))
    again: dict[str, Outcome] = {}
    unwritten: list[str] = []
    with _Interrupts(patience=len(todo) > 1) as interrupts, _Progress(len(todo), quiet, timed=public) as progress:

        def settle(outcome: Outcome) -> None:
            if outcome.status == "unwritten":
                assert outcome.record is not None
                unwritten.append(outcome.record["error"]["message"])
                interrupts.count = max(1, interrupts.count)
                return
            result.done += outcome.status == "done"
            result.failed += outcome.status != "done"
            result.refused += outcome.refused
            progress.finished(outcome)
            if outcome.status != "done" and settings.on_error == "stop":
                interrupts.count = max(1, interrupts.count)
                say("stopping at the first failure (on_error=stop): what runs is finished, nothing new is started")

        def recorded(tasks: list[Task], settings: Settings) -> Iterator[Outcome]:
            for outcome in _outcomes(tasks, settings, records, interrupts, progress, before):
                yield _record_loss(outcome, settings, records, before) if outcome.status == "lost" else outcome

        for outcome in recorded(todo, settings):
            if not interrupts.count and _deserves_another(outcome, settings):
                again[outcome.task.id] = outcome
                progress.note(f"{_failure(outcome)}; it is tried once more after the others")
            else:
                settle(outcome)
        for starved, how in ((False, settings), (True, settings.with_less_memory())):
            second = [outcome for outcome in again.values() if outcome.starved == starved]
            failed = {outcome.record["checksum"] for outcome in second if outcome.record and "checksum" in outcome.record}
            how = replace(how, tried_again=how.tried_again | failed)
            for outcome in recorded([outcome.task for outcome in second], how):
                del again[outcome.task.id]
                settle(outcome)
        for outcome in again.values():  # broken off before their turn came
            settle(outcome)
        result.interrupted = interrupts.by_user
    if unwritten:
        raise OutputError(unwritten[0])
    return result


def _deserves_another(outcome: Outcome, settings: Settings) -> bool:
    """Whether a failed task is tried once more in the same run."""
    if outcome.status not in ("failed", "lost") or outcome.refused or settings.on_error == "stop" or settings.retry == "none":
        return False
    return settings.retry == "all" or outcome.starved


def _record_loss(outcome: Outcome, settings: Settings, records: Records, before: Mapping[str, str]) -> Outcome:
    """A worker that died could not write its task's failure: write it here. A done record stays, and counts unless it was there
    `before` (checksums by id) and was to be made anew."""
    from dpsweep.runner import failed_record

    record = failed_record(outcome.task, settings, outcome.error, outcome.reason)
    try:
        with records.claim(outcome.task.id) as free:
            if free:
                records.sweep_leftovers(outcome.task.id)
                earlier = records.load(outcome.task.id)
                if earlier is None or earlier["status"] == "failed":
                    record = records.write(record)
                elif earlier["checksum"] != before.get(outcome.task.id):  # it died after its work was done
                    return replace(outcome, status="done", record=earlier)
    except OutputError as error:
        return replace(outcome, status="unwritten", record=failed_record(outcome.task, settings, "OutputError", str(error)))
    return replace(outcome, status="failed", record=record)


def preflight(tasks: list[Task], settings: Settings) -> None:
    """Check what can be checked before any training: data files are there, budgets can be met.

    Raises:
        UsageError: one of them isn't so.
    """
    from dpsweep.build import build, plan_of
    from dpsweep.runner import pick_device

    if settings.device.startswith("cuda") and settings.executor["name"] in ("inline", "pool"):  # this machine's device
        pick_device(settings.device)
    seen: set[str] = set()
    for task in tasks:
        v = task.values
        for key, check in (
            (repr(v["dataset"]), lambda v=v: build("dataset", v["dataset"]).check(settings.data_dir)),
            (repr([v[k] for k in ("mechanism", "model", "epsilon", "noise_multiplier", "delta", "accountant")]
                  + [v[k] for k in ("batch_size", "epochs", "sample_rate", "steps")]
                  + [v["dataset"][k] for k in ("reference_size", "classes")]), lambda v=v: plan_of(v)),
        ):  # fmt: skip
            if key not in seen:
                seen.add(key)
                check()


def _outcomes(todo: list[Task], settings: Settings, records: Records, interrupts: _Interrupts,
              progress: _Progress, before: Mapping[str, str]) -> Iterator[Outcome]:  # fmt: skip
    """Run rounds until nothing is left: a task that another process holds is waited for, and taken over if it dies. A done record
    that was there `before` (checksums by id) is not what is waited for."""
    inline = len(todo) == 1 and not settings.task_timeout and settings.executor["name"] == "pool"  # a worker would cost its start
    module, _, name = ("dpsweep.executors.Inline" if inline else settings.executor["_target_"]).rpartition(".")
    executor = getattr(importlib.import_module(module), name)(settings)
    if settings.task_timeout and not getattr(executor, "ends_tasks", False):
        raise UsageError(
            f"task_timeout={settings.task_timeout:g}: this executor can't end a task that takes too long. Use executor=pool or "
            "ray, or leave task_timeout out"
        )
    while todo and not interrupts.count:
        elsewhere: list[Task] = []
        for outcome in executor.run(todo, lambda: interrupts.count):
            if outcome.status == "claimed":
                elsewhere.append(outcome.task)
            else:
                yield outcome
        if elsewhere:
            progress.note(f"{len(elsewhere)} tasks are run by another process; waiting for them")
        todo = []
        while elsewhere and not todo and not interrupts.count:
            time.sleep(0.3)
            for task in list(elsewhere):
                record = records.load(task.id)
                if record is not None and record["status"] == "done" and record["checksum"] != before.get(task.id):
                    elsewhere.remove(task)
                    yield Outcome(task, "done", record)
                elif not records.claimed(task.id):
                    elsewhere.remove(task)
                    todo.append(task)


class _Interrupts:
    """Counts Ctrl-C while it is entered: up to `patience` times it is a request, after that it stops at once."""

    def __init__(self, patience: int) -> None:
        self.count = 0
        self.by_user = False
        self._patience = patience

    def __enter__(self) -> _Interrupts:
        with contextlib.suppress(ValueError):  # not the main thread: the caller handles signals
            self._earlier = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exception: Any) -> None:
        if hasattr(self, "_earlier"):
            signal.signal(signal.SIGINT, self._earlier)

    def _handle(self, number: int, frame: Any) -> None:
        self.count += 1
        self.by_user = True
        if self.count > self._patience:
            raise KeyboardInterrupt
        _say("interrupted: finishing what runs, starting nothing new (Ctrl-C again stops now)")


class _Progress:
    """A bar with an estimate on a terminal, a plain line a task elsewhere; no times where the data is not public."""

    def __init__(self, total: int, quiet: bool, timed: bool) -> None:
        self._total, self._quiet, self._timed = total, quiet, timed
        self._count = 0
        self._started = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> _Progress:
        if not self._quiet and self._total > 1 and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn()) if self._timed else ()
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *times, console=Console(stderr=True)
            )
            self._bar.__enter__()
            self._row = self._bar.add_task("starting", total=self._total)
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._bar is not None:
            self._bar.__exit__(*exception)

    def note(self, text: str) -> None:
        """A line that isn't about one finished task."""
        if self._bar is not None:
            self._bar.console.print(text)
        elif not self._quiet:
            _say(text)

    def finished(self, outcome: Outcome) -> None:
        """Count one task and say how it ended."""
        self._count += 1
        if self._quiet or (self._total == 1 and outcome.status == "done"):
            return
        record = outcome.record or {}
        text = _failure(outcome)
        if outcome.status == "done":
            text = f"done {outcome.task.id}"
            accuracy = record.get("test_accuracy")
            text += (
                "  diverged" if record.get("diverged") else f"  accuracy {100 * accuracy:.2f}%" if accuracy is not None else ""
            )
            if record.get("seconds_total") is not None:  # null where the dataset is not public
                text += f"  {record['seconds_total']:.1f} s"
        if self._bar is not None:
            self._bar.update(self._row, advance=1, description=text[:70])
            if outcome.status != "done":
                self._bar.console.print(text)
            return
        left = (time.monotonic() - self._started) / self._count * (self._total - self._count)
        _say(f"[{self._count}/{self._total}] {text}" + (f"  (about {span(left)} left)" if self._timed else ""))


def _failure(outcome: Outcome) -> str:
    error = (outcome.record or {}).get("error") or {"type": "", "message": ""}
    return f"{outcome.status} {outcome.task.id}  {error['type']}: {error['message']}".rstrip(": ")


def span(seconds: float) -> str:
    """A time in seconds, minutes or hours, as a person says it."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads any more: the sweep goes on all the same
        print(text, file=sys.stderr, flush=True)
