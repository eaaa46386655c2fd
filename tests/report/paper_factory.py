"""Made-up tasks and records of the DP-RVFL paper's five stages, scattered about what the paper printed."""

import itertools
import random
from typing import Any

from report_factory import record, task

from dpsweep.report.papers.dp_rvfl import ATTENTION, DIAGNOSTICS, IMAGES, MODELS, PRIMARY, SPLITS, locate, published
from dpsweep.tasks import task_id

BUDGETS = (None, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
SEEDS = (42, 43, 44, 45, 46)
DATASETS = ("mnist", "cifar10", "cardio", "heart")
GRADIENT = tuple(MODELS)[:7]
SIX = tuple(model for model in GRADIENT if model != "logistic_raw")
FACTS = {  # reference size, batch, epochs, q, T, m0, test records, shape, majority
    "mnist": (51000, 256, 10, "1/200", 2000, 255, 10000, [1, 28, 28], 0.1135),
    "cifar10": (42500, 256, 10, "1/167", 1670, 254, 10000, [3, 32, 32], 0.1),
    "cardio": (48025, 256, 30, "1/188", 5640, 255, 10292, [32], 0.5030),
    "heart": (212, 64, 30, "1/4", 120, 53, 46, [47], 19 / 46),
}
UNUSED = {"mnist": 9000, "cifar10": 7500, "cardio": 10291, "heart": 45}
PUBLISHED = published()


def paper_task(stage, dataset, model, epsilon, seed, repeat=None, profile=None, split=2026, hidden=None) -> dict[str, Any]:
    elm = model == "dp_elm"
    mechanism = "laplace_elm" if elm else "none" if epsilon is None else "gaussian"
    config = {
        "protocol": 1, "dataset": {"name": dataset}, "model": {"name": model}, "mechanism": {"name": mechanism},
        "optimizer": None if elm else {"name": "adam", "lr": 0.001},
        "accountant": None if elm or epsilon is None else {"name": "rdp"},
        "epsilon": epsilon, "seed": seed, "run": stage, "repeat": repeat, "split_seed": split, "split": "dp_rvfl",
        "diagnostics": True if stage == DIAGNOSTICS else None,
    }  # fmt: skip
    if profile not in (None, "raw01"):
        config["dataset"]["profile"] = profile
    if not elm and model not in ("dense", "cnn", "attention"):
        config["model"]["hidden"] = 200
    if hidden is not None:
        config["model"]["hidden"] = hidden
    config = {key: value for key, value in config.items() if value is not None}
    made = task(dataset, model, epsilon, seed, mechanism, stage)
    return made | {"id": task_id(config), "repeat": repeat, "config": config, "optimizer": None if elm else "adam"}


def paper_tasks(repeats=(None,), seeds=SEEDS) -> list[dict[str, Any]]:
    """The tasks of the stages, in the paper's numbers: 2,536 for each repeat with all five seeds."""
    few = seeds[:3]
    made = []
    for r in repeats:
        product = itertools.product
        made += [paper_task(PRIMARY, d, m, e, s, r) for d, m, e, s in product(DATASETS, GRADIENT, BUDGETS, seeds)]
        made += [
            paper_task(PRIMARY, d, "dp_elm", e, s, r, hidden=h) for d, h, e, s in product(DATASETS, (1, 3, 5, 10), BUDGETS, seeds)
        ]
        made += [paper_task(DIAGNOSTICS, d, m, e, s, r) for d, m, e, s in product(DATASETS, SIX, (None, 0.1, 2.0), seeds)]
        made += [
            paper_task(IMAGES, d, m, e, s, r, profile=p)
            for d, p, m, e, s in product(DATASETS[:2], ("raw01", "fixed_centered", "half_resolution"), SIX, (None, 2.0), seeds)
        ]
        made += [
            paper_task(SPLITS, "heart", m, e, s, r, split=split)
            for split, m, e, s in product(
                (2026, 2027, 2028, 2029), ("rvfl", "elm_sgd", "frozen_matched", "logistic_raw"), (None, 0.1, 2.0), seeds
            )
        ]
        made += [
            paper_task(ATTENTION, d, m, e, s, r)
            for d, m, e, s in product(DATASETS[:2], ("rvfl", "cnn", "attention"), (None, 2.0), few)
        ]
    return made


def paper_record(made: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A record whose accuracy scatters about the published mean, by the published SD where the paper prints one."""
    place = locate(made["config"])
    dice = random.Random(made["id"])
    told = PUBLISHED.get((place._replace(execution=1), "accuracy_pct"))
    guess = {"mnist": 88.0, "cifar10": 36.0, "cardio": 70.0, "heart": 60.0}[place.dataset] + 0.4 * (place.epsilon or 9.0)
    mean, sd = (float(told.mean), float(told.sd or 0.5)) if told else (guess, 0.8)
    size, batch, epochs, rate, steps, divisor, tests, shape, majority = FACTS[place.dataset]
    accuracy = min(1.0, max(0.0, round(dice.gauss(mean, sd) / 100 * tests) / tests))
    seconds = {"Dense": 580.0, "CNN": 530.0, "RVFL": 7.1, "ELM-SGD": 4.4}.get(place.model, 9.0) * dice.uniform(0.95, 1.05)
    if place.dataset == "heart":
        seconds /= 50
    epoch = {
        "epoch": 1, "loss": 1.2, "draws": size, "clipped_fraction": 0.99,
        "norm_quantiles": {"0.05": 1.0, "0.25": 2.0, "0.5": 3.0, "0.75": 4.0, "0.95": 5.0},
    }  # fmt: skip
    diagnostics = {"epochs": [epoch | {"epoch": k + 1} for k in range(epochs)], "clipped_fraction": 0.9992}
    event = {"event": "sampled_gaussian", "sample_rate": rate, "noise_multiplier": 0.8}
    values = {
        "config": made["config"], "optimizer": made["optimizer"], "test_f1": accuracy * 0.98, "test_auroc": accuracy * 0.99,
        "test_auprc": accuracy * 0.97, "seconds_train": seconds, "seconds_train_with_features": seconds + 0.2,
        "reference_size": size, "batch_size": batch, "epochs": epochs, "sample_rate": rate, "steps": steps, "normalizer": divisor,
        "train_size": size, "unused_size": UNUSED[place.dataset],
        "test_size": tests, "input_shape": shape, "majority_accuracy": majority, "stored_bytes": 13451912,
        "macs": 3362768, "peak_memory_growth": 2**24, "trainable_parameters": 12250, "repeat": made["repeat"],
        "diagnostics": diagnostics if place.stage == DIAGNOSTICS else None,
    }  # fmt: skip
    if place.epsilon is not None:
        values["events"] = [[event, steps]]
    return record(made, accuracy, **values | changes)
