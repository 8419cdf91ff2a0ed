"""The supervisor's side of the zygote and its children: spawn, exchange JSON lines, notice the end, kill."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from dice.files import JsonObject
from dice.launch import python_command, safe_environment
from dice.verify.ipc.channel import FAREWELL, MOST_DESCRIPTORS
from dice.verify.ipc.encoding import Raw, to_json
from dice.verify.sandbox.jail import ENVIRONMENT, OWN_FAULT, WITHOUT, Limits
from dice.verify.sandbox.roles import Role

START_TIMEOUT_S = 120
KILL_TIMEOUT_S = 20
SETTLE_S = 2.0
SEND_TIMEOUT_S = 30.0  # for a process of ours, which reads whatever it is sent
LONGEST_WAIT_S = 3600.0  # at a time, whatever the deadline: select() takes no more than some weeks, and no infinity
MAX_LINE_BYTES = 10 << 20  # the sources of a build travel in one line
MAX_CHANNEL_BYTES = 64 << 20
LINE_COST = 1 << 10  # each line counts for this much more, for that is what it costs us
LOG_BYTES = 1 << 14  # of what a child prints, this much is kept: the last of it


class MachineryError(Exception):
    """Our own machinery failed; says nothing about a kernel."""


class Cancelled(MachineryError):
    """The caller no longer wants the result."""


class DeadlineExceeded(Exception):
    """The awaited child said nothing in time."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended. `code` or `signal` as the kernel reports it; `reason` when its warden killed it."""

    code: int | None
    signal: int | None
    reason: str  # "", "memory", "processes", "files", "flood", "cancelled"

    @property
    def ours(self) -> bool:
        """Whether a process of trusted code was killed by somebody else, or by an error in that code: a full disk."""
        return not self.reason and (self.signal == signal.SIGKILL or self.code == OWN_FAULT)

    def describe(self) -> str:
        return f"killed by {signal.Signals(self.signal).name}" if self.signal else f"exit code {self.code}"


class ChildEnded(Exception):
    """The awaited child is gone and has nothing more to say."""

    def __init__(self, ended: Exit):
        super().__init__(str(ended))
        self.ended = ended


class Child:
    """One jailed process: `send` it JSON, hear it by `wait_for`. Leaving the context kills all that is left of it.

    `descriptors_sent`: open files that came with its messages, for the receiver to close. None come from a candidate.
    `folder`: the open folder that it writes to, from its warden, where no path of ours leads there.
    """

    def __init__(self, role: Role, channel: socket.socket, control: socket.socket, log: int):
        self.role = role
        self.sandbox = ""
        self._inbox: deque[bytes] = deque()  # not parsed before it is wanted: parsed, hostile JSON is 30 times as large
        self.log = b""
        self.ended: Exit | None = None
        self.lost = False
        self.descriptors_sent: deque[int] = deque()
        self.folder: int | None = None
        self._channel = channel
        self._control = control
        self._log = log
        self._partial = {channel.fileno(): b"", control.fileno(): b""}
        self._received = 0
        self._open = {channel.fileno(), control.fileno(), log}
        for descriptor in self._open:
            os.set_blocking(descriptor, False)

    def send(self, message: Any, descriptors: Sequence[int] = (), timeout_s: float = SEND_TIMEOUT_S) -> None:
        """Send a message (see `ipc/messages.py`), and open files with it; a child that has ended is noticed by the
        next `wait_for`, not here.

        Raises `DeadlineExceeded` for a child that does not take it in time. It got a part, and can be told no more.
        """
        line = json.dumps(to_json(message)).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.settimeout(min(max(timeout_s, 0.001), LONGEST_WAIT_S))
            try:
                if descriptors:
                    socket.send_fds(self._channel, [line[:1]], descriptors)
                    line = line[1:]
                self._channel.sendall(line)  # which has the time for all of it
            except TimeoutError:
                raise DeadlineExceeded from None
            finally:
                self._channel.setblocking(False)

    def kill(self) -> None:
        """Have it killed, from any thread, without waiting for its end; who waits for it sees `Cancelled`."""
        with contextlib.suppress(OSError):  # it is closed already
            self._control.shutdown(socket.SHUT_WR)  # the warden sees this end and kills

    @property
    def descriptors(self) -> Iterable[int]:
        return tuple(self._open)

    def pump(self, descriptor: int) -> None:
        """Read what one readable descriptor holds."""
        try:
            data = self._read(descriptor)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._open.discard(descriptor)
            if descriptor == self._control.fileno() and self.ended is None:
                self.lost = True
        elif descriptor == self._log:
            self.log = (self.log + data)[-LOG_BYTES:]
        else:
            self._split(descriptor, data)

    def _read(self, descriptor: int) -> bytes:
        if descriptor == self._control.fileno():
            data, folders, _, _ = socket.recv_fds(self._control, 1 << 16, 1)
            self.folder = folders[0] if folders else self.folder
            return data
        if not self.role.trusted or descriptor != self._channel.fileno():
            return os.read(descriptor, 1 << 16)  # which drops open files that are sent along
        data, descriptors, _, _ = socket.recv_fds(self._channel, 1 << 16, MOST_DESCRIPTORS)
        self.descriptors_sent.extend(descriptors)
        return data

    def _split(self, descriptor: int, data: bytes) -> None:
        *lines, rest = (self._partial[descriptor] + data).split(b"\n")
        self._partial[descriptor] = rest
        if descriptor == self._control.fileno():
            for line in lines:
                self._note(json.loads(line))
            return
        self._received += len(data) + LINE_COST * len(lines)
        if len(rest) > MAX_LINE_BYTES or self._received > MAX_CHANNEL_BYTES:
            self.ended = Exit(None, None, "flood")
            self._open.discard(descriptor)
            return
        self._inbox.extend(lines)

    def next_message(self) -> Raw | None:
        """The next JSON object that it sent; None when there is none yet. A candidate may send anything: what is no
        object is skipped."""
        while self._inbox:
            with contextlib.suppress(ValueError, RecursionError):
                message = json.loads(self._inbox.popleft())
                if isinstance(message, dict):
                    return message
        return None

    def _note(self, report: JsonObject) -> None:
        if "sandbox" in report:
            self.sandbox = report["sandbox"]
        else:
            self.ended = Exit(report.get("exit"), report.get("signal"), report["reason"])

    @property
    def talking(self) -> bool:
        return self._channel.fileno() in self._open

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()
        os.close(self._log)
        while self.descriptors_sent:
            os.close(self.descriptors_sent.popleft())
        if self.folder is not None:
            os.close(self.folder)
            self.folder = None
        self.kill()
        with self._control, contextlib.suppress(OSError):
            self._control.settimeout(KILL_TIMEOUT_S)
            while self._control.recv(1 << 12):
                pass  # until the warden itself is gone, and with it all that it guarded


