"""One task in, one record out."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import io
import json
import math
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpsweep.build import build, plan_of, target_class, target_of
from dpsweep.errors import OutputError, UsageError
from dpsweep.mechanisms.base import Guarantee, Plan
from dpsweep.metrics import majority_accuracy
from dpsweep.provenance import data_of, versions
from dpsweep.records import FIELDS, Records
from dpsweep.tasks import Settings, Task

# Fields that are read from the training records without noise: withheld where the records aren't public.
UNPROTECTED = (
    "data_fingerprint", "train_size", "unused_size", "seconds_train", "seconds_features", "seconds_train_with_features",
    "seconds_setup", "seconds_total", "finished", "peak_memory_growth", "diagnostics", "majority_accuracy",
)  # fmt: skip


Keep = Callable[[bytes], None]  # takes the released weights, if they are wanted
Run = Callable[[Task, Settings, bool, Keep], dict[str, Any]]  # makes a task's record, as `run_task` does


def attempt(task: Task, settings: Settings, alone: bool, run: Run | None = None) -> tuple[str, dict[str, Any] | None]:
    """Run a task unless it is done or another process has it, and write its record.

    Args:
        run: what trains, in place of `run_task`: the work may be done elsewhere, the claim is held and the record written here.

    Returns:
        ``("done" | "failed", record)``; ``("claimed", None)`` where another process is at it; or ``("unwritten", record)``
        where no record can be written, with the reason as the error.
    """
    records = Records(settings.output_dir)
    try:
        with records.claim(task.id) as free:
            if not free:
                return "claimed", None
            records.sweep_leftovers(task.id)
            earlier = records.load(task.id)
            done_before = earlier is not None and earlier["status"] == "done"
            if earlier is not None and done_before and not settings.force and _of_this_data(task, earlier, settings):
                return "done", earlier
            if earlier is not None and not done_before and earlier["checksum"] not in settings.tried_again:
                return "failed", earlier  # another process tried it since this sweep began
            weights: list[bytes] = []
            with records.noted(task.id, socket.gethostname()):
                record = (run or run_task)(task, settings, alone, weights.append)
            if record["status"] == "failed" and done_before:
                return "failed", record  # the done record stays
            record = records.write(record, done_before, *(weights if record["status"] == "done" else ()))
            return record["status"], record
    except OutputError as error:
        return "unwritten", failed_record(task, settings, "OutputError", str(error))


def _of_this_data(task: Task, record: dict[str, Any], settings: Settings) -> bool:
    """Whether nothing tells that a done record was made of other data than there is here."""
    if record["data_fingerprint"] is None:
        return True
    try:
        dataset, _, _ = load_data(data_of(task.values), settings.data_dir, str(pick_device(settings.device)))
    except UsageError:
        return True
    return bool(record["data_fingerprint"] == dataset.fingerprint)


def run_task(task: Task, settings: Settings, alone: bool = True, keep: Keep | None = None) -> dict[str, Any]:
    """Train and evaluate; a failure is a record too, with its traceback. With save_model the weights go to `keep`."""
    clock = time.perf_counter()
    record = _blank(task, settings) | {"alone": alone}
    try:
        with _tuned(settings.threads):
            record |= _train(task, settings, clock, keep)
        record["status"] = "done"
    except OutputError:
        raise
    except (Exception, SystemExit) as error:  # whatever it is, the sweep goes on and the record says it
        record["error"] = _error(error, record["public"])
    record |= {"finished": _now(), "seconds_total": time.perf_counter() - clock}
    return record if record["public"] else record | dict.fromkeys(UNPROTECTED)


def failed_record(task: Task, settings: Settings, kind: str, message: str) -> dict[str, Any]:
    """The record of a task whose process can't tell any more what happened to it."""
    return _blank(task, settings) | {"error": {"type": kind, "message": message, "traceback": ""}}


def _blank(task: Task, settings: Settings) -> dict[str, Any]:
    """A record before the outcome is known: what the configuration says, and nulls."""
    values = task.values
    return dict.fromkeys(FIELDS) | task.labels | {
        "id": task.id, "status": "failed", "batch_size": values["batch_size"], "epochs": values["epochs"],
        "noise_source": task.config.get("noise", {}).get("source"), "public": bool(values["dataset"].get("public", False)),
        "engine": settings.engine, "threads": settings.threads, "started": _now(), "alone": False,
        "selection": values["selection"],
        "host": socket.gethostname(), "versions": versions(), "diverged": False, "unprotected": list(UNPROTECTED),
    }  # fmt: skip


