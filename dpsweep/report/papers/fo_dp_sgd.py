"""Deep Learning under Fractional-Order Differential Privacy (FO-DP-SGD). Tables 1 to 3, Figures 1 to 8; ours: fair, tuning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.report import beside, stats
from dpsweep.report.beside import Line
from dpsweep.report.fo_fair import epochs_of, fair, named, places_of, tuning
from dpsweep.report.fo_methods import BETA, FAIR, FIXED, FO, RATE, RUNTIME, SGD, SIGMA, TUNING, locate, method, parts, variant
from dpsweep.report.load import METRICS, SECONDS, Metric
from dpsweep.report.markup import Footnotes, Table
from dpsweep.report.paper import Evidence, Item, Needs, Paper, Place, Published, published_rows
from dpsweep.report.tables import cell_marks, cell_text

if TYPE_CHECKING:
    from dpsweep.report.figures import Picture

DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}
SAME = "σ/β"  # of the noise with which DP-SGD spends what FO-DP-SGD spends
BETAS = {"1": SGD, "0.95": "FO-DP-SGD β=0.95", "0.9": FO, "0.8": "FO-DP-SGD β=0.8", "0.65": "FO-DP-SGD β=0.65"}
DEPTHS = ("FO-DP-SGD K=1", "FO-DP-SGD K=2", FO, "FO-DP-SGD K=32")
ALPHAS = ("FO-DP-SGD α=0.2", "FO-DP-SGD α=0.5", FO)
DESIGNS = (SGD, "uniform memory", "exponential memory", FO)
ADAMS = ("DP-Adam", "DP-AdamBC", "DP-AdamW", "DP-AdamW scheduled", "DP-Adam-AC")
METHODS = (FO, SGD, "DP-SAT", "DP-SAM", "DP-IS", *ADAMS)
CLIPPED = (FO, SGD, "DP-SAT", "DP-SAM", "DP-Adam", "DP-AdamW", "DP-Adam-AC")
INSERTED = (SGD, "Post-FM", "Post-FM raw", FO)
MOMENTUM = "DP-SGD momentum 0.1"
FAIRLY = (SGD, MOMENTUM, FO, "Post-FM", "Post-FM raw", *METHODS[2:])
NAMES = {
    "accuracy": METRICS["accuracy"],
    "best": Metric("curves.best_accuracy", "Best accuracy"),
    "loss": Metric("curves.loss.-1", "Final test loss", "", 1.0, 3, SECONDS),
    "epsilon": Metric("epsilon", "Spent ε", "", 1.0, 3, SECONDS, exact=True),
    "seconds": Metric("seconds_train", "Training time", "s", 1.0, 1, SECONDS),
}


def published() -> dict[tuple[Place, str], Published]:
    """Tables 1 and 3. The paper states the learning rate of FO-DP-SGD alone, so a baseline's numbers stand at every rate."""
    found: dict[tuple[Place, str], Published] = {}
    for row in published_rows("fo_dp_sgd.csv"):
        name = _named_in(row)
        rates = (RATE,) if name == FO else (0.8, 0.4, 0.2, 0.1, 0.05, 0.01, 0.003, 0.001, 0.0003)
        n = int(row["n_seeds"])
        for rate in rates:
            seconds = Published(row["runtime_seconds_250_epochs"], n=n, where="T1")
            found[Place(RUNTIME, "cifar10", variant(rate), name, None), "seconds"] = seconds
            if row["final_accuracy_mean"]:
                mean, sd = (str(Decimal(row[f"final_accuracy_{part}"]).scaleb(2)) for part in ("mean", "sd"))
                found[Place(FIXED, "cifar10", variant(rate), name, None), "accuracy"] = Published(mean, sd, n, "T3")
    return found


def _named_in(row: Mapping[str, str]) -> str:
    """What we call the method of a published line."""
    told = row["method"]
    return FO if "beta=0.90" in told else SGD if told.startswith(SGD) else told


