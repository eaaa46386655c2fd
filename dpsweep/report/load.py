"""Tasks joined with their records, and what tells one row of a table from the next."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dpsweep.errors import UsageError

LABELS = ("model", "method", "mechanism", "optimizer", "accountant", "run", "repeat")
OWN_BASELINE = ("mechanism", "optimizer", "accountant")  # what non-private training may lack
Row = tuple[str, ...]


@dataclass(frozen=True)
class Metric:
    """A number of a record.

    Its field (two fields joined by + are summed, a dot leads into a field of a field, or to a place of a list), its name,
    its unit, the factor from the record to that unit, its decimals, the range that it can have in the record's unit, and
    whether every seed must give the same (`exact`).
    """

    field: str
    name: str
    unit: str = "%"
    scale: float = 100.0
    decimals: int = 2
    bounds: tuple[float, float] = (0.0, 1.0)
    exact: bool = False

    def of(self, record: Mapping[str, Any]) -> float | None:
        """The value in the record's own unit; None where it is null or not finite."""
        total = 0.0
        for name in self.field.split("+"):
            value: Any = record
            for key in name.split("."):
                if isinstance(value, list):
                    value = value[int(key)] if value else None
                else:
                    value = None if value is None else value.get(key)
            if value is None or not math.isfinite(value):
                return None
            total += value
        return total

    @property
    def timed(self) -> bool:
        """Whether it is a time, which means something only for a run that had the machine to itself."""
        return self.field.startswith("seconds")

    def clip(self, interval: tuple[float, float], differences: bool = False) -> tuple[float, float]:
        """The part of an interval (record's unit) that lies in the metric's range, or in that of its differences."""
        low, high = self.bounds
        if differences:
            low, high = low - high, high - low
        return max(interval[0], low), min(interval[1], high)

    def show(self, value: float, sign: str = "") -> str:
        """The value in the metric's unit, with a true minus; `sign="+"` shows both signs."""
        return f"{value * self.scale:{sign}.{self.decimals}f}".replace("-", "−")


SECONDS = (0.0, math.inf)
METRICS = {
    "accuracy": Metric("test_accuracy", "Accuracy"),
    "precision": Metric("test_precision", "Precision"),
    "recall": Metric("test_recall", "Recall"),
    "f1": Metric("test_f1", "F1"),
    "auroc": Metric("test_auroc", "AUROC"),
    "auprc": Metric("test_auprc", "AUPRC"),
    "seconds_train": Metric("seconds_train", "Training time", "s", 1.0, bounds=SECONDS),
    "seconds_train_with_features": Metric("seconds_train_with_features", "Training time with features", "s", 1.0, bounds=SECONDS),
}


@dataclass(frozen=True)
class Budget:
    """A column: a target epsilon, a given noise multiplier, neither though there is noise (`private`), or non-private.

    A target that the mechanism merely claims to meet (`claimed`) never shares a column with one that is proved.
    """

    target: float | None
    private: bool
    noise: float | None = None
    claimed: bool = False

    @property
    def name(self) -> str:
        if self.target is not None:
            return f"{'claimed ' if self.claimed else ''}ε={self.target:g}"
        if self.noise is not None:
            return f"σ={self.noise:.4g}"
        return "no target" if self.private else "non-private"

    @property
    def order(self) -> tuple[bool, float, bool, float]:
        return (self.claimed, -1.0 if self.target is None else self.target, self.private, self.noise or 0.0)


@dataclass
class Run:
    """A task and its record; `row` holds the labels that tell table rows apart."""

    id: str
    dataset: str
    budget: Budget
    seed: int
    labels: dict[str, Any]
    config: Mapping[str, Any] | None
    record: dict[str, Any] | None
    row: Row = ()
    keys: Mapping[str, Any] = field(default_factory=dict)  # the configuration, flattened once

    @property
    def status(self) -> str:
        return "missing" if self.record is None else self.record["status"]

    @property
    def done(self) -> dict[str, Any] | None:
        """The record if the run is done, else None."""
        return self.record if self.status == "done" else None


