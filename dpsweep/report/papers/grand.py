"""The grand comparison: every mechanism with a proved epsilon, on the same models and data, at equal epsilon."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.report import stats
from dpsweep.report.guarantees import shortfall
from dpsweep.report.load import METRICS
from dpsweep.report.markup import Footnotes, Table
from dpsweep.report.paper import Evidence, Item, Needs, Paper, Place
from dpsweep.report.papers import dp_hero
from dpsweep.report.tables import cell_marks, cell_text

STAGE, NONE = "grand", "non-private"
ADAM = "DP-SGD, Adam"
ACCURACY, SECONDS = METRICS["accuracy"], METRICS["seconds_train_with_features"]
_NAMES = {"fractional": "FO-DP-SGD", "post_memory": "Post-FM", "dp_sat": "DP-SAT", "dp_adam_bc": "DP-AdamBC", "none": NONE}


def method(config: Mapping[str, Any]) -> str | None:
    """What the leaderboard calls a task's mechanism, and its optimizer where there are several."""
    name, optimizer = config["mechanism"]["name"], (config.get("optimizer") or {}).get("name", "")
    if name == "gaussian":
        return f"DP-SGD, {'SGD' if optimizer == 'sgd' else optimizer.capitalize()}"
    if name == "laplace_elm":
        return f"DP-ELM, L={config['model']['hidden']}"
    return dp_hero.method(config) or _NAMES.get(name)


def locate(config: Mapping[str, Any]) -> Place | None:
    """Where a task stands: the variant is the model."""
    name = method(config)
    if name is None or config.get("noise_multiplier") is not None:
        return None
    return Place(
        STAGE, config["dataset"]["name"], config["model"]["name"], name, config.get("epsilon"), config.get("repeat") or 1
    )


def _methods(evidence: Evidence) -> tuple[list[str], list[str]]:
    """The private methods: those whose epsilon is proved in every run so far, and those with none or a greater one in some."""
    private = [(place.model, run) for place, runs in evidence.cells.items() if place.epsilon is not None for run in runs]
    apart = {name for name, run in private if run.budget.claimed or shortfall(run) is not None}
    names = dict.fromkeys(name for name, _ in private)
    return [name for name in names if name not in apart], [name for name in names if name in apart]


def _ranks(evidence: Evidence, epsilon: float) -> tuple[dict[str, list[float]], int, int]:
    """Ranks of the proved methods (1 is best, ties share the mean) by data and model, where all of that model are whole; how many
    of these there are, and how many could be."""
    proved, _ = _methods(evidence)
    groups: dict[tuple[str, str], dict[str, float | None]] = defaultdict(dict)
    for place in evidence.cells:
        if place.epsilon == epsilon and place.model in proved:
            cell = evidence.sample(place, ACCURACY)
            groups[place.dataset, place.variant][place.model] = None if cell.n < cell.expected else cell.mean
    ranks: dict[str, list[float]] = defaultdict(list)
    compared = {key: means for key, means in groups.items() if ADAM in means}
    whole = [means for means in compared.values() if None not in means.values()]
    for means in whole:
        for name, mean in means.items():
            assert mean is not None
            better = sum(other > mean for other in means.values() if other is not None)
            ranks[name].append(1 + better + (sum(other == mean for other in means.values()) - 1) / 2)
    return ranks, len(whole), len(compared)


def leaderboard(evidence: Evidence) -> list[Table]:
    """One line a method: mean rank and mean accuracy at each budget, cost, and what its epsilon covers. What isn't proved is no
    part of the ranking and has a table of its own."""
    budgets = evidence.budgets(STAGE)
    ranked = {epsilon: _ranks(evidence, epsilon) for epsilon in budgets}
    proved, apart = _methods(evidence)
    lines = []
    for name in proved:
        ranks = [statistics.fmean(found) if (found := ranked[epsilon][0].get(name)) else None for epsilon in budgets]
        texts = [text for epsilon, rank in zip(budgets, ranks, strict=True)
                 for text in ("—" if rank is None else f"{rank:.2f}", _mean_accuracy(evidence, name, epsilon))]  # fmt: skip
        order = statistics.fmean(float("inf") if rank is None else rank for rank in ranks)
        lines.append((order, [name, *texts, _cost(evidence, name), _covers(evidence, name)]))
    rows = [row for _, row in sorted(lines, key=lambda line: line[0])]
    counted = "; ".join(f"ε={epsilon:g}: {ranked[epsilon][1]} of {ranked[epsilon][2]}" for epsilon in budgets)
    seeds = max((len(runs) for runs in evidence.cells.values()), default=0)
    least = stats.least_p(seeds)
    caption = (
        "Methods by mean rank of their mean accuracy among the methods of the same data and model (1 is best), over the pairs of "
        f"data and model where all are done ({counted}); mean accuracy (%) over all data and models of the method. A rank "
        f"describes these runs: with {seeds} seeds the least p of a paired exact test is {least:.3g}, before any correction. "
        f"Cost: mean training time over that of {ADAM}, same data, model and ε. DP-ELM has a model of its own and is not ranked."
    )
    header = ["Method", *(f"{part} ε={epsilon:g}" for epsilon in budgets for part in ("rank", "accuracy")), "cost", "ε covers"]
    short = ["Method", *(part for _ in budgets for part in ("rank", "accuracy")), "cost", "ε covers"]
    spans = [*((f"ε={epsilon:g}", 2) for epsilon in budgets), ("", 2)]
    tables = [Table("leaderboard", caption, header, rows, 1, spans, short)]
    if apart:
        rows = [[name, *(_mean_accuracy(evidence, name, epsilon) for epsilon in budgets), _cost(evidence, name),
                 _covers(evidence, name)] for name in apart]  # fmt: skip
        caption = (
            "Not ranked: some run of these methods has no proved ε, or a greater one than its target. Mean accuracy (%) at a "
            "target that isn't proved says nothing beside the table above."
        )
        header = ["Method", *(f"target ε={epsilon:g}, not proved" for epsilon in budgets), "cost", "ε covers"]
        tables.append(Table("leaderboard_not_proved", caption, header, rows, 1))
    return tables


