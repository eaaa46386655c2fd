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
from dpsweep.report.figures import Picture
from dpsweep.report.load import Metric, Results, join, metrics_of, regroup
from dpsweep.report.markup import Table, to_csv, to_latex, to_markdown, to_plain
from dpsweep.report.paper import Evidence, Item, Paper, load_paper

DEFAULT_METRICS = ("accuracy", "f1", "auroc", "auprc")
_FORMATS = (("csv", to_csv), ("md", to_markdown), ("tex", to_latex))


@dataclass(frozen=True)
class Report:
    """What `build` made: the text for the terminal, the page, and whether every task is done."""

    text: str
    index: Path
    complete: bool


@dataclass(frozen=True)
class Part:
    """A paper's table or figure, made."""

    name: str
    tables: Sequence[Table]
    pictures: Sequence[Picture]


def build(
    title: str,
    about: str,
    tasks: Sequence[Mapping[str, Any]],
    records: Sequence[dict[str, Any]],
    set_aside: Sequence[tuple[str, str]],
    spec: Mapping[str, Any],
    out_dir: Path,
    left_out: Sequence[str] = (),
) -> Report:
    """Write the report of a suite into `out_dir` and return what to show.

    Args:
        title, about: the suite's name and a sentence or more on it.
        tasks: the suite's tasks in order (id, dataset, model, mechanism, target_epsilon, seed, run; optionally
            optimizer, accountant, repeat and config, which put a missing task into its row). Empty: each record is a task.
        records: verified records, one an id; those of other tasks are left out.
        left_out: in words, which records of the folder stand in no table, and why.
        set_aside: (file name, reason) of files that are no valid records.
        spec: metrics (names), compare ({by, reference, metrics, private}), figures (metric names), paper (its name), all
            optional. With a paper its tables and figures come first, and the rest is of the stage that it compares.

    `out_dir` gets index.html (one file that needs no network), NAME.csv, NAME.md and NAME.tex for each table, NAME.png
    and NAME.svg for each figure, cells.csv (every cell in numbers) and records.csv (one row a task).

    Raises UsageError for repeated ids, for runs that cannot be told apart, and for a spec that asks for what the runs
    lack.
    """
    spec_module.check(spec)
    paper = load_paper(spec["paper"]) if spec.get("paper") else None
    results = join(tasks, records, paper.method if paper else None)
    metrics = metrics_of(spec.get("metrics") or DEFAULT_METRICS)
    drawn = metrics_of(spec.get("figures", [] if paper else list(metrics)[:1]) or ())
    if paper is None:
        parts, shown = [], results
        tested, words = _contrasts(results, metrics, spec.get("compare"))
        out_dir.mkdir(parents=True, exist_ok=True)
        blocks = terminal.metric_blocks(results, next(iter(metrics.values())))
    else:
        evidence = Evidence(paper, results.runs)
        out_dir.mkdir(parents=True, exist_ok=True)
        parts = [_part(item, evidence, out_dir) for item in paper.items if evidence.has(item)]
        tested_stage = paper.compare[0] if paper.compare else None
        stage = [run for place, runs in evidence.cells.items() if place.stage == tested_stage for run in runs]
        shown = regroup(stage) if stage else results
        tested, words = _paper_contrasts(paper, evidence)
        blocks = [to_plain(table, terminal.WIDTH) for part in parts if part.name in paper.headline for table in part.tables]

    sections = {
        "means": [tables.metric_table(shown, name, metric) for name, metric in metrics.items()],
        "intervals": [tables.metric_table(shown, name, metric, interval=True) for name, metric in metrics.items()],
        "contrasts": tested,
        "privacy": [guarantees.epsilon_table(results), guarantees.released(results)],
        "protocol": [tables.protocol_table(results)],
        "runs": [tables.times_table(shown), tables.environment_table(results)],
        "open": [tables.failed_table(results), tables.missing_table(results), _aside(set_aside)],
    }
    sections = {name: [table for table in found if table.rows] for name, found in sections.items()}
    for table in (table for found in (*sections.values(), *(part.tables for part in parts)) for table in found):
        _write(table, out_dir)
    (out_dir / "cells.csv").write_text(to_csv(tables.cells_table(results, metrics)), encoding="utf-8")
    _write_records(results, out_dir / "records.csv")
    pictures = [p for name, metric in drawn.items() for p in figures.by_epsilon(shown, name, metric, out_dir)]

    template = Environment(
        loader=PackageLoader("dpsweep.report", "."),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    ).get_template("report.html.jinja")  # fmt: skip
    page = template.render(
        title=title, about=about, counts=terminal.counts(results, set_aside), warnings=terminal.warnings(results, left_out),
        sections=sections, pictures=pictures, parts=parts, paper=paper, scope=guarantees.scope(results), words=words,
        in_words=guarantees.in_words(results), unprotected=guarantees.unprotected(results),
        selections=guarantees.selections(results),
    )  # fmt: skip
    index = out_dir / "index.html"
    partial = out_dir / f".index.{os.getpid()}.html"
    partial.write_text(page, encoding="utf-8")
    os.replace(partial, index)
    text = terminal.show(title, results, blocks, words, set_aside, index, left_out)
    return Report(text, index, _complete(results))


