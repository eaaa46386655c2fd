"""The convolutional baseline: 2-d on images, 1-d over the columns of tables (DP-RVFL paper, section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpsweep.models.base import Model, outputs


class CNN(Model):
    """Two 3-wide convolutions and a hidden layer, no dropout, no normalisation.

    Images: each convolution is followed by ReLU and 2x2 max-pooling, then the maps are flattened. Tables: the columns
    are a sequence of one channel; after the second ReLU an adaptive average pooling keeps `table_pooled` positions.

    Args:
        shape, classes, seed: as for every model.
        gray_channels, color_channels, table_channels: the output channels of the two convolutions.
        image_hidden, table_hidden: the hidden layer's width.
        table_pooled: positions that are left after pooling (the paper doesn't say; chosen).
    """

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int, gray_channels: list[int],
                 color_channels: list[int], table_channels: list[int], image_hidden: int, table_hidden: int,
                 table_pooled: int) -> None:  # fmt: skip
        super().__init__()
        torch.manual_seed(seed)
        self.shape = shape
        conv: type[nn.Conv1d] | type[nn.Conv2d]
        self.pool1: nn.Module
        self.pool2: nn.Module
        if len(shape) == 3:
            channels, height, width = shape
            first, second = gray_channels if channels == 1 else color_channels
            conv, hidden = nn.Conv2d, image_hidden
            self.pool1, self.pool2 = nn.MaxPool2d(2), nn.MaxPool2d(2)
            features = second * (height // 4) * (width // 4)
        else:
            channels, (first, second), conv, hidden = 1, table_channels, nn.Conv1d, table_hidden
            self.pool1, self.pool2 = nn.Identity(), nn.AdaptiveAvgPool1d(table_pooled)
            features = second * table_pooled
        self.conv1 = conv(channels, first, 3, padding=1)
        self.conv2 = conv(first, second, 3, padding=1)
        self.hidden = nn.Linear(features, hidden)
        self.head = nn.Linear(hidden, outputs(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (n, outputs)."""
        if len(self.shape) == 1:
            x = x.unsqueeze(1)
        x = self.pool1(torch.relu(self.conv1(x)))
        x = self.pool2(torch.relu(self.conv2(x)))
        return self.head(torch.relu(self.hidden(x.flatten(1))))
