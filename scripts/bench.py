"""Measure training loops side by side: plain training, Opacus (hooks, ghost clipping) and dpsweep.

    python scripts/bench.py                              all models at CIFAR-10's shape, one thread
    python scripts/bench.py --quick --models rvfl cnn    a short look
    python scripts/bench.py --check --json bench.json    exit code 1 if a ratio misses its bar

Every contestant runs whole steps (sampling, gathering, clipping, noise, optimizer) in a fresh process of its own, so
that memory is its own and no library slows another; only one computes at a time. They take turns, A B C A B C ...: each
turn is a warm-up step and k timed ones, and the figures are medians over turns, with the least and the greatest, of
wall time or (--clock cpu) of CPU time, which counts the waiting of threads too.
`dpsweep` is the product's own path: its configuration, its engine, its loop's step.

Ratios compare whole runs of T steps (10 epochs): what a contestant pays once (dpsweep's features of frozen layers)
plus T times its median step. Plain training is the fastest of its forms (fused Adam or not, channels_last or not).
"35 RVFL tasks" are 5 seeds x (6 budgets and none), by arithmetic from the steps measured for rvfl: dpsweep pays the
features once a seed, then 6 T steps with secure noise and T steps without privacy; Opacus 6 T steps with hooks and T
steps of plain training, both a seed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench_contestants as contestants
import numpy as np

from dpsweep import provenance
from dpsweep.build import build, schedule_of
from dpsweep.errors import UsageError
from dpsweep.tasks import available_cores

FROZEN = ("rvfl", "elm_sgd", "frozen_matched", "logistic_projected")
MODELS = (*FROZEN, "logistic_raw", "dense", "cnn", "attention")
SEEDS, BUDGETS = 5, 6  # of the 35 tasks
# Of the ratios: (numerator, denominator, True if greater is better).
RATIOS = {
    "hooks / dpsweep": ("opacus hooks", "dpsweep seeded", True),
    "ghost / dpsweep": ("opacus ghost", "dpsweep seeded", True),
    "dpsweep seeded / plain": ("dpsweep seeded", "plain", False),
    "dpsweep secure / plain": ("dpsweep secure", "plain", False),
}
_BARS: dict[str, tuple[float | None, ...]] = {
    **dict.fromkeys(FROZEN, (15, 6, 0.5, 0.6)),
    "logistic_raw": (5, 1.5, 1.7, None),
    "dense": (25, 1.3, 1.6, 3.5),
    "cnn": (3.5, 1.6, 1.5, 1.7),
    "attention": (2, None, 2, None),
    "35 rvfl tasks": (15, None, None, None),
}
BARS = {row: dict(zip(RATIOS, bars, strict=True)) for row, bars in _BARS.items()}
SHOWN = (
    "plain", "opacus hooks", "opacus ghost", "dpsweep uncached", "dpsweep seeded", "dpsweep secure", "dpsweep none",
)  # fmt: skip
PLAIN = {
    "plain": {"fused": False, "channels_last": False},
    "plain fused": {"fused": True, "channels_last": False},
    "plain channels_last": {"fused": False, "channels_last": True},
    "plain channels_last fused": {"fused": True, "channels_last": True},
}


def specs(model: str, options: argparse.Namespace, folder: Path) -> dict[str, contestants.Spec]:
    """The contestants of a model, by name."""
    chosen: dict[str, tuple[str, dict[str, Any]]] = {
        name: ("plain", forms) for name, forms in PLAIN.items() if model == "cnn" or not forms["channels_last"]
    }
    chosen["opacus hooks"] = "opacus", {"mode": "hooks"}
    chosen["opacus ghost"] = "opacus", {"mode": "ghost"}
    if model in FROZEN and has_uncached_engine():
        chosen["dpsweep uncached"] = "dpsweep", {"engine": "uncached", "noise.source": "seeded"}
    chosen["dpsweep seeded"] = "dpsweep", {"noise.source": "seeded"}
    chosen["dpsweep secure"] = "dpsweep", {"noise.source": "secure"}
    if model == "rvfl":
        chosen["dpsweep none"] = "dpsweep", {"epsilon": "none"}
    common = (model, folder, options.batch, options.threads, options.device)
    return {name: contestants.Spec(kind, how, *common) for name, (kind, how) in chosen.items()}


def has_uncached_engine() -> bool:
    """Whether this version can be told not to keep features."""
    try:
        contestants.COMPOSER.compose([("engine", "uncached")])
    except UsageError:
        return False
    return True


def save_data(folder: Path, records: int, data_dir: Path | None) -> int:
    """Write x.npy, float32 (n, 3, 32, 32), and y.npy, int64 (n,): CIFAR-10, or learnable classes from a seed."""
    if data_dir is not None:
        node = contestants.COMPOSER.compose([("dataset", "cifar10")]).values["dataset"]
        dataset = build("dataset", node).load(data_dir, "dp_rvfl", 2026)
        x, y = dataset.x_train[:records], dataset.y_train[:records]
    else:
        generator = np.random.default_rng(1)
        y = generator.integers(10, size=records)
        patterns = generator.random((10, 3, 32, 32), dtype=np.float32)
        x = generator.random((records, 3, 32, 32), dtype=np.float32)
        for start in range(0, records, 1000):
            part = slice(start, start + 1000)
            x[part] = 0.7 * x[part] + 0.3 * patterns[y[part]]
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return len(y)


# A server that has imported the libraries, and nothing else, forks the contestants: torch is imported once.
CONTEXT: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
CONTEXT.set_forkserver_preload(["torch._dynamo", "opacus", "hydra", "dpsweep.training.loop"])


class Process:
    """A contestant's process and the line to it."""

    def __init__(self, spec: contestants.Spec) -> None:
        self._line, far = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=contestants.serve, args=(spec, far), daemon=True)
        self._process.start()
        far.close()
        self.error: str | None = None

    def ask(self, turn: tuple[int, int] | None) -> dict[str, Any] | None:
        """Send a turn (None: the end) and wait for the answer; None where the contestant failed."""
        if self.error is None:
            self._line.send(turn)
        return self.answer()

    def answer(self) -> dict[str, Any] | None:
        """The next message; None where the contestant failed."""
        if self.error is None:
            try:
                message = self._line.recv()
            except EOFError:
                self._process.join()
                message = {"error": f"its process ended with code {self._process.exitcode}"}
            self.error = message.get("error")
            if self.error is None:
                return message
        return None


