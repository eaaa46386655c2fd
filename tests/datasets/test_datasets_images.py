"""The image datasets: small files in each layout, hostile and broken files, and the real data."""

import gzip
import importlib.util
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from real_files import folder_of

from dpsweep.datasets.base import MissingData
from dpsweep.datasets.images import CIFAR10, CIFAR100, MNIST, SVHN, FashionMNIST
from dpsweep.errors import UsageError

RNG = np.random.default_rng(0)


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def mnist_parts(train=40, test=20):
    parts = []
    for n in (train, test):
        parts += [RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8), (np.arange(n) % 10).astype(np.uint8)]
    return parts


def write_idx(data_dir: Path, reader, parts, zipped=False) -> Path:
    folder = data_dir / reader.folder
    folder.mkdir(parents=True, exist_ok=True)
    for file, part in zip(reader.sha256, parts, strict=True):
        content = idx(part)
        (folder / (file + ".gz" * zipped)).write_bytes(gzip.compress(content) if zipped else content)
    return data_dir


def write_npz(data_dir: Path, name: str, parts, **changes) -> Path:
    arrays = dict(zip(("x_train", "y_train", "x_test", "y_test"), parts, strict=True)) | changes
    np.savez(data_dir / f"{name}.npz", **{key: value for key, value in arrays.items() if value is not None})
    return data_dir


