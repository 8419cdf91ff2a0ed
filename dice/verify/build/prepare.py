"""A child that builds what every candidate shares: precompiled headers, the support object, the emulator's runtime."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

from dice.verdict import Backend
from dice.verify import toolchain
from dice.verify.build import build
from dice.verify.build.builder import visible
from dice.verify.emulator import guard
from dice.verify.ipc.channel import Channel
from dice.verify.ipc.messages import PrepareFailed, PrepareShared, SharedBuilding, SharedPrepared


def main(link: socket.socket) -> None:
    channel = Channel(link)
    order = channel.expect(PrepareShared)
    logger = logging.getLogger("dice")
    logger.setLevel(logging.INFO)
    logger.addHandler(_Teller(channel))
    try:
        channel.send(_prepare(order.backend, Path(order.cache_dir), order.headers))
    except toolchain.ToolchainError as error:
        channel.send(PrepareFailed(str(error)))
    except OSError as error:  # the disk is full, or the cache may not be written to
        where = f" ({error.filename})" if error.filename else ""
        channel.send(PrepareFailed(f"{error.strerror or error}{where}"))
    channel.receive()


class _Teller(logging.Handler):
    """Has the supervisor log what is being built: this process has no log of its own."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        self.channel.send(SharedBuilding(record.getMessage()))


def _prepare(backend: Backend, cache_dir: Path, headers: str) -> SharedPrepared:
    if backend == "emulated":
        guard.build(cache_dir)
    arch = toolchain.gpu_arch() if backend == "cuda" else toolchain.DEFAULT_ARCH
    identity = build.prepare(backend, cache_dir, arch, headers)
    return SharedPrepared(identity, arch, tuple(visible(backend, cache_dir)))
