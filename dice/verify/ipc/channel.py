"""The child's end of its channel to the supervisor: messages as JSON lines, one object each (see `encoding.py`)."""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dice.files import JsonObject
from dice.verify.ipc.encoding import Raw, read, to_json

FAREWELL = b"farewell"  # to a zygote that is to end; without it, its supervisor was killed
MOST_DESCRIPTORS = 4  # with one message

M = TypeVar("M")

# Fetched before any candidate's code is loaded: replacing them in `json` changes nothing here.
_DUMPS, _LOADS = json.dumps, json.loads


class Channel:
    """Blocking JSON lines over a socket. The end of the supervisor ends the iteration, and the process with it.

    Thread-safe: whichever thread waits reads for all; answers to requests go to those who asked, the rest are commands.
    """

    def __init__(self, link: socket.socket):
        self._link = link
        self._received = b""
        self._descriptors: deque[int] = deque()
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._reading = False
        self._commands: deque[Raw] = deque()
        self._answers: dict[int, Raw] = {}
        self._numbers = itertools.count(1)

    @property
    def descriptor(self) -> int:
        return self._link.fileno()

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and open files with it."""
        text = _DUMPS(to_json(message), default=str, ensure_ascii=False)  # sources do not grow sixfold
        line = text.encode("utf-8", "surrogatepass") + b"\n"
        with self._sending:
            if descriptors:
                socket.send_fds(self._link, [line[:1]], descriptors)  # a file descriptor goes with a byte
                line = line[1:]
            self._link.sendall(line)

    def take_descriptors(self, count: int) -> list[int]:
        """The file descriptors that came with a command."""
        return [self._descriptors.popleft() for _ in range(count)]

    def expect(self, kind: type[M]) -> M:
        """The next command, which is of this class."""
        return read(self.receive(), kind)

    def receive(self) -> Raw:
        """The next command, as it came; the process ends when there is none."""
        return self._wait(lambda: self._commands.popleft() if self._commands else None)

    def request(self, message: Any) -> Raw:
        """Send and wait for the answer, which the supervisor gives under the `request` number that is sent along."""
        number = next(self._numbers)
        self.send(replace(message, request=number))
        return self._wait(lambda: self._answers.pop(number, None))

    def _wait(self, take: Callable[[], Raw | None]) -> Raw:
        with self._changed:
            while (found := take()) is None:
                if self._reading:
                    self._changed.wait()
                else:
                    self._read_one()
            return found

    def _read_one(self) -> None:
        """Read a line without holding the lock, and hand it on."""
        self._reading = True
        self._changed.release()
        line = b""
        try:
            line = self._read_line()
        finally:
            self._changed.acquire()
            self._reading = False
            if line:
                self._hand_on(_LOADS(line))
            self._changed.notify_all()
        if not line:
            os._exit(0)

    def _read_line(self) -> bytes:
        """With its end; empty at the end of the supervisor."""
        while b"\n" not in self._received:
            data, descriptors, _, _ = socket.recv_fds(self._link, 1 << 16, MOST_DESCRIPTORS)
            self._descriptors.extend(descriptors)
            if not data:
                return b""
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line + b"\n"

    def _hand_on(self, message: JsonObject) -> None:
        if "request" in message:
            self._answers[message["request"]] = message
        else:
            self._commands.append(message)

    def __iter__(self) -> Iterator[Raw]:
        while True:
            yield self.receive()
