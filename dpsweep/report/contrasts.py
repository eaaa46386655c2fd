"""Paired contrasts between rows of the tables: exact sign-flip tests, Holm over all of them, t-intervals."""

from collections.abc import Mapping
from dataclasses import dataclass

from dpsweep.errors import UsageError
from dpsweep.report import stats
from dpsweep.report.load import LABELS, Budget, Metric, Results, Row
from dpsweep.report.markup import Footnotes, Table
from dpsweep.report.tables import SHARED, Sample, sample

ALPHA = 0.05


@dataclass(frozen=True)
class Contrast:
    """One row against its reference in one dataset, budget and metric, paired by seed (unit: the record's)."""

    metric: str
    dataset: str
    budget: Budget
    row: Row
    reference: Row
    samples: tuple[Sample, Sample]
    differences: tuple[float, ...]
    p: float
    p_holm: float


@dataclass(frozen=True)
class Contrasts:
    """All contrasts of a report. `unpaired` counts pairs of cells that share no seed, `too_many` those refused by n."""

    by: str
    reference: str
    tested: list[Contrast]
    unpaired: int
    too_many: int


def choose(results: Results, compare: Mapping[str, str] | None) -> tuple[str, str] | None:
    """Which label to contrast by and the reference value; None where no label has two values.

    Without a choice: models against the first one, or mechanisms if there is but one model. Raises UsageError for a
    label or a reference that the runs lack.
    """
    values = {name: list(dict.fromkeys(row[i] for row in results.rows)) for i, name in enumerate(results.columns)}
    if compare:
        by, reference = compare.get("by", "model"), compare.get("reference")
        if by not in values and by not in LABELS:
            raise UsageError(f"The report compares by {by!r}, which is no label of these runs. Choose from {', '.join(values)}.")
        if by not in values:
            return None  # one value only: nothing to compare
        if str(reference) not in values[by]:
            raise UsageError(
                f"The report's reference {reference!r} is no {by} of these runs. Choose from {', '.join(values[by])}."
            )
        return by, str(reference)
    for by in ("model", "mechanism"):
        private = [value for value in values.get(by, []) if (by, value) != ("mechanism", "none")]
        if len(private) > 1:
            return by, private[0]
    return None


def compute(results: Results, metrics: Mapping[str, Metric], by: str, reference: str) -> Contrasts:
    """Test every row whose label `by` differs from the reference, within dataset, budget and the other labels.

    The reference row is the one with the same other labels; where a row's labels come with its value of `by` (a model
    with a mechanism of its own), it is the only reference row of that dataset and budget with its run label and repeat.
    """
    index = results.columns.index(by)
    apart = [place for place, name in enumerate(results.columns) if name in ("run", "repeat")]
    found: list[tuple[str, str, Budget, Row, Row, tuple[Sample, Sample], tuple[float, ...]]] = []
    unpaired = too_many = 0
    for name, metric in metrics.items():
        cells = {key: sample(runs, metric) for key, runs in results.cells.items()}
        for (row, dataset, budget), cell in cells.items():
            if row[index] == reference:
                continue
            same = (*row[:index], reference, *row[index + 1 :])
            candidates = [
                other
                for other in results.rows
                if other[index] == reference
                and (other, dataset, budget) in cells
                and all(other[place] == row[place] for place in apart)
            ]
            if same not in candidates and len(candidates) != 1:
                unpaired += bool(candidates)
                continue
            chosen = same if same in candidates else candidates[0]
            against = cells[chosen, dataset, budget]
            pairs = tuple(cell.values[seed] - against.values[seed] for seed in cell.values if seed in against.values)
            if not pairs:
                unpaired += 1
            elif len(pairs) > stats.MAX_PAIRS:
                too_many += 1
            else:
                found.append((name, dataset, budget, row, chosen, (cell, against), pairs))
    p_values = [stats.sign_flip_p(item[-1]) for item in found]
    tested = [Contrast(*item, p, q) for item, p, q in zip(found, p_values, stats.holm(p_values), strict=True)]
    return Contrasts(by, reference, tested, unpaired, too_many)


