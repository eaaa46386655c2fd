"""The tables of the DP-RVFL paper, Heart and Cardio, and a strict reader of numeric CSV files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dpsweep.datasets.base import (
    VERIFIED_SEED,
    VERIFIED_SPLIT,
    Dataset,
    Finding,
    assemble,
    class_counts,
    compare,
    compare_fingerprint,
    is_present,
    missing,
    read_bytes,
    split_table,
)
from dpsweep.datasets.csv_files import check_widths, read_rows
from dpsweep.datasets.encoder import FixedBoundEncoder
from dpsweep.errors import UsageError

MISSING_CELLS = {"", "?", "na", "nan"}  # compared without case and surrounding blanks

HEART_SHA256 = "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"
HEART_FINGERPRINT = "d02ada5a59b20299e3b1b13e44d370878a02156da98a86642acd2fb7354f3e64"
CARDIO_SHA256 = "21a705d23381b0dfd6a6416da701b490744f1fc3b47e9ff3db3968c420ffa10c"
CARDIO_FINGERPRINT = "3e75956cb889f6aaefa08142f5e286fb34c4b357d3780d641297ba9a860094ae"

HEART_COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg",
    "thalach", "exang", "oldpeak", "slope", "ca", "thal", "target",
)  # fmt: skip
HEART_ENCODER = FixedBoundEncoder(
    numeric={
        "age": (0, 120),  # years
        "trestbps": (40, 300),  # mmHg
        "chol": (0, 700),  # mg/dl
        "thalach": (30, 250),  # beats a minute
        "oldpeak": (0, 10),  # mm of ST depression
    },
    categorical={
        "cp": (0, 1, 2, 3, 4),
        "restecg": (0, 1, 2),
        "slope": (0, 1, 2, 3),
        "ca": (0, 1, 2, 3, 4),
        "thal": (0, 1, 2, 3, 6, 7),
        "sex": (0, 1),
        "fbs": (0, 1),
        "exang": (0, 1),
    },
)

CARDIO_COLUMNS = (
    "id", "age", "gender", "height", "weight", "ap_hi", "ap_lo",
    "cholesterol", "gluc", "smoke", "alco", "active", "cardio",
)  # fmt: skip
CARDIO_ENCODER = FixedBoundEncoder(
    numeric={
        "age_years": (0, 120),
        "height": (100, 250),  # cm
        "weight": (20, 300),  # kg
        "ap_hi": (40, 300),  # mmHg
        "ap_lo": (20, 200),  # mmHg
        "bmi": (5, 100),  # kg/m^2
    },
    categorical={
        "gender": (1, 2),
        "cholesterol": (1, 2, 3),
        "gluc": (1, 2, 3),
        "smoke": (0, 1),
        "alco": (0, 1),
        "active": (0, 1),
    },
)


class Heart:
    """UCI heart disease, `processed.cleveland.data`: 303 records; label 1 where the diagnosis is above 0.

    Source: Detrano et al. (1989), UCI Machine Learning Repository 45; encoded as in DP-RVFL.
    """

    file = "processed.cleveland.data"

    def check(self, data_dir: Path) -> None:
        """Raise `MissingData` unless the file is there."""
        _require("heart", data_dir, self.file)

    def load(self, data_dir: Path, split: str, split_seed: int) -> Dataset:
        self.check(data_dir)
        content = read_bytes(data_dir / self.file)
        columns = read_columns(content, data_dir / self.file, ",", HEART_COLUMNS, header=False)
        _refuse_duplicates(columns, data_dir / self.file)
        diagnosis = _labels(columns["target"], range(5), "target", data_dir / self.file)
        official = hashlib.sha256(content).hexdigest() == HEART_SHA256
        return _table("heart", self.file, HEART_ENCODER, columns, diagnosis > 0, split, split_seed, official)

    def verify(self, data_dir: Path) -> list[Finding]:
        dataset = self.load(data_dir, VERIFIED_SPLIT, VERIFIED_SEED)
        return _verify_table(dataset, HEART_SHA256, HEART_FINGERPRINT, "212 46", "116 96", "19 27", 47)


class Cardio:
    """Cardiovascular disease, `cardio_train.csv` of 70,000 records; label 1 where the disease is present.

    Records outside plausible ranges are left out, each judged by itself: height 120-220 cm, weight 30-200 kg, ap_hi
    80-250 and ap_lo 40-150 mmHg, all inclusive, and ap_hi >= ap_lo (a missing value is outside). 68,608 of the official
    file remain, in its order. Age is turned from days into years (/365.25); BMI = weight / (height / 100)^2.
    """

    file = "cardio_train.csv"

    def check(self, data_dir: Path) -> None:
        """Raise `MissingData` unless the file is there."""
        _require("cardio", data_dir, self.file)

    def load(self, data_dir: Path, split: str, split_seed: int) -> Dataset:
        self.check(data_dir)
        content = read_bytes(data_dir / self.file)
        columns = read_columns(content, data_dir / self.file, ";", CARDIO_COLUMNS, header=True)
        labels = _labels(columns["cardio"], range(2), "cardio", data_dir / self.file)
        height, weight, ap_hi, ap_lo = (columns[field] for field in ("height", "weight", "ap_hi", "ap_lo"))
        keep = (height >= 120) & (height <= 220) & (weight >= 30) & (weight <= 200)
        keep &= (ap_hi >= 80) & (ap_hi <= 250) & (ap_lo >= 40) & (ap_lo <= 150) & (ap_hi >= ap_lo)
        kept = {field: column[keep] for field, column in columns.items()}
        kept["age_years"] = kept["age"] / 365.25
        kept["bmi"] = kept["weight"] / (kept["height"] / 100) ** 2
        official = hashlib.sha256(content).hexdigest() == CARDIO_SHA256
        return _table("cardio", self.file, CARDIO_ENCODER, kept, labels[keep], split, split_seed, official)

    def verify(self, data_dir: Path) -> list[Finding]:
        dataset = self.load(data_dir, VERIFIED_SPLIT, VERIFIED_SEED)
        return _verify_table(dataset, CARDIO_SHA256, CARDIO_FINGERPRINT, "48025 10292", "24287 23738", "5177 5115", 32)


def read_columns(content: bytes, path: Path, delimiter: str, names: Sequence[str], header: bool) -> dict[str, np.ndarray]:
    """Read a numeric CSV file into float64 columns of shape (n,); missing cells are NaN.

    With `header`, the first line must hold exactly `names`, in any order; without, the columns are `names` in order.
    Blank lines are skipped. Raises `UsageError` that names the file, the line and what is wrong with it.
    """
    rows = list(read_rows(content, path, delimiter))
    order = list(names)
    if header and rows:
        order = [cell.strip() for cell in rows.pop(0)[1]]
        if sorted(order) != sorted(names):
            raise UsageError(
                f"{path}: the first line reads {order}, where the columns {list(names)} with '{delimiter}' between "
                "them are needed. Use the original file, with its header."
            )
    check_widths(rows, len(order), path, delimiter)
    cells = zip(*(row for _, row in rows), strict=True)
    numbers = [number for number, _ in rows]
    return {name: _floats(column, numbers, name, path) for name, column in zip(order, cells, strict=True)}


def _floats(cells: Sequence[str], numbers: Sequence[int], name: str, path: Path) -> np.ndarray:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        pass  # some cell is missing, or wrong: look at each
    values = np.full(len(cells), np.nan)
    for at, cell in enumerate(cells):
        if cell.strip().lower() in MISSING_CELLS:
            continue
        try:
            values[at] = float(cell)
        except ValueError:
            raise UsageError(
                f"{path}, line {numbers[at]}, column {name}: a cell is not a number. Missing cells are written as "
                "? or left empty; a header line belongs only in files that are documented to have one."
            ) from None
    return values


def _labels(column: np.ndarray, allowed: range, name: str, path: Path) -> np.ndarray:
    wrong = ~np.isin(column, allowed)
    if wrong.any():
        raise UsageError(
            f"{path}: the label column {name} holds values other than {allowed.start}..{allowed.stop - 1}, first in "
            f"record {int(np.argmax(wrong)) + 1}. Use the original file, or remove records without a valid label."
        )
    return column.astype(np.int64)


def _refuse_duplicates(columns: Mapping[str, np.ndarray], path: Path) -> None:
    first_seen: dict[bytes, int] = {}
    for record, row in enumerate(np.stack(list(columns.values()), axis=1), 1):
        first = first_seen.setdefault(row.tobytes(), record)
        if first != record:
            raise UsageError(
                f"{path}: record {record} repeats record {first}. The official file has no duplicates (a recoded copy "
                "that circulates has). Dropping them here would make one record's presence depend on another's, which "
                "the privacy guarantee does not cover. Use the official file."
            )


def _require(name: str, data_dir: Path, file: str) -> None:
    if not is_present(data_dir / file):
        raise missing(name, file, data_dir, f"Run `dpsweep data fetch {name}` on a machine with internet.")


def _table(
    name: str,
    file: str,
    encoder: FixedBoundEncoder,
    columns: Mapping[str, np.ndarray],
    labels: np.ndarray,
    split: str,
    split_seed: int,
    official: bool,
) -> Dataset:
    train, test = split_table(len(labels), split, split_seed, file)
    x = encoder.encode(columns)
    unused = len(labels) - len(train) - len(test)
    return assemble(name, "table", (x[train], labels[train]), (x[test], labels[test]), 2, official, file, unused)


def _verify_table(dataset: Dataset, sha256: str, mark: str, sizes: str, train: str, test: str, features: int) -> list[Finding]:
    found = "the official file" if dataset.official else "another file"
    return [
        compare(f"SHA-256 {sha256[:16]} of {dataset.source}", "the official file", found),
        compare("training, test records", sizes, f"{len(dataset.y_train)} {len(dataset.y_test)}"),
        compare("features", features, dataset.x_train.shape[1]),
        compare("training records by class", train, class_counts(dataset.y_train, 2)),
        compare("test records by class", test, class_counts(dataset.y_test, 2)),
        compare_fingerprint(mark, dataset),
    ]
