"""DermaMNIST, from the NPZ file that MedMNIST distributes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from dpsweep.datasets.base import (
    OWN_VALIDATION,
    VERIFIED_SEED,
    VERIFIED_SPLIT,
    Dataset,
    Finding,
    assemble,
    class_counts,
    compare,
    is_present,
    missing,
    read_bytes,
)
from dpsweep.datasets.image_files import check_images, read_npz
from dpsweep.datasets.profiles import apply_profile, check_profile
from dpsweep.errors import UsageError

_PARTS = ("train", "val", "test")


class DermaMNIST:
    """DermaMNIST (Yang et al., 2023, of HAM10000): dermatoscopic images of 28x28, 7,007 + 1,003 + 2,005, seven classes.

    The parts are MedMNIST's own. So `dp_rvfl` and `official` mean the same: all official training images, in the file's order,
    judged on the official test set. `official_validation` trains on the same and is judged on the validation images, which no
    other split reads: what is chosen there has not seen the test set.

    Args:
        profile: raw01 (None), fixed_centered or half_resolution.
    """

    name, file, shape, classes = "dermamnist", "dermamnist.npz", (3, 28, 28), 7
    md5 = "0744692d530f8e62ec473284d019b0c7"  # as medmnist 3.0.2 gives it
    counts = ("228 359 769 80 779 4693 99", "33 52 110 12 111 671 14", "66 103 220 23 223 1341 29")  # by part and class

    def __init__(self, profile: str | None = None) -> None:
        self._profile = check_profile(profile)

    def check(self, data_dir: Path) -> None:
        """Raise `MissingData` unless the file is there."""
        if not is_present(data_dir / self.file):
            remedy = f"Run `dpsweep data fetch {self.name}` on a machine with internet."
            raise missing(self.name, f"{self.file} (MedMNIST's file for 28x28)", data_dir, remedy)

    def load(self, data_dir: Path, split: str, split_seed: int) -> Dataset:
        """Images as float32 by the profile; the split seed changes nothing.

        Raises:
            UsageError: the file is broken, or the split is none of `dp_rvfl`, `official` and `official_validation`.
        """
        if split not in ("dp_rvfl", "official", OWN_VALIDATION):
            raise UsageError(
                f"split={split}: dataset={self.name} has its own three parts. Use split=official, or {OWN_VALIDATION} to tune"
            )
        judge, left_out = ("val", "test") if split == OWN_VALIDATION else ("test", "val")
        arrays = self._read(data_dir)
        official = hashlib.md5(read_bytes(data_dir / self.file), usedforsecurity=False).hexdigest() == self.md5
        parts = (arrays["train"], arrays[judge])
        train, test = ((apply_profile(x, np.arange(len(x)), self._profile, None), y) for x, y in parts)
        unused = len(arrays[left_out][1])
        return assemble(self.name, "image", train, test, self.classes, official, self.file, unused)

    def verify(self, data_dir: Path) -> list[Finding]:
        """The file's checksum, image shape, and images by class of all three parts."""
        arrays = self._read(data_dir)
        dataset = DermaMNIST().load(data_dir, VERIFIED_SPLIT, VERIFIED_SEED)
        words = ("training", "validation", "test")
        return [
            compare(f"checksum of {self.file}", "the official file", "the official file" if dataset.official else "another file"),
            compare("image shape", self.shape, dataset.x_train.shape[1:]),
            *(
                compare(f"{word} images by class", count, class_counts(arrays[part][1], self.classes))
                for word, part, count in zip(words, _PARTS, self.counts, strict=True)
            ),
        ]

    def _read(self, data_dir: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """uint8 images (n, channels, height, width) and labels (n,) by part; the file has channels last and labels (n, 1)."""
        self.check(data_dir)
        path = data_dir / self.file
        arrays = iter(read_npz(path, [f"{part}_{what}" for part in _PARTS for what in ("images", "labels")]))
        found = {}
        for part, x, y in zip(_PARTS, arrays, arrays, strict=True):
            if x.ndim == 4:
                x = np.moveaxis(x, -1, 1)
            if y.ndim == 2 and y.shape[1] == 1:
                y = y[:, 0]
            check_images(x, y, self.shape, self.classes, f"{path}, {part} part")
            found[part] = x, y
        return found
