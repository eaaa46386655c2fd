"""DP-RVFL: A Differentially Private Randomized-Feature Neural Model. Tables 1 to 10, Figures 2 to 4, and its claims."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsweep.report import beside, paper_tables
from dpsweep.report.beside import Line
from dpsweep.report.load import METRICS, SECONDS, Metric
from dpsweep.report.markup import Table
from dpsweep.report.paper import Evidence, Item, Needs, Paper, Place, Published, published_rows

if TYPE_CHECKING:
    from dpsweep.report.figures import Picture

PRIMARY, DIAGNOSTICS, IMAGES = "dp_rvfl_primary", "dp_rvfl_diagnostics", "dp_rvfl_images"
SPLITS, ATTENTION = "dp_rvfl_heart_splits", "dp_rvfl_attention"
STAGES = (PRIMARY, DIAGNOSTICS, IMAGES, SPLITS, ATTENTION)

DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "cardio": "Cardio", "heart": "Heart"}
MODELS = {
    "dense": "Dense", "cnn": "CNN", "rvfl": "RVFL", "elm_sgd": "ELM-SGD", "frozen_matched": "FrozenDenseMatched",
    "logistic_projected": "LogisticProjected", "logistic_raw": "LogisticRaw", "attention": "Attention",
}  # fmt: skip
GRADIENT = tuple(MODELS.values())[:7]
ELM = tuple(f"DPELM-L{width}" for width in (1, 3, 5, 10))
DASHED = GRADIENT[5:]  # as in the paper's Figure 3
BUDGETS = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
PROFILES = ("raw01", "fixed_centered", "half_resolution")

ACCURACY = METRICS["accuracy"]
NAMES = {
    "accuracy_pct": ACCURACY,
    "majority_pct": Metric("majority_accuracy", "Accuracy", exact=True),
    **{name: Metric(f"test_{name}", name.upper(), "0-1", 1.0, 3) for name in ("accuracy", "f1", "auroc", "auprc")},
    "trainable": Metric("trainable_parameters", "Trained parameters", "", 1.0, 0, SECONDS, exact=True),
    "train_seconds_8_threads": Metric("seconds_train_with_features", "Training time", "s", 1.0, bounds=SECONDS),
    "setup_plus_train_seconds": Metric("seconds_setup+seconds_train_with_features", "Setup and training", "s", 1.0, 2, SECONDS),
    "macs_millions": Metric("macs", "MACs", "M", 1e-6, 3, SECONDS, exact=True),
    "mib": Metric("stored_bytes", "Stored", "MiB", 2**-20, 3, SECONDS, exact=True),
    "clipped_pct": Metric("diagnostics.clipped_fraction", "Clipped draws"),
}


def locate(config: Mapping[str, Any]) -> Place | None:
    """Where a task stands in the paper, by its canonical configuration; None where it is no part of it."""
    stage, dataset, model = config.get("run"), config["dataset"], config["model"]
    mechanism = config["mechanism"]["name"]
    if (
        model["name"] == "dp_elm"
        and mechanism == "laplace_elm"
        and config["mechanism"].get("release", "published") == "published"
    ):
        name = f"DPELM-L{model.get('hidden', 10)}"
    elif mechanism in ("gaussian", "none") and model["name"] in MODELS:
        name = MODELS[model["name"]]
    else:
        return None
    if stage not in STAGES:
        return None
    variant = {IMAGES: dataset.get("profile", PROFILES[0]), SPLITS: f"split{config.get('split_seed')}"}.get(stage, "")
    return Place(stage, dataset["name"], variant, name, config.get("epsilon"), config.get("repeat") or 1)


def published() -> dict[tuple[Place, str], Published]:
    """Every number of the paper with a place among the tasks; where it prints one twice, with its spread."""
    found: dict[tuple[Place, str], Published] = {}
    for row in published_rows("dp_rvfl.csv"):
        dataset, _, variant = row["dataset"].partition(":")
        model, metric = row["model"], row["metric"]
        epsilon = float(row["epsilon"]) if row["epsilon"] else None
        if model == "train_majority":  # every record of the dataset tells it; that of the paper's own model is read
            model, metric, epsilon = "RVFL", "majority_pct", 2.0
        split = variant.startswith("split")
        attention = row["table"] == "T9" or model == "Attention"
        stage = DIAGNOSTICS if metric == "clipped_pct" else SPLITS if split else IMAGES if variant else PRIMARY
        place = Place(ATTENTION if attention else stage, dataset, variant, model, epsilon, int(row["suite_run"]))
        number = Published(row["mean"], row["sd"], int(row["n_seeds"]), row["table"])
        if (place, metric) not in found or not found[place, metric].sd:
            found[place, metric] = number
    for row in published_rows("dp_rvfl_table6_resources.csv"):
        place = Place(PRIMARY, "cifar10", "", row["model"], 2.0)
        for metric, value in row.items():
            if metric != "model":
                name = {"train_seconds_8_threads": metric}.get(metric, metric)
                found.setdefault((place, name), Published(value, where="T6"))
    return found


def _each(evidence: Evidence, models: Sequence[str], epsilon: float | None, metric: str = "accuracy_pct") -> list[Line]:
    datasets = evidence.datasets(PRIMARY)
    return [Line((model,), tuple((Place(PRIMARY, d, "", model, epsilon), metric) for d in datasets)) for model in models]


def _titles(evidence: Evidence, stage: str = PRIMARY) -> list[str]:
    return [evidence.title(dataset) for dataset in evidence.datasets(stage)]


def _told(evidence: Evidence, dataset: str, field: str) -> str:
    """What the records of a dataset's DP-RVFL at ε = 2 say, in the form in which Tables 1 and 2 print it."""
    runs = [run for e in evidence.executions for run in evidence.cells.get(Place(PRIMARY, dataset, "", "RVFL", 2.0, e), [])]
    values = {str(run.done.get(field)): run.done.get(field) for run in runs if run.done}
    return " / ".join(_printed(value, field) for value in values.values()) or "—"


