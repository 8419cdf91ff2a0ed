"""A child that builds what every candidate shares: precompiled headers, the support object, the emulator's runtime."""

from __future__ import annotations

import socket
from pathlib import Path

from dice.verify import build, toolchain
from dice.verify.builder import visible
from dice.verify.channel import Channel
from dice.verify.emulator import guard


def main(link: socket.socket) -> None:
    channel = Channel(link)
    spec = channel.receive()
    cache_dir = Path(spec["cache_dir"])
    if spec["backend"] == "emulated":
        guard.build(cache_dir)
    arch = toolchain.gpu_arch() if spec["backend"] == "cuda" else ""
    identity = build.prepare(spec["backend"], cache_dir, arch or toolchain.DEFAULT_ARCH, spec.get("headers", "slim"))
    paths = visible(spec["backend"], cache_dir)
    channel.send("prepared", identity=identity, arch=arch or toolchain.DEFAULT_ARCH, visible=paths)
    channel.receive()
