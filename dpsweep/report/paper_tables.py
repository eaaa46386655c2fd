"""Tables that several papers share: who wins how often, retained utility, clipping, resources."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.report.load import Metric
from dpsweep.report.markup import Footnotes, Table
from dpsweep.report.paper import Evidence, Place
from dpsweep.report.tables import cell_marks

VERDICTS = ("above", "tied", "below")


def counts(
    evidence: Evidence,
    name: str,
    stage: str,
    reference: str,
    comparators: Sequence[str],
    metric: Metric,
    published: Mapping[tuple[str, str, int], str],
) -> Table:
    """In how many conditions (dataset x budget) the reference's mean is above, tied with or below each comparator's.

    `published` maps (comparator, verdict, execution) to a count. Means that differ by less than 1e-12 are tied. A
    condition counts only where both have the same seeds with a value.
    """
    conditions = [(dataset, budget) for dataset in evidence.datasets(stage) for budget in evidence.budgets(stage)]
    rows = []
    for model in comparators:
        for execution in evidence.executions:
            found = dict.fromkeys(VERDICTS, 0)
            for dataset, budget in conditions:
                ours, theirs = (
                    evidence.sample(Place(stage, dataset, "", which, budget, execution), metric) for which in (reference, model)
                )
                if ours.n and ours.values.keys() == theirs.values.keys():
                    difference = ours.mean - theirs.mean
                    found["tied" if abs(difference) < 1e-12 else "above" if difference > 0 else "below"] += 1
            counted = sum(found.values())
            cells = [
                text
                for verdict in VERDICTS
                for text in (published.get((model, verdict, execution), "—"), str(found[verdict]) if counted else "—")
            ]
            of = str(counted) if counted == len(conditions) else f"{counted} of {len(conditions)}"
            rows.append([model, str(execution), *cells, of])
    several = len(evidence.executions) > 1
    if not several:
        rows = [[row[0], *row[2:]] for row in rows]
    stubs = ["Comparator", *(["Repeat"] if several else [])]
    header = [*stubs, *(f"{verdict} {part}" for verdict in VERDICTS for part in ("published", "measured")), "Conditions"]
    short = [*stubs, *(part for _ in VERDICTS for part in ("published", "measured")), "conditions"]
    caption = (
        f"In how many conditions (dataset and ε) the mean {metric.name.lower()} of {reference} is above, tied with or below "
        "that of each comparator. Counts describe; they test nothing."
    )
    spans = [*((verdict.capitalize(), 2) for verdict in VERDICTS), ("Counted", 1)]
    return Table(name, caption, header, rows, len(stubs), spans, short)


def retained(evidence: Evidence, name: str, stage: str, models: Sequence[str], metric: Metric, source: str) -> Table:
    """Mean private accuracy in percent of the mean non-private accuracy of the same model and dataset, by budget."""
    budgets, notes, rows = evidence.budgets(stage), Footnotes(), []
    several = len(evidence.executions) > 1
    for dataset in evidence.datasets(stage):
        for model in models:
            for execution in evidence.executions:
                place = Place(stage, dataset, "", model, None, execution)
                base = evidence.sample(place, metric)
                row = [evidence.title(dataset), model, *([str(execution)] if several else [])]
                for budget in budgets:
                    cell = evidence.sample(place._replace(epsilon=budget), metric)
                    usable = cell.n and base.n and base.mean > 0
                    text = f"{100 * cell.mean / base.mean:.1f}" if usable else "—"
                    row.append(text + (cell_marks(cell, notes) if usable else ""))
                rows.append(row)
    header = ["Dataset", "Model", *(["Repeat"] if several else []), *(f"ε={budget:g}" for budget in budgets)]
    caption = (
        f"Retained utility ({source}): mean private {metric.name.lower()} in percent of the non-private mean. It ranks "
        "nothing: a model that is poor without privacy has a high ratio."
    )
    return Table(name, caption, header, rows, len(header) - len(budgets), blocks=True, notes=notes.listed())


def clipping(evidence: Evidence, name: str, stage: str, models: Sequence[str]) -> Table:
    """What the diagnostics say of training: clipped draws, in all and in the first and last epoch, norms and loss."""
    rows = []
    for place, runs in sorted(evidence.cells.items(), key=lambda item: (item[0].epsilon or 0.0, item[0].execution)):
        if place.stage != stage or place.model not in models:
            continue
        found: list[Mapping[str, Any]] = [run.done["diagnostics"] for run in runs if run.done and run.done.get("diagnostics")]
        ends = [[record["epochs"][index] for record in found if record["epochs"]] for index in (0, -1)]
        median = [[epoch["norm_quantiles"]["0.5"] for epoch in end] for end in ends]
        numbers = [
            _mean([record["clipped_fraction"] for record in found], 100),
            *(_mean([epoch["clipped_fraction"] for epoch in end], 100) for end in ends),
            *(_mean(values, 1, 3) for values in median),
            *(_mean([epoch["loss"] for epoch in end], 1, 3) for end in ends),
        ]
        budget = "non-private" if place.epsilon is None else f"ε={place.epsilon:g}"
        labels = [evidence.title(place.dataset), place.model, budget, *_repeat(evidence, place)]
        rows.append((place, [*labels, f"{len(found)} of {len(runs)}", *numbers]))
    order = {dataset: index for index, dataset in enumerate(evidence.datasets(stage))}
    rows.sort(key=lambda row: (order[row[0].dataset], models.index(row[0].model)))
    stubs = ["Dataset", "Model", "Budget", *(["Repeat"] if len(evidence.executions) > 1 else []), "Runs"]
    header = [*stubs, "Clipped %", "Clipped % first epoch", "Clipped % last epoch", "Median norm first epoch",
              "Median norm last epoch", "Loss after first epoch", "Loss at end"]  # fmt: skip
    caption = (
        "Clipping by budget in the diagnostics stage: share of sampled records whose gradient norm exceeds the clipping norm, "
        "weighted by draws and averaged over seeds; median norm before clipping; mean training loss. Read without noise, so "
        "covered by no guarantee."
    )
    return Table(name, caption, header, [row for _, row in rows], len(stubs), blocks=True)


def resources(evidence: Evidence, name: str, stage: str, models: Sequence[str], budget: float) -> Table:
    """What each model costs on each dataset at one budget: parameters, bytes, MACs, memory, seconds alone."""
    rows, notes = [], Footnotes()
    time = Metric("seconds_train_with_features", "", "s", 1.0, 3)
    for dataset in evidence.datasets(stage):
        for model in models:
            for execution in evidence.executions:
                place = Place(stage, dataset, "", model, budget, execution)
                done = [run.done for run in evidence.cells.get(place, []) if run.done]
                if not done:
                    continue
                timed = evidence.sample(place, time)
                rows.append([
                    evidence.title(dataset), model, *_repeat(evidence, place),
                    *(_distinct([record.get(key) for record in done])
                      for key in ("trainable_parameters", "stored_parameters", "stored_bytes", "macs")),
                    _mean([record.get("peak_memory_growth") for record in done], 2**-20, 1),
                    (time.show(timed.mean) if timed.n else "—") + cell_marks(timed, notes),
                ])  # fmt: skip
    stubs = ["Dataset", "Model", *(["Repeat"] if len(evidence.executions) > 1 else [])]
    header = [*stubs, "Trained", "Stored", "Bytes", "MACs", "Memory growth MiB", "Training s"]
    caption = (
        f"Resources at ε={budget:g}: trained and stored parameters, stored bytes, forward multiply-accumulates of one record, "
        "growth of the peak memory during training, and mean training time with frozen features (runs alone only)."
    )
    return Table(name, caption, header, rows, len(stubs), blocks=True, notes=notes.listed())


def _repeat(evidence: Evidence, place: Place) -> list[str]:
    return [str(place.execution)] if len(evidence.executions) > 1 else []


def _mean(values: Sequence[float | None], scale: float, decimals: int = 2) -> str:
    present = [value for value in values if value is not None]
    return f"{statistics.fmean(present) * scale:.{decimals}f}" if present else "—"


def _distinct(values: Sequence[int | None]) -> str:
    return " / ".join(f"{value:,}" for value in sorted({value for value in values if value is not None})) or "—"
