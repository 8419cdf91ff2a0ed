"""The processes that train together: one by default, as many as `torchrun` starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dice.errors import MachineError, UserError
from dice.train.session import pick_device

T = TypeVar("T")

# One process may prepare data, or verify kernels, while the others wait. A dead process is torchrun's to notice.
PATIENCE = timedelta(hours=2)


@dataclass(frozen=True, slots=True)
class World:
    """This process (`rank`) among `size`; `local_rank` among the `local_size` of its machine. Rank 0 leads.

    Every method but `leads` must be called by all processes, in the same order; alone, none does anything.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def once(self, make: Callable[[], T]) -> T:
        """What `make` returns in the leader, everywhere. Its `UserError` or `MachineError` is raised everywhere too."""
        if self.size == 1:
            return make()
        box: list[tuple[T | None, Exception | None]] = [(None, None)]
        if self.leads:
            try:
                box = [(make(), None)]
            except (UserError, MachineError) as error:
                box = [(None, error)]
        dist.broadcast_object_list(box, src=0)
        made, failure = box[0]
        if failure is not None:
            raise failure
        return made  # type: ignore[return-value]

    @contextmanager
    def held(self, resource: AbstractContextManager[object]) -> Iterator[None]:
        """`resource`, entered and left by the leader for all."""
        with ExitStack() as stack:

            def enter() -> None:
                stack.enter_context(resource)

            self.once(enter)
            yield

    def sum(self, values: Tensor) -> Tensor:
        """`values`, added up over the processes in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def most(self, *values: float) -> list[float]:
        """The largest of each value over the processes: clocks and signals, on which all must agree."""
        if self.size == 1:
            return list(values)
        found = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()


@contextmanager
def joined(device: str) -> Iterator[World]:
    """The world that torchrun's environment describes; without torchrun, this process alone. Within another: the same.

    `device`: cpu, cuda (a GPU for each process of a machine) or auto. Raises `MachineError` where GPUs are lacking.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(pick_device(device))
        return
    rank, local_rank, local_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    own = _own_device(device, local_rank)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    # Tensors on the CPU are agreements between the processes; those on GPUs, weights and gradients.
    outermost = not dist.is_initialized()
    if outermost:
        dist.init_process_group("cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo", timeout=PATIENCE)
    yield World(own, rank, size, local_rank, local_size)
    if outermost:  # but not after an error: it would wait for processes that no longer answer
        dist.destroy_process_group()


def _own_device(name: str, local_rank: int) -> torch.device:
    device = pick_device(name)
    if device.type != "cuda" or device.index is not None:
        return device
    if local_rank >= torch.cuda.device_count():
        raise MachineError(f"There are only {torch.cuda.device_count()} GPUs here; start one process for each.")
    return torch.device("cuda", local_rank)
