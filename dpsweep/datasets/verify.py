"""The report of `dpsweep data verify`: what each dataset's files are, held against what is known of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from dpsweep.datasets.base import MissingData, Reader
from dpsweep.errors import UsageError

_WORDS = {True: "ok", False: "WRONG", None: "-"}


def verify_report(readers: Mapping[str, Reader], data_dir: Path, required: Collection[str] = ()) -> tuple[str, bool]:
    """Verify the datasets, by name, and lay the findings out as plain text.

    Returns the text and whether all is well. Broken files and findings that differ are not well; a missing dataset is
    named with what gets it, and is not well only if it is among `required` (those that the user asked for by name).
    """
    rows: list[tuple[str, ...]] = [("dataset", "check", "expected", "found", "result")]
    notes: list[str] = []
    well = True
    for name, reader in readers.items():
        try:
            findings = reader.verify(data_dir)
        except MissingData as error:
            rows.append((name, "files", "present", "missing", _WORDS[False if name in required else None]))
            notes.append(str(error))
            well = well and name not in required
        except UsageError as error:
            rows.append((name, "files", "readable", "broken", _WORDS[False]))
            notes.append(str(error))
            well = False
        else:
            rows.extend((name, f.what, f.expected, f.found, _WORDS[f.ok]) for f in findings)
            well = well and all(f.ok is not False for f in findings)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, *(f"\n{note}" for note in notes)]) + "\n", well
