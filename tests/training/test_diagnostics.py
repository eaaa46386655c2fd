"""Diagnostics: what they say against gradients taken record by record, and that training doesn't notice them."""

import copy
import json
import re
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from zoo import COMPOSER, batch, make

from dpsweep.build import build
from dpsweep.cli import main
from dpsweep.config import parse
from dpsweep.datasets.builtin import Digits
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Plan, Schedule, dp_sgd_events
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.mechanisms.none import NonPrivate
from dpsweep.models.base import example_losses, trained
from dpsweep.privacy.noise import Randomness
from dpsweep.privacy.sampling import Everything, Poisson
from dpsweep.runner import UNPROTECTED, run_task
from dpsweep.tasks import Settings, Task
from dpsweep.training.diagnostics import QUANTILES, Diagnostics
from dpsweep.training.engines import over_records, prepare
from dpsweep.training.loop import LoopData, train
from dpsweep.training.per_example import clipping

MODELS = ["rvfl", "dense", "cnn"]
J, STEPS, N = 4, 10, 48  # the third epoch has two steps


@cache
def digits():
    data = Digits().load(Path(), "dp_rvfl", 2026)
    return torch.from_numpy(data.x_train[:N]), torch.from_numpy(data.y_train[:N])


class Watched:
    """A run on digits, and beside it the state, records and masks of each step."""

    def __init__(self, name, private, diagnose=True, clip=1.5, dtype=torch.float64, n=N):
        x, y = digits()
        self.x, self.y = x[:n].to(dtype), y[:n]
        node = COMPOSER.compose([("model", name)]).values["model"]
        self.model = build("model", node, (1, 8, 8), 10, 42).to(dtype)
        ready = prepare("default", self.model, self.x, f"test {dtype} {n}", 5)
        q = Fraction(1, J)
        if private:
            mechanism, plan = Gaussian(clip), Plan(Poisson(q), dp_sgd_events(q, 1.0), STEPS, clip, 1.0)
        else:
            mechanism = NonPrivate()
            plan = mechanism.calibrate(Schedule(N, q, STEPS, N // J, N // J), None, None)
        self.diagnostics = Diagnostics(self.model, ready, self.y, J) if diagnose else None
        data = LoopData(ready, self.y, self.model, plan, N // J, Randomness.seeded(7), "none", 5, self.diagnostics)
        self.steps, masks = [], []
        make_masks, close = data._masks, data.close_step

        def noting_masks(n):
            masks.append(make_masks(n))
            return masks[-1]

        def closing():
            self.steps[-1].append(masks.pop())
            (self.steps[-1][1],) = data._indices.values()
            close()
            self.steps.append([copy.deepcopy(self.model).eval(), None])

        data._masks, data.close_step = noting_masks, closing
        self.steps.append([copy.deepcopy(self.model).eval(), None])
        self.theta = train(mechanism, plan, self.model, data, lambda p: torch.optim.Adam(p, lr=0.01)).state.theta


def norms_one_by_one(model, x, y, masks):
    norms = []
    for i in range(len(x)):
        loss = example_losses(model(x[i : i + 1], *(mask[i : i + 1] for mask in masks)), y[i : i + 1]).sum()
        rows = torch.autograd.grad(loss, trained(model))
        norms.append(float(torch.cat([row.flatten() for row in rows]).double().norm()))
    return norms


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_epochs_say_what_gradients_taken_one_by_one_say(name, private):
    run = Watched(name, private)
    found = run.diagnostics.result()
    assert [epoch["epoch"] for epoch in found["epochs"]] == [1, 2, 3]
    everything = []
    for i, epoch in enumerate(found["epochs"]):
        steps = run.steps[i * J : min((i + 1) * J, STEPS)]
        norms = [n for model, chosen, masks in steps for n in norms_one_by_one(model, run.x[chosen], run.y[chosen], masks)]
        everything += norms
        assert epoch["draws"] == len(norms) > 0
        for q in QUANTILES:
            assert epoch["norm_quantiles"][str(q)] == pytest.approx(float(np.quantile(norms, q)), rel=1e-9)
        if private:
            assert epoch["clipped_fraction"] == sum(n > 1.5 for n in norms) / len(norms)
        else:
            assert epoch["clipped_fraction"] is None
        after = run.steps[min((i + 1) * J, STEPS)][0]
        with torch.no_grad():
            losses = [float(example_losses(after(run.x[j : j + 1]), run.y[j : j + 1])) for j in range(N)]
        assert epoch["loss"] == pytest.approx(sum(losses) / N, rel=1e-9)
    if private:
        assert 0 < found["clipped_fraction"] == sum(n > 1.5 for n in everything) / len(everything)
    else:
        assert [epoch["draws"] for epoch in found["epochs"]] == [N, N, N // 2]
        assert found["clipped_fraction"] is None


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("name", [*MODELS, "attention"])
def test_training_does_not_notice(name, private):
    """Bit for bit, in the dtype of real runs, dropout included; torch's own generator isn't read either."""
    state = torch.get_rng_state
    plain, generator = Watched(name, private, diagnose=False, dtype=torch.float32).theta, state()
    watched = Watched(name, private, dtype=torch.float32)
    assert torch.equal(plain, watched.theta) and torch.equal(generator, state())
    assert watched.model.training


@pytest.mark.parametrize("engine", ["default", "uncached", "vmap", "reference"])
def test_every_engine_weighs_by_the_norms(engine, name, kind):
    model = make(name, kind)
    x, y, masks = batch(model, kind, 9)
    ready = prepare(engine, model, x, f"norms {name} {kind}", 4)
    told = []

    def weigh(norms):
        told.append(norms.clone())
        return clipping(0.5)(norms)

    ready.engine.weighted_sum((*ready.inputs, *masks), y, weigh)
    assert [len(norms) for norms in told] == [4, 4, 1]  # physical batches
    assert torch.cat(told).dtype == torch.float64
    torch.testing.assert_close(torch.cat(told).tolist(), norms_one_by_one(model, x, y, masks), rtol=1e-9, atol=1e-12)


def test_a_record_drawn_often_counts_as_often():
    model = make("logistic_raw", "table")
    modes = []

    def forward(rows):
        modes.append(model.training)
        return model(*rows)

    x = torch.zeros(2, 13, dtype=torch.float64)
    ready = replace(over_records(None, model, x), forward=forward)
    seen = Diagnostics(model.train(), ready, torch.tensor([0, 1]), 3)
    for norms in ([1.0, 4.0], [], [4.0, 4.0, 2.0]):
        seen.note(torch.tensor(norms, dtype=torch.float64), 2.0)
        seen.close_step()
    seen.note(torch.tensor([3.0], dtype=torch.float64), 2.0)
    seen.close_step()
    found = seen.result()
    first, second = found["epochs"]
    assert (first["draws"], first["clipped_fraction"], first["norm_quantiles"]["0.5"]) == (5, 3 / 5, 4.0)
    assert modes == [False, False] and model.training  # the loss is taken in evaluation mode
    assert (second["draws"], second["clipped_fraction"], found["clipped_fraction"]) == (1, 1.0, 4 / 6)


def test_empty_batches_are_epochs_too():
    found = Watched("rvfl", private=True, n=0).diagnostics.result()
    nothing = {"loss": None, "draws": 0, "clipped_fraction": None, "norm_quantiles": dict.fromkeys(map(str, QUANTILES))}
    assert found == {"epochs": [{"epoch": i, **nothing} for i in (1, 2, 3)], "clipped_fraction": None}


def test_what_is_not_finite_is_clipped_and_null():
    model = make("logistic_raw", "table")
    x, y, _ = batch(model, "table", 4)
    x[2], x[3] = float("nan"), float("inf")
    ready = prepare("default", model, x, "broken", None)
    seen = Diagnostics(model, ready, y, 1)
    plan = Plan(Everything(), dp_sgd_events(Fraction(1), 1.0), 1, 1e6, 1.0)
    data = LoopData(ready, y, model, plan, 4, Randomness.seeded(0), "none", None, seen)
    data.clipped_sum(data.draw(), 1e6)
    seen.close_step()
    (epoch,) = json.loads(json.dumps(seen.result(), allow_nan=False))["epochs"]
    assert epoch["draws"] == 4 and epoch["clipped_fraction"] == 0.5 and epoch["loss"] is None
    assert epoch["norm_quantiles"]["0.05"] > 0 and epoch["norm_quantiles"]["0.95"] is None


def task(*overrides):
    config = COMPOSER.compose(parse(["epochs=2", "device=cpu", "threads=1", "noise.source=seeded", *overrides])[0])
    return Task.from_config(config), Settings.from_config(config)


@pytest.mark.parametrize("epsilon", ["epsilon=none", "epsilon=2"])
def test_a_record_has_them_if_asked_and_is_the_same_otherwise(epsilon):
    (plain, settings), (asked, _) = task(epsilon), task(epsilon, "diagnostics=true")
    assert plain.id != asked.id and "diagnostics" not in plain.config
    without, with_them = run_task(plain, settings), run_task(asked, settings)
    assert without["status"] == with_them["status"] == "done", with_them["error"]
    for key in ("test_accuracy", "test_auroc", "test_auprc", "noise_multiplier", "events", "epsilon", "epsilon_if_secure"):
        assert without[key] == with_them[key]
    assert without["diagnostics"] is None and "diagnostics" in UNPROTECTED
    assert len(with_them["diagnostics"]["epochs"]) == 2


def test_an_epoch_of_a_given_rate_has_the_steps_that_its_inverse_needs():
    asked, settings = task("epochs=null", "sample_rate=3/40", "steps=30", "diagnostics=true")  # 40/3: 14 steps an epoch
    record = run_task(asked, settings)
    assert len(record["diagnostics"]["epochs"]) == 3
    assert 0.8 < record["diagnostics"]["epochs"][0]["draws"] / (14 * 3 / 40 * 1257) < 1.2


def test_records_that_are_not_public_are_not_diagnosed():
    with pytest.raises(UsageError, match=r"diagnostics=true with dataset=digits.*public"):
        task("diagnostics=true", "dataset.public=false")


def test_a_model_that_mixes_records_has_no_gradients_by_record(monkeypatch):
    monkeypatch.setattr("dpsweep.models.base.mixes_records", lambda *_: True)
    record = run_task(*task("epsilon=none", "diagnostics=true"))
    assert record["error"]["type"] == "UsageError" and "diagnostics=true" in record["error"]["message"]
    assert run_task(*task("epsilon=none"))["status"] == "done"


def test_the_command_line_tells_and_keeps_them(tmp_path, capsys):
    command = ["run", "epochs=2", "epsilon=2", "executor=inline", f"output_dir={tmp_path}", "diagnostics=true"]
    assert main(command) == 0
    assert re.search(r"epochs +2, training loss \d.*% of the gradients clipped.*without noise", capsys.readouterr().out)
    (record,) = (json.loads(file.read_text()) for file in (tmp_path / "records").glob("*.json"))
    assert record["config"]["diagnostics"] is True and 0 < record["diagnostics"]["clipped_fraction"] <= 1
    assert main([*command, "dataset.public=false"]) == 2
    assert "not marked public" in capsys.readouterr().err
