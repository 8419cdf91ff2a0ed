"""Reading kernel files' texts where it can be killed: one jailed process reads for all of a verifier's jobs.

`static.examine` takes time in proportion to a text's length, but the parser below it is CPython's own, in C. Whatever a
text does to it, the supervisor loses this process and not itself.
"""

from __future__ import annotations

import signal
import socket
import sysconfig
import threading
import time
import unicodedata  # noqa: F401 - CPython's parser loads it for names in other scripts, and here there are no files
from collections.abc import Iterator
from dataclasses import asdict

from dice import syntax
from dice.kernel import Kernel
from dice.verify.ipc import untrusted
from dice.verify.ipc.channel import Channel
from dice.verify.ipc.encoding import Raw, claim
from dice.verify.ipc.messages import ReadText, TextRead
from dice.verify.sandbox.jail import Limits
from dice.verify.sandbox.process import Child, ChildEnded, DeadlineExceeded, MachineryError, Zygote, wait_for
from dice.verify.sandbox.roles import EXAMINER
from dice.verify.sandbox.scratch import Scratch
from dice.verify.supervisor.record import VerdictReached
from dice.verify.text import source_map, static
from dice.verify.text.numbers import LARGEST, MOST_NUMBERS
from dice.verify.text.source_map import Literal
from dice.verify.text.static import StaticReport

CPU_S = 10.0  # of the processor; the largest texts there may be take two
STALLED_S = 120.0  # on the clock: a machine on which that much is not to be had in this time, stands still
MEMORY_MB = 2048
TRIES = 2  # new processes that a text may be the end of


Reading = tuple[StaticReport, tuple[Literal, ...]]  # what a text says, and the strings in it that could be source code


class Examinations:
    """Reads kernel files, one at a time, in a process that lives until a text is the end of it. Thread-safe."""

    def __init__(self, cpu_s: float = CPU_S, memory_mb: int = MEMORY_MB) -> None:
        self.cpu_s = cpu_s
        self._memory_mb = memory_mb
        self._lock = threading.Lock()
        self._scratch: Scratch | None = None
        self._child: Child | None = None

    def examine(self, zygote: Zygote, kernel: Kernel) -> Reading:
        """Raises `VerdictReached` with the verdict on a text that cannot be read, and `MachineryError`."""
        if len(kernel.source) > syntax.MAX_SOURCE:
            return static.examine(kernel), ()  # which does not look further at it
        with self._lock:
            lost = 0
            while lost < TRIES:
                is_new = self._child is None
                if self._child is None:
                    self._child = self._start(zygote)
                try:
                    self._child.send(ReadText(kernel.source, self.cpu_s))
                    return _reading(wait_for(self._child, (), time.monotonic() + STALLED_S))
                except DeadlineExceeded:
                    self._end()
                    raise MachineryError(f"a file's text was not read within {STALLED_S:g} s") from None
                except ChildEnded as end:
                    self._end()
                    if end.ended.signal == signal.SIGPROF:
                        raise VerdictReached(
                            "timeout", "static", f"reading the file took over {self.cpu_s:g} s."
                        ) from None
                    lost += is_new  # one that has read others may have ended before this
                except MachineryError:
                    self._end()
                    if is_new:
                        raise
            raise VerdictReached("no_kernel", "extract", "the file's text ends the process that reads it.")

    def close(self) -> None:
        with self._lock:
            self._end()
            if self._scratch is not None:
                self._scratch.remove()
            self._scratch = None

    def _start(self, zygote: Zygote) -> Child:
        if self._scratch is None:
            self._scratch = Scratch()
        stdlib = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        limits = Limits(self._memory_mb, str(self._scratch.root), visible=tuple(stdlib))
        return zygote.spawn(EXAMINER, limits)

    def _end(self) -> None:
        if self._child is not None:
            with self._child:
                pass
        self._child = None


def main(link: socket.socket) -> None:
    """The process that reads."""
    channel = Channel(link)
    while True:
        told = channel.expect(ReadText)
        kernel = Kernel(told.source)
        signal.setitimer(signal.ITIMER_PROF, told.cpu_s)  # at whose end the kernel ends us, wherever we are
        report = static.examine(kernel)
        found = [] if report.unusable else source_map.literals(kernel.source)
        signal.setitimer(signal.ITIMER_PROF, 0)
        channel.send(TextRead(asdict(report), [[one.value, one.first, one.last] for one in found]))


def _reading(raw: Raw) -> Reading:
    """What it answered. A text may have made anything of that process, so every value is checked."""
    said = claim(raw, TextRead)
    told = said.report if isinstance(said.report, dict) else {}
    kinds = _texts(told.get("deceptions"))
    checked = StaticReport(
        untrusted.text(told.get("unusable", "")),
        told.get("has_cuda") is True,
        tuple(kind for kind in static.KINDS if kind in kinds),
        _texts(told.get("functions")),
        _texts(told.get("labels")),
        _texts(told.get("library_families")),
        told.get("asks_for_build") is True,
        tuple(_numbers(told.get("numbers"))),
    )
    return checked, tuple(_literals(said.literals))


def _texts(said: object) -> tuple[str, ...]:
    items = said[: untrusted.MAX_ITEMS] if isinstance(said, list) else ()
    return tuple(untrusted.text(item, untrusted.LONGEST_LINE) for item in items)


def _numbers(said: object) -> Iterator[float]:
    for number in said[:MOST_NUMBERS] if isinstance(said, list) else ():
        if isinstance(number, float) and 0 < number <= LARGEST:
            yield number


def _literals(said: object) -> Iterator[Literal]:
    for row in said if isinstance(said, list) else ():
        match row:
            case [str(value), int(first), int(last)] if 0 < first <= last <= syntax.MAX_SOURCE + 1:
                yield Literal(value, first, last)
