"""Levels: which cells a number and a text stand for, and lists that make no sense."""

import pytest

from dpsweep.datasets.levels import Levels
from dpsweep.errors import UsageError


def test_numbers_match_every_way_of_writing_them_and_texts_themselves():
    levels = Levels([1, -0.5, "high", "07"], "x")
    cells = ["1", " 1.0", "1e0", "-.5", "high ", "07", "7", "High", "", "nan", "2"]
    assert levels.codes(cells).tolist() == [0, 0, 0, 1, 2, 3, -1, -1, -1, -1, -1]
    assert len(levels) == 4


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([], "is not a list of levels"),
        ("abc", "is not a list of levels"),
        (None, "is not a list of levels"),
        ([True, False], "put quotes around it"),
        (["a", None], "put quotes around it"),
        ([1, 1.0], "same cell"),
        ([1, "1"], "same cell"),
        (["a", " a"], "same cell"),
        ([float("inf")], "not a finite number"),
    ],
)
def test_lists_that_make_no_sense_are_refused_by_name(levels, said):
    with pytest.raises(UsageError, match=f"dataset.categorical.sex.*{said}"):
        Levels(levels, "dataset.categorical.sex")
