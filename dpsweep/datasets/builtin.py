"""Datasets that come inside scikit-learn: nothing to download, so they serve first runs and tests."""

from __future__ import annotations

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
    split_table,
)
from dpsweep.datasets.encoder import FixedBoundEncoder
from dpsweep.datasets.profiles import Constants, apply_profile, check_profile

DIGITS_FINGERPRINT = "17b94e10a8b3bc773423361e093e34f90eff1a776c42744e9404b12456677d65"
BREAST_CANCER_FINGERPRINT = "ce7ba6c64da42273ee93ed01d7de6e6d1823786a632b1a0ac0587350ac54c612"
DIGITS_CONSTANTS = Constants((0.305,), (0.376,))  # of all 1,797 images


class Digits:
    """UCI optical digits, test part (1,797 images of 8x8, intensities 0-16, so that raw01 is pixel/16).

    It has no official split: 70% train and 15% test of the permutation, and the subsets, are as for tables.

    Args:
        profile: one of `profiles.PROFILES`; None means raw01.
    """

    def __init__(self, profile: str | None = None) -> None:
        self._profile = check_profile(profile)

    def check(self, data_dir: Path) -> None:
        """Nothing can be missing."""

    def load(self, data_dir: Path, split: str, split_seed: int) -> Dataset:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
        images = pixels.astype(np.uint8).reshape(-1, 1, 8, 8)
        source = "the digits of scikit-learn"
        parts = split_table(len(images), split, split_seed, source)
        train, test = ((apply_profile(images, part, self._profile, DIGITS_CONSTANTS, white=16), labels[part]) for part in parts)
        return assemble("digits", "image", train, test, 10, None, source, len(images) - sum(map(len, parts)))

    def verify(self, data_dir: Path) -> list[Finding]:
        """Counts, classes and fingerprint, those of the profile raw01, whatever is chosen."""
        dataset = Digits().load(data_dir, VERIFIED_SPLIT, VERIFIED_SEED)
        return [
            compare("training, test images", "1257 270", f"{len(dataset.y_train)} {len(dataset.y_test)}"),
            compare("image shape", (1, 8, 8), dataset.x_train.shape[1:]),
            compare("training images by class", "127 130 117 135 127 127 124 121 126 123", class_counts(dataset.y_train, 10)),
            compare_fingerprint(DIGITS_FINGERPRINT, dataset),
        ]


# Of ten measures of the cell nuclei in an image, the mean, the standard error and the mean of the three largest. The
# bounds are round numbers wide enough for a nucleus under that microscope; none was read from the records.
_NUCLEUS = {
    # measure: upper bound of the mean, of the standard error, of the "worst"; every lower bound is 0
    "radius": (40.0, 5.0, 40.0),
    "texture": (60.0, 10.0, 60.0),
    "perimeter": (300.0, 40.0, 300.0),
    "area": (5000.0, 1000.0, 5000.0),
    "smoothness": (0.5, 0.1, 0.5),
    "compactness": (2.0, 0.5, 2.0),
    "concavity": (2.0, 0.5, 2.0),
    "concave points": (0.5, 0.1, 0.5),
    "symmetry": (1.0, 0.2, 1.0),
    "fractal dimension": (0.5, 0.1, 0.5),
}
# scikit-learn's order: the ten means, the ten errors, the ten worst
BREAST_CANCER_ENCODER = FixedBoundEncoder(
    numeric={
        f"{statistic} {measure}": (0.0, bounds[position])
        for position, statistic in enumerate(("mean", "error", "worst"))
        for measure, bounds in _NUCLEUS.items()
    },
    categorical={},
)


class BreastCancer:
    """Wisconsin diagnostic breast cancer, 569 records; class 1 is benign, as in scikit-learn."""

    def check(self, data_dir: Path) -> None:
        """Nothing can be missing."""

    def load(self, data_dir: Path, split: str, split_seed: int) -> Dataset:
        from sklearn.datasets import load_breast_cancer

        table, labels = load_breast_cancer(return_X_y=True)
        x = BREAST_CANCER_ENCODER.encode(dict(zip(BREAST_CANCER_ENCODER.numeric, table.T, strict=True)))
        source = "the breast cancer records of scikit-learn"
        train, test = split_table(len(x), split, split_seed, source)
        parts = (x[train], labels[train]), (x[test], labels[test])
        return assemble("breast_cancer", "table", *parts, 2, None, source, len(x) - len(train) - len(test))

    def verify(self, data_dir: Path) -> list[Finding]:
        dataset = self.load(data_dir, VERIFIED_SPLIT, VERIFIED_SEED)
        return [
            compare("training, test records", "398 86", f"{len(dataset.y_train)} {len(dataset.y_test)}"),
            compare("features", 60, dataset.x_train.shape[1]),
            compare("training records by class", "157 241", class_counts(dataset.y_train, 2)),
            compare_fingerprint(BREAST_CANCER_FINGERPRINT, dataset),
        ]
