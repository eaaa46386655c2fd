"""DP-Hero: what its noise and clip are, and what its epsilon covers."""

import dataclasses
from fractions import Fraction
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
import torch
from doors import RDP, opened, schedule, sgd, written_out
from hypothesis import given, settings
from zoo import COMPOSER, batch, make

from dpsweep.build import build
from dpsweep.config import parse
from dpsweep.errors import UsageError
from dpsweep.mechanisms.anisotropic import _fewer
from dpsweep.mechanisms.base import State, Target
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.mechanisms.hero import Hero, HeroClaimed
from dpsweep.models.base import trained
from dpsweep.privacy.accounting import SampledGaussian, epsilon
from dpsweep.privacy.anisotropic import RowMap, row_map
from dpsweep.privacy.ledger import LedgerError
from dpsweep.privacy.noise import Randomness
from dpsweep.runner import attempt
from dpsweep.tasks import Settings, Task
from dpsweep.training.engines import prepare
from dpsweep.training.loop import LoopData, train

KEYS = {
    "max_grad_norm": 1.0,
    "direction": "inverse",
    "ridge": 1.0,
    "normalise": "min",
    "s_floor": 0.0,
    "clip": "l2",
    "refresh": 1,
}
SOUND = [{"normalise": "min"}, {"normalise": "trace", "s_floor": 0.5}, {"normalise": "max", "s_floor": 0.9}]
MAHALANOBIS = [{"clip": "mahalanobis", "normalise": normalise} for normalise in ("min", "trace", "max")]
CLAIMED = [{"normalise": "trace"}, {"normalise": "max"}]


def hero(**keys):
    return Hero(**(KEYS | keys))


def claimed(**keys):
    return HeroClaimed(**(KEYS | keys))


class Isotropic(Hero):
    """S = I through the whole machinery."""

    def map_of(self, matrix):
        n = matrix.shape[1]
        return row_map(torch.eye(n, 1, dtype=matrix.dtype), torch.full((1,), 3.0, dtype=torch.float64), 3.0)


def maps_of(mechanism, model="dense", kind="table", seed=3):
    state = mechanism.start(None, make(model, kind, seed=seed), sgd)
    return mechanism._shape(state)


@pytest.mark.parametrize("clip", ["l2", "mahalanobis"])
@pytest.mark.parametrize("normalise", ["min", "trace", "max"])
@pytest.mark.parametrize(("model", "kind"), [("dense", "table"), ("frozen_matched", "gray"), ("rvfl", "gray"), ("cnn", "table")])
def test_an_isotropic_shape_is_dp_sgd_bit_for_bit(clip, normalise, model, kind):
    ends = []
    for mechanism in (Isotropic(**(KEYS | {"clip": clip, "normalise": normalise, "s_floor": 1.0})), Gaussian(1.0)):
        network, plan, data = opened(mechanism, model=model, kind=kind, seed=5, dtype=torch.float32)
        ends.append(train(mechanism, plan, network, data, sgd).state.theta)
    assert torch.equal(*ends)


