"""Files that would fill the memory, lie about their size or leave their place: refused by name, and quickly."""

import gzip
import io
import os
import tarfile
import zipfile

import numpy as np
import pytest

from dpsweep.datasets import base, fetch, image_files
from dpsweep.datasets.images import CIFAR10, MNIST
from dpsweep.datasets.npz_arrays import LARGEST_OWN
from dpsweep.errors import UsageError


def npy(header: str, values: bytes, version=1, length=None) -> bytes:
    """A NPY file with any header and any values."""
    text = header.encode()
    size = (len(text) if length is None else length).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + values


def npz(path, **members: bytes):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


FORM = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"


@pytest.mark.parametrize("read", [image_files.read_npz, image_files.read_npz_headers])
@pytest.mark.parametrize(
    "content, said",
    [
        (npy(FORM.format("|u1", "(1000000000000000,)"), b"x" * 9), "announces 1,000,000,000,000,0"),
        (npy(FORM.format("|u1", "(4,)"), b"x" * 9), "where its header announces"),
        (npy(FORM.format("<f8", "(9,)"), b"x" * 9), "where its header announces"),
        (npy(FORM.format("|O", "(9,)"), b"x" * 9), "Python objects"),
        (npy("", b"", version=2, length=2**32 - 1), "a header of 4,294,967,295 bytes"),
        (npy("__import__('os').system('true')", b""), "not a readable NPZ"),
        (npy(FORM.format("|u1", "(-1,)"), b""), "where its header announces"),
        (b"\x93NUMPY\x03\x00" + bytes(20), "in no known format"),
        (b"\x93NU", "in no known format"),
    ],
)
def test_arrays_that_are_not_what_their_header_says(tmp_path, read, content, said):
    with pytest.raises(UsageError, match=f"(?s)mine.npz.*{said}"):
        read(npz(tmp_path / "mine.npz", x=content), ["x"])


def test_arrays_that_unpack_to_too_much_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, x=np.zeros(10_000, np.uint8), y=np.zeros(10_000, np.uint8))
    assert path.stat().st_size < 1000
    assert len(image_files.read_npz(path, ["x"], 15_000)) == 1
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(UsageError, match="unpack to 20,256 bytes or more, and at most 15,000 are read"):
        image_files.read_npz(path, ["x", "y"], 15_000)
    assert LARGEST_OWN == 16 * 2**30


def test_gzip_and_matlab_files_that_unpack_to_too_much(tmp_path, monkeypatch):
    from scipy.io import savemat

    monkeypatch.setattr(image_files, "LARGEST", 100_000)
    file = tmp_path / "digits.mat"
    savemat(file, {"X": np.zeros((32, 32, 3, 20), np.uint8), "y": np.ones((20, 1), np.uint8)}, do_compression=True)
    assert image_files.parse_svhn(file.read_bytes(), file)[0].shape == (20, 3, 32, 32)
    assert len(image_files.gunzip(gzip.compress(bytes(100_000)), file)) == 100_000
    savemat(file, {"X": np.zeros((32, 32, 3, 40), np.uint8), "y": np.ones((40, 1), np.uint8)}, do_compression=True)
    assert file.stat().st_size < 5000
    for call in (image_files.parse_svhn, lambda content, path: image_files.gunzip(gzip.compress(bytes(100_001)), path)):
        with pytest.raises(UsageError, match="digits.mat is refused: it unpacks to more than 100,000 bytes"):
            call(file.read_bytes(), file)


def test_a_gzip_file_stops_being_unpacked_at_the_limit(monkeypatch):
    """Of 200 MB of zeros no more than the limit is ever there."""
    import tracemalloc

    monkeypatch.setattr(image_files, "LARGEST", 1_000_000)
    bomb = gzip.compress(bytes(200_000_000), 1)
    tracemalloc.start()
    with pytest.raises(UsageError, match="unpacks to more"):
        image_files.gunzip(bomb, "bomb.gz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


@pytest.mark.parametrize("reader, file", [(CIFAR10, "data_batch_1"), (MNIST, "train-images-idx3-ubyte")])
def test_a_file_far_too_large_is_not_read(tmp_path, reader, file):
    folder = tmp_path / reader.folder
    folder.mkdir(parents=True)
    for name in getattr(reader, "md5", None) or reader.sha256:
        (folder / name).write_bytes(b"x")
    os.truncate(folder / file, base.LARGEST + 1)  # a hole: it takes no room
    with pytest.raises(UsageError, match=rf"{file} is refused: it has 1,073,741,825 bytes"):
        reader().load(tmp_path, "official", 0)


def packed(members):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
        for name, size in members.items():
            info = tarfile.TarInfo(name)
            info.size = size
            archive.addfile(info, io.BytesIO(bytes(size)))
    return content.getvalue()


def test_an_archive_that_unpacks_to_far_too_much_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch, "LARGEST", 1_000_000)
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(packed({"other": 3_000_000, "../../wanted": 10}))
    with pytest.raises(fetch._Refused, match="unpacks to more than 2 MB"):
        fetch._unpack(archive, "tar", {"wanted": tmp_path / "wanted"})
    archive.write_bytes(packed({"other": 1_500_000, "../../wanted": 10, "/wanted": 20}))
    fetch._unpack(archive, "tar", {"wanted": tmp_path / "wanted"})
    assert (tmp_path / "wanted").stat().st_size == 10 and sorted(os.listdir(tmp_path)) == ["a.tar.gz", "wanted"]