class Results:
    """All runs of a report, by cell: (row, dataset, budget).

    `columns` names the labels in `Run.row` (the model, then what varies).
    """

    def __init__(self, runs: list[Run], columns: tuple[str, ...]) -> None:
        self.runs, self.columns = runs, columns
        self.cells: dict[tuple[Row, str, Budget], list[Run]] = defaultdict(list)
        for run in runs:
            self.cells[run.row, run.dataset, run.budget].append(run)
        self.rows = list(dict.fromkeys(run.row for run in runs))
        self.datasets = list(dict.fromkeys(run.dataset for run in runs))
        self.budgets = sorted({run.budget for run in runs}, key=lambda budget: budget.order)

    def cell(self, row: Row, dataset: str, budget: Budget) -> list[Run]:
        """The runs of a cell in suite order; empty where no task asks for it."""
        return self.cells.get((row, dataset, budget), [])

    def row_name(self, row: Row) -> str:
        """A row in words: those of its labels that some other row has not, without the absent ones."""
        same = [len(self.rows) > 1 and len(set(values)) == 1 for values in zip(*self.rows, strict=True)]
        named = zip(self.columns, row, same, strict=True)
        return ", ".join(v if name in LABELS else f"{name}={v}" for name, v, one in named if v != "—" and not one)

    @property
    def done(self) -> list[dict[str, Any]]:
        return [run.record for run in self.runs if run.record is not None and run.status == "done"]

    def with_status(self, status: str) -> list[Run]:
        return [run for run in self.runs if run.status == status]


def join(
    tasks: Sequence[Mapping[str, Any]],
    records: Sequence[dict[str, Any]],
    method: Callable[[Mapping[str, Any]], str | None] | None = None,
) -> Results:
    """Join tasks with records by id and find the labels that vary.

    Without tasks every record is its own task. Two runs share a cell only if they differ in nothing but the seed: what
    else differs (optimizer, accountant, run label, any key of the configuration) becomes a column. A label that
    non-private training lacks (its mechanism is "none") is taken from the private runs of the same model where these
    have only one, so that the baseline stands in their row. A task without a record may bring its `config`.
    `method` gives a configuration the name by which a paper calls its mechanism and optimizer together.

    Raises UsageError for two records or two tasks of one id, and for two records of one cell and seed.
    """
    _refuse_repeated(records, "records", "keep one of the files (the first execution) and move the other away")
    _refuse_repeated(tasks, "tasks", "a suite must list each task once")
    by_id = {record["id"]: record for record in records}
    if not tasks:
        tasks = sorted(records, key=_natural_order)
    runs = [_run(task, by_id.get(task["id"]), method) for task in tasks]
    columns = _set_rows(runs)
    seen: dict[tuple, str] = {}
    for run in runs:
        if run.record is not None:
            other = seen.setdefault((run.row, run.dataset, run.budget, run.seed), run.id)
            if other != run.id:
                raise UsageError(
                    f"Records {other} and {run.id} have the same seed and labels and no differing configuration, so "
                    "a table would count one run twice. Give repeated executions different `run` labels, or move one "
                    "of the files away."
                )
    return Results(runs, columns)


def regroup(runs: Iterable[Run]) -> Results:
    """Results of some runs alone, whose rows are told apart by what varies between these."""
    copies = [replace(run, labels={name: run.labels[name] for name in LABELS}, row=()) for run in runs]
    return Results(copies, _set_rows(copies))


def _refuse_repeated(items: Sequence[Mapping[str, Any]], what: str, remedy: str) -> None:
    repeated = [name for name, count in Counter(item["id"] for item in items).items() if count > 1]
    if repeated:
        raise UsageError(f"Two {what} have the id {repeated[0]}, and a report never pools or chooses: {remedy}.")


def _natural_order(record: Mapping[str, Any]) -> tuple:
    target = record["target_epsilon"]
    return (
        record["dataset"], record["model"], record["mechanism"], record["run"] or "",
        -1.0 if target is None else target, record["seed"], record["id"],
    )  # fmt: skip