@pytest.mark.parametrize(("direction", "ridge"), [("inverse", 1.0), ("inverse", 0.1), ("aligned", 1.0), ("aligned", 10.0)])
@pytest.mark.parametrize("normalise", ["min", "trace", "max"])
def test_the_weights_are_the_specified_ones(direction, ridge, normalise):
    mechanism = hero(direction=direction, ridge=ridge, normalise=normalise, clip="mahalanobis")
    model = make("dense", "gray")
    shape = maps_of(mechanism, kind="gray")
    for parameter, row in zip(trained(model), shape.maps, strict=True):
        if parameter.dim() < 2:
            assert row is None
            continue
        rows = parameter.detach()
        covariance = torch.cov(rows.T)
        values, vectors = torch.linalg.eigh(covariance)
        mean = values.clamp(min=0).sum() / min(rows.shape)  # of the variances of a thin decomposition
        weights = (values.clamp(min=0) + ridge * mean) ** (-0.5 if direction == "inverse" else 0.5)
        weights /= {"min": weights.min(), "max": weights.max(), "trace": weights.square().mean().sqrt()}[normalise]
        torch.testing.assert_close(written_out(row), vectors @ torch.diag(weights) @ vectors.T, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("keys", SOUND)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(seed=st.integers(0, 10**6), direction=st.sampled_from(["inverse", "aligned"]), ridge=st.floats(0.01, 100))
@settings(deadline=None, max_examples=25)
def test_sound_noise_is_never_below_its_bound_in_any_direction(keys, dtype, seed, direction, ridge):
    mechanism = hero(direction=direction, ridge=ridge, **keys)
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (int(torch.randint(2, 12, (1,), generator=generator)) for _ in range(2))
    matrix = torch.randn(rows, columns, generator=generator, dtype=dtype) * 10 ** float(torch.randn(1, generator=generator))
    parameter = torch.nn.Parameter(matrix)
    row = mechanism._normalised(matrix.flatten(), parameter)
    assert row is not None and row[3] >= mechanism.bound
    deviations = torch.linalg.svdvals(written_out(RowMap(*row)))
    assert float(deviations.min()) >= mechanism.bound * (1 - 1e-12)


@pytest.mark.parametrize("keys", [*SOUND, {"normalise": "min", "direction": "aligned"}])
def test_the_noise_has_the_covariance_of_the_shape(keys):
    shape = maps_of(hero(**keys), model="logistic_raw", kind="color")
    row = shape.maps[0]
    noise = Randomness.seeded(1).stream("noise")
    draws = torch.stack([shape.apply(noise.add_normal(torch.zeros(sum(shape._sizes), dtype=torch.float64), 1.5))
                         [: len(row.basis)] for _ in range(20_000)])  # fmt: skip
    found, expected = draws.T @ draws / len(draws), 1.5**2 * written_out(row) @ written_out(row).T
    # a covariance entry of n draws deviates by sqrt((s_ii s_jj + s_ij^2)/n)
    deviation = ((expected.diagonal()[:, None] * expected.diagonal() + expected**2) / len(draws)).sqrt()
    z = (found - expected) / deviation
    assert float(z.abs().max()) < 6 and float(z.square().mean()) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("keys", [*SOUND, *MAHALANOBIS])
def test_the_bound_is_proved_and_what_was_charged_is_within_it(keys):
    mechanism = hero(**keys)
    numbers = schedule(n=200, steps=20)
    plan = mechanism.calibrate(numbers, Target(epsilon=2.0), RDP)
    network, _, data = opened(mechanism, n=200, steps=20, sigma=plan.noise_multiplier)
    run = train(mechanism, plan, network, data, sgd)
    promise = mechanism.guarantee(plan, run.ledger, RDP, Target(epsilon=2.0))
    assert promise.epsilon_claimed == 2.0 and promise.epsilon_realised is None
    assert epsilon(run.ledger.events(), RDP.delta).epsilon <= promise.epsilon <= 2.0
    plain = Gaussian(1.0).calibrate(numbers, Target(epsilon=2.0), RDP).noise_multiplier
    assert plan.noise_multiplier == pytest.approx(plain / mechanism.bound)
    if mechanism.bound == 1:
        assert promise.epsilon == Gaussian(1.0).calibrate(numbers, Target(epsilon=2.0), RDP).epsilon(RDP)


@pytest.mark.parametrize("keys", CLAIMED)
def test_without_a_bound_nothing_is_proved_and_the_run_says_what_it_spent(keys):
    mechanism = claimed(**keys)
    network, plan, data = opened(mechanism, n=200, steps=20)
    run = train(mechanism, plan, network, data, sgd)
    promise = mechanism.guarantee(plan, run.ledger, RDP, Target(epsilon=2.0))
    assert promise.epsilon is None and promise.reason and promise.epsilon_claimed == 2.0
    noises = [event.noise_multiplier for event, _ in run.ledger.events()]
    told = mechanism.outcome(run.state)
    assert min(noises) == pytest.approx(told["s_min_least"]) and told["s_min_least"] < 1
    assert told["s_min_least"] <= told["s_min_mean"] <= 1
    assert promise.epsilon_realised > epsilon([(SampledGaussian(data.ledger.events()[0][0].sample_rate, 1.0), 20)], 1e-5).epsilon
    assert "No privacy of the released model is proved" in promise.text


def test_what_a_lost_checkpoint_spent_is_not_known():
    mechanism = claimed(normalise="trace")
    network, plan, _ = opened(mechanism)
    plan = dataclasses.replace(plan, repeated=(2,))
    x, y, _ = batch(network, "table", 40)
    data = LoopData(prepare("default", network, x, "lost", None), y, network, plan, 10, Randomness.seeded(1), "none")
    run = train(mechanism, plan, network, data, sgd)
    promise = mechanism.guarantee(plan, run.ledger, RDP, Target(epsilon=2.0))
    assert promise.epsilon is None and promise.epsilon_realised is None
    assert "lost with a checkpoint" in promise.text and "inf" not in promise.text


def test_a_claimed_run_that_lost_a_checkpoint_has_a_record(tmp_path):
    given = ["dataset=breast_cancer", "model=dense", "mechanism=hero_claimed", "epochs=1", "threads=1", f"output_dir={tmp_path}"]
    config = COMPOSER.compose(parse(given)[0])
    task, lost = Task.from_config(config), tmp_path / "records" / "checkpoints"
    lost.mkdir(parents=True)
    (lost / f"{task.id}.3.{'0' * 16}.pt").write_bytes(b"damaged")
    status, record = attempt(task, Settings.from_config(config), alone=True)
    assert status == "done" and record["epsilon"] is None and record["epsilon_realised"] is None
    assert "what was spent isn't known" in record["guarantee_text"] and "A checkpoint after 3 steps" in record["guarantee_text"]


def test_a_reading_by_privacy_loss_distributions_is_of_few_and_never_less():
    q = Fraction(1, 4)
    events = [(SampledGaussian(q, (400 + 3 * i) / 1000), 1 + i % 3) for i in range(100)]
    fewer = _fewer(events)
    assert len(fewer) <= 16 and sum(count for _, count in fewer) == sum(count for _, count in events)
    spread = [event.noise_multiplier for event, count in events for _ in range(count)]
    told = [event.noise_multiplier for event, count in fewer for _ in range(count)]
    assert all(0 <= true - low < 0.03 for true, low in zip(sorted(spread), sorted(told), strict=True))
    assert sorted(_fewer(events[:16]), key=repr) == sorted(events[:16], key=repr)
    mechanism, seen, ledger = claimed(normalise="trace"), [], SimpleNamespace(events=lambda: events)
    plan = mechanism.calibrate(schedule(), Target(noise_multiplier=1.0), RDP)
    for accountant in ("pld", "rdp"):
        account = SimpleNamespace(accountant=accountant, delta=1e-5, epsilon=lambda events: seen.append(len(events)) or 1.0)
        mechanism.guarantee(plan, ledger, account, Target(epsilon=2.0))
    assert seen == [len(fewer), 100]


def test_the_example_of_what_a_least_weight_costs():
    for s_min, expected in ((1.0, 1.560), (0.9, 1.995), (0.7, 4.064), (0.5, 12.80), (0.3, 80.5)):
        spent = epsilon([(SampledGaussian(Fraction(256, 60000), s_min), 3515)], 1e-5).epsilon
        assert spent == pytest.approx(expected, rel=5e-4)


@pytest.mark.parametrize("engine", ["default", "uncached", "vmap", "reference"])
@pytest.mark.parametrize(("model", "kind"), [("rvfl", "table"), ("dense", "table"), ("cnn", "color"), ("cnn", "table"),
                                             ("attention", "gray"), ("inception", "gray")])  # fmt: skip
def test_the_metric_clips_every_mapped_gradient(engine, model, kind):
    """Against one backward pass a record and S written out."""
    mechanism = hero(clip="mahalanobis", max_grad_norm=0.05)
    network, plan, data = opened(mechanism, n=9, q=1, model=model, kind=kind, engine=engine)
    state = State(plan, network, sgd)
    state.memory.update(taken=0, least=1.0, total=0.0)
    shape = mechanism._shape(state)
    total = data._sums[data.clipped_sum(data.draw(), 0.05, metric=shape).number]
    parameters, masks = trained(network), data._masks(0)
    if masks:
        pytest.skip("its dropout masks are drawn inside")
    expected, (x, y, _) = torch.zeros_like(state.theta), batch(make(model, kind), kind, 9)
    from dpsweep.models.base import example_losses, flatten

    for i in range(9):
        g = flatten(torch.autograd.grad(example_losses(network(x[i : i + 1]), y[i : i + 1]).sum(), parameters), parameters)
        pieces = [piece if row is None else (piece.view(-1, len(row.basis)) @ torch.linalg.inv(written_out(row))).flatten()
                  for piece, row in zip(g.split([p.numel() for p in parameters]), shape.maps, strict=True)]  # fmt: skip
        h = torch.cat(pieces)
        expected += h * min(1.0, 0.05 / float(h.norm()))
    torch.testing.assert_close(total, expected, rtol=1e-7, atol=1e-10)


def test_a_mapped_record_moves_the_sum_by_at_most_the_clip():
    mechanism = hero(clip="mahalanobis")
    for records in (range(39), range(1, 40)):
        ends = []
        for kept in (None, list(records)):
            network, plan, data = opened(mechanism, q=1, records=kept, model="cnn", kind="gray")
            state = mechanism.start(plan, network, sgd)
            ends.append(data._sums[data.clipped_sum(data.draw(), 1.0, metric=mechanism._shape(state)).number])
        assert 0.5 < float((ends[0] - ends[1]).norm()) <= 1 + 1e-9


def test_the_map_is_made_of_released_weights_and_only_when_due():
    mechanism = hero(refresh=3)
    network, plan, data = opened(mechanism, steps=6)
    seen = []
    state = mechanism.start(plan, network, sgd)
    for _ in range(6):
        mechanism.step(state, data)
        data.close_step()
        seen.append(state.memory["maps"][0][0])
    assert seen[0] is seen[1] is seen[2] is not seen[3] and seen[3] is seen[4] is seen[5]


def test_less_noise_than_planned_is_refused():
    mechanism = hero()
    network, plan, data = opened(mechanism)
    thin = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * 0.9)
    with pytest.raises(LedgerError, match="Add more noise"):
        mechanism.step(mechanism.start(thin, network, sgd), data)


