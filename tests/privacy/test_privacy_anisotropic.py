"""Maps of flat vectors: what they do against the matrix written out, and that their bound holds whatever U's rounding."""

import math

import hypothesis.strategies as st
import pytest
import torch
from doors import written_out
from hypothesis import given, settings

from dpsweep.privacy.anisotropic import Anisotropy, row_map, three_digits


def orthonormal(n, k, seed, dtype=torch.float64):
    return torch.linalg.qr(torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))[0].to(dtype)


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 99), st.floats(0.05, 20))
@settings(deadline=None, max_examples=60)
def test_it_is_the_matrix_and_its_inverse(n, k, seed, rest):
    k = min(n, k)
    generator = torch.Generator().manual_seed(seed)
    row = row_map(orthonormal(n, k, seed), torch.rand(k, generator=generator, dtype=torch.float64) * 9 + 0.1, rest)
    rows = torch.randn(4, n, generator=generator, dtype=torch.float64)
    s = written_out(row)
    torch.testing.assert_close(row.apply(rows), rows @ s)
    torch.testing.assert_close(row.inverse(rows), torch.linalg.solve(s, rows.T).T)
    assert row.least == pytest.approx(float(torch.linalg.eigvalsh(s).min()))


@given(st.integers(2, 9), st.integers(0, 99), st.floats(0.05, 20), st.floats(0, 0.02))
@settings(deadline=None, max_examples=100)
def test_its_bound_holds_for_a_basis_that_is_not_orthonormal(n, seed, rest, error):
    generator = torch.Generator().manual_seed(seed)
    k = int(torch.randint(1, n + 1, (1,), generator=generator))
    basis = orthonormal(n, k, seed) + error * torch.randn(n, k, generator=generator, dtype=torch.float64)
    row = row_map(basis, torch.rand(k, generator=generator, dtype=torch.float64) * 9 + 0.1, rest)
    s = written_out(row)
    if k == n:  # then w0 is nobody's weight, to the rounding of U
        row = row_map(basis, row.weights, float(row.weights.min()))
        s = written_out(row)
    assert row.least <= float(torch.linalg.svdvals(s).min()) + 1e-12


@given(st.integers(2, 9), st.integers(0, 99), st.floats(0.05, 20), st.floats(0.01, 1))
@settings(deadline=None, max_examples=60)
def test_a_floor_is_kept_in_float32_too(n, seed, rest, floor):
    k = n // 2
    row = row_map(
        orthonormal(n, k, seed, torch.float32),
        torch.rand(k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1e-3,
        rest,
    )
    raised = row.at_least(floor)
    assert raised.least >= floor and float(torch.linalg.svdvals(written_out(raised)).min()) >= floor * (1 - 1e-12)
    assert raised.least == row.least or float(raised.weights.max()) <= max(floor, float(row.weights.max())) * 1.01


def test_on_flat_vectors_each_parameter_has_its_own():
    row = row_map(orthonormal(3, 1, 0), torch.tensor([2.0], dtype=torch.float64), 0.5)
    whole = Anisotropy([row, None], [6, 2])
    vector = torch.arange(8, dtype=torch.float64)
    expected = torch.cat([(vector[:6].view(2, 3) @ written_out(row)).flatten(), vector[6:]])
    torch.testing.assert_close(whole.apply(vector), expected)
    torch.testing.assert_close(whole.inverse(whole.apply(vector)), vector)
    assert whole.least == pytest.approx(0.5)
    assert Anisotropy([row.scaled(4), None], [6, 2]).least == 1  # what has no map weighs 1


def test_the_identity_changes_no_bit():
    vector = torch.randn(20)
    flat = row_map(orthonormal(5, 2, 0, torch.float32), torch.ones(2, dtype=torch.float64), 1.0)
    assert flat.least == 1.0
    assert torch.equal(Anisotropy([flat], [20]).apply(vector), vector)


@given(st.floats(1e-12, 1e12))
def test_three_digits_never_round_up(value):
    rounded = three_digits(value)
    assert value * 0.99 < rounded <= value
    assert three_digits(rounded) == rounded


@pytest.mark.parametrize(("value", "rounded"), [(1.0, 1.0), (1.00000001, 1.0), (0.12345, 0.123), (123456.0, 123000.0), (0.0, 0.0),
                                                (-1.0, 0.0), (math.nan, 0.0), (0.5, 0.5), (0.7, 0.7)])  # fmt: skip
def test_three_digits(value, rounded):
    assert three_digits(value) == pytest.approx(rounded, rel=1e-15)