def _train(task: Task, settings: Settings, clock: float, keep: Keep | None) -> dict[str, Any]:
    import torch
    import torch._dynamo  # an optimizer imports it at its first step: seconds that belong to no training time

    from dpsweep.models.base import Model, mixes_records
    from dpsweep.privacy.noise import Hardening, Randomness
    from dpsweep.resources import MemoryGrowth, model_resources
    from dpsweep.training.augment import crop_flip
    from dpsweep.training.checkpoint import Checkpoint
    from dpsweep.training.curves import Curves
    from dpsweep.training.diagnostics import Diagnostics
    from dpsweep.training.engines import prepare
    from dpsweep.training.loop import LoopData, train

    values = task.values
    device = pick_device(settings.device)
    mechanism, schedule, account, plan = plan_of(values)
    dataset, x, y = load_data(data_of(values), settings.data_dir, str(device))
    memory = MemoryGrowth(device)
    public = bool(values["dataset"].get("public", False))
    secure = task.config.get("noise", {}).get("source") == "secure"
    origin = {"code": _code_of(values), "secure": secure, "plan": _told(plan), "data": dataset.fingerprint if public else None}
    checkpoint = Checkpoint(Records(settings.output_dir), task.id, origin, settings.checkpoint_every)
    if secure:
        plan = replace(plan, repeated=tuple(checkpoint.lost))
    model = build("model", values["model"], dataset.x_train.shape[1:], dataset.classes, task.config["seed"]).to(device)
    if not isinstance(model, Model):
        raise UsageError(f"model={values['model']['name']}: {type(model).__name__} must derive from dpsweep.models.base.Model")
    target, private = target_of(values), not plan.unbounded()
    asked = private or target is not None  # what only claims a budget is held to the same rules
    if (asked or values["diagnostics"]) and mixes_records(model, dataset.x_train.shape[1:]):
        wish = "be trained privately" if asked else "have diagnostics=true (gradient norms by record)"
        raise UsageError(
            f"model={values['model']['name']} can't {wish}: a record's output changes with the others of "
            "its batch (batch normalisation?) or from call to call (nn.Dropout? use mask_shapes). Use group normalisation"
        )
    # An augmented record has new features in each step, so that none are kept.
    engine = "uncached" if values["augment"] and settings.engine == "default" else settings.engine
    prepared = prepare(engine, model, x, f"{data_of(values)} {settings.data_dir}", settings.physical_batch)
    randomness = Randomness.secure() if secure else checkpoint.randomness() or Randomness.seeded(task.config["seed"])
    hardening: Hardening = values["noise"]["hardening"] or "none"
    diagnostics = None
    if values["diagnostics"]:
        diagnostics = Diagnostics(model, prepared, y, math.ceil(1 / schedule.sample_rate))
    data = LoopData(prepared, y, model, plan, schedule.normalizer, randomness, hardening, settings.physical_batch, diagnostics,
                    crop_flip if values["augment"] else None)  # fmt: skip
    curves = None
    if values["curves"]:
        x_test, y_test = (torch.from_numpy(part).to(device) for part in (dataset.x_test, dataset.y_test))
        spent = functools.partial(plan.epsilon, account) if private else None
        curves = Curves(model, x_test, y_test, math.ceil(1 / schedule.sample_rate), plan.steps, spent)
    frozen = [buffer.clone() for buffer in model.buffers()]
    setup = time.perf_counter()
    earlier = 0.0  # seconds of training before an interruption

    def training() -> float:
        return earlier + time.perf_counter() - setup - (curves.seconds if curves else 0)

    def resumed(seconds: float) -> None:
        nonlocal earlier
        earlier = seconds

    checkpoint.parts |= {name: (part.state, part.restore) for name, part in
                         (("curves", curves), ("diagnostics", diagnostics)) if part is not None}  # fmt: skip
    if public:  # else times are told nowhere
        checkpoint.parts["seconds"] = (training, resumed)
    if not asked:  # else they must not change, and what a mistaken model wrote into them must not reach the disk
        checkpoint.parts["buffers"] = (lambda: dict(model.named_buffers()), lambda kept: _fill(model, kept))
    trained = train(mechanism, plan, model, data, optimizer_of(values), curves.after if curves else lambda step: None, checkpoint)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds, growth = training(), memory.read()
    if asked and not all(map(torch.equal, frozen, model.buffers())):
        raise UsageError(
            f"model={values['model']['name']} changed a buffer while it was trained (running statistics?): that would be "
            "released with the model, without noise. Keep buffers fixed"
        )
    guarantee = with_repeated(mechanism.guarantee(plan, trained.ledger, account, target), plan)
    metrics = evaluate_model(model, dataset, device)
    if settings.save_model and keep is not None:
        keep(weights_of(model))
    return {
        "reference_size": schedule.reference_size, "sample_rate": str(schedule.sample_rate), "steps": plan.steps,
        "normalizer": schedule.normalizer, "delta": account.delta if asked else None,
        "max_grad_norm": plan.max_grad_norm, "noise_multiplier": plan.noise_multiplier,
        **dict(plan.public), **dict(mechanism.outcome(trained.state)), **guarantee_fields(guarantee, not randomness.is_secure),
        "events": [[event.to_json(), count] for event, count in trained.ledger.events()],
        "resumed_at": checkpoint.resumed_at or None,
        "diverged": trained.diverged, **{f"test_{name}": value for name, value in metrics.items()},
        "seconds_setup": setup - clock, "seconds_train": seconds, "features_cached": prepared.cached,
        "seconds_features": prepared.seconds, "seconds_train_with_features": seconds + prepared.seconds, "device": str(device),
        **model_resources(model, dataset.x_train.shape[1:]), "peak_memory_growth": growth,
        "diagnostics": diagnostics.result() if diagnostics else None, "curves": curves.result() if curves else None,
        "data_fingerprint": dataset.fingerprint, "data_official": dataset.official, "data_source": dataset.source,
        "train_size": len(y), "unused_size": dataset.unused,
        "test_size": len(dataset.y_test), "input_shape": list(dataset.x_train.shape[1:]),
        "majority_accuracy": majority_accuracy(dataset.y_train, dataset.y_test),
    }  # fmt: skip


