"""A child that builds what every candidate shares: precompiled headers, the support object, the emulator's runtime."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from dice.verify import build, toolchain
from dice.verify.builder import visible
from dice.verify.channel import Channel
from dice.verify.emulator import guard
from dice.verify.sources import Backend


def main(link: socket.socket) -> None:
    channel = Channel(link)
    spec = channel.receive()
    try:
        channel.send("prepared", **_prepare(spec["backend"], Path(spec["cache_dir"]), spec["headers"]))
    except toolchain.ToolchainError as error:
        channel.send("failed", message=str(error))
    except OSError as error:  # the disk is full, or the cache may not be written to
        where = f" ({error.filename})" if error.filename else ""
        channel.send("failed", message=f"{error.strerror or error}{where}")
    channel.receive()


def _prepare(backend: Backend, cache_dir: Path, headers: str) -> dict[str, Any]:
    if backend == "emulated":
        guard.build(cache_dir)
    arch = toolchain.gpu_arch() if backend == "cuda" else toolchain.DEFAULT_ARCH
    identity = build.prepare(backend, cache_dir, arch, headers)
    return {"identity": identity, "arch": arch, "visible": visible(backend, cache_dir)}
