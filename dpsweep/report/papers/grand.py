"""The grand comparison: every mechanism with a proved epsilon, on the same models and data, at equal epsilon."""

from __future__ import annotations

import math
import operator
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Field:
    """Methods that run on the same pairs of data and model, and so compare like with like there.

    Attributes:
        methods: all proved methods of these pairs, DP-SGD with Adam among them.
        pairs: at each budget, a place without method and budget for each.
        seeds: at each budget, of every pair that is ranked, the seeds (one at least) with which all of the methods are done.
    """

    methods: tuple[str, ...]
    pairs: dict[float, list[Place]]
    seeds: dict[float, dict[Place, list[int]]]

    def values(self, evidence: Evidence, name: str, epsilon: float) -> dict[Place, dict[int, float]] | None:
        """A method's accuracies, or those without privacy, on the ranked pairs by seed; None unless it has some on each."""
        target = None if name == NONE else epsilon
        found = {}
        for pair, seeds in self.seeds[epsilon].items():
            own = evidence.sample(pair._replace(model=name, epsilon=target), ACCURACY).values
            found[pair] = {seed: own[seed] for seed in seeds if seed in own}
        return found if found and all(found.values()) else None

    def ranks(self, evidence: Evidence, epsilon: float) -> dict[str, float]:
        """Mean ranks of mean accuracies over the ranked pairs; 1 is best, ties share the mean."""
        ranks: dict[str, list[float]] = defaultdict(list)
        cells = {name: self.values(evidence, name, epsilon) or {} for name in self.methods}
        for pair in self.seeds[epsilon]:
            means = {name: statistics.fmean(cells[name][pair].values()) for name in self.methods}
            for name, mean in means.items():
                better, same = (sum(test(other, mean) for other in means.values()) for test in (operator.gt, operator.eq))
                ranks[name].append(1 + better + (same - 1) / 2)
        return {name: statistics.fmean(found) for name, found in ranks.items()}


def _methods(evidence: Evidence) -> tuple[list[str], list[str]]:
    """The private methods: those whose epsilon is proved in every run so far, and those with none or a greater one in some."""
    private = [(place.model, run) for place, runs in evidence.cells.items() if place.epsilon is not None for run in runs]
    apart = {name for name, run in private if run.budget.claimed or shortfall(run) is not None}
    names = dict.fromkeys(name for name, _ in private)
    return [name for name in names if name not in apart], [name for name in names if name in apart]


def _pair(place: Place) -> Place:
    return place._replace(model="", epsilon=None)


def _fields(evidence: Evidence) -> list[_Field]:
    """The fields of the proved methods, the one of most methods first; pairs without DP-SGD with Adam are in none."""
    proved, budgets = _methods(evidence)[0], evidence.budgets(STAGE)
    running: dict[tuple[Place, float], set[str]] = defaultdict(set)
    for place in evidence.cells:
        if place.epsilon is not None and place.model in proved:
            running[_pair(place), place.epsilon].add(place.model)
    fields: dict[frozenset[str], _Field] = {}
    for (pair, epsilon), names in running.items():
        if ADAM not in names:
            continue
        methods = tuple(name for name in proved if name in names)
        field = fields.setdefault(frozenset(names), _Field(methods, {e: [] for e in budgets}, {e: {} for e in budgets}))
        field.pairs[epsilon].append(pair)
        done = [evidence.sample(pair._replace(model=name, epsilon=epsilon), ACCURACY).values for name in methods]
        if common := sorted(set(done[0]).intersection(*done[1:])):
            field.seeds[epsilon][pair] = common
    return sorted(fields.values(), key=lambda field: -len(field.methods))


