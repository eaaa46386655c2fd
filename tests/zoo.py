"""Every registered model, built small on every kind of input that it reads."""

import pytest
import torch

from dpsweep.build import build
from dpsweep.config import Composer

COMPOSER = Composer()
# The same networks with fewer channels: per-example gradients of millions of parameters take gigabytes.
NARROW = {
    "resnet18": {"width": 8, "groups": 4},
    "resnet9": {"width": 8, "groups": 4},
    "inception": {"stem": 8, "branches": [8, 16]},
}
SHAPES = {"gray": ((1, 8, 8), 10), "color": ((3, 12, 8), 3), "table": ((13,), 2), "wide": ((1100,), 4)}


def make(model, kind, dtype=torch.float64, seed=3):
    """A registered model on small inputs of a kind."""
    shape, classes = SHAPES[kind]
    node = COMPOSER.node("model", model) | NARROW.get(model, {})
    return build("model", node, shape, classes, seed).to(dtype)


def partner(group, name):
    """The choice that must come with an option of a group, as (group, name) pairs: a mechanism of its own, or a model."""
    other = {"model": "mechanism", "mechanism": "model"}.get(group, "")
    return [(other, allowed[0]) for allowed in [COMPOSER.node(group, name).get(f"{other}s")] if allowed]


def batch(model, kind, n, dtype=torch.float64, seed=0):
    """Random inputs, labels and dropout masks."""
    shape, classes = SHAPES[kind]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randint(classes, (n,), generator=generator)
    keep = 1 - model.dropout
    masks = tuple((torch.rand(n, *m, generator=generator) < keep).to(dtype) / keep for m in model.mask_shapes)
    return x, y, masks


def cases():
    """Pairs of a registered model and a kind of input: each that it reads, and each that makes it another network."""
    for name in COMPOSER.options("model"):
        node = COMPOSER.node("model", name)
        inputs = node.get("inputs", ["image", "table"])
        kinds = ["gray"] * ("image" in inputs) + ["table"] * ("table" in inputs)
        kinds += ["color"] * ("color_channels" in node) + ["wide"] * ("project_above" in node)
        for kind in kinds:
            yield pytest.param(name, kind, id=f"{name}-{kind}")
