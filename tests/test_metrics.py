"""The metrics against scikit-learn, against cases done by hand, and where they are undefined."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.metrics import METRICS, evaluate, majority_accuracy


def by_sklearn(p, y):
    from sklearn import metrics as reference

    if p.ndim == 1:
        predicted, mean = (p >= 0.5).astype(int), "binary"
        auroc, auprc = reference.roc_auc_score(y, p), reference.average_precision_score(y, p)
    else:
        predicted, mean = p.argmax(axis=1), "macro"
        auroc, auprc = (
            np.mean([score(y == k, p[:, k]) for k in range(p.shape[1])])
            for score in (reference.roc_auc_score, reference.average_precision_score)
        )
    quotients = reference.precision_recall_fscore_support(y, predicted, average=mean, zero_division=0)[:3]
    return dict(zip(METRICS, (np.mean(predicted == y), *quotients, auroc, auprc), strict=True))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 3, 10]), st.sampled_from([2, 5, None]), st.integers(0, 60))
def test_scikit_learn_agrees_with_and_without_ties(seed, classes, steps, extra):
    rng = np.random.default_rng(seed)
    least = np.arange(max(classes, 2))
    y = np.concatenate([least, rng.integers(0, len(least), extra)])
    p = rng.random((len(y), classes))
    if steps:
        p = np.round(p * steps) / steps
    if classes == 1:
        p = p[:, 0]
    assert evaluate(p, y) == pytest.approx(by_sklearn(p, y), abs=1e-12)


def test_sklearns_own_multiclass_auroc_is_the_same():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(1)
    p, y = rng.dirichlet(np.ones(4), 200), rng.integers(0, 4, 200)
    expected = roc_auc_score(y, p, multi_class="ovr", average="macro")
    assert evaluate(p, y)["auroc"] == pytest.approx(expected, abs=1e-12)


def test_a_binary_case_by_hand():
    # ranked: 1, then a tie of a 1 and a 0, then 0; one half counts as class 1
    result = evaluate(np.array([0.9, 0.5, 0.5, 0.2]), np.array([1, 0, 1, 0]))
    assert result == pytest.approx(
        {"accuracy": 3 / 4, "precision": 2 / 3, "recall": 1, "f1": 4 / 5, "auroc": 7 / 8, "auprc": (1 + 2 / 3) / 2}
    )


def test_a_multiclass_case_by_hand():
    p = np.array([[0.6, 0.2, 0.2], [0.4, 0.4, 0.2], [0.1, 0.2, 0.7], [0.5, 0.1, 0.4]])
    result = evaluate(p, np.array([0, 1, 2, 2]))  # predicted 0 0 2 0
    assert result["accuracy"] == 0.5
    assert result["precision"] == pytest.approx((1 / 3 + 0 + 1) / 3)
    assert result["recall"] == pytest.approx((1 + 0 + 1 / 2) / 3)
    assert result["f1"] == pytest.approx((1 / 2 + 0 + 2 / 3) / 3)
    assert result["auroc"] == 1.0 and result["auprc"] == 1.0


def test_constant_scores_are_worth_nothing():
    y = np.array([0, 1, 1, 1])
    result = evaluate(np.full(4, 0.5), y)
    assert (result["auroc"], result["auprc"], result["recall"]) == (0.5, 0.75, 1.0)
    assert evaluate(np.full(4, 0.25), y)["precision"] == 0.0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("p", "y"),
    [
        (np.array([0.1, 0.9]), np.array([1, 1])),
        (np.array([0.1, 0.9]), np.array([0, 0])),
        (np.eye(3)[[0, 1, 1]], np.array([0, 1, 1])),
    ],
)
def test_areas_are_none_where_a_class_is_missing(p, y):
    result = evaluate(p, y)
    assert result["auroc"] is None and result["auprc"] is None
    assert all(result[name] is not None for name in METRICS[:4])


def test_classes_that_occur_nowhere_do_not_weigh_on_the_mean():
    assert evaluate(np.eye(3)[[0, 1, 1]], np.array([0, 1, 1]))["f1"] == 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_a_diverged_model_has_no_metrics(bad, shape):
    p = np.full(shape, 0.3, dtype=np.float32)
    p.flat[2] = bad
    assert evaluate(p, np.array([0, 1, 1, 0])) == dict.fromkeys(METRICS)


@pytest.mark.parametrize(
    ("p", "y"),
    [
        (np.full((3, 2), 0.5), np.array([0, 1, 1])),
        (np.full((3, 1), 0.5), np.array([0, 1, 1])),
        (np.full(3, 0.5), np.array([0, 1])),
        (np.full(0, 0.5), np.zeros(0, dtype=int)),
        (np.full(3, 0.5), np.array([0, 1, 2])),
        (np.full(3, 0.5), np.array([0, 1, -1])),
        (np.full(3, 0.5), np.array([0.0, 1.0, 1.0])),
        (np.array([-3.0, 2.0, 0.5]), np.array([0, 1, 1])),
    ],
)
def test_senseless_input_is_refused(p, y):
    with pytest.raises(ValueError):
        evaluate(p, y)


def test_ten_thousand_records_of_ten_classes_are_quick():
    rng = np.random.default_rng(0)
    p, y = rng.dirichlet(np.ones(10), 10_000), rng.integers(0, 10, 10_000)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        evaluate(p, y)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.1


def test_the_majority_of_the_training_part_is_held_against_the_test_part():
    # Class 2 leads the training labels; of the test labels one in four is 2. A tie goes to the first class.
    assert majority_accuracy(np.array([0, 2, 2, 1]), np.array([2, 0, 0, 1])) == 0.25
    assert majority_accuracy(np.array([1, 0]), np.array([0, 0, 1])) == 2 / 3


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("DPSWEEP_DATA"), reason="DPSWEEP_DATA names no folder with real data")
@pytest.mark.parametrize(
    ("dataset", "percent", "unused"),
    [("mnist", "11.35", 9000), ("cifar10", "10.00", 7500), ("cardio", "50.30", 10291), ("heart", "41.30", 45)],
)
def test_the_published_majority_baselines_and_unused_parts(dataset, percent, unused):
    from dpsweep.build import build
    from dpsweep.config import Composer

    values = Composer().compose([("dataset", dataset)]).values
    loaded = build("dataset", values["dataset"]).load(Path(os.environ["DPSWEEP_DATA"]), values["split"], values["split_seed"])
    assert f"{100 * majority_accuracy(loaded.y_train, loaded.y_test):.2f}" == percent
    assert loaded.unused == unused
