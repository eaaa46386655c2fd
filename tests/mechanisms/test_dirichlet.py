"""The Dirichlet mechanism: its samples and gradients against Monte Carlo, SciPy and torch; its divisors, claims and records."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import digamma, polygamma
from zoo import batch, make

from dpsweep.build import build, plan_of
from dpsweep.checks import ImpossiblePair
from dpsweep.config import Composer, parse
from dpsweep.describe import describe
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Account, Schedule, Target
from dpsweep.mechanisms.dirichlet import Dirichlet, DirichletMean, concentrations, sample_at
from dpsweep.mechanisms.none import NonPrivate
from dpsweep.privacy.accounting import Unbounded, epsilon
from dpsweep.privacy.dirichlet import DirichletAccount, effective_scale
from dpsweep.privacy.noise import Randomness
from dpsweep.runner import run_task
from dpsweep.tasks import Settings, Task
from dpsweep.training.engines import prepare
from dpsweep.training.loop import LoopData, train
from dpsweep.training.per_example import gradient_sum

ACCOUNT = Account("rdp", 1e-5)
SCHEDULE = Schedule(40, Fraction(1, 8), 12, 5, 5, classes=2)
KEYS = {"alpha": 3.0, "divisor": "public", "bound": "published"}
R_KEYS = {"r_sample_rate": "250/60000", "r_steps": 9600}


def uniforms(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).random(shape)).clamp(1e-15, 1 - 1e-15)


@pytest.mark.parametrize("a", [(0.05, 0.05), (0.3, 2.0), (3.2, 3.0, 3.07), (12.0, 1.0, 0.4, 5.0)])
def test_samples_follow_the_law(a):
    """Each share of a Dirichlet is a Beta variable."""
    values = sample_at(torch.tensor([a], dtype=torch.float64).expand(20_000, -1), uniforms(20_000, len(a))).numpy()
    np.testing.assert_allclose(values.sum(1), 1, rtol=1e-12)
    for k, own in enumerate(a):
        inside = values[:, k].clip(1e-12, 1 - 1e-12)  # a share that rounds to 0 or 1 says nothing of its law there
        law = stats.beta(own, sum(a) - own)
        grid = np.linspace(0.01, 0.99, 99)
        distance = np.abs(np.searchsorted(np.sort(inside), grid) / 20_000 - law.cdf(grid)).max()
        assert distance < 2.0 / math.sqrt(20_000)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=8), st.integers(0, 2**31), st.booleans())
def test_the_derivative_is_that_of_torchs_dirichlet(a, seed, extreme):
    """At the same sample, for any weights of the shares; and a number at both ends of the uniform's range."""
    from torch.distributions.dirichlet import _Dirichlet_backward

    a = torch.tensor([a], dtype=torch.float64, requires_grad=True)
    generator = np.random.default_rng(seed)
    u = generator.choice([2.0**-53, 1 - 2.0**-53], a.shape) if extreme else generator.random(a.shape)
    weights = torch.from_numpy(generator.standard_normal(a.shape))
    values = sample_at(a, torch.from_numpy(u))
    (found,) = torch.autograd.grad((values * weights).sum(), a, retain_graph=True)
    torch.testing.assert_close(found, _Dirichlet_backward(values.detach(), a.detach(), weights), rtol=1e-12, atol=0)
    (of_logs,) = torch.autograd.grad(-values[0, 0].log(), a)
    assert values.isfinite().all() and of_logs.isfinite().all()


def test_losses_and_gradients_have_the_law_of_torchs_dirichlet():
    """Two samples of 40,000 each: losses by Kolmogorov and Smirnov, gradients by logits by their means."""
    n, r, alpha = 40_000, 0.9, 3.0
    logits = torch.tensor([1.0, -0.5, 0.2, 0.0], dtype=torch.float64).expand(n, 4)
    labels = torch.ones(n, dtype=torch.int64)
    ours, theirs = (logits.clone().requires_grad_() for _ in range(2))
    loss = Dirichlet.losses(concentrations(ours, r, alpha), labels, uniforms(n, 4))
    torch.manual_seed(0)
    sample = torch.distributions.Dirichlet(r * torch.softmax(theirs, 1) + alpha).rsample()
    other = -sample[:, 1].log()
    (g,), (h,) = torch.autograd.grad(loss.sum(), ours), torch.autograd.grad(other.sum(), theirs)
    assert stats.ks_2samp(loss.detach().numpy(), other.detach().numpy()).pvalue > 1e-3
    spread = torch.sqrt((g.var(0) + h.var(0)) / n)
    assert ((g.mean(0) - h.mean(0)).abs() < 4.5 * spread).all()
    assert stats.ks_2samp(g[:, 1].numpy(), h[:, 1].numpy()).pvalue > 1e-3


