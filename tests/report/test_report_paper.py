"""The DP-RVFL paper's report: what stands where, which tasks a table needs, counts, contrasts, files."""

import csv
import itertools
from collections import Counter

import pytest
from paper_factory import DATASETS, PRIMARY, SPLITS, paper_record, paper_task, paper_tasks
from report_factory import record

from dpsweep.errors import UsageError
from dpsweep.report import contrasts, paper_figures, paper_tables, render, spec
from dpsweep.report.load import METRICS, join, regroup
from dpsweep.report.paper import Evidence, Place, load_paper, published_rows
from dpsweep.report.papers.dp_rvfl import ACCURACY, NAMES, PAPER, STAGES, locate, published

SPEC = {"paper": "dp_rvfl", "metrics": ["accuracy"]}


@pytest.fixture(scope="module")
def two_seeds():
    """The whole paper with two seeds."""
    tasks = paper_tasks(seeds=(42, 43))
    return tasks, [paper_record(made) for made in tasks]


def test_the_stages_have_the_papers_numbers_of_tasks():
    tasks = paper_tasks()
    assert Counter(locate(t["config"]).stage for t in tasks) == dict(zip(STAGES, (1540, 360, 360, 240, 36), strict=True))
    assert len({t["id"] for t in tasks}) == 2536


def test_every_published_number_has_a_task():
    places = {locate(made["config"])._replace(execution=1) for made in paper_tasks()}
    missing = [place for place, _ in published() if place._replace(execution=1) not in places]
    assert missing == [] and len(published()) > 190


def test_numbers_that_are_printed_twice_agree():
    found = {}
    for row in published_rows("dp_rvfl.csv"):
        if row["model"] == "train_majority" or row["table"] in ("T9",):
            continue
        key = tuple(row[name] for name in ("suite_run", "dataset", "model", "epsilon", "metric"))
        number = float(row["mean"])
        assert found.setdefault(key, number) == number


def test_a_task_of_another_protocol_is_no_part_of_the_paper():
    config = paper_task(PRIMARY, "heart", "dp_elm", 2.0, 42, hidden=10)["config"]
    assert locate(config) == Place(PRIMARY, "heart", "", "DPELM-L10", 2.0)
    assert locate(config | {"mechanism": {"name": "laplace_elm", "release": "triangle"}}) is None
    assert locate(config | {"run": "mine"}) is None
    assert locate(config | {"model": {"name": "other"}, "mechanism": {"name": "gaussian"}}) is None
    assert locate(config | {"repeat": 3}).execution == 3


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        ("table3", 7 * 4 * 5), ("table4", 2 * 4 * 5), ("table5", 4 * 4 * 5), ("table6", 7 * 5), ("table7", 2 * 2 * 3 * 5),
        ("table8", 4 * 4 * 5), ("table9", 36), ("figure2", 7 * 4 * 5), ("figure3", 7 * 6 * 4 * 5), ("clipping", 360),
        ("counts", 11 * 6 * 4 * 5), ("statements", 2536), ("table1,table2,table10", 20),
    ],
)  # fmt: skip
def test_a_table_needs_its_own_tasks_alone(name, tasks):
    items = PAPER.choose(name)
    assert sum(any(item.covers(locate(made["config"])) for item in items) for made in paper_tasks()) == tasks


def test_unknown_papers_and_tables_are_refused():
    with pytest.raises(UsageError, match="dp_rvfl"):
        load_paper("dp_rvlf")
    with pytest.raises(UsageError, match="table3"):
        PAPER.choose("table3,table33")
    with pytest.raises(UsageError, match="Choose from"):
        spec.check({"paper": ["dp_rvfl"]})


def test_the_family_has_960_contrasts(tmp_path):
    tasks = [made for made in paper_tasks(seeds=(42, 43)) if made["run"] == PRIMARY]
    results = join(tasks, [paper_record(made) for made in tasks])
    private = regroup([run for run in results.runs if run.budget.private])
    metrics = {name: METRICS[name] for name in PAPER.compare[3]}
    tested = contrasts.compute(private, metrics, *PAPER.compare[1:3])
    assert len(tested.tested) == 4 * 6 * 10 * 4 == 960 and tested.unpaired == 0
    assert Counter((c.metric, c.dataset, c.budget) for c in tested.tested) == dict.fromkeys(
        itertools.product(metrics, DATASETS, private.budgets), 10
    )


