"""What the terminal shows of a report: the first metric, what the tests say, and what is open."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

from dpsweep.provenance import versions_in_words
from dpsweep.report import guarantees, tables
from dpsweep.report.load import Metric, Results, Run
from dpsweep.report.markup import Footnotes, to_text

WIDTH = 100
_LISTED = 8  # lines of footnotes, failed or missing tasks; the page lists all


def show(
    title: str,
    results: Results,
    blocks: Sequence[str],
    sentences: Sequence[str],
    set_aside: Sequence[tuple[str, str]],
    index: Path,
    left_out: Sequence[str] = (),
) -> str:
    """Plain text: the `blocks` (tables), `sentences`, failed and missing tasks, the page's path."""
    parts = [f"{title}: {counts(results, set_aside)}", *blocks]
    parts.append(_wrapped([guarantees.scope(results), *warnings(results, left_out), *sentences]))
    for status in ("failed", "missing"):
        if runs := results.with_status(status):
            parts.append(f"{len(runs)} {status}:\n" + _cut([f"  {run.id}{_error(run)}" for run in runs]))
    if set_aside:
        parts.append(f"{len(set_aside)} set aside:\n" + _cut([f"  {file}: {reason}" for file, reason in set_aside]))
    parts.append(f"Report: {index}")
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def metric_blocks(results: Results, metric: Metric) -> list[str]:
    """A metric as an aligned block a dataset, between its caption and its footnotes."""
    usual, notes = tables.usual_seeds(results), Footnotes()
    parts = [_wrapped([tables.metric_caption(results, metric)])]
    for dataset in results.datasets:
        budgets = [b for b in results.budgets if any((row, dataset, b) in results.cells for row in results.rows)]
        rows = []
        for row in results.rows:
            cells = [tables.sample(results.cell(row, dataset, budget), metric) for budget in budgets]
            if any(cell.expected for cell in cells):
                texts = (tables.cell_text(cell, metric, usual) + tables.cell_marks(cell, notes) for cell in cells)
                rows.append([*row, *texts])
        header = [dataset, *results.columns[1:], *(budget.name for budget in budgets)]
        parts.append(to_text(header, rows, stubs=len(results.columns), width=WIDTH))
    return [*parts, _cut([f"{mark} {text}" for mark, text in notes.listed()])]


def counts(results: Results, set_aside: Sequence[tuple[str, str]]) -> str:
    """How many tasks are done, failed and missing, in words."""
    done, failed, missing = (len(results.with_status(status)) for status in ("done", "failed", "missing"))
    diverged = sum(bool(record["diverged"]) for record in results.done)
    parts = [f"{done} of {len(results.runs)} tasks done", f"{failed} failed", f"{missing} missing"]
    if diverged:
        parts.append(f"{diverged} diverged")
    if set_aside:
        parts.append(f"{len(set_aside)} file{'s' if len(set_aside) > 1 else ''} set aside")
    return ", ".join(parts)


def warnings(results: Results, left_out: Sequence[str] = ()) -> list[str]:
    """What a reader must know before any number: seeded noise, data that is not the official, several versions, and records
    left out, in words with their reasons."""
    found = []
    seeded = sum(record["noise_source"] == "seeded" for record in results.done)
    if seeded:
        found.append(
            f"Noise was seeded, which is for tests and debugging, in {seeded} of the done tasks: nothing is guaranteed for them."
        )
    unofficial = sorted({record["dataset"] for record in results.done if record["data_official"] is False})
    if unofficial:
        found.append(
            f"The data of {', '.join(unofficial)} did not match the official files: these numbers do not compare with "
            "those of the official data."
        )
    if told := versions_in_words(results.done):
        found.append(told)
    if left_out:
        found.append(f"Left out of every table: {'; '.join(left_out)}.")
    return found


def _error(run: Run) -> str:
    error = (run.record or {}).get("error")
    if not error:
        return ""
    message = str(error.get("message") or "").strip()
    return f": {error.get('type')}: {message.splitlines()[0] if message else 'no message'}"


def _cut(lines: Sequence[str]) -> str:
    more = len(lines) - _LISTED
    return "\n".join([*lines[:_LISTED], *([f"  … and {more} more, listed in the report"] if more > 0 else [])])


def _wrapped(sentences: Sequence[str]) -> str:
    return "\n".join(textwrap.fill(sentence, WIDTH, break_long_words=False) for sentence in sentences if sentence)
