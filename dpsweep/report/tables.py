"""The tables of a report: metrics, protocol, times, environment, and what failed or is missing."""

import functools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsweep.describe import charged
from dpsweep.report import stats
from dpsweep.report.guarantees import shortfall
from dpsweep.report.load import Budget, Metric, Results, Row, Run
from dpsweep.report.markup import Footnotes, Table

SHARED = ("~", "not all of these runs had the machine to themselves, so these times do not compare")
MOST_COLUMNS = 6  # a metric table with more value columns gets one block a dataset instead of one column group


@dataclass(frozen=True)
class Sample:
    """The values of one metric in one cell, by seed, and what keeps the cell from being whole."""

    values: dict[int, float]
    expected: int
    gaps: tuple[tuple[str, str], ...]  # (what, id) of each run without a value, or with one that needs a word
    marks: tuple[tuple[str, str, str], ...]  # (symbol, text, detail) of notes on the guarantee or the time

    @property
    def unproved(self) -> bool:
        """Whether the column's epsilon is not what is proved for every run."""
        return any(symbol != SHARED[0] for symbol, *_ in self.marks)

    @property
    def n(self) -> int:
        return len(self.values)

    @functools.cached_property
    def mean(self) -> float:
        return statistics.fmean(self.values.values())

    @functools.cached_property
    def sd(self) -> float | None:
        """The sample standard deviation (n-1); None for one value."""
        return float(np.std(list(self.values.values()), ddof=1)) if self.n > 1 else None


def sample(runs: Sequence[Run], metric: Metric) -> Sample:
    """Collect a cell. A diverged run with a value counts, or its method would be flattered, and is named."""
    values: dict[int, float] = {}
    gaps = []
    for run in runs:
        value = None if run.done is None else metric.of(run.done)
        if value is not None:
            values[run.seed] = value
        if run.record is None:
            gaps.append(("missing:", run.id))
        elif run.done is None:
            gaps.append((f"failed ({(run.record['error'] or {}).get('type', 'no error type recorded')}):", run.id))
        elif run.done["diverged"]:
            gaps.append((f"diverged, {'counted' if value is not None else 'no value'}:", run.id))
        elif value is None:
            gaps.append(("undefined:", run.id))
    marks = dict.fromkeys(found for run in runs if (found := shortfall(run)) is not None)
    if metric.timed and any(run.done is not None and not run.done["alone"] for run in runs):
        marks[*SHARED, ""] = None
    return Sample(values, len(runs), tuple(gaps), tuple(marks))


def cell_marks(cell: Sample, notes: Footnotes) -> str:
    """All marks of a cell, with its notes registered."""
    marks = [notes.mark(*found) for found in cell.marks]
    if cell.n:
        marks += [notes.mark("", *gap) for gap in cell.gaps]
    return "".join(dict.fromkeys(marks))


def usual_seeds(results: Results) -> int:
    """The most seeds that any cell asks for; cells with another number of values show it."""
    return max((len(runs) for runs in results.cells.values()), default=0)


def cell_text(cell: Sample, metric: Metric, usual: int, interval: bool = False) -> str:
    """'mean ± SD' or 'low to high' in the metric's unit, with n where it isn't the usual; — without a value."""
    if cell.n == 0:
        return "—"
    if interval:
        bounds = stats.t_interval(list(cell.values.values()))
        text = " to ".join(map(metric.show, metric.clip(bounds))) if bounds else "n/a"
    elif metric.exact and len(set(cell.values.values())) == 1:
        text = metric.show(cell.mean)
    else:
        text = f"{metric.show(cell.mean)} ± {metric.show(cell.sd) if cell.sd is not None else 'n/a'}"
    if cell.n != cell.expected:
        return f"{text} (n={cell.n} of {cell.expected})"
    return text if cell.n == usual else f"{text} (n={cell.n})"


def metric_caption(results: Results, metric: Metric, interval: bool = False) -> str:
    """What the cells of a metric table are, in a sentence."""
    usual = usual_seeds(results)
    what = "95% Student-t interval of the mean" if interval else "mean ± sample SD"
    where = " on the test set" if metric.field.startswith("test_") else ""
    seeds = f"{usual} seeds; n stands where it differs" if usual > 1 else "1 seed, so that no spread is defined (n/a)"
    return f"{metric.name} ({metric.unit}){where}: {what} over {seeds}."


