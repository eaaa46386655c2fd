"""What is proved, what is claimed, and what was released together."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_factory import grid, record, seeded, task, unproved

from dpsweep.privacy import accounting
from dpsweep.report import guarantees
from dpsweep.report.load import join


def released(records):
    return guarantees.released(join([], records)).rows


def composed(count, sigma=1.1, delta=1e-5):
    event = accounting.SampledGaussian(Fraction(1, 20), sigma)
    return guarantees.bound(accounting.epsilon([(event, 600 * count)], delta, "rdp").epsilon)


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-6, 1e6))
def test_a_bound_is_never_understated(epsilon):
    shown = float(guarantees.bound(epsilon))
    assert epsilon * (1 - 1e-11) <= shown <= epsilon * 1.0011


@pytest.mark.parametrize(
    ("epsilon", "text"),
    [(None, "—"), (1.0, "1.000"), (0.99996, "1.000"), (1.00001, "1.001"), (0.1, "0.1000"), (123.41, "123.5"),
     (float("inf"), "∞"), (0.0, "0")],
)  # fmt: skip
def test_bound_by_hand(epsilon, text):
    assert guarantees.bound(epsilon) == text


def test_private_models_compose():
    rows = released([record(task(seed=seed)) for seed in (1, 2, 3)])
    assert rows == [["digits", "add_remove, record", "3", "1e-05", f"ε={composed(3)}"]]
    assert float(composed(3)) > float(composed(1))


def test_one_non_private_model_leaves_no_bound():
    (row,) = released([record(task()), record(task(epsilon=None)), record(task(epsilon=None, seed=2))])
    assert row[-1] == f"unbounded: 2 non-private models of the same data; the private ones alone (1): ε={composed(1)}"


def test_only_non_private_models():
    assert released([record(task(epsilon=None))])[0][-1] == "unbounded: 1 non-private model of the same data"


def test_seeded_and_unproved_models_leave_no_bound():
    records = [record(task(seed=1)), seeded(task(seed=2)), unproved(task(seed=3), "leaks")]
    (row,) = released(records)
    assert row[-1] == (
        "unbounded: 1 private model with seeded noise, 1 private model without a proved ε; "
        f"the proved ones alone (1): ε={composed(1)}; "
        f"with secure noise the private ones (2) would release ε={composed(2)}"
    )


def test_relations_are_not_added_up():
    rows = released([record(task(seed=1)), record(task(seed=2), adjacency="replace_features", protects="features")])
    assert [row[1] for row in rows] == ["add_remove, record", "replace_features, features"]
    assert all("no common bound" in row[-1] for row in rows)


def test_a_guarantee_for_two_relations_counts_in_the_line_of_each():
    pure = [[{"event": "pure_dp", "epsilon": 0.5, "mechanism": "laplace"}, 1]]
    both = record(task(seed=2), adjacency="add_remove and replace_one", delta=0.0, events=pure, accountant=None)
    rows = released([record(task(seed=1)), both])
    assert [(row[1], row[2]) for row in rows] == [("add_remove, record", "2"), ("replace_one, record", "1")]
    assert "no common bound" not in rows[0][-1] and "no common bound" in rows[1][-1]
    assert rows[1][3:] == ["0", rows[1][-1]] and rows[1][-1].startswith("ε=0.5000")
    pld = [record(task(seed=1), accountant="pld"), both]
    assert released(pld)[0][-1].endswith("(PLD)")


def test_the_least_delta_is_used_and_pure_dp_needs_none():
    (row,) = released([record(task(seed=1)), record(task(seed=2), delta=1e-6)])
    assert (row[3], row[-1]) == ("1e-06", f"ε={composed(2, delta=1e-6)}")
    pure = [[{"event": "pure_dp", "epsilon": 0.5, "mechanism": "laplace"}, 1]]
    (row,) = released([record(task(seed=s), delta=None, events=pure) for s in (1, 2)])
    assert (row[3], row[-1]) == ("0", "ε=1.000")


def test_an_account_that_cannot_be_made_says_so():
    (row,) = released([record(task(), events=[[{"event": "unheard_of"}, 1]])])
    assert row[-1].startswith("not computed (")


def test_datasets_are_accounted_apart():
    rows = released([record(task(dataset=d)) for d in ("digits", "heart")])
    assert [row[0] for row in rows] == ["digits", "heart"]
    assert {row[-1] for row in rows} == {f"ε={composed(1)}"}


def test_claimed_proved_and_realised_side_by_side():
    records = [record(task(seed=1), epsilon=3.5, epsilon_realised=0.7), unproved(task(seed=2), "leaks")]
    table = guarantees.epsilon_table(join([], records))
    numbers = ["2", "1.000", "3.500 (1 of 2)[1]", "—", "0.7000 (1 of 2)"]
    assert table.rows == [["gaussian", "ε=1", "add_remove, record", *numbers]]
    assert table.notes == [("[1]", "leaks")]


def test_scope_names_the_relation_or_warns_of_two():
    assert "add_remove adjacency, protecting the record, δ=1e-05" in guarantees.scope(join([], [record(task())]))
    two = [record(task()), record(task(seed=2), adjacency="replace_one")]
    assert "equal ε are not equal guarantees" in guarantees.scope(join([], two))
    assert "pure DP: δ=0" in guarantees.scope(join([], [record(task(), delta=None)]))
    assert guarantees.scope(join([], [seeded(task())])) == "No cell has a proved ε."
    assert guarantees.scope(join([], [record(task(epsilon=None))])) == ""


def test_guarantees_in_words_are_counted():
    tasks = grid(budgets=(None, 1.0), models=("rvfl",))
    assert guarantees.in_words(join(tasks, [record(t) for t in tasks])) == [
        ("No guarantee: trained without noise.", 3),
        ("The released model is (1.0, 1e-05)-DP.", 3),
    ]


def test_unprotected_fields_are_listed_by_dataset():
    records = [record(task()), record(task(seed=2), unprotected=["batch_sizes"]), record(task("heart"), unprotected=[])]
    assert guarantees.unprotected(join([], records)) == [("digits", ["batch_sizes", "training_loss"])]


def test_a_claim_that_is_not_its_columns_is_told_apart():
    one, other = task(epsilon=2.0, seed=1, mechanism="dirichlet"), task(epsilon=2.0, seed=2, mechanism="dirichlet")
    records = [unproved(one, "samples are kept"), unproved(other, "samples are kept") | {"epsilon_claimed": 1.84127}]
    found = [guarantees.shortfall(run) for run in join([one, other], records).runs]
    assert found[0] == ("†", "no proved ε: samples are kept; merely claimed:", "ε=2")
    assert "its claim at the run's own schedule is ε=1.841, not the column's" in found[1][1]
