"""What a model and a run take: parameters, bytes, multiply-accumulates and memory, measured rather than declared."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

# Where a product with a kernel arrives. One of activations carries the batch along and arrives at bmm.
_WITH_KERNELS = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.convolution)
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def model_resources(model: nn.Module, shape: tuple[int, ...]) -> dict[str, int | None]:
    """The sizes of a model that reads records of a shape.

    Returns:
        ``trainable_parameters``, ``stored_parameters`` and ``stored_bytes`` (buffers included, frozen layers among them;
        no optimizer state, no activations), and ``macs``, see :func:`forward_macs`.
    """
    stored = [*model.parameters(), *model.buffers()]
    return {
        "trainable_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "stored_parameters": sum(t.numel() for t in stored),
        "stored_bytes": sum(t.numel() * t.element_size() for t in stored),
        "macs": forward_macs(model, shape),
    }


def forward_macs(model: nn.Module, shape: tuple[int, ...]) -> int | None:
    """Multiply-accumulates of one record's forward pass, as the DP-RVFL paper counts them (table 6).

    The kernels of linear layers and convolutions count, trained or frozen, and so does a model's own matrix product (the
    projection of random features). Biases, activations, pooling, and products of a record's activations with each other
    (attention's queries with its keys) don't. One zero record is passed in evaluation mode, and the operations that arrive
    at torch's dispatcher are counted; those that make their products in another way (``einsum``, recurrent layers) aren't
    seen. None if nothing is seen, or if the model can't be called on such a record alone.
    """
    like = next((t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()), torch.empty(0))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, *shape, dtype=like.dtype, device=like.device))
    except Exception:  # a user's model that needs more than x: the record goes without this number
        return None
    finally:
        model.train(was_training)
    flops = counter.get_flop_counts().get("Global", {})
    return sum(flops.get(operation, 0) for operation in _WITH_KERNELS) // 2 or None


class MemoryGrowth:
    """By how many bytes memory grew at its peak, from here on: this process' resident memory, or what a CUDA device holds.

    The peak of a process never falls by itself, so a second task of a process would be told the first one's. Linux lets a
    process set its peak back to what it holds now; where that can't be done there is no honest number, and None stands for
    it. Memory that an earlier task freed goes back to the system first. Features that it left for others are held already.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._start: int | None
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._start = torch.cuda.max_memory_allocated(device)
        else:
            self._start = _peak() if _reset_peak() else None

    def read(self) -> int | None:
        """Bytes, at least 0: the peak since the start over what was held then."""
        if self._start is None:
            return None
        peak = torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else _peak()
        return None if peak is None else max(0, peak - self._start)


def _reset_peak() -> bool:
    """Set this process' peak to what it holds and needs; False where that can't be done."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    try:
        _CLEAR.write_text("5")  # proc(5): sets the peak resident size back to the current one
    except OSError:
        return False
    return True


def _peak() -> int | None:
    """This process' peak resident memory in bytes."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("VmHWM:")), None)
    return None if found is None else int(found.split()[1]) * 1024
