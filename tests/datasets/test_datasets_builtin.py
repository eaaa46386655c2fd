"""The embedded sets: shapes, ranges, splits and repeatability."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from dpsweep.datasets.builtin import BREAST_CANCER_ENCODER, BreastCancer, Digits
from dpsweep.errors import UsageError

NOWHERE = Path("no-such-folder")


@pytest.mark.parametrize(
    ("reader", "kind", "shape", "train", "test"),
    [(Digits(), "image", (1, 8, 8), 1257, 270), (BreastCancer(), "table", (60,), 398, 86)],
)
def test_contract(reader, kind, shape, train, test):
    reader.check(NOWHERE)
    dataset = reader.load(NOWHERE, "dp_rvfl", 2026)
    assert (dataset.kind, dataset.official) == (kind, None)
    assert dataset.x_train.shape == (train, *shape) and dataset.x_test.shape == (test, *shape)
    for x, y in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test)):
        assert x.dtype == np.float32 and y.dtype == np.int64 and x.flags.c_contiguous and y.shape == x.shape[:1]
        assert set(np.unique(y)) == set(range(dataset.classes))
    assert reader.load(NOWHERE, "official", 2026).fingerprint == dataset.fingerprint
    assert reader.load(NOWHERE, "dp_rvfl", 2027).fingerprint != dataset.fingerprint
    assert all(finding.ok for finding in reader.verify(NOWHERE))


def test_the_fingerprint_covers_dtype_shape_and_bytes_in_order():
    d = Digits().load(NOWHERE, "dp_rvfl", 2026)
    digest = hashlib.sha256()
    for array in (d.x_train, d.y_train, d.x_test, d.y_test):
        digest.update(f"{array.dtype.str}{array.shape};".encode() + array.tobytes())
    assert d.fingerprint == digest.hexdigest()


def test_digits_are_sixteenths_and_split_by_the_permutation():
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(7).permutation(1797)
    d = Digits().load(NOWHERE, "dp_rvfl", 7)
    assert np.array_equal(d.x_train.reshape(-1, 64) * 16, pixels[order[:1257]])
    assert np.array_equal(d.y_test, labels[order[1527:]])


def test_breast_cancer_lies_inside_its_typed_bounds():
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    expected = [
        f"{name.split()[0]} {' '.join(name.split()[1:])}"
        if not name.endswith("error")
        else f"error {name.removesuffix(' error')}"
        for name in table.feature_names
    ]
    assert list(BREAST_CANCER_ENCODER.numeric) == expected
    upper = np.array([hi for _, hi in BREAST_CANCER_ENCODER.numeric.values()])
    assert (table.data >= 0).all() and (table.data < upper).all()


@pytest.mark.parametrize(("split", "seed", "named"), [("dp-rvfl", 2026, "dp-rvfl"), ("dp_rvfl", -1, "-1")])
def test_unknown_splits_and_seeds_are_refused(split, seed, named):
    with pytest.raises(UsageError, match=named):
        Digits().load(NOWHERE, split, seed)