def python2_batch(pixels: np.ndarray, labels) -> bytes:
    """The pickle that Python 2 wrote: protocol 2, byte strings as str, NumPy's old module name."""
    short = lambda text: b"U" + bytes([len(text)]) + text  # noqa: E731
    raw = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
        b"(K\x01" + b"M" + struct.pack("<H", pixels.shape[0]) + b"M" + struct.pack("<H", pixels.shape[1]) + b"\x86"
        b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R(K\x03" + short(b"|") + b"NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + short(b"labels") + numbers + b"u."


def cifar_batches(n=12):
    return [(RNG.integers(0, 256, (n, 3072), dtype=np.uint8), [k % 10 for k in range(n)]) for _ in range(6)]


def write_batches(data_dir: Path, batches) -> Path:
    (data_dir / CIFAR10.folder).mkdir(exist_ok=True)
    for file, (pixels, labels) in zip(CIFAR10.md5, batches, strict=True):
        (data_dir / CIFAR10.folder / file).write_bytes(python2_batch(pixels, labels))
    return data_dir


@pytest.mark.parametrize("reader", [MNIST(), FashionMNIST()])
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_are_read_split_and_scaled(tmp_path, reader, zipped):
    x, y, x_test, y_test = parts = mnist_parts()
    write_idx(tmp_path, reader, parts, zipped)
    reader.check(tmp_path)
    d = reader.load(tmp_path, "dp_rvfl", 3)
    order = np.random.default_rng(3).permutation(40)[:34]
    assert (d.name, d.kind, d.classes, d.official, d.source) == (reader.name, "image", 10, False, reader.folder)
    assert d.x_train.dtype == np.float32 and d.x_train.flags.c_contiguous and d.y_train.dtype == np.int64
    assert np.array_equal(d.x_train[:, 0], x[order].astype(np.float32) / np.float32(255))
    assert np.array_equal(d.y_train, y[order]) and np.array_equal(d.y_test, y_test)
    assert np.array_equal(d.x_test[:, 0], x_test.astype(np.float32) / np.float32(255))
    whole = reader.load(tmp_path, "official", 3)
    assert np.array_equal(whole.y_train, y) and whole.x_train.shape == (40, 1, 28, 28)


def test_layouts_agree_and_torchvisions_comes_first(tmp_path):
    parts = mnist_parts()
    write_npz(tmp_path, "mnist", parts)
    from_npz = MNIST().load(tmp_path, "dp_rvfl", 1)
    assert (from_npz.source, from_npz.official) == ("mnist.npz", False)
    write_idx(tmp_path, MNIST, parts, zipped=True)
    from_idx = MNIST().load(tmp_path, "dp_rvfl", 1)
    assert from_idx.source == "MNIST/raw" and from_idx.fingerprint == from_npz.fingerprint
    next((tmp_path / "MNIST/raw").iterdir()).unlink()
    assert MNIST().load(tmp_path, "dp_rvfl", 1).source == "mnist.npz"


def test_official_needs_every_checksum(tmp_path, monkeypatch):
    import hashlib

    parts = mnist_parts()
    write_idx(tmp_path, MNIST, parts, zipped=True)
    sums = {file: hashlib.sha256(idx(part)).hexdigest() for file, part in zip(MNIST.sha256, parts, strict=True)}
    monkeypatch.setattr(MNIST, "sha256", sums)
    assert MNIST().load(tmp_path, "official", 1).official is True
    parts[3][0] = 9
    write_idx(tmp_path, MNIST, parts)
    assert MNIST().load(tmp_path, "official", 1).official is False
    wrong = [finding.what for finding in MNIST().verify(tmp_path) if finding.ok is False]
    assert "checksum of t10k-labels-idx1-ubyte" in wrong and "checksum of train-images-idx3-ubyte" not in wrong


def test_cifar_batches_of_python_2_and_the_npz_give_the_same(tmp_path):
    batches = cifar_batches()
    write_batches(tmp_path, batches)
    d = CIFAR10().load(tmp_path, "official", 1)
    assert d.source == "cifar-10-batches-py" and d.official is False and d.x_train.shape == (60, 3, 32, 32)
    pixels = np.concatenate([part for part, _ in batches[:5]]).reshape(-1, 3, 32, 32)
    assert np.array_equal(d.x_train, pixels.astype(np.float32) / np.float32(255))
    (tmp_path / "npz").mkdir()
    test = batches[5][0].reshape(-1, 3, 32, 32)
    labels = np.array(sum((part for _, part in batches[:5]), []))
    last_axis = [pixels.transpose(0, 2, 3, 1), labels, test.transpose(0, 2, 3, 1), np.array(batches[5][1])]
    write_npz(tmp_path / "npz", "cifar10", last_axis)
    for split in ("official", "dp_rvfl"):
        first, second = (CIFAR10().load(folder, split, 5) for folder in (tmp_path, tmp_path / "npz"))
        assert first.fingerprint == second.fingerprint and first.x_train.flags.c_contiguous


@pytest.mark.parametrize("protocol", [3, 4])
def test_cifar_batches_written_again_by_python_3(tmp_path, protocol):
    batches = cifar_batches()
    write_batches(tmp_path, batches)
    expected = CIFAR10().load(tmp_path, "official", 1).fingerprint
    for file, (pixels, labels) in zip(CIFAR10.md5, batches, strict=True):
        content = pickle.dumps({"data": pixels, "labels": labels}, protocol=protocol)
        (tmp_path / CIFAR10.folder / file).write_bytes(content)
    assert CIFAR10().load(tmp_path, "official", 1).fingerprint == expected


class Attack:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_malicious_pickle_runs_nothing(tmp_path):
    write_batches(tmp_path, cifar_batches())
    witness = tmp_path / "witness"
    for function, argument in ((os.mkdir, str(witness)), (eval, f"open({str(witness)!r}, 'w')"), (np.save, "x")):
        content = pickle.dumps({"data": Attack(function, argument), "labels": [1]}, protocol=2)
        (tmp_path / CIFAR10.folder / "data_batch_3").write_bytes(content)
        with pytest.raises(UsageError, match="data_batch_3 is refused.*wants to call"):
            CIFAR10().load(tmp_path, "official", 1)
        assert not witness.exists()


def test_forged_numpy_objects_are_refused(tmp_path):
    write_batches(tmp_path, cifar_batches())
    path = tmp_path / CIFAR10.folder / "test_batch"
    good = path.read_bytes()
    state_on_the_class = b"\x80\x02cnumpy\ndtype\n}U\x01aK\x01sb."
    for content in (good.replace(b"U\x02u1", b"U\x02O8"), state_on_the_class):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="test_batch is refused"):
            CIFAR10().load(tmp_path, "official", 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda good: good[:-400],
        lambda good: b"not a pickle",
        lambda good: pickle.dumps([1, 2]),
        lambda good: pickle.dumps({"data": np.zeros((2, 3072), np.uint8)}, protocol=4),
        lambda good: pickle.dumps({"data": np.zeros((2, 30), np.uint8), "labels": [1, 2]}, protocol=4),
        lambda good: pickle.dumps({"data": np.full((2, 3072), np.nan), "labels": [1, 2]}, protocol=4),
        lambda good: pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2.5]}, protocol=4),
    ],
)
def test_broken_batches_are_refused(tmp_path, change):
    write_batches(tmp_path, cifar_batches())
    path = tmp_path / CIFAR10.folder / "data_batch_2"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UsageError, match="data_batch_2 is refused"):
        CIFAR10().load(tmp_path, "official", 1)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("train-images-idx3-ubyte", lambda content: content[:-1], "announces"),
        ("train-images-idx3-ubyte", lambda content: content + b"x", "announces"),
        ("train-images-idx3-ubyte", lambda content: content[:9], "cut short"),
        ("train-images-idx3-ubyte", lambda content: b"\x00\x00\x0d\x03" + content[4:], "00000d03"),
        ("train-images-idx3-ubyte", lambda content: idx(np.zeros((40, 32, 32), np.uint8)), "shape"),
        ("train-images-idx3-ubyte", lambda content: b"", "empty"),
        ("t10k-labels-idx1-ubyte", lambda content: idx(np.full(20, 10, np.uint8)), "20 labels lie outside 0..9"),
        ("t10k-labels-idx1-ubyte", lambda content: idx(np.zeros(19, np.uint8)), "20 whole numbers"),
        ("t10k-labels-idx1-ubyte", lambda content: idx(np.zeros((20, 1), np.uint8)), "00000802"),
    ],
)
def test_broken_idx_files_are_named(tmp_path, file, change, said):
    write_idx(tmp_path, MNIST, mnist_parts())
    path = tmp_path / MNIST.folder / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UsageError, match=said) as caught:
        MNIST().load(tmp_path, "official", 1)
    assert str(tmp_path / MNIST.folder) in str(caught.value)


