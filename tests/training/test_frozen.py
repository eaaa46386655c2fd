"""Frozen features: computed once, shared where they are the same, bounded in memory, told in the record."""

import pytest
import torch
from zoo import COMPOSER, batch, make

from dpsweep.runner import run_task
from dpsweep.tasks import Settings, Task
from dpsweep.training.engines import prepare
from dpsweep.training.frozen import FeatureCache, HeadEngine


def test_one_seed_shares_its_projection_between_models_and_nothing_else():
    cache = FeatureCache()
    x, _, _ = batch(make("rvfl", "wide"), "wide", 30)
    for name in ("rvfl", "elm_sgd", "logistic_projected", "frozen_matched"):
        features = cache.of(make(name, "wide"), x, "data")
        z = make(name, "wide").features(x)
        torch.testing.assert_close(torch.cat(features.blocks, dim=1), z)
        torch.testing.assert_close(features.norms, (z.square().sum(1) + 1).sqrt())
    assert [path[-1][0] for path in cache._kept].count("projection") == 1
    assert len(cache._kept) == 3  # RVFL and ELM-SGD share the hidden layer too
    cache.of(make("rvfl", "wide", seed=4), x, "data")
    cache.of(make("rvfl", "wide"), x, "other data")
    cache.of(make("rvfl", "wide", torch.float32), x.float(), "data")
    assert len(cache._kept) == 9


def test_a_second_task_finds_the_features_of_the_first():
    cache = FeatureCache()
    x, _, _ = batch(make("rvfl", "wide"), "wide", 30)
    first, second = cache.of(make("rvfl", "wide"), x, "data"), cache.of(make("rvfl", "wide"), x, "data")
    assert all(a is b for a, b in zip(first.blocks[1:], second.blocks[1:], strict=True)) and second.seconds > 0


def test_the_cache_drops_the_least_recently_used_and_refuses_what_never_fits():
    x, _, _ = batch(make("rvfl", "table"), "table", 10)
    size = 10 * 200 * 8
    cache = FeatureCache(limit=2 * size)
    for seed in (1, 2, 1, 3):
        cache.of(make("rvfl", "table", seed=seed), x, "data")
    assert [path[-1][1] for path in cache._kept] == [1, 3]
    assert FeatureCache(limit=size - 1).of(make("rvfl", "table"), x, "data") is None


def test_features_that_do_not_fit_are_recomputed_with_the_same_result(monkeypatch):
    model = make("rvfl", "wide")
    x, y, masks = batch(model, "wide", 20)
    cached = prepare("default", model, x, "fits", None)
    monkeypatch.setattr("dpsweep.training.engines._CACHE", FeatureCache(limit=10))
    anew = prepare("default", model, x, "does not fit", None)
    assert cached.cached and not anew.cached and isinstance(anew.engine, HeadEngine)
    torch.testing.assert_close(cached.engine.clipped_sum(cached.inputs, y, 1.0), anew.engine.clipped_sum(anew.inputs, y, 1.0))


@pytest.mark.parametrize(
    ("engine", "model", "cached"), [("default", "rvfl", True), ("uncached", "rvfl", False), ("default", "cnn", False)]
)
def test_the_record_tells_both_times(engine, model, cached):
    items = {"dataset": "breast_cancer", "model": model, "epochs": 1, "engine": engine, "threads": 1, "seed": 77}
    config = COMPOSER.compose(list(items.items()))
    record = run_task(Task.from_config(config), Settings.from_config(config))
    assert record["features_cached"] is cached
    assert record["seconds_train_with_features"] == record["seconds_train"] + record["seconds_features"]
    assert (record["seconds_features"] > 0) is cached