@pytest.mark.parametrize("r,alpha,classes", [(0.277, 3.0, 10), (0.9, 3.0, 7), (0.05, 0.3, 3), (4.0, 5.0, 2)])
def test_theorem_10_by_monte_carlo(r, alpha, classes):
    n = 60_000
    z = torch.linspace(-1, 1.5, classes, dtype=torch.float64)
    s, y = torch.softmax(z, 0).numpy(), classes - 1
    a = r * s[y] + alpha
    logits = z.expand(n, classes).clone().requires_grad_()
    labels = torch.full((n,), y)
    loss = Dirichlet.losses(concentrations(logits, r, alpha), labels, uniforms(n, classes, seed=classes))
    (gradients,) = torch.autograd.grad(loss.sum(), logits)
    values, gradients = loss.detach().numpy(), gradients.numpy()
    variance = polygamma(1, a) - polygamma(1, r + classes * alpha)
    assert values.mean() == pytest.approx(digamma(r + classes * alpha) - digamma(a), abs=4.5 * math.sqrt(variance / n))
    fourth = stats.moment(values, 4)
    assert values.var() == pytest.approx(variance, abs=4.5 * math.sqrt(fourth / n))
    kappa = effective_scale(r, alpha, s[y])
    expected = kappa * (s - np.eye(classes)[y])
    assert (np.abs(gradients.mean(0) - expected) < 4.5 * gradients.std(0) / math.sqrt(n) + 1e-12).all()
    # and the mean's loss is that mean, its gradient exactly
    one = z[None].clone().requires_grad_()
    mean = DirichletMean.losses(concentrations(one, r, alpha), labels[:1], torch.empty(1, 0))
    assert mean.item() == pytest.approx(digamma(r + classes * alpha) - digamma(a), rel=1e-12)
    np.testing.assert_allclose(torch.autograd.grad(mean.sum(), one)[0].numpy()[0], expected, rtol=1e-9, atol=1e-14)


def test_one_output_is_two_classes():
    one = concentrations(torch.tensor([[0.7], [-2.0]]), 0.5, 3.0)
    two = concentrations(torch.tensor([[0.0, 0.7], [0.0, -2.0]]), 0.5, 3.0)
    torch.testing.assert_close(one, two)
    assert one.dtype == torch.float64


def fit(mechanism=None, kind="table", n=40, physical=None, seed=0, optimizer=torch.optim.SGD, name="dense", target=3.0, lr=0.5):
    """Train a small model: it, its plan, what was trained."""
    mechanism = mechanism or Dirichlet(**KEYS)
    model = make(name, kind, torch.float64)
    x, y, _ = batch(model, kind, n, torch.float64)
    schedule = Schedule(40, Fraction(1, 8), 12, 5, 5, classes={"table": 2, "gray": 10}[kind])
    plan = mechanism.calibrate(schedule, Target(target), ACCOUNT)
    data = LoopData(prepare("default", model, x, "", physical), y, model, plan, 5, Randomness.seeded(seed), "none", physical)
    return model, plan, train(mechanism, plan, model, data, lambda p: optimizer(p, lr=lr))


@pytest.mark.parametrize("kind", ["table", "gray"])
@pytest.mark.parametrize("physical", [1, 3])
def test_physical_batches_change_nothing_beyond_rounding(kind, physical):
    whole, cut = (fit(kind=kind, physical=p)[2].state.theta for p in (None, physical))
    torch.testing.assert_close(cut, whole, rtol=1e-9, atol=1e-12)


