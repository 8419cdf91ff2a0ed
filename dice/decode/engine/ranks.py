"""Tensor parallelism over the GPUs of one host, a process for each: rank 0's side.

Rank 0 is the process that has the `Engine`. It alone schedules, and tells the others what it does to its own device:
what it writes into the tables, which prompts it reads, and how large a step is. A message is a few numbers. The same
tables then hold the same on every rank, since all that a step decides comes from what the ranks have gathered. If each
rank ran the schedule itself, submissions, aborts and the moment at which results are read would have to be agreed on
first; so nothing is simpler than this.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dice.decode.engine.group import Connected, Group
from dice.decode.engine.plan import Room
from dice.decode.engine.rank import Setup, free_bytes, hand_out
from dice.decode.engine.runner import Piece, Results, Runner
from dice.decode.engine.slots import Shape
from dice.decode.ready import check_ranks
from dice.decode.request import DecodeError
from dice.errors import MachineError
from dice.launch import environment, python_command
from dice.model.sdar import SDAR
from dice.model.shard import Shard

# How long a process that has died may take to be seen dead, once the others cannot reach it.
NOTICE_S = 5.0


class Ranks:
    """`size` processes, this one among them, that each have their part of a model; on this host's first GPUs, or on its
    CPUs.

    `model` is the part of this one, rank 0; `lost` says why there is an end, once there is. Raises `ConfigError` for a
    model that cannot be cut so, `MachineError` where there are fewer GPUs, and whenever another rank has ended: then
    nothing is written any more.
    """

    def __init__(self, model: SDAR, size: int, device: str) -> None:
        check_ranks(model.config, size, device)
        self.size, self.lost = size, ""
        self.leader: Leader | None = None  # the runner of the engine that has these ranks at the moment
        self._versions: list[tuple[int, int]] | None = None  # of the whole model's weights when they were handed out
        self._folder = tempfile.TemporaryDirectory(prefix="dice-ranks-")  # this user's alone
        threads = max(1, torch.get_num_threads() // size)
        dtype, meeting = model.lm_head.weight.dtype, Path(self._folder.name) / "meeting"
        setups = [Setup(model.config, Shard(rank, size), dtype, device, meeting, threads) for rank in range(size)]
        started = [_start(setup) for setup in setups[1:]]
        self._processes = [process for process, _ in started]
        self._connections = [connection for _, connection in started]
        self.close = weakref.finalize(self, _end, self._processes, self._connections, self._folder)
        self.group = Group()
        self._hear()  # they have imported what they need: from here on nobody keeps the others waiting
        self.group = Connected(setups[0].shard, setups[0].device, meeting)
        self.model = setups[0].new_model()
        self.hand_out(model)

    def hand_out(self, model: SDAR) -> None:
        """Give every rank its part of the whole model's weights."""
        self.tell("take_weights")
        with self.watched():
            hand_out(self.group, model.config, self.model, dict(model.named_parameters()))
        self._versions = _versions(model)

    def stale(self, model: SDAR) -> bool:
        """Whether the whole model's weights have changed since they were handed out, as PyTorch counts changes."""
        return self._versions is None or _versions(model) != self._versions

    def free_bytes(self) -> int:
        """Memory that is free on the GPU with the least of it."""
        self.tell("free_bytes")
        return min(free_bytes(), *self._hear())

    def tell(self, order: str, *arguments: object) -> None:
        """Have the other ranks call the method `order` of `rank.Follower`."""
        self.check()
        message = pickle.dumps((order, arguments))
        with self.watched():
            for connection in self._connections:
                connection.send_bytes(message)

    def check(self) -> None:
        """Raises `MachineError` where a rank has ended."""
        codes = [process.poll() for process in self._processes]
        ended = [(rank, code) for rank, code in enumerate(codes, 1) if code is not None]
        if ended and not self.lost:
            rank, code = ended[0]
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self.lost = f"Rank {rank} of the engine's {self.size} has ended ({how}), and the engine with it."
            self.group.abort()
            self.close()
        if self.lost:
            raise MachineError(self.lost)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """What fails in the block because a rank has died is raised as `check` says it."""
        try:
            yield
        except (RuntimeError, OSError, EOFError):
            ends = time.monotonic() + NOTICE_S
            while time.monotonic() < ends:
                self.check()
                time.sleep(0.01)
            raise

    def wait(self, event: torch.cuda.Event) -> None:
        """Until the device has come to `event`, which it never does if a rank has died."""
        while not event.query():
            self.check()

    def _hear(self) -> list[Any]:
        with self.watched():
            return [pickle.loads(connection.recv_bytes()) for connection in self._connections]


