"""Whether processes on other nodes are heard of. Ray tells of a process that ended at once, but of a machine that is
cut off after a minute, and never of a process that hangs: until then whoever depends on it would wait.

Every answer is a sign of life; who gave none for a second is asked for one. One that stays silent is cheap to doubt
where only what it had under way is asked of others, too, and it is believed again at its first word. So it is doubted
early, and given up late.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from ray.exceptions import RayError

from dice.cluster.connect import first_line
from dice.cluster.peer import CONTROL, Peer

PULSE_S = 1.0  # seconds without an answer, after which a sign of life is asked for
SILENT_S = 3.0  # seconds without any, after which others do its work, too
GIVEN_UP_S = 45.0  # and after which its process is ended
JOIN_S = 300.0  # seconds for a process to be heard of first

P = TypeVar("P", bound=Peer)


class Pulses(Generic[P]):
    """Listens to `peers()`; tells of those that fall silent (`doubt`), and of those that are lost (`lose`), why. Both
    are called in a thread of its own."""

    def __init__(
        self, peers: Callable[[], Sequence[P]], doubt: Callable[[P], None], lose: Callable[[P, str], None]
    ) -> None:
        self._peers, self._doubt, self._lose = peers, doubt, lose
        self._closed = threading.Event()
        self._asked: set[P] = set()  # who has not answered yet
        self._gone: queue.SimpleQueue[tuple[P, str]] = queue.SimpleQueue()  # told by Ray's thread, which must not wait
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
                for peer in self._peers():
                    peer.heard = now
            self.look(now)
            looked = now

    def look(self, now: float) -> None:
        """Once at everybody."""
        while not self._gone.empty():
            self._lose(*self._gone.get())
        peers = self._peers()
        self._asked &= set(peers)
        for peer in peers:
            silence = now - peer.heard
            if silence > (GIVEN_UP_S if peer.joined else JOIN_S):
                self._lose(peer, f"nothing was heard of it for {silence:.0f} s")
            elif silence > SILENT_S and not peer.silent:
                self._doubt(peer)
            if silence > PULSE_S and peer not in self._asked:
                self._ask(peer)

    def _ask(self, peer: P) -> None:
        def answered(done: Future[Any]) -> None:
            self._asked.discard(peer)
            if (error := done.exception()) is None:
                peer.is_heard()
            elif isinstance(error, RayError):
                self._gone.put((peer, first_line(error)))

        self._asked.add(peer)
        try:
            asked = peer.actor.pulse.options(concurrency_group=CONTROL).remote()
            asked.future().add_done_callback(answered)
        except RayError as error:
            self._gone.put((peer, first_line(error)))
