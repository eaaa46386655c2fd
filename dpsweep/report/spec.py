"""What a suite may say about its report, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpsweep.errors import UsageError
from dpsweep.report.load import metrics_of

_SPEC_KEYS = ("metrics", "compare", "figures")


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
        value = spec.get(key) or []
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise UsageError(f"The suite's report.{key} is {value!r}: write a list, such as [accuracy].")
        metrics_of(value)
    compare = spec.get("compare") or {}
    if not isinstance(compare, Mapping) or (compare and set(compare) | {"by"} != {"by", "reference"}):
        raise UsageError(f"The suite's report.compare is {compare!r}: write {{by: LABEL, reference: VALUE}}.")
