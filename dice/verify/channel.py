"""The child's end of its channel to the supervisor: JSON lines, one object each."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any


class Channel:
    """Blocking JSON lines over a socket. The end of the supervisor ends the iteration, and the process with it."""

    def __init__(self, link: socket.socket):
        self._link = link
        self._reader = link.makefile("rb")

    @property
    def descriptor(self) -> int:
        return self._link.fileno()

    def send(self, event: str, **values: Any) -> None:
        self._link.sendall(json.dumps({"event": event} | values, default=str).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """The next command; the process ends when there is none."""
        line = self._reader.readline()
        if not line:
            os._exit(0)
        command: dict[str, Any] = json.loads(line)
        return command

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield self.receive()
