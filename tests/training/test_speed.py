"""Properties of cost that don't depend on a quiet machine: bounded memory, flushed denormals; and the GPU, where there is one."""

import subprocess
import sys

import pytest
import torch
from zoo import COMPOSER, partner

from dpsweep.runner import run_task
from dpsweep.tasks import Settings, Task

GROWTH = """
import resource, sys, torch
from zoo import COMPOSER
from dpsweep.build import build
from dpsweep.training.engines import prepare
from dpsweep.training.per_example import clipping
torch.set_num_threads(1)
model = build("model", COMPOSER.node("model", sys.argv[1]), (3, 32, 32), 10, 0)
n = int(sys.argv[2])
x, y = torch.rand(n, 3, 32, 32), torch.randint(10, (n,))
keep = tuple(torch.full((n, *shape), 1.25) for shape in model.mask_shapes)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ready = prepare("default", model, x, "", None)
assert ready.engine.weighted_sum((*ready.inputs, *keep), y, clipping(1.0)).isfinite().all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "n", "most"),
    [
        *((model, 4096, 1024) for model in ("dense", "cnn", "attention", "rvfl")),
        ("inception", 1024, 1024),
        ("resnet9", 64, 1024),
        ("resnet18", 64, 1536),  # most of it for the trial of its rules: copies of 11 million parameters in float64
    ],
)
def test_a_large_batch_grows_memory_by_about_a_gigabyte_at_most(model, n, most):
    done = subprocess.run([sys.executable, "-c", GROWTH, model, str(n)], capture_output=True, text=True, cwd="tests")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < most  # MB over the loaded data


def test_training_flushes_denormals_and_takes_it_back(monkeypatch):
    """Numbers below 1e-38 cost a hundred times an ordinary one: during training they are zero."""
    tiny, seen = torch.tensor([1e-39]), []
    import dpsweep.training.loop as loop

    train = loop.train
    monkeypatch.setattr(loop, "train", lambda *a: seen.append(float((tiny * 1.0)[0])) or train(*a))
    config = COMPOSER.compose([("dataset", "breast_cancer"), ("epochs", 1)])
    assert run_task(Task.from_config(config), Settings.from_config(config))["status"] == "done"
    assert seen == [0.0]
    assert float((tiny * 1.0)[0]) > 0


cuda = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")]


@pytest.mark.parametrize("model", [pytest.param(m, marks=cuda) for m in COMPOSER.options("model")])
def test_a_gpu_trains_as_the_cpu_does(model):
    """To the accuracy of an epoch with other seeded noise: each device has its own generator."""
    records = []
    for device in ("cpu", "cuda"):
        schedule = partner("model", model) or [("epochs", 1)]  # a mechanism of the model's own has no epochs
        config = COMPOSER.compose([("model", model), *schedule, ("device", device), ("noise.source", "seeded")])
        records.append(run_task(Task.from_config(config), Settings.from_config(config)))
    assert [r["status"] for r in records] == ["done", "done"], records
    assert records[0]["test_auroc"] == pytest.approx(records[1]["test_auroc"], abs=0.1)


@pytest.mark.parametrize("n", [pytest.param(n, marks=cuda) for n in (1, 1000, 100_000)])
def test_secure_noise_on_a_gpu_is_made_of_the_same_bits(n):
    from dpsweep.privacy.noise import Randomness

    cpu, gpu = (
        Randomness(bytes(32), secure=True).stream("noise").add_normal(torch.zeros(n, device=d), 2.0).cpu()
        for d in ("cpu", "cuda")
    )
    torch.testing.assert_close(cpu, gpu, rtol=1e-6, atol=1e-6)
