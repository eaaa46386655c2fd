"""Tasks: one training run each, named by what can change its result; and their enumeration."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from dpsweep.config import GROUPS, PERFORMANCE, Composer, Config, ImpossiblePair, Item, as_number, fraction, parse
from dpsweep.errors import UsageError

PROTOCOL = 1  # raised when the same configuration would come to mean another computation

# Keys of a group's node that describe it without changing the result.
DESCRIPTIVE = {
    "dataset": {"about", "kind", "classes", "shape", "profiles", "public", "schedule"},
    "model": {"about", "inputs", "cost", "frozen", "mechanisms"},
    "mechanism": {"about", "private", "without_budget", "models", "unused", "unused_without_budget"},
    "optimizer": {"about"},
    "accountant": {"about"},
}
_SCHEDULE = ("batch_size", "epochs", "sample_rate", "steps", "split", "split_seed", "run", "seed", "diagnostics")
_PRIVATE_ONLY = ("epsilon", "delta", "noise")


@dataclass(frozen=True)
class Task:
    """One training run.

    Attributes:
        id: readable slug and the hash of the canonical configuration.
        config: the canonical science configuration: what can change the result and nothing else, nulls left out (so
            that a new option, off at null, leaves old identities as they are).
        values: the whole composed configuration, from which it is run.
    """

    id: str
    config: dict[str, Any]
    values: dict[str, Any]

    @classmethod
    def from_config(cls, config: Config) -> Task:
        """The task of a composed configuration."""
        canonical = _canonical(config.values)
        return cls(task_id(canonical), canonical, config.values)

    @property
    def labels(self) -> dict[str, Any]:
        """What tables and records call the task."""
        named = {group: self.config.get(group, {}).get("name") for group in DESCRIPTIVE}
        rest = {
            "target_epsilon": self.config.get("epsilon"),
            "seed": self.config["seed"],
            "run": self.config.get("run"),
        }
        return named | rest | {"config": self.config}


@dataclass(frozen=True)
class Settings:
    """How tasks are run: performance settings, which never change a result beyond rounding."""

    output_dir: Path
    data_dir: Path
    engine: str
    device: str
    threads: int
    workers: int | None
    physical_batch: int | None
    save_model: bool
    on_error: str
    executor: str

    @classmethod
    def from_config(cls, config: Config) -> Settings:
        values = config.values
        data_dir = values["data"]["dir"] or os.environ.get("DPSWEEP_DATA")
        if data_dir is None:
            from platformdirs import user_cache_path

            data_dir = user_cache_path("dpsweep") / "data"
        return cls(
            output_dir=Path(values["output_dir"]).expanduser(),
            data_dir=Path(data_dir).expanduser(),
            threads=values["threads"] or min(8, available_cores()),
            executor=values["executor"]["_target_"],
            **{key: values[key] for key in ("engine", "device", "workers", "physical_batch", "save_model", "on_error")},
        )


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def task_id(canonical: dict[str, Any]) -> str:
    """Slug and hash: equal configurations have equal ids, however they were written."""
    digest = hashlib.sha256(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]
    budget = canonical.get("epsilon")
    if not (budget is None or isinstance(budget, float)):
        raise ValueError(f"epsilon is {budget!r}, not a number")
    parts = [canonical[group]["name"] for group in ("dataset", "model", "mechanism")]
    if budget is not None:
        parts.append(f"eps{budget:g}")
    parts.append(f"seed{canonical['seed']}")
    if canonical.get("run"):
        parts.append(canonical["run"])
    return "-".join([*(re.sub(r"[^A-Za-z0-9._]+", "_", part)[:40] for part in parts), digest])


def _canonical(values: dict[str, Any]) -> dict[str, Any]:
    canonical: dict[str, Any] = {"protocol": PROTOCOL}
    private = values["epsilon"] is not None
    for group, descriptive in DESCRIPTIVE.items():
        if values[group] is None or (group == "accountant" and not private):
            continue
        node = {key: value for key, value in values[group].items() if key not in descriptive}
        if str(node.get("_target_", "")).startswith(("dpsweep.", "torch.")):
            del node["_target_"]  # the name says it; a moved module must not orphan records
        if group == "mechanism" and not private:
            node = {key: value for key, value in node.items() if key not in values[group].get("unused_without_budget", ())}
        canonical[group] = node
    for key in _SCHEDULE if not private else (*_SCHEDULE, *_PRIVATE_ONLY):
        canonical[key] = values[key]
    if canonical["sample_rate"] is not None:
        canonical["sample_rate"] = str(fraction(canonical["sample_rate"]))
    return _without_nulls(canonical)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nulls(v) for key, v in value.items() if v is not None}  # as JSON will have the keys
    return value


@dataclass(frozen=True)
class Plan:
    """What a command line asks for: the tasks in order, and what was left out because it can't be."""

    tasks: list[Task]
    settings: Settings
    suite: dict[str, Any] | None
    impossible: list[str]