def wait_for(child: Child, others: Iterable[Child], deadline: float) -> Raw:
    """The next message of `child`, while the output of all is drained.

    Raises `ChildEnded`, `DeadlineExceeded` (`deadline` is on the monotonic clock) or `MachineryError`.
    """
    everyone = (child, *others)
    while (message := child.next_message()) is None:
        if child.ended is not None and child.ended.reason == "cancelled":
            raise Cancelled
        if child.ended is not None and (child.ended.reason or not child.talking):
            _pump((child,), 0)  # its last words
            raise ChildEnded(child.ended)
        if child.lost:
            raise MachineryError(f"the {child.role.name} process was lost")
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise DeadlineExceeded
        _pump(everyone, remaining)
    return message


def _pump(children: Iterable[Child], timeout: float) -> None:
    with selectors.DefaultSelector() as selector:
        for child in children:
            for descriptor in child.descriptors:
                selector.register(descriptor, selectors.EVENT_READ, child)
        for key, _ in selector.select(min(timeout, LONGEST_WAIT_S)):
            key.data.pump(key.fd)


class Zygote:
    """A warm zygote process. Thread-safe: several jobs may spawn from one. `warm`: further modules to import first."""

    def __init__(self, warm: Iterable[str] = ()) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link = ours
        self._lock = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process does
        command = python_command("dice.verify.sandbox.zygote", str(theirs.fileno()), *warm)
        # What a process was started with stays readable in its memory, and a fork's: nothing secret may be there.
        names = (*ENVIRONMENT, "TMPDIR", "PYTHONPATH", "PYTHONUSERBASE", "PYTHONNOUSERSITE", WITHOUT)
        kept = {name: os.environ[name] for name in names if name in os.environ}
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=safe_environment(kept),
            start_new_session=True,
        )
        theirs.close()
        self._ready = False

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def spawn(self, role: Role, limits: Limits) -> Child:
        """Start a jailed child. Raises `MachineryError`."""
        with self._lock:
            self._wait_ready()
            channel, their_channel = socket.socketpair()
            control, their_control = socket.socketpair()
            log, their_log = os.pipe()
            request = json.dumps({"module": role.module, "limits": asdict(limits)}).encode()
            try:
                theirs = [their_control.fileno(), their_channel.fileno(), their_log]
                socket.send_fds(self._link, [request], theirs)
            except OSError as error:
                channel.close()
                control.close()
                os.close(log)
                if isinstance(error, BrokenPipeError | ConnectionError):
                    raise MachineryError(f"the zygote is gone: {self._last_words()}") from None
                raise MachineryError(f"the zygote could not be asked for a process: {error.strerror}") from None
            finally:
                their_channel.close()
                their_control.close()
                os.close(their_log)
            return Child(role, channel, control, log)

    def _wait_ready(self) -> None:
        if self._ready:
            return
        try:
            self._link.settimeout(START_TIMEOUT_S)
            self._ready = self._link.recv(16) == b"ready"
        except TimeoutError:
            raise MachineryError(f"the zygote was not ready within {START_TIMEOUT_S} s") from None
        except OSError:
            pass
        if not self._ready:
            raise MachineryError(f"the zygote did not start: {self._last_words()}")

    def _said_ready(self) -> bool:
        """Without waiting for it."""
        if not self._ready:
            with contextlib.suppress(OSError):
                self._link.settimeout(0)
                self._ready = self._link.recv(16) == b"ready"
        return self._ready

    def _last_words(self) -> str:
        if self._log.closed:
            return "it was closed"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def settle(self) -> None:
        """Wait a moment for a zygote that is ending: its sockets close first, and until then it passes for alive."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=SETTLE_S)

    def close(self) -> None:
        """End the zygote and with it every child."""
        with contextlib.suppress(OSError):
            self._link.send(FAREWELL)
        if not self._said_ready():  # it imports PyTorch, for seconds, and has neither children nor ears until then
            self._process.kill()
        self._link.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._lock:
            self._log.close()
