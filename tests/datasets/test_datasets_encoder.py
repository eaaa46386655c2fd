"""The fixed-bound encoder: its range, its flags, and that a record's row depends on nothing but the record."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.datasets.encoder import FixedBoundEncoder
from dpsweep.datasets.tabular import CARDIO_ENCODER, HEART_ENCODER
from dpsweep.errors import UsageError

ENCODER = FixedBoundEncoder(numeric={"a": (-3.0, 7.0), "b": (0.0, 0.1)}, categorical={"c": (1, 2, 5)})
cell = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([-3.0, 7.0, 0.0, 0.1, 1.0, 2.0, 5.0])
records = st.lists(st.tuples(cell, cell, cell), min_size=1, max_size=20)
few = settings(deadline=None, max_examples=60)


def encode(rows):
    return ENCODER.encode(dict(zip("abc", np.array(rows, dtype=np.float64).T, strict=True)))


def test_the_layout_by_hand():
    encoded = encode([(2.0, 0.1, 5.0), (np.nan, -9.0, 3.0), (9.0, np.inf, np.nan)])
    assert encoded.dtype == np.float32 and encoded.flags.c_contiguous
    assert encoded.tolist() == [
        [0, 0, 1, 0, 0, 0, 1, 0],
        [0, 1, -1, 0, 0, 0, 0, 1],
        [1, 0, 0, 1, 0, 0, 0, 1],
    ]


@few
@given(records)
def test_values_lie_in_range_and_flags_mark_the_missing(rows):
    encoded = encode(rows)
    present = np.isfinite(np.array(rows)[:, :2])
    assert np.isfinite(encoded).all() and (np.abs(encoded) <= 1).all()
    assert np.array_equal(encoded[:, [1, 3]], ~present)
    assert (encoded[:, [0, 2]][~present] == 0).all()
    one_hot = encoded[:, 4:]
    assert np.isin(one_hot, (0, 1)).all() and (one_hot.sum(axis=1) == 1).all()
    assert np.array_equal(one_hot[:, 3] == 1, ~np.isin(np.array(rows)[:, 2], (1, 2, 5)))


@few
@given(records, st.data())
def test_a_record_is_encoded_without_regard_to_the_others(rows, data):
    at = data.draw(st.integers(0, len(rows) - 1))
    assert np.array_equal(encode(rows)[at], encode([rows[at]])[0])


@few
@given(st.floats(-3, 7), st.floats(-3, 7))
def test_values_rise_with_the_field_inside_its_bounds(x, y):
    low, high = sorted((x, y))
    encoded = encode([(low, 0, 1), (high, 0, 1)])[:, 0]
    assert encoded[0] <= encoded[1]
    assert encoded == pytest.approx(2 * (np.array([low, high]) + 3) / 10 - 1, abs=1e-6)


def test_the_papers_encoders_have_the_papers_widths():
    assert (HEART_ENCODER.features, CARDIO_ENCODER.features) == (47, 32)
    assert (2 * len(HEART_ENCODER.numeric), 2 * len(CARDIO_ENCODER.numeric)) == (10, 12)


@pytest.mark.parametrize(
    ("numeric", "categorical", "named"),
    [
        ({"a": (1, 1)}, {}, "'a'"),
        ({"a": (2, 1)}, {}, "'a'"),
        ({"a": (0, float("inf"))}, {}, "'a'"),
        ({}, {"c": ()}, "'c'"),
        ({}, {"c": (1, 1)}, "'c'"),
        ({}, {"c": (float("nan"),)}, "'c'"),
        ({"a": (0, 1)}, {"a": (0, 1)}, "'a'"),
    ],
)
def test_senseless_bounds_and_levels_are_refused_by_name(numeric, categorical, named):
    with pytest.raises(UsageError, match=named):
        FixedBoundEncoder(numeric=numeric, categorical=categorical)
