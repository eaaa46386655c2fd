"""What a suite may say about its report, checked before anything runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.errors import UsageError
from dpsweep.report.load import LABELS, flatten, metrics_of

_SPEC_KEYS = ("paper", "metrics", "compare", "figures")
_COMPARE_KEYS = ("by", "reference", "metrics", "private")


def check(spec: Any) -> None:
    """Refuse mistakes by name.

    Raises `UsageError`.
    """
    if not isinstance(spec, Mapping):
        raise UsageError(f"The suite's report is {spec!r}: write a mapping with the keys {', '.join(_SPEC_KEYS)}.")
    for key in spec:
        if key not in _SPEC_KEYS:
            raise UsageError(f"The suite's report has the key {key!r}, which means nothing. Choose from {', '.join(_SPEC_KEYS)}.")
    for key in ("metrics", "figures"):
        _check_metrics(f"report.{key}", spec.get(key))
    if spec.get("paper") is not None:
        from dpsweep.report.paper import load_paper

        load_paper(spec["paper"])
    compare = spec.get("compare") or {}
    if not isinstance(compare, Mapping) or (compare and "reference" not in compare) or set(compare) - set(_COMPARE_KEYS):
        raise UsageError(
            f"The suite's report.compare is {compare!r}: write {{by: LABEL, reference: VALUE}}, and if you like "
            "metrics: [NAME, ...] (else those of the report) and private: true (no contrasts without privacy)."
        )
    _check_metrics("report.compare.metrics", compare.get("metrics"))
    if not isinstance(compare.get("private", False), bool):
        raise UsageError(f"The suite's report.compare.private is {compare['private']!r}: write true or false.")


def _check_metrics(key: str, value: Any) -> None:
    if isinstance(value or [], str) or not isinstance(value or [], Sequence):
        raise UsageError(f"The suite's {key} is {value!r}: write a list, such as [accuracy].")
    metrics_of(value or [])


def check_compare(spec: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a comparison by a label, or with a reference, that none of a suite's tasks has.

    Args:
        spec: the suite's report, already checked by itself.
        tasks: the labels of all its tasks, each with its canonical `config`.

    Raises `UsageError` with the values that there are.
    """
    compare = spec.get("compare")
    if not compare:
        return
    by, reference = str(compare.get("by", "model")), str(compare["reference"])
    values: dict[str, None] = {}
    for task in tasks:
        keys = flatten(task["config"])
        found = [task.get(by)] if by in LABELS else [v for key, v in keys.items() if by in (key, key.rsplit(".", 1)[-1])]
        values |= dict.fromkeys(v if isinstance(v, str) else json.dumps(v) for v in found if v is not None)
    if not values:
        raise UsageError(
            f"The suite's report.compare.by is {by!r}, which is no label and no key of its tasks. Choose from "
            f"{', '.join(LABELS)}, or a key that differs between them."
        )
    if reference not in values:
        raise UsageError(
            f"The suite's report.compare.reference is {reference!r}, and no task has that {by}. Choose from {', '.join(values)}."
        )