def metric_table(results: Results, name: str, metric: Metric, interval: bool = False) -> Table:
    """Rows a model (and what else varies), columns dataset x budget; or, if these are many, one block a dataset."""
    usual, notes = usual_seeds(results), Footnotes()

    def values(row: Row, columns: Iterable[tuple[str, Budget]]) -> list[str]:
        cells = [sample(results.cell(row, *column), metric) for column in columns]
        return [cell_text(cell, metric, usual, interval) + cell_marks(cell, notes) for cell in cells]

    asked = {(dataset, budget) for _, dataset, budget in results.cells}
    columns = [(d, b) for d in results.datasets for b in results.budgets if (d, b) in asked]
    labels = [label.capitalize() for label in results.columns]
    caption = metric_caption(results, metric, interval)
    stem = f"{name}_intervals" if interval else name
    if len(columns) <= MOST_COLUMNS:
        rows = [[*row, *values(row, columns)] for row in results.rows]
        groups = [(d, sum(dataset == d for dataset, _ in columns)) for d in results.datasets]
        header = [*labels, *(f"{dataset} {budget.name}" for dataset, budget in columns)]
        short = [*labels, *(budget.name for _, budget in columns)]
        return Table(stem, caption, header, rows, len(labels), groups, short, notes=notes.listed())
    rows = [
        [dataset, *row, *values(row, [(dataset, budget) for budget in results.budgets])]
        for dataset in results.datasets
        for row in results.rows
        if any((row, dataset, budget) in results.cells for budget in results.budgets)
    ]
    header = ["Dataset", *labels, *(budget.name for budget in results.budgets)]
    return Table(stem, caption, header, rows, len(labels) + 1, blocks=True, notes=notes.listed())


def cells_table(results: Results, metrics: dict[str, Metric]) -> Table:
    """Every cell in numbers, one line a metric and cell, in the records' own units: for plotting elsewhere."""
    rows = []
    for name, metric in metrics.items():
        for (row, dataset, budget), runs in results.cells.items():
            cell = sample(runs, metric)
            bounds = stats.t_interval(list(cell.values.values()))
            low, high = metric.clip(bounds) if bounds else (None, None)
            numbers = (cell.mean if cell.n else None, cell.sd, low, high)
            rows.append([name, dataset, *row, budget.name, str(cell.n), str(cell.expected),
                         *("" if number is None else repr(number) for number in numbers),
                         "; ".join(" ".join(found) for found in cell.marks)])  # fmt: skip
    numbers_of = ["n", "expected", "mean", "sd", "t95_low", "t95_high", "notes"]
    header = ["metric", "dataset", *results.columns, "budget", *numbers_of]
    return Table("cells", "Every cell in numbers", header, rows, stubs=len(header))


def protocol_table(results: Results) -> Table:
    """The public numbers of training by dataset, and the noise multiplier at each budget."""
    private = [budget for budget in results.budgets if budget.private and not budget.claimed]
    sigmas: dict[tuple[str, ...], dict[Budget, set[float]]] = defaultdict(lambda: defaultdict(set))
    otherwise: dict[tuple[str, str], set[str]] = defaultdict(set)
    for run in results.runs:
        record = run.done
        if record is not None and run.budget.private:
            keys = ("reference_size", "sample_rate", "steps", "normalizer", "max_grad_norm", "delta", "accountant")
            key = (record["dataset"], record["mechanism"], *(_plain(record[key]) for key in keys))
            sigmas[key][run.budget]  # a protocol without a noise multiplier is one too
            if record["noise_multiplier"] is not None:
                sigmas[key][run.budget].add(record["noise_multiplier"])
            if words := _charged_otherwise(record):
                otherwise[record["dataset"], record["mechanism"]].add(words)
    rows = [
        [*key, *(" / ".join(f"{sigma:.4f}" for sigma in sorted(by_budget[budget])) or "—" for budget in private)]
        for key, by_budget in sorted(sigmas.items(), key=lambda item: results.datasets.index(item[0][0]))
    ]
    symbols = ["N0", "q", "T", "m0", "C", "δ"]
    header = ["Dataset", "Mechanism", *symbols, "Accountant", *(f"σ at {budget.name}" for budget in private)]
    caption = (
        "Protocol of the private runs: reference size N0, sample rate q, steps T, normalizer m0, clipping norm C, δ, "
        "and the noise multiplier σ (in units of C) at each target."
    )
    for (dataset, mechanism), charges in otherwise.items():
        several = "; or ".join(sorted(charges)) if len(charges) <= 4 else "what differs by run (`events` in the records)"
        caption += f" {mechanism} on {dataset} is not charged T releases at q and σ, but {several}."
    return Table("protocol", caption, header, rows, stubs=2, blocks=True)


