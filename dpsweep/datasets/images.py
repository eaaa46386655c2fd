"""MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 and SVHN, from torchvision's own files or from one NPZ file.

In a data folder torchvision's layout comes first (`MNIST/raw`, `FashionMNIST/raw`, `cifar-10-batches-py`,
`cifar-100-python`, `train_32x32.mat` and `test_32x32.mat`, as `torchvision.datasets` downloads them; IDX files plain or
gzipped). Else `NAME.npz` is read: `x_train`, `x_test` uint8
(n, height, width) or (n, height, width, channels), `y_train`, `y_test` whole numbers (n,).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    is_present,
    missing,
    read_bytes,
    split_images,
)
from dpsweep.datasets.image_files import check_images, gunzip, parse_cifar_batch, parse_idx, parse_svhn, read_npz
from dpsweep.datasets.profiles import Constants, apply_profile, check_profile

_NPZ_KEYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class _Raw:
    """A dataset as its files hold it: uint8 images (n, channels, height, width), whole-number labels (n,)."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    official: Mapping[str, bool]  # by file; empty for an NPZ, of which no official one exists
    source: str


class _ImageFiles(ABC):
    """What they share; a subclass knows its files.

    Args:
        profile: one of `profiles.PROFILES`; None means raw01.
    """

    name: str
    folder: str  # in the data folder; "" for files that lie in it directly
    shape: tuple[int, int, int]
    classes: int = 10
    counts: tuple[str, str]  # images by class, training and test
    constants: Constants  # of the official training set, as commonly published
    known_fingerprint: str | None

    def __init__(self, profile: str | None = None) -> None:
        self._profile = check_profile(profile)

    @abstractmethod
    def _files(self, data_dir: Path) -> dict[str, Path]:
        """The files of torchvision's layout, by official name."""

    @abstractmethod
    def _read_folder(self, files: Mapping[str, Path]) -> _Raw:
        """Read them."""

    def check(self, data_dir: Path) -> None:
        """Raise `MissingData` unless torchvision's files or the NPZ are there."""
        self._locate(data_dir)

    def load(self, data_dir: Path, split: str, split_seed: int) -> Dataset:
        """Images as float32 by the profile, labels as in the files."""
        return self._split(self._read(data_dir), split, split_seed, self._profile)

    def verify(self, data_dir: Path) -> list[Finding]:
        """Counts, classes and checksums of the files; the fingerprint is that of the profile raw01, whatever is chosen."""
        raw = self._read(data_dir)
        findings = [
            compare(f"checksum of {file}", "the official file", "the official file" if same else "another file")
            for file, same in raw.official.items()
        ] or [Finding("checksum", "not known", f"{raw.source} is not the official distribution", None)]
        return [
            *findings,
            compare("image shape", self.shape, raw.x_train.shape[1:]),
            self._compare_counts("training", self.counts[0], raw.y_train, bool(raw.official)),
            self._compare_counts("test", self.counts[1], raw.y_test, bool(raw.official)),
            # an NPZ may hold the same images in another order, so only the official files have one fingerprint
            compare_fingerprint(
                self.known_fingerprint if raw.official else None, self._split(raw, VERIFIED_SPLIT, VERIFIED_SEED, "raw01")
            ),
        ]

    def _compare_counts(self, part: str, expected: str, labels: np.ndarray, whole: bool) -> Finding:
        """Images by class; an NPZ may rightly hold a part of the dataset, so other counts are told and not held against it."""
        found = compare(f"{part} images by class", expected, class_counts(labels, self.classes))
        return found if found.ok or whole else replace(found, ok=None)

    def _locate(self, data_dir: Path) -> dict[str, Path] | None:
        """The files of torchvision's layout, or None where the NPZ is there in their place."""
        files = self._files(data_dir)
        absent = [file for file, path in files.items() if not is_present(path)]
        if not absent:
            return files
        npz = data_dir / f"{self.name}.npz"
        if is_present(npz):
            return None
        raise missing(
            self.name,
            f"{Path(self.folder)}/{{{', '.join(absent)}}} or {npz.name} (arrays {', '.join(_NPZ_KEYS)})",
            data_dir,
            f"Run `dpsweep data fetch {self.name}` on a machine with internet.",
        )

    def _read(self, data_dir: Path) -> _Raw:
        files = self._locate(data_dir)
        raw = self._read_npz(data_dir / f"{self.name}.npz") if files is None else self._read_folder(files)
        where = data_dir / raw.source if files is None or self.folder else f"{raw.source} in {data_dir}"
        check_images(raw.x_train, raw.y_train, self.shape, self.classes, f"{where}, training part")
        check_images(raw.x_test, raw.y_test, self.shape, self.classes, f"{where}, test part")
        return raw

    def _read_npz(self, path: Path) -> _Raw:
        x_train, y_train, x_test, y_test = read_npz(path, _NPZ_KEYS)
        return _Raw(_channels_first(x_train), y_train, _channels_first(x_test), y_test, {}, path.name)

    def _split(self, raw: _Raw, split: str, split_seed: int, profile: str) -> Dataset:
        parts = split_images(len(raw.x_train), len(raw.x_test), split, split_seed, raw.source)
        x_judge, y_judge = (raw.x_train, raw.y_train) if parts.tuning else (raw.x_test, raw.y_test)
        return assemble(
            self.name,
            "image",
            (apply_profile(raw.x_train, parts.train, profile, self.constants), raw.y_train[parts.train]),
            (apply_profile(x_judge, parts.judge, profile, self.constants), y_judge[parts.judge]),
            self.classes,
            bool(raw.official) and all(raw.official.values()),
            raw.source,
            unused=len(raw.x_train) - len(parts.train) - len(parts.judge) * parts.tuning,
        )


