"""What every dataset reader shares: the arrays it returns, the splits, the fingerprint, and careful file reading."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from dpsweep.errors import UsageError

SPLITS = ("dp_rvfl", "official", "subset", "subset_tuning")
OWN_VALIDATION = "official_validation"  # of a dataset whose files have a validation part
LARGEST = 2**30  # bytes that are read of a file of a known dataset, packed or unpacked; the largest true one has 225 million
SUBSET_TRAIN, SUBSET_TEST = 5000, 2000  # images of the FO-DP-SGD paper's subsets
VERIFIED_SPLIT, VERIFIED_SEED = "dp_rvfl", 2026  # the split whose fingerprints and class counts the readers know


class MissingData(UsageError):
    """A dataset's files are not in the data folder (as opposed to being there and broken)."""


@dataclass(frozen=True)
class Dataset:
    """One dataset in memory, split and encoded.

    `x_train`, `x_test` are C-contiguous float32: images (n, channels, height, width) in [0, 1] or [-1, 1],
    tables (n, features).
    `y_train`, `y_test` are int64 of shape (n,), in 0..classes-1.
    """

    name: str
    kind: str  # "image" or "table"
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    fingerprint: str  # see `fingerprint()`; read from private data without noise
    official: bool | None  # are the files the official ones, by known checksum; None where no such checksum exists
    source: str  # the file(s) read, in words, without the folder
    unused: int = 0  # records that were there and are in neither part

    def check(self, shape: tuple[int, ...], classes: int) -> None:
        """Hold the arrays against what the YAML says, before anything is trained on them.

        Raises `UsageError` where they differ: shapes, types, labels outside 0..classes-1, no records.
        """
        for part, x, y in (("training", self.x_train, self.y_train), ("test", self.x_test, self.y_test)):
            wrong = None
            if len(x) == 0 or len(x) != len(y):
                wrong = f"{len(x)} records and {len(y)} labels"
            elif x.shape[1:] != shape:
                wrong = f"records of shape {list(x.shape[1:])} where its YAML says {list(shape)}"
            elif x.dtype != np.float32 or y.dtype != np.int64:
                wrong = f"{x.dtype} inputs and {y.dtype} labels where float32 and int64 are needed"
            elif self.classes != classes or y.min() < 0 or y.max() >= classes:
                wrong = f"labels outside 0 to {classes - 1}, or {self.classes} classes where its YAML says {classes}"
            if wrong:
                raise UsageError(f"dataset={self.name}: its {part} part has {wrong}. Mend its reader or its YAML")


@dataclass(frozen=True)
class Finding:
    """One line of a verification: `ok` is None where there is nothing to hold `found` against."""

    what: str
    expected: str
    found: str
    ok: bool | None


class Reader(Protocol):
    """A dataset: one class, constructed from the keys of its YAML file that are not reserved."""

    def check(self, data_dir: Path) -> None:
        """See, without reading them, that the files are there.

        Raises `MissingData` that names what is missing, where it was looked for and what gets it.
        """

    def load(self, data_dir: Path, split: str, split_seed: int) -> Dataset:
        """Read, split and encode. `split` is one of `SPLITS`; raises `UsageError` for anything wrong with the files."""

    def verify(self, data_dir: Path) -> list[Finding]:
        """Hold the files against what is known: checksums, counts, shapes, class balance, fingerprint."""


def fingerprint(*arrays: np.ndarray) -> str:
    """SHA-256, in hex, over the dtype, shape and bytes of C-contiguous arrays, in their order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape};".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def assemble(
    name: str,
    kind: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    classes: int,
    official: bool | None,
    source: str,
    unused: int = 0,
) -> Dataset:
    """Make a `Dataset` of (x, y) pairs and fingerprint it; `unused` records were left out of both."""
    x_train, x_test = (np.ascontiguousarray(x, dtype=np.float32) for x, _ in (train, test))
    y_train, y_test = (np.ascontiguousarray(y, dtype=np.int64) for _, y in (train, test))
    mark = fingerprint(x_train, y_train, x_test, y_test)
    return Dataset(name, kind, x_train, y_train, x_test, y_test, classes, mark, official, source, unused)


def permutation(n: int, split: str, split_seed: int) -> np.ndarray:
    """The permutation that every split but `official` cuts: `numpy.random.default_rng(split_seed).permutation(n)`."""
    if split == OWN_VALIDATION:
        raise UsageError(
            f"split={split}: this dataset's files have no validation part of their own (dermamnist's have). Use "
            "split=subset_tuning, which takes one from the training data"
        )
    if split not in SPLITS:
        raise UsageError(f"The split {split!r} is not known. Choose one of: {', '.join(SPLITS)}.")
    if isinstance(split_seed, bool) or not isinstance(split_seed, int) or split_seed < 0:
        raise UsageError(f"The split seed {split_seed!r} is not a whole number of 0 or more. Give one, such as 2026.")
    return np.random.default_rng(split_seed).permutation(n)


def split_table(n: int, split: str, split_seed: int, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Record numbers of the training and the test part: 70% and 15% of the permutation, not stratified.

    The 15% between them, the validation part, is read by `subset_tuning` alone, in place of the test part. Tables have no
    official split and no subset: `official` and `subset` mean the same as `dp_rvfl`.
    """
    order = permutation(n, split, split_seed)
    train, validation, test = np.split(order, [int(0.70 * n), int(0.85 * n)])
    if not len(train) or not len(validation) or not len(test):
        raise UsageError(f"{source} has {n} usable records, too few to split into a training and a test part.")
    return train, validation if split == "subset_tuning" else test


