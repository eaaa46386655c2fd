"""A report from records: the page, its tables and figures as files, and what the terminal shows."""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpsweep.errors import UsageError
from dpsweep.report import contrasts, figures, guarantees, tables
from dpsweep.report.load import Metric, Results, Run, join, metrics_of
from dpsweep.report.markup import Table, to_csv, to_latex, to_markdown, to_text

DEFAULT_METRICS = ("accuracy", "f1", "auroc", "auprc")
_SPEC_KEYS = ("metrics", "compare", "figures")
_LISTED = 8  # lines of footnotes, failed or missing tasks on the terminal; the page lists all


@dataclass(frozen=True)
class Report:
    """What `build` made: the text for the terminal, the page, and whether every task is done."""

    text: str
    index: Path
    complete: bool


def build(
    title: str,
    about: str,
    tasks: Sequence[Mapping[str, Any]],
    records: Sequence[dict[str, Any]],
    set_aside: Sequence[tuple[str, str]],
    spec: Mapping[str, Any],
    out_dir: Path,
) -> Report:
    """Write the report of a suite into `out_dir` and return what to show.

    Args:
        title, about: the suite's name and a sentence or more on it.
        tasks: the suite's tasks in order (id, dataset, model, mechanism, target_epsilon, seed, run; optionally
            optimizer, accountant and config, which put a missing task into its row). Empty: each record is a task.
        records: verified records, one an id; those of other tasks are left out and counted.
        set_aside: (file name, reason) of files that are no valid records.
        spec: metrics (names), compare ({by, reference}), figures (metric names), all optional.

    `out_dir` gets index.html (one file that needs no network), NAME.csv, NAME.md and NAME.tex for each table, NAME.png
    and NAME.svg for each figure, cells.csv (every cell in numbers) and records.csv (one row a task).

    Raises UsageError for repeated ids, for runs that cannot be told apart, and for a spec that asks for what is not there.
    """
    _check(spec)
    results = join(tasks, records)
    metrics = metrics_of(spec.get("metrics") or DEFAULT_METRICS)
    drawn = metrics_of(spec.get("figures", list(metrics)[:1]) or ())
    chosen = contrasts.choose(results, spec.get("compare"))
    tested = contrasts.compute(results, metrics, *chosen) if chosen else None

    main = {name: tables.metric_table(results, name, metric) for name, metric in metrics.items()}
    sections = {
        "metrics": [t for name, metric in metrics.items() for t in (main[name], tables.metric_table(results, name, metric, True))],
        "contrasts": [contrasts.table(tested, metrics, results)] if tested else [],
        "guarantees": [guarantees.epsilon_table(results)],
        "released": [guarantees.released(results)],
        "protocol": [tables.protocol_table(results)],
        "times": [tables.times_table(results)],
        "environment": [tables.environment_table(results)],
        "open": [tables.failed_table(results), tables.missing_table(results),
                 Table("set_aside", "Files set aside, which count for nothing above", ["File", "Reason"], set_aside, stubs=2)],
    }  # fmt: skip
    sections = {name: [table for table in found if table.rows] for name, found in sections.items()}
    out_dir.mkdir(parents=True, exist_ok=True)
    for found in sections.values():
        for table in found:
            for suffix, write in (("csv", to_csv), ("md", to_markdown), ("tex", to_latex)):
                (out_dir / f"{table.name}.{suffix}").write_text(write(table), encoding="utf-8")
    (out_dir / "cells.csv").write_text(to_csv(tables.cells_table(results, metrics)), encoding="utf-8")
    _write_records(results, out_dir / "records.csv")
    images = [(metric, *paths) for name, metric in drawn.items() if (paths := figures.by_epsilon(results, name, metric, out_dir))]

    words = contrasts.sentences(tested) if tested else []
    page = _environment().get_template("report.html.jinja").render(
        title=title, about=about, results=results, counts=_counts(results, set_aside), sections=sections,
        images=[(metric.name, png.name, svg.name, figures.data_uri(svg)) for metric, png, svg in images],
        scope=guarantees.scope(results), words=words, in_words=guarantees.in_words(results),
        unprotected=guarantees.unprotected(results), warnings=warnings(results),
    )  # fmt: skip
    index = out_dir / "index.html"
    partial = out_dir / f".index.{os.getpid()}.html"
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, index)
    first = next(iter(metrics))
    text = _terminal(title, results, metrics[first], main[first], words, set_aside, index)
    return Report(text, index, complete=all(run.status == "done" for run in results.runs))