def _numbers(evidence: Evidence, name: str, caption: str, places: Sequence[Place], noise: bool = False) -> Table:
    """A figure in numbers: final and best accuracy, final loss, spent ε of each line."""
    notes, rows = Footnotes(), []
    fields = ("accuracy", "best", "loss", "epsilon")
    usual = max((evidence.sample(place, NAMES["accuracy"]).expected for place in places), default=0)
    for place in places:
        for execution in evidence.executions:
            cells = [evidence.sample(place._replace(execution=execution), NAMES[field]) for field in fields]
            texts = [cell_text(cell, NAMES[field], usual) for field, cell in zip(fields, cells, strict=True)]
            texts[0] += cell_marks(cells[0], notes)
            told = parts(place)
            extra = [f"{told['σ']:g}", f"{told.get('C', 1.0):g}"] if noise else []
            repeat = [str(execution)] if len(evidence.executions) > 1 else []
            rows.append([evidence.title(place.dataset), place.model, *extra, f"{told['lr']:g}", *repeat, *texts])
    stubs = ["Dataset", "Method", *(["σ", "C"] if noise else []), "lr", *(["Repeat"] if len(evidence.executions) > 1 else [])]
    header = [*stubs, "Final accuracy (%)", "Best accuracy (%)", "Final test loss", "Spent ε"]
    return Table(name, caption, header, rows, len(stubs), blocks=len({place.dataset for place in places}) > 1,
                 notes=notes.listed())  # fmt: skip


_AT_END = "at the end of training, mean ± sample SD over seeds. The best accuracy is picked by the test set: a diagnostic."
_NO_NUMBERS = " The paper prints no numbers beside this figure."


def _figure(number: int, what: str, places: Callable[[Evidence], list[Place]], noise: bool = False) -> Callable[[Evidence], Any]:
    caption = f"Figure {number} in numbers: {what}, {_AT_END}{_NO_NUMBERS}"
    return lambda evidence: [_numbers(evidence, f"figure{number}", caption, places(evidence), noise)]


def _fixed(models: Sequence[str], datasets: Sequence[str] = ("cifar10",), rate: float | None = RATE) -> Callable:
    """Places of fixed-noise tasks; the datasets named, or those that the tasks have in their place (a suite in small)."""

    def places(evidence: Evidence) -> list[Place]:
        there = evidence.datasets(FIXED)
        return places_of(evidence, FIXED, models, [d for d in datasets if d in there] or there[:1], rate=rate)

    return places


def _insertion(evidence: Evidence) -> list[Place]:
    datasets = [d for d in ("cifar10",) if d in evidence.datasets(FIXED)] or evidence.datasets(FIXED)[:1]
    same = [places_of(evidence, FIXED, (SGD, MOMENTUM, "Post-FM", "Post-FM raw"), datasets, SIGMA / BETA, rate=RATE)]
    return [*places_of(evidence, FIXED, INSERTED, datasets, rate=RATE), *(place for places in same for place in places)]


def _clipping(evidence: Evidence) -> list[Place]:
    return [
        place
        for sigma in (1.5, 2.0)
        for clip in (0.5, 1.0, 1.5, 2.0)
        for place in places_of(evidence, FIXED, CLIPPED, evidence.datasets(FIXED), sigma, clip)
    ]


_FIGURE1 = _fixed(METHODS, tuple(DATASETS), rate=None)
_FIGURE2 = _fixed(tuple(BETAS.values()), tuple(DATASETS))
_FIGURE3 = _fixed(tuple(BETAS.values()), ("cifar100",))
_FIGURE4, _FIGURE8, _ALPHA = _fixed(DEPTHS), _fixed(DESIGNS), _fixed(ALPHAS)


def table1(evidence: Evidence) -> list[Table]:
    places = _timed(evidence)
    caption = (
        f"Table 1. Seconds of {epochs_of(evidence, places)} on {_where(evidence, places)}, runs alone on the machine only, looks "
        "at the test set not counted; the published ones are from another machine."
    )
    lines = [Line((place.model, f"{parts(place)['lr']:g}"), ((place, "seconds"),)) for place in places]
    return [beside.table(evidence, "table1", caption, ["Method", "lr"], [""], lines)]


def _timed(evidence: Evidence) -> list[Place]:
    return places_of(evidence, RUNTIME, METHODS, evidence.datasets(RUNTIME))


