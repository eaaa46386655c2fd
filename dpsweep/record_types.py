"""What each field of a record may hold, so that whatever reads records can rely on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A kind of value in words, and the test for it."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int) and value >= 0


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _is_events(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, list) and len(item) == 2 and isinstance(item[0], dict) and _is_count(item[1]) for item in value
    )


def _is_diagnostics(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("epochs"), list):
        return False
    return _is_number_or_null(value.get("clipped_fraction")) and all(
        isinstance(epoch, dict)
        and isinstance(quantiles := epoch.get("norm_quantiles"), dict)
        and "0.5" in quantiles
        and all(map(_is_number_or_null, (epoch.get("loss"), epoch.get("clipped_fraction"), *quantiles.values())))
        for epoch in value["epochs"]
    )


def _is_curves(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _list_of(_is_number_or_null)(points) if name in ("epoch", "accuracy", "loss", "epsilon") else _is_number_or_null(points)
        for name, points in value.items()
    )


def _is_number_or_null(value: Any) -> bool:
    return value is None or _is_number(value)


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_rate(value: Any) -> bool:
    try:
        return isinstance(value, str) and 0 < Fraction(value) <= 1
    except (ValueError, ZeroDivisionError):
        return False


TEXT, FLAG = Kind("a text", _is_text), Kind("true or false", lambda value: isinstance(value, bool))
NUMBER, COUNT = Kind("a number", _is_number), Kind("a whole number of 0 or more", _is_count)
NOT_NEGATIVE = Kind("a number of 0 or more", lambda value: _is_number(value) and value >= 0)
POSITIVE = Kind("a whole number of 1 or more", lambda value: _is_count(value) and value > 0)
RATE = Kind("a rate above 0 and up to 1 as a text, such as 1/20", _is_rate)
MAPPING = Kind("a mapping", lambda value: isinstance(value, dict))
SHARE = Kind("a number from 0 to 1", _is_share)

REQUIRED = ("id", "status", "dataset", "model", "mechanism", "seed", "config")
KINDS: dict[str, Kind] = {
    **dict.fromkeys(
        ("id", "status", "dataset", "model", "mechanism", "optimizer", "accountant", "run", "adjacency", "protects",
         "guarantee_reason", "guarantee_text", "noise_source", "data_fingerprint", "device", "engine", "started",
         "finished", "host", "selection", "weights_sha256"),
        TEXT,
    ),
    **dict.fromkeys(
        ("seed", "repeat", "reference_size", "steps", "normalizer", "batch_size", "epochs", "trainable_parameters",
         "stored_parameters", "stored_bytes", "macs", "train_size", "unused_size", "test_size", "threads", "attempts"),
        COUNT,
    ),
    **dict.fromkeys(("target_epsilon", "target_noise_multiplier", "max_grad_norm", "peak_memory_growth"), NUMBER),
    **dict.fromkeys(
        ("delta", "noise_multiplier", "s_min_least", "s_min_mean", "epsilon_claimed", "epsilon", "epsilon_if_secure",
         "epsilon_realised", "seconds_train", "seconds_features", "seconds_train_with_features", "seconds_setup",
         "seconds_total"),
        NOT_NEGATIVE,
    ),
    **dict.fromkeys(
        ("test_accuracy", "test_precision", "test_recall", "test_f1", "test_auroc", "test_auprc", "majority_accuracy"), SHARE
    ),
    **dict.fromkeys(("diverged", "features_cached", "alone", "data_official", "public", "claim_only"), FLAG),
    **dict.fromkeys(("config", "versions", "error"), MAPPING),
    "sample_rate": RATE,
    "input_shape": Kind("a list of whole numbers", _list_of(_is_count)),
    "resumed_at": Kind("a list of whole numbers", _list_of(_is_count)),
    "unprotected": Kind("a list of texts", _list_of(_is_text)),
    "events": Kind("a list of pairs of an event and its count", _is_events),
    "diagnostics": Kind("diagnostics by epoch", _is_diagnostics),
    "curves": Kind("curves by epoch", _is_curves),
    # Of single mechanisms.
    **dict.fromkeys(("laplace_scale", "kappa", "r", "alpha"), NUMBER),
}  # fmt: skip


# The canonical configuration's keys that are read again, and those that none lacks. What else a group holds is its own.
CONFIG_REQUIRED = ("seed", "dataset.name", "dataset.reference_size", "model.name", "mechanism.name")
CONFIG_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("dataset", "model", "mechanism", "optimizer", "accountant", "noise"), MAPPING),
    **dict.fromkeys(
        ("dataset.name", "dataset.profile", "model.name", "mechanism.name", "optimizer.name", "accountant.name", "noise.source",
         "run", "split", "augment"),
        TEXT,
    ),
    **dict.fromkeys(("seed", "split_seed", "protocol"), COUNT),
    **dict.fromkeys(("dataset.reference_size", "batch_size", "epochs", "steps", "repeat"), POSITIVE),
    **dict.fromkeys(("epsilon", "delta", "noise_multiplier", "optimizer.lr"), NUMBER),
    **dict.fromkeys(("curves", "diagnostics"), FLAG),
    "sample_rate": RATE,
}  # fmt: skip


def mistyped(record: dict[str, Any]) -> str | None:
    """The first field of a record, or key of its configuration, that holds what it can't, in words; None if there is none.
    Null stands for unknown."""
    config = record.get("config") or {}
    return _first_wrong("", KINDS, REQUIRED, record.get) or _first_wrong(
        "config.", CONFIG_KINDS, CONFIG_REQUIRED, lambda key: _within(config, key)
    )


def _first_wrong(prefix: str, kinds: dict[str, Kind], required: Iterable[str], get: Callable[[str], Any]) -> str | None:
    for key, (words, fits) in kinds.items():
        value = get(key)
        if value is None:
            if key in required:
                return f"it lacks its {prefix}{key}"
        elif not fits(value):
            return f"its {prefix}{key} is not {words}"
    return None


def _within(config: Any, key: str) -> Any:
    """The value of a dotted key; None where there is none."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, dict) else None
    return config
