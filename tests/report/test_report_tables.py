"""Cells against hand computation, and what a cell says when it is not whole."""

import pytest
from report_factory import failed, grid, record, seeded, task, unproved

from dpsweep.report import tables
from dpsweep.report.load import METRICS, Budget, join

ACCURACY = METRICS["accuracy"]
VALUES = {42: 0.90, 43: 0.92, 44: 0.94}


def cells(records, tasks=None, interval=False, metric="accuracy"):
    """The metric table of `records`: {(row label..., column): text}, and its notes."""
    table = tables.metric_table(join(tasks or [], records), metric, METRICS[metric], interval)
    texts = {(row[0], name): text for row in table.rows for name, text in zip(table.header, row, strict=True)}
    return texts, dict(table.notes)


def three(epsilon=1.0, make=record):
    return [make(task(epsilon=epsilon, seed=seed), value) for seed, value in VALUES.items()]


def test_mean_sd_and_interval_by_hand():
    assert cells(three())[0]["rvfl", "digits ε=1"] == "92.00 ± 2.00"
    # 92 -+ 4.30265 * 2 / sqrt(3)
    assert cells(three(), interval=True)[0]["rvfl", "digits ε=1"] == "87.03 to 96.97"


def test_rows_are_models_and_columns_dataset_by_budget():
    tasks = grid(datasets=("digits", "heart"))
    table = tables.metric_table(join(tasks, [record(t) for t in tasks]), "accuracy", ACCURACY)
    assert table.header == ["Model", "digits non-private", "digits ε=1", "heart non-private", "heart ε=1"]
    assert table.groups == [("digits", 2), ("heart", 2)]
    assert [row[0] for row in table.rows] == ["rvfl", "dense"]


def test_many_columns_become_a_block_a_dataset():
    tasks = grid(datasets=("digits", "heart"), budgets=(None, 0.5, 1.0, 2.0))
    table = tables.metric_table(join(tasks, [record(t) for t in tasks]), "accuracy", ACCURACY)
    assert table.header == ["Dataset", "Model", "non-private", "ε=0.5", "ε=1", "ε=2"]
    assert [row[:2] for row in table.rows] == [[d, m] for d in ("digits", "heart") for m in ("rvfl", "dense")]


@pytest.mark.parametrize(
    ("third", "note"),
    [
        ([], "missing: digits-rvfl-gaussian-1.0-44-None-"),
        ([failed(task(seed=44))], "failed (RuntimeError): digits-rvfl-gaussian-1.0-44-None-"),
        ([record(task(seed=44), None, diverged=True)], "diverged, no value: digits-rvfl-gaussian-1.0-44-None-"),
        ([record(task(seed=44), float("nan"))], "undefined: digits-rvfl-gaussian-1.0-44-None-"),
    ],
)
def test_a_cell_that_is_not_whole_names_the_task(third, note):
    texts, notes = cells([*three()[:2], *third], grid(models=("rvfl",), budgets=(1.0,)))
    assert texts["rvfl", "digits ε=1"] == "91.00 ± 1.41 (n=2 of 3)[1]"
    assert notes == {"[1]": note}


def test_a_diverged_run_with_a_value_counts_and_is_named():
    records = [*three()[:2], record(task(seed=44), 0.1, diverged=True)]
    texts, notes = cells(records)
    assert texts["rvfl", "digits ε=1"] == "64.00 ± 46.78[1]"
    assert notes["[1]"].startswith("diverged, counted: ")


def test_a_cell_without_a_result_is_a_dash():
    texts, notes = cells(three(), grid(models=("rvfl",)))
    assert texts["rvfl", "digits non-private"] == "—"
    assert notes == {}


def test_one_seed_has_no_spread():
    assert cells(three()[:1])[0]["rvfl", "digits ε=1"] == "90.00 ± n/a"
    assert cells(three()[:1], interval=True)[0]["rvfl", "digits ε=1"] == "n/a"
    assert "1 seed" in tables.metric_caption(join([], three()[:1]), ACCURACY)


def test_fewer_seeds_than_elsewhere_are_stated():
    texts, _ = cells([*three(), record(task(model="dense"), 0.5)])
    assert texts["dense", "digits ε=1"] == "50.00 ± n/a (n=1)"


def test_seeded_noise_is_marked_and_never_reads_as_proved():
    texts, notes = cells(three(make=seeded))
    assert texts["rvfl", "digits ε=1"] == "92.00 ± 2.00‡"
    assert notes == {"‡": "seeded noise: no guarantee; with secure noise it would be ε=1.000"}


def test_an_unproved_epsilon_is_marked_with_its_reason():
    records = [unproved(task(seed=seed), "the batch is released", value) for seed, value in VALUES.items()]
    texts, notes = cells(records)
    assert texts["rvfl", "digits ε=1"] == "92.00 ± 2.00†"
    assert notes == {"†": "no proved ε: the batch is released; merely claimed: ε=1"}


