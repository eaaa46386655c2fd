"""Augmentation by record: each image of a batch is changed at random, by numbers that no image has a part in.

The changes are drawn for the logical batch, one 64-bit word a record, before an engine cuts it, from a stream of their own.
A record's gradient is still a function of that record and of its own independent draw. For neighbouring datasets, let the
common records have the same draws: as many words are drawn as there are records in the batch, all alike, so that each side
keeps its law. Then their sums differ by one clipped gradient, and the account is that of training without augmentation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from dpsweep.privacy.noise import Stream

Augment = Callable[[Tensor, Stream], Tensor]  # from images (n, channels, height, width) to images of the same shape
PADDING = 4


def crop_flip(images: Tensor, stream: Stream) -> Tensor:
    """Random crop after padding with zeros by 4 pixels, and horizontal flip with probability 1/2, of each image by itself.

    All 81 shifts and both directions are equally likely (to 2^-56, by which 162 doesn't divide 2^64). Zeros are those of
    the image as it is prepared: black in raw01. It's the usual training of CIFAR-10: torchvision's RandomCrop(32, padding=4)
    and RandomHorizontalFlip.

    Args:
        images: (n, channels, height, width).
        stream: n words are taken from it.

    Returns:
        New images like them.
    """
    n, channels, height, width = images.shape
    shifts = 2 * PADDING + 1
    choice = (stream.uint64(n) % np.uint64(2 * shifts**2)).astype(np.int64)
    flip, down, right = np.unravel_index(choice, (2, shifts, shifts))
    columns = np.where(flip[:, None] == 1, np.arange(width)[::-1], np.arange(width)) + right[:, None]
    rows = np.arange(height) + down[:, None]
    pixels = (
        np.arange(n)[:, None, None, None],
        np.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None],
    )
    padded = nn.functional.pad(images, (PADDING,) * 4)
    return padded[tuple(torch.from_numpy(index).to(images.device) for index in pixels)]