@pytest.mark.parametrize("change", [lambda content: content[:-30], lambda content: b"plain", lambda content: content[:5]])
def test_broken_gzip_files_are_named(tmp_path, change):
    write_idx(tmp_path, MNIST, mnist_parts(), zipped=True)
    path = tmp_path / MNIST.folder / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UsageError, match="t10k-images-idx3-ubyte.gz is not a whole gzip file"):
        MNIST().load(tmp_path, "official", 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"y_test": None}, "lacks the arrays y_test"),
        ({"x_train": np.full((40, 28, 28), np.nan)}, "training part: the images are float64"),
        ({"x_train": np.zeros((40, 784), np.uint8)}, "training part: the images are of shape"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8)}, "test part: the images are of shape"),
        ({"y_train": np.zeros(40)}, "labels are float64"),
        ({"y_train": np.zeros((40, 1), np.int64)}, "labels are int64 of shape"),
        ({"y_train": np.full(40, -1)}, "40 labels lie outside"),
        ({"y_test": np.array([object()] * 20)}, "not a readable NPZ"),
    ],
)
def test_broken_npz_files_are_named(tmp_path, changes, said):
    write_npz(tmp_path, "mnist", mnist_parts(), **changes)
    with pytest.raises(UsageError, match=said) as caught:
        MNIST().load(tmp_path, "official", 1)
    assert str(tmp_path / "mnist.npz") in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04broken", pickle.dumps([1]), None])
def test_files_that_are_no_npz(tmp_path, content):
    path = tmp_path / "cifar10.npz"
    if content is None:
        np.save(tmp_path / "array.npy", np.zeros(3))
        (tmp_path / "array.npy").rename(path)
    else:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="cifar10.npz"):
        CIFAR10().load(tmp_path, "official", 1)


@pytest.mark.parametrize("reader", [MNIST(), FashionMNIST(), CIFAR10(), CIFAR100()])
def test_missing_files_are_named_with_folder_and_remedy(tmp_path, reader):
    with pytest.raises(MissingData) as caught:
        reader.check(tmp_path)
    for part in (
        reader.folder,
        f"{reader.name}.npz",
        str(tmp_path),
        f"dpsweep data fetch {reader.name}",
        "data.dir=",
        "DPSWEEP_DATA",
    ):
        assert part in str(caught.value)


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "mnist.npz").mkdir()
    with pytest.raises(UsageError, match="mnist.npz is not a file") as caught:
        MNIST().check(tmp_path)
    assert not isinstance(caught.value, MissingData)


def test_a_training_set_too_small_to_split(tmp_path):
    write_idx(tmp_path, MNIST, mnist_parts(train=1))
    with pytest.raises(UsageError, match="too few"):
        MNIST().load(tmp_path, "dp_rvfl", 1)


def test_the_md5s_are_torchvisions():
    package = importlib.util.find_spec("torchvision")
    if package is None or not package.submodule_search_locations:
        pytest.skip("torchvision is not installed")
    folder = Path(package.submodule_search_locations[0]) / "datasets"
    text = (folder / "cifar.py").read_text()
    assert all(f'["{file}", "{md5}"]' in text for reader in (CIFAR10, CIFAR100) for file, md5 in reader.md5.items())
    text = (folder / "svhn.py").read_text()
    assert all(f'"{file}"' in text and f'"{md5}"' in text for file, md5 in SVHN.md5.items())


@pytest.mark.data
@pytest.mark.parametrize(
    ("reader", "train", "majority"), [(MNIST(), 51000, 0.1135), (FashionMNIST(), 51000, 0.10), (CIFAR10(), 42500, 0.10)]
)
def test_the_real_files(reader, train, majority):
    folder = folder_of(reader)
    d = reader.load(folder, "dp_rvfl", 2026)
    assert (len(d.y_train), len(d.y_test)) == (train, 10000)
    assert d.official is (not d.source.endswith(".npz"))
    assert np.mean(d.y_test == np.bincount(d.y_train).argmax()) == pytest.approx(majority, abs=5e-5)
    assert d.x_train.min() == 0 and d.x_train.max() == 1
    assert not [finding for finding in reader.verify(folder) if finding.ok is False]
