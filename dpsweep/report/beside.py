"""Published numbers beside measured ones: the difference, and whether it is more than chance would give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dpsweep.report import stats
from dpsweep.report.load import Metric
from dpsweep.report.markup import Footnotes, Table
from dpsweep.report.paper import Evidence, Place, Published
from dpsweep.report.tables import Sample, cell_marks, cell_text

MARK = "*"
Cell = tuple[Place, str]  # a place and the name of one of the paper's metrics


@dataclass(frozen=True)
class Line:
    """One row: its labels, and one cell a group of columns (None where the paper has no such cell)."""

    labels: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True)
class Comparison:
    """Measured - published, in the metric's unit; `tested` where both have a spread, `marked` where 0 lies outside."""

    difference: float
    tested: bool
    marked: bool


def compare(cell: Sample, metric: Metric, published: Published | None) -> Comparison | None:
    """Hold a cell against what was published; None where either is missing.

    Marked is a difference whose 95% Welch interval, widened by the rounding of the published mean, leaves out 0. A time
    is never tested: another machine took it.
    """
    if published is None or not cell.n:
        return None
    mean = cell.mean * metric.scale
    difference = mean - float(published.mean)
    if cell.sd is None or not published.sd or metric.timed:
        return Comparison(difference, False, False)
    theirs = (float(published.mean), float(published.sd), published.n)
    bounds = stats.welch_interval((mean, cell.sd * metric.scale, cell.n), theirs)
    if bounds is None:
        return Comparison(difference, False, False)
    low, high = bounds[0] - published.rounding, bounds[1] + published.rounding
    return Comparison(difference, True, not low <= 0 <= high)


def table(
    evidence: Evidence,
    name: str,
    caption: str,
    stubs: Sequence[str],
    groups: Sequence[str],
    lines: Sequence[Line],
    each_execution: bool = True,
    blocks: bool = False,
) -> Table:
    """Three columns a group: published, measured and their difference.

    Repeated executions stand in rows of their own beside the one published number of a cell, never pooled; without
    `each_execution` every cell says itself which execution it is about.
    """
    notes, tested, marked, rows = Footnotes(), 0, 0, []
    executions = evidence.executions if each_execution else [None]
    several = len(executions) > 1
    usual = max((evidence.sample(*_read(evidence, cell)).expected for line in lines for cell in line.cells if cell), default=0)
    for line in lines:
        for execution in executions:
            row = [*line.labels, *([str(execution)] if several else [])]
            for cell in line.cells:
                if cell is None:
                    row += [""] * 3
                    continue
                place, metric = _read(evidence, cell)
                found = evidence.sample(place if execution is None else place._replace(execution=execution), metric)
                published = evidence.published.get(cell)
                comparison = compare(found, metric, published)
                tested += comparison is not None and comparison.tested
                marked += comparison is not None and comparison.marked
                row += [
                    published.text if published else "—",
                    cell_text(found, metric, usual) + cell_marks(found, notes),
                    _difference(comparison, metric),
                ]
            rows.append(row)
    stubs = [*stubs, *(["Repeat"] if several else [])]
    parts = ("published", "measured", "difference")
    header = [*stubs, *((f"{group} {part}" if group else part.capitalize()) for group in groups for part in parts)]
    short = [*stubs, *(part if groups != [""] else part.capitalize() for _ in groups for part in parts)]
    spans = [(group, 3) for group in groups] if list(groups) != [""] else []
    listed = notes.listed()
    if tested:
        listed.append((MARK, f"0 lies outside the 95% Welch interval of the difference of the means: {marked} of {tested} "
                             "cells. Of equal cells about 5% are expected to be marked"))  # fmt: skip
    return Table(name, caption, header, rows, len(stubs), spans, short if spans else (), blocks, listed)


def _read(evidence: Evidence, cell: Cell) -> tuple[Place, Metric]:
    return cell[0], evidence.paper.metrics[cell[1]]


def _difference(comparison: Comparison | None, metric: Metric) -> str:
    if comparison is None:
        return "—"
    text = metric.show(comparison.difference / metric.scale, "+")
    return ("0" if metric.exact and not text.strip("+−0.") else text) + MARK * comparison.marked


def facts(
    name: str,
    caption: str,
    rows: Mapping[str, str],
    columns: Mapping[str, str],
    published: Mapping[tuple[str, str], str],
    measured: Callable[[str, str], str],
) -> Table:
    """Numbers that no seed changes: published beside measured, and "differs" where they read differently.

    `rows` and `columns` map keys to what is printed; `measured` tells a cell in the form in which it was published.
    """
    lines = []
    for row, title in rows.items():
        line = [title]
        for column in columns:
            theirs, ours = published.get((row, column), "—"), measured(row, column)
            verdict = "—" if "—" in (theirs, ours) else "same" if theirs == ours else "differs"
            line += [theirs, ours, verdict]
        lines.append(line)
    parts = ("published", "measured", "verdict")
    header = ["Dataset", *(f"{title} {part}" for title in columns.values() for part in parts)]
    short = ["Dataset", *(part for _ in columns for part in parts)]
    return Table(name, caption, header, lines, 1, [(title, 3) for title in columns.values()], short)
