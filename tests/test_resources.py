"""What models and runs take: the paper's table 6 to its last printed digit, models of a user's own, memory."""

import csv
from pathlib import Path

import pytest
import torch
from torch import nn
from zoo import COMPOSER, SHAPES, cases, make

from dpsweep import resources
from dpsweep.build import build
from dpsweep.resources import MemoryGrowth, forward_macs, model_resources

NAMES = {"Dense": "dense", "CNN": "cnn", "RVFL": "rvfl", "ELM-SGD": "elm_sgd", "FrozenDenseMatched": "frozen_matched",
         "LogisticProjected": "logistic_projected", "LogisticRaw": "logistic_raw"}  # fmt: skip


def of(name, shape=(3, 32, 32), classes=10):
    return build("model", COMPOSER.node("model", name), shape, classes, 42)


def test_the_papers_resource_table():
    table = Path(__file__).parent / "data" / "dp_rvfl_table6_resources.csv"
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 7
    for row in rows:
        found = model_resources(of(NAMES[row["model"]]), (3, 32, 32))
        assert found["trainable_parameters"] == int(row["trainable"])
        assert round(found["stored_bytes"] / 2**20, 3) == float(row["mib"])
        digits = len(row["macs_millions"].partition(".")[2])
        assert round(found["macs"] / 1e6, digits) == float(row["macs_millions"])


@pytest.mark.parametrize(
    ("name", "macs", "stored"), [("rvfl", 3_362_768, 13_451_912), ("cnn", 6_128_896, 2_180_392), ("dense", 820_480, 3_283_496)]
)
def test_the_figures_of_the_papers_text(name, macs, stored):
    found = model_resources(of(name), (3, 32, 32))
    assert (found["macs"], found["stored_bytes"]) == (macs, stored)


def test_attention_counts_its_linear_maps_alone():
    """64 patches through six 32-wide maps and a 64-unit pair, then the head; queries with keys don't count."""
    assert forward_macs(of("attention"), (3, 32, 32)) == 64 * (48 * 32 + 4 * 32 * 32 + 2 * 32 * 64) + 32 * 10


@pytest.mark.parametrize(("name", "kind"), list(cases()))
def test_counting_agrees_with_hooks_on_every_model(name, kind):
    """Each output number of a layer takes as many products as its kernel has inputs; frozen tensors add their sizes."""
    model, shape = make(name, kind), SHAPES[kind][0]
    found = forward_macs(model, shape)
    frozen = [getattr(model, key, None) for key in ("projection", "weight")]
    expected = sum(tensor.numel() for tensor in frozen if tensor is not None)

    def hook(layer, _, output):
        nonlocal expected
        expected += output.numel() * layer.weight[0].numel()

    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
            layer.register_forward_hook(hook)
    with torch.no_grad():
        model(torch.zeros(1, *shape, dtype=torch.float64))
    assert found == expected


class _Own(nn.Module):
    def __init__(self, wrong=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(2, 6, 3, groups=2, stride=2), nn.GroupNorm(2, 6), nn.Dropout(0.5), nn.Flatten())
        self.head, self.wrong = nn.Linear(6 * 9, 4), wrong

    def forward(self, x):
        return self.head(self.layers(x)[:, : 3 if self.wrong else None])


def test_a_users_own_model_is_counted_and_left_as_it_was():
    model = _Own().train()
    model.layers[1].eval()
    before, state = {n: t.clone() for n, t in model.state_dict().items()}, torch.get_rng_state()
    assert forward_macs(model, (2, 7, 7)) == 9 * 6 * (1 * 3 * 3) + 54 * 4
    assert model.training
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


def test_a_model_that_cannot_be_tried_has_no_count():
    found = model_resources(_Own(wrong=True), (2, 7, 7))
    assert found["macs"] is None and found["stored_bytes"] == 4 * found["stored_parameters"]
    assert forward_macs(nn.Flatten(), (3,)) is None  # nothing is multiplied


def test_bytes_follow_the_types():
    layer = nn.Linear(3, 2).double()
    layer.register_buffer("flag", torch.zeros(5, dtype=torch.bool))
    layer.bias.requires_grad_(False)
    assert model_resources(layer, (3,)) == {"trainable_parameters": 6, "stored_parameters": 13, "stored_bytes": 69, "macs": 6}


def test_memory_growth_is_that_of_the_run_alone():
    """An earlier, larger peak of the process doesn't hide it, and doesn't count."""
    if not resources._reset_peak():
        pytest.skip("this system can't set the peak back")
    large = torch.ones(20 * 2**20)
    kept = [torch.ones(2**18) for _ in range(80)]  # small enough to stay with the allocator once they are free
    last = torch.ones(2**18)
    del large, kept
    memory = MemoryGrowth(torch.device("cpu"))
    small = torch.ones(10 * 2**20)
    del small
    assert float(last.sum()) == 2**18
    assert 40 * 2**20 * 0.9 < memory.read() < 40 * 2**20 * 1.3
    assert MemoryGrowth(torch.device("cpu")).read() < 4 * 2**20


def test_without_a_resettable_peak_there_is_no_number(monkeypatch, tmp_path):
    monkeypatch.setattr(resources, "_CLEAR", tmp_path / "none" / "clear_refs")
    assert MemoryGrowth(torch.device("cpu")).read() is None


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_memory_growth_on_a_gpu():
    device = torch.device("cuda")
    memory = MemoryGrowth(device)
    held = torch.ones(2**20, device=device)
    del held
    assert memory.read() == 4 * 2**20
