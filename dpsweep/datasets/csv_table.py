"""A user's own CSV file as a dataset, described by its YAML alone."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.datasets.base import (
    VERIFIED_SEED,
    VERIFIED_SPLIT,
    Dataset,
    Finding,
    assemble,
    compare,
    divide,
    is_present,
    read_bytes,
    told,
)
from dpsweep.datasets.base import missing as missing_data
from dpsweep.datasets.csv_files import check_widths, read_rows
from dpsweep.datasets.encoder import FixedBoundEncoder, read_bounds
from dpsweep.datasets.levels import Levels
from dpsweep.errors import UsageError

_EXAMPLES = {"numeric": "age: [0, 120]", "categorical": "sex: [f, m]"}
MISSING = ("", "?", "NA", "N/A", "na", "NaN", "nan", "null")


class CsvTable:
    """Records from a CSV file: a header line, a label column, fields encoded by fixed bounds and levels.

    A record's row depends on that record and on the YAML alone (`FixedBoundEncoder`), so the encoding costs no privacy.
    In a numeric field, a cell that isn't a finite number is missing; in a categorical field, a cell that is none of the
    levels is "unknown". Columns that the YAML doesn't name are not used. No message quotes a cell.

    Args:
        name, shape, classes: as in the YAML. The shape must be `[features]`: two a numeric field, levels + 1 a categorical one.
        file: a path, looked for in the data folder unless it is absolute. UTF-8.
        label: `{column: NAME, classes: [...]}`, the classes in the order of their numbers, any other cell being refused; or
            `{column: NAME, positive: [...]}`, the levels that make class 1, any other cell that isn't missing being class 0.
        numeric: field -> [lowest, highest], in the field's unit: public constants, never read from the records.
        categorical: field -> its levels, numbers or texts (see `Levels`).
        separator: one character.
        columns: the names of all columns, where the file has no header line.
        missing: cells that stand for no value, numbers or texts; without `missing`, those of `MISSING`.
        test_file: a second file of the same form, which is the test part; all of `file` is then the training part. Without
            it `file` is split 70 / 15 / 15 by the permutation of the split seed.

    Raises:
        UsageError: an argument makes no sense; nothing of the files is read for that.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        classes: int,
        file: str,
        label: Mapping[str, Any],
        numeric: Mapping[str, Sequence[float]] | None = None,
        categorical: Mapping[str, Sequence[Any]] | None = None,
        separator: str = ",",
        columns: Sequence[str] | None = None,
        missing: Sequence[Any] | None = None,
        test_file: str | None = None,
    ) -> None:
        self._name, self._classes = name, classes
        self._label = _Label(label, classes)
        for key, fields in (("numeric", numeric), ("categorical", categorical)):
            if not isinstance(fields, Mapping | None):
                raise UsageError(
                    f"dataset.{key}={fields!r}: a mapping from fields is needed, such as {key}: {{{_EXAMPLES[key]}}}"
                )
        bounds = {str(field): read_bounds(pair, f"dataset.numeric.{field}") for field, pair in (numeric or {}).items()}
        self._levels = {str(f): Levels(levels, f"dataset.categorical.{f}") for f, levels in (categorical or {}).items()}
        self._encoder = FixedBoundEncoder(bounds, {field: range(len(levels)) for field, levels in self._levels.items()})
        self._missing = Levels(MISSING if missing is None else missing, "dataset.missing")
        self._fields = [*bounds, *self._levels]
        if not self._fields or self._label.column in self._fields:
            raise UsageError(
                f"dataset={name}: fields are needed under `numeric` or `categorical`, and the label column "
                f"{self._label.column!r} can't be one of them"
            )
        if list(shape) != [self._encoder.features]:
            raise UsageError(
                f"dataset.shape={list(shape)}: the fields of dataset={name} give {self._encoder.features} columns (two a numeric "
                f"field, levels + 1 a categorical one). Write shape: [{self._encoder.features}]"
            )
        if not isinstance(separator, str) or len(separator) != 1 or separator in '"\r\n':
            raise UsageError(f"dataset.separator={separator!r}: one character is needed, such as ',' or ';' or \"\\t\"")
        self._separator = separator
        self._columns = None if columns is None else [str(column) for column in columns]
        if self._columns is not None:
            self._positions(self._columns, "dataset.columns")
        self._files = [file] if test_file is None else [file, test_file]
        if not all(isinstance(part, str) and part for part in self._files):
            raise UsageError(f"dataset={name}: `file` and `test_file` must be paths of CSV files, not {self._files}")

    def check(self, data_dir: Path) -> None:
        """See that the files are there and name the columns.

        Raises:
            MissingData: a file is not there.
            UsageError: it can't be read, or its header lacks a column.
        """
        for path in self._paths(data_dir):
            if not is_present(path):
                raise missing_data(self._name, path.name, path.parent, "Put it there, or mend `file` in the dataset's YAML.")
            first = next(read_rows(read_bytes(path, None), path, self._separator), None)
            if first is not None and self._columns is None:
                self._positions(_stripped(first[1]), str(path))

    def load(self, data_dir: Path, split: str, split_seed: int) -> Dataset:
        """Read, encode and split; with a test file the split and its seed change nothing."""
        parts = [(self._encoder.encode(columns), labels) for columns, labels in self._read(data_dir)]
        train, test, unused = divide(parts, split, split_seed, self._files[0])
        return assemble(self._name, "table", train, test, self._classes, None, " and ".join(self._files), unused)

    def verify(self, data_dir: Path) -> list[Finding]:
        """What the files hold, for the eyes of their owner: records, classes, and cells that say nothing, by field."""
        dataset = self.load(data_dir, VERIFIED_SPLIT, VERIFIED_SEED)
        empty = Counter[str]()
        for columns, _ in self._read(data_dir):
            empty.update({field: int(np.isnan(column).sum()) for field, column in columns.items()})

        def cells(fields: Iterable[str]) -> str:
            return ", ".join(f"{field} {empty[field]}" for field in fields) or "-"

        return [
            *told(dataset, compare("features", self._encoder.features, dataset.x_train.shape[1])),
            Finding("cells without a number", "-", cells(self._encoder.numeric), None),
            Finding("cells without a known level", "-", cells(self._levels), None),
        ]

    def _paths(self, data_dir: Path) -> list[Path]:
        return [data_dir / Path(file).expanduser() for file in self._files]

    def _read(self, data_dir: Path) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
        """The columns by field, float64 (n,), NaN where missing or unknown, and the labels, int64 (n,), of each file."""
        self.check(data_dir)
        return [self._read_file(path) for path in self._paths(data_dir)]

    def _read_file(self, path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
        rows = list(read_rows(read_bytes(path, None), path, self._separator))
        names = self._columns or _stripped(rows.pop(0)[1] if rows else [])
        check_widths(rows, len(names), path, self._separator)
        positions = self._positions(names, str(path))

        def cells(field: str) -> list[str]:
            return [row[positions[field]] for _, row in rows]

        columns = {field: self._numbers(cells(field)) for field in self._encoder.numeric}
        for field, levels in self._levels.items():
            codes = levels.codes(cells(field))
            columns[field] = np.where(codes < 0, np.nan, codes)
        labels = self._label.codes(cells(self._label.column), self._missing)
        if (labels < 0).any():
            raise UsageError(
                f"{path}, line {rows[int(np.argmin(labels))][0]}: the label is missing or none of those that "
                f"dataset={self._name} names. Mend the line, or the YAML's `label`."
            )
        return columns, labels

    def _numbers(self, cells: Sequence[str]) -> np.ndarray:
        values = np.full(len(cells), np.nan)
        for at, cell in enumerate(cells):
            with contextlib.suppress(ValueError):
                values[at] = float(cell)
        values[~np.isfinite(values) | (self._missing.codes(cells) >= 0)] = np.nan
        return values

    def _positions(self, names: Sequence[str], where: str) -> dict[str, int]:
        """Where each needed column stands among the names; the names found are not quoted, for they may be a record."""
        needed = [self._label.column, *self._fields]
        lacking = [name for name in needed if name not in names]
        if lacking:
            raise UsageError(
                f"{where}: there is no column {', '.join(lacking)}, which the YAML of dataset={self._name} names, with "
                f"{self._separator!r} between the columns. Mend the names or `separator`; a file without a header line needs "
                "the names of all its columns under `columns`."
            )
        twice = [name for name in needed if list(names).count(name) > 1]
        if twice:
            raise UsageError(f"{where}: the column {', '.join(twice)} is there more than once. Rename one of them.")
        return {name: list(names).index(name) for name in needed}


class _Label:
    """Which class a cell of the label column stands for."""

    def __init__(self, node: Any, classes: int) -> None:
        if not isinstance(node, Mapping) or sorted(node) not in (["classes", "column"], ["column", "positive"]):
            raise UsageError(
                "dataset.label: write {column: NAME, classes: [...]} with all classes in order, or {column: NAME, "
                f"positive: [...]}} with the levels of class 1. It reads {dict(node) if isinstance(node, Mapping) else node!r}"
            )
        self.column = str(node["column"])
        self._binary = "positive" in node
        key = "positive" if self._binary else "classes"
        listed = node[key] if isinstance(node[key], list) else [node[key]]
        self._levels = Levels(listed, f"dataset.label.{key}")
        count = 2 if self._binary else len(self._levels)
        if count != classes or count < 2:
            raise UsageError(
                f"dataset.classes={classes}: dataset.label gives {count}. Write classes: {max(2, count)}, or mend the label"
            )

    def codes(self, cells: Sequence[str], missing: Levels) -> np.ndarray:
        """The class of each cell, int64 (n,); negative where it has none."""
        codes = self._levels.codes(cells)
        if self._binary:
            codes = (codes >= 0).astype(np.int64)
        return np.where(missing.codes(cells) >= 0, -1, codes)


def _stripped(cells: Sequence[str]) -> list[str]:
    return [cell.strip() for cell in cells]
