"""A metric against the budget, one panel a dataset."""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpsweep.report.load import Budget, Metric, Results, Row
from dpsweep.report.tables import Sample, sample

# Okabe and Ito's colours, which stay apart under colour blindness, without the yellow that is too light for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "X", "p", "h")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8, "legend.fontsize": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "svg.hashsalt": "dpsweep", "text.usetex": False, "text.parse_math": False,
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """A figure's two files with what a page says of it."""

    png: Path
    svg: Path
    alt: str
    caption: str

    @property
    def source(self) -> str:
        """The SVG file as a data URI, for a page that stands alone."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.read_bytes()).decode("ascii")


@dataclass(frozen=True)
class Series:
    """One line of a figure: what tells its cells, its name, its colour, marker and line style."""

    key: Any
    name: str
    look: dict[str, Any]


def by_epsilon(results: Results, name: str, metric: Metric, folder: Path) -> list[Picture]:
    """Draw NAME_by_epsilon of every row of the results; no picture if no run has the metric."""
    cells = {key: sample(runs, metric) for key, runs in results.cells.items()}
    series = [Series(row, results.row_name(row), look(index)) for index, row in enumerate(_with_values(results.rows, cells))]
    caption = (
        f"{metric.name} against the target ε of one run: mean and sample SD over seeds, budgets equally spaced; dashed at "
        "the right: non-private."
    )
    panels = {dataset: dataset for dataset in results.datasets}
    return curves(folder, f"{name}_by_epsilon", metric, caption, series, panels, results.budgets, cells)


def _with_values(rows: list[Row], cells: dict[tuple, Sample]) -> list[Row]:
    return [row for row in rows if any(key[0] == row and cell.n for key, cell in cells.items())]


def curves(
    folder: Path,
    stem: str,
    metric: Metric,
    caption: str,
    series: Sequence[Series],
    panels: Mapping[str, str],
    budgets: Sequence[Budget],
    cells: Mapping[tuple, Sample],
    published: Mapping[tuple, float] | None = None,
) -> list[Picture]:
    """Draw a metric against the budget: means with sample SDs, budgets equally spaced, non-private apart.

    `cells` and `published` (means in the metric's unit, drawn as crosses) are told by (series' key, dataset, budget);
    `panels` maps datasets to titles. An open marker says that the cell's epsilon is not what is proved. Nothing is
    drawn if no cell has a value.
    """
    scaled = {key: _scaled(cell, metric) for key, cell in cells.items()}
    shown = {d: title for d, title in panels.items() if any(key[1] == d and cell.n for key, cell in scaled.items())}
    if not shown:
        return []
    with matplotlib.rc_context(STYLE):
        figure, axes = panel_grid(len(shown))
        for axis, (dataset, title) in zip(axes, shown.items(), strict=False):
            _panel(axis, budgets, scaled, published or {}, dataset, series)
            axis.set_title(title, loc="left", fontweight="bold")
            axis.set_ylabel(f"{metric.name} ({metric.unit})")
        _legend(figure, series, scaled, bool(published))
        return [save(figure, folder, stem, f"{metric.name} against the target epsilon, one panel a dataset", caption)]


def panel_grid(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels, two in a row."""
    columns = min(2, count)
    lines = math.ceil(count / columns)
    figure = Figure(figsize=(3.6 * columns + (1.4 if columns == 1 else 0), 2.5 * lines + 0.5), layout="constrained")
    axes = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def save(figure: Figure, folder: Path, stem: str, alt: str, caption: str) -> Picture:
    """Write STEM.png (300 dpi) and STEM.svg."""
    png, svg = (folder / f"{stem}.{suffix}" for suffix in ("png", "svg"))
    figure.savefig(png, dpi=300, pil_kwargs={"compress_level": 3})  # some 20% larger, and written several times faster
    figure.set_layout_engine("none")  # laid out once
    figure.savefig(svg, metadata={"Date": None})
    return Picture(png, svg, alt, caption)


def _scaled(cell: Sample, metric: Metric) -> Sample:
    return replace(cell, values={seed: value * metric.scale for seed, value in cell.values.items()})


