"""`dpsweep show TASK`: find one record, and tell it in words."""

from __future__ import annotations

import difflib
import time
from pathlib import Path
from typing import Any

from dpsweep.describe import describe
from dpsweep.errors import UsageError
from dpsweep.records import Records, read_record
from dpsweep.sweep import span

_MANY = 8  # names that an error lists


def show(word: str, records: Records) -> str:
    """The record that a task's id, the beginning of one, or a path names, in words.

    Raises:
        UsageError: there is none, there are several, or it is no valid record.
    """
    path = Path(word) if "/" in word or word.endswith(".json") else records.path(_named(word, records))
    record, reason = read_record(path)
    if record is None:
        raise UsageError(f"show {word}: {path} is no valid record: {reason or 'there is no such file'}")
    text = [describe(record), f"  made       {_made(record)}", f"  record     {path}"]
    weights, missing = records.weights_of(record, path.with_suffix(".pt"))
    if weights:
        text.append(f"  weights    {weights}: torch.load(PATH, weights_only=True)")
    elif record["weights_sha256"]:
        text.append(f"  weights    {missing}")
    if trace := (record["error"] or {}).get("traceback"):
        text.append(f"\n{trace.rstrip()}")
    return "\n".join(text)


def _named(word: str, records: Records) -> str:
    """The one recorded task whose id begins so."""
    names = sorted(file.stem for file in records.folder.glob("*.json"))
    found = [word] if word in names else [name for name in names if name.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        more = f"\n  and {len(found) - _MANY} more" if len(found) > _MANY else ""
        raise UsageError(f"show {word}: {len(found)} records begin so:\n  " + "\n  ".join(found[:_MANY]) + more)
    for name, note in records.running().items():
        if name.startswith(word):
            since = span(max(0.0, time.time() - note["since"]))
            raise UsageError(f"show {word}: {name} has no record yet: it runs since {since} on {note['host']}")
    near = [name for name in names if word in name][:_MANY] or difflib.get_close_matches(word, names, n=3, cutoff=0.4)
    hint = " Near it:\n  " + "\n  ".join(near) if near else " Another folder is named with output_dir=PATH"
    raise UsageError(f"show {word}: none of the {len(names)} records in {records.folder} begins so.{hint}")


def _made(record: dict[str, Any]) -> str:
    versions = record["versions"] or {}
    known = [package for package in ("dpsweep", "torch", "opacus", "python") if package in versions]
    by = ", ".join(f"{package} {versions[package]}" for package in known) or "unknown versions"
    until = f" to {record['finished']}" if record["finished"] else ""
    return f"{record['started'] or 'at an unknown time'}{until} on {record['host'] or 'an unknown machine'}, by {by}"
