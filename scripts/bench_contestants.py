"""What the benchmark measures: whole training loops, each in a process of its own.

Every contestant draws its batches, gathers them, forms its gradient and takes an Adam step at the learning rate of the
configuration; the private ones clip to the configured norm and add noise of the calibrated multiplier. Inputs, labels,
initial weights, expected batch, threads and flushed denormals are the same for all.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpsweep import runner
from dpsweep.build import build, plan_of, schedule_of
from dpsweep.config import Composer
from dpsweep.models.base import Model, example_losses, probabilities
from dpsweep.privacy.noise import Randomness
from dpsweep.tasks import Settings, Task
from dpsweep.training import engines
from dpsweep.training.loop import LoopData

COMPOSER = Composer()


@dataclass(frozen=True)
class Spec:
    """One contestant on one model.

    Attributes:
        contestant: ``plain``, ``opacus`` or ``dpsweep``.
        options: of the contestant: fused, channels_last; mode; or overrides of the configuration.
        model: a registered model.
        folder: where x.npy and y.npy lie.
        batch_size: B; the rate is q = 1/ceil(N/B), as in the protocol of the DP-RVFL paper.
        threads: of torch.
        device: cpu or cuda.
    """

    contestant: str
    options: dict[str, Any]
    model: str
    folder: Path
    batch_size: int
    threads: int
    device: str


@dataclass
class Contestant:
    """A loop that stands ready.

    Attributes:
        step: takes one whole step and returns how many records its batch had.
        model: what it trains.
        setup_seconds: what a run pays once before its steps, such as the features of frozen layers.
    """

    step: Callable[[], int]
    model: Model
    setup_seconds: float = 0.0


def configuration(spec: Spec, records: int) -> tuple[Task, Settings]:
    """The task that every contestant trains, and how dpsweep would run it."""
    items = {
        "dataset": "cifar10", "dataset.reference_size": records, "batch_size": spec.batch_size, "model": spec.model,
        "epsilon": "8", "threads": spec.threads, "device": spec.device,
    }  # fmt: skip
    if spec.contestant == "dpsweep":
        items |= spec.options
    config = COMPOSER.compose(list(items.items()))
    return Task.from_config(config), Settings.from_config(config)


def build_model(values: dict[str, Any], x: Tensor, seed: int) -> Model:
    """The model of a configuration, from the seed: the same weights for every contestant."""
    return build("model", values["model"], x.shape[1:], values["dataset"]["classes"], seed)


class CountingData(LoopData):
    """The loop's data, counting the records that were drawn."""

    records = 0

    def draw(self) -> Any:
        """See :class:`~dpsweep.mechanisms.base.Data`."""
        batch = super().draw()
        self.records += len(self._indices[batch.number])
        return batch


def prepare(task: Task, settings: Settings, x: Tensor, y: Tensor) -> Contestant:
    """dpsweep by the product's own path: what ``runner`` does before training, and a step of ``loop.train``."""
    values = task.values
    mechanism, schedule, _, plan = plan_of(values)
    plan = replace(plan, steps=10**9)  # the benchmark takes as many as it needs
    model = build_model(values, x, task.config["seed"]).to(x.device)
    seeded = values["noise"]["source"] == "seeded" or not values["mechanism"].get("private", True)
    randomness = Randomness.seeded(task.config["seed"]) if seeded else Randomness.secure()
    begun = time.perf_counter()
    ready = engines.prepare(settings.engine, model, x, "benchmark", settings.physical_batch)
    hardening: Any = values["noise"]["hardening"] or "none"
    data = CountingData(ready, y, model, plan, schedule.normalizer, randomness, hardening)
    model.train()
    state = mechanism.start(plan, model, runner.optimizer_of(values))

    def step() -> int:
        before = data.records
        mechanism.step(state, data)
        data.close_step()
        return data.records - before

    step()  # features may be made on first use
    finish(settings.device)
    return Contestant(step, model, time.perf_counter() - begun)


def dropout_masks(model: Model, n: int, device: torch.device) -> tuple[Tensor, ...]:
    """Masks as torch's dropout draws them: 0 or 1/keep, shape (n, ...)."""
    keep = 1 - model.dropout
    return tuple(torch.empty(n, *shape, device=device).bernoulli_(keep).div_(keep) for shape in model.mask_shapes)


def plain(values: dict[str, Any], x: Tensor, y: Tensor, model: Model, fused: bool, channels_last: bool) -> Contestant:
    """Ordinary training: shuffled batches of the size that Poisson sampling expects, one autograd pass, Adam."""
    size = schedule_of(values).normalizer
    optimizer = torch.optim.Adam(model.parameters(), **adam_options(values), fused=fused)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(memory_format=layout)  # type: ignore[call-overload]

    def shuffled() -> Iterator[Tensor]:
        while True:
            yield from (part for part in torch.randperm(len(x)).to(x.device).split(size) if len(part) == size)

    batches = shuffled()

    def step() -> int:
        indices = next(batches)
        inputs, labels = x[indices], y[indices]
        if channels_last:
            inputs = inputs.contiguous(memory_format=layout)
        optimizer.zero_grad()
        example_losses(model(inputs, *dropout_masks(model, size, x.device)), labels).mean().backward()
        optimizer.step()
        return size

    return Contestant(step, model)


def adam_options(values: dict[str, Any]) -> dict[str, Any]:
    """Adam's arguments in the configuration."""
    return {key: values["optimizer"][key] for key in ("lr", "betas", "eps", "weight_decay")}