def sentences(contrasts: Contrasts) -> list[str]:
    """What the tests say and what so few seeds can say at all."""
    tested = contrasts.tested
    if not tested:
        text = [f"No contrast by {contrasts.by} against {contrasts.reference}: no two cells share a seed with a value."]
    else:
        k, most = len(tested), max(len(item.differences) for item in tested)
        low = sum(item.p_holm <= ALPHA for item in tested)
        least, needed = stats.least_p(most), stats.seeds_needed(k, ALPHA)
        plural, smallest = "s" if k != 1 else "", min(item.p_holm for item in tested)
        text = [
            f"{k} contrast{plural} by {contrasts.by} against {contrasts.reference}, paired by seed: {low or 'none'} "
            f"significant at {ALPHA:g} after Holm over all {k}; the least adjusted p is {smallest:.3g}."
        ]
        shared = [item for item in tested if any(mark[0] == SHARED[0] for cell in item.samples for mark in cell.marks)]
        if shared:
            count = sum(item.p_holm <= ALPHA for item in shared)
            among = f"; {count or 'none'} of the significant ones {'is' if count == 1 else 'are'} among these" if low else ""
            text.append(
                f"{len(shared)} of them, marked {SHARED[0]}, are of times that don't compare, since some of the runs shared the "
                f"machine{among}."
            )
        pairs = f"{most} pair{'s' if most != 1 else ''}"
        if least > ALPHA:
            text.append(
                f"With {pairs} the least two-sided p that an exact sign-flip test can reach is 2/2^{most} = "
                f"{least:.4g}: nothing can reach {ALPHA:g}, however large the difference. Holm over {k} "
                f"contrast{plural} needs {needed} seeds."
            )
        elif least * k > ALPHA:
            text.append(
                f"With {pairs} the least p is 2/2^{most} = {least:.3g}, and Holm over {k} contrasts needs p ≤ "
                f"{ALPHA:g}/{k} = {ALPHA / k:.3g}: no contrast can reach {ALPHA:g}. {needed} seeds would do."
            )
        else:
            text.append(
                f"With {pairs} the least p is 2/2^{most} = {least:.3g}; Holm over {k} contrast{plural} needs "
                f"{ALPHA / k:.3g}, so that {ALPHA:g} can be reached."
            )
    if contrasts.unpaired:
        text.append(f"{contrasts.unpaired} more could not be paired: no common seed with a value, or several references.")
    if contrasts.too_many:
        text.append(
            f"{contrasts.too_many} more have over {stats.MAX_PAIRS} pairs, where not all sign assignments are counted: "
            "they are not tested."
        )
    return text


def table(contrasts: Contrasts, metrics: Mapping[str, Metric], results: Results, name: str = "contrasts") -> Table:
    """Mean paired difference (percentage points, or the metric's unit), its 95% t-interval, exact p, and Holm's."""
    rows, notes = [], Footnotes()
    for item in contrasts.tested:
        metric = metrics[item.metric]
        bounds = stats.t_interval(item.differences)
        n, expected = len(item.differences), max(cell.expected for cell in item.samples)
        marks = "".join(dict.fromkeys(notes.mark(*found) for cell in item.samples for found in cell.marks))
        rows.append([
            metric.name, item.dataset, item.budget.name + marks,
            results.row_name(item.row), results.row_name(item.reference),
            str(n) if n == expected else f"{n} of {expected}", metric.show(sum(item.differences) / n, "+"),
            " to ".join(metric.show(bound, "+") for bound in metric.clip(bounds, differences=True)) if bounds else "n/a",
            f"{item.p:.4g}", f"{item.p_holm:.4g}",
        ])  # fmt: skip
    labels = ["Metric", "Dataset", "Budget", contrasts.by.capitalize(), "Against"]
    header = [*labels, "Pairs", "Difference", "95% interval", "p", "p (Holm)"]
    caption = (
        "Mean paired difference, in percentage points (times in seconds), with its Student-t interval (not adjusted), "
        "exact two-sided sign-flip p, and p after Holm over all contrasts of this report."
    )
    return Table(name, caption, header, rows, stubs=5, notes=notes.listed())
