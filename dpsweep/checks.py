"""What a composed configuration must satisfy: single values, and what goes with what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import isfinite
from typing import Any

from dpsweep.errors import UsageError


class ImpossiblePair(UsageError):
    """Options that are fine by themselves and can't go together: an error alone, left out of a grid."""


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def fraction(value: Any) -> Fraction:
    """An exact rate from 70/7007, "1/20" or 0.05 (the decimal as written, not its binary neighbour)."""
    return Fraction(str(value))


def _is_int(least: int) -> Any:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= least


def _is_real(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def _is_rate(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and 0 < fraction(value) <= 1
    except (ValueError, ZeroDivisionError):
        return False


_COUNT = (lambda v: v is None or _is_int(1)(v), "an integer of at least 1, or null")
_POSITIVE = (lambda v: _is_real(v) and v > 0, "a finite number above 0")
_CHECKS: dict[str, tuple[Any, str]] = {
    "epsilon": (lambda v: v is None or (_is_real(v) and v > 0),
                "a finite budget above 0, or none for training without privacy"),
    "delta": (lambda v: _is_real(v) and 1e-300 < v < 1, "a number strictly between 0 and 1, such as 1e-5"),
    "seed": (lambda v: _is_int(0)(v) and v < 2**63, "an integer from 0 to 2^63-1"),
    "split": (lambda v: v in ("dp_rvfl", "official", "subset", "subset_tuning", "official_validation"),
              "dp_rvfl, official, subset, subset_tuning or official_validation"),
    "split_seed": (_is_int(0), "an integer of at least 0"),
    "sample_rate": (lambda v: v is None or _is_rate(v), "a rate in (0, 1], such as 0.04 or 70/7007, or null"),
    "noise.source": (lambda v: v in ("secure", "seeded"), "secure or seeded"),
    "noise.hardening": (lambda v: v in (None, "sum4"), "null or sum4"),
    "run": (lambda v: v is None or (isinstance(v, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,40}", v)),
            "a label of letters, digits, - and _, or null"),
    "selection": (lambda v: v is None or (isinstance(v, str) and 0 < len(v) <= 500), "a text of at most 500 characters, or null"),
    "noise_multiplier": (lambda v: v is None or (_is_real(v) and 1e-6 < v < 1e6),
                         "a finite number above 1e-6 and below 1e6, or null"),
    "augment": (lambda v: v in (None, "crop_flip"), "crop_flip or null"),
    **dict.fromkeys(("curves", "diagnostics"), (lambda v: v is None or v is True, "true or null")),
    "engine": (lambda v: v in ("default", "uncached", "vmap", "reference"), "default, uncached, vmap or reference"),
    "device": (lambda v: isinstance(v, str) and re.fullmatch(r"auto|cpu|cuda(:\d+)?", v), "auto, cpu or cuda"),
    "on_error": (lambda v: v in ("continue", "stop"), "continue or stop"),
    "retry": (lambda v: v in ("failed", "none", "all"), "failed, none or all"),
    "executions": (lambda v: v in ("first", "last"), "first or last"),
    "force": (lambda v: isinstance(v, bool), "true or false"),
    "task_timeout": (lambda v: v is None or (_is_real(v) and v > 0), "a number of seconds above 0, or null"),
    "output_dir": (lambda v: isinstance(v, str) and v != "", "a folder's path"),
    "data.dir": (lambda v: v is None or (isinstance(v, str) and v != ""), "a folder's path, or null"),
    "executor.address": (lambda v: v is None or (isinstance(v, str) and v != ""), "host:port of a running cluster, or null"),
    "executor.cpus": (_is_int(1), "an integer of at least 1"),
    "executor.gpus": (lambda v: _is_real(v) and (0 <= v < 1 or v == int(v) > 0),
                      "a whole number, or a part of one GPU such as 0.25,"),
    "executor.data": (lambda v: v in ("ship", "node"), "ship or node"),
    "executor.launcher": (lambda v: isinstance(v, str) and re.fullmatch(r"\w+", v), "the name of one of Hydra's launchers"),
    "executor.options": (lambda v: v is None, "a mapping of the launcher's keys, such as {n_jobs: 2}, or null"),
    "executor.tasks_per_job": (_is_int(1), "an integer of at least 1"),
    "optimizer.lr": _POSITIVE,
    "optimizer.momentum": (lambda v: _is_real(v) and 0 <= v < 1, "a number of at least 0 and below 1"),
    "mechanism.max_grad_norm": (lambda v: _is_real(v) and 1e-15 < v < 1e15, "a number between 1e-15 and 1e15"),
    "dataset.reference_size": (_is_int(1), "an integer of at least 1"),
    **dict.fromkeys(("batch_size", "epochs", "steps", "repeat", "threads", "workers", "physical_batch", "checkpoint.every"),
                    _COUNT),
}  # fmt: skip


# What a group's YAML must say; everything else is an argument of its class.
_REQUIRED = {
    "dataset": ("name", "_target_", "kind", "classes", "shape", "reference_size", "schedule"),
    "model": ("name", "_target_"), "mechanism": ("name", "_target_"), "optimizer": ("name", "_target_"),
    "executor": ("name", "_target_"), "accountant": ("name",),
}  # fmt: skip


def check_values(values: dict[str, Any]) -> None:
    """Refuse a configuration that lacks a key or has a value that its key can't have; numbers become what they stand for."""
    for group, keys in _REQUIRED.items():
        missing = [key for key in keys if key not in values[group]]
        if missing:
            raise UsageError(f"{group}={values[group].get('name', '?')}: its YAML lacks {', '.join(missing)}")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", name := str(values[group]["name"])):  # it becomes part of paths
            raise UsageError(f"{group}={name}: its YAML's `name` must be at most 60 letters, digits, - . and _")
    flat = flatten(values)
    for key, (accepts, needed) in _CHECKS.items():
        if key in flat and not accepts(flat[key]):
            raise UsageError(f"{key}={flat[key]}: {needed} is needed")
    values["epsilon"] = None if values["epsilon"] is None else float(values["epsilon"])
    values["delta"] = float(values["delta"])
    _apply_profile(values["dataset"])


def _apply_profile(dataset: dict[str, Any]) -> None:
    """Give a dataset the shape of its profile. Null means the first one; either way of writing it is one task."""
    profiles, profile = dataset.get("profiles"), dataset.get("profile")
    if profiles is None or profile is None:
        return
    if not isinstance(profile, str) or profile not in profiles:
        raise UsageError(f"dataset.profile={profile}: dataset={dataset['name']} has the profiles {', '.join(profiles)}")
    dataset["shape"] = profiles[profile]
    if profile == next(iter(profiles)):
        dataset["profile"] = None


def is_private(values: dict[str, Any]) -> bool:
    """Whether a configuration asks for privacy: by a budget, or by a given amount of noise."""
    return values["epsilon"] is not None or values["noise_multiplier"] is not None


def choose_target(values: dict[str, Any], explicit: frozenset[str]) -> None:
    """A given noise multiplier takes the place of the default budget."""
    if values["noise_multiplier"] is None:
        return
    if "epsilon" in explicit and values["epsilon"] is not None:
        raise UsageError(
            f"noise_multiplier={values['noise_multiplier']} with epsilon={values['epsilon']:g}: the budget decides the noise, or "
            "the noise what is spent. Give one of them"
        )
    values["epsilon"], values["noise_multiplier"] = None, float(values["noise_multiplier"])


def check_pairs(values: dict[str, Any], explicit: frozenset[str]) -> None:
    """Refuse options that don't go together, and settle what follows from them: the schedule, and what the mechanism ignores."""
    mechanism, dataset, model = values["mechanism"], values["dataset"], values["model"]
    if not mechanism.get("private", True):
        if "epsilon" in explicit and values["epsilon"] is not None:
            raise ImpossiblePair(
                f"mechanism={mechanism['name']} with epsilon={values['epsilon']:g}: this mechanism gives no privacy, so it "
                "can't meet a budget. Write epsilon=none, or choose a private mechanism such as mechanism=gaussian"
            )
        if values["noise_multiplier"] is not None:
            raise ImpossiblePair(
                f"mechanism={mechanism['name']} with noise_multiplier={values['noise_multiplier']:g}: this mechanism adds no "
                "noise. Leave noise_multiplier out, or choose a private mechanism such as mechanism=gaussian"
            )
        values["epsilon"] = None
    if "threads" in explicit and "cpus" in values["executor"]:
        raise UsageError(
            f"threads={values['threads']} with executor={values['executor']['name']}: there a task has as many threads as cores. "
            f"Write executor.cpus={values['threads']}"
        )
    _check_partners(values)
    unused = _drop_unused(values, explicit)
    kinds = model.get("inputs", ["image", "table"])
    if dataset["kind"] not in kinds:
        raise ImpossiblePair(
            f"model={model['name']} with dataset={dataset['name']}: this model reads {' and '.join(kinds)} data and the "
            f"dataset is of kind {dataset['kind']}. Choose another model or dataset"
        )
    if values["augment"]:
        _check_augment(values["augment"], dataset, model)
    if values["diagnostics"] and not dataset.get("public", False):
        raise UsageError(
            f"diagnostics=true with dataset={dataset['name']}: losses and gradient norms are read from the training records "
            "without noise, and the dataset is not marked public. Leave diagnostics out, or set dataset.public=true if "
            "everyone may know its records"
        )
    subset = dataset["kind"] == "image" and values["split"] in ("subset", "subset_tuning")
    if subset and "dataset.reference_size" not in explicit:
        from dpsweep.datasets.base import SUBSET_TRAIN

        dataset["reference_size"] = min(dataset["reference_size"], SUBSET_TRAIN)  # N0 of the whole would make m0 far too large
    given = (values["sample_rate"] is not None, values["steps"] is not None)
    if any(given) and not all(given):
        key, other = ("sample_rate", "steps") if given[0] else ("steps", "sample_rate")
        raise UsageError(f"{key}={values[key]}: sample_rate and steps belong together; give {other} too")
    for key in ("batch_size", "epochs"):
        if all(given) and values[key] is not None:
            raise UsageError(f"{key}={values[key]}: the schedule is already fixed by sample_rate and steps; leave one pair out")
        if not all(given) and key not in unused:
            values[key] = dataset["schedule"][key] if values[key] is None else values[key]
            if not _is_int(1)(values[key]):
                raise UsageError(f"dataset.schedule.{key}={values[key]}: an integer of at least 1 is needed")


def _check_augment(augment: str, dataset: dict[str, Any], model: dict[str, Any]) -> None:
    """Only images can be shifted and mirrored, and only a model that reads them anew in each step learns from it."""
    if dataset["kind"] != "image":
        raise ImpossiblePair(
            f"augment={augment} with dataset={dataset['name']}: only images are cropped and flipped, and the dataset is of kind "
            f"{dataset['kind']}. Leave augment out"
        )
    if model.get("frozen", False):
        raise ImpossiblePair(
            f"augment={augment} with model={model['name']}: its frozen layers see each record once, before training. Leave "
            "augment out, or choose a model that is trained whole, such as model=cnn"
        )


def _check_partners(values: dict[str, Any]) -> None:
    """A model may name the mechanisms that it goes with (`mechanisms` in its YAML), and a mechanism its `models`."""
    for group, other in (("model", "mechanism"), ("mechanism", "model")):
        name, partner, allowed = values[group]["name"], values[other]["name"], values[group].get(f"{other}s")
        if allowed is not None and partner not in allowed:
            raise ImpossiblePair(
                f"{group}={name} with {other}={partner}: {group}={name} goes with {' or '.join(f'{other}={a}' for a in allowed)} "
                f"alone. Write {group}={name} {other}={allowed[0]}, or choose another {group}"
            )


def _drop_unused(values: dict[str, Any], explicit: frozenset[str]) -> list[str]:
    """Null what the mechanism doesn't use (`unused` in its YAML): it can't change the result, so it names no task."""
    mechanism = values["mechanism"]
    unused = mechanism.get("unused", [])
    for key in unused:
        *path, last = key.split(".")
        node = values
        for part in path:
            node = node.get(part) or {}
        if last not in node:
            raise UsageError(f"mechanism={mechanism['name']}: its YAML lists {key} as unused, and there is no such key")
        node[last] = None
        if given := sorted(name for name in explicit if name == key or name.startswith(f"{key}.")):
            raise ImpossiblePair(
                f"{', '.join(given)} with mechanism={mechanism['name']}: this mechanism doesn't use {key}, so it would change "
                "nothing. Leave it out"
            )
    return unused