def leaderboard(evidence: Evidence) -> list[Table]:
    """One line a method: at each budget mean rank, mean accuracy and the gain over DP-SGD; cost, and what its epsilon covers.
    Each field of methods has a table, and so has what isn't proved, or runs beside nothing: it is no part of the ranking."""
    budgets, (proved, apart) = evidence.budgets(STAGE), _methods(evidence)
    fields = _fields(evidence)
    ranked = list(dict.fromkeys(name for field in fields for name in field.methods))
    tables = [_leaders(evidence, field, number, fields[0], _rates(evidence, ranked)) for number, field in enumerate(fields, 1)]
    own = [name for name in proved if name not in ranked]
    for names, table, header, caption in (
        (own, "leaderboard_own_model", "ε={:g}",
         "Neither ranked nor tested, since no DP-SGD with Adam of the same data and model stands beside them. Mean accuracy (%) "
         "over all data. Their cells stand in accuracy_by_method, their intervals under Results."),
        (apart, "leaderboard_not_proved", "target ε={:g}, not proved",
         "Not ranked: some run of these methods has no proved ε, or a greater one than its target. Mean accuracy (%) at a target "
         "that isn't proved says nothing beside the tables above."),
    ):  # fmt: skip
        if names:
            rows = [[name, *(_mean_accuracy(evidence, name, epsilon) for epsilon in budgets), _cost(evidence, name, None),
                     _covers(evidence, name)] for name in names]  # fmt: skip
            tables.append(Table(table, caption, ["Method", *map(header.format, budgets), "cost", "ε covers"], rows, 1))
    return tables


def _leaders(evidence: Evidence, field: _Field, number: int, first: _Field, rates: str) -> Table:
    """The leaderboard of one field, and no privacy as a reference below it; the first one's caption says how to read all."""
    budgets = list(field.pairs)
    ranks = {epsilon: field.ranks(evidence, epsilon) for epsilon in budgets}
    pairs = {pair for found in field.pairs.values() for pair in found}
    lines = []
    for name in field.methods:
        texts = []
        for epsilon in budgets:
            rank = ranks[epsilon].get(name)
            texts += ["—" if rank is None else f"{rank:.2f}", *_means(evidence, field, name, epsilon)]
        order = statistics.fmean(ranks[epsilon].get(name, math.inf) for epsilon in budgets)
        lines.append((order, [name, *texts, _cost(evidence, name, pairs), _covers(evidence, name)]))
    rows = [row for _, row in sorted(lines, key=lambda line: line[0])]
    if any(_pair(place) in pairs for place in evidence.cells if place.epsilon is None):
        texts = [text for epsilon in budgets for text in ("—", *_means(evidence, field, NONE, epsilon))]
        rows.append([NONE, *texts, "—", "nothing"])
    seeds = max((len(runs) for runs in evidence.cells.values()), default=0)
    counts = "; ".join(_counted(field, epsilon) for epsilon in budgets)
    caption = (
        "Ranks (1 is best) of mean accuracy (%) within each pair of data and model, averaged over the pairs where all methods of "
        f"this table have a seed in common, with these seeds ({counts}); means and differences are of exactly these runs. Minus "
        f"{ADAM}: the mean paired difference in points, with the 95% t-interval over seeds (of each seed's mean over the pairs, "
        f"which are given and no sample; n/a where they differ in seeds, or have one). {NONE.capitalize()} is a reference "
        f"without rank. A rank describes these runs: with {seeds} seeds the least p of a paired exact test is "
        f"{stats.least_p(seeds):.3g}, before any correction. {rates} "
        f"Cost: median ratio of mean training times to {ADAM}, same data, model and ε."
    )
    if number > 1:
        lacking = " and ".join(name for name in first.methods if name not in field.methods) or "some of the methods here"
        caption = f"As in leaderboard, over the pairs of data and model that {lacking} do not run on ({counts})."
    parts = ("rank", "accuracy", f"minus {ADAM}")
    header = ["Method", *(f"{part} ε={epsilon:g}" for epsilon in budgets for part in parts), "cost", "ε covers"]
    short = ["Method", *(part for _ in budgets for part in parts), "cost", "ε covers"]
    name = f"leaderboard_{number}" if number > 1 else "leaderboard"
    return Table(name, caption, header, rows, 1, [*((f"ε={epsilon:g}", len(parts)) for epsilon in budgets), ("", 2)], short)


def _counted(field: _Field, epsilon: float) -> str:
    """How many pairs are ranked at a budget, and by how many seeds."""
    numbers = sorted({len(seeds) for seeds in field.seeds[epsilon].values()})
    told = f"ε={epsilon:g}: {len(field.seeds[epsilon])} of {len(field.pairs[epsilon])} pairs"
    return told + (f", {'–'.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))} seeds" if numbers else "")