def _fill(model: Any, kept: dict[str, Any]) -> None:
    for name, buffer in model.named_buffers():
        buffer.copy_(kept[name])


def with_repeated(guarantee: Guarantee, plan: Plan) -> Guarantee:
    """The guarantee, saying what a checkpoint gave away that the run could not go on from."""
    if not plan.repeated:
        return guarantee
    steps = " and ".join(f"{number:,}" for number in plan.repeated)
    text = (
        f"{guarantee.text} A checkpoint after {steps} steps was on the disk and could not be gone on from (damaged, cut off, "
        "or of another version or other data), and these steps were taken anew: "
    )
    if guarantee.epsilon is None:
        return replace(guarantee, text=f"{text}whoever read it knows more than any claim here covers.")
    claimed = max(guarantee.epsilon_claimed or 0.0, guarantee.epsilon)
    text += "whoever read it has seen them too, so they are charged twice and epsilon is larger than the plan's."
    return replace(guarantee, epsilon_claimed=claimed, text=text)


def guarantee_fields(guarantee: Guarantee, seeded: bool) -> dict[str, Any]:
    """The guarantee as record fields; seeded noise proves nothing, whatever the account says."""
    if seeded and guarantee.epsilon is not None:
        text = f"No guarantee, since the noise was seeded; with secure noise it would be: {guarantee.text}"
        guarantee = replace(guarantee, epsilon=None, epsilon_if_secure=guarantee.epsilon, reason="noise was seeded", text=text)
    elif seeded and guarantee.epsilon_claimed is not None:
        text = f"{guarantee.text} The noise was seeded, so that not even the claim holds."
        guarantee = replace(guarantee, epsilon_claimed=None, reason=f"{guarantee.reason}; and the noise was seeded", text=text)
    fields = asdict(guarantee)
    return fields | {"guarantee_reason": fields.pop("reason"), "guarantee_text": fields.pop("text")}


