"""Lines and cells of CSV files, read with distrust. No message quotes what a record holds."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpsweep.errors import UsageError

Row = tuple[int, list[str]]  # the number of the line on which a row ends, and its cells


def read_rows(content: bytes, path: Path, delimiter: str) -> Iterator[Row]:
    """The rows of a CSV file in UTF-8, one by one, without blank lines; quoted cells may hold line breaks.

    Raises `UsageError` that names the file and the line for other encodings and broken quotes.
    """
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline=""), delimiter=delimiter, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except (UnicodeDecodeError, csv.Error) as error:
        reason = "it isn't UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise UsageError(
            f"{path}, after line {reader.line_num}: this is not a text file with '{delimiter}' between its cells ({reason}). "
            "Save it as CSV in UTF-8."
        ) from None


def check_widths(rows: Sequence[Row], width: int, path: Path, delimiter: str) -> None:
    """Raise `UsageError` unless there are rows, and all have `width` cells."""
    if not rows:
        raise UsageError(f"{path} holds no records. Fetch or write it again.")
    for line, row in rows:
        if len(row) != width:
            raise UsageError(
                f"{path}, line {line}: {len(row)} cells with '{delimiter}' between them, where {width} are needed. "
                "Use the original file, or repair that line."
            )
