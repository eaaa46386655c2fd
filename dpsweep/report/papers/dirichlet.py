"""End-to-End Differential Privacy in Training Deep Neural Network Classifiers (the Dirichlet mechanism): Tables 1 to 5, 7,
Figure 2, what it costs, and the comparators that say what its samples do.

The text at hand prints few of its tables' numbers; those that it states are set beside the measured ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.report import beside, stats
from dpsweep.report.beside import Line
from dpsweep.report.load import METRICS
from dpsweep.report.markup import Footnotes, Table
from dpsweep.report.paper import Evidence, Item, Needs, Paper, Place, Published, published_rows
from dpsweep.report.tables import cell_marks, cell_text

if TYPE_CHECKING:
    from dpsweep.report.figures import Picture

DATASETS = {
    "cifar10": "CIFAR-10", "mnist": "MNIST", "dermamnist": "DermaMNIST", "fashionmnist": "FashionMNIST", "svhn": "SVHN",
}  # fmt: skip
TABLES = {f"dirichlet_{name}": f"table{number}" for number, name in enumerate(DATASETS, 1)}
CPU, SMOKE = "dirichlet_cpu", "dirichlet_smoke"
ALPHA_LR, SAMPLING, OPTIMIZERS = "dirichlet_alpha_lr", "dirichlet_sampling", "dirichlet_optimizers"
COMPARISONS = (*TABLES, CPU, SMOKE)
STAGES = (*COMPARISONS, ALPHA_LR, SAMPLING, OPTIMIZERS)

DIRICHLET, MEAN, PLAIN, DPSGD, NONE = "Dirichlet", "Dirichlet mean", "CE at γκ", "DP-SGD", "Non-private"
METHODS = (DIRICHLET, MEAN, PLAIN, DPSGD)
TITLES = {  # what an ε means under each
    DIRICHLET: "Dirichlet (ε claimed)", MEAN: "its mean (ε sets r)", PLAIN: "CE at γκ(0.9) (ε sets r)",
    DPSGD: "DP-SGD (ε proved)",
}  # fmt: skip
OTHERS = {"Monir-Ghinita": "Monir and Ghinita", "DP-SGD WRN-40-4 (De et al.)": "DP-SGD, WRN-40-4"}
ACCURACY = METRICS["accuracy"]
SECONDS = METRICS["seconds_train"]


def locate(config: Mapping[str, Any]) -> Place | None:
    """Where a task stands in the paper, by its canonical configuration; None where it is no part of it."""
    told = re.fullmatch(r"(\w+?)(?:_ce_eps(\d+))?", config.get("run") or "")
    if told is None or told[1] not in STAGES:
        return None
    stage, mechanism, lr = told[1], config["mechanism"], config["optimizer"]["lr"]
    epsilon = config.get("epsilon")
    match mechanism["name"]:
        case "dirichlet":
            method = DIRICHLET
        case "dirichlet_mean":
            method, epsilon = MEAN, mechanism["r_epsilon"]
        case "gaussian":
            method = DPSGD if lr == 0.1 or stage in TABLES else f"{DPSGD}, lr {lr:g}"
        case "none":
            method, epsilon = (PLAIN, float(told[2])) if told[2] else (NONE, None)
        case _:
            return None
    variant = {
        ALPHA_LR: f"α={mechanism.get('alpha', 3.0):g}, γ={lr:g}",
        SAMPLING: f"q={config.get('sample_rate')}",
        OPTIMIZERS: config["optimizer"]["name"],
    }.get(stage, "")
    return Place(stage, config["dataset"]["name"], variant, method, epsilon, config.get("repeat") or 1)


def published() -> dict[tuple[Place, str], Published]:
    """Accuracies that the text states."""
    return {
        (_place(row), "accuracy_pct"): Published(row["test_accuracy_pct"], where="text")
        for row in published_rows("dirichlet.csv")
        if row["test_accuracy_pct"]
    }


def _place(row: Mapping[str, str]) -> Place:
    method = OTHERS.get(row["method"], row["method"])
    return Place(f"dirichlet_{row['dataset']}", row["dataset"], "", method, float(row["epsilon"]))


def _methods(evidence: Evidence, stage: str) -> list[str]:
    """The methods of a stage that have an ε: the usual ones, then what else there is."""
    found = {place.model for place in evidence.cells if place.stage == stage and place.epsilon is not None}
    printed = {place.model for place, _ in evidence.published if place.stage == stage}
    return [*(m for m in METHODS if m in found | printed), *sorted(found - set(METHODS)), *sorted(printed - found - set(METHODS))]


def comparison(evidence: Evidence, stage: str, name: str) -> list[Table]:
    """Test accuracy by ε and method: published beside measured where the text states some number, else measured alone."""
    methods = [*_methods(evidence, stage), NONE]
    rows = [(d, e) for d in evidence.datasets(stage) for e in (*evidence.budgets(stage), None)]
    cells = {
        (d, e): [Place(stage, d, "", method, e) if (method == NONE) == (e is None) else None for method in methods]
        for d, e in rows
    }
    labels = {(d, e): (evidence.title(d), "none" if e is None else f"{e:g}") for d, e in rows}
    borrowed = {DIRICHLET: "Dirichlet (ε of r; claim: table 7)"} if stage in (CPU, SMOKE) else {}  # r of the paper's schedule
    titles = [(TITLES | borrowed).get(method, method) for method in methods]
    caption = (
        f"{name.replace('_', ' ').capitalize()}. Test accuracy (%), mean ± sample SD over seeds. Columns are not equally "
        "private: DP-SGD's ε is proved for adding or removing a record; the Dirichlet mechanism's is merely claimed, for "
        "features; the others have none."
    )
    if any(place.stage == stage for place, _ in evidence.published):
        lines = [Line(labels[row], tuple(p and (p, "accuracy_pct") for p in cells[row])) for row in rows]
        return [beside.table(evidence, name, caption, ["Dataset", "ε"], titles, lines)]
    notes = Footnotes()
    samples = {row: [p and evidence.sample(p, ACCURACY) for p in cells[row]] for row in rows}
    usual = max((found.expected for line in samples.values() for found in line if found), default=0)
    texts = [
        [*labels[row], *(cell_text(f, ACCURACY, usual) + cell_marks(f, notes) if f else "" for f in samples[row])] for row in rows
    ]
    return [Table(name, caption, ["Dataset", "ε", *titles], texts, 2, notes=notes.listed())]


def variance(evidence: Evidence) -> list[Table]:
    """What the samples cost: Dirichlet minus its expected loss, minus the cross-entropy at its effective learning rate."""
    rows = []
    for stage in COMPARISONS:
        for d in evidence.datasets(stage):
            for e in evidence.budgets(stage):
                ours = evidence.sample(Place(stage, d, "", DIRICHLET, e), ACCURACY)
                row = [stage, evidence.title(d), f"{e:g}", str(ours.n)]
                for other in (MEAN, PLAIN, DPSGD):
                    theirs = evidence.sample(Place(stage, d, "", other, e), ACCURACY)
                    if not (ours.n and theirs.n):
                        row.append("—")
                        continue
                    text = ACCURACY.show(ours.mean - theirs.mean, "+")
                    interval = None
                    if ours.sd is not None and theirs.sd is not None:
                        interval = stats.welch_interval((ours.mean, ours.sd, ours.n), (theirs.mean, theirs.sd, theirs.n))
                    interval = interval and ACCURACY.clip(interval, differences=True)
                    row.append(f"{text} ({' to '.join(ACCURACY.show(x, '+') for x in interval)})" if interval else text)
                rows.append(row)
    caption = (
        "Accuracy of the Dirichlet mechanism minus that of its expected loss, of the cross-entropy at its effective learning "
        "rate, and of DP-SGD at an equal ε (which is proved there, and claimed here), in points, with the 95% Welch interval "
        "over seeds."
    )
    header = ["Stage", "Dataset", "ε", "Seeds", f"minus {MEAN}", f"minus {PLAIN}", f"minus {DPSGD}"]
    return [Table("variance", caption, header, [row for row in rows if set(row[4:]) != {"—"}], 4)]


def statements(evidence: Evidence) -> list[Table]:
    """What the text says without a table: relative error reductions, and the gap to the non-private baseline."""
    rows = []
    for row in published_rows("dirichlet.csv"):
        if row["test_accuracy_pct"]:
            continue
        place = _place(row)
        ours = evidence.sample(place, ACCURACY)
        non_private = "non-private" in row["how"]
        other = evidence.sample(
            place._replace(model=NONE, epsilon=None) if non_private else place._replace(model=DPSGD), ACCURACY
        )
        text = "—"
        if ours.n and other.n:
            gap = other.mean - ours.mean
            text = f"{ACCURACY.show(gap)} points under" if non_private else f"{-100 * gap / (1 - other.mean):.2f}% lower error"
        rows.append([evidence.title(row["dataset"]), row["epsilon"], row["how"], text])
    caption = "Relations that the text states, and the same of the measured means."
    return [Table("statements", caption, ["Dataset", "ε", "Stated", "Measured"], rows, 3)]


def table7(evidence: Evidence) -> list[Table]:
    """r* and the effective scale of every Dirichlet run."""
    rows: dict[tuple[str, ...], None] = {}
    for place, runs in sorted(evidence.cells.items(), key=lambda item: (item[0].stage, item[0].dataset, item[0].epsilon or 0)):
        for run in runs:
            if place.model == DIRICHLET and run.done:
                r = run.done
                told = (f"{r['alpha']:g}", f"{r['r']:.5f}", f"{r['r'] / r['alpha']:.4f}", f"{r['kappa']:.5f}")
                claim = "—" if r["epsilon_claimed"] is None else f"{r['epsilon_claimed']:.4g}"
                schedule = (str(r["sample_rate"]), str(r["steps"]))
                rows[place.stage, evidence.title(place.dataset), f"{place.epsilon:g}", *schedule, *told, claim] = None
    caption = (
        "As Tables 6 and 7: the Dirichlet mechanism's r, κ(0.9) = 0.9 r ψ′(α + 0.9 r), and the ε that its analysis claims at "
        "the run's own q and T (less than the ε of r where a schedule was shortened). No ε is proved."
    )
    header = ["Stage", "Dataset", "ε of r", "q", "T", "α", "r", "r/α", "κ", "Claimed ε"]
    return [Table("table7", caption, header, list(rows), 3)]


def cost(evidence: Evidence) -> list[Table]:
    """Milliseconds a step, and as a multiple of plain training."""
    rows, notes = [], Footnotes()
    for stage in COMPARISONS:
        for d in evidence.datasets(stage):
            cells = {}
            for method in (NONE, MEAN, DIRICHLET, DPSGD):
                places = [p for p in evidence.cells if (p.stage, p.dataset, p.model) == (stage, d, method)]
                samples = [evidence.sample(place, SECONDS) for place in places]
                steps = {run.done["steps"] for place in places for run in evidence.cells[place] if run.done}
                values = [value for found in samples for value in found.values.values()]
                marks = "".join(dict.fromkeys(cell_marks(found, notes) for found in samples))
                cells[method] = (1000 * sum(values) / len(values) / steps.pop() if values and len(steps) == 1 else None, marks)
            base = cells[NONE][0]
            texts = []
            for value, marks in cells.values():
                ratio = f" ({value / base:.2f} x)" if value is not None and base else ""
                texts.append(("—" if value is None else f"{value:.3g}{ratio}") + marks)
            rows.append([stage, evidence.title(d), *texts])
    caption = (
        "Training time of a step in milliseconds, and in brackets as a multiple of plain training (runs alone only). The paper, "
        "on another machine: some 150 ms for the Dirichlet mechanism and 300 for DP-SGD, ResNet-18, CIFAR-10, batch 250."
    )
    header = ["Stage", "Dataset", "Plain", "Dirichlet mean", "Dirichlet", "DP-SGD"]
    return [Table("cost", caption, header, rows, 2, notes=notes.listed())]


def variants(evidence: Evidence, stage: str, name: str, what: str) -> list[Table]:
    """Accuracy of an ablation's variants by ε."""
    places = dict.fromkeys(p.variant for p in evidence.cells if p.stage == stage)
    budgets, notes = evidence.budgets(stage), Footnotes()
    rows = []
    for variant in places:
        cells = [evidence.sample(Place(stage, "cifar10", variant, DIRICHLET, e), ACCURACY) for e in budgets]
        usual = max(cell.expected for cell in cells)
        rows.append([variant, *(cell_text(cell, ACCURACY, usual) + cell_marks(cell, notes) for cell in cells)])
    caption = f"{what}: test accuracy (%) on CIFAR-10 by claimed ε, mean ± sample SD over seeds."
    return [Table(name, caption, [name.capitalize(), *(f"claimed ε={e:g}" for e in budgets)], rows, 1, notes=notes.listed())]