class Leader(Runner):
    """Rank 0's runner, `inner`, which the other ranks' runners follow."""

    def __init__(
        self, ranks: Ranks, make_runner: Callable[..., Runner], model: SDAR, shape: Shape, pages: int, *, fp8: bool
    ) -> None:
        self._ranks, self._model = ranks, model
        ranks.leader = self
        ranks.tell("make_runner", make_runner, shape, pages, fp8)
        with ranks.watched():
            self.inner = make_runner(ranks.model, shape, pages, fp8=fp8, group=ranks.group)
        if hasattr(self.inner, "wait"):
            self.inner.wait = ranks.wait
        self.device, self.group, self.slots = self.inner.device, self.inner.group, self.inner.slots
        self.forward, self.mask_token_id = self.inner.forward, self.inner.mask_token_id
        self._written: list[tuple[str, int, int, Any]] = []
        self.slots.on_write = self._note

    def _note(self, table: str, row: int, first: int, values: Tensor) -> None:
        self._written.append((table, row, first, values.numpy()))

    def _tell(self, order: str, *arguments: object) -> None:
        """With what was written into the tables before."""
        if self._ranks.leader is not self:
            raise DecodeError("Another engine has been started on these ranks since; only that one can be used.")
        written, self._written = self._written, []
        self._ranks.tell(order, written, *arguments)

    def room(self, texts: int, blocks: int) -> Room:
        return self.inner.room(texts, blocks)

    def prefill(self, pieces: Sequence[Piece]) -> None:
        self._tell("prefill", pieces)
        with self._ranks.watched():
            self.inner.prefill(pieces)

    def step(self, room: Room, *, truncates: bool, asked: Mapping[int, int]) -> Callable[[], Results]:
        self._tell("step", room, truncates, dict(asked))
        with self._ranks.watched():
            return self.inner.step(room, truncates=truncates, asked=asked)

    def timings(self) -> list[tuple[Room, float]]:
        return self.inner.timings()

    def holds(self) -> bool:
        return not self._ranks.lost and self._ranks.leader is self and self.inner.holds()

    def stale(self) -> bool:
        return self._ranks.stale(self._model)

    def refresh(self) -> None:
        self._ranks.hand_out(self._model)
        self._tell("refresh")
        self.inner.refresh()


def _start(setup: Setup) -> tuple[subprocess.Popen[bytes], Connection]:
    """A rank's process, and the end of a socket that reaches it. It ends when the other end of its standard input is
    closed, as happens when this process ends in whatever way."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            python_command("dice.decode.engine.rank", str(theirs.fileno())),
            stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], env=environment(),
        )  # fmt: skip
    connection = Connection(ours.detach())
    connection.send_bytes(pickle.dumps(setup))
    return process, connection


def _end(
    processes: list[subprocess.Popen[bytes]], connections: list[Connection], folder: tempfile.TemporaryDirectory[str]
) -> None:
    for connection in connections:
        connection.close()
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    folder.cleanup()


def _versions(model: SDAR) -> list[tuple[int, int]] | None:
    """Where the weights are, and how often they were changed in place; None where PyTorch does not count."""
    weights = list(model.parameters())
    if any(weight.is_inference() for weight in weights):
        return None
    return [(weight.data_ptr(), weight._version) for weight in weights]