def measure(model: str, options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """The figures of each contestant on one model; seconds a step, setup in seconds, memory in MB."""
    racers = {name: Process(spec) for name, spec in specs(model, options, folder).items()}
    found: dict[str, dict[str, Any]] = {name: {"turns": []} for name in racers}
    for name, racer in racers.items():
        found[name] |= racer.answer() or {}
    for name, racer in racers.items():
        trial = racer.ask((1, 2))
        if trial:
            fitting = round(options.seconds / max(trial["wall"] / 2, 1e-6))
            found[name]["steps"] = options.steps or min(max(fitting, 3), 500)
    for _ in range(options.rounds):
        for name, racer in racers.items():
            turn = racer.ask((1, found[name].get("steps", 0)))
            if turn:
                found[name]["turns"].append(turn)
    for name, racer in racers.items():
        found[name] |= racer.ask(None) or {"error": racer.error}
        if racer.error is None:
            summarise(found[name])
    forms = {name: found[name] for name in PLAIN if name in found and "error" not in found[name]}
    if forms:
        fastest = min(forms, key=lambda name: forms[name][options.clock]["median"])
        found["plain"], found["plain as it comes"] = found[fastest] | {"form": fastest}, found["plain"]
    return found


def summarise(figures: dict[str, Any]) -> None:
    """Medians over the turns."""
    for clock in ("wall", "cpu"):
        each = [turn[clock] / figures["steps"] for turn in figures["turns"]]
        figures[clock] = {"median": statistics.median(each), "min": min(each), "max": max(each)}
    figures["mean_batch"] = statistics.fmean(turn["records"] / figures["steps"] for turn in figures["turns"])


def run_seconds(figures: dict[str, Any], steps: int, clock: str) -> float | None:
    """What a run of so many steps takes; None where the contestant failed."""
    if "median" not in figures.get(clock, {}):
        return None
    return figures["setup_seconds"] + steps * figures[clock]["median"]


def ratios(rows: dict[str, dict[str, Any]], steps: int, clock: str) -> dict[str, dict[str, float | None]]:
    """Every ratio of the bars for every row; None where a part of it failed."""
    found: dict[str, dict[str, float | None]] = {}
    for model, row in rows.items():
        runs = {name: run_seconds(figures, steps, clock) for name, figures in row.items()}
        found[model] = {ratio: divide(runs[over], runs[under]) for ratio, (over, under, _) in RATIOS.items()}
    if "rvfl" in rows:
        found["35 rvfl tasks"] = {"hooks / dpsweep": divide(*seconds_of_35(rows["rvfl"], steps, clock))}
    return found


def divide(over: float | None, under: float | None) -> float | None:
    return None if over is None or under is None else over / under


def seconds_of_35(row: dict[str, Any], steps: int, clock: str) -> tuple[float | None, float | None]:
    """Seconds of the 35 tasks by Opacus and by dpsweep: see the module."""
    hooks, ordinary = (run_seconds(row[name], steps, clock) for name in ("opacus hooks", "plain"))
    secure, none = (run_seconds(row[name], steps, clock) for name in ("dpsweep secure", "dpsweep none"))
    if hooks is None or ordinary is None or secure is None or none is None:
        return None, None
    features = row["dpsweep secure"]["setup_seconds"]
    private, free = secure - features, none - row["dpsweep none"]["setup_seconds"]
    return SEEDS * (BUDGETS * hooks + ordinary), SEEDS * (features + BUDGETS * private + free)


def missed(found: dict[str, dict[str, float | None]]) -> list[str]:
    """The ratios that miss their bar, in words; one that could not be measured misses it."""
    words = []
    for row, values in found.items():
        for ratio, value in values.items():
            bar = BARS[row].get(ratio)
            greater = RATIOS[ratio][2]
            if bar is None or (value is not None and (value >= bar if greater else value <= bar)):
                continue
            shown = "not measured" if value is None else f"{value:.3g}"
            words.append(f"{row}: {ratio} is {shown}, the bar is {'at least' if greater else 'at most'} {bar:g}")
    return words


def table(rows: dict[str, dict[str, Any]], found: dict[str, dict[str, float | None]], steps: int, clock: str) -> str:
    """The results as Markdown."""
    names = [name for name in SHOWN if any(name in row for row in rows.values())]
    body = [[model, *(_cell(row.get(name), clock) for name in names)] for model, row in rows.items()]
    lines = [f"Milliseconds a step ({clock}): median (least..greatest) over turns", "", *_grid(["model", *names], body)]
    body = [[row, *(_ratio(row, ratio, values) for ratio in RATIOS)] for row, values in found.items()]
    lines += ["", f"Ratios of whole runs of {steps} steps, what is paid once included, and [the bar]", ""]
    lines += [*_grid(["row", *RATIOS], body), "", "By contestant", ""]
    body = []
    for model, row in rows.items():
        for name in names:
            figures = row.get(name)
            if figures is None:
                continue
            if "error" in figures:
                body.append([model, name, figures["error"], "", "", "", "", ""])
                continue
            grown = figures["memory_growth_mb"]
            total = run_seconds(figures, steps, clock)
            body.append([model, figures.get("form", name), f"{figures['setup_seconds']:.2f}", f"{total:.1f}",
                         f"{figures['mean_batch']:.1f}", f"{figures['steps']} x {len(figures['turns'])}",
                         "not known" if grown is None else f"{grown:.0f}", f"{figures['accuracy']:.2f}"])  # fmt: skip
    head = ["model", "contestant", "once, s", "run, s", "mean batch", "steps x turns", "memory growth, MB", "accuracy"]
    return "\n".join(lines + _grid(head, body))


def _grid(head: list[str], body: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body)]