Point = tuple[str, str, str, float, float, float | None]  # stage, dataset, series, γ, γκ, accuracy


def _points(evidence: Evidence) -> list[Point]:
    found = []
    for place, runs in evidence.cells.items():
        done = [run.done for run in runs if run.done]
        cell = evidence.sample(place, ACCURACY)
        if not (done and cell.n) or place.model not in (DIRICHLET, MEAN, PLAIN) or place.stage in (SAMPLING, OPTIMIZERS):
            continue
        lr, kappa = done[0]["config"]["optimizer"]["lr"], done[0].get("kappa") or 1.0
        of = f"α={done[0]['alpha']:g}" if place.stage == ALPHA_LR else f"{place.model}, ε={place.epsilon:g}"
        found.append((place.stage, place.dataset, of, lr, lr * kappa, cell.mean * ACCURACY.scale))
    return sorted(found)


def figure2(evidence: Evidence) -> list[Table]:
    rows = [[stage, evidence.title(d), series, f"{lr:g}", f"{effective:.4g}", f"{accuracy:.2f}"]
            for stage, d, series, lr, effective, accuracy in _points(evidence)]  # fmt: skip
    caption = (
        "Figure 2 in numbers: mean test accuracy (%) by learning rate γ and effective learning rate γκ(0.9); that of the "
        "cross-entropy is its learning rate. ε is claimed (Dirichlet) or sets r; none is proved."
    )
    return [Table("figure2", caption, ["Stage", "Dataset", "Series", "γ", "γκ(0.9)", "Accuracy"], rows, 3)]