def _printed(value: Any, field: str) -> str:
    if value is None:
        return "—"
    if field == "sample_rate":
        return f"{float(Fraction(value)):.8f}"
    return " x ".join(map(str, value)) if isinstance(value, list) else str(value)


def _facts(evidence: Evidence, number: int, file: str, caption: str, columns: Mapping[str, str]) -> list[Table]:
    rows = {dataset: evidence.title(dataset) for dataset in evidence.datasets(PRIMARY)}
    theirs = {(row["dataset"], field): row[field] for row in published_rows(file) for field in columns}
    told = {(dataset, field): _told(evidence, dataset, field) for dataset in rows for field in columns}
    return [beside.facts(f"table{number}", caption, rows, columns, theirs, lambda row, column: told[row, column])]


def table1(evidence: Evidence) -> list[Table]:
    caption = "Table 1. Prepared records and input dimensions of the primary stage."
    columns = {"train_size": "Train", "unused_size": "Unused", "test_size": "Test", "input_shape": "Input"}
    return _facts(evidence, 1, "dp_rvfl_table1_partitions.csv", caption, columns)


def table2(evidence: Evidence) -> list[Table]:
    caption = "Table 2. Schedule: batch size B, epochs E, inclusion probability q, normalizer m0, updates T."
    columns = {"batch_size": "B", "epochs": "E", "sample_rate": "q", "normalizer": "m0", "steps": "T"}
    return _facts(evidence, 2, "dp_rvfl_table2_schedule.csv", caption, columns)


def table3(evidence: Evidence) -> list[Table]:
    caption = "Table 3. Private test accuracy (%) at ε = 2, δ = 1e-5, mean ± sample SD over seeds."
    majority = Line(("train majority",), _each(evidence, ["RVFL"], 2.0, "majority_pct")[0].cells)
    lines = [*_each(evidence, GRADIENT, 2.0), majority]
    return [beside.table(evidence, "table3", caption, ["Private model"], _titles(evidence), lines)]


