"""FO-DP-SGD and Post-FM: what they are in terms of DP-SGD, trajectory by trajectory; their account; what one record can do."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from fo_spec import DEFAULTS, SpecMemory
from zoo import COMPOSER, batch, make

from dpsweep.build import build, plan_of
from dpsweep.config import parse
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Account, Schedule, Target
from dpsweep.mechanisms.fractional import Fractional, PostMemory
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.privacy.noise import Randomness
from dpsweep.training.engines import over_records
from dpsweep.training.layered import LayeredEngine
from dpsweep.training.loop import LoopData, train

SIGMA, C, Q = 1.1, 0.7, Fraction(1, 4)
ACCOUNT = Account("rdp", 1e-5)


def mechanism_of(kind=Fractional, **options):
    options = DEFAULTS | options
    if kind is Fractional:
        assert options.pop("history") == "outputs"
    return kind(max_grad_norm=C, **options)


def run(mechanism, sigma=SIGMA, lr=0.8, steps=300, n=40, target=None, optimizer=None, q=Q, released=None):
    """The parameters after every step, float64 (steps + 1, parameters), and the trained state; sampling and noise are the
    same for every mechanism. `released` replaces the releases."""
    model = make("tanh_mlp", "table")
    x, y, _ = batch(model, "table", 41)
    x, y = x[:n], y[:n]
    plan = mechanism.calibrate(Schedule(40, q, steps, 10, 10), target or Target(noise_multiplier=sigma), ACCOUNT)
    data = LoopData(over_records(LayeredEngine(model, None), model, x), y, model, plan, 10, Randomness.seeded(3), "none")
    if released is not None:
        charge, values = data.release, iter(released)
        data.release = lambda *arguments: (charge(*arguments), next(values).clone())[1]
    path = [torch.cat([p.detach().flatten() for p in model.parameters()]).clone()]

    def after(step):
        path.append(torch.cat([p.detach().flatten() for p in model.parameters()]).clone())

    trained = train(mechanism, plan, model, data, optimizer or (lambda p: torch.optim.SGD(p, lr=lr)), after)
    return torch.stack(path), trained


class Literal(Gaussian):
    """Algorithm 1 as it is written: memory and clipped sum are mixed first, and noise N(0, sigma^2 C^2) comes last. The noise
    is beta times that which DP-SGD at sigma/beta would draw."""

    def __init__(self, **options):
        super().__init__(C)
        self.beta, self.memory = (DEFAULTS | options)["beta"], SpecMemory(**options)

    def step(self, state, data):
        total = data.clipped_sum(data.draw(), C)
        clean = data._sums[total.number].clone()
        noise = self.beta * (data.release(total, C, state.plan.noise_multiplier) - clean)
        mixed = self.beta * clean + (1 - self.beta) * self.memory.u() + noise
        self.memory.remember(mixed)
        state.update(mixed / data.normalizer)


class Filtered(Gaussian):
    """DP-SGD whose noisy sums pass through a filter given as a function."""

    def __init__(self, through):
        super().__init__(C)
        self.through = through

    def step(self, state, data):
        noisy = data.release(data.clipped_sum(data.draw(), C), C, state.plan.noise_multiplier)
        state.update(self.through(noisy) / data.normalizer)


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"tau": 0.0}, {"beta": 0.65, "depth": 32, "tau": 3.0}, {"alpha": 0.2, "zeta": 0.01},
                                     {"gamma": 0.9, "beta": 0.3}])  # fmt: skip
def test_algorithm_1_is_dp_sgd_at_sigma_over_beta_through_a_filter(options):
    beta = (DEFAULTS | options)["beta"]
    found, trained = run(mechanism_of(**options))
    literal, of_gaussian = run(Literal(**options), sigma=SIGMA / beta)
    same(found, literal)
    ((event, count),) = trained.ledger.events()
    assert [(event, count)] == of_gaussian.ledger.events() and (event.sample_rate, count) == (Q, 300)
    assert event.noise_multiplier == pytest.approx(SIGMA / beta, rel=1e-14)
    assert float((found[-1] - found[0]).norm()) > 1  # it went somewhere


@pytest.mark.parametrize("kind", [Fractional, PostMemory])
def test_beta_one_is_dp_sgd_bit_for_bit(kind):
    assert torch.equal(run(mechanism_of(kind, beta=1.0))[0], run(Gaussian(C))[0])


def test_depth_two_without_tempering_is_dampened_momentum():
    beta, kept = 0.7, [0.0]

    def momentum(noisy):
        kept[0] = (1 - beta) * kept[0] + beta * noisy
        return kept[0]

    found, _ = run(mechanism_of(beta=beta, depth=2, tau=0.0))
    same(found, run(Filtered(momentum), sigma=SIGMA / beta)[0])

    def from_zero(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.8, momentum=1 - beta, dampening=1 - beta)
        for parameter in parameters:  # torch starts with no buffer and leaves its first step undampened
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer

    same(found, run(Gaussian(C), sigma=SIGMA / beta, optimizer=from_zero)[0])


def test_depth_one_is_dp_sgd_at_another_rate():
    same(run(mechanism_of(depth=1))[0], run(Gaussian(C), sigma=SIGMA / 0.9, lr=0.9 * 0.8)[0])


def test_recursive_post_memory_is_the_same_algorithm():
    assert torch.equal(run(mechanism_of())[0], run(mechanism_of(PostMemory), sigma=SIGMA / 0.9)[0])


def test_post_memory_over_raw_releases():
    memory = SpecMemory()

    def through(noisy):
        mixed = 0.9 * noisy + 0.1 * memory.u()
        memory.remember(noisy)
        return mixed

    found = run(mechanism_of(PostMemory, history="raw"))[0]
    same(found, run(Filtered(through))[0])
    assert not torch.allclose(found[-1], run(mechanism_of(PostMemory))[0][-1], atol=1e-6)


@pytest.mark.parametrize("kind", [Fractional, PostMemory])
def test_memory_reads_nothing_but_releases(kind):
    """Neighbouring datasets with equal releases: equal memories and models, bit for bit."""
    size = sum(p.numel() for p in make("tanh_mlp", "table").parameters())
    released = list(torch.randn(30, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    for n in (41, 0):
        (path, one), (neighbours, other) = (run(mechanism_of(kind), steps=30, n=m, released=released) for m in (40, n))
        assert torch.equal(path, neighbours)
        assert one.state.memory.keys() == other.state.memory.keys()
        for key, value in one.state.memory.items():
            same_value = (
                torch.equal(value, other.state.memory[key]) if torch.is_tensor(value) else value == other.state.memory[key]
            )
            assert same_value, key


@pytest.mark.parametrize("beta", [1.0, 0.9, 0.3])
def test_one_record_moves_a_release_by_at_most_beta_c(beta):
    """Given the same earlier releases and noise, with all records in each batch; the new one is clipped, so that it is
    attained."""
    size = sum(p.numel() for p in make("tanh_mlp", "table").parameters())
    before = list(torch.randn(9, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    moved = []

    class LastIsReal(Fractional):
        def step(self, state, data):
            if state.memory.get("t", 0) < 9 and self.left:
                total = data.clipped_sum(data.draw(), C)
                data.release(total, C, state.plan.noise_multiplier)
                state.update(self.filter.apply(state.memory, self.left.pop(0).clone()) / data.normalizer)
            else:
                super().step(state, data)

    paths = []
    for n in (40, 41):
        mechanism = LastIsReal(max_grad_norm=C, **{k: v for k, v in (DEFAULTS | {"beta": beta}).items() if k != "history"})
        mechanism.left = list(before)
        paths.append(run(mechanism, steps=10, n=n, q=Fraction(1), lr=10.0)[0])  # lr = m0: a step is the release itself
    assert torch.equal(paths[0][:10], paths[1][:10])
    moved = float((paths[0][10] - paths[1][10]).norm())
    assert 0.999 * beta * C < moved <= beta * C * (1 + 1e-5)


SPENT = {30: (6.663, 6.076, 5.534, 4.570, 3.364), 50: (8.759, 7.993, 7.286, 6.021, 4.435),
         100: (12.971, 11.834, 10.776, 8.894, 6.532), 250: (22.637, 20.589, 18.700, 15.346, 11.160)}  # fmt: skip
BETAS = (1.0, 0.95, 0.90, 0.80, 0.65)


def composed(*overrides):
    return COMPOSER.compose(parse(["mechanism=fractional", *overrides])[0]).values


@pytest.mark.parametrize("epochs", SPENT)
def test_the_papers_spent_epsilon(epochs):
    for beta, spent in zip(BETAS, SPENT[epochs], strict=True):
        values = composed("noise_multiplier=1.1", "sample_rate=0.04", f"steps={25 * epochs}", f"mechanism.beta={beta}")
        _, _, account, plan = plan_of(values)
        assert plan.epsilon(account) == pytest.approx(spent, abs=1e-3)
        assert plan.public == {"beta": beta, "release_noise_multiplier": pytest.approx(1.1)}


@pytest.mark.parametrize("beta", BETAS)
def test_the_account_by_opacus(beta):
    from opacus.accountants.analysis.rdp import compute_rdp, get_privacy_spent

    orders = [*np.arange(11, 110) / 10, *range(12, 256)]
    rdp = compute_rdp(q=0.04, noise_multiplier=1.1 / beta, steps=6250, orders=orders)
    expected, _ = get_privacy_spent(orders=orders, rdp=rdp, delta=1e-5)
    _, _, account, plan = plan_of(composed("noise_multiplier=1.1", "sample_rate=0.04", "steps=6250", f"mechanism.beta={beta}"))
    assert plan.epsilon(account) == pytest.approx(expected, rel=1e-6)


def test_a_budget_buys_the_noise_of_dp_sgd():
    schedule = Schedule(5000, Fraction(1, 25), 1250, 200, 200)
    plans = {kind: kind.calibrate(schedule, Target(epsilon=2.0), ACCOUNT)
             for kind in (Gaussian(C), mechanism_of(), mechanism_of(PostMemory))}  # fmt: skip
    gaussian, fractional, post = plans.values()
    assert gaussian.events() == fractional.events() == post.events()
    assert fractional.public["release_noise_multiplier"] == pytest.approx(0.9 * gaussian.noise_multiplier)
    assert post.public["release_noise_multiplier"] == gaussian.noise_multiplier
    given = mechanism_of(PostMemory).calibrate(schedule, Target(noise_multiplier=1.1), ACCOUNT)
    assert given.noise_multiplier == given.public["release_noise_multiplier"] == 1.1


@pytest.mark.parametrize("setting", ["beta=0", "depth=0", "alpha=0", "gamma=2", "lam=-1", "tau=null", "kappa=-1", "zeta=0",
                                     "eps_num=-1", "design=cubic", "beta=null"])  # fmt: skip
def test_a_bad_key_is_named_before_anything_runs(setting):
    key = setting.partition("=")[0]
    for mechanism in ("fractional", "post_memory"):
        with pytest.raises(UsageError, match=f"mechanism={mechanism}: mechanism.*{key}="):
            plan_of(composed(f"mechanism={mechanism}", f"mechanism.{setting}"))
    with pytest.raises(UsageError, match=r"mechanism.history=inputs.*outputs, raw"):
        plan_of(composed("mechanism=post_memory", "mechanism.history=inputs"))


def test_a_key_that_does_not_exist_is_named():
    with pytest.raises(UsageError, match="mechanism.betta"):
        composed("mechanism.betta=0.5")
    node = COMPOSER.node("mechanism", "fractional")
    with pytest.raises(UsageError, match="doesn't take the keys of its YAML.*lambda_e"):
        build("mechanism", node | {"lambda_e": 0.1})
    del node["tau"]
    with pytest.raises(UsageError, match="doesn't take the keys of its YAML.*tau"):
        build("mechanism", node)
