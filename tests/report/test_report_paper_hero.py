"""DP-Hero's report and the grand leaderboard: what stands beside what, and that a claim is never printed as a proof."""

import pytest
from report_factory import record

from dpsweep.config import Composer
from dpsweep.report.load import join, regroup
from dpsweep.report.paper import Evidence
from dpsweep.report.papers import dp_hero, grand
from dpsweep.tasks import enumerate_tasks

COMPOSER = Composer()


def tasks(*words):
    return enumerate_tasks(list(words), COMPOSER).tasks


@pytest.mark.parametrize(("name", "count", "seeds"), [
    ("hero_mnist", 1120, 10), ("hero_fashionmnist", 1120, 10), ("hero_cifar10", 1120, 10), ("hero_variants", 296, 5),
    ("hero_convergence", 120, 5), ("hero_smoke", 56, 2), ("hero", 3720, 10), ("grand", 1440, 5)])  # fmt: skip
def test_every_task_of_a_suite_has_a_cell_of_its_own(name, count, seeds):
    paper = grand if name == "grand" else dp_hero
    found = tasks(f"suite={name}")
    places = [paper.locate(task.config) for task in found]
    assert None not in places and len(found) == count
    assert len({(place, task.config["seed"]) for place, task in zip(places, found, strict=True)}) == count
    assert len({task.config["seed"] for task in found}) == seeds


def test_hero_variants_has_every_combination_and_only_the_bounded_ones_claim_no_more_than_they_prove():
    mechanisms = [task.config["mechanism"] for task in tasks("suite=hero_variants", "model=dense")]
    found = {tuple(m.get(key) for key in ("name", "direction", "ridge", "clip", "normalise")) for m in mechanisms}
    wanted = {
        ("hero" if clip == "mahalanobis" or normalise == "min" else "hero_claimed", direction, ridge, clip, normalise)
        for direction in ("inverse", "aligned") for ridge in (1.0, 0.1, 10.0) for clip in ("l2", "mahalanobis")
        for normalise in ("min", "trace", "max")
    }  # fmt: skip
    assert found == wanted | {("gaussian", None, None, None, None)}


def test_every_method_of_the_grand_comparison_is_proved_or_not_private():
    for task in tasks("suite=grand"):
        assert task.labels["claim_only"] is None
        assert task.labels["mechanism"] == "none" or task.config["epsilon"] in (1.0, 8.0)
    schedules = {(t.config["dataset"]["name"], t.config["batch_size"], t.config["epochs"])
                 for t in tasks("suite=grand") if t.config["model"]["name"] != "dp_elm"}  # fmt: skip
    assert len(schedules) == 4  # one a dataset


def evidence_of(paper, found, value, **changes):
    made = []
    for task in found:
        one = {"id": task.id, **task.labels}
        claimed = {"epsilon": None, "guarantee_reason": "nothing bounds it", "epsilon_realised": 6.5, "s_min_least": 0.4,
                   "s_min_mean": 0.6} if one["claim_only"] else {}  # fmt: skip
        made.append((one, record(one, value(task.config), **{"config": task.config, **claimed, **changes})))
    return Evidence(paper.PAPER, join([t for t, _ in made], [r for _, r in made], paper.PAPER.method).runs)


def hero_value(config):
    gain = {"hero": 0.01, "hero_claimed": 0.02}.get(config["mechanism"]["name"], 0.0)
    return 0.9 + gain + config["seed"] / 1e5


@pytest.fixture(scope="module")
def hero():
    return evidence_of(dp_hero, tasks("suite=hero_smoke"), hero_value)


def test_claimed_proved_and_realised_stand_side_by_side(hero):
    (table,) = dp_hero.accuracy(hero)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert len(rows) == 2 * 2 * 6
    for row in rows:
        if row["Method"].startswith(dp_hero.CLAIMED):
            assert row["Proved ε"] == "—" and row["ε"].startswith("claimed ") and row["Realised ε"] == "6.500"
            assert row["Accuracy"].endswith("†") and row["minus DP-SGD"].startswith("+2.00")
            assert row["s_min least / mean"] == "0.4 / 0.6"
        else:
            assert row["Proved ε"] != "—" and row["Realised ε"] == "—" and not row["ε"].startswith("claimed")
    assert [row["Method"] for row in rows][:2] == ["DP-SGD", "Hero inverse min"]


def test_only_proved_methods_are_tested_against_dp_sgd(hero):
    from dpsweep.report import contrasts
    from dpsweep.report.load import metrics_of

    stage = [run for place, runs in hero.cells.items() if place.stage == dp_hero.BUDGET for run in runs]
    shown = regroup([run for run in stage if run.budget.private])
    tested = contrasts.compute(shown, metrics_of(["accuracy"]), "method", dp_hero.SGD).tested
    names = {item.row[shown.columns.index("method")] for item in tested}
    assert names == {"Hero inverse min", "Hero aligned min", "Hero aligned mahalanobis trace"}
    assert len(tested) == 3 * 2 * 2  # methods, models, budgets
    assert all(sum(item.differences) / len(item.differences) == pytest.approx(0.01) for item in tested)


