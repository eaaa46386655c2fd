"""Figures of a paper's cells: bars by model and curves against the budget, published numbers drawn beside measured ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dpsweep.report import figures
from dpsweep.report.figures import Picture, Series
from dpsweep.report.load import Budget, Metric
from dpsweep.report.paper import NOT_ALONE, Evidence, Place
from dpsweep.report.tables import Sample

_DASHED = (0, (3.5, 1.5))


def bars(
    evidence: Evidence,
    folder: Path,
    stem: str,
    stage: str,
    models: Sequence[str],
    epsilon: float | None,
    metric: str,
    caption: str,
) -> list[Picture]:
    """One panel a dataset, one bar a model with its SD and its value; a diamond at what was published.

    Repeated executions are drawn in a figure each. Nothing is drawn if no cell has a value.
    """
    told, pictures = evidence.paper.metrics[metric], []
    for execution in evidence.executions:
        places = {
            dataset: [Place(stage, dataset, "", model, epsilon, execution) for model in models]
            for dataset in evidence.datasets(stage)
        }
        shown = {dataset: line for dataset, line in places.items() if any(evidence.sample(place, told).n for place in line)}
        if not shown:
            continue
        published, hatched = False, False
        with matplotlib.rc_context(figures.STYLE):
            figure, axes = figures.panel_grid(len(shown))
            for index, (axis, (dataset, line)) in enumerate(zip(axes, shown.items(), strict=True)):
                cells = [evidence.sample(place, told) for place in line]
                theirs = [evidence.published.get((place._replace(execution=1), metric)) for place in line]
                _bar_panel(axis, told, models, cells, [float(p.mean) if p else None for p in theirs])
                axis.set_title(evidence.title(dataset), loc="left", fontweight="bold")
                if index % 2:
                    axis.set_yticklabels([])
                published |= any(p and cell.n for p, cell in zip(theirs, cells, strict=True))
                hatched |= any(cell.n and cell.unproved for cell in cells)
            handles: list[Artist] = [Patch(facecolor="0.6", label="measured: mean (at the right), SD")]
            if published:
                handles.append(Line2D([], [], linestyle="", **_DIAMOND, label="published (in brackets)"))
            if hatched:
                handles.append(Patch(facecolor="white", edgecolor="0.4", hatch="////", label="hatched: ε is not proved"))
            figures.legend_below(figure, handles)
            pictures.append(_save(evidence, figure, folder, stem, execution, f"{told.name} by model", caption))
    return pictures


_DIAMOND: dict[str, Any] = {"marker": "D", "markersize": 4, "color": "0.1", "markerfacecolor": "white", "markeredgewidth": 0.9}


def _bar_panel(
    axis: Axes, metric: Metric, models: Sequence[str], cells: Sequence[Sample], theirs: Sequence[float | None]
) -> None:
    rows = range(len(models))
    tops = [0.0]
    column: dict[str, Any] = {"transform": axis.get_yaxis_transform(), "ha": "right", "va": "center", "fontsize": 7}
    for row, cell, published in zip(rows, cells, theirs, strict=True):
        colour = figures.look(row)["color"]
        if not cell.n:
            shared = any(symbol == NOT_ALONE[0] for symbol, *_ in cell.marks)
            axis.text(0, row, " no run alone" if shared else " no run", va="center", color="0.5", fontsize=7)
            continue
        mean, sd = cell.mean * metric.scale, (cell.sd or 0.0) * metric.scale
        open_bar = {"facecolor": "white", "edgecolor": colour, "hatch": "////"} if cell.unproved else {"facecolor": colour}
        axis.barh(row, mean, height=0.68, alpha=0.85, linewidth=0.6, **open_bar)
        if cell.sd is not None:
            for color, width, size in (("white", 2.0, 2.5), ("0.15", 0.8, 2)):  # white around it, to be seen on a dark bar
                axis.errorbar(mean, row, xerr=sd, fmt="none", ecolor=color, elinewidth=width, capsize=size, capthick=width)
        axis.text(0.87, row, _short(mean, metric), **column)
        tops.append(mean + sd)
        if published is not None:
            axis.plot(published, row, linestyle="", **_DIAMOND, zorder=4)
            axis.text(1.0, row, f"({_short(published, metric)})", color="0.45", **column)
            tops.append(published)
    axis.set_xlim(0, max(tops) / 0.72 or 1)  # room for the columns of values, which touch no bar
    axis.set_xticks([tick for tick in axis.get_xticks() if tick <= max(tops)])
    axis.set_yticks(list(rows), models)
    axis.set_ylim(len(models) - 0.4, -0.6)  # from above; rows without a bar have their room too
    axis.set_xlabel(f"{metric.name} ({metric.unit})")
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="0.92", linewidth=0.6)
    axis.set_axisbelow(True)


def _short(value: float, metric: Metric) -> str:
    return f"{value:.3g}" if metric.timed and value < 100 else f"{value:.{0 if metric.timed else 1}f}"


def curves(
    evidence: Evidence,
    folder: Path,
    stem: str,
    stage: str,
    models: Sequence[str],
    dashed: Sequence[str],
    metric: str,
    caption: str,
) -> list[Picture]:
    """A metric of one stage's private runs against the budget, one panel a dataset; a figure each execution."""
    told, pictures = evidence.paper.metrics[metric], []
    budgets = [Budget(target, True) for target in evidence.budgets(stage)]
    panels = {dataset: evidence.title(dataset) for dataset in evidence.datasets(stage)}
    series = [
        Series(model, model, figures.look(index) | {"linestyle": _DASHED if model in dashed else "-"})
        for index, model in enumerate(models)
    ]
    for execution in evidence.executions:
        cells, theirs = {}, {}
        for model in models:
            for dataset in panels:
                for budget in budgets:
                    place = Place(stage, dataset, "", model, budget.target, execution)
                    cells[model, dataset, budget] = evidence.sample(place, told)
                    published = evidence.published.get((place._replace(execution=1), metric))
                    if published:
                        theirs[model, dataset, budget] = float(published.mean)
        name, words = _named(evidence, stem, execution, caption)
        pictures += figures.curves(folder, name, told, words, series, panels, budgets, cells, theirs)
    return pictures


