"""Which engine trains a model, and what it is fed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpsweep.errors import UsageError
from dpsweep.models.base import HeadModel, Model, trained
from dpsweep.training.frozen import FeatureCache, HeadEngine
from dpsweep.training.layered import LayeredEngine, agrees, supports
from dpsweep.training.per_example import Engine, Inputs, VmapEngine

_CACHE = FeatureCache()


@dataclass(frozen=True)
class Prepared:
    """An engine and its inputs.

    Attributes:
        inputs: one row a record each: the data, or frozen features of it and then their norms.
        cached: whether they are features.
        seconds: what computing the features took, when they were computed (they may be shared).
        data: the records themselves, where the inputs are features of them.
    """

    engine: Engine
    inputs: Inputs
    cached: bool = False
    seconds: float = 0.0
    data: Tensor | None = None


def prepare(name: str, model: Model, x: Tensor, key: str, physical_batch: int | None) -> Prepared:
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
        return Prepared(ReferenceEngine(model, physical_batch), (x,))
    if name == "vmap":
        return Prepared(VmapEngine(model, physical_batch), (x,))
    if isinstance(model, HeadModel) and _plain_head(model):
        features = _CACHE.of(model, x, key) if name == "default" else None
        if features is None:
            return Prepared(HeadEngine(model, False, physical_batch), (x,))
        engine = HeadEngine(model, True, physical_batch)
        return Prepared(engine, (*features.blocks, features.norms), bool(model.stages()), features.seconds, x)
    fastest = LayeredEngine if supports(model, tuple(x.shape[1:])) else VmapEngine
    return Prepared(fastest(model, physical_batch), (x,))


def _plain_head(model: HeadModel) -> bool:
    """Whether the closed form holds: only the head is trained, with a bias, over the features that `stages` describes."""
    own = type(model).features is HeadModel.features and type(model).forward is HeadModel.forward
    head = model.head
    own = own and type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks
    return own and head.bias is not None and {id(p) for p in trained(model)} == {id(head.weight), id(head.bias)}
