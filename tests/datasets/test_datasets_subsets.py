"""The FO-DP-SGD paper's datasets and subsets: CIFAR-100 and SVHN in their own formats, and what the subsets share."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_files import folder_of
from scipy.io import savemat

from dpsweep.config import Composer
from dpsweep.datasets.base import MissingData, split_images, split_table
from dpsweep.datasets.images import CIFAR10, CIFAR100, SVHN
from dpsweep.errors import UsageError

RNG = np.random.default_rng(1)


def write_cifar100(folder: Path, train=30, test=12, **changes):
    (folder / CIFAR100.folder).mkdir(exist_ok=True)
    parts = []
    for file, n in (("train", train), ("test", test)):
        pixels = RNG.integers(0, 256, (n, 3072), dtype=np.uint8)
        fine, coarse = [(7 * k) % 100 for k in range(n)], [k % 20 for k in range(n)]
        content = {"filenames": ["x"] * n, "fine_labels": fine, "coarse_labels": coarse, "data": pixels} | changes
        (folder / CIFAR100.folder / file).write_bytes(pickle.dumps(content, protocol=4))
        parts.append((pixels.reshape(-1, 3, 32, 32), np.array(fine)))
    return parts


def write_svhn(folder: Path, train=30, test=12, **changes):
    parts = []
    for file, n in (("train_32x32.mat", train), ("test_32x32.mat", test)):
        pixels = RNG.integers(0, 256, (32, 32, 3, n), dtype=np.uint8)
        labels = (np.arange(n) % 10 + 1).astype(np.uint8)[:, None]
        savemat(folder / file, {"X": pixels, "y": labels} | changes, do_compression=True)
        parts.append((pixels.transpose(3, 2, 0, 1), labels[:, 0].astype(int)))
    return parts


def test_cifar100_is_read_by_its_fine_labels(tmp_path):
    (x, y), (x_test, y_test) = write_cifar100(tmp_path)
    d = CIFAR100().load(tmp_path, "official", 1)
    assert (d.classes, d.official, d.source) == (100, False, "cifar-100-python")
    assert np.array_equal(d.x_train, x.astype(np.float32) / np.float32(255)) and np.array_equal(d.y_train, y)
    assert np.array_equal(d.x_test, x_test.astype(np.float32) / np.float32(255)) and np.array_equal(d.y_test, y_test)


def test_svhn_is_read_from_its_matlab_files_and_ten_is_zero(tmp_path):
    (x, y), (x_test, y_test) = write_svhn(tmp_path)
    d = SVHN().load(tmp_path, "official", 1)
    assert (d.classes, d.official, d.source) == (10, False, "train_32x32.mat and test_32x32.mat")
    assert np.array_equal(d.x_train, x.astype(np.float32) / np.float32(255))
    assert np.array_equal(d.y_train, np.where(y == 10, 0, y)) and np.array_equal(d.y_test, np.where(y_test == 10, 0, y_test))
    assert {0, 1, 9} <= set(d.y_train.tolist()) and d.y_train.max() == 9
    assert np.array_equal(d.x_test, x_test.astype(np.float32) / np.float32(255))


def test_svhns_files_are_torchvisions(tmp_path):
    from torchvision.datasets import SVHN as Theirs

    write_svhn(tmp_path)
    theirs = Theirs.__new__(Theirs)
    theirs._check_integrity = lambda: True  # the files are not the official ones
    Theirs.__init__(theirs, str(tmp_path), split="train")
    ours = SVHN().load(tmp_path, "official", 1)
    assert np.array_equal(np.asarray(theirs.data, dtype=np.float32) / np.float32(255), ours.x_train)
    assert np.array_equal(theirs.labels, ours.y_train)


@pytest.mark.parametrize(
    "changes",
    [
        {"X": np.zeros((32, 32, 3, 30))},
        {"X": np.zeros((3, 32, 32, 30), np.uint8)},
        {"y": np.zeros((30, 1), np.uint8)},
        {"y": np.full((30, 1), 11)},
        {"y": np.full((30, 1), 1.5)},
        {"y": np.full((30, 1), np.nan)},
        {"y": np.ones((29, 1), np.uint8)},
        {"y": np.array([["a"]] * 30, dtype=object)},
    ],
)
def test_wrong_matlab_files_are_refused(tmp_path, changes):
    write_svhn(tmp_path, **changes)
    with pytest.raises(UsageError, match=r"train_32x32.mat is refused .*Get the official file again"):
        SVHN().load(tmp_path, "official", 1)


@pytest.mark.parametrize(
    "change", [lambda b: b[:-40], lambda b: b[:100], lambda b: b"no MATLAB", lambda b: b"\x89HDF\r\n\x1a\n" + b]
)
def test_broken_matlab_files_are_refused(tmp_path, change):
    write_svhn(tmp_path)
    path = tmp_path / "test_32x32.mat"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UsageError, match="test_32x32.mat is refused"):
        SVHN().load(tmp_path, "official", 1)


def test_wrong_cifar100_batches_are_refused(tmp_path):
    write_cifar100(tmp_path, fine_labels=[100] * 30)
    with pytest.raises(UsageError, match="30 labels lie outside 0..99|12 whole numbers|30 whole numbers"):
        CIFAR100().load(tmp_path, "official", 1)
    write_cifar100(tmp_path, fine_labels="text")
    with pytest.raises(UsageError, match="train is refused as a batch of CIFAR"):
        CIFAR100().load(tmp_path, "official", 1)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(MissingData, match=r"train_32x32.mat, test_32x32.mat.*svhn.npz.*dpsweep data fetch svhn"):
        SVHN().check(tmp_path)


def test_an_npz_of_a_part_of_the_data_is_told_and_not_called_wrong(tmp_path):
    x = RNG.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "cifar100.npz", x_train=x, y_train=np.arange(30), x_test=x[:12], y_test=np.arange(12))
    findings = {finding.what: finding.ok for finding in CIFAR100().verify(tmp_path)}
    assert findings["training images by class"] is None and findings["image shape"] is True
    (tmp_path / "cifar100.npz").unlink()
    write_cifar100(tmp_path)
    findings = {finding.what: finding.ok for finding in CIFAR100().verify(tmp_path)}
    assert findings["training images by class"] is False and findings["checksum of train"] is False


@settings(deadline=None, max_examples=50)
@given(st.integers(4, 20000), st.integers(1, 9000), st.integers(0, 2**32))
def test_the_subsets_train_on_the_same_images_and_judge_on_others(n, n_test, seed):
    subset, tuning = (split_images(n, n_test, split, seed, "x") for split in ("subset", "subset_tuning"))
    assert np.array_equal(subset.train, tuning.train) and not subset.tuning and tuning.tuning
    assert len(subset.train) == min(5000, 5000 * n // 7000) and len(subset.judge) == min(2000, n_test)
    assert len(set(tuning.train.tolist()) & set(tuning.judge.tolist())) == 0
    assert n < 7000 or len(tuning.judge) == 2000
    for part, size in ((subset.train, n), (subset.judge, n_test), (tuning.judge, n)):
        assert len(set(part.tolist())) == len(part) and part.min() >= 0 and part.max() < size


def test_the_subset_is_fixed():
    """Records of other days must have been made on the same images."""
    subset = split_images(50000, 10000, "subset", 2026, "x")
    assert subset.train[:5].tolist() == [20123, 25667, 24389, 31653, 1643]
    assert subset.judge[:5].tolist() == [7835, 1715, 9033, 5388, 6700]


def test_tables_are_tuned_on_their_validation_part():
    train, judge = split_table(1797, "subset_tuning", 2026, "x")
    others = split_table(1797, "dp_rvfl", 2026, "x")
    assert np.array_equal(train, others[0]) and not set(judge.tolist()) & (set(others[1].tolist()) | set(train.tolist()))
    assert len(train) + len(judge) + len(others[1]) == 1797
    assert all(np.array_equal(a, b) for a, b in zip(split_table(1797, "subset", 2026, "x"), others, strict=True))


def test_the_subset_of_a_reader_is_the_one_that_the_split_names(tmp_path):
    (x, y), (x_test, y_test) = write_svhn(tmp_path, 70, 30)
    scaled = lambda pixels: pixels.astype(np.float32) / np.float32(255)  # noqa: E731
    parts = split_images(70, 30, "subset_tuning", 2026, "x")
    d = SVHN().load(tmp_path, "subset_tuning", 2026)
    assert np.array_equal(d.x_train, scaled(x[parts.train])) and np.array_equal(d.x_test, scaled(x[parts.judge]))
    assert np.array_equal(d.y_test, y[parts.judge] % 10) and d.unused == 0
    parts = split_images(70, 30, "subset", 2026, "x")
    d = SVHN().load(tmp_path, "subset", 2026)
    assert np.array_equal(d.x_test, scaled(x_test[parts.judge])) and np.array_equal(d.y_test, y_test[parts.judge] % 10)
    assert d.unused == 20


def test_a_training_set_too_small_for_a_subset_is_refused():
    with pytest.raises(UsageError, match="too few for the split subset_tuning"):
        split_images(1, 10, "subset_tuning", 1, "x")


def test_data_without_a_validation_part_names_the_split_that_makes_one():
    for cut in (split_images, lambda n, *rest: split_table(n, *rest[1:])):
        with pytest.raises(UsageError, match=r"split=official_validation: .*Use split=subset_tuning"):
            cut(100, 20, "official_validation", 1, "x")


def test_an_unknown_split_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="split=half: dp_rvfl, official, subset, subset_tuning or official_validation is"):
        Composer().compose([("split", "half")])


@pytest.mark.data
@pytest.mark.parametrize("reader", [CIFAR10("standardized"), CIFAR100("standardized"), SVHN("standardized")])
def test_the_real_subsets(reader):
    folder = folder_of(reader)
    subset, tuning = (reader.load(folder, split, 2026) for split in ("subset", "subset_tuning"))
    assert subset.x_train.shape == tuning.x_train.shape == (5000, 3, 32, 32)
    assert subset.x_test.shape == tuning.x_test.shape == (2000, 3, 32, 32)
    assert np.array_equal(subset.x_train, tuning.x_train)
    assert np.abs(subset.x_train.mean((0, 2, 3))).max() < 0.05 and np.abs(subset.x_train.std((0, 2, 3)) - 1).max() < 0.05
    seen = {image.tobytes() for image in subset.x_train}
    assert np.mean([image.tobytes() in seen for image in (*subset.x_test, *tuning.x_test)]) < 0.002  # a few twins