def _named(evidence: Evidence, stem: str, execution: int, caption: str) -> tuple[str, str]:
    """File stem and caption of one execution's figure."""
    if len(evidence.executions) == 1:
        return stem, caption
    return f"{stem}_repeat{execution}", f"{caption} Repeat {execution}."


def _save(evidence: Evidence, figure: Any, folder: Path, stem: str, execution: int, alt: str, caption: str) -> Picture:
    name, words = _named(evidence, stem, execution, caption)
    return figures.save(figure, folder, name, alt, words)


def against_rates(folder: Path, stem: str, series: Mapping[str, Sequence[tuple[float, float, float]]], caption: str) -> Picture:
    """Accuracies (%) against the learning rate and, beside it, against the effective one: points (rate, effective, accuracy)."""
    with matplotlib.rc_context(figures.STYLE):
        figure, axes = figures.panel_grid(2)
        for place, (axis, label) in enumerate(zip(axes, ("learning rate γ", "effective learning rate γκ(0.9)"), strict=True)):
            for index, points in enumerate(series.values()):
                line = sorted((point[place], point[2]) for point in points)
                axis.plot(*zip(*line, strict=True), linewidth=1.1, markersize=4, **figures.look(index))
            axis.set_xscale("log")
            axis.set_xlabel(label)
            axis.set_ylabel("Accuracy (%)")
            axis.grid(color="0.92", linewidth=0.6)
        handles = [Line2D([], [], linewidth=1.1, markersize=4, label=name, **figures.look(index))
                   for index, name in enumerate(series)]  # fmt: skip
        figures.legend_below(figure, handles)
        return figures.save(figure, folder, stem, "Accuracy against the learning rate and the effective learning rate", caption)
