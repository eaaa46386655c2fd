"""Tasks: one training run each, named by what can change its result; and how a command line becomes tasks."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpsweep import suites
from dpsweep.checks import ImpossiblePair, fraction, is_private
from dpsweep.config import GROUPS, Composer, Config, Item, parse
from dpsweep.errors import UsageError

PROTOCOL = 1  # raised when the same configuration would come to mean another computation

# Keys of a group's node that describe it without changing the result.
DESCRIPTIVE = {
    "dataset": {"about", "kind", "classes", "shape", "profiles", "public", "schedule"},
    "model": {"about", "inputs", "cost", "frozen", "mechanisms"},
    "mechanism": {"about", "private", "proved", "without_budget", "models", "unused", "unused_without_budget"},
    "optimizer": {"about"},
    "accountant": {"about"},
}
_SCHEDULE = ("batch_size", "epochs", "sample_rate", "steps", "split", "split_seed", "run", "repeat", "augment", "curves",
             "diagnostics", "seed")  # fmt: skip
_PRIVATE_ONLY = ("epsilon", "noise_multiplier", "delta", "noise")


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
        # Whether its mechanism says that it proves nothing for the released model, whatever it claims.
        claim_only = None if self.values["mechanism"].get("proved", True) else True
        return labels_of(self.config) | {"claim_only": claim_only, "config": self.config}


def labels_of(config: dict[str, Any]) -> dict[str, Any]:
    """What of a canonical configuration stands in a record under a name of its own."""
    named = {group: (config.get(group) or {}).get("name") for group in DESCRIPTIVE}
    target = {"target_epsilon": config.get("epsilon"), "target_noise_multiplier": config.get("noise_multiplier")}
    return named | target | {key: config.get(key) for key in ("seed", "run", "repeat")}


@dataclass(frozen=True)
class Settings:
    """How tasks are run: performance settings, which never change a result beyond rounding."""

    output_dir: Path
    data_dir: Path
    engine: str
    device: str
    threads: int
    workers: int | None
    physical_batch: int | float | None  # below 1: a share of what the engine would choose
    save_model: bool
    on_error: str
    retry: str
    force: bool
    executions: str
    task_timeout: float | None
    checkpoint_every: int | None
    executor: dict[str, Any]  # its YAML, with what the command line set
    tried_again: frozenset[str] = frozenset()  # checksums of failed records that are no reason to leave their tasks

    @classmethod
    def from_config(cls, config: Config) -> Settings:
        values = config.values
        return cls(
            output_dir=Path(values["output_dir"]).expanduser(),
            data_dir=Path(values["data"]["dir"] or default_data_dir()).expanduser(),
            threads=values["threads"] or min(8, available_cores()),
            executor=values["executor"],
            checkpoint_every=values["checkpoint"]["every"],
            **{key: values[key] for key in ("engine", "device", "workers", "physical_batch", "save_model", "on_error",
                                            "retry", "force", "executions", "task_timeout")},
        )  # fmt: skip

    def with_less_memory(self) -> Settings:
        """The same with half the physical batch, which changes no result."""
        asked = self.physical_batch
        return replace(self, physical_batch=0.5 if asked is None else max(1, asked // 2))


def default_data_dir() -> str:
    """Where this machine keeps data, unless ``data.dir`` says it."""
    if "DPSWEEP_DATA" in os.environ:
        return os.environ["DPSWEEP_DATA"]
    from platformdirs import user_cache_path

    return str(user_cache_path("dpsweep") / "data")


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
    if canonical.get("noise_multiplier") is not None:
        parts.append(f"sigma{canonical['noise_multiplier']:g}")
    parts.append(f"seed{canonical['seed']}")
    if canonical.get("run"):
        parts.append(canonical["run"])
    if canonical.get("repeat"):
        parts.append(f"repeat{canonical['repeat']}")
    return "-".join([*(re.sub(r"[^A-Za-z0-9._]+", "_", part)[:40] for part in parts), digest])


def _canonical(values: dict[str, Any]) -> dict[str, Any]:
    canonical: dict[str, Any] = {"protocol": PROTOCOL}
    private = is_private(values)
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
    """What a command line asks for: the tasks in order, and what was left out because it can't be.

    With a suite: its YAML, the tables and figures that were asked for (``table=table3,figure2``), and the part of it that
    filters and repeats ask for, in words ("" for the whole).
    """

    tasks: list[Task]
    settings: Settings
    impossible: list[str]
    suite: dict[str, Any] | None = None
    table: str | None = None
    part: str = ""


def enumerate_tasks(overrides: list[str], composer: Composer, multirun: bool = False) -> Plan:
    """Turn a command line into tasks: one, a multirun's, or those of a suite that match."""
    if not suites.named(overrides):
        points = parse(overrides, multirun)
        return _plan(points, composer, strict=len(points) == 1)
    from dpsweep.report.spec import check_compare

    request = suites.request(parse(overrides, multirun=True), composer)
    plan = _plan(request.points, composer, strict=False)
    check_compare(request.suite.get("report") or {}, [task.labels for task in plan.tasks])
    kept = [plan.tasks[i] for i in request.keep([task.config for task in plan.tasks])]
    return replace(plan, tasks=kept, suite=request.suite, table=request.table, part=request.part)


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
    return Plan(list(tasks.values()), settings, impossible)
