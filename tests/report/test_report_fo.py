"""The FO-DP-SGD paper's report: names of methods, places, what a table needs, the fair table, the grid, times, noise."""

import csv
import re
import statistics
from collections import Counter, defaultdict

import pytest
from fo_factory import fo_record, fo_tasks

from dpsweep.report import fo_methods, render
from dpsweep.report.fo_methods import FAIR, FIXED, FO, RUNTIME, SGD, SIGMA, TUNING, locate, method, parts
from dpsweep.report.load import Budget, join
from dpsweep.report.paper import Evidence, Place, load_paper
from dpsweep.report.papers.fo_dp_sgd import PAPER, published

SPEC = {"paper": "fo_dp_sgd", "metrics": ["accuracy"]}


def config(mechanism, optimizer="sgd", **keys):
    return {"mechanism": {"name": mechanism, **keys}, "optimizer": {"name": optimizer, "lr": 0.8} if optimizer else None}


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (config("gaussian"), SGD),
        (config("gaussian", "adam"), "DP-Adam"),
        (config("gaussian", "adamw"), "DP-AdamW"),
        (config("gaussian") | {"optimizer": {"name": "sgd", "momentum": 0.1}}, "DP-SGD momentum 0.1"),
        (config("fractional", beta=0.9, alpha=0.8, depth=8, design="fractional"), FO),
        (config("fractional", beta=0.65, depth=8), "FO-DP-SGD β=0.65"),
        (config("fractional", depth=32, alpha=0.2), "FO-DP-SGD α=0.2 K=32"),
        (config("fractional", design="uniform"), "uniform memory"),
        (config("post_memory", history="outputs"), "Post-FM"),
        (config("post_memory", history="raw", tau=0.0), "Post-FM raw τ=0"),
        (config("dp_sam", batch="independent"), "DP-SAM"),
        (config("dp_sam", batch="shared"), "DP-SAM shared"),
        (config("dp_sat"), "DP-SAT"),
        (config("dp_adam_bc", None), "DP-AdamBC"),
        (config("dp_adam_ac", "adamw"), "DP-Adam-AC"),
        (config("dp_adam_ac", "sgd"), None),
        (config("scheduled", "adamw"), "DP-AdamW scheduled"),
        (config("scheduled", "sgd"), None),
        (config("laplace_elm", None), None),
    ],
)
def test_methods_have_the_papers_names(made, name):
    assert method(made) == name


@pytest.mark.parametrize(
    ("suite", "stages"),
    [
        ("fo_dp_sgd", {FIXED: 615, RUNTIME: 30}),
        ("fo_fair", {FAIR: 312, TUNING: 330}),
        ("fo_smoke", {FIXED: 44, FAIR: 8, TUNING: 8, RUNTIME: 2}),
    ],
)
def test_every_task_has_a_place_of_its_own(suite, stages):
    tasks = fo_tasks(f"suite={suite}")
    places = [(locate(made["config"]), made["seed"]) for made in tasks]
    assert Counter(place.stage for place, _ in places) == stages
    assert len(set(places)) == len(tasks)


def test_every_published_number_has_a_task():
    places = {locate(made["config"]) for made in fo_tasks("suite=fo_dp_sgd")}
    printed = defaultdict(set)
    for (place, metric), number in published().items():
        printed[place.model, metric].add(place in places)
        assert number.n == 5
    assert all(True in found for found in printed.values()) and len(printed) == 6 + 4
    number = published()[Place(FIXED, "cifar10", fo_methods.variant(0.8), FO, None), "accuracy"]
    assert (float(number.mean), float(number.sd)) == (36.54, 0.75)


@pytest.mark.parametrize(
    ("table", "tasks"),
    [
        ("table1", 30), ("table2", 30), ("table3", None), ("figure1", None), ("figure2", 75), ("figure3", 25), ("figure4", 20),
        ("figure5", 40), ("figure6", 40), ("figure7", 280), ("figure8", 20), ("alpha", 15),
    ],
)  # fmt: skip
def test_a_table_needs_the_tasks_of_its_suite(table, tasks):
    (item,) = PAPER.choose(table)
    found = {made["id"] for made in fo_tasks("suite=fo_dp_sgd") if item.covers(locate(made["config"]))}
    if tasks is None:
        everything = fo_tasks("suite=fo_accuracy")
        assert found == {made["id"] for made in everything if table == "figure1" or made["dataset"] == "cifar10"}
    else:
        assert len(found) == tasks


