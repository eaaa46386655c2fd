"""A small Inception network, under 100,000 parameters, with group normalisation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpsweep.models.base import Model, outputs
from dpsweep.models.resnet import ConvNorm, check_groups, check_size


class Branches(nn.Module):
    """Four views of the same maps side by side (Szegedy et al., 2015): 1x1, 3x3, 5x5, and 3x3 maximum then 1x1."""

    def __init__(self, inputs: int, width: int, groups: int) -> None:
        super().__init__()
        self.kernels = nn.ModuleList(ConvNorm(inputs, width, groups, kernel) for kernel in (1, 3, 5))
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.pooled = ConvNorm(inputs, width, groups, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, height, width) to (n, 4 x width, height, width)."""
        return torch.cat([*(branch(x) for branch in self.kernels), self.pooled(self.pool(x))], dim=1)


class Inception(Model):
    """A 3x3 stem, two blocks of four branches, each behind 2x2 maximum pooling, the mean over positions, a linear head.

    Args:
        shape, classes, seed: as for every model; images of at least 4x4.
        stem: channels of the first convolution, a multiple of twice `groups`.
        branches: channels of each branch of the first and of the second block, multiples of twice `groups`.
        groups: of every normalisation.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int, stem: int, branches: list[int], groups: int) -> None:
        super().__init__()
        if len(branches) != 2:
            raise ValueError(f"model.branches={branches}: two numbers are needed, one a block")
        check_groups(stem, groups, "model.stem")
        for width in branches:
            check_groups(width, groups, "model.branches")
        check_size(shape, 4)
        torch.manual_seed(seed)
        first, second = branches
        self.layers = nn.Sequential(
            ConvNorm(shape[0], stem, groups),
            nn.MaxPool2d(2),
            Branches(stem, first, groups),
            nn.MaxPool2d(2),
            Branches(4 * first, second, groups),
        )
        self.head = nn.Linear(4 * second, outputs(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (n, outputs)."""
        return self.head(self.layers(x).mean((2, 3)))