def test_counts_are_those_of_the_means():
    above = {"digits": 0.1, "mnist": -0.1, "heart": 0.0}
    tasks = [
        paper_task(PRIMARY, d, m, e, s) for d in ("mnist", "heart") for m in ("rvfl", "cnn") for e in (1.0, 2.0) for s in (42, 43)
    ]
    records = [paper_record(t, test_accuracy=0.5 + (above[t["dataset"]] if t["model"] == "rvfl" else 0)) for t in tasks]
    evidence = Evidence(PAPER, join(tasks, records[:-1]).runs)  # the last condition lacks a seed of one model
    table = paper_tables.counts(evidence, "counts", PRIMARY, "RVFL", ["CNN"], ACCURACY, {("CNN", "above", 1): "16"})
    assert table.rows == [["CNN", "16", "0", "—", "1", "—", "2", "3 of 4"]]


def test_retained_utility_is_the_ratio_of_means():
    tasks = [paper_task(PRIMARY, "mnist", "rvfl", e, s) for e in (None, 2.0) for s in (42, 43)]
    records = [paper_record(t, test_accuracy=v) for t, v in zip(tasks, (0.7, 0.9, 0.5, 0.7), strict=True)]
    evidence = Evidence(PAPER, join(tasks, records).runs)
    assert paper_tables.retained(evidence, "r", PRIMARY, ["RVFL", "CNN"], ACCURACY, "eq. 26").rows == [
        ["MNIST", "RVFL", "75.0"], ["MNIST", "CNN", "—"],
    ]  # fmt: skip


def test_clipping_is_averaged_over_seeds(two_seeds):
    tasks, records = two_seeds
    evidence = Evidence(PAPER, join(tasks, records).runs)
    (table,) = next(item for item in PAPER.items if item.name == "clipping").tables(evidence)
    assert len(table.rows) == 4 * 6 * 3
    assert table.rows[0] == [
        "MNIST",
        "Dense",
        "non-private",
        "2 of 2",
        "99.92",
        "99.00",
        "99.00",
        "3.000",
        "3.000",
        "1.200",
        "1.200",
    ]


