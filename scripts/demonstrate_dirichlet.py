"""What the Dirichlet mechanism's claimed epsilon does not cover, beside DP-SGD's proved one.

A feature is zero in every record but one. The mechanism draws records, and forms gradients at their features: the feature's
weights move if that record was drawn, and stay as they were if it wasn't. Many tiny models are trained with the record and with
its neighbour, and one rule, fixed beforehand and the same for both mechanisms, guesses which it was from the released weights
alone: "with", iff the feature's weight for the record's label has grown. How often it is right bounds epsilon from below
(Clopper and Pearson 1934): of an (epsilon, delta)-private release, P(guess | with) <= exp(epsilon) P(guess | neighbour) + delta.

`dirichlet` claims for replaced features, so its neighbour is the same record with a zero there; the paper's text defines adding
and removing, so that is shown too. `gaussian` proves for adding and removing.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from scipy.stats import beta
from torch import Tensor

from dpsweep.build import build
from dpsweep.config import Composer
from dpsweep.mechanisms.base import Account, Mechanism, Plan, Schedule, Target
from dpsweep.privacy.noise import Randomness
from dpsweep.training.engines import over_records
from dpsweep.training.layered import LayeredEngine
from dpsweep.training.loop import LoopData, train

COMPOSER = Composer()
DELTA, CONFIDENCE = 1e-5, 0.95
RATE, STEPS = Fraction(1, 8), 36  # the record is drawn in some step with probability 0.992
RECORDS, FEATURES, CLASSES = 64, 6, 3
MARKED, LABEL = FEATURES - 1, 1  # the feature that one record alone has, and that record's label
SIDES = (("dirichlet", "replaced"), ("dirichlet", "removed"), ("gaussian", "removed"))


@dataclass(frozen=True)
class Side:
    """One mechanism's trials: its budget, how often the rule said "with" on either dataset, and what that proves."""

    mechanism: str
    neighbour: str
    epsilon: float
    runs: int
    said_with: int
    said_neighbour: int

    @property
    def least(self) -> float:
        """No (epsilon, DELTA)-private release has a smaller epsilon than this, at CONFIDENCE."""
        return least_epsilon(self.said_with, self.said_neighbour, self.runs, DELTA, CONFIDENCE)


def least_epsilon(first: int, second: int, runs: int, delta: float, confidence: float) -> float:
    """The lower bound on epsilon from two counts of `runs` each: exact intervals of both rates, which hold together at the
    confidence, in the inequality of the definition, for the rule and its opposite, both ways round."""
    tail = (1 - confidence) / 4  # two intervals, two ends each

    def interval(hits: int) -> tuple[float, float]:
        low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, runs - hits + 1))
        high = 1.0 if hits == runs else float(beta.ppf(1 - tail, hits + 1, runs - hits))
        return low, high

    (low, high), (other_low, other_high) = interval(first), interval(second)
    pairs = [(low, other_high), (other_low, high), (1 - high, 1 - other_low), (1 - other_high, 1 - low)]
    return max(0.0, *(math.log((more - delta) / less) for more, less in pairs if more > delta))


def records(world: str) -> tuple[Tensor, Tensor]:
    """The public rest, and the one record: `with` its feature, `replaced` (the same with a zero there), or `removed`."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((RECORDS, FEATURES)).astype(np.float32)
    y = generator.integers(CLASSES, size=RECORDS)
    x[:, MARKED], y[0] = 0, LABEL
    if world == "with":
        x[0, MARKED] = 1
    first = 1 if world == "removed" else 0
    return torch.from_numpy(x[first:]), torch.from_numpy(y[first:])


def planned(name: str, epsilon: float) -> tuple[Mechanism, Plan]:
    """A mechanism and its plan for a budget."""
    mechanism = build("mechanism", COMPOSER.node("mechanism", name))
    schedule = Schedule(RECORDS, RATE, STEPS, int(RATE * RECORDS), int(RATE * RECORDS), classes=CLASSES)
    return mechanism, mechanism.calibrate(schedule, Target(epsilon), Account("rdp", DELTA))


def moved(mechanism: Mechanism, plan: Plan, world: str, randomness: Randomness) -> tuple[float, LoopData]:
    """By how much the marked feature's weight for the record's label has grown in one run, and the run's door to the data."""
    x, y = records(world)
    model = build("model", COMPOSER.node("model", "logistic_raw"), (FEATURES,), CLASSES, 0)
    prepared = over_records(LayeredEngine(model, None), model, x)
    data = LoopData(prepared, y, model, plan, int(RATE * RECORDS), randomness, "none")
    (weight,) = (parameter for parameter in model.parameters() if parameter.dim() == 2)
    before = float(weight.detach()[LABEL, MARKED])
    train(mechanism, plan, model, data, partial(torch.optim.SGD, lr=0.1))
    return float(weight.detach()[LABEL, MARKED]) - before, data


def trial(name: str, neighbour: str, epsilon: float, runs: int) -> Side:
    """Train `runs` models with the record and as many with its neighbour, each with noise of its own, and let the rule guess."""
    mechanism, plan = planned(name, epsilon)
    said = [sum(moved(mechanism, plan, world, Randomness.secure())[0] > 0 for _ in range(runs)) for world in ("with", neighbour)]
    return Side(name, neighbour, epsilon, runs, *said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="on either dataset")
    parser.add_argument("--epsilon", type=float, default=2.0, help="claimed by dirichlet, proved by gaussian")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"q = {RATE}, T = {STEPS}, {RECORDS} records, delta = {DELTA:g}, {options.runs} + {options.runs} runs a line\n")
    print(
        f"{'mechanism':<12}{'epsilon':<14}{'neighbour':<12}{'said with':<12}{'of neighbour':<14}{'epsilon at least':<18}verdict"
    )
    for name, neighbour in SIDES:
        side = trial(name, neighbour, options.epsilon, options.runs)
        word = "claimed" if name == "dirichlet" else "proved"
        verdict = "the budget does not hold" if side.least > side.epsilon else "no contradiction"
        print(f"{name:<12}{f'{side.epsilon:g} {word}':<14}{neighbour:<12}{side.said_with:<12}{side.said_neighbour:<14}"
              f"{side.least:<18.3f}{verdict}")  # fmt: skip
    print(f"\nThe lower bounds hold with {CONFIDENCE:.0%} confidence each; neighbours: the record with a zero as its feature, or "
          "removed.")  # fmt: skip


if __name__ == "__main__":
    main()
