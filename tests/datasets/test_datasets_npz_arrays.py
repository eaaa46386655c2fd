"""A user's own NPZ by YAML alone: layouts, scaling, and mistakes named from the headers without a value read."""

import numpy as np
import pytest

from dpsweep.datasets.base import MissingData
from dpsweep.datasets.npz_arrays import NpzArrays
from dpsweep.errors import UsageError

RNG = np.random.default_rng(3)


def reader(**changes):
    node = {"name": "scans", "shape": [1, 4, 6], "classes": 3, "file": "scans.npz", "train": ["x", "y"]}
    return NpzArrays(**node | changes)


def arrays(n=20, shape=(4, 6)):
    return {"x": RNG.integers(0, 256, (n, *shape), dtype=np.uint8), "y": (np.arange(n) % 3).astype(np.int16)}


def save(folder, **content):
    np.savez(folder / "scans.npz", **content)
    return folder


def test_images_are_split_and_scaled_by_the_yamls_bounds(tmp_path):
    content = arrays()
    d = reader(bounds=[0, 255]).load(save(tmp_path, **content), "dp_rvfl", 5)
    order = np.random.default_rng(5).permutation(20)
    assert (d.kind, d.classes, d.source) == ("image", 3, "scans.npz")
    assert np.array_equal(d.x_train[:, 0], content["x"][order[:14]] / np.float32(255))
    assert np.array_equal(d.y_test, content["y"][order[17:]])
    d.check((1, 4, 6), 3)
    narrow = reader(bounds=[50, 100]).load(tmp_path, "dp_rvfl", 5)
    expected = (np.clip(content["x"][order[:14]].astype(float), 50, 100) - 50) / 50
    assert narrow.x_train[:, 0] == pytest.approx(expected, abs=1e-6)


def test_every_layout_gives_channels_first(tmp_path):
    content = arrays(shape=(4, 6, 3))
    last = reader(shape=[3, 4, 6]).load(save(tmp_path, **content), "dp_rvfl", 5)
    first = {"x": np.moveaxis(content["x"], -1, 1), "y": content["y"]}
    assert reader(shape=[3, 4, 6], channels="first").load(save(tmp_path, **first), "dp_rvfl", 5).fingerprint == last.fingerprint
    assert last.x_train.flags.c_contiguous and last.x_train.shape[1:] == (3, 4, 6)


def test_tables_and_test_arrays(tmp_path):
    content = {"a": RNG.normal(size=(9, 5)), "b": np.arange(9) % 2, "c": RNG.normal(size=(4, 5)), "d": np.ones(4, np.uint8)}
    d = reader(shape=[5], classes=2, train=["a", "b"], test=["c", "d"]).load(save(tmp_path, **content), "dp_rvfl", 5)
    assert d.kind == "table" and np.array_equal(d.x_train, content["a"].astype(np.float32)) and d.y_test.tolist() == [1] * 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train": ["x"]}, "dataset.train"),
        ({"train": "xy"}, "dataset.train"),
        ({"test": ["x", 3]}, "dataset.test"),
        ({"bounds": [1, 1]}, r"dataset.bounds=\[1, 1\]"),
        ({"bounds": [1e9, 1e9 + 1]}, "dataset.bounds"),
        ({"bounds": 255}, "dataset.bounds"),
        ({"channels": "middle"}, "dataset.channels=middle"),
    ],
)
def test_mistakes_in_the_yaml_are_named(changes, said):
    with pytest.raises(UsageError, match=said):
        reader(**changes)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"x": np.zeros((5, 4, 6))}, "lacks the arrays y"),
        (arrays() | {"x": np.zeros((20, 3, 6))}, r"dataset.shape=\[1, 4, 6\].*give shape: \[1, 3, 6\]"),
        (arrays() | {"x": np.zeros((20, 4, 6, 3))}, r"give shape: \[3, 4, 6\]"),
        (arrays() | {"x": np.zeros(20)}, "the array x must hold numbers"),
        (arrays() | {"x": np.zeros((20, 4, 6), complex)}, "the array x must hold numbers"),
        (arrays() | {"x": np.full((20, 4, 6), "a")}, "the array x must hold numbers"),
        (arrays() | {"x": np.array(3.0)}, "the array x must hold numbers"),
        (arrays() | {"x": np.array([[object()]])}, "Python objects"),
        (arrays() | {"y": np.array([None] * 20)}, "Python objects"),
        (arrays() | {"y": np.full(20, np.nan)}, "the array y must hold whole numbers"),
        (arrays() | {"y": np.zeros((20, 1), int)}, "the array y must hold whole numbers"),
        (arrays() | {"y": np.zeros(19, int)}, "the array y must hold whole numbers"),
        ({"x": np.zeros((0, 4, 6)), "y": np.zeros(0, int)}, "the array y must hold whole numbers"),
    ],
)  # fmt: skip
def test_wrong_arrays_are_named_from_their_headers(tmp_path, content, said):
    with pytest.raises(UsageError, match=said):
        reader().check(save(tmp_path, **content))


def test_values_that_make_no_sense_are_named_and_not_quoted(tmp_path):
    content = arrays()
    content["y"][4] = 77
    with pytest.raises(UsageError, match=r"labels lie outside 0\.\.2") as caught:
        reader().load(save(tmp_path, **content), "dp_rvfl", 5)
    assert "77" not in str(caught.value).replace(str(tmp_path), "")
    for value in (np.nan, np.inf, 1e300):
        content = arrays() | {"x": np.full((20, 4, 6), value)}
        with pytest.raises(UsageError, match="aren't finite numbers"):
            reader(bounds=[0, 1]).load(save(tmp_path, **content), "dp_rvfl", 5)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04broken"])
def test_files_that_are_no_npz(tmp_path, content):
    with pytest.raises(MissingData, match="scans needs scans.npz"):
        reader().check(tmp_path)
    (tmp_path / "scans.npz").write_bytes(content)
    with pytest.raises(UsageError, match="not a readable NPZ") as caught:
        reader().check(tmp_path)
    assert not isinstance(caught.value, MissingData)


def test_verify_holds_the_shape_and_counts(tmp_path):
    found = {f.what: (f.found, f.ok) for f in reader().verify(save(tmp_path, **arrays()))}
    assert found["training, test records"] == ("14 3", None) and found["shape of a record"][1] is True