def _means(evidence: Evidence, field: _Field, name: str, epsilon: float) -> tuple[str, str]:
    """The mean accuracy over the ranked pairs, and the mean paired difference to the reference with its interval."""
    ours, theirs = (field.values(evidence, which, epsilon) for which in (name, ADAM))
    if ours is None or theirs is None:
        return "—", "—"
    mean = ACCURACY.show(statistics.fmean(statistics.fmean(values.values()) for values in ours.values()))
    if name == ADAM:
        return mean, "—"
    gains = {pair: {seed: value - theirs[pair][seed] for seed, value in values.items()} for pair, values in ours.items()}
    text = ACCURACY.show(statistics.fmean(statistics.fmean(gain.values()) for gain in gains.values()), "+")
    seeds = sorted(set.intersection(*map(set, gains.values())))
    by_seed = [statistics.fmean(gain[seed] for gain in gains.values()) for seed in seeds]
    whole = all(len(gain) == len(seeds) for gain in gains.values())  # else the interval is of other runs than the mean
    interval = stats.t_interval(by_seed) if whole else None
    if interval is None:
        return mean, f"{text} (n/a)"
    return mean, f"{text} ({' to '.join(ACCURACY.show(x, '+') for x in ACCURACY.clip(interval, differences=True))})"


def _rates(evidence: Evidence, methods: Sequence[str]) -> str:
    """The methods' learning rates by their records, and whether they were tuned: a rank is of a method at its rate."""
    rates: dict[str, set[float]] = defaultdict(set)
    tuned = False
    for place, runs in evidence.cells.items():
        if place.model in methods and place.epsilon is not None:
            for run in runs:
                rates[place.model] |= {run.keys[key] for key in ("optimizer.lr", "mechanism.lr") if key in run.keys}
                tuned |= bool(run.done and run.done.get("selection"))
    texts = {name: " or ".join(f"{rate:g}" for rate in sorted(rates[name])) or "none" for name in methods}
    usual, _ = Counter(texts.values()).most_common(1)[0]
    others = [f"{name} {text}" for name, text in texts.items() if text != usual]
    told = "; ".join([*others, f"{'all others' if others else 'all'} {usual}"])
    how = "some were chosen from a grid (see Privacy)" if tuned else "none was tuned"
    return f"Learning rates: {told}; {how}, so that a rank is a method's at its rate, not the method's best."


def _mean_accuracy(evidence: Evidence, name: str, epsilon: float) -> str:
    """Over all data and models of the method; how many of them where some have no value yet."""
    cells = [evidence.sample(place, ACCURACY) for place in evidence.cells if (place.model, place.epsilon) == (name, epsilon)]
    means = [cell.mean for cell in cells if cell.n]
    if not means:
        return "—"
    return ACCURACY.show(statistics.fmean(means)) + ("" if len(means) == len(cells) else f" ({len(means)} of {len(cells)})")


def _cost(evidence: Evidence, name: str, pairs: set[Place] | None) -> str:
    """The median over pairs (all, or some) and budgets of the ratio of mean times; ~ where runs shared the machine."""
    ratios, shared = [], False
    for place, runs in evidence.cells.items():
        if place.model != name or place.epsilon is None or not (pairs is None or _pair(place) in pairs):
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
        f"{r['protects']}, {_told(r['adjacency'])}, " + (f"δ={r['delta']:g}" if r["delta"] else "pure")
        for r in done
    )  # fmt: skip
    return " or ".join(found) or "—"


def _told(adjacency: str) -> str:
    for name, words in (("add_remove", "add/remove"), ("replace_one", "replace one"), ("replace_features", "replace features")):
        adjacency = adjacency.replace(name, words)
    return adjacency


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
    pairs = list(dict.fromkeys(map(_pair, evidence.cells)))
    for pair in sorted(pairs, key=lambda pair: (evidence.datasets(STAGE).index(pair.dataset), pairs.index(pair))):
        model = pair.variant + (f", repeat {pair.execution}" if pair.execution > 1 else "")
        for method_name in methods:
            places = [pair._replace(model=method_name, epsilon=epsilon) for epsilon in columns]
            if any(place in evidence.cells for place in places):
                cells = [evidence.sample(p, ACCURACY) if (p.epsilon is None) == (method_name == NONE) else None for p in places]
                texts = (cell_text(cell, ACCURACY, usual) + cell_marks(cell, notes) if cell else "" for cell in cells)
                rows.append([evidence.title(pair.dataset), model, method_name, *texts])
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
    printed=False,
    apart={
        "dp_elm": "DP-ELM has a model of its own, so that nothing can be paired with it: it is neither ranked nor tested. "
        "Its means stand in leaderboard_own_model and accuracy_by_method, its intervals under Results."
    },
)