def table2(evidence: Evidence) -> list[Table]:
    """Ratios of mean times; of each method's own runs to DP-SGD's, both alone on one machine."""
    theirs = {_named_in(row): row["relative_runtime"] for row in published_rows("fo_dp_sgd.csv")}
    times = {place: evidence.sample(place, NAMES["seconds"]) for place in _timed(evidence)}
    base = next((cell.mean for place, cell in times.items() if place.model == SGD and cell.n), None)
    rows = []
    for place, cell in times.items():
        ours = f"{cell.mean / base:.2f}" if cell.n and base else "—"
        rows.append([place.model, theirs.get(place.model, "—"), ours, f"{cell.n} of {cell.expected}"])
    caption = "Table 2. Mean training time over that of DP-SGD (FO-DP-SGD at β = 1), runs alone on the machine only."
    return [Table("table2", caption, ["Method", "Published", "Measured", "Runs"], rows, 1)]


def table3(evidence: Evidence) -> list[Table]:
    places = _fixed(METHODS, rate=None)(evidence)
    lines = [Line((place.model, f"{parts(place)['lr']:g}"), ((place, "accuracy"),)) for place in places]
    caption = (
        f"Table 3. Final test accuracy (%) on {_where(evidence, places)} {_at_noise(places)}, {epochs_of(evidence, places)}, "
        "mean ± sample SD over seeds. The paper states FO-DP-SGD's learning rate, 0.8; what it used for the baselines it doesn't "
        "say, so their numbers stand beside each of ours. The methods spend different ε: see the next table."
    )
    metric, rows = NAMES["accuracy"], []
    printed = {_named_in(row): _interval(row) for row in published_rows("fo_dp_sgd.csv")}
    for place in places:
        cell, spent = evidence.sample(place, metric), evidence.sample(place, NAMES["epsilon"])
        bounds = stats.t_interval(list(cell.values.values()))
        ours = " to ".join(map(metric.show, metric.clip(bounds))) if bounds else "—"
        theirs = printed.get(place.model, "—") if (place, "accuracy") in evidence.published else "—"
        epsilon = NAMES["epsilon"].show(spent.mean) if spent.n else "—"
        rows.append([place.model, f"{parts(place)['lr']:g}", theirs, ours, epsilon])
    header = ["Method", "lr", "Published", "Measured", "Spent ε"]
    about = "Table 3, 95% Student-t intervals of the mean final accuracy (%), and the ε of each of ours (one run's)."
    return [
        beside.table(evidence, "table3", caption, ["Method", "lr"], [""], lines),
        Table("table3_intervals", about, header, rows, 2),
    ]


def _interval(row: Mapping[str, str]) -> str:
    if not row["ci95_low"]:
        return "—"
    return " to ".join(f"{Decimal(row[f'ci95_{end}']) * 100:.2f}" for end in ("low", "high"))


def alpha(evidence: Evidence) -> list[Table]:
    caption = f"The fractional order α (section 4.1), {_AT_END} The paper prints no figure of it."
    return [_numbers(evidence, "alpha", caption, _ALPHA(evidence))]


def _draw(evidence: Evidence, folder: Path, stem: str, alt: str, caption: str,
          panels: Sequence[tuple[str, str, str, Mapping[str, Place]]]) -> list[Picture]:  # fmt: skip
    """Panels (title, x, y, places by line) as a figure for each execution."""
    from dpsweep.report.curve_figures import Panel, draw

    pictures = []
    for execution in evidence.executions:
        made = [
            Panel(
                title, x, y, {name: evidence.cells.get(place._replace(execution=execution), []) for name, place in lines.items()}
            )
            for title, x, y, lines in panels
        ]
        several = len(evidence.executions) > 1
        words = f"{caption} Vertical ranges differ." if len({(x, y) for _, x, y, _ in panels}) < len(panels) else caption
        name, words = (f"{stem}_repeat{execution}", f"{words} Repeat {execution}.") if several else (stem, words)
        pictures += draw(folder, name, made, alt, words)
    return pictures


def _lines(places: Iterable[Place], told: Callable[[Place], str] = lambda place: place.model) -> dict[str, Place]:
    return {told(place): place for place in places}


def _where(evidence: Evidence, places: Iterable[Place]) -> str:
    return " and ".join(dict.fromkeys(evidence.title(place.dataset) for place in places))


def _at_noise(places: Iterable[Place]) -> str:
    falling = any(place.model == "DP-AdamW scheduled" for place in places)
    return "at σ = 1.1" + " (DP-AdamW scheduled: from 1.1 to half of it)" * falling