def _panel(
    axis: Axes,
    asked: Sequence[Budget],
    cells: Mapping[tuple, Sample],
    published: Mapping[tuple, float],
    dataset: str,
    series: Sequence[Series],
) -> None:
    present = [b for b in asked if any((line.key, dataset, b) in cells for line in series)]
    budgets, others = [b for b in present if b.private], [b for b in present if not b.private]
    apart = len(budgets) + (0.4 if budgets else 0)
    positions = {budget: float(index) for index, budget in enumerate(budgets)} | dict.fromkeys(others, apart)
    # Neighbouring series are set apart a little, so that error bars of equal height stay readable.
    step = min(0.07, 0.5 / max(1, len(series)))
    for index, one in enumerate(series):
        shift, row, look = (index - (len(series) - 1) / 2) * step, one.key, one.look
        line = [cells.get((row, dataset, budget)) for budget in budgets]
        means = [cell.mean if cell is not None and cell.n else math.nan for cell in line]
        places = [positions[budget] + shift for budget in budgets]
        axis.plot(places, means, color=look["color"], linestyle=look["linestyle"], linewidth=1.1)
        points = [
            (positions[budget] + shift, cell)
            for budget in (*budgets, *others)
            if (cell := cells.get((row, dataset, budget))) is not None and cell.n
        ]
        for _, cell in (point for point in points if point[0] == apart + shift):
            level = [apart - 0.32, apart + 0.32]
            axis.plot(level, [cell.mean] * 2, color=look["color"], linestyle=(0, (2.5, 1.5)), linewidth=0.9)
        spread = [math.nan if cell.sd is None else cell.sd for _, cell in points]
        axis.errorbar(
            [x for x, _ in points], [cell.mean for _, cell in points], yerr=spread, fmt="none", ecolor=look["color"],
            elinewidth=0.7, capsize=1.6, capthick=0.7,
        )  # fmt: skip
        for unproved, face in ((False, look["color"]), (True, "white")):
            chosen = [(x, cell.mean) for x, cell in points if cell.unproved == unproved]
            if chosen:
                axis.plot(
                    *zip(*chosen, strict=True), linestyle="", marker=look["marker"], markersize=4, markeredgewidth=0.9,
                    color=look["color"], markerfacecolor=face, zorder=3,
                )  # fmt: skip
        measured = {x for x, _ in points}
        for budget in (b for b in positions if (row, dataset, b) in published):
            x = positions[budget] + shift
            color = "0.15" if x in measured else look["color"]  # dark on a marker, which tells the series; else in its colour
            axis.plot(x, published[row, dataset, budget], marker="x", markersize=4.5, markeredgewidth=0.8, color=color, zorder=4)
    names = [budget.name.replace(" ", "\n") if budget.target is None or budget.claimed else f"{budget.target:g}"
             for budget in positions]  # fmt: skip
    axis.set_xticks(list(positions.values()), names)
    axis.set_xlim(-0.45, max(positions.values()) + 0.45)
    if budgets:
        axis.set_xlabel("target ε of one run")
    if budgets and others:
        axis.axvline(len(budgets) - 0.3, color="0.8", linewidth=0.6)
    axis.grid(axis="y", color="0.92", linewidth=0.6)
    axis.set_axisbelow(True)


def look(index: int) -> dict[str, Any]:
    """Colour, marker and line style of the series number `index`."""
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _DASHES[index // len(_COLOURS) % len(_DASHES)],
    }


def _legend(figure: Figure, series: Sequence[Series], cells: Mapping[tuple, Sample], published: bool) -> None:
    handles = [Line2D([], [], linewidth=1.1, markersize=4, label=one.name, **one.look) for one in series]
    if published:
        handles.append(Line2D([], [], linestyle="", marker="x", markersize=4.5, color="0.15", label="published"))
    if any(cell.unproved and cell.n for cell in cells.values()):
        handles.append(Line2D([], [], linestyle="", marker="o", markersize=4, color="0.3", markerfacecolor="white",
                              label="open: ε is not proved (see the table)"))  # fmt: skip
    legend_below(figure, handles)


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """A legend under the panels, in as many columns as fit."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(min(4, len(handles)), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=2.4)
        if columns == 1 or legend.get_window_extent(renderer).width <= figure.bbox.width:
            return
        legend.remove()
