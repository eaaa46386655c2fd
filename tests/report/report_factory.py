"""Made-up tasks and records in the shape that the report reads."""

import itertools
from collections.abc import Sequence
from typing import Any

SIGMA = {0.5: 2.0, 1.0: 1.1, 2.0: 0.8}


def task(
    dataset: str = "digits",
    model: str = "rvfl",
    epsilon: float | None = 1.0,
    seed: int = 42,
    mechanism: str | None = None,
    run: str | None = None,
    name: str = "",
) -> dict[str, Any]:
    mechanism = mechanism or ("none" if epsilon is None else "gaussian")
    identifier = "-".join(str(part) for part in (dataset, model, mechanism, epsilon, seed, run, name))
    return {
        "id": identifier, "dataset": dataset, "model": model, "mechanism": mechanism, "target_epsilon": epsilon,
        "seed": seed, "run": run,
    }  # fmt: skip


def record(made: dict[str, Any], value: float | None = 0.9, **changes: Any) -> dict[str, Any]:
    """A done record of a task, with `value` as every test metric."""
    target = made["target_epsilon"]
    private = target is not None
    sigma = SIGMA.get(target, 1.0) if private else None
    event = (
        {"event": "sampled_gaussian", "sample_rate": "1/20", "noise_multiplier": sigma}
        if private
        else {"event": "unbounded", "reason": "trained without noise"}
    )
    words = f"The released model is ({target}, 1e-05)-DP." if private else "No guarantee: trained without noise."
    full = made | {
        "schema": 1, "status": "done", "optimizer": "adam", "accountant": "rdp" if private else None,
        "config": {"model": {"name": made["model"]}, "seed": made["seed"]},
        "reference_size": 1257, "sample_rate": "1/20", "steps": 600, "normalizer": 62, "batch_size": 64, "epochs": 30,
        "delta": 1e-5 if private else None, "max_grad_norm": 1.0 if private else None, "noise_multiplier": sigma,
        "adjacency": "add_remove" if private else None, "protects": "record" if private else None,
        "epsilon_claimed": target, "epsilon": target * 0.99996 if private else None, "epsilon_if_secure": None,
        "epsilon_realised": None, "guarantee_reason": None if private else "trained without noise",
        "guarantee_text": words, "events": [[event, 600]], "noise_source": "secure" if private else None,
        "diverged": False, "seconds_train": 2.0, "seconds_setup": 0.1, "seconds_total": 2.2, "alone": True,
        "trainable_parameters": 1000, "stored_parameters": 2000, "data_fingerprint": "0f" * 32, "data_official": None,
        "train_size": 1257, "test_size": 270, "public": True, "unprotected": ["training_loss"],
        "versions": {"torch": "2.6", "dpsweep": "0.1.0"}, "threads": 2, "device": "cpu", "engine": "direct",
        "started": "2026-01-01T00:00:00", "finished": "2026-01-01T00:00:02", "host": "somewhere", "error": None,
        "checksum": "00",
    }  # fmt: skip
    metrics = ("accuracy", "precision", "recall", "f1", "auroc", "auprc")
    return full | {f"test_{name}": value for name in metrics} | changes


def failed(made: dict[str, Any], kind: str = "RuntimeError", message: str = "out of memory") -> dict[str, Any]:
    fields = ("epsilon", "epsilon_claimed", "noise_multiplier", "events", "seconds_train", "guarantee_text", "versions")
    error = {"type": kind, "message": message, "traceback": "Traceback ..."}
    return record(made, None, **dict.fromkeys(fields), status="failed", error=error)


def seeded(made: dict[str, Any], value: float = 0.9, **changes: Any) -> dict[str, Any]:
    secure = record(made, value)["epsilon"]
    reason = "noise was seeded"
    return record(made, value, epsilon=None, epsilon_if_secure=secure, noise_source="seeded", guarantee_reason=reason, **changes)


def unproved(made: dict[str, Any], reason: str, value: float = 0.9) -> dict[str, Any]:
    events = [[{"event": "unbounded", "reason": reason}, 600]]
    return record(made, value, epsilon=None, guarantee_reason=reason, events=events)


def grid(
    datasets: Sequence[str] = ("digits",),
    models: Sequence[str] = ("rvfl", "dense"),
    budgets: Sequence[float | None] = (None, 1.0),
    seeds: Sequence[int] = (42, 43, 44),
) -> list[dict[str, Any]]:
    return [task(*key) for key in itertools.product(datasets, models, budgets, seeds)]