def test_the_whole_report(tmp_path, two_seeds):
    tasks, records = two_seeds
    report = render.build("dp_rvfl", "About.", tasks, records, [], SPEC, tmp_path)
    assert report.complete and "960 contrasts" in report.text and "Table 3." in report.text
    page = report.index.read_text()
    names = [item.name for item in PAPER.items]
    for name in [*names, "contrasts"]:
        for suffix in ("csv", "md", "tex"):
            assert (tmp_path / f"{name}.{suffix}").stat().st_size > 50, name
        assert f'id="{name}"' in page
    for name in ("figure2", "figure3", "figure4"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") and (tmp_path / f"{name}.svg").exists()
    with (tmp_path / "table3.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["Private model"] for row in rows][-1] == "train majority"
    assert [rows[-1][f"{d} measured"] for d in ("MNIST", "CIFAR-10", "Cardio", "Heart")] == ["11.35", "10.00", "50.30", "41.30"]
    for number in (1, 2):
        text = (tmp_path / f"table{number}.csv").read_text()
        assert text.count("same") == 4 * (4 if number == 1 else 5) and "differs" not in text
    assert len((tmp_path / "contrasts.csv").read_text().splitlines()) == 961


def test_one_table_alone(tmp_path, two_seeds):
    tasks, records = two_seeds
    few = [made for made in tasks if any(item.covers(locate(made["config"])) for item in PAPER.choose("table8,figure4"))]
    missing = {made["id"] for made in few if made["run"] == SPLITS and made["seed"] == 42}
    report = render.build_parts("table8,figure4", few, [r for r in records if r["id"] not in missing], SPEC, tmp_path)
    assert not report.complete and "16 missing" in report.text and "Table 8." in report.text and "figure4.png" in report.text
    assert {path.stem for path in tmp_path.iterdir()} == {"table8", "figure4"}
    assert max(map(len, report.text.replace(str(tmp_path), "").splitlines())) <= 100


def test_no_task_of_the_paper_gives_a_plain_report(tmp_path):
    made = paper_task("mine", "mnist", "rvfl", 2.0, 42)
    report = render.build("mine", "", [made], [record(made, config=made["config"])], [], SPEC, tmp_path)
    assert report.index.exists()


def test_three_executions_are_drawn_and_tested_apart(tmp_path):
    tasks = [
        paper_task(PRIMARY, "heart", m, e, s, r)
        for m in ("rvfl", "cnn")
        for e in (None, 2.0)
        for s in (42, 43)
        for r in (1, 2, 3)
    ]
    report = render.build("three", "", tasks, [paper_record(made) for made in tasks], [], SPEC, tmp_path)
    assert all(
        (tmp_path / f"figure2_repeat{k}.png").exists() and (tmp_path / f"contrasts_repeat{k}.csv").exists() for k in (1, 2, 3)
    )
    assert report.text.replace("\n", " ").count("4 contrasts by model against rvfl") == 3
    with (tmp_path / "table10.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert all("±" in row[f"Suite {k} {part}"] for k in (1, 2, 3) for part in ("published", "measured"))


def test_the_metrics_of_the_paper_read_records():
    made = paper_record(paper_task(PRIMARY, "cifar10", "rvfl", 2.0, 42), seconds_setup=0.5, seconds_train_with_features=1.0)
    shown = {name: metric.show(metric.of(made)) for name, metric in NAMES.items() if name != "clipped_pct"}
    assert shown["setup_plus_train_seconds"] == "1.50" and shown["macs_millions"] == "3.363" and shown["mib"] == "12.829"
    assert NAMES["clipped_pct"].of(made) is None


@pytest.mark.parametrize(
    ("compare", "said"),
    [
        ({"by": "model", "reference": "cnn"}, "rvfl, dense"), ({"by": "modell", "reference": "rvfl"}, "no label"),
        ({"by": "hidden", "reference": "7"}, "200"), ({"by": "mechanism", "reference": "hero"}, "gaussian"),
    ],
)  # fmt: skip
def test_a_comparison_with_what_no_task_has_is_refused_before_anything_runs(compare, said):
    tasks = [paper_task(PRIMARY, "mnist", model, 2.0, 42) for model in ("rvfl", "dense")]
    with pytest.raises(UsageError, match=said):
        spec.check_compare({"compare": compare}, tasks)


def test_a_comparison_that_can_be_made_passes():
    tasks = [paper_task(PRIMARY, "mnist", model, e, 42) for model in ("rvfl", "dense") for e in (None, 2.0)]
    for by, reference in (("model", "rvfl"), ("mechanism", "none"), ("hidden", "200"), ("model.hidden", 200)):
        spec.check_compare({"compare": {"by": by, "reference": reference}}, tasks)


def test_bars_tell_runs_that_shared_the_machine_from_no_run(tmp_path, monkeypatch):
    made = [paper_task(PRIMARY, "heart", model, 2.0, s) for model in ("dense", "rvfl", "logistic_raw") for s in (42, 43)]
    records = [paper_record(t, alone=t["model"] != "rvfl") for t in made[:-2]]
    kept = []
    monkeypatch.setattr(paper_figures.figures, "save", lambda figure, *_: kept.append(figure))
    evidence = Evidence(PAPER, join(made, records).runs)
    models = ("Dense", "RVFL", "LogisticRaw")
    paper_figures.bars(evidence, tmp_path, "f", PRIMARY, models, 2.0, "train_seconds_8_threads", "")
    (axis,) = (axis for axis in kept[0].axes if axis.get_visible())
    said = {round(text.get_position()[1]): text.get_text().strip() for text in axis.texts}
    assert said[1] == "no run alone" and said[2] == "no run"
    assert sorted(axis.get_ylim()) == [-0.6, 2.6]  # all rows lie inside
