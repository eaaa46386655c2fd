"""Doors to data for tests of single mechanisms: a real one over random records, and one whose releases are given."""

import itertools
from fractions import Fraction

import torch
from zoo import batch, make

from dpsweep.mechanisms.base import Account, Batch, Schedule, State, Sum, Target
from dpsweep.privacy.noise import Randomness
from dpsweep.training.engines import prepare
from dpsweep.training.loop import LoopData

RDP = Account("rdp", 1e-5)
_KEYS = itertools.count()  # features of one network must not serve another


def schedule(n=40, q=Fraction(1, 4), steps=6):
    return Schedule(n, q, steps, max(1, int(n * q)), max(1, int(n * q)))


def opened(mechanism, n=40, q=Fraction(1, 4), steps=6, sigma=1.0, records=None, model="dense", kind="table", engine="default",
           seed=0, randomness=None, data=None, dtype=torch.float64):  # fmt: skip
    """A model (in float64 unless told), the plan at a noise multiplier, and the door to `records` of n records (all: None)."""
    network = make(model, kind, dtype)
    x, y, _ = data or batch(network, kind, n, dtype)
    keep = slice(0, records) if not isinstance(records, list) else records
    numbers = schedule(n, q, steps)
    plan = mechanism.calibrate(numbers, Target(noise_multiplier=sigma), RDP)
    ready = prepare(engine, network, x[keep], f"doors {next(_KEYS)}", None)
    randomness = randomness or Randomness.seeded(seed)
    return network, plan, LoopData(ready, y[keep], network, plan, numbers.normalizer, randomness, "none")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1.0)


class Scripted:
    """A door whose releases are given; it writes down where theta stood at each sum, and what was asked for."""

    def __init__(self, releases, normalizer=1):
        self.normalizer = normalizer
        self.releases = list(releases)
        self.calls, self.points, self.state = [], [], None

    def draw(self):
        self.calls.append("draw")
        return Batch(len(self.calls))

    def clipped_sum(self, batch, max_grad_norm, metric=None):
        self.calls.append(("clipped_sum", batch.number, max_grad_norm))
        self.points.append(self.state.theta.clone())
        return Sum(len(self.calls), batch, max_grad_norm)

    def weighted_sum(self, batch, weigh, sensitivity):
        self.calls.append(("weighted_sum", batch.number, weigh))
        return Sum(len(self.calls), batch, sensitivity)

    def norm_sum(self, total, of, bound):
        self.calls.append(("norm_sum", total.batch.number, of))
        return Sum(len(self.calls), total.batch, bound)

    def release(self, total, sensitivity, noise_multiplier, shape=None):
        self.calls.append(("release", total.batch.number, noise_multiplier * sensitivity))
        return self.releases.pop(0).clone()


def scripted(mechanism, plan, releases, optimizer=sgd, normalizer=1, model="logistic_raw"):
    """A state and the door of given releases to step it with."""
    door = Scripted(releases, normalizer)
    door.state = mechanism.start(plan, make(model, "table"), optimizer)
    return door.state, door


def written_out(row):
    """The matrix of a row map, in float64."""
    u, w = row.basis.double(), row.weights.double()
    return row.rest * torch.eye(len(u), dtype=torch.float64) + u @ torch.diag(w - row.rest) @ u.T


def size(model="logistic_raw", kind="table"):
    """The length of theta."""
    return len(State(None, make(model, kind), None).theta)