@contextlib.contextmanager
def _tuned(threads: int) -> Iterator[None]:
    """Threads and flushed denormals (a converged run slows several times on them) for a task, taken back afterwards for
    whoever called us in their own process. Threads inherit the setting when they are made, so it comes first."""
    import torch

    before = torch.get_num_threads()
    torch.set_flush_denormal(True)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)


def pick_device(name: str) -> Any:
    """The torch device for auto, cpu or cuda.

    Raises:
        UsageError: there is no such device here.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device={name}: PyTorch finds no CUDA device here. Write device=cpu or device=auto")
    return torch.device(name)


given: dict[str, Any] = {}  # datasets that came from another machine, by `data_of`


def read_data(key: str, data_dir: Path) -> Any:
    """The dataset of a whole configuration's `data_of`, from its files."""
    node, split, split_seed = json.loads(key)
    dataset = build("dataset", node).load(data_dir, split, split_seed)
    dataset.check(tuple(node["shape"]), node["classes"])
    return dataset


@functools.lru_cache(maxsize=2)
def load_data(key: str, data_dir: Path, device: str) -> tuple[Any, Any, Any]:
    """The dataset of a key, and its training tensors on the device."""
    import torch

    dataset = given.get(key) or read_data(key, data_dir)
    return dataset, torch.from_numpy(dataset.x_train).to(device), torch.from_numpy(dataset.y_train).to(device)


def optimizer_of(values: dict[str, Any]) -> Callable[..., Any] | None:
    """A factory of the configured optimizer over given parameters: in its fused form, one pass over memory, if it has one.
    None where the mechanism uses no optimizer."""
    node = values["optimizer"]
    if node is None:
        return None
    fused = "fused" in inspect.signature(target_class("optimizer", node)).parameters
    return lambda parameters: build("optimizer", {"fused": True, **node} if fused else node, parameters)


def evaluate_model(model: Any, dataset: Any, device: Any) -> dict[str, float | None]:
    """Metrics on the test set, in evaluation mode."""
    import torch

    from dpsweep.metrics import evaluate
    from dpsweep.models.base import probabilities

    model.eval()
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        x = torch.from_numpy(dataset.x_test)
        parts = [probabilities(model(part.to(device, dtype))).cpu() for part in x.split(500)]
    return evaluate(torch.cat(parts).numpy(), dataset.y_test)


def weights_of(model: Any) -> bytes:
    """The released weights as a state dict in a file, to be read with ``torch.load(path, weights_only=True)``."""
    import torch

    buffer = io.BytesIO()
    torch.save({name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}, buffer)
    return buffer.getvalue()


def _told(plan: Plan) -> list[Any]:
    """A plan as plain values."""
    events = [[event.to_json(), count] for event, count in plan.events()]
    return [plan.steps, plan.max_grad_norm, plan.noise_multiplier, events]


def _code_of(values: Mapping[str, Any]) -> dict[str, str]:
    """What tells the code that a task is computed by: versions, and the files of classes that may be the user's own."""
    files = {group: inspect.getfile(target_class(group, values[group])) for group in ("dataset", "model", "mechanism")}
    own = {group: hashlib.sha256(Path(file).read_bytes()).hexdigest() for group, file in files.items()}
    return own | {name: versions()[name] for name in ("dpsweep", "torch")}


OUT_OF_MEMORY = "OutOfMemory"  # the type of every error that half the physical batch may mend


def _error(error: Exception | SystemExit, public: bool) -> dict[str, str]:
    """The error; on records that aren't public only its type and place, since a message may quote a record."""
    kind = OUT_OF_MEMORY if _out_of_memory(error) else type(error).__name__
    if public:
        text = "".join(traceback.format_exception(error))
        return {"type": kind, "message": str(error), "traceback": text}
    frames = traceback.extract_tb(error.__traceback__)
    place = "".join(f"{frame.filename}:{frame.lineno} in {frame.name}\n" for frame in frames)
    message = "withheld: the dataset is not public"
    if isinstance(error, UsageError):
        message += "; if its files are at fault, `dpsweep data verify NAME` tells their owner what is wrong"
    return {"type": kind, "message": message, "traceback": place}


def _out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was too little memory; PyTorch's allocator on a CPU has no type of its own for it."""
    import torch

    words = ("can't allocate memory", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in words)
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
