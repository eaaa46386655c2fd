"""The FO-DP-SGD paper's own tasks, as its suites name them, with made-up records: curves that rise and settle."""

import functools
import math
import random
from typing import Any

from report_factory import record

from dpsweep.config import Composer
from dpsweep.report.fo_methods import locate, parts
from dpsweep.tasks import enumerate_tasks

EPOCHS = 20
LEVEL = {"FO-DP-SGD": 0.365, "DP-SGD": 0.324, "DP-SAM": 0.329, "DP-SAT": 0.328, "DP-Adam": 0.31}


@functools.cache
def fo_tasks(*overrides: str) -> list[dict[str, Any]]:
    return [
        {"id": task.id, "selection": task.values["selection"]} | task.labels
        for task in enumerate_tasks(list(overrides), Composer()).tasks
    ]


def fo_curves(level: float, epochs: int, dice: random.Random, epsilon: float) -> dict[str, Any]:
    accuracy = [
        min(1.0, max(0.0, level * (1 - 0.8 * math.exp(-6 * e / epochs)) + dice.gauss(0, 0.004))) for e in range(1, epochs + 1)
    ]
    best = max(range(epochs), key=accuracy.__getitem__)
    return {
        "epoch": [float(e) for e in range(1, epochs + 1)], "accuracy": accuracy, "loss": [2.3 - a for a in accuracy],
        "epsilon": [epsilon * math.sqrt(e / epochs) for e in range(1, epochs + 1)],
        "best_accuracy": accuracy[best], "best_epoch": float(best + 1),
    }  # fmt: skip


def fo_record(made: dict[str, Any], epochs: int = EPOCHS, **changes: Any) -> dict[str, Any]:
    """A record whose accuracy scatters about a level of its method; runs of fo_runtime had the machine to themselves."""
    config, dice = made["config"], random.Random(made["id"])
    place = locate(config)
    target, sigma = made["target_epsilon"], made["target_noise_multiplier"]
    share = config["mechanism"].get("beta", 1.0) if config["mechanism"]["name"] == "fractional" else 1.0
    epsilon = target or 22.6 * share * 1.1 / sigma
    level = LEVEL.get(place.model, 0.3) - 0.01 * abs(math.log(parts(place).get("lr", 0.8) / 0.8)) + dice.gauss(0, 0.008)
    curves = fo_curves(level, epochs, dice, epsilon) if config.get("curves") else None
    values = {
        "config": config, "optimizer": made["optimizer"], "accountant": "rdp", "target_noise_multiplier": sigma,
        "epsilon": epsilon * (0.99999 if target else 1), "epsilon_claimed": epsilon, "noise_multiplier": sigma or 1.2,
        "delta": 1e-5, "max_grad_norm": 1.0, "adjacency": "add_remove", "protects": "record", "guarantee_reason": None,
        "noise_source": "secure", "sample_rate": "1/25", "steps": config["steps"], "normalizer": 200, "reference_size": 5000,
        "guarantee_text": "The released model is private.", "repeat": made["repeat"], "batch_size": None, "epochs": None,
        "events": [[{"event": "sampled_gaussian", "sample_rate": "1/25", "noise_multiplier": sigma or 1.2}, config["steps"]]],
        "curves": curves, "alone": made["run"] == "fo_runtime", "seconds_train": 60.0 * dice.uniform(0.97, 1.03),
    }  # fmt: skip
    return record(made, curves["accuracy"][-1] if curves else level, **values | changes)
