"""DP-Hero's report and the grand leaderboard: what stands beside what, and that a claim is never printed as a proof."""

import pytest
from report_factory import record

from dpsweep.config import Composer
from dpsweep.report import stats
from dpsweep.report.load import join, regroup
from dpsweep.report.paper import Evidence
from dpsweep.report.papers import dp_hero, grand
from dpsweep.report.render import build
from dpsweep.tasks import enumerate_tasks

COMPOSER = Composer()


def tasks(*words):
    return enumerate_tasks(list(words), COMPOSER).tasks


@pytest.mark.parametrize(("name", "count", "seeds"), [
    ("hero_mnist", 1120, 10), ("hero_fashionmnist", 1120, 10), ("hero_cifar10", 1120, 10), ("hero_variants", 296, 5),
    ("hero_convergence", 120, 5), ("hero_smoke", 56, 2), ("hero", 3720, 10), ("grand", 1360, 5),
    ("grand_smoke", 140, 2)])  # fmt: skip
def test_every_task_of_a_suite_has_a_cell_of_its_own(name, count, seeds):
    paper = grand if name.startswith("grand") else dp_hero
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


@pytest.mark.parametrize("suite", ["grand", "grand_smoke", "hero", "hero_smoke"])
def test_hero_runs_where_it_has_something_to_shape(suite):
    """A frozen representation with a head for two classes has one trained row."""
    found = {(t.values["dataset"]["classes"] == 2, t.values["model"].get("frozen", False))
             for t in tasks(f"suite={suite}") if t.config["mechanism"]["name"] in ("hero", "hero_claimed")}  # fmt: skip
    assert (True, True) not in found and (False, False) in found


def test_two_runs_that_differ_by_refresh_alone_have_two_names():
    keys = ["dataset=digits", "model=dense", "epsilon=2", "mechanism=hero"]
    found = [task for refresh in (1, 10) for task in tasks(*keys, f"mechanism.refresh={refresh}")]
    evidence = evidence_of(dp_hero, found, hero_value)
    assert {place.model for place in evidence.cells} == {"Hero inverse min refresh 1", "Hero inverse min"}
    (table,) = dp_hero.accuracy(evidence)
    assert "every 10 steps where a name tells no other refresh" in table.caption
    assert "Mahalanobis rows plays no part in their proof" in table.caption


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


def grand_of(*words, without=lambda config: False, **changes):
    """The evidence of `suite=grand` where some tasks have no record yet."""
    found = tasks("suite=grand", *words)
    made = [{"id": task.id, **task.labels} for task in found]
    done = [record(one, grand_value(task.config), **{"config": task.config, "alone": True, "seconds_train_with_features": 2.0},
                   **changes) for one, task in zip(made, found, strict=True) if not without(task.config)]  # fmt: skip
    return Evidence(grand.PAPER, join(made, done, grand.method).runs)


def lines(table):
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}


HERO = ("Hero inverse min", "Hero aligned mahalanobis trace")


@pytest.fixture(scope="module")
def leaders():
    return grand_of("dataset=heart,digits")


def test_the_leaderboard_ranks_by_data_and_model(leaders):
    table, second, own = grand.leaderboard(leaders)
    rows = lines(table)
    assert list(rows)[:2] == ["FO-DP-SGD", "DP-SGD, SGD"] and list(rows)[-1] == "non-private"
    assert rows["FO-DP-SGD"]["rank ε=1"] == "1.00" and rows["DP-SGD, SGD"]["rank ε=8"] == "2.00"
    tied = [rows[name]["rank ε=1"] for name in ("DP-SGD, Adam", "Post-FM", "DP-SAT", "DP-AdamBC")]
    assert tied == ["6.50"] * 4 and [rows[name]["rank ε=8"] for name in HERO] == ["3.50"] * 2  # 5 to 8; 3 and 4
    assert "ε=1: 6 of 6 pairs, 5 seeds" in table.caption and "0.0625" in table.caption  # digits: four models, heart: two; 2/2^5
    assert rows["DP-SGD, Adam"]["cost"] == "1.00" and rows["FO-DP-SGD"]["ε covers"] == "record, add/remove, δ=1e-05"
    assert second.name == "leaderboard_2" and not set(HERO) & set(lines(second))
    assert f"pairs of data and model that {' and '.join(HERO)} do not run on (ε=1: 2 of 2 pairs, 5 seeds;" in second.caption
    assert lines(second)["Post-FM"]["rank ε=1"] == "4.50"  # 3 to 6
    assert list(lines(own)) == ["DP-ELM, L=3", "DP-ELM, L=10"] and "Neither ranked nor tested" in own.caption


