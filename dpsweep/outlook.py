"""What a plan holds and how long it will take, by the measured times of finished tasks. Imports neither torch nor opacus."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, log, prod
from typing import Any, NamedTuple

from dpsweep.config import Composer
from dpsweep.sweep import Status, span
from dpsweep.tasks import Task

LARGEST = 4  # kinds of tasks that the estimate names


class Kind(NamedTuple):
    """What tasks of about the same cost have in common; budgets and seeds are pooled.

    ``work`` is the number of steps times the values of a record. (Batches hold about as many records everywhere, and where
    they are small a step's fixed cost outweighs them, so that small data would tell too much of large data otherwise.)
    """

    dataset: str
    profile: str
    model: str
    mechanism: str
    diagnostics: bool
    work: int

    @property
    def name(self) -> str:
        """The model and the dataset, as a person says them."""
        return f"{json.loads(self.model)['name']} on {' '.join(filter(None, (self.dataset, self.profile)))}"


@dataclass(frozen=True)
class Estimate:
    """The time that tasks will take.

    Attributes:
        seconds: by kind, in seconds of one core, of all its tasks together.
        extrapolated: the kinds whose time comes from other data, mechanisms or schedules of the same model.
        unknown: by model, the number of tasks of which no finished task tells anything.
    """

    seconds: dict[Kind, float] = field(default_factory=dict)
    extrapolated: set[Kind] = field(default_factory=set)
    unknown: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> float:
        """Core seconds of all tasks of which something is known."""
        return sum(self.seconds.values())

    @property
    def share_extrapolated(self) -> float:
        """How much of the total is extrapolated, from 0 to 1."""
        return sum(self.seconds[kind] for kind in self.extrapolated) / self.total if self.total else 0.0


def counts(tasks: list[Task], status: Status) -> list[str]:
    """Lines with the numbers of tasks: by stage and repeat where there are several, else by dataset, model and mechanism."""
    stages = Counter((task.config.get("run") or "no label", task.config.get("repeat")) for task in tasks)
    if len(stages) == 1:
        kinds = Counter(tuple(task.config[group]["name"] for group in ("dataset", "model", "mechanism")) for task in tasks)
        return [f"  {kind[0]:<14}{kind[1]:<20}{kind[2]:<14}{count:>6} tasks" for kind, count in kinds.items()]
    state: dict[tuple[str, Any], Counter[str]] = defaultdict(Counter)
    for task in tasks:
        where = "done" if task.id in status.done else "failed" if task.id in status.failed else "missing"
        state[task.config.get("run") or "no label", task.config.get("repeat")][where] += 1
    return [
        f"  {label:<24}{'' if repeat is None else f'repeat {repeat}':<12}{count:>6} tasks"
        + "".join(f"{state[label, repeat][where]:>8} {where}" for where in ("done", "failed", "missing"))
        for (label, repeat), count in stages.items()
    ]


def estimate(to_run: Iterable[Task], finished: Iterable[Mapping[str, Any]], sizes: Mapping[tuple[str, str], int],
             cores: int) -> Estimate:  # fmt: skip
    """The time that tasks will take, by what finished ones took.

    A task of a kind that has finished ones takes their mean. Any other is reckoned from the nearest kind of the same model
    (the same data if there is some, else data with the most similar work): its training time is scaled by the work, what
    comes before and after training is not.

    Args:
        to_run: tasks without a done record.
        finished: done records; those without times (not public) or of data without a size are passed over.
        sizes: the values of a record, by dataset and profile ("" for none).
        cores: a record's threads count as cores up to this number, so that time is core time.
    """
    times: dict[Kind, list[tuple[float, float]]] = defaultdict(list)
    for record in finished:
        kind = kind_of(record["config"], sizes)
        if kind is not None and record["seconds_total"] is not None and record["seconds_train"] is not None:
            used = max(1, min(record["threads"] or 1, cores))
            times[kind].append((used * record["seconds_train"], used * (record["seconds_total"] - record["seconds_train"])))
    measured = {kind: tuple(sum(column) / len(found) for column in zip(*found, strict=True)) for kind, found in times.items()}
    result = Estimate()
    for kind, count in Counter(kind_of(task.config, sizes) for task in to_run).items():
        assert kind is not None  # sizes holds every dataset of the plan
        source = kind if kind in measured else min(
            (other for other in measured if other.model == kind.model), key=lambda other: _distance(kind, other), default=None
        )  # fmt: skip
        if source is None:
            result.unknown[json.loads(kind.model)["name"]] += count
            continue
        training, rest = measured[source]
        result.seconds[kind] = count * (training * kind.work / source.work + rest)
        if source != kind:
            result.extrapolated.add(kind)
    return result


def kind_of(config: Mapping[str, Any], sizes: Mapping[tuple[str, str], int]) -> Kind | None:
    """The kind of a canonical configuration; None where the dataset's size is unknown."""
    dataset, profile = _data(config)
    if (dataset, profile) not in sizes:
        return None
    steps = config.get("steps") or 1  # closed forms have neither steps nor batches
    if config.get("batch_size") is not None and config.get("epochs") is not None:
        steps = config["epochs"] * ceil(config["dataset"]["reference_size"] / config["batch_size"])
    work = steps * sizes[dataset, profile]
    model = json.dumps(config["model"], sort_keys=True)
    return Kind(dataset, profile, model, config["mechanism"]["name"], bool(config.get("diagnostics")), work)


def sizes_of(tasks: Iterable[Task], finished: Iterable[Mapping[str, Any]], composer: Composer) -> dict[tuple[str, str], int]:
    """The values of a record, by dataset and profile, of the tasks and of finished records whose dataset is configured here."""
    sizes = {_data(task.config): prod(task.values["dataset"]["shape"]) for task in tasks}
    for name, profile in {_data(record["config"]) for record in finished} - sizes.keys():
        if name in composer.options("dataset"):
            node = composer.node("dataset", name)
            sizes[name, profile] = prod(node.get("profiles", {}).get(profile) or node["shape"])
    return sizes


def _data(config: Mapping[str, Any]) -> tuple[str, str]:
    return config["dataset"]["name"], config["dataset"].get("profile") or ""


def _distance(kind: Kind, other: Kind) -> tuple[Any, ...]:
    """How unlike two kinds of one model are: by data, by work (as a ratio), by what else costs time."""
    ratio = abs(log(kind.work / other.work))
    return kind[:2] != other[:2], ratio, kind.mechanism != other.mechanism, kind.diagnostics != other.diagnostics


def in_words(found: Estimate, left: int, cores: int) -> list[str]:
    """The estimate as lines for a terminal."""
    if not left:
        return ["nothing is left to run"]
    unknown = ", ".join(f"{count} of {model}" for model, count in found.unknown.items())
    if not found.seconds:
        return [f"{left} to run; no finished task of the same models tells how long they take"]
    known = left - found.unknown.total()
    machine = f"{cores} core{'s' if cores > 1 else ''} of this machine"
    lines = [f"{left} to run: {known} take about {span(found.total / cores)} on {machine}, by what finished tasks took"]
    by_name: Counter[str] = Counter()
    for kind, seconds in found.seconds.items():
        by_name[kind.name] += seconds  # type: ignore[assignment]
    shares = [f"{name} {100 * seconds / found.total:.0f}%" for name, seconds in by_name.most_common(LARGEST)]
    lines.append(f"  most of it: {', '.join(shares)}")
    if found.extrapolated:
        share = 100 * found.share_extrapolated
        lines.append(
            f"  {share:.0f}% of it is extrapolated from other data, mechanisms or schedules of the same models: these can be "
            "off by several times"
        )
    if unknown:
        lines.append(f"  not in it, since no finished task tells: {unknown}")
    return lines
