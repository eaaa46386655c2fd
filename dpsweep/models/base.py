"""What every model shares: how it is built, its output size and its dropout.

A model is a ``torch.nn.Module`` built as ``Model(shape, classes, seed, **options of its YAML)``. Parameters with
``requires_grad`` are trained; what is frozen is a buffer. Its forward pass takes the batch, and one dropout mask for
each entry of `mask_shapes`, so that masks are drawn by record before a batch is cut, by whoever trains it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """Base of the models.

    Attributes:
        mask_shapes: the shape of each dropout mask of one record.
        dropout: the rate at which masks drop; kept entries are scaled by 1/(1-dropout).
    """

    mask_shapes: tuple[tuple[int, ...], ...] = ()
    dropout: float = 0.0


@dataclass(frozen=True)
class Stage:
    """One step of a frozen representation.

    Attributes:
        key: equal keys mean equal functions, so that their results can be shared.
        width: of the result.
        apply: from the previous step's result (n, some width), at first the flattened input, to this one's (n, width); with
            ``out`` it is written there.
        beside: whether the result stands beside the previous one in the representation, or takes its place.
    """

    key: tuple[Any, ...]
    width: int
    apply: Callable[..., Tensor]
    beside: bool = False


class HeadModel(Model):
    """A frozen representation z and a trained linear `head` on it; nothing else is trained."""

    head: nn.Linear

    def stages(self) -> list[Stage]:
        """The representation as a chain; none: the flattened input itself."""
        return []

    def features(self, x: Tensor) -> Tensor:
        """z, shape (n, features): no gradient flows through it."""
        blocks = [x.flatten(1)]
        with torch.no_grad():
            for stage in self.stages():
                value = stage.apply(blocks[-1])
                blocks = [*blocks, value] if stage.beside else [value]
        return torch.cat(blocks, dim=1) if len(blocks) > 1 else blocks[0]

    def forward(self, x: Tensor) -> Tensor:
        """Logits, shape (n, outputs)."""
        return self.head(self.features(x))


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The trained parameters, in the order in which flat vectors hold them."""
    return [p for p in model.parameters() if p.requires_grad]


def flatten(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """One flat vector of tensors shaped like parameters, each in the memory order of its parameter."""
    return torch.cat([rows[0] for rows in flatten_rows([t.unsqueeze(0) for t in tensors], like)])


def flatten_rows(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """The same for tensors (n, *parameter shape): one (n, size) a parameter."""
    return [(t.permute(0, 1, 3, 4, 2) if _channels_last(p) else t).flatten(1) for t, p in zip(tensors, like, strict=True)]


def unflatten(vector: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a flat vector in the shapes and memory orders of parameters."""
    views = []
    for piece, p in zip(vector.split([p.numel() for p in like]), like, strict=True):
        if _channels_last(p):
            out, channels, height, width = p.shape
            views.append(piece.view(out, height, width, channels).permute(0, 3, 1, 2))
        else:
            views.append(piece.view(p.shape))
    return views


def _channels_last(p: Tensor) -> bool:
    return p.dim() == 4 and not p.is_contiguous() and p.is_contiguous(memory_format=torch.channels_last)


def outputs(classes: int) -> int:
    """Logits of the head: one for two classes (sigmoid), else one a class (softmax)."""
    return 1 if classes == 2 else classes


def example_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of every record, shape (n,): logits (n, 1) and binary labels, or logits (n, K) (equations 10, 11)."""
    if logits.shape[-1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(logits.squeeze(-1), labels.to(logits.dtype), reduction="none")
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def probabilities(logits: Tensor) -> Tensor:
    """Class probabilities in float64: (n,) of class 1 for one or two logits, else (n, K)."""
    logits = logits.double()
    if logits.shape[-1] == 1:
        return torch.sigmoid(logits.squeeze(-1))
    scores = torch.softmax(logits, dim=-1)
    return scores[..., 1] if logits.shape[-1] == 2 else scores


def trial(model: Model, shape: tuple[int, ...], n: int = 3) -> tuple[Model, list[Tensor]]:
    """A float64 copy of a model with random trained parameters (initial zeros hide what a model does), in training mode,
    and random inputs and masks for it: to find out what a model does without looking at data."""
    generator = torch.Generator().manual_seed(0)
    duplicate = copy.deepcopy(model).cpu().double().train()
    with torch.no_grad():
        for p in trained(duplicate):
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype), alpha=0.1)
    x = torch.rand(n, *shape, generator=generator, dtype=torch.float64)
    masks = [torch.rand(n, *mask, generator=generator, dtype=torch.float64).round() for mask in model.mask_shapes]
    return duplicate, [x, *masks]


def mixes_records(model: Model, shape: tuple[int, ...]) -> bool:
    """Whether the logits of a record change with the other records of its batch, as with batch normalisation, or from
    call to call, as with a layer that draws randomness of its own.

    Per-example gradients, and with them every guarantee, need models that do neither.
    """
    if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):
        return True
    duplicate, inputs = trial(model, shape)
    with torch.no_grad():
        together = duplicate(*inputs)
        alone = torch.cat([duplicate(*(part[i : i + 1] for part in inputs)) for i in range(len(together))])
    return not torch.allclose(together, alone, rtol=1e-6, atol=1e-9)
