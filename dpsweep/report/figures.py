"""A metric against the budget, one panel a dataset."""

import base64
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpsweep.report.load import Metric, Results, Row
from dpsweep.report.tables import Sample, sample

# Okabe and Ito's colours, which stay apart under colour blindness, without the yellow that is too light for a line.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "X", "p", "h")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8, "legend.fontsize": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "svg.hashsalt": "dpsweep", "text.usetex": False, "text.parse_math": False,
}  # fmt: skip


def by_epsilon(results: Results, name: str, metric: Metric, folder: Path) -> list[tuple[Path, Path]]:
    """Draw NAME_by_epsilon.png (300 dpi) and .svg: means with sample SDs, budgets equally spaced, non-private apart.

    An open marker says that the cell's epsilon is not what is proved. Returns the pair of paths, or nothing
    if no run has the metric.
    """
    cells = {key: _scaled(sample(runs, metric), metric) for key, runs in results.cells.items()}
    panels = [d for d in results.datasets if any(key[1] == d and cell.n for key, cell in cells.items())]
    if not panels:
        return []
    series = [row for row in results.rows if any(key[0] == row and cell.n for key, cell in cells.items())]
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(3.6 * columns + (1.4 if columns == 1 else 0), 2.5 * lines + 0.5), layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False)
        for axis, dataset in zip(axes.flat, panels, strict=False):
            _panel(axis, results, cells, dataset, series)
            axis.set_ylabel(f"{metric.name} ({metric.unit})")
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_visible(False)
        _legend(figure, results, series, cells)
        png, svg = (folder / f"{name}_by_epsilon.{suffix}" for suffix in ("png", "svg"))
        figure.savefig(png, dpi=300)
        figure.set_layout_engine("none")  # laid out once
        figure.savefig(svg, metadata={"Date": None})
    return [(png, svg)]


def _scaled(cell: Sample, metric: Metric) -> Sample:
    return replace(cell, values={seed: value * metric.scale for seed, value in cell.values.items()})


def _panel(axis: Axes, results: Results, cells: dict, dataset: str, series: list[Row]) -> None:
    budgets = [b for b in results.budgets if b.private and any((row, dataset, b) in cells for row in series)]
    others = [b for b in results.budgets if not b.private and any((row, dataset, b) in cells for row in series)]
    apart = len(budgets) + (0.4 if budgets else 0)
    positions = {budget: float(index) for index, budget in enumerate(budgets)} | dict.fromkeys(others, apart)
    # Neighbouring series are set apart a little, so that error bars of equal height stay readable.
    step = min(0.07, 0.5 / max(1, len(series)))
    for index, row in enumerate(series):
        shift = (index - (len(series) - 1) / 2) * step
        look = _look(index)
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
    axis.set_title(dataset, loc="left", fontweight="bold")
    names = [f"{budget.target:g}" if budget.target is not None else budget.name for budget in positions]
    axis.set_xticks(list(positions.values()), names)
    axis.set_xlim(-0.45, max(positions.values()) + 0.45)
    if budgets:
        axis.set_xlabel("target ε of one run")
    if budgets and others:
        axis.axvline(len(budgets) - 0.3, color="0.8", linewidth=0.6)
    axis.grid(axis="y", color="0.92", linewidth=0.6)
    axis.set_axisbelow(True)


def _look(index: int) -> dict:
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _DASHES[index // len(_COLOURS) % len(_DASHES)],
    }


def _legend(figure: Figure, results: Results, series: list[Row], cells: dict[tuple, Sample]) -> None:
    handles = []
    for index, row in enumerate(series):
        look = _look(index)
        handles.append(Line2D([], [], linewidth=1.1, markersize=4, label=results.row_name(row), **look))
    if any(cell.unproved and cell.n for cell in cells.values()):
        handles.append(Line2D([], [], linestyle="", marker="o", markersize=4, color="0.3", markerfacecolor="white",
                              label="open: ε is not proved (see the table)"))  # fmt: skip
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(min(4, len(handles)), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=2.4)
        if columns == 1 or legend.get_window_extent(renderer).width <= figure.bbox.width:
            return
        legend.remove()


def data_uri(path: Path) -> str:
    """An SVG file as a data URI, for a page that stands alone."""
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