def test_no_privacy_is_a_reference_without_rank(leaders):
    row = lines(grand.leaderboard(leaders)[0])["non-private"]
    assert row["rank ε=1"] == row["rank ε=8"] == "—" and row["ε covers"] == "nothing"
    assert row["accuracy ε=1"] == "50.04" and row["minus DP-SGD, Adam ε=1"] == "+0.00 (+0.00 to +0.00)"


def test_gains_are_paired_and_have_an_interval_over_seeds():
    def value(config):
        wild = {42: 0.00, 43: 0.02}.get(config["seed"], 0.01)  # mean .01, sd .0071
        return 0.5 + config["seed"] / 1e5 + (wild if config["mechanism"]["name"] == "fractional" else 0)

    rows = lines(grand.leaderboard(evidence_of(grand, tasks("suite=grand", "dataset=heart", "model=dense,cnn"), value))[0])
    low, high = stats.t_interval([0.0, 0.02, 0.01, 0.01, 0.01])
    assert rows["FO-DP-SGD"]["minus DP-SGD, Adam ε=1"] == f"+1.00 (+{100 * low:.2f} to +{100 * high:.2f})"
    assert rows["DP-SGD, Adam"]["minus DP-SGD, Adam ε=1"] == "—"


def test_the_leaderboard_tells_the_learning_rates_and_that_none_was_tuned(leaders):
    caption = grand.leaderboard(leaders)[0].caption
    assert "Learning rates: DP-SGD, SGD 0.1; all others 0.001; none was tuned, so that a rank is a method's at its" in caption
    tuned = grand_of("dataset=heart", "model=dense", selection="lr from 3, seeds 900 and 901")
    assert "chosen from a grid" in grand.leaderboard(tuned)[0].caption


def test_a_partial_run_ranks_over_the_seeds_that_all_methods_of_a_pair_share():
    def without(config):
        name, model, seed = config["mechanism"]["name"], config["model"]["name"], config["seed"]
        return (name == "dp_sat" and model == "dense" and seed == 42) or (name == "post_memory" and model == "cnn")

    table = grand.leaderboard(grand_of("dataset=digits", without=without))[0]
    rows = lines(table)
    assert "ε=1: 3 of 4 pairs, 4–5 seeds" in table.caption  # no seed of the CNN is done by all
    assert all(row["rank ε=1"] != "—" for name, row in rows.items() if name != "non-private")
    # Without seed 42 a mean is higher by .0005 points: all methods stand on the same seeds, so that equal ones are equal.
    equal = {rows[name]["accuracy ε=1"] for name in ("DP-SGD, Adam", "Post-FM", "DP-SAT", "DP-AdamBC", "non-private")}
    assert len(equal) == 1 and rows["DP-SAT"]["minus DP-SGD, Adam ε=1"] == "+0.00 (n/a)"
    assert rows["DP-SAT"]["rank ε=1"] == rows["DP-SGD, Adam"]["rank ε=1"] == "6.50"


def test_a_method_that_has_done_nothing_on_a_pair_keeps_it_from_being_ranked():
    some = grand_of("dataset=heart", "model=rvfl,dense",
                    without=lambda c: c["mechanism"]["name"] == "dp_sat" and c["model"]["name"] == "rvfl")  # fmt: skip
    first, second = grand.leaderboard(some)
    assert "ε=1: 1 of 1 pairs, 5 seeds" in first.caption and "ε=1: 0 of 1 pairs;" in second.caption
    assert {row[1] for row in second.rows} == {row[2] for row in second.rows} == {"—"}
    assert lines(first)["DP-SAT"]["rank ε=1"] == "6.50"


