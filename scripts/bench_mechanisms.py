"""Measure what a step of each mechanism costs over a step of DP-SGD.

    python scripts/bench_mechanisms.py                                    the size of the FO-DP-SGD paper
    python scripts/bench_mechanisms.py model=dense sample_rate=1/20       other overrides of the configuration
    python scripts/bench_mechanisms.py --rounds 50 --only dp_sat dp_sam
    python scripts/bench_mechanisms.py model=resnet18 dataset=cifar10 dataset.reference_size=50000 sample_rate=1/200 \
        --rounds 3 --steps 1 --only dirichlet plain               a step of the Dirichlet paper's size: batch 250

Every mechanism trains the same model on the same random records, secure noise included, through the product's own loop.
In one process they take turns, k steps each, in an order that is drawn anew every round; a ratio is the median over rounds of
CPU time (process_time) over DP-SGD's in the same round, with its quartiles. CPU time leaves out what else runs on the
machine, except its use of shared caches: repeat on an idle machine before you quote a number.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch

from dpsweep.build import build, plan_of
from dpsweep.config import Composer, parse
from dpsweep.privacy.noise import Randomness
from dpsweep.runner import optimizer_of
from dpsweep.training.engines import prepare
from dpsweep.training.loop import LoopData

COMPOSER = Composer()
PROTOCOL = ("dataset=cifar10", "dataset.reference_size=5000", "sample_rate=1/25")
REFERENCE = "gaussian sgd"


def contestants() -> dict[str, list[str]]:
    """Overrides by name: every mechanism of clipped sums with SGD, or with what it brings; DP-SGD with Adam's kind too; the
    Dirichlet mechanism and training without privacy."""
    found = {f"gaussian {name}": ["mechanism=gaussian", f"optimizer={name}"] for name in ("sgd", "adam", "adamw")}
    for name in COMPOSER.options("mechanism"):
        node = COMPOSER.node("mechanism", name)
        if name != "gaussian" and node.get("private", True) and "max_grad_norm" in node:
            found[name] = [f"mechanism={name}", *(["optimizer=sgd"] if "optimizer" not in node.get("unused", ()) else [])]
    found["dp_sam shared"] = [*found["dp_sam"], "mechanism.batch=shared"]
    found["hero refresh 10"] = [*found["hero"], "mechanism.refresh=10"]
    found = {name: [*own, "noise_multiplier=1.1"] for name, own in found.items()}
    found["dirichlet"] = ["mechanism=dirichlet", "optimizer=sgd", "epsilon=2"]
    found["plain"] = ["mechanism=gaussian", "optimizer=sgd", "epsilon=none"]
    return found


def stepper(overrides: list[str], steps: int) -> Callable[[], None]:
    """One step of a run that stands ready."""
    (items,) = parse([*PROTOCOL, f"steps={steps}", "engine=default", *overrides])
    values = COMPOSER.compose(items).values
    mechanism, schedule, _, plan = plan_of(values)
    shape, classes, n = tuple(values["dataset"]["shape"]), values["dataset"]["classes"], values["dataset"]["reference_size"]
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, *shape, generator=generator), torch.randint(classes, (n,), generator=generator)
    model = build("model", values["model"], shape, classes, 0)
    ready = prepare("default", model, x, "bench", None)
    data = LoopData(ready, y, model, plan, schedule.normalizer, Randomness.secure(), "none")
    state = mechanism.start(plan, model.train(), optimizer_of(values))

    def step() -> None:
        mechanism.step(state, data)
        data.close_step()

    return step


def main() -> None:
    """Print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of the configuration, for every mechanism (default: model=tanh_mlp)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=25, help="timed steps in a turn (25: one probe of dp_is in each)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="mechanisms to measure beside DP-SGD")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.set_flush_denormal(True)
    overrides = asked.overrides if any(o.startswith("model=") for o in asked.overrides) else ["model=tanh_mlp", *asked.overrides]
    chosen = {k: v for k, v in contestants().items() if not asked.only or k == REFERENCE or k.split()[0] in asked.only}
    steps = {name: stepper([*overrides, *own], (asked.rounds + 1) * asked.steps) for name, own in chosen.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for turn in range(asked.rounds + 1):  # the first one warms up
        random.shuffle(order)
        for name in order:
            begun = time.process_time()
            for _ in range(asked.steps):
                steps[name]()
            if turn:
                seconds[name].append((time.process_time() - begun) / asked.steps)
    print(f"{'mechanism':<18}{'ms a step':>10}{'over DP-SGD':>13}   quartiles")
    for name, taken in seconds.items():
        ratios = [mine / theirs for mine, theirs in zip(taken, seconds[REFERENCE], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        print(f"{name:<18}{1e3 * statistics.median(taken):>10.3f}{middle:>13.3f}   {low:.3f} to {high:.3f}")


if __name__ == "__main__":
    main()
