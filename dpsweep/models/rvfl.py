"""Random-feature models: a frozen random representation and a trained head (DP-RVFL paper, sections 3.4 and 3.5)."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from dpsweep.models.base import HeadModel, Stage, outputs

PROJECTED = 1024  # width of the projected input x' (equation 15)


class RandomFeatures(HeadModel):
    """RVFL, ELM-SGD, FrozenDenseMatched and LogisticProjected: four settings of one model.

    The input, flattened and projected to 1,024 dimensions by P ~ N(0, 1/1024) where it is wider than `project_above`,
    feeds h = tanh(x' W + b) with W ~ U(-1, 1) and b ~ U(0, 1) (equations 15 and 16). P and (W, b) are each drawn from a
    generator of their own seeded with the model seed, so that models of one seed share them.

    Args:
        shape: of one record.
        classes: of the labels.
        seed: of the frozen layers and of the head's initialisation (torch's default).
        hidden: how many random features; 0 for none.
        direct_link: whether x' stands beside them in z (equation 18).
        match_head: whether the hidden layer is as wide as x' and `hidden` together, which gives the head RVFL's size.
        project_above: the widest input that is not projected.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int, hidden: int, direct_link: bool,
                 match_head: bool, project_above: int) -> None:  # fmt: skip
        super().__init__()
        if hidden < 0 or hidden == 0 and not (direct_link or match_head):
            raise ValueError(f"model.hidden={hidden}: at least 1, or 0 with model.direct_link=true, is needed")
        width = prod(shape)
        self.projection: Tensor | None
        self.weight: Tensor | None
        self.bias: Tensor | None
        self.direct_link = direct_link
        projection = weight = bias = None
        if width > project_above:
            projection = torch.randn(width, PROJECTED, generator=torch.Generator().manual_seed(seed)) / PROJECTED**0.5
            width = PROJECTED
        if match_head:
            hidden += width
        if hidden:
            generator = torch.Generator().manual_seed(seed)
            weight = torch.rand(width, hidden, generator=generator) * 2 - 1
            bias = torch.rand(hidden, generator=generator)
        self.register_buffer("projection", projection)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        torch.manual_seed(seed)
        self.head = nn.Linear(hidden + (width if direct_link else 0), outputs(classes))

        self._seed, self._width = seed, prod(shape)

    def stages(self) -> list[Stage]:
        """The projection, where there is one, then the hidden layer: both fixed by the seed and the widths."""
        stages = []
        if self.projection is not None:
            stages.append(Stage(("projection", self._seed, self._width), PROJECTED, self._project))
        if self.weight is not None:
            width = self.weight.shape[1]
            stages.append(Stage(("hidden", self._seed, width), width, self._expand, beside=self.direct_link))
        return stages

    def _project(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        assert self.projection is not None
        return torch.mm(x, self.projection, out=out)

    def _expand(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        assert self.weight is not None and self.bias is not None
        return torch.addmm(self.bias, x, self.weight, out=out).tanh_()