def draw2(evidence: Evidence, folder: Path) -> Sequence[Picture]:
    from dpsweep.report.paper_figures import against_rates

    points = _points(evidence)
    pictures: list[Picture] = []
    for stage, dataset in dict.fromkeys(point[:2] for point in points):
        series: dict[str, list[tuple[float, float, float]]] = {}
        for point in points:
            if point[:2] == (stage, dataset):
                series.setdefault(point[2], []).append(point[3:])  # type: ignore[arg-type]
        caption = (
            f"Figure 2 ({stage}, {evidence.title(dataset)}). Mean test accuracy against the learning rate γ and the effective "
            "one, γκ at a true-class probability of 0.9. No ε is proved for any of these models."
        )
        pictures.append(against_rates(folder, f"figure2_{stage}_{dataset}", series, caption))
    return pictures


_ALL = tuple(Needs(stage) for stage in COMPARISONS)

PAPER = Paper(
    name="dirichlet",
    title="End-to-End Differential Privacy in Training Deep Neural Network Classifiers",
    metrics={"accuracy_pct": ACCURACY},
    locate=locate,
    published=published,
    items=(
        *(Item(name, (Needs(stage),), partial(comparison, stage=stage, name=name)) for stage, name in TABLES.items()),
        *(Item(stage, (Needs(stage),), partial(comparison, stage=stage, name=stage)) for stage in (CPU, SMOKE)),
        Item("variance", _ALL, variance),
        Item("figure2", (Needs(ALPHA_LR), *_ALL), figure2, draw2),
        Item("sampling", (Needs(SAMPLING),), partial(variants, stage=SAMPLING, name="sampling", what="Sampling rates")),
        Item("optimizers", (Needs(OPTIMIZERS),), partial(variants, stage=OPTIMIZERS, name="optimizers", what="Optimizers")),
        Item("table7", tuple(Needs(stage) for stage in STAGES), table7),
        Item("cost", _ALL, cost),
        Item("statements", tuple(Needs(stage) for stage in TABLES), statements),
    ),
    headline=(*TABLES.values(), CPU, SMOKE, "variance"),
    compare=None,
    datasets=DATASETS,
)