def test_what_is_not_proved_stands_apart_and_changes_no_rank():
    found = tasks("suite=grand", "dataset=heart", "model=rvfl")
    keys = ["dataset=heart", "model=rvfl", "mechanism=hero_claimed", "epsilon=1"]
    claimed = [task for seed in range(42, 47) for task in tasks(*keys, f"seed={seed}")]
    both = evidence_of(grand, [*found, *claimed], grand_value)
    (alone,) = grand.leaderboard(evidence_of(grand, found, grand_value))
    ranked, apart = grand.leaderboard(both)
    assert ranked.rows == alone.rows and "ε=1: 1 of 1" in ranked.caption
    (row,) = apart.rows
    assert row[0] == "Hero, claimed: inverse trace refresh 1" and row[-1] == "nothing proved"
    assert apart.header[1] == "target ε=1, not proved"
    shown, other = grand.accuracy(both)
    assert not any(row[2].startswith("Hero, claimed") for row in shown.rows) and len(other.rows) == 1
    assert other.rows[0][3].endswith("†") and other.notes


def test_several_relations_are_told_in_words(leaders):
    both = grand_of("dataset=digits", "model=dp_elm", adjacency="add_remove and replace_one", delta=0.0)
    (own,) = grand.leaderboard(both)
    assert {row[-1] for row in own.rows} == {"record, add/remove and replace one, pure"}


def test_every_cell_of_the_grand_comparison_is_shown(leaders):
    (table,) = grand.accuracy(leaders)
    methods = {row[2] for row in table.rows}
    assert methods >= {"DP-SGD, Adam", *HERO, "non-private", "DP-ELM, L=10"}
    plain = [row for row in table.rows if row[2] == "non-private"]
    assert len(plain) == 2 * 4 and all(row[-1] != "—" and not row[3] for row in plain)


def test_what_a_partial_run_lacks_is_summed_up_in_one_note():
    some = grand_of("dataset=digits", without=lambda config: config["seed"] in (44, 45, 46))
    (table,) = grand.accuracy(some)
    ((mark, text),) = table.notes
    assert mark == "[1]" and text.startswith("missing: digits-") and len(text) < 300 and text.endswith(" more")
    assert sum(cell.endswith("(n=2 of 5)[1]") for row in table.rows for cell in row) == 4 * 17 + 4


def page(tmp_path, *words):
    found = tasks("suite=grand", *words)
    made = [{"id": task.id, **task.labels} for task in found]
    done = [record(one, grand_value(task.config), config=task.config) for one, task in zip(made, found, strict=True)]
    text = build("grand", "", made, done, (), {"paper": "grand", "metrics": ["accuracy"]}, tmp_path).text
    return (tmp_path / "index.html").read_text(), text, (tmp_path / "contrasts.csv")


@pytest.mark.parametrize("words", [["dataset=heart"], ["dataset=heart", "model=rvfl,dp_elm"], ["dataset=heart", "model=dp_elm"]])
def test_what_has_a_model_of_its_own_is_not_tested_whatever_the_filter(tmp_path, words):
    shown, text, contrasts = page(tmp_path, *words)
    said = "it is neither ranked nor tested. Its means stand in leaderboard_own_model"
    assert said in shown and said in " ".join(text.split()) and "could not be paired" not in shown
    assert not contrasts.exists() or "DP-ELM" not in contrasts.read_text()
    assert "DP-ELM" in (tmp_path / "accuracy_intervals.csv").read_text() or "model=dp_elm" in words
    assert (tmp_path / "leaderboard_own_model.csv").exists() and (tmp_path / "accuracy_by_method.csv").exists()


def test_a_comparison_without_a_paper_has_no_published_numbers(tmp_path):
    shown, _, _ = page(tmp_path, "dataset=heart", "model=rvfl")
    assert ">The comparison</a>" in shown and "The paper" not in shown and "ublished" not in shown
    assert "neither ranked nor tested" not in shown
