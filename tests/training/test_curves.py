"""Curves by epoch: what they say against an evaluation of our own, and that training doesn't notice them."""

import copy
import math
from fractions import Fraction

import pytest
import torch
from zoo import COMPOSER, batch, make

from dpsweep.config import parse
from dpsweep.mechanisms.base import Account, Plan, dp_sgd_events
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.privacy.accounting import SampledGaussian
from dpsweep.privacy.noise import Randomness
from dpsweep.privacy.sampling import Poisson
from dpsweep.runner import run_task
from dpsweep.tasks import Settings, Task
from dpsweep.training.curves import MOST, Curves
from dpsweep.training.engines import prepare
from dpsweep.training.loop import LoopData, train

J, STEPS, Q = 4, 10, Fraction(1, 4)  # the third epoch has two steps


def trained_run(name, kind, look, dtype=torch.float64):
    """The trained parameters, the curves, and a copy of the model after each step."""
    model = make(name, kind, dtype)
    x, y, _ = batch(model, kind, 40, dtype)
    x_test, y_test, _ = batch(model, kind, 25, dtype, seed=9)
    plan = Plan(Poisson(Q), dp_sgd_events(Q, 1.0), STEPS, 1.0, 1.0)
    data = LoopData(prepare("default", model, x, f"curves {name} {kind} {dtype}", None), y, model, plan, 10,
                    Randomness.seeded(0), "none")  # fmt: skip
    curves = Curves(model, x_test, y_test, J, STEPS, lambda step: float(step)) if look else None
    after_step = []

    def after(step):
        if curves:
            curves.after(step)
        after_step.append(copy.deepcopy(model))

    state = train(Gaussian(1.0), plan, model, data, lambda p: torch.optim.Adam(p, lr=0.05), after).state
    return state.theta, curves, after_step, (x_test, y_test), model


def accuracy_and_loss(model, x, y):
    """By one record at a time, in evaluation mode."""
    hits, losses = 0, []
    model = copy.deepcopy(model).eval()
    for record, label in zip(x, y, strict=True):
        with torch.no_grad():
            logits = model(record[None])[0]
        if len(logits) == 1:
            p = 1 / (1 + math.exp(-float(logits)))
            hits += (p >= 0.5) == bool(label)
            losses.append(-math.log(p if label else 1 - p))
        else:
            hits += int(logits.argmax()) == int(label)
            losses.append(float(logits.logsumexp(0) - logits[label]))
    return hits / len(y), sum(losses) / len(y)


@pytest.mark.parametrize("of", [("dense", "gray"), ("dense", "table"), ("rvfl", "table"), ("tanh_mlp", "gray")], ids="-".join)
def test_points_are_what_an_independent_evaluation_says(of):
    _, curves, after_step, test, _ = trained_run(*of, look=True)
    found = curves.result()
    assert found["epoch"] == [1.0, 2.0, 2.5] and found["epsilon"] == [4.0, 8.0, 10.0]
    for i, step in enumerate((4, 8, 10)):
        accuracy, loss = accuracy_and_loss(after_step[step - 1], *test)
        assert found["accuracy"][i] == accuracy
        assert found["loss"][i] == pytest.approx(loss, rel=1e-9)
    assert len(set(found["loss"])) == 3
    assert found["best_accuracy"] == max(found["accuracy"])
    assert found["best_epoch"] == found["epoch"][found["accuracy"].index(max(found["accuracy"]))]


@pytest.mark.parametrize("of", [("dense", "gray"), ("rvfl", "table"), ("cnn", "gray")], ids="-".join)
def test_training_does_not_notice(of):
    """Bit for bit, in the dtype of real runs, dropout included; torch's own generator isn't read either."""
    plain, generator = trained_run(*of, look=False, dtype=torch.float32)[0], torch.get_rng_state()
    theta, _, _, _, model = trained_run(*of, look=True, dtype=torch.float32)
    assert torch.equal(plain, theta) and model.training
    assert torch.equal(generator, torch.get_rng_state())


@pytest.mark.parametrize(("epochs", "kept"), [(1, 1), (999, 999), (1000, 1000), (1001, 501), (1999.5, 1000), (2500, 834)])
def test_a_record_keeps_a_bounded_number_of_points(epochs, kept):
    """Evenly spaced, the last step always among them."""
    model, steps = make("logistic_raw", "table"), int(epochs * 2)
    x, y, _ = batch(model, "table", 2)
    curves = Curves(model, x, y, 2, steps, None)
    for step in range(1, steps + 1):
        curves.after(step)
    found = curves.result()
    assert len(found["epoch"]) == kept <= MOST == 1000
    assert found["epoch"][-1] == epochs and found["epsilon"] == [None] * kept
    gaps = {b - a for a, b in zip(found["epoch"][:-2], found["epoch"][1:-1], strict=True)}
    assert len(gaps) <= 1


def test_a_loss_that_is_not_finite_is_left_out():
    model = make("logistic_raw", "table")
    x, y, _ = batch(model, "table", 3)
    curves = Curves(model, x, y, 1, 2, None)
    curves.after(1)
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    curves.after(2)
    first, second = curves.result()["loss"]
    assert math.isfinite(first) and second is None


def recorded(*overrides):
    config = COMPOSER.compose(parse(["dataset=breast_cancer", "model=tanh_mlp", "device=cpu", "threads=1", *overrides])[0])
    record = run_task(Task.from_config(config), Settings.from_config(config))
    assert record["status"] == "done", record["error"]
    return record


@pytest.mark.parametrize("mechanism", ["gaussian", "fractional"])
def test_spent_epsilon_is_that_of_the_steps_so_far(mechanism):
    record = recorded(f"mechanism={mechanism}", "sample_rate=0.1", "steps=35", "noise_multiplier=1.5", "curves=true")
    curves, account = record["curves"], Account("rdp", 1e-5)
    assert curves["epoch"] == [1.0, 2.0, 3.0, 3.5]
    event = SampledGaussian(Fraction(1, 10), record["noise_multiplier"])
    assert curves["epsilon"] == [account.epsilon([(event, steps)]) for steps in (10, 20, 30, 35)]
    assert curves["epsilon"][-1] == record["epsilon"]
    assert curves["accuracy"][-1] == record["test_accuracy"]


def test_curves_are_off_by_default_and_a_record_without_privacy_has_no_epsilon():
    assert recorded("epsilon=none", "epochs=2")["curves"] is None
    curves = recorded("epsilon=none", "epochs=2", "curves=true")["curves"]
    assert curves["epsilon"] == [None, None] and len(curves["accuracy"]) == 2


def test_a_record_is_the_same_with_curves():
    plain, watched = (recorded("noise.source=seeded", "epochs=3", *more) for more in ((), ("curves=true",)))
    same = [key for key in plain if key.startswith("test_") or key in ("epsilon_if_secure", "events", "noise_multiplier")]
    assert len(same) > 6 and [plain[key] for key in same] == [watched[key] for key in same]
    assert plain["id"] != watched["id"]
