"""Image profiles: what becomes of the bytes of an image before a model sees it (DP-RVFL and FO-DP-SGD papers)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpsweep.errors import UsageError

PROFILES = ("raw01", "fixed_centered", "half_resolution", "standardized")
_CHUNK = 4096  # images treated at a time, so that no second copy of the whole set is made


class Constants(NamedTuple):
    """Mean and standard deviation of each channel of raw01, as published for the dataset: never read from the records."""

    means: tuple[float, ...]
    sds: tuple[float, ...]


def check_profile(profile: str | None) -> str:
    """The profile's name, of which null means the first; raises `UsageError` for an unknown one."""
    if profile is None:
        return PROFILES[0]
    if profile not in PROFILES:
        raise UsageError(f"dataset.profile={profile}: there is no such image profile. Choose one of: {', '.join(PROFILES)}")
    return profile


def apply_profile(
    images: np.ndarray, records: np.ndarray, profile: str, constants: Constants | None, white: int = 255
) -> np.ndarray:
    """The images `records` of uint8 (n, channels, height, width), each treated by itself: float32, C-contiguous.

    `white` is the largest value that a pixel can have. Profiles:

    * `raw01`: value / white, in [0, 1]; for bytes torchvision's ToTensor.
    * `fixed_centered`: (raw01 - 0.5) / 0.5, in [-1, 1]. The constants are fixed, not means of the records.
    * `half_resolution`: the image resized as bytes to half its height and width, then raw01. The filter is Pillow's
      bilinear one with antialiasing, so the pixels are those of torchvision's Resize on a PIL image.
    * `standardized`: (raw01 - mean) / SD in each channel, by the dataset's public `constants`, where there are some.
    """
    if profile == "standardized" and constants is None:
        raise UsageError("dataset.profile=standardized: no constants are published for this dataset. Choose another profile")
    shape = images.shape[1:]
    if profile == "half_resolution":
        shape = (shape[0], shape[1] // 2, shape[2] // 2)
    treated = np.empty((len(records), *shape), dtype=np.float32)
    for start in range(0, len(records), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        pixels = images[records[chunk]]
        if profile == "half_resolution":
            pixels = _resized(pixels, shape)
        np.divide(pixels, np.float32(white), out=treated[chunk])
        if profile == "fixed_centered":
            treated[chunk] -= np.float32(0.5)
            treated[chunk] /= np.float32(0.5)
        if profile == "standardized" and constants is not None:
            means, sds = (np.array(values, dtype=np.float32)[:, None, None] for values in constants)
            treated[chunk] -= means
            treated[chunk] /= sds
    return treated


def _resized(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """uint8 images (n, channels, height, width) resized to (n, *shape), channel by channel, as Pillow does it too."""
    from PIL import Image

    channels, height, width = shape
    resized = np.empty((len(images) * channels, height, width), dtype=np.uint8)
    for at, plane in enumerate(images.reshape(-1, *images.shape[2:])):
        resized[at] = np.asarray(Image.fromarray(plane).resize((width, height), Image.Resampling.BILINEAR))
    return resized.reshape(len(images), *shape)