def table4(evidence: Evidence) -> list[Table]:
    caption = "Table 4. DP-RVFL's metrics (0-1) at ε = 0.1 and 2, mean ± sample SD over seeds; AUPRC is average precision."
    metrics = ("accuracy", "f1", "auroc", "auprc")
    lines = [
        Line((f"{evidence.title(d)}/{e:g}",), tuple((Place(PRIMARY, d, "", "RVFL", e), metric) for metric in metrics))
        for d in evidence.datasets(PRIMARY)
        for e in (0.1, 2.0)
    ]
    return [beside.table(evidence, "table4", caption, ["Dataset/ε"], ["Accuracy", "F1", "AUROC", "AUPRC"], lines)]


def table5(evidence: Evidence) -> list[Table]:
    caption = "Table 5. DP-ELM test accuracy (%) at ε = 2 (pure DP) by hidden width, mean ± sample SD over seeds."
    lines = [Line((line.labels[0].removeprefix("DPELM-L"),), line.cells) for line in _each(evidence, ELM, 2.0)]
    return [beside.table(evidence, "table5", caption, ["Width L"], _titles(evidence), lines)]


def table6(evidence: Evidence) -> list[Table]:
    columns = {
        "trainable": "Trained", "train_seconds_8_threads": "Train s", "setup_plus_train_seconds": "Setup + train s",
        "macs_millions": "MACs (M)", "mib": "MiB",
    }  # fmt: skip
    caption = (
        "Table 6. Resources on CIFAR-10 at ε = 2: trained parameters, mean seconds (frozen features included, on this "
        "machine: published ones are from another), forward MACs a record, stored parameters in MiB."
    )
    lines = [Line((model,), tuple((Place(PRIMARY, "cifar10", "", model, 2.0), m) for m in columns)) for model in GRADIENT]
    return [beside.table(evidence, "table6", caption, ["Model"], list(columns.values()), lines)]


def table7(evidence: Evidence) -> list[Table]:
    caption = "Table 7. Accuracy (%) at ε = 2 by image profile, mean ± sample SD over seeds of the image stage."
    lines = [
        Line((evidence.title(d), profile.replace("_", " ")),
             tuple((Place(IMAGES, d, profile, model, 2.0), "accuracy_pct") for model in ("RVFL", "CNN")))
        for d in evidence.datasets(IMAGES) for profile in PROFILES
    ]  # fmt: skip
    return [beside.table(evidence, "table7", caption, ["Dataset", "Profile"], ["DP-RVFL", "DP-CNN"], lines)]


def table8(evidence: Evidence) -> list[Table]:
    caption = "Table 8. Accuracy (%) at ε = 2 by split seed, mean ± sample SD over model seeds within a split."
    models = ("RVFL", "ELM-SGD", "FrozenDenseMatched", "LogisticRaw")
    splits = sorted({(place.dataset, place.variant) for place in evidence.cells if place.stage == SPLITS})
    lines = [
        Line((variant.removeprefix("split"),), tuple((Place(SPLITS, d, variant, m, 2.0), "accuracy_pct") for m in models))
        for d, variant in splits
    ]
    return [beside.table(evidence, "table8", caption, ["Split seed"], [f"DP-{model}" for model in models], lines)]


def table9(evidence: Evidence) -> list[Table]:
    caption = "Table 9. Attention control: accuracy (%), mean ± sample SD over seeds of the attention stage."
    lines = [
        Line((evidence.title(d), model), tuple((Place(ATTENTION, d, "", model, e), "accuracy_pct") for e in (None, 2.0)))
        for d in evidence.datasets(ATTENTION)
        for model in ("RVFL", "CNN", "Attention")
    ]
    return [beside.table(evidence, "table9", caption, ["Dataset", "Architecture"], ["Non-private", "Private ε = 2"], lines)]