def test_the_claims_stand_beside_the_best_of_each_kind(hero):
    (table,) = dp_hero.statements(hero)
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert row["Published"] == "95% to 98%"
    assert row["Largest at a proved ε"].startswith("90.04 to 91.04 by Hero ") and "ε=" in row["Largest at a proved ε"]
    assert row["Largest at a claimed ε"].startswith("90.04 to 92.04 by Hero, claimed:")
    assert "claimed ε=" in row["Largest at a claimed ε"] and "claimed ε=" not in row["Largest at a proved ε"]


def test_convergence_counts_what_diverged(hero):
    (table,) = dp_hero.convergence(hero)
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    assert {row["σ"] for row in rows} == {"0.5", "4"} and {row["Diverged"] for row in rows} == {"0"}
    broken = evidence_of(dp_hero, tasks("suite=hero_smoke", "mechanism=gaussian"), hero_value, diverged=True)
    (table,) = dp_hero.convergence(broken)
    assert {row[table.header.index("Diverged")] for row in table.rows} == {"1"}


def grand_value(config):
    better = {"fractional": 0.03, "hero": 0.01}.get(config["mechanism"]["name"], 0.0)
    return 0.5 + better + (0.02 if (config.get("optimizer") or {}).get("name") == "sgd" else 0) + config["seed"] / 1e5


@pytest.fixture(scope="module")
def leaders():
    return evidence_of(
        grand, tasks("suite=grand", "dataset=heart,digits"), grand_value, alone=True, seconds_train_with_features=2.0
    )


def test_the_leaderboard_ranks_by_data_and_model(leaders):
    (table,) = grand.leaderboard(leaders)
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert list(rows)[:2] == ["FO-DP-SGD", "DP-SGD, SGD"]
    assert rows["FO-DP-SGD"]["rank ε=1"] == "1.00" and rows["DP-SGD, SGD"]["rank ε=8"] == "2.00"
    tied = [rows[name]["rank ε=1"] for name in ("DP-SGD, Adam", "Post-FM", "DP-SAT", "DP-AdamBC")]
    assert tied == ["6.50"] * 4  # 5 to 8
    assert rows["DP-ELM, L=3"]["rank ε=1"] == "—"
    assert "8 of 8" in table.caption and "0.0625" in table.caption  # two datasets of four models; 2/2^5
    assert rows["DP-SGD, Adam"]["cost"] == "1.00" and rows["FO-DP-SGD"]["ε covers"] == "record, add/remove, δ=1e-05"


def test_what_is_unfinished_is_not_ranked(leaders):
    found = tasks("suite=grand", "dataset=heart", "model=rvfl,dense")
    kept = [task for task in found if not (task.config["mechanism"]["name"] == "dp_sat" and task.config["model"]["name"] == "rvfl"
                                           and task.config["seed"] == 42)]  # fmt: skip
    made = [{"id": task.id, **task.labels} for task in found]
    records = [record({"id": task.id, **task.labels}, grand_value(task.config), config=task.config) for task in kept]
    some = Evidence(grand.PAPER, join(made, records, grand.method).runs)
    (table,) = grand.leaderboard(some)
    assert "1 of 2" in table.caption
    row = next(row for row in table.rows if row[0] == "DP-SAT")
    assert "(2 of 2)" not in row[2] and row[1] == "6.50"


def test_what_is_not_proved_stands_apart_and_changes_no_rank():
    found = tasks("suite=grand", "dataset=heart", "model=rvfl")
    keys = ["dataset=heart", "model=rvfl", "mechanism=hero_claimed", "epsilon=1"]
    claimed = [task for seed in range(42, 47) for task in tasks(*keys, f"seed={seed}")]
    both = evidence_of(grand, [*found, *claimed], grand_value)
    (alone,) = grand.leaderboard(evidence_of(grand, found, grand_value))
    ranked, apart = grand.leaderboard(both)
    assert ranked.rows == alone.rows and "ε=1: 1 of 1" in ranked.caption
    (row,) = apart.rows
    assert row[0] == "Hero, claimed: inverse trace" and row[-1] == "nothing proved"
    assert apart.header[1] == "target ε=1, not proved"
    shown, other = grand.accuracy(both)
    assert not any(row[2].startswith("Hero, claimed") for row in shown.rows) and len(other.rows) == 1
    assert other.rows[0][3].endswith("†") and other.notes


def test_every_cell_of_the_grand_comparison_is_shown(leaders):
    (table,) = grand.accuracy(leaders)
    methods = {row[2] for row in table.rows}
    assert methods >= {"DP-SGD, Adam", "Hero inverse min", "Hero aligned mahalanobis trace", "non-private", "DP-ELM, L=10"}
    plain = [row for row in table.rows if row[2] == "non-private"]
    assert len(plain) == 2 * 4 and all(row[-1] != "—" and not row[3] for row in plain)