@pytest.mark.parametrize("keys", [
    {"direction": "up"}, {"ridge": 0}, {"ridge": -1.0}, {"ridge": 9e-4}, {"ridge": 1e-12}, {"normalise": "mean"},
    {"normalise": "trace"}, {"s_floor": 1.5}, {"s_floor": -0.1}, {"s_floor": 1e-300}, {"s_floor": 9e-4}, {"clip": "l1"},
    {"refresh": 0}])  # fmt: skip
def test_keys_that_make_no_sense_are_refused_by_name(keys):
    with pytest.raises(UsageError, match=f"mechanism.{next(iter(keys))}="):
        build("mechanism", COMPOSER.node("mechanism", "hero") | keys)


@pytest.mark.parametrize("keys", [{"normalise": "min"}, {"clip": "mahalanobis"}, {"s_floor": 0.5}])
def test_a_claim_with_a_bound_is_sent_to_the_proved_one(keys):
    with pytest.raises(UsageError, match="mechanism=hero"):
        build("mechanism", COMPOSER.node("mechanism", "hero_claimed") | keys)


def test_weights_that_say_nothing_give_the_identity():
    mechanism = hero()
    for matrix in (torch.zeros(3, 4), torch.ones(3, 4), torch.full((3, 4), torch.nan), torch.randn(1, 4), torch.randn(4)):
        assert mechanism._normalised(matrix.flatten(), torch.nn.Parameter(matrix)) is None