def table10(evidence: Evidence) -> list[Table]:
    caption = "Table 10. DP-RVFL's accuracy (%) at ε = 2 in each execution of the primary stage, not pooled."
    lines = [
        Line((evidence.title(d),), tuple((Place(PRIMARY, d, "", "RVFL", 2.0, suite), "accuracy_pct") for suite in (1, 2, 3)))
        for d in evidence.datasets(PRIMARY)
    ]
    groups = [f"Suite {suite}" for suite in (1, 2, 3)]
    return [beside.table(evidence, "table10", caption, ["Dataset"], groups, lines, each_execution=False)]


def figure2(evidence: Evidence) -> list[Table]:
    caption = "Figure 2 in numbers: non-private test accuracy (%), mean ± sample SD over seeds."
    return [beside.table(evidence, "figure2", caption, ["Model"], _titles(evidence), _each(evidence, GRADIENT, None))]


def figure3(evidence: Evidence) -> list[Table]:
    caption = "Figure 3 in numbers: private test accuracy (%) by ε, mean ± sample SD over seeds."
    return [_every(evidence, "figure3", caption, GRADIENT, evidence.budgets(PRIMARY))]


def supplement(evidence: Evidence) -> list[Table]:
    caption = "As Tables S4 to S7: test accuracy (%) of every primary model and budget, mean ± sample SD over seeds."
    return [_every(evidence, "supplement", caption, (*GRADIENT, *ELM), [None, *evidence.budgets(PRIMARY)])]


def _every(evidence: Evidence, name: str, caption: str, models: Sequence[str], budgets: Sequence[float | None]) -> Table:
    lines = [
        Line((evidence.title(d), model, "none" if e is None else f"{e:g}"), ((Place(PRIMARY, d, "", model, e), "accuracy_pct"),))
        for d in evidence.datasets(PRIMARY)
        for model in models
        for e in budgets
    ]
    return beside.table(evidence, name, caption, ["Dataset", "Model", "ε"], [""], lines, blocks=True)


def figure4(evidence: Evidence) -> list[Table]:
    caption = "Figure 4 in numbers: private training time (s) at ε = 2, frozen features included, runs alone only."
    lines = _each(evidence, GRADIENT, 2.0, "train_seconds_8_threads")
    return [beside.table(evidence, "figure4", caption, ["Model"], _titles(evidence), lines)]


def counts(evidence: Evidence) -> list[Table]:
    claims = {}
    whole = len(evidence.datasets(PRIMARY)) * len(evidence.budgets(PRIMARY)) == 24  # else the counts are not of the same thing
    for row in published_rows("dp_rvfl_counts.csv"):
        if (told := re.match(r"RVFL (above|tied|below)(?: with)? ([\w-]+)(?:.*suite (\d))?$", row["claim"])) and whole:
            claims[told[2], told[1], int(told[3] or 1)] = row["value"]
    others = [model for model in (*GRADIENT, *ELM) if model != "RVFL"]
    return [paper_tables.counts(evidence, "counts", PRIMARY, "RVFL", others, ACCURACY, claims)]


def retained(evidence: Evidence) -> list[Table]:
    return [paper_tables.retained(evidence, "retained", PRIMARY, (*GRADIENT, *ELM), ACCURACY, "eq. 26")]


def clipping(evidence: Evidence) -> list[Table]:
    return [paper_tables.clipping(evidence, "clipping", DIAGNOSTICS, GRADIENT)]


def resources(evidence: Evidence) -> list[Table]:
    return [paper_tables.resources(evidence, "resources", PRIMARY, (*GRADIENT, *ELM), 2.0)]


