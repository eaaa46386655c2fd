"""The demonstration: the rule, the bound, and what they say of a claimed budget and of a proved one."""

import sys
from pathlib import Path

import pytest
import torch
from statsmodels.stats.proportion import proportion_confint

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import demonstrate_dirichlet as demonstration

from dpsweep.privacy.noise import Randomness


def test_the_feature_moves_if_and_only_if_its_record_was_drawn(monkeypatch):
    """Of 40 runs of few steps: some draw the record and some don't."""
    monkeypatch.setattr(demonstration, "STEPS", 6)
    mechanism, plan = demonstration.planned("dirichlet", 6.0)
    outcomes = set()
    for seed in range(40):
        drawn = []

        def drawing(self, draw=demonstration.LoopData.draw, drawn=drawn):
            batch = draw(self)
            drawn.append(0 in self._indices[batch.number])
            return batch

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(demonstration.LoopData, "draw", drawing)
            growth, _ = demonstration.moved(mechanism, plan, "with", Randomness.seeded(seed))
        assert len(drawn) == 6 and (growth != 0) == any(drawn) and growth >= 0
        outcomes.add(any(drawn))
    assert outcomes == {True, False}


@pytest.mark.parametrize("world", ["replaced", "removed"])
def test_without_the_feature_nothing_moves_it_under_dirichlet_and_noise_does_under_gaussian(world):
    for name, stays in (("dirichlet", True), ("gaussian", False)):
        growth, _ = demonstration.moved(*demonstration.planned(name, 2.0), world, Randomness.secure())
        assert (growth == 0) == stays


def test_the_neighbours_are_neighbours():
    (x, y), (x0, y0), (x1, y1) = (demonstration.records(world) for world in ("with", "replaced", "removed"))
    assert torch.equal(y, y0) and (x != x0).sum() == 1 and torch.equal(x[1:], x1) and torch.equal(y[1:], y1)
    assert (x[:, demonstration.MARKED] != 0).sum() == 1


@pytest.mark.parametrize("first,second", [(200, 0), (197, 3), (120, 90), (100, 100), (0, 200)])
def test_the_bound_is_that_of_clopper_and_pearson(first, second):
    import math

    (low, high), (other_low, other_high) = (proportion_confint(hits, 200, alpha=0.025, method="beta") for hits in (first, second))
    ratios = [(low, other_high), (other_low, high), (1 - high, 1 - other_low), (1 - other_high, 1 - low)]
    expected = max(0, *(math.log((more - 1e-5) / less) for more, less in ratios if more > 1e-5))
    assert demonstration.least_epsilon(first, second, 200, 1e-5, 0.95) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_the_claimed_budget_is_broken_and_the_proved_one_is_not():
    """200 + 200 runs each. P(a run of `dirichlet` never draws the record) = (7/8)^36 = 0.8%; the bound needs 181 of 200, and
    the proved side fails with probability at most 5% only if its budget were really used up, which it is far from."""
    broken = demonstration.trial("dirichlet", "replaced", 2.0, 200)
    assert broken.said_neighbour == 0 and broken.least > broken.epsilon
    kept = demonstration.trial("gaussian", "removed", 2.0, 200)
    assert kept.least < kept.epsilon
