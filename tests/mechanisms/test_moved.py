"""The parameters at a perturbed point, and back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo import make

from dpsweep.mechanisms.base import State


@settings(deadline=None)
@given(seed=st.integers(0, 99), length=st.floats(-10, 10), scale=st.sampled_from([1e-30, 1.0, 1e30]))
def test_the_move_has_the_length_and_is_taken_back_bit_for_bit(seed, length, scale):
    state = State(None, make("dense", "table"), None)
    state.theta.normal_(generator=torch.Generator().manual_seed(seed))
    before, direction = state.theta.clone(), torch.randn_like(state.theta) * scale
    with state.moved(direction, length):
        torch.testing.assert_close(state.theta - before, length * direction / direction.norm(), rtol=1e-9, atol=1e-12)
        parameters = torch.cat([p.detach().flatten() for p in state.model.parameters()])
        assert torch.equal(parameters, state.theta)  # the model is what moves
    assert torch.equal(state.theta, before)


def test_a_zero_direction_moves_nothing_and_an_error_leaves_theta_as_it_was():
    state = State(None, make("dense", "table"), None)
    before = state.theta.clone()
    with state.moved(torch.zeros_like(before), 5.0):
        assert torch.equal(state.theta, before)
    with pytest.raises(RuntimeError), state.moved(torch.ones_like(before), 5.0):
        raise RuntimeError
    assert torch.equal(state.theta, before)
