"""The processes that train together: one by default, as many as `torchrun` starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dice.errors import MachineError, UserError
from dice.train.session import Interrupted, pick_device

T = TypeVar("T")
Answer = tuple[T | None, Exception | None]

# How long a process waits for another one that prepares data or verifies kernels. Torchrun ends the processes whose
# fellow has died, long before.
PATIENCE = timedelta(hours=2)

GONE = "Another process of this run has ended, or cannot be reached."

# Errors that end the run, or the step under way, in all processes when they are raised in one.
SHARED = (UserError, MachineError, Interrupted, torch.OutOfMemoryError, OSError)


@dataclass(frozen=True, slots=True)
class World:
    """This process (`rank`) among `size`; `local_rank` among the `local_size` of its machine. Rank 0 leads.

    Every method must be called by all processes, in the same order. In a world of one process they communicate nothing.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    def __str__(self) -> str:
        return str(self.device) if self.size == 1 else f"{self.size} x {self.device.type}"

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def broadcast_from_leader(self, make: Callable[[], T]) -> T:
        """What `make` returns in the leader, everywhere. What it raises of `SHARED` is raised everywhere too."""
        if self.size == 1:
            return make()
        box: list[Answer[T]] = [_attempt(make) if self.leads else (None, None)]
        with _reaching_others():
            dist.broadcast_object_list(box, src=0)
        return _results(box)[0]

    def all_gather(self, make: Callable[[], T]) -> list[T]:
        """What `make` returns in each process, by rank, everywhere. If it raises something of `SHARED` in any, the
        first such error is raised everywhere, once all have returned or raised."""
        if self.size == 1:
            return [make()]
        answers: list[Answer[T]] = [(None, None)] * self.size
        own = _attempt(make)
        with _reaching_others():
            dist.all_gather_object(answers, own)
        return _results(answers)

    @contextmanager
    def held(self, resource: AbstractContextManager[object]) -> Iterator[None]:
        """In the block, the leader has entered `resource` on behalf of all processes."""
        with ExitStack() as stack:

            def enter() -> None:
                stack.enter_context(resource)

            self.broadcast_from_leader(enter)
            yield

    @contextmanager
    def opened(self, resource: AbstractContextManager[T]) -> Iterator[T]:
        """In the block, each process has entered its own `resource`. Where one cannot, all raise its error."""
        with ExitStack() as stack:
            entered: list[T] = []
            self.all_gather(lambda: entered.append(stack.enter_context(resource)))
            yield entered[0]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """`values`, added up over the processes in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def all_gather_cat(self, values: Tensor) -> Tensor:
        """`values` [..., n] of all processes joined along the last dimension, by rank. n may differ."""
        if self.size == 1:
            return values
        return torch.cat(self.all_gather(values.cpu), -1).to(values.device)

    def all_reduce_max(self, *values: float) -> list[float]:
        """The largest of each value over the processes: clocks and signals, on which all must agree."""
        if self.size == 1:
            return list(values)
        found = torch.tensor(values, dtype=torch.float64)
        with _reaching_others():
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


def is_loss(error: RuntimeError) -> bool:
    """Whether it says that another process is gone, in the words of gloo or NCCL, whose errors have no class alone."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


@contextmanager
def _reaching_others() -> Iterator[None]:
    """Raises `MachineError` where another process is gone; torchrun says which one, and how it ended."""
    try:
        yield
    except RuntimeError as error:
        raise MachineError(GONE) from error


def _attempt(make: Callable[[], T]) -> Answer[T]:
    try:
        return make(), None
    except SHARED as error:
        return None, error


def _results(answers: Sequence[Answer[T]]) -> list[T]:
    for _, error in answers:
        if error is not None:
            raise error
    return [made for made, _ in answers]  # type: ignore[misc]


def _own_device(name: str, local_rank: int) -> torch.device:
    device = pick_device(name)
    if device.type != "cuda" or device.index is not None:
        return device
    if local_rank >= torch.cuda.device_count():
        raise MachineError(f"There are only {torch.cuda.device_count()} GPUs here; start one process for each.")
    return torch.device("cuda", local_rank)
