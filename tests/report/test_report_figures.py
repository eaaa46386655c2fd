"""The figure: what is drawn and how it is marked."""

import pytest
from matplotlib.figure import Figure
from report_factory import grid, record, seeded, task

from dpsweep.report import figures
from dpsweep.report.load import METRICS, join

ACCURACY = METRICS["accuracy"]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw records, keeping the figure."""
    kept = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (kept.append(self), save(self, *a, **k)))

    def draw(records):
        figures.by_epsilon(join([], records), "accuracy", ACCURACY, tmp_path)
        return kept[-1]

    return draw


def markers(figure):
    return [line for axis in figure.axes for line in axis.lines if line.get_marker() in figures._MARKERS]


def bars(figure):
    """The error bars' vertical extents."""
    return [segment[:, 1] for axis in figure.axes for lines in axis.collections for segment in lines.get_segments()]


def test_one_panel_a_dataset_with_equal_steps(drawn):
    tasks = grid(datasets=("a", "b", "c"), budgets=(None, 0.1, 1.0, 8.0))
    figure = drawn([record(t) for t in tasks])
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_title(loc="left") for axis in shown] == ["a", "b", "c"]
    assert [label.get_text() for label in shown[0].get_xticklabels()] == ["0.1", "1", "8", "non-private"]
    first, second, third, apart = shown[0].get_xticks()
    assert second - first == third - second < apart - third
    assert shown[0].get_ylabel() == "Accuracy (%)"


def test_points_stand_at_the_means_in_percent(drawn):
    figure = drawn([record(task(seed=s), v) for s, v in ((1, 0.90), (2, 0.92), (3, 0.94))])
    assert [line.get_ydata()[0] for line in markers(figure)] == [pytest.approx(92.0)]
    assert [tuple(extent) for extent in bars(figure)] == [pytest.approx((90.0, 94.0))]  # one SD either way


def test_open_markers_for_what_is_not_proved(drawn):
    figure = drawn([record(task(model="a")), seeded(task(model="b"))])
    assert [line.get_markerfacecolor() == "white" for line in markers(figure)] == [False, True]
    assert "not proved" in figure.legends[0].get_texts()[-1].get_text()


def test_the_legend_fits_the_figure(drawn):
    figure = drawn([record(task(model=f"a_model_with_a_long_name_{k}")) for k in range(4)])
    renderer = figure.canvas.get_renderer()
    (legend,) = figure.legends
    assert legend.get_window_extent(renderer).x0 >= 0
    assert legend.get_window_extent(renderer).x1 <= figure.bbox.width


def test_models_keep_apart_beyond_the_palette():
    looks = [figures.look(index) for index in range(11)]
    assert len({(look["color"], str(look["linestyle"])) for look in looks}) == 11
    assert len({look["marker"] for look in looks}) == 11


def test_no_file_without_a_value(tmp_path):
    assert figures.by_epsilon(join(grid(), []), "accuracy", ACCURACY, tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_published_crosses_have_the_colour_of_a_series_that_is_not_measured_there(drawn, tmp_path, monkeypatch):
    results = join([], [record(task(model="a", epsilon=1.0))])
    budgets = [figures.Budget(1.0, True), figures.Budget(2.0, True)]
    cells = {("a", "digits", budgets[0]): figures.sample(results.runs, ACCURACY)}
    kept = []
    monkeypatch.setattr(figures, "save", lambda figure, *_: kept.append(figure))
    series = [figures.Series("a", "a", figures.look(0))]
    cells |= {("a", "digits", budgets[1]): figures.sample([], ACCURACY)}
    published = {("a", "digits", budget): 80.0 for budget in budgets}
    figures.curves(tmp_path, "f", ACCURACY, "", series, {"digits": "Digits"}, budgets, cells, published)
    crosses = [line.get_color() for line in kept[0].axes[0].lines if line.get_marker() == "x"]
    assert crosses == ["0.15", figures.look(0)["color"]]