def _by_dataset(evidence: Evidence, places: Sequence[Place]) -> dict[str, list[Place]]:
    return {evidence.title(d): [p for p in places if p.dataset == d] for d in dict.fromkeys(p.dataset for p in places)}


def _tuned(places: Iterable[Place], tuned: bool) -> list[Place]:
    """One place a method: at the paper's rate where it has tasks there, or at another where it has."""
    chosen: dict[tuple[str, str], Place] = {}
    for place in places:
        key = (place.dataset, place.model)
        if key not in chosen or (parts(place)["lr"] == RATE) != tuned:
            chosen[key] = place
    return list(chosen.values())


_BANDS = "Means over seeds; bands: sample SD."


def draw1(evidence: Evidence, folder: Path) -> list[Picture]:
    pictures = []
    for tuned, stem, rates in ((False, "figure1", "the paper's learning rate 0.8 (Adam-like ones: the table's)"),
                               (True, "figure1_tuned", "the table's other learning rate (how chosen: Privacy)")):  # fmt: skip
        places = _tuned(_FIGURE1(evidence), tuned)
        panels = [(title, "epoch", "accuracy", _lines(found)) for title, found in _by_dataset(evidence, places).items()]
        at, spend = _at_noise(places), "The methods spend different ε."
        caption = f"Figure 1. Test accuracy by epoch {at}, each method at {rates}. {_BANDS} {spend}"
        pictures += _draw(evidence, folder, stem, "Test accuracy by epoch, one line a method", caption, panels)
    return pictures


def draw2(evidence: Evidence, folder: Path) -> list[Picture]:
    panels = [(title, "epsilon", "accuracy", _lines(found, _beta))
              for title, found in _by_dataset(evidence, _FIGURE2(evidence)).items()]  # fmt: skip
    caption = f"Figure 2. Test accuracy against the ε spent so far, by β (β = 1: DP-SGD), σ = 1.1. {_BANDS}"
    return _draw(evidence, folder, "figure2", "Test accuracy against spent epsilon, one line a beta", caption, panels)


def _beta(place: Place) -> str:
    return next(f"β = {beta}" for beta, name in BETAS.items() if name == place.model)


def draw3(evidence: Evidence, folder: Path) -> list[Picture]:
    lines = _lines(_FIGURE3(evidence), _beta)
    panels = [("Accuracy", "epoch", "accuracy", lines), ("Spent ε", "epoch", "epsilon", lines)]
    where = _where(evidence, lines.values())
    caption = f"Figure 3. Test accuracy and spent ε by epoch on {where}, by β, σ = 1.1. {_BANDS}"
    return _draw(evidence, folder, "figure3", "Accuracy and spent epsilon by epoch, one line a beta", caption, panels)


def _one(number: int | str, places: Callable[[Evidence], list[Place]], x: str, what: str) -> Callable[[Evidence, Path], Any]:
    def drawn(evidence: Evidence, folder: Path) -> list[Picture]:
        stem, name = (f"figure{number}", f"Figure {number}. ") if isinstance(number, int) else (number, "")
        panels = [(title, x, "accuracy", _lines(found, _with_noise))
                  for title, found in _by_dataset(evidence, places(evidence)).items()]  # fmt: skip
        caption = f"{name}Test accuracy {'by epoch' if x == 'epoch' else 'against the ε spent so far'}: {what}. {_BANDS}"
        return _draw(evidence, folder, stem, f"Test accuracy, {what}", caption, panels)

    return drawn


def _with_noise(place: Place) -> str:
    return place.model if parts(place).get("σ") == SIGMA else f"{place.model} at {SAME}"


def draw7(evidence: Evidence, folder: Path) -> list[Picture]:
    pictures, places = [], _clipping(evidence)
    for sigma in dict.fromkeys(parts(place)["σ"] for place in places):
        here = [place for place in places if parts(place)["σ"] == sigma]
        clips = dict.fromkeys(parts(place)["C"] for place in here)
        panels = [(f"C = {c:g}", "epoch", "accuracy", _lines(p for p in here if parts(p)["C"] == c)) for c in clips]
        caption = f"Figure 7. Test accuracy by epoch by clipping norm C at σ = {sigma:g}. {_BANDS}"
        stem = f"figure7_sigma{sigma:g}"
        pictures += _draw(evidence, folder, stem, f"Test accuracy by epoch at sigma {sigma:g}, one panel a C", caption, panels)
    return pictures