def test_another_model_is_no_part_of_the_paper():
    made = fo_tasks("suite=fo_alpha")[0]["config"]
    assert locate(made).stage == FIXED
    assert locate(made | {"model": {"name": "cnn"}}) is None
    assert locate(made | {"run": "mine"}).stage == "mine"
    assert locate({key: value for key, value in made.items() if key != "noise_multiplier"}) is None


def rows(path):
    return list(csv.DictReader(path.open()))


def test_the_paper_at_fixed_noise(tmp_path):
    tasks = [made for made in fo_tasks("suite=fo_dp_sgd") if made["dataset"] != "svhn" and made["seed"] < 44]
    records = [fo_record(made) for made in tasks if made["seed"] != 43 or made["mechanism"] != "gaussian"]
    report = render.build("fo", "", tasks, records, [], SPEC, tmp_path)
    assert not report.complete and "Table 3" in report.text
    page = report.index.read_text()
    assert "no target" not in page and "σ=1.1" in page and "non-private" not in page
    stems = {path.stem for path in tmp_path.glob("*.png")}
    expected = {f"figure{n}" for n in (1, 2, 3, 4, 5, 6, 8)} | {"alpha", "figure1_tuned", "figure7_sigma1.5", "figure7_sigma2"}
    assert stems == expected
    (told,) = [row for row in rows(tmp_path / "table3.csv") if row["Method"] == FO and row["lr"] == "0.8"]
    values = [r["test_accuracy"] for r in records if _stands(r, FO, 0.8)]
    assert told["Published"] == "36.54 ± 0.75" and len(values) == 2
    assert told["Measured"] == f"{100 * statistics.fmean(values):.2f} ± {100 * statistics.stdev(values):.2f}"
    (told,) = [row for row in rows(tmp_path / "table3_intervals.csv") if row["Method"] == FO and row["lr"] == "0.8"]
    assert told["Published"] == "35.60 to 37.48"
    # every method is a row of its own in the tables of all metrics too
    methods = {row["Method"] for row in rows(tmp_path / "accuracy.csv")}
    assert {FO, SGD, "DP-Adam", "uniform memory", "Post-FM raw"} <= methods


def _stands(record, name, rate):
    place = locate(record["config"])
    told = parts(place)
    return (place.stage, place.dataset, place.model, told["lr"], told["σ"]) == (FIXED, "cifar10", name, rate, 1.1)


def test_times_come_from_runs_alone_and_ratios_are_of_their_means(tmp_path):
    tasks = fo_tasks("suite=fo_runtime")
    seconds = {"gaussian": 10.0, "fractional": 10.5, "dp_sam": 21.0}
    records = [fo_record(made, seconds_train=seconds.get(made["mechanism"], 12.0)) for made in tasks]
    for record in records:
        record["alone"] = record["mechanism"] != "dp_sat"
    render.build_parts("table1,table2", tasks, records, SPEC, tmp_path)
    ratios = {row["Method"]: (row["Published"], row["Measured"]) for row in rows(tmp_path / "table2.csv")}
    adam = ratios.pop("DP-Adam")
    assert adam[0] == "1.29" and ratios[SGD] == ("1.0", "1.00")
    assert ratios[FO] == ("1.02", "1.05") and ratios["DP-SAM"] == ("1.57", "2.10") and ratios["DP-SAT"] == ("1.5", "—")
    measured = {row["Method"]: row["Measured"] for row in rows(tmp_path / "table1.csv")}
    assert measured[FO].startswith("10.5 ± 0.0") and measured["DP-SAT"].startswith("—")


@pytest.fixture(scope="module")
def fair(tmp_path_factory):
    tasks = fo_tasks("suite=fo_fair")
    folder = tmp_path_factory.mktemp("fair")
    records = [fo_record(made, epochs=5, selection="by a grid" if made["seed"] < 900 else None) for made in tasks]
    return tasks, folder, render.build("fair", "", tasks, records, [], SPEC, folder)


