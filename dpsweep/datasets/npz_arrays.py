"""A user's own NPZ file as a dataset, described by its YAML alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    missing,
    told,
)
from dpsweep.datasets.encoder import read_bounds
from dpsweep.datasets.image_files import read_npz, read_npz_headers
from dpsweep.errors import UsageError

LARGEST_OWN = 2**34  # bytes that are read of a user's own arrays together, so that a file of a few kilobytes fills no memory


class NpzArrays:
    """Records and labels from the plain arrays of an NPZ file; nothing is ever unpickled.

    Inputs are numbers, (n, features) for a table, (n, height, width) or (n, height, width, channels) for images. Labels are
    whole numbers 0..classes-1, (n,). Each value is treated by itself, by constants of the YAML, so that costs no privacy.
    No message quotes a value.

    Args:
        name, shape, classes: as in the YAML. The shape is that of one record, images as [channels, height, width].
        file: a path, looked for in the data folder unless it is absolute.
        train: the names of the arrays with the training inputs and labels.
        test: those of the test part; None splits the training arrays 70 / 15 / 15 by the permutation of the split seed.
        bounds: [lowest, highest]: values are clipped to them and scaled to [0, 1], `(x - lowest) / (highest - lowest)`, as
            [0, 255] does for bytes. Public constants, never read from the records. None takes the values as they are.
        channels: `last` as above, or `first` for images stored as (n, channels, height, width).

    Raises:
        UsageError: an argument makes no sense.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        classes: int,
        file: str,
        train: Sequence[str],
        test: Sequence[str] | None = None,
        bounds: Sequence[float] | None = None,
        channels: str = "last",
    ) -> None:
        self._name, self._shape, self._classes, self._file = name, list(shape), classes, file
        self._pairs = [train] if test is None else [train, test]
        for key, pair in zip(("train", "test"), self._pairs, strict=False):
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
                raise UsageError(f"dataset.{key}={pair!r}: the names of two arrays are needed, [inputs, labels]")
        if channels not in ("first", "last"):
            raise UsageError(f"dataset.channels={channels}: first or last is needed")
        self._last = channels == "last"
        self._bounds = None if bounds is None else read_bounds(bounds, "dataset.bounds")

    def check(self, data_dir: Path) -> None:
        """See that the file is there and, from the headers in it, that its arrays are of the right form.

        Raises:
            MissingData: the file is not there.
            UsageError: it is no NPZ file of plain arrays, lacks one, or one has a wrong type or shape.
        """
        path = data_dir / Path(self._file).expanduser()
        if not is_present(path):
            raise missing(self._name, path.name, path.parent, "Put it there, or mend `file` in the dataset's YAML.")
        headers = read_npz_headers(path, [key for pair in self._pairs for key in pair], LARGEST_OWN)
        for x, y in self._pairs:
            (shape, kind), (labels, label_kind) = headers[x], headers[y]
            if kind not in "uif" or len(shape) < 2:
                raise UsageError(f"{path}: the array {x} must hold numbers, a record in each row.")
            size, *record = shape
            if label_kind not in "ui" or labels != (size,) or not size:
                raise UsageError(f"{path}: the array {y} must hold whole numbers, one label for each record of {x}.")
            if len(record) == 2:
                record = [1, *record]
            elif len(record) == 3 and self._last:
                record = [record[2], *record[:2]]
            if record != self._shape:
                raise UsageError(f"dataset.shape={self._shape}: the records in {path}, array {x}, give shape: {record}")

    def load(self, data_dir: Path, split: str, split_seed: int) -> Dataset:
        """Read, scale and split; with test arrays the split and its seed change nothing."""
        self.check(data_dir)
        path = data_dir / Path(self._file).expanduser()
        arrays = iter(read_npz(path, [key for pair in self._pairs for key in pair], LARGEST_OWN))
        parts = [(self._inputs(x, path), self._labels(y, path)) for x, y in zip(arrays, arrays, strict=True)]
        train, test, unused = divide(parts, split, split_seed, self._file)
        kind = "image" if len(self._shape) == 3 else "table"
        return assemble(self._name, kind, train, test, self._classes, None, self._file, unused)

    def verify(self, data_dir: Path) -> list[Finding]:
        """What the file holds, for the eyes of its owner."""
        dataset = self.load(data_dir, VERIFIED_SPLIT, VERIFIED_SEED)
        return told(dataset, compare("shape of a record", tuple(self._shape), dataset.x_train.shape[1:]))

    def _inputs(self, x: np.ndarray, path: Path) -> np.ndarray:
        if x.ndim == 4 and self._last:
            x = np.moveaxis(x, -1, 1)
        with np.errstate(over="ignore"):  # found below
            x = x.astype(np.float32).reshape(len(x), *self._shape)
        if not np.isfinite(x).all():
            raise UsageError(
                f"{path}: some inputs aren't finite numbers, or are too large for 32 bits. Replace each by a constant, such as "
                "the middle of the bounds: a value read from the other records would break the guarantee."
            )
        if self._bounds is not None:
            lowest, highest = (np.float32(bound) for bound in self._bounds)
            np.clip(x, lowest, highest, out=x)
            x -= lowest
            x /= highest - lowest
        return x

    def _labels(self, y: np.ndarray, path: Path) -> np.ndarray:
        if (y < 0).any() or (y >= self._classes).any():
            raise UsageError(
                f"{path}: some labels lie outside 0..{self._classes - 1}. Number the classes from 0, or mend `classes`."
            )
        return y
