"""The models of the DP-RVFL paper: sizes, sharing of frozen layers, initialisation; and what every model must keep."""

import pytest
import torch
from torch import nn
from zoo import COMPOSER, SHAPES, cases, make

from dpsweep.build import build
from dpsweep.errors import UsageError
from dpsweep.models.base import Model, example_losses, mixes_records, probabilities

DATASETS = {"mnist": ((1, 28, 28), 10), "cifar10": ((3, 32, 32), 10), "cardio": ((32,), 2), "heart": ((47,), 2)}


def of(model, dataset, seed=42):
    return build("model", COMPOSER.node("model", model), *DATASETS[dataset], seed)


def trained(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("model", "sizes"),
    [("rvfl", [9850, 12250, 233, 248]), ("frozen_matched", [9850, 12250, 233, 248]), ("elm_sgd", [2010, 2010, 201, 201]),
     ("logistic_raw", [7850, 30730, 33, 48])],
)  # fmt: skip
def test_head_sizes_of_the_paper(model, sizes):
    assert [trained(of(model, dataset)) for dataset in DATASETS] == sizes


def test_one_seed_shares_the_frozen_layers():
    rvfl, elm, matched, projected = (of(m, "cifar10") for m in ("rvfl", "elm_sgd", "frozen_matched", "logistic_projected"))
    for other in (elm, matched, projected):
        assert torch.equal(rvfl.projection, other.projection)
    assert torch.equal(rvfl.weight, elm.weight) and torch.equal(rvfl.bias, elm.bias)
    assert not torch.equal(rvfl.projection, of("rvfl", "cifar10", seed=43).projection)


def test_the_laws_of_the_frozen_layers():
    model = of("rvfl", "cifar10")
    assert float(model.projection.std()) == pytest.approx(1 / 32, rel=2e-3) and abs(float(model.projection.mean())) < 1e-4
    assert -1 <= model.weight.min() < -0.999 and 0.999 < model.weight.max() <= 1
    assert model.bias.min() >= 0 and model.bias.max() <= 1 and float(model.bias.mean()) == pytest.approx(0.5, abs=0.06)


def test_rvfl_computes_equations_15_to_20():
    model = of("rvfl", "cifar10")
    x = torch.rand(5, 3, 32, 32)
    reduced = x.flatten(1) @ model.projection
    z = torch.cat([reduced, torch.tanh(reduced @ model.weight + model.bias)], dim=1)
    torch.testing.assert_close(model(x), z @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize(("name", "kind"), list(cases()))
def test_every_model_is_fixed_by_its_seed_and_mixes_no_records(name, kind):
    first, second, third = make(name, kind), make(name, kind), make(name, kind, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first.state_dict().values(), third.state_dict().values(), strict=True))
    assert not mixes_records(first, SHAPES[kind][0])


def test_the_network_of_fo_dp_sgd():
    model = of("tanh_mlp", "cifar10")
    assert trained(model) == 199_082 and model.mask_shapes == ()
    x = torch.rand(4, 3, 32, 32)
    hidden = torch.tanh(torch.tanh(x.flatten(1) @ model.hidden1.weight.T + model.hidden1.bias) @ model.hidden2.weight.T
                        + model.hidden2.bias)  # fmt: skip
    torch.testing.assert_close(model(x), hidden @ model.head.weight.T + model.head.bias)
    assert trained(of("tanh_mlp", "heart")) == 47 * 64 + 64 + 64 * 32 + 32 + 32 + 1
    with pytest.raises(UsageError, match="model.activation=sine.*relu, tanh"):
        build("model", COMPOSER.node("model", "tanh_mlp") | {"activation": "sine"}, (13,), 2, 0)


class _Mixing(Model):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(13, 1)

    def forward(self, x):
        return self.head(self.layer(x))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(13), nn.Dropout(0.5)])
def test_a_model_that_mixes_records_is_caught(layer):
    assert mixes_records(_Mixing(layer), (13,))
    assert not mixes_records(_Mixing(nn.LayerNorm(13)), (13,))


def test_losses_and_probabilities():
    logits, labels = torch.tensor([[0.3], [-2.0]], dtype=torch.float64), torch.tensor([1, 0])
    torch.testing.assert_close(
        example_losses(logits, labels), -torch.log(torch.sigmoid(torch.tensor([0.3, 2.0], dtype=torch.float64)))
    )
    torch.testing.assert_close(probabilities(logits), torch.sigmoid(logits.squeeze()))
    many = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(probabilities(many).sum(1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(
        example_losses(many, torch.tensor([0, 1, 2, 0])), -torch.log(probabilities(many)[range(4), [0, 1, 2, 0]])
    )


def test_attention_reads_images_of_whole_patches():
    with pytest.raises(UsageError, match=r"patch=4.*10x8"):
        build("model", COMPOSER.node("model", "attention"), (1, 10, 8), 10, 0)
    with pytest.raises(UsageError, match="reads image data"):
        COMPOSER.compose([("model", "attention"), ("dataset", "heart")])
    model = of("attention", "mnist")
    assert model.positions.shape == (49, 32) and len({tuple(row.tolist()) for row in model.positions}) == 49


NORMALISED = {"resnet18": 11_173_962, "resnet9": 6_573_130, "inception": 66_266}  # parameters, for 3x32x32 and ten classes


@pytest.mark.parametrize("name", NORMALISED)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 28, 28), (3, 32, 32)])
def test_convolutional_networks_read_images_of_any_size_and_change_nothing_in_place(name, shape):
    model = build("model", COMPOSER.node("model", name), shape, 7, 0)
    x = torch.rand(2, *shape)
    before = x.clone()
    assert model(x).shape == (2, 7) and torch.equal(x, before)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) or getattr(m, "inplace", False) for m in model.modules())
    assert all(m.num_channels // m.num_groups >= 2 for m in model.modules() if isinstance(m, nn.GroupNorm))


@pytest.mark.parametrize("name", NORMALISED)
def test_sizes_of_convolutional_networks(name):
    assert trained(of(name, "cifar10")) == NORMALISED[name]


def test_resnet18_is_torchvisions_but_for_stem_and_normalisation():
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.models.resnet18(num_classes=10, norm_layer=lambda channels: nn.GroupNorm(16, channels))
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    mine = of("resnet18", "cifar10")
    ours, others = list(mine.parameters()), list(theirs.parameters())
    assert [p.shape for p in ours] == [p.shape for p in others]
    with torch.no_grad():
        for p, q in zip(ours, others, strict=True):
            q.copy_(p)
        x = torch.rand(2, 3, 32, 32)
        torch.testing.assert_close(mine(x), theirs(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "keys", "message"),
    [
        ("resnet9", (1, 4, 4), {}, r"4x4 are too small.*8 pixels"),
        ("inception", (1, 3, 28), {}, r"3x28 are too small.*4 pixels"),
        ("resnet18", (1, 8, 8), {"width": 24}, r"model.width=24: a multiple of 32 .*model.groups=16"),
        ("inception", (1, 8, 8), {"branches": [16]}, r"model.branches=\[16\]: two numbers"),
        ("inception", (1, 8, 8), {"branches": [16, 12]}, r"model.branches=12: a multiple of 8"),
        ("inception", (1, 8, 8), {"stem": 4}, r"model.stem=4: a multiple of 8"),
        ("resnet9", (1, 8, 8), {"groups": 0}, r"model.groups=0: .*model.width=64"),
    ],
)
def test_what_convolutional_networks_refuse(name, shape, keys, message):
    with pytest.raises(UsageError, match=message):
        build("model", COMPOSER.node("model", name) | keys, shape, 10, 0)