def test_every_method_is_tested_against_dp_sgd_at_the_same_epsilon(fair):
    _, folder, report = fair
    text = " ".join(report.text.split())
    assert report.complete and "24 contrasts by method against DP-SGD" in text and "so that 0.05 can be reached" in text
    tested = rows(folder / "contrasts.csv")
    assert Counter(row["Budget"] for row in tested) == {"ε=2": 12, "ε=8": 12} and {row["Pairs"] for row in tested} == {"12"}
    assert {row["Against"].split(",")[0] for row in tested} == {SGD}
    table = rows(folder / "fair.csv")
    assert len(table) == 13 and all(row["lr ε=2"] != "—" and "±" in row["accuracy ε=8"] for row in table)
    assert {"fair_eps2", "fair_eps8"} <= {path.stem for path in folder.glob("*.png")}


def test_the_page_says_how_rates_were_chosen_and_prints_the_whole_grid(fair):
    _, folder, report = fair
    page = report.index.read_text()
    assert "by a grid <small>(312 runs)" in page and "runs of a grid are not counted in it" in page
    for name, methods in (("tuning_eps2", 13), ("tuning_eps8", 13), ("tuning_paper", 10)):
        table = rows(folder / f"{name}.csv")
        assert len(table) == methods and all(row["Best"] != "—" for row in table)


def test_a_grid_that_is_not_whole_chooses_nothing(tmp_path):
    tasks = [made for made in fo_tasks("suite=fo_fair") if locate(made["config"])[0] == TUNING and made["target_epsilon"] == 2]
    records = [fo_record(made, epochs=3) for made in tasks if made["id"] != tasks[0]["id"]]
    render.build_parts("tuning", tasks, records, SPEC, tmp_path)
    table = {row["Method"]: row for row in rows(tmp_path / "tuning_eps2.csv")}
    assert table[SGD]["Best"] == "—" and table["DP-SAT"]["Best"] == "0.8 (edge)"


def test_a_rate_of_the_grid_says_how_it_was_chosen():
    grid = defaultdict(set)
    for made in fo_tasks("suite=fo_fair"):
        place = locate(made["config"])
        if place.stage == TUNING:
            grid[place.model].add(parts(place)["lr"])
    for made in [made for name in ("fair", "accuracy", "clipping", "runtime") for made in fo_tasks(f"suite=fo_{name}")]:
        place, optimizer = locate(made["config"]), made["config"].get("optimizer") or made["config"]["mechanism"]
        if place.stage != TUNING:
            assert optimizer["lr"] in grid[place.model]
        if place.stage == FAIR or (place.stage in (FIXED, RUNTIME) and optimizer["lr"] != 0.8):
            tuned = place.stage == FAIR or (place.stage == FIXED and parts(place)["σ"] == SIGMA)
            words = "best mean accuracy on the tuning part.* fo_tuning" if tuned else "fo_tuning; not tuned"
            assert re.search(words, made["selection"])


def test_noise_is_a_column_for_missing_tasks_too():
    tasks = fo_tasks("suite=fo_alpha")
    results = join(tasks, [fo_record(tasks[0])], method)
    assert results.budgets == [Budget(None, True, 1.1)] and results.budgets[0].name == "σ=1.1"
    assert Budget(None, True, 1.1 / 0.9).name == "σ=1.222"
    assert (
        sorted([Budget(None, True, 2.0), Budget(1.0, True), Budget(None, False)], key=lambda b: b.order)[0].name == "non-private"
    )


def test_two_runs_of_one_cell_are_refused_and_two_repeats_stand_apart(tmp_path):
    tasks = fo_tasks("suite=fo_alpha", "repeat=1,2")
    render.build_parts("alpha", tasks, [fo_record(made, epochs=4) for made in tasks], SPEC, tmp_path)
    assert {row["Repeat"] for row in rows(tmp_path / "alpha.csv")} == {"1", "2"}
    assert {path.stem for path in tmp_path.glob("*.png")} == {"alpha_repeat1", "alpha_repeat2"}
    evidence = Evidence(load_paper("fo_dp_sgd"), join(tasks, [], PAPER.method).runs)
    assert evidence.executions == [1, 2]
