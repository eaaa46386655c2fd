"""What a paper brings to its report: where its cells stand, what it printed, and which tables and figures it has.

A paper is one file in `dpsweep.report.papers` that defines `PAPER`; a suite names it as `report: {paper: NAME}`.
"""

from __future__ import annotations

import csv
import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpsweep.errors import UsageError
from dpsweep.report import papers
from dpsweep.report.load import Metric, Run
from dpsweep.report.markup import Table
from dpsweep.report.tables import Sample, sample

if TYPE_CHECKING:
    from dpsweep.report.figures import Picture  # at run time only what draws imports the drawing library

NOT_ALONE = (
    "~",
    "times of runs that shared the machine compare with nothing and are left out (workers=1 runs them one by one; what is done "
    "isn't run again, so give another output_dir or repeat); left out:",
)


class Place(NamedTuple):
    """What one cell of a paper is about; `epsilon` None is non-private training, `variant` a profile, a split or ""."""

    stage: str
    dataset: str
    variant: str
    model: str
    epsilon: float | None
    execution: int = 1


class Published(NamedTuple):
    """A number as a paper prints it: mean and, where it says one, sample SD over `n` seeds; `where` it stands."""

    mean: str
    sd: str = ""
    n: int = 1
    where: str = ""

    @property
    def text(self) -> str:
        return f"{self.mean} ± {self.sd}" if self.sd else self.mean

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit of the mean."""
        return 0.5 * 10.0 ** -len(self.mean.partition(".")[2])


@dataclass(frozen=True)
class Needs:
    """The tasks that a table or figure reads: one stage, and all models, budgets and datasets unless some are named.

    `where`, if given, must hold too.
    """

    stage: str
    models: tuple[str, ...] = ()
    epsilons: tuple[float | None, ...] = ()
    datasets: tuple[str, ...] = ()
    where: Callable[[Place], bool] | None = None

    def covers(self, place: Place) -> bool:
        return (
            place.stage == self.stage
            and (not self.models or place.model in self.models)
            and (not self.epsilons or place.epsilon in self.epsilons)
            and (not self.datasets or place.dataset in self.datasets)
            and (self.where is None or self.where(place))
        )


@dataclass(frozen=True)
class Item:
    """One table or figure of a paper. A figure draws into a folder and has tables with the numbers that it shows."""

    name: str
    needs: tuple[Needs, ...]
    tables: Callable[[Evidence], Sequence[Table]]
    draw: Callable[[Evidence, Path], Sequence[Picture]] | None = None

    def covers(self, place: Place | None) -> bool:
        return place is not None and any(needs.covers(place) for needs in self.needs)


@dataclass(frozen=True)
class Paper:
    """A paper's report.

    Attributes:
        name, title: its short name and its title.
        metrics: what its metrics are called in `published`, and how a record tells them.
        locate: the place of a task, by its canonical configuration; None for a task that is no part of the paper.
        published: everything that the paper prints, by place and metric.
        items: its tables and figures in order; `headline` are those that the terminal shows.
        compare: the stage whose contrasts are tested, the label, the reference and the metrics' names; None for no tests.
        datasets: its datasets in order, with the names that it prints.
        method: what it calls a configuration's mechanism and optimizer together; None where it compares models.
        printed: whether there is a paper at all whose numbers stand beside the measured ones.
        apart: models that no test compares with others, each with a sentence that says so.
    """

    name: str
    title: str
    metrics: Mapping[str, Metric]
    locate: Callable[[Mapping[str, Any]], Place | None]
    published: Callable[[], dict[tuple[Place, str], Published]]
    items: tuple[Item, ...]
    headline: tuple[str, ...]
    compare: tuple[str, str, str, tuple[str, ...]] | None
    datasets: Mapping[str, str]
    method: Callable[[Mapping[str, Any]], str | None] | None = None
    printed: bool = True
    apart: Mapping[str, str] = field(default_factory=dict)

    def choose(self, names: str) -> tuple[Item, ...]:
        """The tables and figures of a list such as "table3,figure2".

        Raises `UsageError` for a name that the paper lacks.
        """
        by_name = {item.name: item for item in self.items}
        for name in names.split(","):
            if name not in by_name:
                raise UsageError(f"table={name}: the report of {self.name} has no such part. Choose from {', '.join(by_name)}.")
        return tuple(by_name[name] for name in names.split(","))


def load_paper(name: Any) -> Paper:
    """The paper of this name.

    Raises `UsageError` with the names that there are.
    """
    known = sorted(module.name for module in pkgutil.iter_modules(papers.__path__))
    if name not in known:
        raise UsageError(f"The suite's report.paper is {name!r}, of which nothing is known. Choose from {', '.join(known)}.")
    return importlib.import_module(f"{papers.__name__}.{name}").PAPER


def published_rows(file: str) -> list[dict[str, str]]:
    """The lines of a CSV file with published numbers, which comes with the package."""
    with (files("dpsweep.report") / "published" / file).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


class Evidence:
    """What was measured, by place, beside what was published.

    `executions` are those that the tasks have, from 1; a task without `repeat` belongs to the first.

    Raises `UsageError` where two runs of one seed would share a cell.
    """

    def __init__(self, paper: Paper, runs: Iterable[Run]) -> None:
        self.paper, self.published = paper, paper.published()
        self.cells: dict[Place, list[Run]] = defaultdict(list)
        for run in runs:
            place = paper.locate(run.config) if run.config else None
            if place is not None:
                self.cells[place].append(run)
        for place, found in self.cells.items():
            seeds: dict[int, Run] = {}
            for run in found:
                other = seeds.setdefault(run.seed, run)
                if other is not run:
                    raise UsageError(
                        f"{other.id} and {run.id} both stand for {place.model} on {place.dataset} in the tables of "
                        f"{paper.name}, and a table never pools two protocols. Report them apart: a suite for each."
                    )
        self.executions = sorted({place.execution for place in self.cells}) or [1]
        self._samples: dict[tuple[Place, Metric], Sample] = {}

    def has(self, item: Item) -> bool:
        """Whether some task of this report belongs to the table or figure."""
        return any(map(item.covers, self.cells))

    def datasets(self, stage: str) -> list[str]:
        """The datasets of a stage's tasks, those of the paper first and in its order."""
        present = dict.fromkeys(place.dataset for place in self.cells if place.stage == stage)
        return [*(name for name in self.paper.datasets if name in present), *(d for d in present if d not in self.paper.datasets)]

    def budgets(self, stage: str) -> list[float]:
        """The targets of a stage's private tasks, increasing."""
        return sorted({place.epsilon for place in self.cells if place.stage == stage and place.epsilon is not None})

    def title(self, dataset: str) -> str:
        """A dataset's name as the paper prints it."""
        return self.paper.datasets.get(dataset, dataset)

    def sample(self, place: Place, metric: Metric) -> Sample:
        """The values of a cell. Times come only from runs that had the machine to themselves."""
        key = (place, metric)
        if key not in self._samples:
            self._samples[key] = self._sample(self.cells.get(place, []), metric)
        return self._samples[key]

    @staticmethod
    def _sample(runs: Sequence[Run], metric: Metric) -> Sample:
        if not metric.timed:
            return sample(runs, metric)
        shared = sum(run.done is not None and not run.done["alone"] for run in runs)
        found = sample([run for run in runs if run.done is None or run.done["alone"]], metric)
        marks = (*found.marks, (*NOT_ALONE, f"{shared} of {len(runs)} runs")) if shared else found.marks
        return replace(found, expected=len(runs), marks=marks)
