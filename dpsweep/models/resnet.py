"""Residual networks for small images, with group normalisation: ResNet-18 and ResNet-9.

Batch normalisation, which these networks were published with, couples the records of a batch, so that no record has a
gradient of its own. Group normalisation (Wu and He, 2018) looks at one record alone. Convolutions before it have no bias.
Nothing is changed in place, and every layer is called once a pass, so that the layer rules hold.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpsweep.models.base import Model, outputs


class ConvNorm(nn.Module):
    """A convolution that keeps the size (divided by its stride), group normalisation and, unless told not to, ReLU."""

    def __init__(self, inputs: int, outputs: int, groups: int, kernel: int = 3, stride: int = 1, relu: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
        self.norm = nn.GroupNorm(groups, outputs)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, height, width) to (n, outputs, ceil(height / stride), ceil(width / stride))."""
        x = self.norm(self.conv(x))
        return torch.relu(x) if self.relu else x


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where size or channels change (He et al., 2016)."""

    def __init__(self, inputs: int, outputs: int, groups: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, groups, stride=stride)
        self.second = ConvNorm(outputs, outputs, groups, relu=False)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, groups, kernel=1, stride=stride, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, height, width) to (n, outputs, ceil(height / stride), ceil(width / stride))."""
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


class ResNet18(Model):
    """ResNet-18 as it is used for images of about 32x32: a 3x3 stem of stride 1, no pooling after it.

    Four stages of two basic blocks with `width`, 2, 4, 8 times `width` channels, of which the last three halve the image;
    the mean over positions; a linear head. Images of any size and number of channels.

    Args:
        shape, classes, seed: as for every model.
        width: channels of the stem, a multiple of twice `groups`.
        groups: of every normalisation.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int, width: int, groups: int) -> None:
        super().__init__()
        check_groups(width, groups)
        torch.manual_seed(seed)
        self.stem = ConvNorm(shape[0], width, groups)
        blocks, channels = [], width
        for stage, stride in enumerate((1, 2, 2, 2)):
            for first in (stride, 1):
                blocks.append(BasicBlock(channels, width << stage, groups, first))
                channels = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, outputs(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (n, outputs)."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Residual(nn.Module):
    """x plus two convolutions of it."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(channels, channels, groups), ConvNorm(channels, channels, groups)

    def forward(self, x: Tensor) -> Tensor:
        """Shape as the input's."""
        return x + self.second(self.first(x))


class ResNet9(Model):
    """ResNet-9: conv, conv-pool, residual, conv-pool, conv-pool, residual, the mean over positions, linear.

    Channels are `width`, 2, 2, 4, 8, 8 times `width`; each pooling is 2x2 maximum.

    Args:
        shape, classes, seed: as for every model; images of at least 8x8.
        width: channels of the first convolution, a multiple of twice `groups`.
        groups: of every normalisation.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int, width: int, groups: int) -> None:
        super().__init__()
        check_groups(width, groups)
        check_size(shape, 8)
        torch.manual_seed(seed)
        self.layers = nn.Sequential(
            ConvNorm(shape[0], width, groups),
            ConvNorm(width, 2 * width, groups),
            nn.MaxPool2d(2),
            Residual(2 * width, groups),
            ConvNorm(2 * width, 4 * width, groups),
            nn.MaxPool2d(2),
            ConvNorm(4 * width, 8 * width, groups),
            nn.MaxPool2d(2),
            Residual(8 * width, groups),
        )
        self.head = nn.Linear(8 * width, outputs(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (n, outputs)."""
        return self.head(self.layers(x).mean((2, 3)))


def check_groups(channels: int, groups: int, key: str = "model.width") -> None:
    """Raise ValueError unless every group has at least two channels: a group of one number is always normalised to zero."""
    if groups < 1:
        raise ValueError(
            f"model.groups={groups}: at least one group is needed, and {key}={channels} must be a multiple of twice it"
        )
    if channels < 1 or channels % (2 * groups):
        raise ValueError(f"{key}={channels}: a multiple of {2 * groups} is needed, twice model.groups={groups}")


def check_size(shape: tuple[int, ...], least: int) -> None:
    """Raise ValueError for images whose sides are too short to be pooled."""
    _, height, width = shape
    if min(height, width) < least:
        raise ValueError(f"images of {height}x{width} are too small to be pooled: both sides need {least} pixels or more")
