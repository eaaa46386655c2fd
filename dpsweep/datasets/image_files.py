"""The file formats of image datasets, read with distrust: IDX (MNIST), CIFAR's pickled batches, SVHN's MATLAB files, and NPZ."""

from __future__ import annotations

import gzip
import io
import math
import pickle
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from dpsweep.datasets.base import LARGEST, too_large
from dpsweep.errors import UsageError

_AGAIN = "Fetch the file again."


def gunzip(content: bytes, path: Path) -> bytes:
    """Unpack gzip; raises `UsageError` where the file is cut short, is no gzip or unpacks to far too much."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is not a whole gzip file ({error}). {_AGAIN}") from error
    if len(unpacked) > LARGEST:
        raise too_large(path, f"it unpacks to more than {LARGEST:,} bytes", LARGEST)
    return unpacked


def parse_idx(content: bytes, path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Read an IDX file of unsigned bytes whose records have `shape`: uint8 (n, *shape), read-only.

    IDX: two zero bytes, the type 8, the number of dimensions, each dimension as a big-endian int32, the values in C
    order (LeCun's description of the MNIST files).
    """
    start = 4 + 4 * (1 + len(shape))
    magic = bytes([0, 0, 8, 1 + len(shape)])
    if content[:4] != magic:
        raise UsageError(
            f"{path} starts with the bytes {content[:4].hex()}, where {magic.hex()} is the mark of an IDX file of "
            f"{1 + len(shape)}-dimensional unsigned bytes. It is another file, or a broken one. {_AGAIN}"
        )
    if len(content) < start:
        raise UsageError(f"{path} ends within its header: it is cut short. {_AGAIN}")
    sizes = tuple(int(size) for size in np.frombuffer(content, ">u4", 1 + len(shape), 4))
    if sizes[1:] != shape:
        raise UsageError(f"{path} holds records of shape {sizes[1:]}, where {shape} is needed. {_AGAIN}")
    expected = start + sizes[0] * int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise UsageError(f"{path} has {len(content)} bytes, where its header announces {expected}. {_AGAIN}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


class _PickledDtype:
    """Stands for `numpy.dtype` while unpickling: keeps the code, such as u1, and ignores the state."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass


class _PickledArray:
    """Stands for `numpy.ndarray` while unpickling: keeps what the pickle says, and checks it only in `array()`."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        """The uint8 array; raises ValueError or TypeError for any other content."""
        _, shape, dtype, fortran, values = self.state
        if not isinstance(dtype, _PickledDtype) or dtype.code not in ("u1", "uint8", "|u1"):
            raise ValueError("the pixels are not unsigned bytes")
        if not isinstance(values, bytes):
            raise ValueError("the pixels are not stored as bytes")
        return np.frombuffer(values, np.uint8).reshape(shape, order="F" if fortran else "C")


class _CifarUnpickler(pickle.Unpickler):
    """Admits plain containers, numbers, strings and byte arrays.

    Not even NumPy's own classes run: a pickle can lie to `numpy.dtype` about its flags and so make arrays of forged
    pointers. What the pickle calls are the stand-ins above, which keep arguments and do nothing.
    """

    _ADMITTED = {
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy", "ndarray"): _PickledArray,
        ("numpy", "dtype"): _PickledDtype,
    }

    def find_class(self, module: str, name: str) -> type:
        try:
            return self._ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it wants to call {module}.{name}, which no batch of CIFAR does, and which could run any program"
            ) from None


def parse_cifar_batch(content: bytes, path: Path, field: str = "labels") -> tuple[np.ndarray, np.ndarray]:
    """Read one file of `cifar-10-batches-py` or `cifar-100-python`: uint8 images (n, 3, 32, 32) and int64 labels (n,).

    `field` holds the labels: `labels` in CIFAR-10, `fine_labels` in CIFAR-100. The files are pickles, of Python 2 in the
    official archive; nothing that a pickle could name is ever run.
    """
    try:
        batch = _CifarUnpickler(io.BytesIO(content), encoding="bytes").load()
        fields = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
        pixels = fields["data"].array()
        if pixels.ndim != 2 or pixels.shape[1] != 3072:
            raise ValueError(f"the pixels have the shape {pixels.shape}, where (n, 3072) is needed")
        found = fields[field]
        if not isinstance(found, list) or not all(type(label) is int for label in found):
            raise ValueError("the labels are not a list of whole numbers")
        labels = np.array(found, dtype=np.int64)
    except Exception as error:  # a broken pickle can raise anything, and all of it means the same
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{path} is refused as a batch of CIFAR: {reason}. Get the official archive again, or convert the data "
            "to an NPZ file."
        ) from error
    return pixels.reshape(-1, 3, 32, 32), labels


def parse_svhn(content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read one of SVHN's cropped files, MATLAB 5: uint8 images (n, 3, 32, 32) and int64 labels (n,), the digit 0 as 0.

    The file holds `X` (32, 32, 3, n) and `y` (n, 1), where 10 stands for the digit 0. Only these two are read, as numbers.
    """
    from scipy.io import loadmat

    _check_unpacked_mat(content, path)
    try:
        fields = loadmat(io.BytesIO(content), variable_names=("X", "y"), mat_dtype=False)
        pixels, labels = (np.asarray(fields[key]) for key in ("X", "y"))
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
            raise ValueError(f"X is {pixels.dtype} of shape {pixels.shape}, where uint8 (32, 32, 3, n) is needed")
        if labels.dtype.kind not in "uif" or labels.shape != (pixels.shape[3], 1):
            raise ValueError(f"y is {labels.dtype} of shape {labels.shape}, where {(pixels.shape[3], 1)} numbers are needed")
        if not np.isin(labels, range(1, 11)).all():
            raise ValueError("y holds something else than whole numbers from 1 to 10")
    except Exception as error:  # a broken MATLAB file can raise anything, and all of it means the same
        raise UsageError(
            f"{path} is refused as a file of SVHN's cropped digits: {type(error).__name__}: {error}. Get the official file "
            "again, or convert the data to an NPZ file."
        ) from error
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels[:, 0].astype(np.int64) % 10


def _check_unpacked_mat(content: bytes, path: Path) -> None:
    """Refuse a MATLAB 5 file whose packed elements unpack to more than `LARGEST`: nothing is kept of them here."""
    at, total = 128, 0  # after the header: elements, each a type, its number of bytes, the bytes
    order: Literal["little", "big"] = "big" if content[126:128] == b"MI" else "little"
    while at + 8 <= len(content):
        kind, size = (int.from_bytes(content[at + i : at + i + 4], order) for i in (0, 4))
        packed, unpacker = content[at + 8 : at + 8 + size], zlib.decompressobj()
        while kind == 15 and packed and not unpacker.eof:
            try:
                total += len(unpacker.decompress(packed, 2**20))
            except zlib.error:
                return  # the reader says what is wrong with it
            packed = unpacker.unconsumed_tail
            if total > LARGEST:
                raise too_large(path, f"it unpacks to more than {LARGEST:,} bytes", LARGEST)
        at += 8 + size


def read_npz(path: Path, keys: Sequence[str], largest: int = LARGEST) -> list[np.ndarray]:
    """The arrays `keys` of an NPZ file, without unpickling; raises `UsageError` as `read_npz_headers` does."""
    read_npz_headers(path, keys, largest)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return [archive[key] for key in keys]
    except _BROKEN_NPZ as error:
        raise _no_npz(path, keys, error) from error


def read_npz_headers(path: Path, keys: Sequence[str], largest: int = LARGEST) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and kind of type (NumPy's `dtype.kind`) of the arrays `keys`, from their headers: no value is read.

    Raises `UsageError` for anything else than an NPZ file of plain arrays that has them, for arrays of more or fewer values
    than their headers announce, and where they have more than `largest` bytes together.
    """
    headers: dict[str, tuple[tuple[int, ...], str]] = {}
    total = 0
    try:
        with path.open("rb") as file:
            if file.read(6) == np.lib.format.MAGIC_PREFIX:
                raise UsageError(f"{path} holds a single array. Save {', '.join(keys)} with numpy.savez.")
        with zipfile.ZipFile(path) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
            if absent := [key for key in keys if key not in held]:
                raise UsageError(
                    f"{path} lacks the arrays {', '.join(absent)}; it holds {', '.join(held) or 'none'}. "
                    f"Save {', '.join(keys)} with numpy.savez."
                )
            for key in keys:
                member = archive.getinfo(f"{key}.npy")  # its size is checked while it is unpacked: no more than that comes
                total += member.file_size
                if total > largest:
                    raise too_large(path, f"its arrays unpack to {total:,} bytes or more", largest)
                with archive.open(member) as unpacked:
                    headers[key] = _read_header(unpacked, key, member.file_size)
    except _BROKEN_NPZ as error:
        raise _no_npz(path, keys, error) from error
    return headers


_BROKEN_NPZ = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def _no_npz(path: Path, keys: Sequence[str], error: Exception) -> UsageError:
    return UsageError(f"{path} is not a readable NPZ file of plain arrays ({error}). Save {', '.join(keys)} with numpy.savez.")


def _read_header(file: IO[bytes], key: str, size: int) -> tuple[tuple[int, ...], str]:
    """Shape and kind of the array in a NPY file of `size` bytes; ValueError where it is not what its header says."""
    start = file.read(12)
    if len(start) < 12 or start[:6] != np.lib.format.MAGIC_PREFIX or tuple(start[6:8]) not in ((1, 0), (2, 0)):
        raise ValueError(f"the array {key} is in no known format, or in one for structured arrays")
    first = start[6] == 1
    length = int.from_bytes(start[8 : 10 if first else 12], "little")
    if length > 10_000:  # NumPy's own limit, which it looks at only once it has read the header
        raise ValueError(f"the array {key} has a header of {length:,} bytes")
    header = io.BytesIO(start[8:] + file.read(length))
    shape, _, dtype = (np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0)(header)
    if dtype.hasobject:
        raise ValueError(f"the array {key} holds Python objects, which would have to be unpickled")
    announced = (10 if first else 12) + length + math.prod(shape) * dtype.itemsize
    if announced != size:
        raise ValueError(f"the array {key} has {size:,} bytes, where its header announces {announced:,}")
    return tuple(shape), dtype.kind


def check_images(x: np.ndarray, y: np.ndarray, shape: tuple[int, int, int], classes: int, what: str) -> None:
    """Raise `UsageError` unless x is uint8 (n, *shape), y holds n whole numbers in 0..classes-1, and n > 0."""
    if x.dtype != np.uint8:
        raise UsageError(f"{what}: the images are {x.dtype}, where uint8 (0 to 255) is needed. Convert them first.")
    if x.shape[1:] != shape or not len(x):
        raise UsageError(
            f"{what}: the images are of shape {x.shape} as (n, channels, height, width), where n > 0 images of shape "
            f"{shape} are needed."
        )
    if not np.issubdtype(y.dtype, np.integer) or y.shape != x.shape[:1]:
        raise UsageError(f"{what}: the labels are {y.dtype} of shape {y.shape}; {len(x)} whole numbers are needed, one an image.")
    wrong = (y < 0) | (y >= classes)
    if wrong.any():
        raise UsageError(
            f"{what}: {int(wrong.sum())} labels lie outside 0..{classes - 1}, first that of record "
            f"{int(np.argmax(wrong)) + 1}. Use the original file, or number the classes from 0."
        )