@pytest.mark.parametrize("direction", ["inverse", "aligned"])
@pytest.mark.parametrize("rows", [(16, 9), (10, 128), (128, 256), (256, 784), (512, 1152)])
def test_the_least_ridge_has_a_bound_for_every_spectrum(direction, rows):
    """The worst one: all but one variance just above what counts as none, so that their vectors are mostly rounding."""
    mechanism = hero(direction=direction, ridge=1e-3)
    for seed, small in enumerate((1.0, 1e-2, 1.1e-5)):
        generator, k = torch.Generator().manual_seed(seed), min(rows)
        sides = [torch.linalg.qr(torch.randn(n, k, generator=generator, dtype=torch.float64))[0] for n in rows]
        values = torch.full((k,), small, dtype=torch.float64)
        values[0] = 1.0
        matrix = ((sides[0] * values) @ sides[1].T).float()
        row = mechanism.map_of(matrix)
        unused = row.basis.shape[1] == len(row.basis)
        least = min(float(row.weights.min()), *([] if unused else [row.rest]), float("inf"))
        assert 0.6 * least < row.least <= least
        assert mechanism._normalised(matrix.flatten(), torch.nn.Parameter(matrix))[3] >= 1


def test_a_map_without_a_bound_is_no_identity_but_an_error():
    class Wild(Hero):
        def map_of(self, matrix):
            n = matrix.shape[1]
            basis = torch.eye(n, 2, dtype=matrix.dtype) + 1e-3
            return row_map(basis, torch.tensor([1.0, 1e-9], dtype=torch.float64), 1.0)

    with pytest.raises(UsageError, match=r"Wild: .*rows of 4 numbers.*no bound above 0.*more ridge"):
        Wild(**KEYS)._normalised(torch.randn(12), torch.nn.Parameter(torch.randn(3, 4)))


@pytest.mark.parametrize("keys", [{"normalise": "min"}, {"clip": "mahalanobis"}])
@pytest.mark.parametrize("model", ["rvfl", "frozen_matched", "logistic_raw"])
def test_a_model_without_anything_to_shape_is_refused(keys, model):
    mechanism = hero(**keys)
    with pytest.raises(UsageError, match=r"nothing to shape: .*has two rows.*mechanism=gaussian is the same"):
        mechanism.start(None, make(model, "table"), sgd)  # two classes: a head of one row
    mechanism.start(None, make(model, "wide"), sgd)


def test_the_readme_idea_of_another_shape_trains_within_its_bound():
    import re
    from pathlib import Path

    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(import torch\n\nfrom dpsweep.mechanisms.anisotropic.*?)```", readme, re.S)
    space = {}
    exec(code, space)
    mechanism = space["ByColumn"](1.0, "l2", "min", 0.0, 1)
    network, plan, data = opened(mechanism, model="dense")
    state = train(mechanism, plan, network, data, sgd).state
    assert mechanism.outcome(state) == {"s_min_least": 1.0, "s_min_mean": 1.0}
    row = mechanism._shape(state).maps[0]
    torch.testing.assert_close(written_out(row), torch.diag(written_out(row).diagonal()))
    assert float(written_out(row).diagonal().std()) > 0.01
