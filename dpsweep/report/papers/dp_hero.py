"""DP-Hero: accuracy by method beside what each epsilon is worth, convergence under small and large noise, and its claims.

The text at hand has no experiment section; what its introduction claims stands beside the measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.report import stats
from dpsweep.report.guarantees import spent
from dpsweep.report.load import METRICS, SECONDS, Metric, Run
from dpsweep.report.markup import Footnotes, Table
from dpsweep.report.paper import Evidence, Item, Needs, Paper, Place, published_rows
from dpsweep.report.tables import cell_marks, cell_text

if TYPE_CHECKING:
    from dpsweep.report.figures import Picture

DATASETS = {"mnist": "MNIST", "fashionmnist": "FashionMNIST", "cifar10": "CIFAR-10"}
BUDGET, NOISE = "hero", "hero_convergence"  # stages: at a budget, and at a given noise multiplier
SGD, CLAIMED = "DP-SGD", "Hero, claimed:"
REFRESH = 10  # of every suite here: a name tells another
ACCURACY = METRICS["accuracy"]
LOSS = Metric("curves.loss.-1", "Final test loss", "", 1.0, 3, SECONDS)


def method(config: Mapping[str, Any]) -> str | None:
    """What tables call a task's mechanism; None for one that is no part of the paper."""
    mechanism = config["mechanism"]
    if mechanism["name"] == "gaussian":
        return SGD
    if mechanism["name"] not in ("hero", "hero_claimed"):
        return None
    told = [mechanism["direction"], *(["mahalanobis"] if mechanism["clip"] == "mahalanobis" else []), mechanism["normalise"]]
    for key, usual, sign in (("ridge", 1.0, "ridge"), ("s_floor", 0.0, "floor"), ("refresh", REFRESH, "refresh")):
        if mechanism[key] != usual:
            told.append(f"{sign} {mechanism[key]:g}")
    return " ".join(["Hero" if mechanism["name"] == "hero" else CLAIMED, *told])


def locate(config: Mapping[str, Any]) -> Place | None:
    """Where a task stands, by its canonical configuration: the variant is model and optimizer, and the noise where it's given."""
    name, epsilon, sigma = method(config), config.get("epsilon"), config.get("noise_multiplier")
    if name is None or (epsilon is None) == (sigma is None):
        return None
    parts = [config["model"]["name"], (config.get("optimizer") or {}).get("name", "")]
    stage = BUDGET if sigma is None else NOISE
    variant = ", ".join([*parts, *([] if sigma is None else [f"σ={sigma:g}"])])
    return Place(stage, config["dataset"]["name"], variant, name, epsilon, config.get("repeat") or 1)


def _places(evidence: Evidence, stage: str) -> list[Place]:
    """By dataset, model, budget or noise; DP-SGD first, and what has no proved ε last."""
    order = {dataset: index for index, dataset in enumerate(evidence.datasets(stage))}
    found = [place for place in evidence.cells if place.stage == stage]
    methods = {name: index for index, name in enumerate(dict.fromkeys(place.model for place in found))}

    def key(place: Place) -> tuple[Any, ...]:
        claimed = place.model.startswith(CLAIMED)
        head, _, sigma = place.variant.partition(", σ=")
        return order[place.dataset], head, place.epsilon or float(sigma), claimed, place.model != SGD, methods[place.model]

    return sorted(found, key=key)


def _spent(runs: Sequence[Run], *fields: str) -> list[str]:
    done = [run.done for run in runs if run.done]
    return [spent(done, field) for field in fields]


def _least(runs: Sequence[Run]) -> str:
    """The least s_min of the runs, and their mean."""
    done = [run.done for run in runs if run.done and run.done.get("s_min_least") is not None]
    if not done:
        return "—"
    return f"{min(r['s_min_least'] for r in done):.3g} / {sum(r['s_min_mean'] for r in done) / len(done):.3g}"


def accuracy(evidence: Evidence) -> list[Table]:
    """Every method at every budget: its accuracy, the paired difference to DP-SGD, and what its epsilon is worth."""
    rows, notes = [], Footnotes()
    places = _places(evidence, BUDGET)
    usual = max((evidence.sample(place, ACCURACY).expected for place in places), default=0)
    for place in places:
        runs, cell = evidence.cells[place], evidence.sample(place, ACCURACY)
        rows.append([
            evidence.title(place.dataset), place.variant,
            f"{'claimed ' if place.model.startswith(CLAIMED) else ''}{place.epsilon:g}", place.model,
            cell_text(cell, ACCURACY, usual) + cell_marks(cell, notes), _against(evidence, place),
            *_spent(runs, "epsilon_claimed", "epsilon", "epsilon_realised"), _least(runs),
        ])  # fmt: skip
    caption = (
        "Test accuracy (%), mean ± sample SD over seeds, and its mean paired difference to DP-SGD of the same model, optimizer "
        "and target (with the 95% t-interval), in points. ε as the method claims it, as it is proved for the released model, and "
        "as the run turned out to spend it (an odometer's reading, no guarantee). Rows with no proved ε are not equally private: "
        "their difference says nothing about privacy. s_min: the least of all steps and the mean; below 1 the noise is less than "
        "DP-SGD's in some direction, which matters with an l2 clip alone: that of Mahalanobis rows plays no part in their proof. "
        f"S is made anew every {REFRESH} steps where a name tells no other refresh."
    )
    header = ["Dataset", "Model, optimizer", "ε", "Method", "Accuracy", "minus DP-SGD", "Claimed ε", "Proved ε", "Realised ε",
              "s_min least / mean"]  # fmt: skip
    return [
        Table("accuracy_by_method", caption, header, rows, 4, blocks=len(evidence.datasets(BUDGET)) > 1, notes=notes.listed())
    ]


