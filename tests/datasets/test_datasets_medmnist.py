"""DermaMNIST: small files in MedMNIST's format, broken ones, and the real file where it is."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from dpsweep.datasets.base import MissingData
from dpsweep.datasets.medmnist import DermaMNIST
from dpsweep.errors import UsageError

SIZES = {"train": 21, "val": 6, "test": 8}


def write(folder: Path, **changes) -> dict[str, np.ndarray]:
    """A file as MedMNIST writes it: images with the channels last, labels as a column of bytes."""
    rng = np.random.default_rng(0)
    arrays = {}
    for part, n in SIZES.items():
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, 28, 28, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(n) % 7).astype(np.uint8)[:, None]
    arrays = {key: value for key, value in (arrays | changes).items() if value is not None}
    np.savez(folder / "dermamnist.npz", **arrays)
    return arrays


@pytest.mark.parametrize(
    ("split", "judge", "unused"), [("official", "test", 6), ("dp_rvfl", "test", 6), ("official_validation", "val", 8)]
)
def test_the_parts_are_medmnists_own(tmp_path, split, judge, unused):
    arrays = write(tmp_path)
    d = DermaMNIST().load(tmp_path, split, 5)
    d.check((3, 28, 28), 7)
    assert (d.name, d.kind, d.official, d.source, d.unused) == ("dermamnist", "image", False, "dermamnist.npz", unused)
    for x, y, part in ((d.x_train, d.y_train, "train"), (d.x_test, d.y_test, judge)):
        assert np.array_equal(x, arrays[f"{part}_images"].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255))
        assert np.array_equal(y, arrays[f"{part}_labels"][:, 0])


def test_profiles(tmp_path):
    write(tmp_path)
    plain, centred, small = (DermaMNIST(p).load(tmp_path, "official", 1) for p in (None, "fixed_centered", "half_resolution"))
    assert np.allclose(centred.x_train, 2 * plain.x_train - 1, atol=1e-6) and small.x_train.shape == (21, 3, 14, 14)


def test_the_validation_images_change_nothing_that_is_trained_or_judged(tmp_path):
    write(tmp_path)
    first = DermaMNIST().load(tmp_path, "official", 1)
    write(tmp_path, val_images=np.zeros((6, 28, 28, 3), np.uint8))
    assert DermaMNIST().load(tmp_path, "official", 1).fingerprint == first.fingerprint


def test_verify_tells_the_official_file_from_others(tmp_path, monkeypatch):
    write(tmp_path)
    findings = {f.what: f for f in DermaMNIST().verify(tmp_path)}
    assert findings["image shape"].ok and not findings["checksum of dermamnist.npz"].ok
    assert findings["validation images by class"].found == "1 1 1 1 1 1 0" and not findings["validation images by class"].ok
    monkeypatch.setattr(DermaMNIST, "md5", hashlib.md5((tmp_path / "dermamnist.npz").read_bytes()).hexdigest())
    monkeypatch.setattr(DermaMNIST, "counts", ("3 in each of 7", "1 1 1 1 1 1 0", "2 1 1 1 1 1 1"))
    assert all(f.ok for f in DermaMNIST().verify(tmp_path)) and DermaMNIST().load(tmp_path, "official", 1).official


def test_the_known_counts_are_those_of_the_official_sizes():
    assert [sum(map(int, counts.split())) for counts in DermaMNIST.counts] == [7007, 1003, 2005]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"val_labels": None}, "lacks the arrays val_labels"),
        ({"train_images": np.zeros((21, 64, 64, 3), np.uint8)}, "train part: the images are of shape"),
        ({"train_images": np.zeros((21, 28, 28), np.uint8)}, "train part: the images are of shape"),
        ({"test_images": np.zeros((8, 28, 28, 3))}, "test part: the images are float64"),
        ({"train_labels": np.zeros((21, 14), np.uint8)}, "labels are uint8 of shape"),
        ({"test_labels": np.full((8, 1), 7, np.uint8)}, "8 labels lie outside 0..6"),
        ({"train_labels": np.array([object()] * 21)}, "not a readable NPZ"),
    ],
)
def test_broken_files_are_named(tmp_path, changes, said):
    write(tmp_path, **changes)
    with pytest.raises(UsageError, match=said) as caught:
        DermaMNIST().load(tmp_path, "official", 1)
    assert str(tmp_path / "dermamnist.npz") in str(caught.value)


def test_what_is_missing_and_which_splits_there_are(tmp_path):
    with pytest.raises(MissingData, match=r"dermamnist.npz.*dpsweep data fetch dermamnist"):
        DermaMNIST().check(tmp_path)
    write(tmp_path)
    with pytest.raises(UsageError, match=r"split=subset.*Use split=official, or official_validation"):
        DermaMNIST().load(tmp_path, "subset", 1)


@pytest.mark.data
def test_the_real_file():
    folder = Path(os.environ.get("DPSWEEP_DATA", ""))
    if "DPSWEEP_DATA" not in os.environ or not (folder / "dermamnist.npz").exists():
        pytest.skip("DPSWEEP_DATA names no folder with dermamnist.npz")
    assert all(f.ok for f in DermaMNIST().verify(folder))