def _cell(figures: dict[str, Any] | None, clock: str) -> str:
    if figures is None:
        return ""
    if "error" in figures:
        return "failed"
    low, middle, high = (1000 * figures[clock][key] for key in ("min", "median", "max"))
    return f"{middle:.3g} ({low:.3g}..{high:.3g})"


def _ratio(row: str, ratio: str, values: dict[str, float | None]) -> str:
    if ratio not in values:
        return ""
    bar = BARS[row].get(ratio)
    shown = "failed" if (value := values[ratio]) is None else f"{value:.3g}"
    return shown if bar is None else f"{shown} [{'>=' if RATIOS[ratio][2] else '<='} {bar:g}]"


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    cpu = next(names, platform.processor())
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"cpu": cpu, "cores": available_cores(), "load_at_start": load, "versions": provenance.versions()}


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [model for model in MODELS if model in contestants.COMPOSER.options("model")]
    parser.add_argument("--models", nargs="+", choices=known, default=known, metavar="MODEL", help=", ".join(known))
    parser.add_argument("--threads", type=int, default=1, help="of each contestant (1)")
    parser.add_argument("--rounds", type=int, help="turns of each contestant (7)")
    parser.add_argument("--seconds", type=float, help="how long a turn lasts, at least 3 steps (1.0)")
    parser.add_argument("--steps", type=int, help="timed steps a turn, in place of --seconds")
    parser.add_argument("--records", type=int, default=42500, help="training records (42500)")
    parser.add_argument("--batch", type=int, default=256, help="batch size B, rate 1/ceil(N/B) (256)")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="CIFAR-10 from there, not synthetic data")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="ratios are of (wall)")
    parser.add_argument("--quick", action="store_true", help="3 turns of 0.2 seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a ratio misses its bar")
    options = parser.parse_args(argv)
    for name in ("threads", "rounds", "seconds", "steps", "records", "batch"):
        if (value := getattr(options, name)) is not None and value <= 0:
            parser.error(f"--{name} {value}: a number above 0 is needed")
    options.rounds = options.rounds or (3 if options.quick else 7)
    options.seconds = options.seconds or (0.2 if options.quick else 1.0)
    return options


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and check where that was asked."""
    options = arguments(argv)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # for the processes that are started
    about, begun = machine(), time.perf_counter()
    if about["load_at_start"] and about["load_at_start"] > 0.5:
        print(f"bench: the machine is busy (load {about['load_at_start']:.1f}): expect noise", file=sys.stderr)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="dpsweep-bench-") as folder:
        records = save_data(Path(folder), options.records, options.data)
        protocol = [("dataset", "cifar10"), ("dataset.reference_size", records), ("batch_size", options.batch)]
        schedule = schedule_of(contestants.COMPOSER.compose(protocol).values)
        for model in options.models:
            print(f"bench: {model} ...", file=sys.stderr, flush=True)
            rows[model] = measure(model, options, Path(folder))
    found = ratios(rows, schedule.steps, options.clock)
    short = missed(found)
    print(f"{about['cpu']}, {about['cores']} cores, {options.threads} thread(s), {options.device}, {records} records, "
          f"expected batch {schedule.normalizer}, torch {about['versions']['torch']}, "
          f"Opacus {about['versions']['opacus']}, {time.perf_counter() - begun:.0f} s\n\n"
          f"{table(rows, found, schedule.steps, options.clock)}")  # fmt: skip
    if options.json is not None:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
        content = {"machine": about, "settings": settings, "run_steps": schedule.steps, "rows": rows, "ratios": found,
                   "bars": {row: BARS[row] for row in found}, "missed": short}  # fmt: skip
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.check:
        print("\n" + ("\n".join(f"below the bar: {line}" for line in short) or "every ratio meets its bar"))
    return 1 if options.check and short else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UsageError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
