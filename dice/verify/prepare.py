"""A child that builds what every candidate shares: precompiled headers, the support object, the emulator's runtime."""

from __future__ import annotations

import socket
from pathlib import Path

from dice.verify import build
from dice.verify.channel import Channel
from dice.verify.emulator import guard


def main(link: socket.socket) -> None:
    channel = Channel(link)
    spec = channel.receive()
    cache_dir = Path(spec["cache_dir"])
    if spec["backend"] == "emulated":
        guard.build(cache_dir)
    build.prepare(spec["backend"], cache_dir)
    channel.send("prepared")
    channel.receive()