def _check(spec: Mapping[str, Any]) -> None:
    for key in spec:
        if key not in _SPEC_KEYS:
            raise UsageError(f"The suite's report has the key {key!r}, which means nothing. Choose from {', '.join(_SPEC_KEYS)}.")
    for key in ("metrics", "figures"):
        value = spec.get(key) or []
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise UsageError(f"The suite's report.{key} is {value!r}: write a list, such as [accuracy].")
    compare = spec.get("compare") or {}
    if not isinstance(compare, Mapping) or set(compare) - {"by", "reference"} or (compare and "reference" not in compare):
        raise UsageError(f"The suite's report.compare is {compare!r}: write {{by: LABEL, reference: VALUE}}.")


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("dpsweep.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def _counts(results: Results, set_aside: Sequence[tuple[str, str]]) -> str:
    done, failed, missing = (len(results.with_status(status)) for status in ("done", "failed", "missing"))
    diverged = sum(bool(record["diverged"]) for record in results.done)
    parts = [f"{done} of {len(results.runs)} tasks done", f"{failed} failed", f"{missing} missing"]
    parts += [f"{diverged} diverged"] * bool(diverged) + [f"{len(set_aside)} files set aside"] * bool(set_aside)
    return ", ".join(parts)


def warnings(results: Results) -> list[str]:
    """What a reader must know before any number: seeded noise, data that is not the official, records left out."""
    found = []
    seeded = sum(record["noise_source"] == "seeded" for record in results.done)
    if seeded:
        found.append(f"The noise of {seeded} models was seeded, for tests and debugging: nothing is guaranteed for them.")
    unofficial = sorted({record["dataset"] for record in results.done if record["data_official"] is False})
    if unofficial:
        found.append(f"The data of {', '.join(unofficial)} did not match the official files, so the numbers are not those of the official data.")
    if results.outside:
        found.append(f"{results.outside} records in the folder belong to no task of this report and are left out.")
    return found


def _write_records(results: Results, path: Path) -> None:
    """One row a task; nested values as JSON, the error without its traceback."""
    fields = list(dict.fromkeys(key for run in results.runs for key in run.record or () if key not in ("error", "checksum")))
    first = ["id", "status", "dataset", *(f"label:{name}" for name in results.columns), "target_epsilon", "seed"]
    rest = [key for key in fields if key not in first]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*first, *rest, "error"])
        for run in results.runs:
            record = run.record or {}
            target = "" if run.budget.target is None else run.budget.target
            error = record.get("error")
            writer.writerow([run.id, run.status, run.dataset, *run.row, target, run.seed,
                             *(_csv_value(record.get(key)) for key in rest),
                             f"{error.get('type')}: {error.get('message')}" if error else ""])  # fmt: skip


def _csv_value(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value


def _terminal(
    title: str, results: Results, metric: Metric, main: Table, words: Sequence[str], set_aside: Sequence[tuple[str, str]], index: Path
) -> str:
    """The first metric, one block a dataset, then what the tests say, what is open, and where the page lies."""
    lines = [f"{title}: {_counts(results, set_aside)}", main.caption, ""]
    usual, notes = tables.usual_seeds(results), tables.Footnotes()
    for dataset in results.datasets:
        budgets = [b for b in results.budgets if any((row, dataset, b) in results.cells for row in results.rows)]
        rows = []
        for row in results.rows:
            cells = [tables.sample(results.cell(row, dataset, budget), metric) for budget in budgets]
            if any(cell.expected for cell in cells):
                rows.append([*row, *(tables.cell_text(cell, metric, usual) + notes.of(cell) for cell in cells)])
        header = [dataset, *results.columns[1:], *(budget.name for budget in budgets)]
        lines += [to_text(header, rows, stubs=len(results.columns)), ""]
    lines += [*_cut([f"{mark} {text}" for mark, text in notes.listed()]), guarantees.scope(results), *warnings(results), *words]
    for name, runs in (("failed", results.with_status("failed")), ("missing", results.with_status("missing"))):
        if runs:
            lines.append(f"{len(runs)} {name}:")
            lines += _cut([f"  {run.id}{_error(run)}" for run in runs])
    if set_aside:
        lines += [f"{len(set_aside)} files set aside:", *_cut([f"  {file}: {reason}" for file, reason in set_aside])]
    lines.append(f"Report: {index}")
    return "\n".join(line for i, line in enumerate(lines) if line or (i and lines[i - 1])) + "\n"


def _error(run: Run) -> str:
    error = (run.record or {}).get("error")
    if not error:
        return ""
    message = str(error.get("message") or "").strip()
    return f": {error.get('type')}: {message.splitlines()[0] if message else 'no message'}"


def _cut(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _LISTED
    return [*lines[:_LISTED], *([f"  … and {more} more, listed in the report"] if more > 0 else [])]