def _against(evidence: Evidence, place: Place) -> str:
    theirs = evidence.sample(place._replace(model=SGD), ACCURACY).values
    ours = evidence.sample(place, ACCURACY).values
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if place.model == SGD or not pairs:
        return "—"
    text = ACCURACY.show(sum(pairs) / len(pairs), "+")
    interval = stats.t_interval(pairs)
    return f"{text} ({' to '.join(ACCURACY.show(x, '+') for x in interval)})" if interval else text


def convergence(evidence: Evidence) -> list[Table]:
    """The end of training by noise multiplier."""
    rows, notes = [], Footnotes()
    places = _places(evidence, NOISE)
    usual = max((evidence.sample(place, ACCURACY).expected for place in places), default=0)
    for place in places:
        runs, cell, loss = evidence.cells[place], evidence.sample(place, ACCURACY), evidence.sample(place, LOSS)
        head, _, sigma = place.variant.partition(", σ=")
        diverged = sum(bool(run.done and run.done["diverged"]) for run in runs)
        rows.append([
            evidence.title(place.dataset), head, sigma, place.model, cell_text(cell, ACCURACY, usual) + cell_marks(cell, notes),
            cell_text(loss, LOSS, usual), str(diverged),
            *_spent(runs, "epsilon", "epsilon_realised"), _least(runs),
        ])  # fmt: skip
    caption = (
        "At a given noise multiplier: accuracy (%) and loss on the test set at the end, runs that diverged, and what was spent. "
        "The paper claims that its noise mitigates model collapse under small and large noise."
    )
    header = ["Dataset", "Model, optimizer", "σ", "Method", "Accuracy", "Final test loss", "Diverged", "Proved ε", "Realised ε",
              "s_min least / mean"]  # fmt: skip
    return [Table("convergence", caption, header, rows, 4, notes=notes.listed())]


def draw_convergence(evidence: Evidence, folder: Path) -> Sequence[Picture]:
    """Accuracy by epoch, one panel a noise multiplier."""
    from dpsweep.report.curve_figures import Panel, draw

    panels: dict[tuple[str, str], dict[str, Sequence[Run]]] = {}
    for place in _places(evidence, NOISE):
        panels.setdefault((place.dataset, place.variant), {})[place.model] = evidence.cells[place]
    made = [Panel(f"{evidence.title(d)}, {variant}", "epoch", "accuracy", lines) for (d, variant), lines in panels.items()]
    about = "Test accuracy by epoch at a given noise multiplier. Methods at one σ need not spend the same ε: see the table."
    return draw(folder, "convergence", made, "test accuracy by epoch, one panel a noise multiplier", about)


def statements(evidence: Evidence) -> list[Table]:
    """What the paper claims, and the best that any of its forms did here over DP-SGD, at a proved and at a claimed budget."""
    best: dict[tuple[str, bool], tuple[float, str]] = {}
    for place in _places(evidence, BUDGET):
        theirs = evidence.sample(place._replace(model=SGD), ACCURACY)
        ours = evidence.sample(place, ACCURACY)
        if place.model == SGD or not ours.n or not theirs.n:
            continue
        key = (place.dataset, place.model.startswith(CLAIMED))
        gain = (ours.mean - theirs.mean, f"{ACCURACY.show(theirs.mean)} to {ACCURACY.show(ours.mean)} by {place.model}, "
                f"{place.variant}, {'claimed ' if key[1] else ''}ε={place.epsilon:g}")  # fmt: skip
        best[key] = max(best.get(key, gain), gain)
    claims = [(row["claim"], row["value"]) for row in published_rows("dp_hero.csv")]
    rows = []
    for dataset in evidence.datasets(BUDGET):
        claim, value = claims[dataset == "cifar10"]
        found = [best[dataset, claimed][1] if (dataset, claimed) in best else "—" for claimed in (False, True)]
        rows.append([evidence.title(dataset), claim, value.replace("->", "to"), *found])
    caption = (
        "What the paper's introduction claims (it names neither model nor budget), and the largest gain in mean accuracy over "
        "DP-SGD among the methods of this report: picked after the fact, so no evidence of one; the tests stand under Contrasts."
    )
    header = ["Dataset", "Claim", "Published", "Largest at a proved ε", "Largest at a claimed ε"]
    return [Table("statements", caption, header, rows, 1)]


PAPER = Paper(
    name="dp_hero",
    title="Revisiting Privacy-Utility Trade-off for DP Training with Pre-existing Knowledge (DP-Hero)",
    metrics={"accuracy": ACCURACY},
    locate=locate,
    published=dict,
    items=(
        Item("accuracy", (Needs(BUDGET),), accuracy),
        Item("statements", (Needs(BUDGET),), statements),
        Item("convergence", (Needs(NOISE),), convergence, draw_convergence),
    ),
    headline=("accuracy", "convergence"),
    compare=(BUDGET, "method", SGD, ("accuracy",)),
    datasets=DATASETS,
    method=method,
)
