"""A report from records: the page, its tables and figures as files, and what the terminal shows."""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dpsweep.report import contrasts, figures, guarantees, tables, terminal
from dpsweep.report import spec as spec_module
from dpsweep.report.load import Metric, Results, join, metrics_of
from dpsweep.report.markup import Table, to_csv, to_latex, to_markdown

DEFAULT_METRICS = ("accuracy", "f1", "auroc", "auprc")


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

    Raises UsageError for repeated ids, for runs that cannot be told apart, and for a spec that asks for what the runs
    lack.
    """
    spec_module.check(spec)
    results = join(tasks, records)
    metrics = metrics_of(spec.get("metrics") or DEFAULT_METRICS)
    drawn = metrics_of(spec.get("figures", list(metrics)[:1]) or ())
    chosen = contrasts.choose(results, spec.get("compare"))
    tested = contrasts.compute(results, metrics, *chosen) if chosen else None

    sections = _sections(results, metrics, tested, set_aside)
    out_dir.mkdir(parents=True, exist_ok=True)
    for table in (table for found in sections.values() for table in found):
        for suffix, write in (("csv", to_csv), ("md", to_markdown), ("tex", to_latex)):
            (out_dir / f"{table.name}.{suffix}").write_text(write(table), encoding="utf-8")
    (out_dir / "cells.csv").write_text(to_csv(tables.cells_table(results, metrics)), encoding="utf-8")
    _write_records(results, out_dir / "records.csv")
    images = []
    for name, metric in drawn.items():
        for png, svg in figures.by_epsilon(results, name, metric, out_dir):
            images.append((metric.name, png.name, svg.name, figures.data_uri(svg)))

    words = contrasts.sentences(tested) if tested else []
    template = Environment(
        loader=PackageLoader("dpsweep.report", "."),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    ).get_template("report.html.jinja")  # fmt: skip
    page = template.render(
        title=title, about=about, counts=terminal.counts(results, set_aside), warnings=terminal.warnings(results),
        sections=sections, images=images, scope=guarantees.scope(results), words=words,
        in_words=guarantees.in_words(results), unprotected=guarantees.unprotected(results),
    )  # fmt: skip
    index = out_dir / "index.html"
    partial = out_dir / f".index.{os.getpid()}.html"
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, index)
    text = terminal.show(title, results, next(iter(metrics.values())), words, set_aside, index)
    return Report(text, index, complete=all(run.status == "done" for run in results.runs))


def _sections(
    results: Results,
    metrics: Mapping[str, Metric],
    tested: contrasts.Contrasts | None,
    set_aside: Sequence[tuple[str, str]],
) -> dict[str, list[Table]]:
    """The tables by section of the page; empty ones are left out."""
    aside = Table("set_aside", "Files set aside: they count for nothing above.", ["File", "Reason"], set_aside, stubs=2)
    sections = {
        "means": [tables.metric_table(results, name, metric) for name, metric in metrics.items()],
        "intervals": [tables.metric_table(results, name, metric, interval=True) for name, metric in metrics.items()],
        "contrasts": [contrasts.table(tested, metrics, results)] if tested else [],
        "privacy": [guarantees.epsilon_table(results), guarantees.released(results)],
        "protocol": [tables.protocol_table(results)],
        "runs": [tables.times_table(results), tables.environment_table(results)],
        "open": [tables.failed_table(results), tables.missing_table(results), aside],
    }
    return {name: [table for table in found if table.rows] for name, found in sections.items()}


def _write_records(results: Results, path: Path) -> None:
    """One row a task; nested values as JSON, the error without its traceback."""
    fields = dict.fromkeys(key for run in results.runs for key in run.record or ())
    first = ["id", "status", "dataset", *(f"label:{name}" for name in results.columns), "target_epsilon", "seed"]
    rest = [key for key in fields if key not in (*first, "error", "checksum")]
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