class OpacusTraining:
    """Opacus' ``PrivacyEngine.make_private`` with its own Poisson loader.

    Args:
        values: the configuration: batch size, clipping norm, optimizer.
        x, y: inputs and labels in host memory; batches are moved to the model's device.
        model: without dropout masks of its own; masks are drawn as torch's dropout draws them.
        mode: ``hooks`` (per-example gradients) or ``ghost`` (two backward passes).
        noise_multiplier: sigma; the deviation is sigma times the clipping norm.
    """

    def __init__(self, values: dict[str, Any], x: Tensor, y: Tensor, model: Model, mode: str,
                 noise_multiplier: float) -> None:  # fmt: skip
        from opacus import PrivacyEngine
        from opacus.data_loader import DPDataLoader
        from torch.utils.data import DataLoader, TensorDataset

        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        self._model = model.train()
        self._device = next(model.parameters()).device
        self._criterion: Any = nn.CrossEntropyLoss()
        private = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.Adam(model.parameters(), **adam_options(values), fused=True),
            criterion=self._criterion,
            data_loader=DataLoader(TensorDataset(x, y), batch_size=values["batch_size"]),
            noise_multiplier=noise_multiplier,
            max_grad_norm=values["mechanism"]["max_grad_norm"],
            poisson_sampling=True,
            grad_sample_mode=mode,
        )
        if mode == "ghost":
            self._module, self.optimizer, self._criterion, loader = private
        else:
            self._module, self.optimizer, loader = private
        if not isinstance(loader, DPDataLoader):
            raise RuntimeError(f"Opacus gave a {type(loader).__name__}: batches would not be Poisson samples")
        self._loader = loader
        self._batches = self._forever()

    def _forever(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from self._loader

    def step(self) -> int:
        """One step on Opacus' next Poisson batch."""
        x, y = next(self._batches)
        self.learn(x.to(self._device), y.to(self._device))
        return len(y)

    def learn(self, x: Tensor, y: Tensor) -> None:
        """The loop's body as Opacus documents it; each p.grad is then (clipped sum + noise) / expected batch."""
        self.optimizer.zero_grad()
        loss = self._criterion(self._module(x, *dropout_masks(self._model, len(x), self._device)), y)
        loss.backward()
        self.optimizer.step()


def start(spec: Spec, x: Tensor, y: Tensor) -> Contestant:
    """The contestant that a spec names, over inputs and labels in host memory."""
    task, settings = configuration(spec, len(x))
    if spec.contestant == "dpsweep":
        return prepare(task, settings, x.to(spec.device), y.to(spec.device))
    model = build_model(task.values, x, task.config["seed"]).to(spec.device).train()
    if spec.contestant == "plain":
        return plain(task.values, x.to(spec.device), y.to(spec.device), model, **spec.options)
    sigma = plan_of(task.values)[3].noise_multiplier
    assert sigma is not None
    return Contestant(OpacusTraining(task.values, x, y, model, spec.options["mode"], sigma).step, model)


def accuracy(model: Model, x: Tensor, y: Tensor, records: int = 2000) -> float:
    """The share of the first records that the model gets right: to see that all contestants learn."""
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        guesses = probabilities(model(x[:records].to(device))).argmax(1).cpu()
    return float((guesses == y[:records]).double().mean())


def memory(field: str) -> float | None:
    """VmRSS or VmHWM (its peak) of this process in MB; None where the system doesn't tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), None)


def serve(spec: Spec, line: Connection) -> None:
    """The process of one contestant: sets it up, then takes the turns that it is told to.

    A turn of (warm-up, timed) steps is answered with wall and CPU seconds and the records of the timed ones; None
    ends the process with the peak growth of memory over "data and libraries loaded" and the accuracy reached.
    """
    try:
        torch.set_num_threads(spec.threads)
        torch.set_flush_denormal(True)
        torch.manual_seed(0)
        load_libraries()
        x, y = (torch.from_numpy(np.load(spec.folder / name)) for name in ("x.npy", "y.npy"))
        loaded = memory("VmRSS")
        contestant = start(spec, x, y)
        line.send({"setup_seconds": contestant.setup_seconds})
        while (turn := line.recv()) is not None:
            line.send(take(contestant, spec.device, *turn))
        peak = memory("VmHWM")
        grown = None if peak is None or loaded is None else peak - loaded
        if spec.device == "cuda":
            grown = torch.cuda.max_memory_allocated() / 2**20
        line.send({"memory_growth_mb": grown, "accuracy": accuracy(contestant.model, x, y)})
    except Exception as error:  # the table names it, the other contestants go on
        line.send({"error": f"{type(error).__name__}: {error}"})


def load_libraries() -> None:
    """What torch and Opacus import on first use is neither setup nor growth: one update of a single number."""
    import opacus  # noqa: F401

    number = torch.zeros(1, requires_grad=True)
    number.sum().backward()
    torch.optim.Adam([number]).step()


def take(contestant: Contestant, device: str, warm_up: int, steps: int) -> dict[str, float]:
    """One turn."""
    for _ in range(warm_up):
        contestant.step()
    finish(device)
    wall, cpu = time.perf_counter(), time.process_time()
    records = sum(contestant.step() for _ in range(steps))
    finish(device)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "records": records}


def finish(device: str) -> None:
    """Wait for what a GPU still has to do."""
    if device == "cuda":
        torch.cuda.synchronize()
