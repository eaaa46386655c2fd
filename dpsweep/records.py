"""Records: one JSON file a task, written once, verified whenever it is read.

A file that isn't what it should be (torn, edited, of another task) is never read as a result and never overwritten:
a sweep moves it aside and says why.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dpsweep.errors import OutputError, UsageError
from dpsweep.record_types import mistyped
from dpsweep.tasks import labels_of, task_id

SCHEMA = 1
_CHECKPOINT = r"\.\d+\.[0-9a-f]+\.(pt|tmp|lost)"  # after the task's id: steps, and what tells files apart
FIELDS = (
    "id", "status", "dataset", "model", "mechanism", "optimizer", "accountant", "target_epsilon",
    "target_noise_multiplier", "seed", "run", "repeat", "config", "selection",
    "reference_size", "sample_rate", "steps", "normalizer", "batch_size", "epochs", "delta", "max_grad_norm",
    "noise_multiplier", "s_min_least", "s_min_mean", "adjacency", "protects", "claim_only", "epsilon_claimed",
    "epsilon", "epsilon_if_secure", "epsilon_realised", "guarantee_reason", "guarantee_text", "events",
    "noise_source", "diverged", "test_accuracy", "test_precision", "test_recall", "test_f1", "test_auroc",
    "test_auprc", "majority_accuracy", "seconds_train", "seconds_features", "seconds_train_with_features",
    "features_cached", "seconds_setup", "seconds_total", "alone", "diagnostics", "curves", "trainable_parameters",
    "stored_parameters", "stored_bytes", "macs", "peak_memory_growth", "data_fingerprint", "data_official",
    "train_size", "unused_size", "test_size", "input_shape", "public", "unprotected", "versions", "threads", "device",
    "engine", "started", "finished", "host", "attempts", "resumed_at", "weights_sha256", "error",
)  # fmt: skip


@dataclass
class Scan:
    """What a records folder holds: valid records, and the files that are none, each with the reason."""

    records: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[tuple[str, str]] = field(default_factory=list)


def checksum(record: dict[str, Any]) -> str:
    """SHA-256 of the record's canonical JSON without its checksum."""
    body = {key: value for key, value in record.items() if key != "checksum"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def problem(record: Any, name: Any) -> str | None:
    """Why these contents are no valid record of the task called `name`; None if they are."""
    if not isinstance(record, dict) or not {"id", "status", "config", "checksum", "schema"} <= record.keys():
        return "it is not a record"
    if record["schema"] != SCHEMA:
        return f"its format is {record['schema']!r} and this version reads {SCHEMA}"
    try:
        if record["checksum"] != checksum(record):
            return "its checksum does not fit its contents: it was edited or damaged"
        configured = task_id(record["config"])
    except (KeyError, TypeError, AttributeError, ValueError):  # a NaN, or a configuration of another form
        return "its contents are no record's"
    error = record.get("error")
    told = isinstance(error, dict) and all(isinstance(error.get(key), str) for key in ("type", "message"))
    if not (record["status"] == "done" and error is None) and not (record["status"] == "failed" and told):
        return "it neither finished nor tells why it failed"
    if not record["id"] == configured == name:
        return f"it belongs to the task {configured}"
    if wrong := mistyped(record):
        return wrong
    other = [key for key, value in labels_of(record["config"]).items() if record.get(key) != value]
    return f"its {other[0]} is not that of its configuration" if other else None


def read_record(path: Path, name: str | None = None) -> tuple[dict[str, Any] | None, str | None]:
    """The record in a file, and why it is no valid one of the task `name` (by default, of the task that it says), which is ""
    where there is no file."""
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None, "it is a link to nothing" if path.is_symlink() else ""
    except OSError as error:
        return None, f"it can't be read ({error.strerror})"
    except ValueError:
        return None, "it is no JSON: truncated or damaged"
    except RecursionError:
        return None, "it is no record: nested too deeply"
    own = record.get("id") if isinstance(record, dict) else None
    reason = problem(record, own if name is None else name)
    return (dict.fromkeys(FIELDS) | record, None) if reason is None else (None, reason)


class Records:
    """The records of one output folder, in ``records/`` under it."""

    def __init__(self, output_dir: Path) -> None:
        self.folder = output_dir / "records"
        self._claims = self.folder / ".claims"

    def prepare(self) -> None:
        """Make the folders.

        Raises:
            UsageError: they can't be made or written.
        """
        try:
            with self._writing():
                self._claims.mkdir(parents=True, exist_ok=True)
                probe = self._claims / f".probe-{uuid.uuid4().hex}"
                probe.touch()
                probe.unlink()
        except OutputError as error:
            raise UsageError(f"output_dir: {error}") from None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise
        except OSError as error:
            raise OutputError.of(self.folder, error) from None

    def path(self, name: str) -> Path:
        """Where the record of a task lies."""
        return self.folder / f"{name}.json"

    def model_path(self, name: str) -> Path:
        """Where the released weights of a task lie, if they are kept."""
        return self.folder / f"{name}.pt"

    def weights_of(self, record: dict[str, Any], path: Path | None = None) -> tuple[Path | None, str]:
        """The file of a done record's weights (by default beside the task's record), or None and why there are none."""
        path = path or self.model_path(record["id"])
        again = "force=true with save_model=true trains another model"
        if record["weights_sha256"] is None and path.exists():
            return None, f"the record tells nothing of the weights in {path.name}: another version made it, or another run them"
        if record["weights_sha256"] is None:
            return None, f"it was made without save_model=true, so its weights are gone; {again}"
        try:
            content = path.read_bytes()
        except OSError as error:
            return None, f"its weights are lost ({error.strerror}), perhaps in a process that died just after the record; {again}"
        if hashlib.sha256(content).hexdigest() != record["weights_sha256"]:
            return None, f"{path.name} beside it holds other weights than the record tells of: of another run, edited or damaged"
        return path, ""

    @property
    def checkpoints(self) -> Path:
        """The folder of what unfinished tasks go on from."""
        return self.folder / "checkpoints"

    def checkpoints_of(self, name: str) -> list[Path]:
        """The checkpoint files of a task (see :mod:`dpsweep.training.checkpoint`)."""
        return [file for file in self.checkpoints.glob(f"{name}.*") if re.fullmatch(_CHECKPOINT, file.name[len(name) :])]

    def load(self, name: str) -> dict[str, Any] | None:
        """The valid record of a task, done or failed; None if there is none."""
        record, reason = read_record(self.path(name), name)
        return record if reason is None else None

    def superseded(self) -> set[str]:
        """The tasks that have records of earlier attempts."""
        return {file.name.rsplit(".", 2)[0] for file in (self.folder / "superseded").glob("*.json")}

    def executions(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        """The done records of a task that were made of the same data, the first execution first; the given one is the last."""
        name = record["id"]
        found = {record["checksum"]: record}
        for file in (self.folder / "superseded").glob(f"{name}.*.json"):
            earlier, reason = read_record(file, name)
            if earlier is not None and reason is None and earlier["status"] == "done":
                found.setdefault(earlier["checksum"], earlier)
        alike = [one for one in found.values() if one["data_fingerprint"] == record["data_fingerprint"]]
        return sorted(alike, key=lambda one: one["attempts"] or 1)

    def scan(self) -> Scan:
        """Read every record in the folder."""
        found = Scan()
        for file in sorted(self.folder.glob("*.json")):
            record, reason = read_record(file, file.stem)
            if reason is None:
                found.records.append(record)  # type: ignore[arg-type]
            elif reason:
                found.damaged.append((file.name, reason))
        return found

    def set_aside_damaged(self, name: str) -> str | None:
        """Move a task's file aside if it is no valid record; says what was done."""
        _, reason = read_record(self.path(name), name)
        if not reason:
            return None
        with self._writing():
            moved = self._aside(name, "set-aside")
            os.replace(self.path(name), moved)
        return f"{name}.json was set aside as {moved.relative_to(self.folder)}: {reason}"

    @contextlib.contextmanager
    def claim(self, name: str) -> Iterator[bool]:
        """Hold a task for this process alone: yields whether it was free. Freed by the system if the process dies.

        Raises:
            OutputError: there can be no lock file.
        """
        from filelock import FileLock, Timeout

        lock = FileLock(self._claims / f"{name}.lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            yield False
            return
        except OSError as error:
            raise OutputError.of(self.folder, error) from None
        try:
            yield True
        finally:
            lock.release()

    def claimed(self, name: str) -> bool:
        """Whether some process holds the task now."""
        with self.claim(name) as free:
            return not free

    @contextlib.contextmanager
    def noted(self, name: str, host: str) -> Iterator[None]:
        """Keep a note beside the claim, for people: where the task runs and since when. It decides nothing."""
        self.note(name, host)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._note(name).unlink(missing_ok=True)

    def note(self, name: str, host: str) -> None:
        """Write the note anew (the caller is inside `noted`). A disk that takes none is no reason to stop."""
        with contextlib.suppress(OSError):
            note = {"pid": os.getpid(), "host": host, "since": time.time()}
            self._note(name).write_text(json.dumps(note), encoding="utf-8")

    def running(self) -> dict[str, dict[str, Any]]:
        """By task, the notes of those that are claimed now: ``pid``, ``host``, ``since`` (seconds of the clock). What a killed
        process left is passed over."""
        found = {}
        for file in sorted(self._claims.glob("*.running")):
            try:
                note = json.loads(file.read_bytes())
                held = self.claimed(file.stem)
            except OutputError:  # a folder that can only be read: the note is all that can be seen
                held = True
            except (OSError, ValueError):  # removed, or being written
                continue
            kinds = {"pid": int, "host": str, "since": float}
            if held and isinstance(note, dict) and all(isinstance(note.get(key), kind) for key, kind in kinds.items()):
                found[file.stem] = note
        return found

    def begun(self, name: str) -> bool:
        """Whether a task runs, or was broken off by the end of its process."""
        return self._note(name).exists()

    def _note(self, name: str) -> Path:
        return self._claims / f"{name}.running"

    def write(self, record: dict[str, Any], again: bool = False, weights: bytes | None = None) -> dict[str, Any]:
        """Put a record in its place, whole or not at all, then the released weights beside it, and return it as it stands there.

        The caller holds the claim. The record of an earlier attempt is kept under ``superseded/``, with its weights, and counted
        in ``attempts``; if it is done it gives way to a done one alone, and that only if the task was meant to run `again`.
        Weights are on the disk only once the record is: a run that is cut off here and made anew would have released twice and
        be charged once. Their room is taken before, so that a full disk stops both.

        Raises:
            FileExistsError: there is a done record of this task.
            OutputError: the folder can't be written.
        """
        name = record["id"]
        earlier = self.load(name)
        if earlier is not None and earlier["status"] == "done" and not (again and record["status"] == "done"):
            raise FileExistsError(f"{self.path(name)} holds a done record")
        attempts = 1 if earlier is None else (earlier["attempts"] or 1) + 1
        digest = None if weights is None else hashlib.sha256(weights).hexdigest()
        record = {**record, "attempts": attempts, "schema": SCHEMA, "weights_sha256": digest}
        record["checksum"] = checksum(record)
        text = json.dumps(record, indent=1, allow_nan=False)
        with self._writing(), self._partial(name) as partial, self._partial(name) as room:
            if weights is not None:
                write_through(room, bytes(len(weights)))
            write_through(partial, text.encode())
            self._place(partial, name, earlier is not None)
            if weights is not None:
                write_through(room, weights, "r+b")  # in place: what was taken isn't given back
                os.replace(room, self.model_path(name))
        return record

    def _place(self, partial: Path, name: str, replaces: bool) -> None:
        """Make a file the record of a task, and what was there a superseded one; at any moment there is a whole record."""
        weights = self.model_path(name)
        if replaces or weights.exists():
            aside = self._aside(name, "superseded" if replaces else "set-aside")
            if replaces:
                os.link(self.path(name), aside)
            if weights.exists():
                os.replace(weights, aside.with_suffix(".pt"))
        if replaces:
            os.replace(partial, self.path(name))
        else:
            os.link(partial, self.path(name))  # fails where a rename would replace
        sync(self.folder)  # before checkpoints go, and with them what was charged twice
        placed = self.load(name)
        if placed is not None and placed["status"] == "done":
            self._forget_checkpoints(name)

    def _forget_checkpoints(self, name: str) -> None:
        """Remove a task's checkpoints, once its done record stands: those that are younger are a later execution's."""
        written = self.path(name).stat().st_mtime_ns
        for file in self.checkpoints_of(name):
            if file.stat().st_mtime_ns <= written:
                file.unlink(missing_ok=True)

    def tidy(self, names: Iterable[str]) -> None:
        """Remove what a process left of done tasks that died just after writing the record."""
        with_files = {file.name.rsplit(".", 3)[0] for file in self.checkpoints.glob("*.*.*.*")}
        with_files |= {file.name[1:].rsplit(".", 2)[0] for file in self.folder.glob(".*.*.tmp")}
        for name in with_files & set(names):
            with self.claim(name) as free:
                if free:
                    self.sweep_leftovers(name)
                    self._forget_checkpoints(name)

    @contextlib.contextmanager
    def _partial(self, name: str) -> Iterator[Path]:
        """A name for a file of a task that is being written; what still bears it afterwards is removed."""
        partial = self.folder / f".{name}.{uuid.uuid4().hex}.tmp"
        try:
            yield partial
        finally:
            partial.unlink(missing_ok=True)

    def sweep_leftovers(self, name: str) -> None:
        """Finish or remove what a killed attempt at this task left (the caller holds the claim). A whole record of a done run is
        put in its place, and so are its weights: it told of a released model, and another run would be another release."""
        with self._writing():
            for leftover in self.folder.glob(f".{name}.*.tmp"):
                found, _ = read_record(leftover, name)
                there = self.load(name)
                known = there is not None and found is not None and there["checksum"] == found["checksum"]
                free = there is not None or not self.path(name).exists()
                if found is not None and found["status"] == "done" and free and not known:
                    self._place(leftover, name, there is not None)
            placed = self.load(name)
            for leftover in self.folder.glob(f".{name}.*.tmp"):
                if placed is not None and placed["weights_sha256"] == hashlib.sha256(leftover.read_bytes()).hexdigest():
                    os.replace(leftover, self.model_path(name))
                leftover.unlink(missing_ok=True)
            self._note(name).unlink(missing_ok=True)

    def _aside(self, name: str, where: str) -> Path:
        """A new name in a subfolder for a task's record."""
        target = self.folder / where
        target.mkdir(exist_ok=True)
        return target / f"{name}.{uuid.uuid4().hex[:8]}.json"


def write_through(path: Path, content: bytes, mode: Literal["xb", "r+b"] = "xb") -> None:
    """Write a new file, or over the beginning of one, down to the disk."""
    with path.open(mode) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """See that the names in a folder are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
