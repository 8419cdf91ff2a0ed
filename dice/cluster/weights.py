"""Weights from the process that trains to those that decode: straight from its memory to theirs, as torch.distributed
does it (NCCL between GPUs), or as arrays in Ray's object store, which goes anywhere and takes longer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Plan = dict[str, tuple[tuple[int, ...], str]]
"""Shape and type of each tensor, in the order in which they are handed over."""

HAND_S = 60.0  # seconds for all weights, or for all processes to be there
POLL_S = 0.0005


class Channel:
    """What `size` processes hand weights over by: that of rank 0 to all others. It is beside whatever group training
    has. The first one serves the others' meeting point at `port`.

    Raises `RuntimeError` (`dist.DistError`) where they do not find each other.
    """

    def __init__(self, device: torch.device, rank: int, size: int, address: str, port: int = 0) -> None:
        patience = timedelta(seconds=HAND_S)
        make: Any = dist  # which has no types for what follows
        self._store = make.TCPStore(address, port, None, rank == 0, patience, False)
        self.port = int(self._store.port)
        self._meet = rank, size
        is_any = device.type == "cuda" and device.index is None
        self._device = torch.device("cuda", torch.cuda.current_device()) if is_any else device
        self._group: Any = None

    def join(self) -> None:
        """Wait for the others."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        kind: Any = dist.ProcessGroupNCCL if self._device.type == "cuda" else dist.ProcessGroupGloo
        # NCCL's own patience ends the whole process, so that it is longer than ours.
        self._group = kind(self._store, *self._meet, timedelta(seconds=10 * HAND_S))

    def hand_over(self, tensors: Iterable[torch.Tensor]) -> None:
        """Once all processes have called this, with tensors alike, those of the first are in all. Raises
        `RuntimeError`; `tensors` may hold anything then."""
        under_way = [self._group.broadcast([tensor.detach()], dist.BroadcastOptions()) for tensor in tensors]
        deadline = time.monotonic() + HAND_S
        for one in under_way:
            while not one.is_completed():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"weights were not handed over within {HAND_S:.0f} s")
                time.sleep(POLL_S)
            one.wait()  # raises what went wrong
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """Wait for nobody any more."""
        with contextlib.suppress(RuntimeError, AttributeError):  # gloo has nothing to call off
            self._group.abort()
        self._group = None


def plan_of(state: Mapping[str, torch.Tensor]) -> Plan:
    return {name: (tuple(one.shape), str(one.dtype).removeprefix("torch.")) for name, one in state.items()}


def room_for(plan: Plan, device: torch.device) -> dict[str, torch.Tensor]:
    """Tensors that anything may be written into."""
    return {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device=device) for name, (shape, dtype) in plan.items()
    }


def packed(tensor: torch.Tensor) -> tuple[str, Any]:
    """As an array of bits, which the object store shares between processes without a copy; NumPy has no bfloat16."""
    tensor = tensor.detach().cpu().contiguous()
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return str(tensor.dtype).removeprefix("torch."), tensor.view(bits).numpy()


def unpacked(packed: tuple[str, Any]) -> torch.Tensor:
    dtype, bits = packed
    return torch.from_numpy(bits.copy() if not bits.flags.writeable else bits).view(getattr(torch, dtype))
