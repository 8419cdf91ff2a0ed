"""A rank of a tensor-parallel engine that is not the first: it does to its device what rank 0 does to its own.

    python -m dice.decode.engine.rank DESCRIPTOR

The descriptor is a socket on which rank 0, which has started this process, says what to do: names of `Follower`'s
methods and what to call them with. It is trusted; nobody else has the other end.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dice.decode.engine.group import Connected, Group
from dice.decode.engine.plan import Room
from dice.decode.engine.runner import Piece, Results, Runner
from dice.decode.engine.slots import Shape
from dice.model.config import SDARConfig
from dice.model.sdar import SDAR
from dice.model.shard import Shard

Writes = Sequence[tuple[str, int, int, Any]]  # (table, row, first column, numbers [n]): arguments of `Slots.write`


@dataclass(frozen=True)
class Setup:
    """What a rank is. `config` is the whole model's; `kind`: cuda or cpu; `meeting`: see `Connected`."""

    config: SDARConfig
    shard: Shard
    dtype: torch.dtype
    kind: str
    meeting: Path
    threads: int

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.shard.rank) if self.kind == "cuda" else torch.device("cpu")

    def new_model(self) -> SDAR:
        return self.shard.new_model(self.config, self.dtype, self.device)


@torch.no_grad()
def hand_out(group: Group, config: SDARConfig, own: SDAR, whole: Mapping[str, Tensor] | None = None) -> None:
    """Fill in this rank's part `own` of a model's weights, one weight after the other; rank 0 has the `whole` ones."""
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in SDAR(config).named_parameters()}
    parameters, weight = dict(own.named_parameters()), own.lm_head.weight
    for name, shape in shapes.items():
        given = None if whole is None else whole[name].detach().to(weight.device, weight.dtype).contiguous()
        value = torch.empty(shape, dtype=weight.dtype, device=weight.device) if given is None else given
        group.broadcast(value)
        parameters[name].copy_(group.shard.part(name, value, config))


def free_bytes() -> int:
    """Memory of this rank's GPU that its tensors could take."""
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


class Follower:
    """This rank's part of the model, and the runner of the engine that rank 0 has at the moment."""

    def __init__(self, setup: Setup, say: Callable[[object], None]) -> None:
        self.setup, self.say = setup, say
        self.group = Connected(setup.shard, setup.device, setup.meeting)
        self.model = setup.new_model()
        self.runner: Runner | None = None
        self.results: Callable[[], Results] | None = None

    def take_weights(self) -> None:
        hand_out(self.group, self.setup.config, self.model)

    def free_bytes(self) -> None:
        self.say(free_bytes())

    def make_runner(self, make: Callable[..., Runner], shape: Shape, pages: int, fp8: bool) -> None:
        self.runner = self.results = None  # frees the memory of the last one
        self.runner = make(self.model, shape, pages, fp8=fp8, group=self.group)

    def prefill(self, written: Writes, pieces: Sequence[Piece]) -> None:
        self._write(written).prefill(pieces)

    def step(self, written: Writes, room: Room, truncates: bool, asked: dict[int, int]) -> None:
        """The results are rank 0's to read; but nor does this rank run further ahead of its device than that one."""
        before, self.results = self.results, self._write(written).step(room, truncates=truncates, asked=asked)
        if before is not None:
            before()

    def refresh(self, written: Writes) -> None:
        self._write(written).refresh()

    def _write(self, written: Writes) -> Runner:
        assert self.runner is not None
        for table, row, first, numbers in written:
            self.runner.slots.write(table, row, first, torch.from_numpy(numbers))
        return self.runner


def main(descriptor: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: rank 0 decides what it means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection = Connection(descriptor)

    def say(value: object) -> None:
        connection.send_bytes(pickle.dumps(value))

    setup: Setup = pickle.loads(connection.recv_bytes())
    torch.set_num_threads(setup.threads)
    if setup.kind == "cuda":
        torch.cuda.set_device(setup.device)
    say("here")
    follower = Follower(setup, say)
    with torch.inference_mode():
        while True:
            try:
                order, arguments = pickle.loads(connection.recv_bytes())
            except (EOFError, ConnectionResetError):  # rank 0 needs no others any more
                return
            getattr(follower, order)(*arguments)


def _end_with_parent() -> None:
    """Rank 0 holds the other end of standard input and writes nothing: an end of file is its end. Also where this
    process is waiting for a device that waits for rank 0's."""
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
