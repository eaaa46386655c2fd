"""What made a record, and which records may stand together: of one protocol version, and of one and the same data. Imports
neither torch nor opacus."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dpsweep.errors import UsageError
from dpsweep.tasks import PROTOCOL, Task

Record = dict[str, Any]


def data_of(config: Mapping[str, Any]) -> str:
    """What decides the data that a configuration, canonical or whole, trains on: equal keys mean one fingerprint, as long as the
    files stay."""
    return json.dumps([config["dataset"], config.get("split"), config.get("split_seed")], sort_keys=True)


def fingerprint_at_hand(task: Task, data_dir: Path) -> str | None:
    """The fingerprint of a task's data as it lies here; None where it isn't here or can't be read, or may not be told."""
    from dpsweep.build import build

    values = task.values
    if not values["dataset"].get("public", False):
        return None
    try:
        return str(build("dataset", values["dataset"]).load(data_dir, values["split"], values["split_seed"]).fingerprint)
    except Exception:  # readers are also the users' own; what is wrong with the data is said when it is trained on
        return None


def made_of_other_data(tasks: Iterable[Task], records: Iterable[Record], data_dir: Path) -> dict[str, str]:
    """By id, the done records whose data isn't the data at hand, with the reason. Where there is none at hand, nothing is known
    against a record; one that keeps no fingerprint, its data not being public, is not held against anything."""
    tasks_of = {data_of(task.config): task for task in tasks}
    at_hand: dict[str, str | None] = {}
    found = {}
    for record in records:
        key, theirs = data_of(record["config"]), record["data_fingerprint"]
        if record["status"] != "done" or theirs is None or key not in tasks_of:
            continue
        if key not in at_hand:
            at_hand[key] = fingerprint_at_hand(tasks_of[key], data_dir)
        if (ours := at_hand[key]) not in (None, theirs):
            found[record["id"]] = (
                f"made of other data of {record['dataset']} (fingerprint {theirs[:12]}; here is {str(ours)[:12]})"
            )
    return found


def of_one_data(records: Sequence[Record], settle: Callable[[list[Record]], dict[str, str]]) -> dict[str, str]:
    """By id, the done records to leave out so that no table mixes two states of one dataset.

    Args:
        records: of any tasks.
        settle: asked where the fingerprints of one dataset differ: of its records, those that the data at hand rules out.

    Raises:
        UsageError: fingerprints still differ, since the data isn't at hand or is a third one.
    """
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record["status"] == "done" and record["data_fingerprint"] is not None:
            groups[data_of(record["config"])].append(record)
    found: dict[str, str] = {}
    for group in groups.values():
        if len({record["data_fingerprint"] for record in group}) == 1:
            continue
        out = settle(group)
        found |= out
        states = Counter(record["data_fingerprint"] for record in group)
        if len({record["data_fingerprint"] for record in group if record["id"] not in out}) != 1:
            examples = {record["data_fingerprint"]: record["id"] for record in group}
            listed = "; ".join(f"{mark[:12]} ({count}, such as {examples[mark]})" for mark, count in states.most_common())
            raise UsageError(
                f"The records of {group[0]['dataset']} were made of different data, by its fingerprint: {listed}. A table never "
                "mixes them. Name the folder of the right data (data.dir=PATH, with suite=NAME), or move the others away"
            )
    return found


def of_this_protocol(record: Mapping[str, Any]) -> bool:
    """Whether a record's configuration means the computation that it means here."""
    return bool(record["config"].get("protocol") == PROTOCOL)


def strangers(tasks: Iterable[Mapping[str, Any]], records: Iterable[Record]) -> list[str]:
    """In words, how many records belong to no task of a plan, and why.

    Args:
        tasks: with their `id`.
        records: all of the folder.
    """
    ids = {task["id"] for task in tasks}
    names = {_name(name) for name in ids}
    kinds = Counter(_why_not(record, names) for record in records if record["id"] not in ids)
    return [f"{_count(count)} {why}" for why, count in kinds.most_common()]


def _why_not(record: Record, names: set[str]) -> str:
    if not of_this_protocol(record):
        return f"made under protocol version {record['config'].get('protocol')} (this one is {PROTOCOL})"
    if _name(record["id"]) in names:
        return "of a task of the same name under another configuration"
    return "of other tasks"


def summed_up(reasons: Mapping[str, str]) -> list[str]:
    """Reasons by id as lines with counts."""
    return [f"{_count(count)} {why}" for why, count in Counter(reasons.values()).most_common()]


_COMPUTING = ("mechanisms/*", "privacy/*", "training/*", "models/*", "datasets/*", "build", "metrics", "resources", "runner")


@functools.cache
def edition() -> str:
    """The version of dpsweep, with a digest of the modules that compute results: two states of the code have two editions."""
    here = Path(__file__).parent
    files = sorted(file for part in _COMPUTING for file in here.glob(f"{part}.py"))
    digest = hashlib.sha256(b"".join(file.name.encode() + file.read_bytes() for file in files))
    return f"{version('dpsweep')}+{digest.hexdigest()[:10]}"


@functools.cache
def versions() -> dict[str, str]:
    """Versions of what computes the result."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("torch", "opacus", "numpy", "scipy", "scikit-learn", "dp-accounting", "hydra-core"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found | {"dpsweep": edition()}


def versions_in_words(records: Iterable[Mapping[str, Any]], packages: Sequence[str] = ("dpsweep", "torch")) -> str | None:
    """A sentence on records that were made by several versions; None where all were made by one."""
    seen = {name: Counter(str((record["versions"] or {}).get(name, "unknown")) for record in records) for name in packages}
    told = [f"{name} {', '.join(f'{version} ({count})' for version, count in counts.most_common())}"
            for name, counts in seen.items() if len(counts) > 1]  # fmt: skip
    return f"The records were made by several versions: {'; '.join(told)}." if told else None


def _name(task: str) -> str:
    """A task's id without the hash of its configuration."""
    return task.rpartition("-")[0]


def _count(number: int) -> str:
    return f"{number} record{'s' if number != 1 else ''}"
