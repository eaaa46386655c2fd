"""Ours, beside the FO-DP-SGD paper: every method at one proved epsilon, and the grid that its learning rate came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from dpsweep.report.fo_methods import FAIR, SIGMA, TUNING, parts
from dpsweep.report.load import METRICS
from dpsweep.report.markup import Footnotes, Table
from dpsweep.report.paper import Evidence, Place
from dpsweep.report.tables import cell_marks, cell_text


def places_of(evidence: Evidence, stage: str, models: Sequence[str], datasets: Iterable[str], sigma: float | None = SIGMA,
            clip: float = 1.0, rate: float | None = None, epsilon: float | None = None) -> list[Place]:  # fmt: skip
    """The places that have tasks, by dataset, method and learning rate (large first)."""
    found = []
    for dataset in datasets:
        for model in models:
            here = [p for p in evidence.cells if (p.stage, p.dataset, p.model, p.epsilon) == (stage, dataset, model, epsilon)]
            for place in sorted(here, key=lambda p: -parts(p).get("lr", 0)):
                told = parts(place)
                if (sigma is None or told.get("σ") == float(f"{sigma:.4g}")) and told.get("C", 1.0) == clip and (
                    rate is None or told.get("lr") == rate
                ):  # fmt: skip
                    found.append(place)
    return list(dict.fromkeys(place._replace(execution=1) for place in found))


def fair(evidence: Evidence, order: Sequence[str]) -> list[Table]:
    """Every method at one proved epsilon, each at its own tuned rate."""
    budgets, here = evidence.budgets(FAIR), [place for place in evidence.cells if place.stage == FAIR]
    metric, notes, rows = METRICS["accuracy"], Footnotes(), []
    usual = max((len(runs) for place, runs in evidence.cells.items() if place.stage == FAIR), default=0)
    for dataset in evidence.datasets(FAIR):
        for name in named(evidence, FAIR, order):
            cells = [evidence.sample(Place(FAIR, dataset, "", name, budget), metric) for budget in budgets]
            rates = [rates_of(evidence, Place(FAIR, dataset, "", name, budget)) for budget in budgets]
            texts = [part for cell, rate in zip(cells, rates, strict=True)
                     for part in (rate, cell_text(cell, metric, usual) + cell_marks(cell, notes))]  # fmt: skip
            rows.append([evidence.title(dataset), name, *texts])
    header = ["Dataset", "Method", *(f"{part} ε={budget:g}" for budget in budgets for part in ("lr", "accuracy"))]
    short = ["Dataset", "Method", *(part for _ in budgets for part in ("lr", "accuracy"))]
    caption = (
        f"Ours: test accuracy (%) of every method at the same proved ε, {epochs_of(evidence, here)}, each at the learning rate "
        "shown (where a record says how it was chosen, that stands under Privacy); mean ± sample SD over seeds. At one ε Post-FM "
        "over its own outputs is FO-DP-SGD, written otherwise. The paired exact tests against DP-SGD stand under Contrasts."
    )
    spans = [(f"ε={budget:g}", 2) for budget in budgets]
    return [Table("fair", caption, header, rows, 2, spans, short, len(evidence.datasets(FAIR)) > 1, notes.listed())]


def named(evidence: Evidence, stage: str, order: Sequence[str]) -> list[str]:
    present = dict.fromkeys(place.model for place in evidence.cells if place.stage == stage)
    return [*(name for name in order if name in present), *(name for name in present if name not in order)]


def rates_of(evidence: Evidence, place: Place) -> str:
    configs = [run.config or {} for run in evidence.cells.get(place, [])]
    found = dict.fromkeys((config.get("optimizer") or config["mechanism"]).get("lr") for config in configs)
    return " / ".join(f"{rate:g}" for rate in found if rate is not None) or "—"


def epochs_of(evidence: Evidence, places: Iterable[Place]) -> str:
    """How long the tasks of these places train, in words: steps times sample rate, which is a public number of epochs."""
    configs = (run.config or {} for place in places for run in evidence.cells.get(place, []))
    found = sorted({round(float(config["steps"] * Fraction(config["sample_rate"]))) for config in configs if config.get("steps")})
    return f"{' or '.join(map(str, found)) or 'no'} epoch{'' if found == [1] else 's'}"


def tuning(evidence: Evidence, order: Sequence[str]) -> list[Table]:
    """The whole grid of learning rates: every number that a chosen rate was chosen by."""
    found = []
    for budget in [None, *evidence.budgets(TUNING)]:
        for dataset in evidence.datasets(TUNING):
            name = "tuning_paper" if budget is None else f"tuning_eps{budget:g}"
            name += "" if dataset == "cifar10" else f"_{dataset}"
            if table := _grid(evidence, order, name, dataset, budget):
                found.append(table)
    return found


def _grid(evidence: Evidence, order: Sequence[str], name: str, dataset: str, budget: float | None) -> Table | None:
    metric, rows = METRICS["accuracy"], []
    methods = named(evidence, TUNING, order)
    places = {m: places_of(evidence, TUNING, [m], [dataset], None, epsilon=budget) for m in methods}
    rates = sorted({parts(place)["lr"] for found in places.values() for place in found}, reverse=True)
    for m, here in places.items():
        cells = {parts(place)["lr"]: evidence.sample(place, metric) for place in here}
        means = {rate: cell.mean for rate, cell in cells.items() if cell.n == cell.expected}
        chosen = max(means, key=lambda rate: means[rate], default=None) if len(means) == len(cells) else None
        if cells:
            row = ["" if rate not in cells else metric.show(cells[rate].mean) if cells[rate].n else "—" for rate in rates]
            edge = " (edge)" if chosen in (max(cells), min(cells)) else ""
            rows.append([m, *row, "—" if chosen is None else f"{chosen:g}{edge}"])
    if not rows:
        return None
    long = epochs_of(evidence, (place for found in places.values() for place in found))
    at = f"at ε = {budget:g}, {long}" if budget is not None else f"at the paper's noise, σ = 1.1, {long}"
    caption = (
        f"The whole grid of learning rates {at}: mean accuracy (%) on the tuning part of the {evidence.title(dataset)} training "
        "set over seeds of its own; best: of a whole row; edge: a rate outside the grid may be better. Each ε is one run's; what "
        "the grid itself released is counted under Privacy."
    )
    return Table(name, caption, ["Method", *(f"lr {rate:g}" for rate in rates), "Best"], rows, 1)
