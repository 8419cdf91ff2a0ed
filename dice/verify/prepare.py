"""A child that builds what every emulated candidate shares: the runtime and the guarded allocator."""

from __future__ import annotations

import socket
from pathlib import Path

from dice.verify.channel import Channel
from dice.verify.emulator import guard


def main(link: socket.socket) -> None:
    channel = Channel(link)
    guard.build(Path(channel.receive()["cache_dir"]))
    channel.send("prepared")
    channel.receive()
