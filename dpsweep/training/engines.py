"""Which engine trains a model, and what it is fed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpsweep.errors import UsageError
from dpsweep.models.base import HeadModel, Model, trained
from dpsweep.training.frozen import FeatureCache, HeadEngine
from dpsweep.training.layered import LayeredEngine, agrees, supports
from dpsweep.training.per_example import Engine, Inputs, Physical, VmapEngine

_CACHE = FeatureCache()


@dataclass(frozen=True)
class Prepared:
    """An engine and its inputs.

    Attributes:
        inputs: one row a record each: the data, or frozen features of it and then their norms.
        cached: whether they are features.
        seconds: what computing the features took, when they were computed (they may be shared).
        data: the records themselves.
        forward: from some rows of the inputs to logits (n, outputs), without dropout.
    """

    engine: Engine
    inputs: Inputs
    data: Tensor
    forward: Callable[[Inputs], Tensor]
    cached: bool = False
    seconds: float = 0.0


def over_records(engine: Engine, model: Model, x: Tensor) -> Prepared:
    """An engine that is fed the records themselves."""
    return Prepared(engine, (x,), x, lambda rows: model(*rows))


def prepare(name: str, model: Model, x: Tensor, key: str, physical_batch: Physical) -> Prepared:
    """The engine of a name for a model over all records `x`; `key` names the data in the cache of features.

    `default` is the fastest that fits the model: the closed form over cached features for frozen representations, layer
    rules for networks made of linear layers and convolutions, else ``torch.func``. `uncached` recomputes frozen
    features in every step, as the DP-RVFL paper's timing does. `vmap` and `reference` (Opacus) serve to compare.
    """
    if any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        # Convolutions are fastest with the channels innermost. It's the order of flat vectors too, noise included, so it
        # is the same for every engine.
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if name == "reference":
        from dpsweep.training.reference import ReferenceEngine

        if not agrees(ReferenceEngine, model, tuple(x.shape[1:])):
            raise UsageError("engine=reference: Opacus' hooks give other gradients than torch.func here; use engine=default")
        return over_records(ReferenceEngine(model, physical_batch), model, x)
    if name == "vmap":
        return over_records(VmapEngine(model, physical_batch), model, x)
    if isinstance(model, HeadModel) and _plain_head(model):
        features = _CACHE.of(model, x, key) if name == "default" else None
        if features is None:
            return over_records(HeadEngine(model, False, physical_batch), model, x)
        engine, head = HeadEngine(model, True, physical_batch), model.head
        inputs, cached = (*features.blocks, features.norms), bool(model.stages())
        return Prepared(engine, inputs, x, lambda rows: head(torch.cat(rows[:-1], dim=1)), cached, features.seconds)
    fastest = LayeredEngine if supports(model, tuple(x.shape[1:])) else VmapEngine
    return over_records(fastest(model, physical_batch), model, x)


def _plain_head(model: HeadModel) -> bool:
    """Whether the closed form holds: only the head is trained, with a bias, over the features that `stages` describes."""
    own = type(model).features is HeadModel.features and type(model).forward is HeadModel.forward
    head = model.head
    own = own and type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks
    return own and head.bias is not None and {id(p) for p in trained(model)} == {id(head.weight), id(head.bias)}
