"""Published beside measured: differences, Welch marks, repeats, times."""

import pytest
from paper_factory import PRIMARY, paper_record, paper_task

from dpsweep.errors import UsageError
from dpsweep.report import beside
from dpsweep.report.load import join
from dpsweep.report.paper import Evidence, Place, Published
from dpsweep.report.papers.dp_rvfl import NAMES, PAPER

RVFL = Place(PRIMARY, "mnist", "", "RVFL", 2.0)


def evidence(values, repeats=(None,), **changes):
    """DP-RVFL on MNIST at ε = 2 with these accuracies, seeds from 42."""
    tasks = [paper_task(PRIMARY, "mnist", "rvfl", 2.0, 42 + k, r) for r in repeats for k in range(len(values))]
    accuracies = list(values) * len(repeats)
    records = [paper_record(t, test_accuracy=v, **changes) for t, v in zip(tasks, accuracies, strict=True)]
    return Evidence(PAPER, join(tasks, records).runs)


def compared(values, published):
    return beside.compare(evidence(values).sample(RVFL, NAMES["accuracy_pct"]), NAMES["accuracy_pct"], published)


def test_a_difference_beyond_the_welch_interval_is_marked():
    # Both SDs are 0.1 over 5 seeds: the interval is ±t(.975; 8) * 0.1 * sqrt(2/5) = ±0.1458, and 0.005 of rounding.
    values = [(90 + shift) / 100 for shift in (-0.1 * 2**0.5, 0, 0, 0, 0.1 * 2**0.5)]
    for published, marked in (("89.86", False), ("89.85", False), ("89.84", True), ("90.15", False), ("90.16", True)):
        found = compared(values, Published(published, "0.10", 5))
        assert found.tested and found.marked is marked, published


def test_without_a_published_spread_nothing_is_tested():
    found = compared([0.9, 0.91], Published("80.0"))
    assert (found.difference, found.tested, found.marked) == (pytest.approx(10.5), False, False)
    assert compared([0.9, 0.91], None) is None


def table_of(found, metric="accuracy_pct"):
    return beside.table(found, "t", "T.", ["Model"], ["MNIST"], [beside.Line(("RVFL",), ((RVFL, metric),))])


def test_rows_hold_published_measured_and_difference():
    table = table_of(evidence([0.95] * 4 + [0.951]))
    assert table.header == ["Model", "MNIST published", "MNIST measured", "MNIST difference"]
    assert table.rows == [["RVFL", "90.30 ± 0.16", "95.02 ± 0.04", "+4.72*"]]
    assert "1 of 1 cells" in table.notes[-1][1] and "5% are expected" in table.notes[-1][1]


def test_what_is_missing_is_a_dash():
    tasks = [paper_task(PRIMARY, "mnist", "rvfl", 2.0, seed) for seed in (42, 43)]
    assert table_of(Evidence(PAPER, join(tasks, []).runs)).rows == [["RVFL", "90.30 ± 0.16", "—", "—"]]


def test_repeats_stand_side_by_side_and_are_never_pooled():
    table = table_of(evidence([0.9, 0.92], repeats=(1, 2)))
    assert table.header[:2] == ["Model", "Repeat"]
    assert [row[:2] for row in table.rows] == [["RVFL", "1"], ["RVFL", "2"]]
    assert {row[3] for row in table.rows} == {"91.00 ± 1.41"}


def test_two_protocols_in_one_cell_are_refused():
    first, second = (paper_task(PRIMARY, "mnist", "rvfl", 2.0, 42, hidden=h) for h in (100, 200))
    with pytest.raises(UsageError, match="never pools"):
        Evidence(PAPER, join([first, second], [paper_record(first), paper_record(second)]).runs)


def test_times_come_from_runs_alone_and_are_never_tested():
    shared = table_of(evidence([0.9] * 3, alone=False), "train_seconds_8_threads")
    assert shared.rows[0][2:] == ["—~", "—"] and "3 of 3 runs" in shared.notes[0][1]
    alone = table_of(evidence([0.9] * 3), "train_seconds_8_threads")
    assert alone.rows[0][1] == "75.95" and "*" not in alone.rows[0][3]


def test_what_no_seed_changes_is_a_plain_number():
    table = table_of(evidence([0.9] * 3), "majority_pct")
    assert table.rows == [["RVFL", "11.35", "11.35", "0"]]


def test_facts_say_whether_they_read_the_same():
    told = {("a", "x"): "1", ("b", "x"): "2"}
    table = beside.facts(
        "f", "F.", {"a": "A", "b": "B", "c": "C"}, {"x": "X"}, told, lambda row, _: {"a": "1", "b": "3"}.get(row, "—")
    )
    assert table.rows == [["A", "1", "1", "same"], ["B", "2", "3", "differs"], ["C", "—", "—", "—"]]
