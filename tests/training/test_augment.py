"""Crop and flip: what becomes of an image, how often, and that privacy, cuts and repeats are what they were."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from zoo import COMPOSER, batch, make

from dpsweep.config import parse
from dpsweep.errors import UsageError
from dpsweep.mechanisms.base import Plan, dp_sgd_events
from dpsweep.mechanisms.gaussian import Gaussian
from dpsweep.privacy.noise import Randomness
from dpsweep.privacy.sampling import Everything, Poisson
from dpsweep.runner import run_task
from dpsweep.tasks import Settings, Task
from dpsweep.training.augment import crop_flip
from dpsweep.training.engines import prepare
from dpsweep.training.loop import LoopData, train


def stream(seed=0):
    return Randomness.seeded(seed).stream("augmentation")


def by_hand(image, flip, down, right):
    """One image, by slicing: shifted within a frame of zeros, then mirrored."""
    _, height, width = image.shape
    frame = torch.zeros(image.shape[0], height + 8, width + 8, dtype=image.dtype)
    frame[:, 4 : 4 + height, 4 : 4 + width] = image
    crop = frame[:, down : down + height, right : right + width]
    return crop.flip(2) if flip else crop


def every_change(image):
    return {by_hand(image, *change).numpy().tobytes(): change for change in np.ndindex(2, 9, 9)}


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 5), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32))
def test_each_image_becomes_a_shifted_or_mirrored_copy_of_itself(n, channels, height, width, seed):
    images = 1 + torch.rand(n, channels, height, width, generator=torch.Generator().manual_seed(1))
    before = images.clone()
    changed = crop_flip(images, stream(seed))
    assert changed.shape == images.shape and changed.dtype == images.dtype and torch.equal(images, before)
    for image, result in zip(images, changed, strict=True):
        assert result.contiguous().numpy().tobytes() in every_change(image)


def test_all_shifts_and_both_directions_are_equally_likely():
    image = 1 + torch.rand(2, 9, 10, generator=torch.Generator().manual_seed(0))
    changes = every_change(image)
    assert len(changes) == 162
    changed = crop_flip(image.expand(16200, -1, -1, -1), stream()).contiguous()
    seen = Counter(changes[result.numpy().tobytes()] for result in changed)
    assert len(seen) == 162 and chisquare(list(seen.values())).pvalue > 1e-3


def test_the_numbers_drawn_depend_on_the_batch_size_alone():
    positions = []
    for images in (torch.zeros(7, 1, 4, 4), torch.full((7, 3, 9, 9), float("nan"))):
        source = stream()
        crop_flip(images, source)
        positions.append(source.position)
    assert positions == [7 * 8, 7 * 8]


def test_a_record_changes_only_its_own_row():
    images = torch.rand(6, 3, 8, 8)
    other = images.clone()
    other[2] = float("nan")
    first, second = crop_flip(images, stream()), crop_flip(other, stream())
    same = torch.arange(6) != 2
    assert torch.equal(first[same], second[same]) and second[2].isnan().any()


def loop(model, x, y, cut=None, seed=0, sampler=None, augment=crop_flip, engine="default", steps=6):
    q = Fraction(1, 4)
    plan = Plan(sampler or Poisson(q), dp_sgd_events(q, 1.0), steps, 1.0, 1.0)
    ready = prepare(engine, model, x, "augment", cut)
    return plan, LoopData(ready, y, model, plan, 10, Randomness.seeded(seed), "none", cut, augment=augment)


def theta(**options):
    model = make("cnn", "gray")
    x, y, _ = batch(model, "gray", 40)
    plan, data = loop(model, x, y, **options)
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    return train(Gaussian(1.0), plan, model, data, optimizer).state.theta


def test_seeded_runs_repeat_bit_for_bit_and_differ_from_plain_ones():
    assert torch.equal(theta(), theta())
    assert not torch.equal(theta(), theta(augment=None))


@pytest.mark.parametrize("engine", ["default", "vmap", "reference"])
def test_engines_and_physical_batches_change_nothing(engine):
    for cut in (1, 7):
        torch.testing.assert_close(theta(engine=engine, cut=cut), theta(), rtol=1e-9, atol=1e-9)


def test_noise_and_sampling_are_those_of_a_run_without_it():
    """Streams of their own: the same batches are drawn, and the same noise is added."""
    released = []
    for augment in (None, crop_flip):
        model = make("cnn", "gray")
        x, y, _ = batch(model, "gray", 40)
        _, data = loop(model, x, y, augment=augment)
        drawn = data.draw()
        total = data.clipped_sum(drawn, 1.0)
        released.append((data._indices[drawn.number], data.release(total, 1.0, 1.0) - data._sums[total.number]))
    assert np.array_equal(released[0][0], released[1][0])
    torch.testing.assert_close(released[0][1], released[1][1], rtol=0, atol=1e-12)


def test_a_record_more_moves_the_sum_by_at_most_c():
    """The last of a batch comes or goes; the others keep their draws, as in the coupling of the proof."""
    model = make("cnn", "gray")
    x, y, _ = batch(model, "gray", 12)
    x[11] *= 1e3
    sums = []
    for n in (12, 11):
        _, data = loop(model, x[:n], y[:n], sampler=Everything())
        sums.append(data._sums[data.clipped_sum(data.draw(), 0.7).number])
    difference = float((sums[0] - sums[1]).norm())
    assert 0.1 < difference <= 0.7 * (1 + 1e-5)


def test_statistics_of_augmented_records_are_refused():
    model = make("cnn", "gray")
    x, y, _ = batch(model, "gray", 12)
    _, data = loop(model, x, y)
    with pytest.raises(UsageError, match="Leave augment out"):
        data.statistics(data.draw(), lambda record, label: record.flatten(), 1.0)


def task(*overrides):
    config = COMPOSER.compose(parse(["dataset=digits", "threads=1", *overrides])[0])
    return Task.from_config(config), Settings.from_config(config)


@pytest.mark.parametrize("model", ["cnn", "logistic_raw"])
def test_tasks_train_with_it(model):
    """`logistic_raw` keeps features of the records otherwise: with augmentation it reads them anew in each step."""
    plain, changed = (
        run_task(*task(f"model={model}", "epochs=1", "noise.source=seeded", f"augment={value}"))
        for value in ("null", "crop_flip")
    )
    assert plain["status"] == changed["status"] == "done", changed["error"]
    assert changed["test_auroc"] != plain["test_auroc"] and changed["noise_multiplier"] == plain["noise_multiplier"]
    assert changed["config"]["augment"] == "crop_flip" and "augment" not in plain["config"]


def test_it_is_part_of_the_identity_and_null_is_not():
    assert task("model=cnn", "augment=crop_flip")[0].id != task("model=cnn")[0].id == task("model=cnn", "augment=null")[0].id


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=cnn", "augment=mixup"], r"augment=mixup: crop_flip or null"),
        (["model=cnn", "augment=true"], r"augment=True: crop_flip or null"),
        (["model=rvfl", "augment=crop_flip"], r"augment=crop_flip with model=rvfl: its frozen layers"),
        (["dataset=heart", "model=cnn", "augment=crop_flip"], r"augment=crop_flip with dataset=heart: only images"),
        (["model=dp_elm", "mechanism=laplace_elm", "augment=crop_flip"], r"augment with mechanism=laplace_elm"),
    ],
)
def test_what_cannot_be_augmented_is_refused(overrides, message):
    with pytest.raises(UsageError, match=message):
        task(*overrides)
