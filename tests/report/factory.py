"""Made-up records in the shape that the report reads."""

import itertools
from typing import Any

SIGMA = {0.5: 2.0, 1.0: 1.1, 2.0: 0.8}


def task(dataset="digits", model="rvfl", epsilon: float | None = 1.0, seed=42, mechanism: str | None = None, run=None, **more) -> dict[str, Any]:
    mechanism = mechanism or ("none" if epsilon is None else "gaussian")
    name = "-".join(str(part) for part in (dataset, model, mechanism, epsilon, seed, run, *more.values()))
    return {"id": name, "dataset": dataset, "model": model, "mechanism": mechanism, "target_epsilon": epsilon, "seed": seed, "run": run}


def record(accuracy: float | None = 0.9, *, like: dict[str, Any] | None = None, **changes) -> dict[str, Any]:
    """A done record of a task (`like`, or one made of dataset=..., model=..., epsilon=..., seed=...)."""
    keys = {key: changes.pop(key) for key in ("dataset", "model", "epsilon", "seed", "mechanism", "run") if key in changes and key != "epsilon"}
    if "target" in changes:
        keys["epsilon"] = changes.pop("target")
    made = like or task(**keys)
    target = made["target_epsilon"]
    private = target is not None
    event = {"event": "sampled_gaussian", "sample_rate": "1/20", "noise_multiplier": SIGMA.get(target, 1.0)}
    full = made | {
        "schema": 1, "status": "done", "optimizer": "adam", "accountant": "rdp" if private else None,
        "config": {"model": {"name": made["model"]}, "seed": made["seed"]},
        "reference_size": 1257, "sample_rate": "1/20", "steps": 600, "normalizer": 62, "batch_size": 64, "epochs": 30,
        "delta": 1e-5 if private else None, "max_grad_norm": 1.0 if private else None,
        "noise_multiplier": SIGMA.get(target, 1.0) if private else None,
        "adjacency": "add_remove" if private else None, "protects": "record" if private else None,
        "epsilon_claimed": target, "epsilon": target * 0.99996 if private else None, "epsilon_if_secure": None,
        "epsilon_realised": None, "guarantee_reason": None if private else "no noise",
        "guarantee_text": f"The released model is ({target}, 1e-5)-DP." if private else "No guarantee: trained without noise.",
        "events": [[event, 600]] if private else [[{"event": "unbounded", "reason": "no noise"}, 600]],
        "noise_source": "secure" if private else None, "diverged": False,
        "test_accuracy": accuracy, "test_precision": accuracy, "test_recall": accuracy, "test_f1": accuracy,
        "test_auroc": accuracy, "test_auprc": accuracy,
        "seconds_train": 2.0, "seconds_setup": 0.1, "seconds_total": 2.2, "alone": True,
        "trainable_parameters": 1000, "stored_parameters": 2000, "data_fingerprint": "0f" * 32, "data_official": None,
        "train_size": 1257, "test_size": 270, "public": True, "unprotected": ["training_loss"],
        "versions": {"torch": "2.6", "dpsweep": "0.1.0"}, "threads": 2, "device": "cpu", "engine": "direct",
        "started": "2026-01-01T00:00:00", "finished": "2026-01-01T00:00:02", "host": "somewhere", "error": None, "checksum": "x",
    }  # fmt: skip
    return full | changes


def failed(like: dict[str, Any], kind="RuntimeError", message="out of memory") -> dict[str, Any]:
    empty = dict.fromkeys(
        ["epsilon", "epsilon_claimed", "noise_multiplier", "events", "seconds_train", "test_accuracy", "test_precision",
         "test_recall", "test_f1", "test_auroc", "test_auprc", "guarantee_text", "versions"]
    )  # fmt: skip
    error = {"type": kind, "message": message, "traceback": "Traceback ..."}
    return record(like=like) | empty | {"status": "failed", "error": error}


def seeded(made: dict[str, Any]) -> dict[str, Any]:
    reason = "noise was seeded"
    return made | {"noise_source": "seeded", "epsilon_if_secure": made["epsilon"], "epsilon": None, "guarantee_reason": reason}


def unproved(made: dict[str, Any], reason="the samples leak") -> dict[str, Any]:
    return made | {"epsilon": None, "guarantee_reason": reason, "events": [[{"event": "unbounded", "reason": reason}, 600]]}


def suite(datasets=("digits", "heart"), models=("rvfl", "dense"), budgets=(None, 0.5, 1.0, 2.0), seeds=(42, 43, 44)) -> list[dict[str, Any]]:
    return [task(d, m, e, s) for d, m, e, s in itertools.product(datasets, models, budgets, seeds)]


def accuracy_of(made: dict[str, Any]) -> float:
    """A smooth made-up accuracy: higher for more epsilon, by model and seed."""
    target = made["target_epsilon"]
    base = 0.95 if target is None else 0.95 - 0.12 / (1 + target)
    names = ("rvfl", "dense", "cnn", "elm_sgd", "frozen", "logistic", "attention")
    place = names.index(made["model"]) if made["model"] in names else 3
    return base - 0.02 * place + 0.004 * ((made["seed"] * 7 + place) % 5) - (0.1 if made["dataset"] == "heart" else 0)
