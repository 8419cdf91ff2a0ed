"""Whether hosts are heard of. Ray tells of a process that ended at once, but of a machine that is cut off after half a
minute, and never of a process that hangs: until then its jobs would wait.

Every answer of a host is a sign of life; one that gave none for a second is asked for one. A host that stays silent is
cheap to doubt, since only what it had under way is asked elsewhere, too, and it is believed again at its first word. So
it is doubted early, and given up late.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ray.exceptions import RayError

from dice.cluster.job import CONTROL, Member, first_line

log = logging.getLogger(__name__)

PULSE_S = 1.0  # seconds without an answer, after which a host is asked for a sign of life
SILENT_S = 3.0  # seconds without any, after which others do its jobs, too
GIVEN_UP_S = 45.0  # and after which its process is ended


class Pulses:
    """Listens to `members()`; tells of those that fall silent (`doubt`), and of those that are lost (`lose`), why."""

    def __init__(
        self,
        members: Callable[[], list[Member]],
        doubt: Callable[[Member], None],
        lose: Callable[[Member, str], None],
    ) -> None:
        self._members, self._doubt, self._lose = members, doubt, lose
        self._closed = threading.Event()
        self._asked: set[Member] = set()  # who has not answered yet
        self._gone: queue.SimpleQueue[tuple[Member, str]] = (
            queue.SimpleQueue()
        )  # told by Ray's thread, which must not wait
        self._thread = threading.Thread(target=self._listen, name="cluster-pulse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _listen(self) -> None:
        looked = time.monotonic()
        while not self._closed.wait(PULSE_S / 2):
            now = time.monotonic()
            if now - looked > 2 * PULSE_S:  # it was us who did not listen, stopped or out of breath
                for member in self._members():
                    member.heard = now
            self.look(now)
            looked = now

    def look(self, now: float) -> None:
        """Once at everybody."""
        while not self._gone.empty():
            self._lose(*self._gone.get())
        members = self._members()
        self._asked &= set(members)
        for member in members:
            silence = now - member.heard
            if silence > GIVEN_UP_S:
                self._lose(member, f"nothing was heard of it for {silence:.0f} s")
            elif silence > SILENT_S and not member.silent:
                log.info("%s says nothing; others are given its %d pairs, too", member.node, len(member.jobs))
                self._doubt(member)
            if silence > PULSE_S and member not in self._asked:
                self._ask(member)

    def _ask(self, member: Member) -> None:
        def answered(done: Future[Any]) -> None:
            self._asked.discard(member)
            if (error := done.exception()) is None:
                member.is_heard()
            elif isinstance(error, RayError):
                self._gone.put((member, first_line(error)))

        self._asked.add(member)
        try:
            asked = member.actor.pulse.options(concurrency_group=CONTROL).remote()
            asked.future().add_done_callback(answered)
        except RayError as error:
            self._gone.put((member, first_line(error)))
