"""Curves: the mean and band that are drawn, and what is left out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_factory import failed, record, task

from dpsweep.report.curve_figures import Panel, band, draw
from dpsweep.report.load import METRICS, Metric, join


def curves(accuracy, epochs=None, loss=None):
    n = len(accuracy)
    return {
        "epoch": epochs or [float(k + 1) for k in range(n)], "accuracy": list(accuracy), "loss": loss or [1.0] * n,
        "epsilon": [0.5 * (k + 1) for k in range(n)], "best_accuracy": max(accuracy), "best_epoch": 1.0,
    }  # fmt: skip


def runs(*found):
    records = [
        failed(task(seed=k)) if one is None else record(task(seed=k), curves=None if one == "none" else one)
        for k, one in enumerate(found)
    ]
    return join([], records).runs


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=1, max_size=6))
def test_a_band_is_mean_and_sample_sd_in_percent(values):
    found = band(runs(*map(curves, values)), "epsilon", "accuracy")
    assert np.allclose(found.mean, 100 * np.mean(values, 0)) and np.array_equal(found.x, [0.5, 1.0, 1.5, 2.0])
    if len(values) > 1:
        assert np.allclose(found.sd, 100 * np.std(values, 0, ddof=1)) and found.n == len(values)
    else:
        assert np.isnan(found.sd).all()


def test_runs_without_curves_or_with_other_epochs_are_left_out():
    found = band(runs(curves([0.1, 0.2]), None, "none", curves([0.3, 0.4]), curves([0.9], [2.0])), "epoch", "accuracy")
    assert found.n == 2 and np.allclose(found.mean, [20, 30])
    assert band(runs(None, "none"), "epoch", "accuracy") is None


def test_a_loss_that_is_not_finite_leaves_a_gap():
    found = band(runs(curves([0.1, 0.2], loss=[1.0, None]), curves([0.1, 0.2], loss=[3.0, 1.0])), "epoch", "loss")
    assert found.mean[0] == 2.0 and math.isnan(found.mean[1])


def test_training_without_privacy_has_no_spent_epsilon_to_draw_against():
    lacking = curves([0.1, 0.2]) | {"epsilon": [None, None]}
    assert band(runs(lacking), "epsilon", "accuracy") is None and band(runs(lacking), "epoch", "accuracy") is not None


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    from matplotlib.figure import Figure

    kept, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (kept.append(self), save(self, *a, **k)))
    return lambda panels: (draw(tmp_path, "stem", panels, "alt", "caption"), kept)


def test_a_name_looks_the_same_in_every_panel_and_the_legend_names_what_is_drawn(drawn):
    some, none = runs(curves([0.1, 0.2]), curves([0.2, 0.3])), runs(None)
    panels = [
        Panel("a", "epoch", "accuracy", {"one": some, "gone": none, "two": some}),
        Panel("b", "epoch", "loss", {"two": some}),
        Panel("empty", "epoch", "accuracy", {"gone": none}),
    ]
    (picture,), kept = drawn(panels)
    assert picture.png.exists() and picture.svg.exists()
    shown = [axis for axis in kept[0].axes if axis.get_visible()]
    assert [axis.get_title(loc="left") for axis in shown] == ["a", "b"]
    assert shown[0].lines[1].get_color() == shown[1].lines[0].get_color() != shown[0].lines[0].get_color()
    assert [text.get_text() for text in kept[0].legends[0].get_texts()] == ["one", "two", "band: ± sample SD over seeds"]
    assert len(shown[0].collections) == 2  # a band a line


def test_nothing_is_drawn_without_curves(drawn):
    assert drawn([Panel("a", "epoch", "accuracy", {"gone": runs(None)})]) == ([], [])


def test_a_metric_reads_a_place_of_a_list():
    assert Metric("curves.loss.-1", "Final loss").of({"curves": {"loss": [3.0, 2.0]}}) == 2.0
    assert Metric("curves.loss.-1", "Final loss").of({"curves": {"loss": []}}) is None
    assert Metric("curves.loss.-1", "Final loss").of({"curves": None}) is None
    assert METRICS["accuracy"].of({"test_accuracy": 0.5}) == 0.5