def _charged_otherwise(record: dict[str, Any]) -> str | None:
    """What a record was charged, in words, where that isn't T sampled Gaussians at its sample rate and noise multiplier."""
    if record["events"] is None or record["noise_multiplier"] is None:
        return None
    usual = {"event": "sampled_gaussian", "sample_rate": record["sample_rate"], "noise_multiplier": record["noise_multiplier"]}
    return None if record["events"] == [[usual, record["steps"]]] else charged(record["events"])


def times_table(results: Results) -> Table:
    """Median training time by model and dataset, private training apart; marked where a run shared the machine."""
    times: dict[tuple, dict[tuple[str, bool], list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for run in results.runs:
        if run.done is not None and run.done["seconds_train"] is not None:
            times[run.row][run.dataset, run.budget.private].append(run.done)
    columns = [(d, p) for d in results.datasets for p in (False, True) if any((d, p) in row for row in times.values())]
    labels = [label.capitalize() for label in results.columns]
    rows, shared = [], False
    for row, cells in times.items():
        texts = []
        for column in columns:
            records = cells.get(column, [])
            marked = not all(record["alone"] for record in records)
            shared |= marked
            median = statistics.median(record["seconds_train"] for record in records) if records else None
            number = "—" if median is None else f"{median:.3g}" if median < 1000 else f"{median:.0f}"
            texts.append(number + SHARED[0] * marked)
        rows.append([*row, *texts])
    kind = {False: "non-private", True: "private"}
    groups = [(d, sum(dataset == d for dataset, _ in columns)) for d in results.datasets]
    return Table(
        "times", "Training time in seconds: median over seeds and budgets.",
        [*labels, *(f"{dataset} {kind[private]}" for dataset, private in columns)], rows, len(labels),
        [group for group in groups if group[1]], [*labels, *(kind[private] for _, private in columns)],
        notes=[SHARED] if shared else [],
    )  # fmt: skip


def environment_table(results: Results) -> Table:
    """Versions, devices, threads, noise sources and data, with how many records name each value."""
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for record in results.done:
        for package, version in sorted((record["versions"] or {}).items()):
            values[f"version of {package}"][str(version)] += 1
        for key in ("device", "engine", "threads", "host", "noise_source"):
            if record[key] is not None:
                values[key.replace("_", " ")][str(record[key])] += 1
        official = {True: "official", False: "NOT the official files", None: "no official files exist to compare with"}
        fingerprint = (record["data_fingerprint"] or "")[:12] or "no fingerprint (the data is not public)"
        split = (record["config"] or {}).get("split", "dp_rvfl")  # each has records of its own, and so a fingerprint
        data = f"data of {record['dataset']}" + (f", split {split}" if split != "dp_rvfl" else "")
        values[data][f"{fingerprint}, {official[record['data_official']]}"] += 1
    rows = [
        [what, "; ".join(f"{value} ({count})" if len(counts) > 1 else value for value, count in counts.most_common()),
         "differs between records" if len(counts) > 1 else ""]
        for what, counts in values.items()
    ]  # fmt: skip
    caption = "What the done records ran on, and on which data."
    return Table("environment", caption, ["What", "Value", ""], rows, stubs=3)


def failed_table(results: Results) -> Table:
    rows = []
    for run in results.with_status("failed"):
        error = (run.record or {}).get("error") or {}
        rows.append([run.id, str(error.get("type", "—")), str(error.get("message", "—"))])
    return Table("failed", "Failed tasks", ["Task", "Error", "Message"], rows, stubs=3)


def missing_table(results: Results) -> Table:
    rows = [
        [run.dataset, results.row_name(run.row), run.budget.name, str(run.seed), run.id] for run in results.with_status("missing")
    ]
    return Table("missing", "Tasks without a record", ["Dataset", "Model", "Budget", "Seed", "Task"], rows, stubs=5)


def _plain(value: Any) -> str:
    return "—" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
