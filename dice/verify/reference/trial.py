"""One trial of a problem: inputs, what the reference makes of them, and how the reference's code is run for it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from dice.verify.ipc import out_of_memory
from dice.verify.ipc.operator_counts import OperatorCounts
from dice.verify.protocols import KERNELBENCH_SEED
from dice.verify.sandbox.scratch import FULL_BYTES
from dice.verify.tensors import transport

State = dict[str, torch.Tensor]
COUNTER = "num_batches_tracked"  # ends the name of a normalisation's counter, which kernels need not have


class ReferenceFailed(Exception):
    """The problem itself cannot be run; the message says why."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One set of inputs (CPU tensors) and what the reference makes of them (CPU tensors).

    `seed` is for `forward`. `changed` are the input tensors that the reference writes to, `left` what it leaves in
    those of them that are `asked_back`, `aliased` those that its output shares memory with, `overlapping` pairs of its
    output tensors that have memory in common, `on_cpu` those that are not on the GPU. `kept`: what it leaves in the
    buffers of its state that it writes to, where candidates begin with the same (`state`). `exact` is the output in
    float64, or None where it cannot be had; `effects`, for each output tensor, how far other inputs move it (rms);
    `roundings`, how far a rounding of usual inputs does, where the trial's are so unusual that this would not show.
    `rng`: generator states to start from instead of the seed. `double`: all that PyTorch computed was in float64.
    `evolves`: the next forward on the same inputs would give another output, as of a running average. `other_model`:
    the reference's own has other arguments.
    """

    family: str
    inputs: Any
    seed: int
    expected: Any
    exact: Any = None
    changed: tuple[int, ...] = ()
    left: tuple[torch.Tensor, ...] = ()
    kept: State = field(default_factory=dict)
    aliased: tuple[int, ...] = ()
    overlapping: tuple[int, ...] = ()
    on_cpu: tuple[int, ...] = ()
    effects: tuple[float | None, ...] = ()
    roundings: tuple[float | None, ...] = ()
    rng: tuple[torch.Tensor, ...] = ()
    work: OperatorCounts = field(default_factory=OperatorCounts)  # what PyTorch computed
    state: State | None = None  # the parameters, where they are not the model's own
    stable: int = 0  # sorts that keep the order of equal values
    double: bool = False
    evolves: bool = False
    other_model: bool = False
    rounded: bool = False  # `expected` is what PyTorch's defaults give, and `exact` the same in full float32

    @property
    def output_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in transport.tensors(self.expected))

    @property
    def must_change(self) -> tuple[int, ...]:
        """The input tensors that a caller of the reference finds changed, and not only as its output."""
        return tuple(index for index in self.changed if index not in self.aliased)

    @property
    def asked_back(self) -> tuple[int, ...]:
        """Those of them that a candidate has to hand back: none where there would be too much of them."""
        return self.must_change if self.left else ()


class blame:  # noqa: N801 - reads as a statement
    """Any exception from the problem's own code becomes `ReferenceFailed`."""

    def __init__(self, part: str):
        self.part = part

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if (
            error is not None
            and not isinstance(error, ReferenceFailed | transport.WireError)
            and not _is_machines(error)
        ):
            out_of_memory.note(error)
            raise ReferenceFailed(f"{self.part} raised {type(error).__name__}: {str(error)[:500]}") from error


def _is_machines(error: BaseException) -> bool:
    """Whether the machine is at fault, whoever met it: a disk that is full indeed, no open files left on the system."""
    if not isinstance(error, OSError):
        return False
    full = error.errno in (errno.ENOSPC, errno.EDQUOT) and shutil.disk_usage(".").free < FULL_BYTES
    return full or error.errno == errno.ENFILE


def derive(secret: int, purpose: str) -> int:
    """A seed of its own for each purpose; none tells another, or the secret."""
    digest = hashlib.sha256(f"{secret} {purpose}".encode()).digest()
    return int.from_bytes(digest[:7], "little")


@contextlib.contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """Runs of the model inside leave no trace in its buffers (running statistics, counters)."""
    kept = buffers_of(model)
    try:
        yield
    finally:
        put_back(model, kept)


def buffers_of(model: Any) -> State:
    """Copies of what its buffers hold."""
    return {name: value.detach().clone() for name, value in model.named_buffers()}


def put_back(model: Any, kept: State) -> None:
    """Into the buffers of these names."""
    with torch.no_grad():
        for name, value in model.named_buffers():
            if name in kept:
                value.copy_(kept[name])


def kernelbench_seed(number: int) -> int:
    """KernelBench's seed of a trial; its own for anything else."""
    if number < 0:
        return KERNELBENCH_SEED
    generator = torch.Generator().manual_seed(KERNELBENCH_SEED)
    return [int(torch.randint(0, 2**32 - 1, (1,), generator=generator)) for _ in range(number + 1)][-1]