class _Idx(_ImageFiles):
    """Four IDX files, plain or gzipped; the SHA-256 is that of the unpacked content."""

    shape = (1, 28, 28)
    sha256: Mapping[str, str]

    def _files(self, data_dir: Path) -> dict[str, Path]:
        plain = {file: data_dir / self.folder / file for file in self.sha256}
        return {file: path if is_present(path) else path.with_name(file + ".gz") for file, path in plain.items()}

    def _read_folder(self, files: Mapping[str, Path]) -> _Raw:
        parts, official = [], {}
        for file, path in files.items():
            content = read_bytes(path)
            if path.suffix == ".gz":
                content = gunzip(content, path)
            parts.append(parse_idx(content, path, self.shape[1:] if "images" in file else ()))
            official[file] = hashlib.sha256(content).hexdigest() == self.sha256[file]
        x_train, y_train, x_test, y_test = parts
        return _Raw(x_train[:, None], y_train, x_test[:, None], y_test, official, self.folder)


class MNIST(_Idx):
    """MNIST handwritten digits (LeCun et al., 1998): 60,000 + 10,000 grey images of 28x28."""

    name, folder = "mnist", "MNIST/raw"
    constants = Constants((0.1307,), (0.3081,))
    counts = ("5923 6742 5958 6131 5842 5421 5918 6265 5851 5949", "980 1135 1032 1010 982 892 958 1028 974 1009")
    known_fingerprint = "89f5c99754d4a6894d50be620c9f03e4c3ba8df084c8e4743d0414d7c4229f22"
    # the content of the .gz files whose MD5s torchvision knows
    sha256 = {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    }


class FashionMNIST(_Idx):
    """Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017): 60,000 + 10,000 grey images of 28x28."""

    name, folder = "fashionmnist", "FashionMNIST/raw"
    constants = Constants((0.2860,), (0.3530,))
    counts = ("6000 in each of 10", "1000 in each of 10")
    known_fingerprint = "87c668482fcab5add0a6dc912e44c968b9311cf0d93ac38a740004c7dec6f930"
    sha256 = {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }


class _Checked(_ImageFiles):
    """Files whose MD5s torchvision knows, parsed one by one; the last one is the test set."""

    md5: Mapping[str, str]

    @abstractmethod
    def _parse(self, content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
        """The images (n, channels, height, width) and labels (n,) of one file."""

    def _files(self, data_dir: Path) -> dict[str, Path]:
        return {file: data_dir / self.folder / file for file in self.md5}

    def _read_folder(self, files: Mapping[str, Path]) -> _Raw:
        parts, official = [], {}
        for file, path in files.items():
            content = read_bytes(path)
            official[file] = hashlib.md5(content, usedforsecurity=False).hexdigest() == self.md5[file]
            parts.append(self._parse(content, path))
        *train, (x_test, y_test) = parts
        x_train, y_train = (np.concatenate(arrays) for arrays in zip(*train, strict=True))
        return _Raw(x_train, y_train, x_test, y_test, official, self.folder or " and ".join(self.md5))


class CIFAR10(_Checked):
    """CIFAR-10 (Krizhevsky, 2009): 50,000 + 10,000 colour images of 32x32."""

    name, folder = "cifar10", "cifar-10-batches-py"
    shape = (3, 32, 32)
    constants = Constants((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    counts = ("5000 in each of 10", "1000 in each of 10")
    known_fingerprint = None  # the order of the official files was not at hand to fingerprint
    md5 = {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }

    def _parse(self, content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
        return parse_cifar_batch(content, path)


class CIFAR100(_Checked):
    """CIFAR-100 (Krizhevsky, 2009): 50,000 + 10,000 colour images of 32x32, by their fine labels."""

    name, folder = "cifar100", "cifar-100-python"
    shape, classes = (3, 32, 32), 100
    constants = Constants((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    counts = ("500 in each of 100", "100 in each of 100")
    known_fingerprint = None  # as for CIFAR-10
    md5 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}

    def _parse(self, content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
        return parse_cifar_batch(content, path, "fine_labels")


class SVHN(_Checked):
    """SVHN's cropped digits (Netzer et al., 2011): 73,257 + 26,032 colour images of 32x32. The extra set is not read."""

    name, folder = "svhn", ""
    shape = (3, 32, 32)
    constants = Constants((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
    counts = ("4948 13861 10585 8497 7458 6882 5727 5595 5045 4659", "1744 5099 4149 2882 2523 2384 1977 2019 1660 1595")
    known_fingerprint = None  # no official file was at hand
    md5 = {"train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373", "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3"}

    def _parse(self, content: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
        return parse_svhn(content, path)


def _channels_first(images: np.ndarray) -> np.ndarray:
    """(n, height, width) or (n, height, width, channels) as (n, channels, height, width), a view."""
    if images.ndim == 3:
        return images[:, None]
    return np.moveaxis(images, -1, 1) if images.ndim == 4 else images
