"""What the FO-DP-SGD paper calls a task's method, and where the task stands among its conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpsweep.report.paper import Place

FIXED, FAIR, TUNING, RUNTIME = "fo_fixed", "fo_fair", "fo_tuning", "fo_runtime"
SIGMA, BETA, RATE = 1.1, 0.9, 0.8
FO, SGD = "FO-DP-SGD", "DP-SGD"

# What a memory's keys are called, and their values in the paper's main configuration.
_MEMORY = {"beta": ("β", BETA), "alpha": ("α", 0.8), "depth": ("K", 8), "lam": ("λ", 0.05), "tau": ("τ", 0.5),
           "gamma": ("γ", 0.1), "kappa": ("κ", 1e-3), "zeta": ("ζ", 1.0)}  # fmt: skip
_PLAIN = {"dp_sat": "DP-SAT", "dp_is": "DP-IS", "dp_adam_bc": "DP-AdamBC"}
_WITH = {("dp_adam_ac", "adamw"): "DP-Adam-AC", ("scheduled", "adamw"): "DP-AdamW scheduled"}


def method(config: Mapping[str, Any]) -> str | None:
    """What the paper calls a task's mechanism and optimizer together; None for one that it has no name for."""
    mechanism, optimizer = config["mechanism"], config.get("optimizer") or {}
    name, by = mechanism["name"], optimizer.get("name")
    if name == "gaussian" and by == "sgd":
        return SGD if not optimizer.get("momentum") else f"{SGD} momentum {optimizer['momentum']:g}"
    if name == "gaussian" and by in ("adam", "adamw"):
        return {"adam": "DP-Adam", "adamw": "DP-AdamW"}[by]
    if name in ("fractional", "post_memory") and by == "sgd":
        return _memory(name, mechanism)
    if name == "dp_sam" and by == "sgd":
        return "DP-SAM" if mechanism.get("batch") == "independent" else "DP-SAM shared"
    return _WITH.get((name, by or "")) or (_PLAIN.get(name) if by in ("sgd", None) else None)


def _memory(name: str, mechanism: Mapping[str, Any]) -> str:
    design = mechanism.get("design", "fractional")
    told = [f"{sign}={mechanism[key]:g}" for key, (sign, usual) in _MEMORY.items() if mechanism.get(key, usual) != usual]
    if name == "post_memory":
        base = "Post-FM" if mechanism.get("history") == "outputs" else "Post-FM raw"
        return " ".join([base, *([design] if design != "fractional" else []), *told])
    return " ".join([FO if design == "fractional" else f"{design} memory", *told])


def locate(config: Mapping[str, Any]) -> Place | None:
    """Where a task stands in the paper, by its canonical configuration; None where it is no part of it.

    The variant tells noise, clipping norm and learning rate, as `variant` writes them.
    """
    name, epsilon = method(config), config.get("epsilon")
    sigma = config.get("noise_multiplier")
    if name is None or config["model"]["name"] != "tanh_mlp" or (epsilon is None and sigma is None):
        return None
    stage = FAIR if sigma is None else FIXED
    if config.get("run") is not None:
        stage = str(config["run"])
    elif config.get("split") == "subset_tuning":
        stage = TUNING
    rate = (config.get("optimizer") or config["mechanism"]).get("lr")
    clip = config["mechanism"].get("max_grad_norm", 1.0)
    where = "" if stage == FAIR else variant(rate, sigma, clip)
    return Place(stage, config["dataset"]["name"], where, name, epsilon, config.get("repeat") or 1)


def variant(rate: float, sigma: float | None = SIGMA, clip: float = 1.0) -> str:
    """How a place tells learning rate, noise multiplier and clipping norm."""
    return " ".join(f"{key}={value:.4g}" for key, value in (("lr", rate), ("σ", sigma), ("C", clip)) if value is not None)


def parts(place: Place) -> dict[str, float]:
    return {key: float(value) for key, _, value in (part.partition("=") for part in place.variant.split())}