def test_seeded_runs_repeat_bit_for_bit_and_seeds_differ():
    first, second, other = (fit(seed=s)[2].state.theta for s in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_any_optimizer_goes(optimizer):
    trained = fit(optimizer=optimizer, lr=0.01)[2]
    assert not trained.diverged and trained.ledger.steps_taken == 12


@pytest.mark.parametrize("divisor", ["public", "realised"])
def test_the_divisor(divisor, monkeypatch):
    """One step is -lr times the summed gradient over m0 or over the drawn batch, formed here from the drawn records."""
    mechanism, kept = Dirichlet(**KEYS | {"divisor": divisor}), {}
    model = make("logistic_raw", "gray", torch.float64)
    x, y, _ = batch(model, "gray", 40, torch.float64)
    plan = mechanism.calibrate(Schedule(40, Fraction(1, 8), 1, 5, 5, classes=10), Target(8.0), ACCOUNT)
    data = LoopData(prepare("uncached", model, x, "", None), y, model, plan, 5, Randomness.seeded(3), "none")
    draw, numbers = data.draw, data._uniform

    def drawing():
        drawn = draw()
        kept["rows"] = data._indices[drawn.number]
        return drawn

    def drawn_numbers(*arguments):
        kept["uniform"] = numbers(*arguments)
        return kept["uniform"]

    monkeypatch.setattr(data, "draw", drawing)
    monkeypatch.setattr(data, "_uniform", drawn_numbers)
    before = [p.detach().clone() for p in model.parameters()]
    rows = None
    state = mechanism.start(plan, model, lambda p: torch.optim.SGD(p, lr=1.0))
    mechanism.step(state, data)
    rows = torch.from_numpy(kept["rows"])
    after = [p.detach().clone() for p in model.parameters()]
    for parameter, value in zip(model.parameters(), before, strict=True):
        parameter.data.copy_(value)
    loss = Dirichlet.losses(concentrations(model(x[rows]), plan.public["r"], 3.0), y[rows], kept["uniform"]).sum()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    size = 5 if divisor == "public" else len(rows)
    assert len(rows) not in (0, 5)
    for old, new, gradient in zip(before, after, gradients, strict=True):
        torch.testing.assert_close(old - new, gradient / size, rtol=1e-9, atol=1e-12)


def test_empty_batches_take_steps_of_zero():
    model, plan, trained = fit(n=0)
    assert trained.ledger.steps_taken == plan.steps and not trained.diverged


def test_the_uniform_numbers_are_inside_the_interval():
    model = make("dense", "table")
    x, y, _ = batch(model, "table", 4)
    plan = Dirichlet(**KEYS).calibrate(SCHEDULE, Target(3.0), ACCOUNT)
    data = LoopData(prepare("default", model, x, "", None), y, model, plan, 5, Randomness.seeded(0), "none")

    class Extreme:
        def __init__(self, word):
            self.word = word

        def uint64(self, n):
            return np.full(n, self.word, np.uint64)

    for word in (0, 2**64 - 1):
        data._randomness._streams["losses"] = Extreme(word)
        assert ((numbers := data._uniform("losses", 2, 3)) > 0).all() and (numbers < 1).all()


def test_the_default_gradient_is_that_of_the_cross_entropy():
    """Ordinary training takes the same path as before: the engine's sum over the records drawn, divided by their number."""
    model = make("dense", "gray", torch.float64)
    x, y, masks = batch(model, "gray", 30, torch.float64)
    plan = NonPrivate().calibrate(Schedule(30, Fraction(1), 1, 30, 30), None, ACCOUNT)
    data = LoopData(prepare("default", model, x, "", None), y, model, plan, 1, Randomness.seeded(0), "none")
    kept = {}
    gather = data._gather

    def gathering(drawn):
        kept["rows"] = gather(drawn)
        return kept["rows"]

    data._gather = gathering
    found = data.gradient(data.draw())
    inputs, labels = kept["rows"]
    expected = gradient_sum(model, lambda rows: model(*rows), inputs, labels, None) / 30
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert data.ledger.events() == [(Unbounded("trained without privacy"), 1)]


def test_nothing_is_proved_whatever_is_asked():
    _, plan, trained = fit()
    assert plan.epsilon(ACCOUNT) == math.inf and epsilon(trained.ledger.events(), 1e-5).epsilon == math.inf
    guarantee = Dirichlet(**KEYS).guarantee(plan, trained.ledger, ACCOUNT, Target(3.0))
    assert guarantee.epsilon is None and guarantee.epsilon_claimed == 3.0
    assert (guarantee.adjacency, guarantee.protects) == ("replace_features", "features")
    assert "not post-processing" in guarantee.reason and "labels public" in guarantee.text
    none = DirichletMean(**KEYS, r_epsilon=1.0, r_delta=1e-5).guarantee(plan, trained.ledger, ACCOUNT, None)
    assert none.epsilon_claimed is None and none.epsilon is None and none.text.startswith("No privacy")


def test_a_borrowed_r_claims_what_the_runs_own_schedule_gives():
    mechanism = Dirichlet(**KEYS, **R_KEYS)
    rate = Fraction(250, 60000)
    plan = mechanism.calibrate(Schedule(60000, rate, 300, 250, 250, classes=10), Target(1.0), ACCOUNT)
    own = Dirichlet(**KEYS).calibrate(Schedule(60000, rate, 9600, 250, 250, classes=10), Target(1.0), ACCOUNT)
    assert plan.public == own.public and plan.steps == 300
    claimed = DirichletAccount(rate, 300, 1e-5, 3.0).epsilon(plan.public["r"])
    guarantee = mechanism.guarantee(plan, None, ACCOUNT, Target(1.0))
    assert guarantee.epsilon_claimed == claimed < 1
    assert "not this run's schedule" in guarantee.text and "T = 9600" in guarantee.text


def test_the_means_r_is_that_of_the_mechanism():
    mean = DirichletMean(**KEYS, r_epsilon=3.0, r_delta=1e-5).calibrate(SCHEDULE, None, Account("rdp", 0.5))
    assert mean.public == Dirichlet(**KEYS).calibrate(SCHEDULE, Target(3.0), ACCOUNT).public


@pytest.mark.parametrize(
    "change,match",
    [
        ({"divisor": "batch"}, "mechanism.divisor=batch"),
        ({"r_steps": 5}, "mechanism.r_steps belongs together with mechanism.r_sample_rate"),
        ({"r_sample_rate": 0.1}, "mechanism.r_sample_rate belongs together with mechanism.r_steps"),
        ({"r_sample_rate": 1, "r_steps": 5}, "mechanism.r_sample_rate=1"),
        ({"r_sample_rate": "x", "r_steps": 5}, "mechanism.r_sample_rate=x"),
        ({"r_sample_rate": 0.1, "r_steps": 0}, "mechanism.r_steps=0"),
    ],
)
def test_impossible_keys_are_refused_by_name(change, match):
    node = Composer().node("mechanism", "dirichlet")
    with pytest.raises(UsageError, match=match):
        build("mechanism", {**node, **change})


@pytest.mark.parametrize("key", ["r_epsilon", "r_delta"])
def test_the_means_keys_are_refused_by_name(key):
    with pytest.raises(UsageError, match=f"mechanism.{key}=-1"):
        build("mechanism", {**Composer().node("mechanism", "dirichlet_mean"), key: -1})


def composed(*overrides):
    items = ["dataset=breast_cancer", "model=dense", "optimizer=sgd", "device=cpu", "threads=1", "sample_rate=1/20", "steps=40"]
    return Composer().compose(parse([*items, *overrides])[0])


def record_of(*overrides):
    config = composed(*overrides)
    record = run_task(Task.from_config(config), Settings.from_config(config))
    assert record["status"] == "done", record["error"]
    return record


def test_the_record_says_what_is_claimed_and_what_an_effective_step_is():
    record = record_of("mechanism=dirichlet", "epsilon=2", "mechanism.divisor=realised")
    assert record["claim_only"] is True and record["epsilon"] is None and record["epsilon_if_secure"] is None
    assert (record["epsilon_claimed"], record["delta"], record["protects"]) == (2.0, 1e-5, "features")
    assert record["kappa"] == pytest.approx(effective_scale(record["r"], 3.0)) and record["classes"] == 2
    assert "noise_multiplier" not in record["config"]["mechanism"] and record["noise_multiplier"] is None
    text = describe(record)
    assert f"effectively {0.1 * record['kappa']:.4g}" in text and "none is proved" in text and "merely claimed: 2" in text


def test_seeded_noise_leaves_not_even_the_claim():
    record = record_of("mechanism=dirichlet", "epsilon=2", "noise.source=seeded")
    assert record["epsilon_if_secure"] is None and "seeded" in record["guarantee_reason"]
    assert "not even the claim" in record["guarantee_text"]
    assert record["epsilon_claimed"] is None


def test_the_mean_takes_no_budget_and_learns():
    with pytest.raises(ImpossiblePair, match="gives no privacy"):
        composed("mechanism=dirichlet_mean", "epsilon=2")
    record = record_of("mechanism=dirichlet_mean", "mechanism.r_epsilon=6", "model=logistic_raw", "optimizer.lr=5")
    assert record["target_epsilon"] is None and record["epsilon_claimed"] is None and record["claim_only"] is None
    assert record["guarantee_text"].startswith("No privacy") and record["test_accuracy"] > 0.7


def test_keys_that_change_nothing_are_refused():
    for override in ("accountant=pld", "noise_multiplier=2", "noise.hardening=sum4"):
        with pytest.raises(UsageError):
            composed("mechanism=dirichlet", override)


def test_calibration_needs_no_torch_and_says_that_it_is_a_claim():
    built, schedule, account, plan = plan_of(composed("mechanism=dirichlet", "epsilon=2").values)
    words = built.calibrated(plan, schedule, account, Target(2.0))
    assert f"r {plan.public['r']:.6f}" in words and "claims (2, 1e-05)" in words and "nothing is proved" in words