def build_parts(
    names: str,
    tasks: Sequence[Mapping[str, Any]],
    records: Sequence[dict[str, Any]],
    spec: Mapping[str, Any],
    out_dir: Path,
    left_out: Sequence[str] = (),
) -> Report:
    """Write some tables and figures of the suite's paper alone, such as "table3,figure2"; arguments as for `build`.

    Raises UsageError for a suite without a paper, a part that the paper lacks, and as `build` does.
    """
    spec_module.check(spec)
    paper = load_paper(spec.get("paper"))
    items = paper.choose(names)
    results = join(tasks, records, paper.method)
    evidence = Evidence(paper, results.runs)
    out_dir.mkdir(parents=True, exist_ok=True)
    parts = [_part(item, evidence, out_dir) for item in items]
    texts = []
    for part in parts:
        for table in part.tables:
            _write(table, out_dir)
            texts.append(to_plain(table, terminal.WIDTH))
        paths = [*(p.png for p in part.pictures), *(out_dir / f"{table.name}.{suffix}" for table in part.tables
                                                    for suffix, _ in _FORMATS)]  # fmt: skip
        texts.append("\n".join(map(str, paths)))
    closing = [f"{terminal.counts(results, ())} for {names}", *terminal.warnings(results, left_out)]
    return Report("\n\n".join(text.rstrip("\n") for text in [*texts, *closing]) + "\n", out_dir, _complete(results))


def _part(item: Item, evidence: Evidence, out_dir: Path) -> Part:
    return Part(item.name, item.tables(evidence), item.draw(evidence, out_dir) if item.draw else ())


def _complete(results: Results) -> bool:
    return all(run.status == "done" for run in results.runs)


def _contrasts(
    results: Results, metrics: Mapping[str, Metric], compare: Mapping[str, Any] | None, name: str = "contrasts"
) -> tuple[list[Table], list[str]]:
    """The tests of a report's rows and what they say; nothing where there is nothing to compare."""
    compare = compare or {}
    over = regroup([run for run in results.runs if run.budget.private]) if compare.get("private") else results
    named = metrics_of(compare["metrics"]) if compare.get("metrics") else metrics
    chosen = contrasts.choose(over, compare)
    if chosen is None:
        return [], []
    tested = contrasts.compute(over, named, *chosen)
    return [contrasts.table(tested, named, over, name)], contrasts.sentences(tested)


def _paper_contrasts(paper: Paper, evidence: Evidence) -> tuple[list[Table], list[str]]:
    """The paper's family of tests, in each execution apart: its stage's private runs against the reference."""
    if paper.compare is None:
        return [], []
    stage, by, reference, names = paper.compare
    compare = {"by": by, "reference": reference, "metrics": names, "private": True}
    found: list[Table] = []
    words: list[str] = []
    for execution in evidence.executions:
        runs = [run for place, cell in evidence.cells.items() if place.stage == stage and place.execution == execution
                for run in cell if run.labels["model"] not in paper.apart]  # fmt: skip
        if any(run.labels[by] == reference for run in runs if run.budget.private):
            several = len(evidence.executions) > 1
            made, said = _contrasts(regroup(runs), {}, compare, f"contrasts_repeat{execution}" if several else "contrasts")
            found += made
            words += [f"Repeat {execution}: {sentence}" if several else sentence for sentence in said]
    models = {run.labels["model"] for place, cell in evidence.cells.items() if place.stage == stage for run in cell}
    words += [sentence for model, sentence in paper.apart.items() if model in models]
    return found, words


def _aside(set_aside: Sequence[tuple[str, str]]) -> Table:
    return Table("set_aside", "Files set aside: they count for nothing above.", ["File", "Reason"], set_aside, stubs=2)


def _write(table: Table, out_dir: Path) -> None:
    for suffix, form in _FORMATS:
        (out_dir / f"{table.name}.{suffix}").write_text(form(table), encoding="utf-8")


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