def test_more_than_the_target_is_marked():
    texts, notes = cells([record(task(), epsilon=3.1234567)])
    assert texts["rvfl", "digits ε=1"] == "90.00 ± n/a§"
    assert notes == {"§": "proved, and more than the target: ε=3.124"}


def test_times_are_in_seconds():
    texts, _ = cells([record(task(), seconds_train=12.346)], metric="seconds_train")
    assert texts["rvfl", "digits ε=1"] == "12.35 ± n/a"
    shared = record(task(), seconds_train=12.346, alone=False)
    texts, notes = cells([shared], metric="seconds_train")
    cell = tables.sample(join([], [shared]).runs, METRICS["seconds_train"])
    assert cell.marks and not cell.unproved  # a note on the time says nothing of the guarantee
    assert texts["rvfl", "digits ε=1"] == "12.35 ± n/a~" and "do not compare" in notes["~"]
    assert tables.metric_caption(join([], three()), METRICS["seconds_train"]).startswith("Training time (s): ")


def test_median_times_mark_shared_machines():
    tasks = grid(seeds=(1, 2, 3))
    seconds = {1: 1.0, 2: 9.0, 3: 2.0}
    records = [record(t, seconds_train=seconds[t["seed"]], alone=t["model"] == "rvfl") for t in tasks]
    table = tables.times_table(join(tasks, records))
    assert table.rows == [["rvfl", "2", "2"], ["dense", "2~", "2~"]]
    assert table.notes[0][0] == "~"
    assert tables.times_table(join([], three())).notes == []


def test_protocol_lists_the_public_numbers():
    tasks = grid(budgets=(None, 0.5, 1.0))
    table = tables.protocol_table(join(tasks, [record(t) for t in tasks]))
    assert table.header[-2:] == ["σ at ε=0.5", "σ at ε=1"]
    assert table.rows == [["digits", "gaussian", "1257", "1/20", "600", "62", "1", "1e-05", "rdp", "2.0000", "1.1000"]]


def test_protocol_tells_what_is_charged_other_than_t_releases_at_q_and_sigma():
    usual = {"event": "sampled_gaussian", "sample_rate": "1/20", "noise_multiplier": 1.1}
    made = task(mechanism="gaussian", epsilon=1.0)
    words = "gaussian on digits is not charged T releases at q and σ, but 1200 sampled Gaussians at q = 1/20, sigma 1.1."
    for count, told in ((600, ""), (1200, words)):
        caption = tables.protocol_table(join([made], [record(made, events=[[usual, count]])])).caption
        assert caption.endswith(told) and ("not charged" in caption) == bool(told)


def test_several_versions_are_pointed_out():
    records = three()
    records[0]["versions"] = {"torch": "2.7"}
    rows = {row[0]: row[1:] for row in tables.environment_table(join([], records)).rows}
    assert rows["version of torch"] == ["2.6 (2); 2.7 (1)", "differs between records"]
    assert rows["engine"] == ["direct", ""]


def test_data_that_is_not_official_is_pointed_out():
    table = tables.environment_table(join([], [record(task(), data_official=False)]))
    assert ["data of digits", "0f0f0f0f0f0f, NOT the official files", ""] in table.rows


def test_parts_of_one_dataset_are_no_difference():
    records = [record(task(seed=42)), record(task(seed=43), config={"split": "subset"}, data_fingerprint="1f" * 32)]
    rows = {row[0]: row[2] for row in tables.environment_table(join([], records)).rows}
    assert rows["data of digits"] == rows["data of digits, split subset"] == ""


def test_failed_and_missing_tasks_are_listed():
    records = [failed(task(seed=42), "OSError", "disk full"), record(task(seed=43))]
    results = join(grid(models=("rvfl",), budgets=(1.0,)), records)
    assert tables.failed_table(results).rows == [["digits-rvfl-gaussian-1.0-42-None-", "OSError", "disk full"]]
    assert tables.missing_table(results).rows == [["digits", "rvfl", "ε=1", "44", "digits-rvfl-gaussian-1.0-44-None-"]]


def test_cells_in_numbers_are_exact():
    table = tables.cells_table(join([], three()), {"accuracy": ACCURACY})
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert (row["n"], row["budget"]) == ("3", "ε=1")
    assert (float(row["mean"]), float(row["sd"])) == pytest.approx((0.92, 0.02), abs=1e-12)


def test_budgets_are_columns_in_order():
    budgets = join([], [record(task(epsilon=e)) for e in (8.0, None, 0.1)]).budgets
    assert [b.name for b in budgets] == ["non-private", "ε=0.1", "ε=8"]
    assert Budget(1, True) == Budget(1.0, True)
