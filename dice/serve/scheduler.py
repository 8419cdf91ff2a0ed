"""The engine's thread: it alone touches the engine. Requests come in by a queue; what is revealed leaves step by step.

What waits for a client is bounded by what it asked for, since every position of a text is revealed once; so nobody who
reads slowly is waited for.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dice.decode.engine.engine import Engine, Handle
from dice.decode.request import DecodeConfig, StepEvent
from dice.decode.text import Text
from dice.decode.trace import Trace
from dice.errors import UserError

log = logging.getLogger("dice.serve")
# An engine that fails so often within so many seconds will fail again: the process ends, and whoever watches it sees.
MOST_FAILURES, FAILURE_WINDOW_S = 3, 300.0


@dataclass(frozen=True, slots=True)
class Failed:
    """The text will not be written. `refused`: why, in a sentence, where it is the request's fault."""

    refused: str = ""


@dataclass(frozen=True, slots=True)
class Revealed:
    """One denoising step. `forwards`: those that the text has taken part in so far, of its prompt included."""

    event: StepEvent
    forwards: int


Message = Revealed | Trace | Failed
Inbox = asyncio.Queue[tuple["Ticket", Message]]


@dataclass(eq=False)
class Ticket:
    """A text that was asked for. In `inbox`, which texts of one request share, its steps arrive, and last its trace or
    a failure. Once it was given up, nothing more does.
    """

    text: Text
    config: DecodeConfig
    inbox: Inbox
    over: bool = False  # finished, failed or given up, as the asyncio side knows
    handle: Handle | None = None  # the engine thread's


@dataclass(frozen=True, slots=True)
class Occupation:
    """What the engine holds. `residents`: texts in slots; pages hold keys and values."""

    residents: int = 0
    waiting: int = 0
    pages: int = 0
    pages_free: int = 0
    forwards: int = 0


class Scheduler:
    """Starts with `start`, within a running event loop. `make_engine` is called in the thread, again after a failure.

    - `open`: texts that were submitted and are not over.
    - `longest`: most positions of a text that the engine has pages for; None before it is made.
    - `alive`: whether texts are written; False before the engine is made, and once it failed too often, of which
      `on_death` is told in the loop.
    """

    def __init__(self, make_engine: Callable[[], Engine], on_death: Callable[[], None] = lambda: None) -> None:
        self.open = 0
        self.longest: int | None = None
        self.alive = False
        self.failures: list[float] = []
        self.occupation = Occupation()
        self._make_engine, self._on_death = make_engine, on_death
        self._commands: queue.SimpleQueue[tuple[str, Ticket | None]] = queue.SimpleQueue()
        self._tickets: set[Ticket] = set()  # the engine thread's
        self._outbox: list[tuple[Ticket, Message]] = []  # of one step
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        self.open += 1
        self._commands.put(("submit", ticket))

    def give_up(self, ticket: Ticket) -> None:
        """Free what the text has, within a step of the engine."""
        if not ticket.over:
            self._close(ticket)
            self._commands.put(("give_up", ticket))

    def stop(self) -> None:
        """End the thread after its current step."""
        self._commands.put(("stop", None))
        if self._thread.is_alive():
            self._thread.join(30)

    def _close(self, ticket: Ticket) -> None:
        if not ticket.over:
            ticket.over = True
            self.open -= 1

    def _work(self) -> None:
        while True:
            try:
                self._serve(self._make_engine())
                return
            except Exception:
                log.exception("the engine failed")
                if not self._may_go_on():
                    self._call(self._die)
                    return

    def _serve(self, engine: Engine) -> None:
        """The one loop: take what was asked, step, and hand on what was revealed."""
        self.longest = engine.longest
        self._call(self._set_alive)
        busy = False
        while self._obey(engine, wait=not busy):
            busy = engine.step()
            self._note(engine)
            self._hand_over()

    def _obey(self, engine: Engine, wait: bool) -> bool:
        """Take what was asked for since the last step; `wait` for the first of it. False when it is to stop."""
        while True:
            try:
                command, ticket = self._commands.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if ticket is None:
                return False
            if command == "submit":
                self._add(engine, ticket)
            elif ticket.handle is not None and ticket in self._tickets:
                engine.abort(ticket.handle)
                self._tickets.discard(ticket)

    def _add(self, engine: Engine, ticket: Ticket) -> None:
        def finished(handle: Handle) -> None:
            self._tickets.discard(ticket)
            if handle.trace is not None:
                self._outbox.append((ticket, handle.trace))

        def revealed(event: StepEvent) -> None:
            self._outbox.append((ticket, Revealed(event, ticket.text.forwards)))

        self._tickets.add(ticket)  # before, so that an engine which fails over it fails it, too
        try:
            ticket.handle = engine.add(ticket.text, ticket.config, revealed, finished)
        except UserError as error:
            self._tickets.discard(ticket)
            self._outbox.append((ticket, Failed(str(error))))

    def _note(self, engine: Engine) -> None:
        states = [ticket.handle.state for ticket in self._tickets if ticket.handle is not None]
        waiting = states.count("waiting")
        pages = engine.pages
        self.occupation = Occupation(len(states) - waiting, waiting, pages.count, pages.free, engine.forwards)

    def _hand_over(self) -> None:
        """One call into the event loop for all that a step revealed."""
        if self._outbox:
            batch, self._outbox = self._outbox, []
            self._call(lambda: self._deliver(batch))

    def _deliver(self, batch: list[tuple[Ticket, Message]]) -> None:
        for ticket, message in batch:
            if not ticket.over:
                if not isinstance(message, Revealed):
                    self._close(ticket)
                ticket.inbox.put_nowait((ticket, message))

    def _call(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:  # the loop has been closed: nobody listens any more
            log.info("the server has ended before its engine")

    def _may_go_on(self) -> bool:
        """Fail all that was under way; whether another engine is worth trying."""
        self._outbox += [(ticket, Failed()) for ticket in self._tickets]
        self._tickets.clear()
        self.occupation = Occupation()
        self._hand_over()
        now = time.monotonic()
        self.failures = [at for at in self.failures if now - at < FAILURE_WINDOW_S] + [now]
        return len(self.failures) < MOST_FAILURES

    def _set_alive(self) -> None:
        self.alive = True

    def _die(self) -> None:
        self.alive = False
        while not self._commands.empty():
            _, ticket = self._commands.get_nowait()
            if ticket is not None:
                self._deliver([(ticket, Failed())])
        self._on_death()
