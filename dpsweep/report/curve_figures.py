"""Figures of what happens during training: a number of the records' curves against another, with bands over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dpsweep.report import figures
from dpsweep.report.figures import Picture
from dpsweep.report.load import Run

AXES = {  # a field of the curves: what an axis calls it, and the factor from the record
    "epoch": ("epoch", 1.0),
    "accuracy": ("test accuracy (%)", 100.0),
    "loss": ("test loss", 1.0),
    "epsilon": ("spent ε of one run", 1.0),
}


@dataclass(frozen=True)
class Panel:
    """One panel: `lines` maps the name of each line to its runs, of which those with curves are drawn."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Run]]


@dataclass(frozen=True)
class Band:
    """Mean and sample SD over n seeds (NaN for one seed), in the axis' unit; float64 (points,)."""

    x: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    n: int


def band(runs: Sequence[Run], x: str, y: str) -> Band | None:
    """The mean curve of the runs that have one; None if none has.

    Runs whose epochs differ from those of most (which a changed protocol makes) are left out, for their points do not pair.
    A point at which some run has no value (a loss that is not finite) has none.
    """
    found = [run.done["curves"] for run in runs if run.done and run.done.get("curves")]
    grids = [tuple(curves["epoch"]) for curves in found if curves["epoch"] and None not in curves[x]]
    if not grids:
        return None
    usual = max(grids, key=grids.count)
    alike = [curves for curves in found if tuple(curves["epoch"]) == usual]
    values = np.array([[math.nan if value is None else value for value in curves[y]] for curves in alike], dtype=float)
    values *= AXES[y][1]
    places = np.array([curves[x] for curves in alike], dtype=float).mean(0) * AXES[x][1]
    sd = values.std(0, ddof=1) if len(alike) > 1 else np.full(len(places), math.nan)
    return Band(places, values.mean(0), sd, len(alike))


def draw(folder: Path, stem: str, panels: Sequence[Panel], alt: str, caption: str) -> list[Picture]:
    """Two panels a row, one look a name throughout; nothing if no run has curves."""
    bands = [(panel, {name: found for name, runs in panel.lines.items() if (found := band(runs, panel.x, panel.y))})
             for panel in panels]  # fmt: skip
    bands = [(panel, lines) for panel, lines in bands if lines]
    if not bands:
        return []
    names = list(dict.fromkeys(name for panel, _ in bands for name in panel.lines))
    looks = {name: figures.look(index) for index, name in enumerate(names)}
    with matplotlib.rc_context(figures.STYLE):
        figure, axes = figures.panel_grid(len(bands))
        for axis, (panel, lines) in zip(axes, bands, strict=True):
            _panel(axis, panel, lines, looks)
        shown = [name for name in names if any(name in lines for _, lines in bands)]
        handles: list[Any] = [
            Line2D([], [], linewidth=1.3, label=name, color=looks[name]["color"], linestyle=looks[name]["linestyle"])
            for name in shown
        ]
        if any(found.n > 1 for _, lines in bands for found in lines.values()):
            handles.append(Patch(facecolor="0.75", label="band: ± sample SD over seeds"))
        figures.legend_below(figure, handles)
        return [figures.save(figure, folder, stem, alt, caption)]


def _panel(axis: Axes, panel: Panel, lines: Mapping[str, Band], looks: Mapping[str, dict[str, Any]]) -> None:
    for name, found in lines.items():
        look = looks[name]
        axis.plot(found.x, found.mean, color=look["color"], linestyle=look["linestyle"], linewidth=1.1, zorder=3)
        if found.n > 1:
            low, high = found.mean - found.sd, found.mean + found.sd
            axis.fill_between(found.x, low, high, color=look["color"], alpha=0.13, linewidth=0, zorder=2)
    axis.set_title(panel.title, loc="left", fontweight="bold")
    axis.set_xlabel(AXES[panel.x][0])
    axis.set_ylabel(AXES[panel.y][0])
    axis.set_xlim(0 if panel.x == "epoch" else None, max(float(found.x[-1]) for found in lines.values()))
    axis.grid(color="0.93", linewidth=0.6)
    axis.set_axisbelow(True)