def draw_fair(evidence: Evidence, folder: Path) -> list[Picture]:
    from dpsweep.report import paper_figures

    pictures = []
    for budget in evidence.budgets(FAIR):
        long = epochs_of(evidence, (place for place in evidence.cells if (place.stage, place.epsilon) == (FAIR, budget)))
        caption = f"Every method at the same proved ε = {budget:g}: mean test accuracy and sample SD over seeds, {long}."
        stem, names = f"fair_eps{budget:g}", named(evidence, FAIR, FAIRLY)
        pictures += paper_figures.bars(evidence, folder, stem, FAIR, names, budget, "accuracy", caption)
    return pictures


def _needs(models: Sequence[str], datasets: Sequence[str] = ("cifar10", "digits"), sigmas: Sequence[float] = (SIGMA,),
           every_rate: bool = False) -> tuple[Needs, ...]:  # fmt: skip
    """Fixed-noise tasks of these; of SGD-like methods at the paper's rate alone, unless `every_rate`."""
    known = {float(f"{sigma:.4g}") for sigma in sigmas}

    def where(place: Place) -> bool:
        told = parts(place)
        return told.get("σ") in known and (every_rate or place.model in ADAMS or told["lr"] == RATE)

    return (Needs(FIXED, tuple(models), (), tuple(datasets), where),)


_EVERYWHERE = (*DATASETS, "digits")
_TIMED = (Needs(RUNTIME),)
PAPER = Paper(
    name="fo_dp_sgd",
    title="Deep Learning under Fractional-Order Differential Privacy",
    metrics=NAMES,
    locate=locate,
    published=published,
    items=(
        Item("table3", _needs(METHODS, every_rate=True), table3),
        Item("figure1", _needs(METHODS, _EVERYWHERE, every_rate=True), _figure(1, "every method", _FIGURE1), draw1),
        Item("figure2", _needs(tuple(BETAS.values()), _EVERYWHERE), _figure(2, "by β", _FIGURE2), draw2),
        Item("figure3", _needs(tuple(BETAS.values()), ("cifar100", "digits")), _figure(3, "by β", _FIGURE3), draw3),
        Item("figure4", _needs(DEPTHS), _figure(4, "by memory depth K", _FIGURE4),
             _one(4, _FIGURE4, "epoch", "by memory depth K, σ = 1.1")),
        Item("figure5", _needs((*INSERTED, MOMENTUM), sigmas=(SIGMA, SIGMA / BETA)),
             _figure(5, "memory inside the query and after it; at σ/β what spends the same", _insertion, noise=True),
             _one(5, _insertion, "epsilon", "memory inside the query and after it, σ = 1.1 and, spending the same, σ/β")),
        Item("figure6", _needs((*INSERTED, MOMENTUM), sigmas=(SIGMA, SIGMA / BETA)),
             lambda _: [],  # its numbers are those of Figure 5
             _one(6, _insertion, "epoch", "memory inside the query and after it, σ = 1.1 and, spending the same, σ/β")),
        Item("table1", _TIMED, table1),
        Item("table2", _TIMED, table2),
        Item("figure7", _needs(CLIPPED, sigmas=(1.5, 2.0)),
             _figure(7, "by noise and clipping norm", _clipping, noise=True), draw7),
        Item("figure8", _needs(DESIGNS), _figure(8, "by memory design", _FIGURE8),
             _one(8, _FIGURE8, "epoch", "by memory design, σ = 1.1")),
        Item("alpha", _needs(ALPHAS), alpha, _one("alpha", _ALPHA, "epoch", "by fractional order α, σ = 1.1")),
        Item("fair", (Needs(FAIR),), lambda evidence: fair(evidence, FAIRLY), draw_fair),
        Item("tuning", (Needs(TUNING),), lambda evidence: tuning(evidence, FAIRLY)),
    ),
    headline=("table3", "fair"),
    compare=(FAIR, "method", SGD, ("accuracy",)),
    datasets=DATASETS,
    method=method,
)  # fmt: skip
