"""A user's own CSV by YAML alone: what is read, what a mistake says, and that no message quotes a record."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.datasets.base import MissingData
from dpsweep.datasets.csv_table import CsvTable
from dpsweep.errors import UsageError

NODE = {
    "name": "clinic", "shape": [8], "classes": 2, "file": "clinic.csv",
    "label": {"column": "outcome", "positive": ["ill", "dead"]},
    "numeric": {"age": [0, 100]}, "categorical": {"sex": ["f", "m"], "grade": [1, 2]},
}  # fmt: skip
SECRET = "secret7"


def table(**changes):
    return CsvTable(**NODE | changes)


def lines(n=20):
    return [
        "id,age,sex,grade,outcome",
        *(f"{k},{k},{'fm'[k % 2]},{1 + k % 3},{('well', 'ill', 'dead')[k % 3]}" for k in range(n)),
    ]


def write(folder, rows, name="clinic.csv"):
    (folder / name).write_text("\n".join(rows) + "\n")
    return folder


def load(folder, rows, **changes):
    return table(**changes).load(write(folder, rows), "dp_rvfl", 1)


def test_records_are_encoded_split_and_labelled(tmp_path):
    d = load(tmp_path, lines())
    order = np.random.default_rng(1).permutation(20)[:14]
    assert (d.name, d.kind, d.classes, d.official, d.source) == ("clinic", "table", 2, None, "clinic.csv")
    assert d.x_train.shape == (14, 8) and d.x_test.shape == (3, 8) and d.x_train.dtype == np.float32
    assert d.x_train[:, 0] == pytest.approx(order / 50 - 1, abs=1e-6) and not d.x_train[:, 1].any()
    assert np.array_equal(d.x_train[:, 2:5], np.eye(3)[order % 2])
    assert np.array_equal(d.x_train[:, 5:], np.eye(3)[order % 3])  # grade 3 is none of the levels
    assert np.array_equal(d.y_train, order % 3 > 0)
    d.check((8,), 2)


def test_cells_that_say_nothing_are_missing_or_unknown(tmp_path):
    ages = ["12", "", "?", "old", "-1", "-1.0", "inf", "nan", " 50 ", "1e400", "5,5"]
    rows = ["age,sex,grade,outcome", *(f'"{age}",x,,ill' for age in ages)]
    x = load(tmp_path, rows, missing=["", "?", -1], test_file="clinic.csv").x_test
    assert x[:, 1].tolist() == [0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1]
    assert x[[0, 8], 0] == pytest.approx([-0.76, 0], abs=1e-6) and (x[x[:, 1] == 1, 0] == 0).all()
    assert (x[:, 4] == 1).all() and (x[:, 7] == 1).all()


cell = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=6) | st.sampled_from(["1", "f", "m", "50", "?"])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(cell, cell, cell), min_size=1, max_size=6), st.data())
def test_a_record_is_encoded_without_regard_to_the_others_whatever_its_cells(tmp_path_factory, records, data):
    import csv

    def encoded(rows):
        folder = tmp_path_factory.mktemp("csv")
        with (folder / "clinic.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["age", "sex", "grade", "outcome"], *([*row, "ill"] for row in rows)])
        return table(test_file="clinic.csv").load(folder, "dp_rvfl", 1).x_test

    at = data.draw(st.integers(0, len(records) - 1))
    together = encoded(records)
    assert np.array_equal(together[at], encoded([records[at]])[0])
    assert (np.abs(together) <= 1).all() and (together[:, 2:5].sum(axis=1) == 1).all()


def test_classes_are_numbered_in_the_order_of_the_yaml(tmp_path):
    d = load(tmp_path, lines(), classes=3, label={"column": "outcome", "classes": ["dead", "well", "ill"]})
    order = np.random.default_rng(1).permutation(20)[:14]
    assert d.y_train.tolist() == [(1, 2, 0)[k % 3] for k in order]


def test_a_test_file_leaves_the_first_whole_and_in_order(tmp_path):
    write(tmp_path, lines(5), "later.csv")
    d = load(tmp_path, lines(), test_file="later.csv")
    assert d.x_train[:, 0] == pytest.approx(np.arange(20) / 50 - 1, abs=1e-6) and len(d.y_test) == 5
    assert d.source == "clinic.csv and later.csv"
    assert d.fingerprint == table(test_file="later.csv").load(tmp_path, "official", 9).fingerprint


def test_files_of_other_habits_give_the_same(tmp_path):
    expected = load(tmp_path, lines()).fingerprint
    cells = [line.split(",") for line in lines()]
    turned = [";".join(f'"{part}"' for part in row[::-1]) for row in cells]
    assert load(tmp_path, turned, separator=";").fingerprint == expected
    assert load(tmp_path, lines()[1:], columns=["id", "age", "sex", "grade", "outcome"]).fingerprint == expected
    (tmp_path / "clinic.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines()).encode())
    assert table().load(tmp_path, "dp_rvfl", 1).fingerprint == expected
    assert table(file=str(tmp_path / "clinic.csv")).load(tmp_path / "elsewhere", "dp_rvfl", 1).x_train.shape == (14, 8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shape": [5]}, r"dataset.shape=\[5\].*Write shape: \[8\]"),
        ({"shape": [1, 2, 4]}, r"Write shape: \[8\]"),
        ({"classes": 3}, "dataset.classes=3.*classes: 2"),
        ({"label": {"column": "outcome", "classes": ["a", "b", "c"]}}, "dataset.classes=2.*classes: 3"),
        ({"label": {"column": "outcome", "classes": ["a"]}}, "dataset.classes=2"),
        ({"label": {"column": "age", "positive": [1]}}, "label column 'age'"),
        ({"label": {"column": "outcome"}}, "dataset.label: write"),
        ({"label": {"column": "outcome", "positive": [1], "classes": [0, 1]}}, "dataset.label: write"),
        ({"label": "outcome"}, "dataset.label: write"),
        ({"label": {"column": "outcome", "positive": True}}, "dataset.label.positive.*quotes"),
        ({"numeric": None, "categorical": {}}, "fields are needed"),
        ({"numeric": ["age"]}, r"dataset.numeric=\['age'\].*numeric: {age: "),
        ({"categorical": "sex"}, "dataset.categorical='sex'.*mapping"),
        ({"numeric": {"age": [100, 0]}}, r"dataset.numeric.age=\[100, 0\]"),
        ({"numeric": {"age": [0]}}, "dataset.numeric.age"),
        ({"numeric": {"age": 5}}, "dataset.numeric.age"),
        ({"numeric": {"age": [0, "x"]}}, "dataset.numeric.age"),
        ({"numeric": {"age": [0, float("inf")]}}, "dataset.numeric.age"),
        ({"numeric": {"age": [0, 1], "sex": [0, 1]}}, "sex"),
        ({"categorical": {"sex": []}}, "dataset.categorical.sex"),
        ({"missing": []}, "dataset.missing"),
        ({"separator": ";;"}, "dataset.separator=';;'"),
        ({"separator": '"'}, "dataset.separator"),
        ({"columns": ["age", "sex", "outcome"]}, "dataset.columns: there is no column grade"),
        ({"columns": ["age", "age", "sex", "grade", "outcome"]}, "dataset.columns: the column age is there more than once"),
        ({"file": 3}, "`file` and `test_file`"),
        ({"test_file": ""}, "`file` and `test_file`"),
    ],
)  # fmt: skip
def test_mistakes_in_the_yaml_are_named_before_any_file_is_read(changes, said):
    with pytest.raises(UsageError, match=said):
        table(**changes)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "is empty"),
        (["", ""], "no column outcome, age, sex, grade|no records"),
        (lines()[:1], "holds no records"),
        ([SECRET + ",1,2,3,4", *lines()[1:]], "no column outcome, age, sex, grade"),
        ([line.replace(",", ";") for line in lines()], "no column"),
        ([lines()[0] + ",age", *(f"{line},{SECRET}" for line in lines()[1:])], "the column age is there more than once"),
        ([*lines(), f"{SECRET},2,3"], "line 22: 3 cells .* where 5"),
        ([*lines(), f"1,{SECRET},f,1,?"], "line 22: the label is missing"),
        ([*lines(), f'1,"{SECRET},f,1,ill'], "after line .*not a text file"),
        ([*lines(), f'1,"{SECRET}"x,f,1,ill'], "after line .*not a text file"),
    ],
)
def test_broken_files_are_named_and_not_quoted(tmp_path, rows, said):
    write(tmp_path, rows) if rows else (tmp_path / "clinic.csv").touch()
    with pytest.raises(UsageError, match=said) as caught:
        table().load(tmp_path, "dp_rvfl", 1)
    assert str(tmp_path / "clinic.csv") in str(caught.value) and SECRET not in str(caught.value)
    assert not isinstance(caught.value, MissingData)


def test_an_unknown_class_is_refused_with_its_line_and_not_quoted(tmp_path):
    with pytest.raises(UsageError, match="line 4: the label") as caught:
        load(tmp_path, [*lines(2), f"1,1,f,1,{SECRET}"], label={"column": "outcome", "classes": ["well", "ill"]})
    assert SECRET not in str(caught.value)


def test_another_encoding_is_named(tmp_path):
    (tmp_path / "clinic.csv").write_bytes("\n".join([*lines(), "1,Jürgen,f,1,ill"]).encode("latin-1"))
    with pytest.raises(UsageError, match=r"isn't UTF-8.*Save it as CSV in UTF-8"):
        table().load(tmp_path, "dp_rvfl", 1)


def test_missing_files_are_named_before_anything_runs(tmp_path):
    with pytest.raises(MissingData, match=r"clinic needs clinic.csv, not found in .*`file`.*data.dir="):
        table().check(tmp_path)
    write(tmp_path, lines())
    with pytest.raises(MissingData, match="later.csv"):
        table(test_file="later.csv").check(tmp_path)


def test_too_few_records_to_split(tmp_path):
    with pytest.raises(UsageError, match="too few"):
        load(tmp_path, lines(1))


def test_verify_counts_what_says_nothing(tmp_path):
    rows = lines()
    rows[3] = rows[3].replace(",2,", ",?,", 1)
    found = {f.what: (f.found, f.ok) for f in table().verify(write(tmp_path, rows))}
    assert found["training, test records"] == ("14 3", None) and found["features"] == ("8", True)
    assert found["cells without a number"] == ("age 1", None) and found["cells without a known level"] == ("sex 0, grade 6", None)
