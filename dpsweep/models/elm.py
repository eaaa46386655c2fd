"""The extreme learning machine that is solved in closed form (DP-RVFL paper, section 3.5; Ono et al.)."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from dpsweep.models.base import Model


class ELM(Model):
    """Frozen sigmoid features h = sigmoid(x W + b) and a linear map `beta` to one column a class, without bias, in float64.

    W (inputs x L) and then b (L) are drawn from N(0, 1) by a PyTorch generator of their own, seeded with the model seed. The
    paper doesn't say by which generator; of eight ways to draw them this is the one that gives its accuracies where noise
    hardly matters (at L = 1: 10.08 ± 0.16% on MNIST, 49.82 ± 0.27% on Cardio, 48.26 ± 9.53% on Heart, to every digit; MNIST
    at L = 3, 5 and 10 within 0.02 points). There is no projection and no direct link. The class scores are the softmax of
    h beta, for two classes as well: class 1 is predicted where its score is at least 0.5. Only `beta` is trained; it is
    zero before.

    Args:
        shape: of one record.
        classes: of the labels, K: one column each.
        seed: of W and b.
        hidden: L, how many features.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int, hidden: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("weight", torch.randn(prod(shape), hidden, generator=generator, dtype=torch.float64))
        self.register_buffer("bias", torch.randn(hidden, generator=generator, dtype=torch.float64))
        self.weight: Tensor
        self.bias: Tensor
        self.beta = nn.Linear(hidden, classes, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.beta.weight)

    def features(self, x: Tensor) -> Tensor:
        """h, shape (n, L), each entry in [0, 1]: inputs (n, ...), in the precision of W."""
        return torch.sigmoid(x.flatten(1).to(self.weight.dtype) @ self.weight + self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits h beta, shape (n, K)."""
        return self.beta(self.features(x))
