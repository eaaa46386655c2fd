"""A compact attention classifier for images (DP-RVFL paper, section 3.6)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dpsweep.models.base import Model, outputs


class Attention(Model):
    """Patches, fixed positions, one block of multi-head attention and a ReLU feed-forward, mean pooling, a linear head.

    Residual connections around both parts; no normalisation, no dropout, no pretraining. All linear maps are trained.

    Args:
        shape, classes, seed: as for every model; the image's sides must be multiples of `patch`.
        patch: side of a square patch.
        width: of the embedding, a multiple of 4 and of `heads`.
        heads: attention heads.
        feed_forward: hidden units of the feed-forward part.
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, seed: int, patch: int, width: int, heads: int, feed_forward: int
    ) -> None:
        super().__init__()
        channels, height, columns = shape
        if height % patch or columns % patch:
            raise ValueError(f"model.patch={patch}: the sides of {height}x{columns} images must be multiples of it")
        if width % heads or width % 4:
            raise ValueError(f"model.width={width}: a multiple of 4 and of model.heads={heads} is needed")
        self.patch, self.heads = patch, heads
        self.register_buffer("positions", sinusoidal(height // patch, columns // patch, width))
        torch.manual_seed(seed)
        self.embed = nn.Linear(channels * patch * patch, width)
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.mix = nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, feed_forward), nn.Linear(feed_forward, width)
        self.head = nn.Linear(width, outputs(classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (n, outputs)."""
        patches = x.unfold(2, self.patch, self.patch).unfold(3, self.patch, self.patch)
        tokens = self.embed(patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)) + self.positions
        query, key, value = (self._split(part(tokens)) for part in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(query, key, value)  # fused: no matrix of weights is kept
        tokens = tokens + self.mix(attended.transpose(1, 2).flatten(2))
        tokens = tokens + self.contract(torch.relu(self.expand(tokens)))
        return self.head(tokens.mean(1))

    def _split(self, tokens: Tensor) -> Tensor:
        """(n, positions, width) to (n, heads, positions, width / heads)."""
        return tokens.unflatten(2, (self.heads, -1)).transpose(1, 2)


def sinusoidal(rows: int, columns: int, width: int) -> Tensor:
    """Fixed 2-d positions, shape (rows x columns, width): sines and cosines of the row, then of the column."""
    frequencies = 10000.0 ** (-torch.arange(0, width // 2, 2) / (width // 2))

    def encode(count: int) -> Tensor:
        angles = torch.arange(count)[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    by_row = encode(rows)[:, None].expand(rows, columns, width // 2)
    by_column = encode(columns)[None].expand(rows, columns, width // 2)
    return torch.cat([by_row, by_column], dim=2).reshape(rows * columns, width)
