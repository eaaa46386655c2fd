"""Every engine gives the same clipped sum, bounded whatever a record holds, for every registered model."""

import time

import pytest
import torch
from zoo import batch, make

from dpsweep.models.base import example_losses, trained, unflatten
from dpsweep.training.engines import prepare
from dpsweep.training.per_example import clip_factors, clipping

ENGINES = ("default", "uncached", "vmap", "reference")
C = 0.7


class summed:
    """An engine over a model of its own, fed with inputs as the runner feeds it."""

    def __init__(self, engine, name, kind, dtype=torch.float64, physical=None):
        self.name, self.physical = engine, physical
        self.model = make(name, kind, dtype)
        self.kept = None  # an engine that is fed records serves for all of them; features are those of one set

    def _ready(self, x, masks):
        if self.kept is not None:
            return self.kept, (x, *masks)
        ready = prepare(self.name, self.model, x, f"test {time.perf_counter_ns()}", self.physical)
        self.kept = ready.engine if ready.inputs[0] is x and len(ready.inputs) == 1 else None
        return ready.engine, (*ready.inputs, *masks)

    def clipped_sum(self, x, y, masks, max_grad_norm):
        engine, inputs = self._ready(x, masks)
        return self._in_order(engine.weighted_sum(inputs, y, clipping(max_grad_norm)))

    def gradient_sum(self, x, y, masks):
        engine, inputs = self._ready(x, masks)
        return self._in_order(engine.gradient_sum(inputs, y))

    def _in_order(self, vector):
        """The sum in the order of ordinary contiguous parameters, whatever the engine's memory format."""
        return torch.cat([view.reshape(-1) for view in unflatten(vector, trained(self.model))])


def by_hand(model, x, y, masks, max_grad_norm):
    """One backward pass a record, nothing shared with the engines."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for i in range(len(x)):
        loss = example_losses(model(x[i : i + 1], *(m[i : i + 1] for m in masks)), y[i : i + 1]).sum()
        g = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)]).double()
        total += g * min(1.0, max_grad_norm / float(g.norm()))
    return total


@pytest.mark.parametrize("engine", ENGINES)
def test_the_sum_is_the_sum_of_clipped_gradients(engine, name, kind):
    model = make(name, kind)
    x, y, masks = batch(model, kind, 9)
    torch.testing.assert_close(
        summed(engine, name, kind).clipped_sum(x, y, masks, C), by_hand(model, x, y, masks, C), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_physical_batches_change_nothing(engine, name, kind):
    x, y, masks = batch(make(name, kind), kind, 17)
    whole = summed(engine, name, kind)
    clipped, plain = whole.clipped_sum(x, y, masks, C), whole.gradient_sum(x, y, masks)
    for physical in (1, 7):
        cut = summed(engine, name, kind, physical=physical)
        torch.testing.assert_close(cut.clipped_sum(x, y, masks, C), clipped, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(cut.gradient_sum(x, y, masks), plain, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_empty_batch_sums_to_zero(engine, name, kind):
    model = make(name, kind)
    x, y, masks = batch(model, kind, 0)
    total = summed(engine, name, kind).clipped_sum(x, y, masks, C)
    assert total.shape == (sum(p.numel() for p in model.parameters()),) and not total.any()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_record_more_moves_the_sum_by_at_most_c(engine, dtype, name, kind):
    """Invariant 3, with records made to have large and small gradients."""
    model = make(name, kind, dtype)
    for scale in (1e-3, 1.0, 1e3):
        x, y, masks = batch(model, kind, 12, dtype)
        x[5] *= scale
        sums = summed(engine, name, kind, dtype)
        with_it = sums.clipped_sum(x, y, masks, C).double()
        rest = torch.arange(12) != 5
        without = sums.clipped_sum(x[rest], y[rest], tuple(m[rest] for m in masks), C).double()
        assert (with_it - without).norm() <= C * (1 + 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_that_is_not_finite_contributes_zero(engine, name, kind):
    """Invariant 5. 1e38 overflows float32 inside the model; whether or not its gradient is finite, the bound holds."""
    model = make(name, kind, torch.float32)
    x, y, masks = batch(model, kind, 6, torch.float32)
    sums = summed(engine, name, kind, torch.float32)
    rest = torch.arange(6) != 2
    without = sums.clipped_sum(x[rest], y[rest], tuple(m[rest] for m in masks), C)
    for poison in (float("nan"), float("inf"), -float("inf"), 1e38, 1e25):
        x[2] = poison
        total = sums.clipped_sum(x, y, masks, C)
        assert total.isfinite().all()
        assert (total.double() - without.double()).norm() <= C * (1 + 1e-5)
        if not abs(poison) < float("inf"):
            torch.testing.assert_close(total, without, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_whose_squared_norm_overflows_is_clipped_like_any_other(engine, name, kind):
    """1e22 is finite in float32 and its square isn't: the record still counts, with norm C."""
    x, y, masks = batch(make(name, kind, torch.float32), kind, 6, torch.float32)
    x[2] *= 1e22
    exact = by_hand(make(name, kind), x.double(), y, tuple(m.double() for m in masks), C)
    logits = [make(name, kind, d)(x.to(d), *(m.to(d) for m in masks)).double() for d in (torch.float32, torch.float64)]
    if not torch.allclose(*logits, rtol=1e-3, equal_nan=False) or not exact.isfinite().all():
        pytest.skip("the network itself overflows at such inputs: the record is out, as one that is not finite")
    total = summed(engine, name, kind, torch.float32).clipped_sum(x, y, masks, C)
    assert (total.double() - exact).norm() <= 1e-5 * max(C, float(exact.norm()))


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_single_precision_agrees_at_shared_states(engine, name, kind):
    """Invariant 6 in float32: at 20 states of a training run, empty batches and batches of one among them."""
    first, second = summed("default", name, kind, torch.float32), summed(engine, name, kind, torch.float32)
    for state in range(20):
        n = (0, 1, 9)[state % 3]
        x, y, masks = batch(first.model, kind, n, torch.float32, seed=state)
        mine, theirs = (sums.clipped_sum(x, y, masks, C).double() for sums in (first, second))
        assert (mine - theirs).norm() <= 1e-5 * max(C, float(theirs.norm()))
        generator = torch.Generator().manual_seed(state)
        with torch.no_grad():
            for p, q in zip(trained(first.model), trained(second.model), strict=True):
                p += 0.05 * torch.randn(p.shape, generator=generator)
                q.copy_(p)


def test_changing_one_record_changes_only_its_gradient(name, kind):
    """Invariant 4: no layer couples the records of a batch."""
    model = make(name, kind)
    x, y, masks = batch(model, kind, 5)
    rows = summed("vmap", name, kind)

    def single(i, x):
        return rows.clipped_sum(x[i : i + 1], y[i : i + 1], tuple(m[i : i + 1] for m in masks), C)

    changed = x.clone()
    changed[3] += 1
    together, apart = rows.clipped_sum(changed, y, masks, C), sum(single(i, changed) for i in range(5))
    torch.testing.assert_close(together, apart, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(single(3, x), single(3, changed))


def test_clip_factors():
    norms = torch.tensor([0.0, 0.5, 2.0, float("nan"), float("inf"), 1e40], dtype=torch.float64)
    assert clip_factors(norms, 1.0).tolist() == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0, 1e-40])