def _run(
    task: Mapping[str, Any], record: dict[str, Any] | None, method: Callable[[Mapping[str, Any]], str | None] | None = None
) -> Run:
    source = task if record is None else record
    labels = {name: source.get(name) for name in LABELS}
    if method is not None and source.get("config"):
        labels["method"] = method(source["config"])
    if labels["mechanism"] == "none":
        labels["mechanism"] = None
    noisy = record is not None and (record["noise_multiplier"] is not None or record["epsilon"] is not None)
    target, noise = source["target_epsilon"], source.get("target_noise_multiplier")
    claimed = target is not None and bool(source.get("claim_only"))
    budget = Budget(None if target is None else float(target), noisy or (target, noise) != (None, None), noise, claimed)
    config = source.get("config")
    return Run(task["id"], source["dataset"], budget, source["seed"], labels, config, record, keys=flatten(config))


def _set_rows(runs: list[Run]) -> tuple[str, ...]:
    for label in OWN_BASELINE:
        _fill(runs, label, ("model", "run", "repeat"))
    variants = _variants(runs)
    for key in variants:
        used = {run.labels["model"] for run in runs if key in run.keys}
        for run in runs:
            # The canonical configuration leaves out keys at their default.
            default = "default" if run.config is not None and run.labels["model"] in used else None
            value = run.keys.get(key, default)
            run.labels[key] = value if value is None or isinstance(value, str) else json.dumps(value)
        _fill(runs, key, LABELS)
    shown = ["model"]
    for name in (*LABELS[1:], *variants):
        # A label that follows from those shown (each model has its own mechanism) tells no rows apart.
        if len({tuple(run.labels[n] for n in (*shown, name)) for run in runs}) > len(
            {tuple(run.labels[n] for n in shown) for run in runs}
        ):
            shown.append(name)
    absent = {"mechanism": "none"}
    for run in runs:
        run.row = tuple("—" if (v := run.labels[n]) is None and n not in absent else str(v or absent[n]) for n in shown)
    short = {key: key.rsplit(".", 1)[-1] for key in variants}
    unique = Counter([*LABELS, *short.values()])
    return tuple(name if name in LABELS or unique[short[name]] > 1 else short[name] for name in shown)


def _fill(runs: list[Run], label: str, within: Sequence[str]) -> None:
    """Give runs that lack a label the one that the other runs alike in `within` have, where it is but one."""
    values: dict[tuple, set] = defaultdict(set)
    for run in runs:
        values[tuple(run.labels[name] for name in within)].add(run.labels[label])
    for run in runs:
        present = values[tuple(run.labels[name] for name in within)] - {None}
        if run.labels[label] is None and len(present) == 1:
            (run.labels[label],) = present


def _variants(runs: list[Run]) -> list[str]:
    """Configuration keys, other than the seed, that differ inside a cell: as few as tell the runs apart."""
    cells: dict[tuple, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for run in runs:
        if run.config is not None:
            place = (run.dataset, run.budget, *(run.labels[name] for name in LABELS))
            cells[place].append((run.seed, run.keys))
    keys: Counter[str] = Counter()
    seeds: set[str] = {key for cell in cells.values() for _, values in cell for key in values}
    for cell in cells.values():
        for key in {key for _, values in cell for key in values}:
            if len({_canonical(values.get(key)) for _, values in cell}) > 1:
                # A name says more than the numbers that come with it: names are tried first.
                keys[key] += any(isinstance(values.get(key), str) for _, values in cell)
        for seed, values in cell:
            seeds -= {key for key in seeds if values.get(key) != seed}
    chosen: list[str] = []
    for key in sorted(keys.keys() - seeds, key=lambda key: (-keys[key], key)):
        if any(_classes(cell, [*chosen, key]) > _classes(cell, chosen) for cell in cells.values()):
            chosen.append(key)
    return chosen


def _classes(cell: list[tuple[int, Mapping[str, Any]]], keys: list[str]) -> int:
    return len({tuple(_canonical(values.get(key)) for key in keys) for _, values in cell})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, list) else repr(value)


def flatten(config: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in (config or {}).items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def metrics_of(names: Iterable[str]) -> dict[str, Metric]:
    """The metrics by name; UsageError for an unknown one."""
    names = list(names)
    for name in names:
        if name not in METRICS:
            raise UsageError(f"The report asks for the metric {name!r}, which records lack. Choose from {', '.join(METRICS)}.")
    return {name: METRICS[name] for name in names}
