"""Checkpoints: a long run goes on where it was cut off, and the account stays right.

A checkpoint is one file, ``records/checkpoints/TASK.STEP.DIGEST.pt``, read with ``weights_only=True``: what a run carries from
step to step. It appears by a rename, whole, and its name tells the step and the digest of its contents, so that the step is
known even where the contents are damaged.

Why the account is right, with secure noise. Read a checkpoint as published: whoever reads the disk has seen it.

* It holds releases and functions of releases: parameters, what mechanism and optimizer remember, the ledger, test metrics. It
  holds neither a generator's key or position (from which the noise of past steps, and who was in their batches, would follow)
  nor anything read without noise (no count of drawn records, no time; diagnostics are refused where records aren't public).
* A run that goes on from step k keys a new generator. Steps after k of the process that died had released nothing that outlived
  it: they are as if they had never been. So the model comes of k steps and T - k further ones, each with noise of its own and
  adaptive to all that is known of the ones before: it is the composition of T steps that the plan has bounded, and the law of
  the model is that of a run without interruption. That the process died must not depend on what those steps drew; what a kill by
  time or memory tells is the running time's to tell, which is protected nowhere.
* A checkpoint of step j that the run doesn't go on from (damaged; of another version, or of other data; or cut off while it was
  written) has told of j steps that the model isn't made of. They are one more mechanism on the same data, which composes with
  the model's T steps: the plan's first j steps are charged once more (all j, though some may be shared with the checkpoint
  that the run goes on from). Epsilon rises above the target, and the guarantee says why. Such a file gives way to an empty one,
  ``TASK.STEP.NAME.lost``, in one rename, and that stays until the done record is written: no later interruption forgets it.

With seeded noise nothing is guaranteed, and the generators' positions are stored: the run goes on bit for bit, and what is
redone tells nothing new. Files are removed once the done record is written, not before.
"""

from __future__ import annotations

import hashlib
import io
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dpsweep.errors import OutputError
from dpsweep.mechanisms.base import State
from dpsweep.privacy.noise import Randomness
from dpsweep.records import Records, sync, write_through

if TYPE_CHECKING:
    from dpsweep.training.loop import LoopData

FORMAT = 1


class Checkpoint:
    """Where one task's run stands on disk. The caller holds the task's claim.

    Args:
        records: beside which the checkpoints lie.
        name: the task's id.
        origin: plain values; a checkpoint of another origin isn't gone on from.
        every: steps between two checkpoints; None: none is written (one that is there is still used).

    Attributes:
        parts: what else is kept, by name, as a pair of functions: one gives its state, the other takes it back.
        resumed_at: the steps after which this run, and those that it goes on from, went on; empty for one in one piece.
        lost: numbers of steps: for each j, the first j steps were once on disk and are no part of this run.

    Raises:
        OutputError: the folder can't be written.
    """

    def __init__(self, records: Records, name: str, origin: Mapping[str, Any], every: int | None = None) -> None:
        self._records, self._folder, self._name, self._every = records, records.checkpoints, name, every
        self._origin = {"format": FORMAT, **origin}
        self.parts: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {}
        self._found: dict[str, Any] | None = None
        try:
            self._look()
        except OSError as error:
            raise OutputError.of(self._folder, error) from None
        self.resumed_at: list[int] = [] if self._found is None else [*self._found["resumed_at"], self._found["step"]]

    def _look(self) -> None:
        """Find the last usable checkpoint. What is older was to give way to it; every other file becomes the mark of a loss."""
        self.lost: list[int] = []
        files = self._records.checkpoints_of(self._name)
        for file in sorted((file for file in files if file.suffix == ".pt"), key=_step, reverse=True):
            if self._found is not None:
                file.unlink()
            elif (found := self._read(file)) is not None:
                self._found = found
            else:
                self.lost.append(_step(_marked_lost(file, self._name)))
        for file in files:
            if file.suffix == ".tmp":
                file = _marked_lost(file, self._name)
            if file.suffix == ".lost":
                self.lost.append(_step(file))

    def _read(self, file: Path) -> dict[str, Any] | None:
        """What a file holds; None where it isn't what its name says or has another origin."""
        content = file.read_bytes()
        if file.name.split(".")[-2] != _digest(content):
            return None
        try:
            found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            return found if found["origin"] == self._origin and found["step"] == _step(file) else None
        except Exception:  # no file of ours, though it has a right name: whatever it does, it isn't gone on from
            return None

    def randomness(self) -> Randomness | None:
        """The seeded randomness at the point where the run goes on; None for secure noise and for a run from its beginning."""
        state = self._found and self._found["data"]["randomness"]
        return None if state is None else Randomness.from_state(state)

    def resume(self, state: State, data: LoopData) -> int:
        """Put a fresh run where the checkpoint stands; returns how many steps are taken."""
        found = self._found
        if found is None:
            return 0
        self._found = None  # it may be large
        state.theta.copy_(found["theta"])
        state.memory = _moved(found["memory"], state.theta.device)
        if state.optimizer is not None:
            state.optimizer.load_state_dict(found["optimizer"])
        data.restore(found["data"])
        for part, (_, give_back) in self.parts.items():
            give_back(found["parts"][part])
        return int(found["step"])

    def after(self, step: int, state: State, data: LoopData) -> None:
        """Write a checkpoint if one is due after `step` steps; the one before gives way to it.

        Raises:
            OutputError: it can't be written.
        """
        if self._every is None or step % self._every or step == state.plan.steps:
            return
        content = {
            "origin": self._origin, "step": step, "resumed_at": self.resumed_at, "theta": state.theta, "memory": state.memory,
            "optimizer": None if state.optimizer is None else state.optimizer.state_dict(), "data": data.state(),
            "parts": {part: take() for part, (take, _) in self.parts.items()},
        }  # fmt: skip
        buffer = io.BytesIO()
        torch.save(content, buffer)
        written = buffer.getvalue()
        name = f"{self._name}.{step}.{_digest(written)}"
        partial = self._folder / f"{name}.tmp"  # its name tells the step too: what is cut off here was on disk
        try:
            self._folder.mkdir(exist_ok=True)
            before = [file for file in self._records.checkpoints_of(self._name) if file.suffix == ".pt"]
            try:
                write_through(partial, written)
            except OSError:
                if partial.exists():
                    _marked_lost(partial, self._name)
                raise
            os.replace(partial, self._folder / f"{name}.pt")
            sync(self._folder)  # before any further step: a checkpoint that was there must not be forgotten
            for file in before:
                file.unlink()
        except OSError as error:
            raise OutputError.of(self._folder, error) from None


def _step(file: Path) -> int:
    return int(file.name.split(".")[-3])


def _marked_lost(file: Path, name: str) -> Path:
    """Put an empty file in the place of one, whose name alone stays."""
    mark = file.with_name(f"{name}.{_step(file)}.{uuid.uuid4().hex[:8]}.lost")
    os.replace(file, mark)
    os.truncate(mark, 0)
    return mark


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _moved(value: Any, device: torch.device) -> Any:
    """A nested value with its tensors on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    return type(value)(_moved(item, device) for item in value) if isinstance(value, list | tuple) else value