def divide(parts: list[tuple[np.ndarray, np.ndarray]], split: str, split_seed: int,
           source: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray], int]:  # fmt: skip
    """Training part, test part and the number of unused records, from (x, y) of one file, which is split as a table is, or
    from those of a training and a test file, of which the split and its seed change nothing."""
    read = sum(len(y) for _, y in parts)
    if len(parts) == 1:
        x, y = parts[0]
        parts = [(x[part], y[part]) for part in split_table(len(y), split, split_seed, source)]
    train, test = parts
    return train, test, read - len(train[1]) - len(test[1])


def told(dataset: Dataset, form: Finding) -> list[Finding]:
    """What the files of an unknown dataset hold, for the eyes of their owner: records, their form, classes."""
    return [
        Finding("training, test records", "-", f"{len(dataset.y_train)} {len(dataset.y_test)}", None),
        form,
        Finding("training records by class", "-", class_counts(dataset.y_train, dataset.classes), None),
        Finding("test records by class", "-", class_counts(dataset.y_test, dataset.classes), None),
    ]


@dataclass(frozen=True)
class ImageSplit:
    """Record numbers: `train` in the official training set, `judge` in the official test set or, where `tuning`, in the
    training set too."""

    train: np.ndarray
    judge: np.ndarray
    tuning: bool = False


def split_images(n: int, n_test: int, split: str, split_seed: int, source: str) -> ImageSplit:
    """Split an official training set of `n` images and a test set of `n_test`.

    * `dp_rvfl`: trains on the first 85% of the permutation, the rest unused; judged on the whole test set.
    * `official`: trains on all, in the files' order; judged on the whole test set.
    * `subset` (the FO-DP-SGD paper's sizes): trains on the first 5,000 of the permutation; judged on the first 2,000 of a
      permutation of the test set, by the same seed.
    * `subset_tuning`: trains on the same 5,000, judged on the next 2,000 of the training set. A rate chosen there was not
      chosen on what judges the subset.

    Of smaller files the subsets take 5/7 and 2/7 of the training set and at most the whole test set.
    """
    order = permutation(n, split, split_seed)
    first = min(SUBSET_TRAIN, SUBSET_TRAIN * n // (SUBSET_TRAIN + SUBSET_TEST))
    train = {"dp_rvfl": order[: int(0.85 * n)], "official": np.arange(n)}.get(split, order[:first])
    if split == "subset_tuning":
        chosen = ImageSplit(train, order[first : first + SUBSET_TEST], tuning=True)
    elif split == "subset":
        chosen = ImageSplit(train, permutation(n_test, split, split_seed)[:SUBSET_TEST])
    else:
        chosen = ImageSplit(train, np.arange(n_test))
    if not len(chosen.train) or not len(chosen.judge):
        raise UsageError(f"{source} has {n} training images, too few for the split {split}. Use split=official, or more images.")
    return chosen


def is_present(path: Path) -> bool:
    """Whether the file is there; raises `UsageError` where a folder stands in its place or it cannot be looked for."""
    try:
        present, regular = path.exists(), path.is_file()
    except OSError as error:
        raise UsageError(f"{path} cannot be looked for: {error.strerror}. Check its folder's permissions.") from error
    if present and not regular:
        raise UsageError(f"{path} is not a file but a folder or a device. Put the data file itself there.")
    return present


def read_bytes(path: Path, largest: int | None = LARGEST) -> bytes:
    """The bytes of a file; raises `UsageError` when it cannot be read, is empty or has more than `largest` bytes."""
    try:
        if largest is not None and (size := path.stat().st_size) > largest:
            raise too_large(path, f"it has {size:,} bytes", largest)
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. Check the path and its permissions.") from error
    if not content:
        raise UsageError(f"{path} is empty. Fetch it again: the download or copy was probably cut short.")
    return content


def too_large(path: Path, what: str, largest: int) -> UsageError:
    """The error for a file that would fill the memory."""
    return UsageError(
        f"{path} is refused: {what}, and at most {largest:,} are read. It is another file than its name says, or a broken one."
    )


def missing(name: str, files: str, data_dir: Path, remedy: str) -> MissingData:
    """The error for files that are not there; `remedy` is the command or address that gets them."""
    return MissingData(
        f"The dataset {name} needs {files}, not found in {data_dir}. {remedy} "
        "If they are elsewhere, name their folder with data.dir=PATH or the environment variable DPSWEEP_DATA."
    )


def class_counts(labels: np.ndarray, classes: int) -> str:
    """Records by class, in the order of the labels, as words: "116 96"; "5000 in each of 10" where all are alike."""
    counts = np.bincount(labels, minlength=classes)
    if classes > 2 and (counts == counts[0]).all():
        return f"{counts[0]} in each of {classes}"
    return " ".join(str(count) for count in counts)


def compare(what: str, expected: object, found: object) -> Finding:
    """A finding that is right when the two read the same."""
    return Finding(what, str(expected), str(found), str(expected) == str(found))


def compare_fingerprint(expected: str | None, dataset: Dataset) -> Finding:
    """The fingerprint of the split of the paper against the known one, where one is known."""
    what = f"fingerprint of split {VERIFIED_SPLIT}, seed {VERIFIED_SEED}"
    if expected is None:
        return Finding(what, "not known", dataset.fingerprint[:16], None)
    return compare(what, expected[:16], dataset.fingerprint[:16])