def statements(evidence: Evidence) -> list[Table]:
    """Every number that the paper states in its text and supplement alone, by execution."""
    lines = []
    for (place, metric), number in evidence.published.items():
        if number.where in ("text", "T7-text", "F4", "S-diag", "S10") and place.dataset in evidence.datasets(place.stage):
            what = NAMES[metric]
            model = "train majority" if metric == "majority_pct" else place.model
            budget = "none" if place.epsilon is None else f"{place.epsilon:g}"
            where = f"{evidence.title(place.dataset)} {place.variant.removeprefix('fixed_').removesuffix('_resolution')}".strip()
            labels = (where, model, budget, str(place.execution), f"{what.name.split()[0]} {what.unit}")
            lines.append(Line(labels, ((place, metric),)))
    caption = "Numbers that the paper states outside its tables, by execution (run) of its suite."
    stubs = ["Dataset", "Model", "ε", "Run", "Metric"]
    return [beside.table(evidence, "statements", caption, stubs, [""], lines, each_execution=False)]


def _bars(evidence: Evidence, folder: Path, stem: str, metric: str, epsilon: float | None, caption: str) -> list[Picture]:
    from dpsweep.report import paper_figures

    return paper_figures.bars(evidence, folder, stem, PRIMARY, GRADIENT, epsilon, metric, caption)


def draw2(evidence: Evidence, folder: Path) -> list[Picture]:
    caption = "Figure 2. Non-private test accuracy: mean and sample SD over seeds. Diamonds: published."
    return _bars(evidence, folder, "figure2", "accuracy_pct", None, caption)


def draw3(evidence: Evidence, folder: Path) -> list[Picture]:
    from dpsweep.report import paper_figures

    caption = (
        "Figure 3. Test accuracy against the target ε of one run (equally spaced, not a scale): mean and sample SD over seeds. "
        "Crosses: published; in the model's colour where no run is done. Vertical ranges differ."
    )
    return paper_figures.curves(evidence, folder, "figure3", PRIMARY, GRADIENT, DASHED, "accuracy_pct", caption)


def draw4(evidence: Evidence, folder: Path) -> list[Picture]:
    caption = (
        "Figure 4. Private training time at ε = 2, frozen features included: mean and sample SD over seeds, runs alone only. "
        "Diamonds: published, from another machine."
    )
    return _bars(evidence, folder, "figure4", "train_seconds_8_threads", 2.0, caption)


_RVFL2 = (Needs(PRIMARY, ("RVFL",), (2.0,)),)
_AT2 = (Needs(PRIMARY, GRADIENT, (2.0,)),)

PAPER = Paper(
    name="dp_rvfl",
    title="DP-RVFL: A Differentially Private Randomized-Feature Neural Model",
    metrics=NAMES,
    locate=locate,
    published=published,
    items=(
        Item("table1", _RVFL2, table1),
        Item("table2", _RVFL2, table2),
        Item("figure2", (Needs(PRIMARY, GRADIENT, (None,)),), figure2, draw2),
        Item("table3", _AT2, table3),
        Item("figure3", (Needs(PRIMARY, GRADIENT, BUDGETS),), figure3, draw3),
        Item("table4", (Needs(PRIMARY, ("RVFL",), (0.1, 2.0)),), table4),
        Item("table5", (Needs(PRIMARY, ELM, (2.0,)),), table5),
        Item("table6", (Needs(PRIMARY, GRADIENT, (2.0,), ("cifar10",)),), table6),
        Item("figure4", _AT2, figure4, draw4),
        Item("table7", (Needs(IMAGES, ("RVFL", "CNN"), (2.0,)),), table7),
        Item("table8", (Needs(SPLITS, (), (2.0,)),), table8),
        Item("table9", (Needs(ATTENTION),), table9),
        Item("table10", _RVFL2, table10),
        Item("counts", (Needs(PRIMARY, (), BUDGETS),), counts),
        Item("supplement", (Needs(PRIMARY),), supplement),
        Item("retained", (Needs(PRIMARY),), retained),
        Item("clipping", (Needs(DIAGNOSTICS),), clipping),
        Item("resources", (Needs(PRIMARY, (), (2.0,)),), resources),
        Item("statements", tuple(Needs(stage) for stage in STAGES), statements),
    ),
    headline=("table3", "counts"),
    compare=(PRIMARY, "model", "rvfl", ("accuracy", "f1", "auroc", "seconds_train_with_features")),
    datasets=DATASETS,
)
