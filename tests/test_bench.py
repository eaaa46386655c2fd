"""The benchmark's contestants do the same work, its arithmetic is right, and it runs."""

import json
import multiprocessing
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPTS = Path(__file__).parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import bench  # noqa: E402
import bench_contestants as contestants  # noqa: E402

from dpsweep.training.per_example import VmapEngine  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("bench")
    bench.save_data(home, 600, None)
    return home


@pytest.fixture(scope="module")
def data(folder):
    return tuple(torch.from_numpy(np.load(folder / name)) for name in ("x.npy", "y.npy"))


def spec(contestant, model, folder, **options):
    return contestants.Spec(contestant, options, model, folder, 64, 1, "cpu")


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("model", ["rvfl", "dense", "cnn"])
def test_opacus_steps_on_the_clipped_sum_over_the_expected_batch(mode, model, folder, data):
    x, y = data
    task, _ = contestants.configuration(spec("opacus", model, folder), len(x))
    values = task.values
    values["model"] |= {"dropout": 0.0} if model == "dense" else {}
    ours, theirs = (contestants.build_model(values, x, 42) for _ in range(2))
    total = VmapEngine(ours, None).clipped_sum((x[:20],), y[:20], 1.0)
    norms = [VmapEngine(ours, None).clipped_sum((x[i : i + 1],), y[i : i + 1], 1e9).norm() for i in range(20)]
    assert max(norms) > 1  # so that clipping is seen
    training = contestants.OpacusTraining(values, x, y, theirs, mode, 0.0)
    training.learn(x[:20], y[:20])
    stepped_on = torch.cat([p.grad.reshape(-1) for p in theirs.parameters() if p.requires_grad])
    torch.testing.assert_close(stepped_on, total / 60, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "contestant, options",
    [
        ("plain", {"fused": True, "channels_last": True}),
        ("plain", {"fused": False, "channels_last": False}),
        ("opacus", {"mode": "hooks"}),
        ("opacus", {"mode": "ghost"}),
        ("dpsweep", {"noise.source": "seeded"}),
        ("dpsweep", {"noise.source": "secure"}),
        ("dpsweep", {"epsilon": "none"}),
    ],
)
def test_contestants_learn_from_batches_of_one_expected_size(contestant, options, folder, data):
    """60 of 600 records a step, within four deviations of a Poisson mean; chance is 0.1."""
    torch.manual_seed(0)
    racer = contestants.start(spec(contestant, "logistic_raw", folder, **options), *data)
    sizes = [racer.step() for _ in range(60)]
    assert np.mean(sizes) == pytest.approx(60, abs=4 * (60 * 0.9 / 60) ** 0.5)
    assert (len(set(sizes)) > 3) == (contestant == "opacus" or "noise.source" in options)
    assert contestants.accuracy(racer.model, *data) > 0.3


def figures(seconds, once=0.0):
    return {"setup_seconds": once, "wall": {"median": seconds, "min": seconds, "max": seconds}}


def test_ratios_are_those_of_whole_runs():
    row = {"plain": figures(1.0), "opacus hooks": figures(10.0), "opacus ghost": {"error": "died"},
           "dpsweep seeded": figures(0.4, once=10), "dpsweep secure": figures(0.5, once=10),
           "dpsweep none": figures(0.3, once=10)}  # fmt: skip
    found = bench.ratios({"rvfl": row}, 100, "wall")
    assert found["rvfl"] == {
        "hooks / dpsweep": pytest.approx(1000 / 50),
        "ghost / dpsweep": None,
        "dpsweep seeded / plain": pytest.approx(0.5),
        "dpsweep secure / plain": pytest.approx(0.6),
    }
    of_35 = found["35 rvfl tasks"]["hooks / dpsweep"]
    assert of_35 == pytest.approx(5 * (6 * 1000 + 100) / (5 * (10 + 6 * 50 + 30)))
    assert [line.partition(" is ")[0] for line in bench.missed(found)] == ["rvfl: ghost / dpsweep"]
    row["dpsweep secure"] = figures(0.51, once=10)
    missed = bench.missed(bench.ratios({"rvfl": row}, 100, "wall"))
    assert missed[1] == "rvfl: dpsweep secure / plain is 0.61, the bar is at most 0.6"


def test_a_contestant_that_fails_says_why(folder):
    near, far = multiprocessing.Pipe()
    try:
        contestants.serve(spec("plain", "logistic_raw", folder / "nowhere"), far)
    finally:
        torch.set_flush_denormal(False)
    assert near.recv()["error"].startswith("FileNotFoundError: ")


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    out = tmp_path / "bench.json"
    sizes = ["--models", "logistic_raw", "--records", "120", "--batch", "16", "--rounds", "1", "--steps", "2"]
    code = bench.main([*sizes, "--json", str(out), "--check"])
    printed = capsys.readouterr().out
    content = json.loads(out.read_text())
    assert code == bool(content["missed"])
    assert "failed" not in printed and content["machine"]["cores"] >= 1
    row = content["rows"]["logistic_raw"]
    assert {"plain", "opacus hooks", "opacus ghost", "dpsweep seeded", "dpsweep secure"} <= set(row)
    for line in row.values():
        assert 0 < line["wall"]["min"] <= line["wall"]["median"] and line["mean_batch"] > 0
    for line in content["missed"]:
        assert f"below the bar: {line}" in printed
    assert row["plain"]["wall"]["median"] == min(row[n]["wall"]["median"] for n in ("plain as it comes", "plain fused"))
