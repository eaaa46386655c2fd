"""Image profiles: the pixels are torchvision's, each image is treated by itself, identities and shapes follow."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dpsweep.build import build
from dpsweep.config import Composer
from dpsweep.datasets.images import MNIST
from dpsweep.datasets.profiles import PROFILES, Constants, apply_profile
from dpsweep.errors import UsageError
from dpsweep.tasks import Task, enumerate_tasks

IMAGE_DATASETS = ("mnist", "fashionmnist", "cifar10", "cifar100", "svhn", "digits")
GREY = Constants((0.3,), (0.4,))
COLOUR = Constants((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))


def images(n=30, shape=(3, 32, 32)):
    return np.random.default_rng(1).integers(0, 256, (n, *shape), dtype=np.uint8)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_every_profile_is_torchvisions_bit_for_bit(shape):
    from PIL import Image
    from torchvision import transforms as T

    half, constants = (shape[1] // 2, shape[2] // 2), GREY if shape[0] == 1 else COLOUR
    chains = {
        "raw01": T.ToTensor(),
        "fixed_centered": T.Compose([T.ToTensor(), T.Normalize((0.5,) * shape[0], (0.5,) * shape[0])]),
        "half_resolution": T.Compose([T.Resize(half), T.ToTensor()]),
        "standardized": T.Compose([T.ToTensor(), T.Normalize(*constants)]),
    }
    assert tuple(chains) == PROFILES
    pixels = images(shape=shape)
    pixels[0], pixels[1] = 0, 255
    order = np.random.default_rng(2).permutation(len(pixels))
    for profile, chain in chains.items():
        ours = apply_profile(pixels, order, profile, constants)
        assert ours.dtype == np.float32 and ours.flags.c_contiguous
        for image, record in zip(ours, order, strict=True):
            pil = Image.fromarray(pixels[record, 0] if shape[0] == 1 else pixels[record].transpose(1, 2, 0))
            assert np.array_equal(image, chain(pil).numpy()), profile


@settings(deadline=None, max_examples=30)
@given(arrays(np.uint8, (3, 1, 8, 8), elements=st.integers(0, 16)), st.sampled_from(PROFILES))
def test_an_image_is_treated_without_regard_to_the_others_and_stays_in_range(pixels, profile):
    together = apply_profile(pixels, np.arange(3), profile, GREY, white=16)
    alone = [apply_profile(pixels[k : k + 1], np.arange(1), profile, GREY, white=16)[0] for k in range(3)]
    assert np.array_equal(together, alone)
    low, high = {"fixed_centered": (-1, 1), "standardized": (-0.3 / 0.4 - 1e-6, 0.7 / 0.4 + 1e-6)}.get(profile, (0, 1))
    assert together.min() >= low and together.max() <= high


def test_more_images_than_one_chunk_keep_their_order():
    pixels = np.repeat(np.arange(9000, dtype=np.uint16), 4).reshape(-1, 1, 2, 2).astype(np.uint8)
    for profile in PROFILES:
        treated = apply_profile(pixels, np.arange(9000)[::-1], profile, GREY)
        assert np.array_equal(
            treated[:, 0, 0, 0],
            apply_profile(pixels[::-1][:256], np.arange(256), profile, GREY)[np.arange(9000) % 256, 0, 0, 0],
        )


@pytest.mark.parametrize("name", IMAGE_DATASETS)
def test_the_yaml_knows_the_shape_of_every_profile(name):
    composer = Composer()
    files = composer.compose([("dataset", name)]).values["dataset"]["shape"]
    for profile in PROFILES:
        node = composer.compose([("dataset", name), ("dataset.profile", profile)]).values["dataset"]
        build("dataset", node)
        constants = GREY if files[0] == 1 else COLOUR
        assert list(apply_profile(images(1, files), np.arange(1), profile, constants).shape[1:]) == node["shape"]


def test_the_default_profile_is_one_task_however_it_is_written_and_the_others_are_tasks_of_their_own():
    composer = Composer()
    written = [[], ["dataset.profile=null"], ["dataset.profile=raw01"]]
    ids = {enumerate_tasks(["dataset=mnist", "model=rvfl", *more], composer).tasks[0].id for more in written}
    assert len(ids) == 1
    task = enumerate_tasks(["dataset=mnist"], composer).tasks[0]
    assert not {"profile", "profiles"} & task.config["dataset"].keys()  # so records made before there were profiles still count
    others = {Task.from_config(composer.compose([("dataset.profile", profile)])).id for profile in PROFILES}
    assert len(others) == len(PROFILES)


@pytest.mark.parametrize("value", ["grey", 3, ["raw01"]])
def test_an_unknown_profile_is_refused_by_name(value):
    with pytest.raises(UsageError, match=r"dataset.profile=.*digits has the profiles raw01, fixed_centered, half_resolution"):
        Composer().compose([("dataset.profile", value)])
    with pytest.raises(UsageError, match="grey"):
        MNIST("grey")


def test_tables_have_no_profiles():
    with pytest.raises(UsageError, match="dataset.profile"):
        Composer().compose([("dataset", "heart"), ("dataset.profile", "raw01")])


@pytest.mark.parametrize("profile", PROFILES)
def test_digits_load_in_every_profile_and_verify_as_raw01(profile):
    node = Composer().compose([("dataset.profile", profile)]).values["dataset"]
    reader = build("dataset", node)
    dataset = reader.load(Path("nowhere"), "dp_rvfl", 2026)
    dataset.check(tuple(node["shape"]), node["classes"])
    if profile == "standardized":  # its constants are those of all the digits
        assert abs(dataset.x_train.mean()) < 0.01 and abs(dataset.x_train.std() - 1) < 0.01
    else:
        assert dataset.x_train.min() == (-1 if profile == "fixed_centered" else 0) and 0.9 < dataset.x_train.max() <= 1
    assert all(finding.ok for finding in reader.verify(Path("nowhere")))
