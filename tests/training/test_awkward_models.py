"""Models that users write: each is trained with a right bound, by rules or by the fallback, or refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpsweep.errors import UsageError
from dpsweep.models.base import HeadModel, Model, Stage, mixes_records
from dpsweep.training.engines import prepare
from dpsweep.training.frozen import HeadEngine
from dpsweep.training.layered import LayeredEngine, supports
from dpsweep.training.per_example import VmapEngine, clipping

SHAPE, C = (12,), 0.5


class Net(Model):
    """A network of named parts and a forward pass."""

    def __init__(self, forward, **parts):
        super().__init__()
        torch.manual_seed(0)
        for name, part in parts.items():
            setattr(self, name, part)
        self._pass = forward

    def forward(self, x):
        return self._pass(self, x)


def patches():
    return Net(
        lambda m, x: m.head(m.h(x.reshape(len(x) * 3, 4)).reshape(len(x), 3, 5).sum(1)), h=nn.Linear(4, 5), head=nn.Linear(5, 3)
    )


def sequence_first():
    def forward(m, x):
        return m.head(m.h(x.reshape(len(x), 3, 4).transpose(0, 1)).sum(0))

    return Net(forward, h=nn.Linear(4, 5), head=nn.Linear(5, 3))


def tied():
    model = Net(lambda m, x: m.head(m.b(torch.relu(m.a(x)))), a=nn.Linear(12, 12), b=nn.Linear(12, 12), head=nn.Linear(12, 3))
    model.b.weight = model.a.weight
    return model


def used_elsewhere():
    return Net(lambda m, x: m.head(F.linear(m.a(x), m.a.weight.t())), a=nn.Linear(12, 6), head=nn.Linear(12, 3))


def in_place():
    return Net(lambda m, x: m.head(m.act(m.a(x))), a=nn.Linear(12, 6), act=nn.ReLU(inplace=True), head=nn.Linear(6, 3))


def called_twice():
    return Net(lambda m, x: m.head(m.a(torch.tanh(m.a(x)))), a=nn.Linear(12, 12), head=nn.Linear(12, 3))


def with_norms():
    return Net(
        lambda m, x: m.head(m.g(m.n(m.a(x)))), a=nn.Linear(12, 6), n=nn.LayerNorm(6), g=nn.GroupNorm(2, 6), head=nn.Linear(6, 3)
    )


def grouped():
    return Net(
        lambda m, x: m.head(m.flat(torch.relu(m.maps(m.conv(m.signals(x.reshape(-1, 4, 3)).unsqueeze(2))).flatten(1)))),
        signals=nn.GroupNorm(2, 4), conv=nn.Conv2d(4, 6, (1, 3)), maps=nn.GroupNorm(3, 6), flat=nn.GroupNorm(2, 6),
        head=nn.Linear(6, 3),
    )  # fmt: skip


def plain():
    return Net(lambda m, x: m.head(torch.relu(m.a(x))), a=nn.Linear(12, 6), head=nn.Linear(6, 3))


MODELS = [patches, sequence_first, tied, used_elsewhere, in_place, called_twice, with_norms, grouped, plain]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("physical", [None, 2])
def test_one_record_moves_the_sum_by_at_most_c(make, physical):
    model = make().double()
    x, y = 5 * torch.randn(6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    engine = prepare("default", model, x, "", physical).engine
    assert isinstance(engine, LayeredEngine if make in (plain, grouped) else VmapEngine)
    whole = engine.weighted_sum((x,), y, clipping(C))
    for i in range(6):
        rest = torch.arange(6) != i
        alone = engine.weighted_sum((x[i : i + 1],), y[i : i + 1], clipping(C))
        assert alone.norm() <= C * (1 + 1e-9)
        torch.testing.assert_close(whole - engine.weighted_sum((x[rest],), y[rest], clipping(C)), alone, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("make", [patches, sequence_first, used_elsewhere, in_place])
def test_the_reference_refuses_what_opacus_gets_wrong(make):
    with pytest.raises(UsageError, match="engine=reference"):
        prepare("reference", make(), torch.randn(6, 12), "", None)


def centred():
    return Net(lambda m, x: m.head(x - x.mean(0)), head=nn.Linear(12, 3))


def normalised():
    return Net(lambda m, x: m.head(m.bn(x)), bn=nn.BatchNorm1d(12, affine=False), head=nn.Linear(12, 3))


@pytest.mark.parametrize("make", [centred, normalised])
def test_mixing_is_seen_through_a_head_of_zeros(make):
    model = make()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    assert mixes_records(model, SHAPE)
    assert not supports(model, SHAPE)


def test_a_head_model_that_describes_no_stages_is_trained_on_what_it_computes():
    class Squared(HeadModel):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(12, 3)

        def features(self, x):
            return x.square()

    class Described(Squared):
        features = HeadModel.features

        def stages(self):
            return [Stage(("square",), 12, torch.square)]

    x = torch.randn(6, 12)
    odd, plain = prepare("default", Squared(), x, "odd", None), prepare("default", Described(), x, "plain", None)
    assert not isinstance(odd.engine, HeadEngine) and torch.equal(odd.inputs[0], x)
    assert isinstance(plain.engine, HeadEngine) and torch.equal(plain.inputs[0], x.square())


@pytest.mark.parametrize("exponent", [-30, -20, 0, 12, 20, 30])
def test_huge_inputs_with_tiny_residuals_are_clipped_all_the_same(exponent):
    """A product of a factor whose square underflows and one whose square overflows is a norm like any other."""
    from dpsweep.training.frozen import row_squares

    a, b = torch.full((1, 4), 10.0**exponent), torch.full((1, 4), 10.0**-exponent)
    assert float(row_squares(a) * row_squares(b)) == pytest.approx(16.0, rel=1e-5)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_a_normalisation_that_is_trained_in_part_is_clipped_by_what_is_trained(frozen):
    model = grouped().double()
    getattr(model.maps, frozen).requires_grad_(False)
    x, y = torch.randn(6, 12, dtype=torch.float64), torch.arange(6) % 3
    found = prepare("default", model, x, "", None).engine.weighted_sum((x,), y, clipping(C))
    torch.testing.assert_close(found, VmapEngine(model, None).weighted_sum((x,), y, clipping(C)), rtol=1e-9, atol=1e-11)


def test_wide_networks_pass_in_small_batches_and_narrow_ones_in_large():
    """By what a record takes: its activations and, for layers with positions, a gradient of its own."""
    wide = Net(lambda m, x: m.head(m.a(x.reshape(-1, 3, 4)).sum(1)), a=nn.Linear(4, 2**21), head=nn.Linear(2**21, 3))
    sizes = []
    for model in (wide, plain()):
        x = torch.randn(6, 12)
        sizes.append(LayeredEngine(model, None)._fitting((x,)))
    assert sizes[0] == 5 and sizes[1] > 10**5  # 8 million weights and, twice, three vectors of 2 million: 84 MB