def enumerate_tasks(overrides: list[str], composer: Composer, multirun: bool = False) -> Plan:
    """Turn a command line into tasks: one, a multirun's, or those of a suite that match."""
    points = parse(overrides, multirun)
    if any(key == "suite" and value not in ("none", None) for key, value in points[0]):
        return _suite_plan(points, composer)
    return _plan(points, composer, strict=len(points) == 1)


def _suite_plan(points: list[list[Item]], composer: Composer) -> Plan:
    suites = {value for point in points for key, value in point if key == "suite"}
    if len(suites) > 1:
        raise UsageError(f"suite={','.join(map(str, suites))}: name one suite at a time")
    filters: dict[str, set[Any]] = {}
    performance: list[Item] = []
    for key, value in dict.fromkeys((k, tuple(v) if isinstance(v, list) else v) for point in points for k, v in point):
        if key.partition(".")[0] in PERFORMANCE:
            performance.append((key, value))
        elif key in GROUPS:
            filters.setdefault(key, set()).add(value)
        else:
            raise UsageError(
                f"{key}={value} with suite={suites.pop()}: a suite fixes its protocol, so only groups (to keep the matching "
                "tasks) and performance keys apply. For another protocol write a suite of your own (README: your own suite)"
            )
    composer.preload((key, value) for key, values in filters.items() for value in values if isinstance(value, str))
    head = composer.compose(performance)
    suite = head.values["suite"]
    _check_suite(suite)
    grid_points = [point + performance for grid in suite["grids"] for point in _grid(grid)]
    plan = _plan(grid_points, composer, strict=False)
    kept = [task for task in plan.tasks if all(_matches(task, group, values) for group, values in filters.items())]
    if not kept:
        asked = " ".join(f"{group}={','.join(map(str, values))}" for group, values in filters.items())
        raise UsageError(f"suite={suite['name']} has no task with {asked}: see `dpsweep plan suite={suite['name']}`")
    return Plan(kept, plan.settings, suite, plan.impossible)


def _check_suite(suite: Any) -> None:
    """Refuse a suite's mistakes by name, before anything runs."""
    from dpsweep.report.spec import check

    if not isinstance(suite, dict) or not re.fullmatch(r"[A-Za-z0-9_-]{1,60}", str(suite.get("name", ""))):
        raise UsageError("a suite's YAML needs a `name` of letters, digits, - and _, and a list of `grids`")
    name, grids = suite["name"], suite.get("grids")
    unknown = suite.keys() - {"name", "about", "grids", "report"}
    if unknown:
        raise UsageError(f"suite={name}: unknown key {', '.join(sorted(unknown))}; there are name, about, grids and report")
    if not isinstance(grids, list) or not grids or not all(isinstance(grid, dict) and grid for grid in grids):
        raise UsageError(f"suite={name}: `grids` must be a list of mappings from keys to values or lists of values")
    for grid in grids:
        for key, value in grid.items():
            if str(key).partition(".")[0] in PERFORMANCE:
                raise UsageError(
                    f"suite={name}: {key} doesn't change a result, so it is given on the command line, not in a grid"
                )
            if value == [] or isinstance(value, dict):
                raise UsageError(f"suite={name}: {key} needs a value or a list of values")
    check(suite.get("report") or {})


def _matches(task: Task, group: str, values: set[Any]) -> bool:
    if group in ("epsilon", "seed"):
        own = task.config.get(group)
        if own is None:
            return any(str(value).lower() == "none" for value in values)
        return any(own == as_number(value) for value in values)
    return group in task.config and task.config[group]["name"] in values


def _grid(grid: dict[str, Any]) -> Iterable[list[Item]]:
    axes = [[(key, value) for value in (values if isinstance(values, list) else [values])] for key, values in grid.items()]
    return (list(point) for point in product(*axes))


def _plan(points: list[list[Item]], composer: Composer, strict: bool) -> Plan:
    """Compose every point; impossible pairs are an error alone and are left out, by name, among many."""
    composer.preload((k, v) for point in points for k, v in point if k in GROUPS and isinstance(v, str))
    tasks: dict[str, Task] = {}
    impossible: list[str] = []
    settings: Settings | None = None
    for point in points:
        try:
            config = composer.compose(point)
        except ImpossiblePair as error:
            if strict:
                raise
            impossible.append(str(error))
            continue
        task = Task.from_config(config)
        tasks.setdefault(task.id, task)
        settings = settings or Settings.from_config(config)
    if settings is None:
        raise UsageError("none of the combinations is possible:\n  " + "\n  ".join(dict.fromkeys(impossible)))
    return Plan(list(tasks.values()), settings, None, impossible)