def _mean_accuracy(evidence: Evidence, name: str, epsilon: float) -> str:
    """Over all data and models of the method; how many of them where some have no value yet."""
    cells = [evidence.sample(place, ACCURACY) for place in evidence.cells if (place.model, place.epsilon) == (name, epsilon)]
    means = [cell.mean for cell in cells if cell.n]
    if not means:
        return "—"
    return ACCURACY.show(statistics.fmean(means)) + ("" if len(means) == len(cells) else f" ({len(means)} of {len(cells)})")


def _cost(evidence: Evidence, name: str) -> str:
    """The median over data, models and budgets of the ratio of mean times; ~ where runs shared the machine."""
    ratios, shared = [], False
    for place, runs in evidence.cells.items():
        if place.model != name or place.epsilon is None:
            continue
        reference = evidence.cells.get(place._replace(model=ADAM), [])
        ours, theirs = ([r for run in group if (r := run.done) and SECONDS.of(r) is not None] for group in (runs, reference))
        if ours and theirs:
            shared |= any(not record["alone"] for record in (*ours, *theirs))
            ratios.append(_mean_seconds(ours) / _mean_seconds(theirs))
    return f"{statistics.median(ratios):.2f}{'~' if shared else ''}" if ratios else "—"


def _mean_seconds(records: Sequence[Mapping[str, Any]]) -> float:
    return statistics.fmean(SECONDS.of(record) or 0.0 for record in records)


def _covers(evidence: Evidence, name: str) -> str:
    done = [run.done for place, runs in evidence.cells.items() if place.model == name and place.epsilon is not None
            for run in runs if run.done]  # fmt: skip
    found = dict.fromkeys(
        "nothing proved" if r["epsilon"] is None else
        f"{r['protects']}, {str(r['adjacency']).replace('_', '/')}, " + (f"δ={r['delta']:g}" if r["delta"] else "pure")
        for r in done
    )  # fmt: skip
    return " or ".join(found) or "—"


def accuracy(evidence: Evidence) -> list[Table]:
    """Every cell: data, model and method by budget; what isn't proved in a table of its own."""
    proved, apart = _methods(evidence)
    caption = "Test accuracy (%), mean ± sample SD over seeds, under one schedule. 95% t-intervals stand under Intervals."
    tables = [_accuracy(evidence, "accuracy_by_method", caption, [*proved, NONE], "ε")]
    if apart:
        caption = "Methods of which some run has no proved ε, or a greater one than its target: test accuracy (%) at the target."
        tables.append(_accuracy(evidence, "accuracy_not_proved", caption, apart, "target ε"))
    return tables


def _accuracy(evidence: Evidence, name: str, caption: str, methods: Sequence[str], budget: str) -> Table:
    budgets, notes, rows = evidence.budgets(STAGE), Footnotes(), []
    usual = max((len(runs) for runs in evidence.cells.values()), default=0)
    columns = [*budgets, *([None] if NONE in methods else [])]
    models = list(dict.fromkeys((place.dataset, place.variant) for place in evidence.cells))
    for dataset, model in sorted(models, key=lambda pair: (evidence.datasets(STAGE).index(pair[0]), models.index(pair))):
        for method_name in methods:
            places = [Place(STAGE, dataset, model, method_name, epsilon) for epsilon in columns]
            if any(place in evidence.cells for place in places):
                cells = [evidence.sample(p, ACCURACY) if (p.epsilon is None) == (method_name == NONE) else None for p in places]
                texts = (cell_text(cell, ACCURACY, usual) + cell_marks(cell, notes) if cell else "" for cell in cells)
                rows.append([evidence.title(dataset), model, method_name, *texts])
    header = ["Dataset", "Model", "Method", *(NONE if epsilon is None else f"{budget}={epsilon:g}" for epsilon in columns)]
    return Table(name, caption, header, rows, 3, blocks=True, notes=notes.listed())


PAPER = Paper(
    name="grand",
    title="All mechanisms with a proved epsilon, at equal epsilon",
    metrics={"accuracy": ACCURACY},
    locate=locate,
    published=dict,
    items=(Item("leaderboard", (Needs(STAGE),), leaderboard), Item("accuracy", (Needs(STAGE),), accuracy)),
    headline=("leaderboard",),
    compare=(STAGE, "method", ADAM, ("accuracy",)),
    datasets={"mnist": "MNIST", "cardio": "Cardio", "heart": "Heart", "digits": "Digits"},
    method=method,
)
