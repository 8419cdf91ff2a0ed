"""`Workers`: work in threads, told of while it goes on, and called off where nobody listens any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from dice.errors import UserError
from dice.serve.errors import ApiError
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.process import Cancelled

log = logging.getLogger("dice.serve")
Told = TypeVar("Told")
Result = TypeVar("Result")
Work = Callable[[Callable[[Told], None]], Result]
QUEUE = 4  # jobs that may wait, for each that may run
BUSY_S = 10


@dataclass(frozen=True, slots=True)
class Finished(Generic[Result]):
    """The end of a job."""

    result: Result


class Workers:
    """At most `most` jobs at once. `what`: their name in the plural, for whoever is sent away."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=what)
        self._open: set[Cancellation] = set()

    def close(self) -> None:
        """Call off what runs, and start nothing more."""
        for cancellation in list(self._open):
            cancellation.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def follow(
        self, work: Work[Told, Result], cancellation: Cancellation, waiting: Told
    ) -> AsyncGenerator[Told | Finished[Result], None]:
        """`waiting` at once, then what `work` has to tell, by the function that it is given, and last its result.

        Whoever closes the generator before has told the `cancellation`. Raises `ApiError` where too many wait already,
        or the server is closing, and what `work` does.
        """
        if len(self._open) >= self._most * (1 + QUEUE):
            raise ApiError(429, f"Too many {self._what} are waiting.", code="queue_full", retry_s=BUSY_S)
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Told | None]()

        def tell(one: Told | None) -> None:
            loop.call_soon_threadsafe(told.put_nowait, one)

        def run() -> Result:
            try:
                cancellation.check()
                return work(tell)
            finally:
                tell(None)

        def done(job: Future[Result]) -> None:
            self._open.discard(cancellation)
            if job.cancelled():  # before it began
                tell(None)
                return
            error = job.exception()
            if error is not None and not isinstance(error, (Cancelled, UserError)):
                log.error("one of the %s failed: %s", self._what, type(error).__name__)

        self._open.add(cancellation)
        told.put_nowait(waiting)
        job = self._pool.submit(run)
        job.add_done_callback(done)
        try:
            while (one := await told.get()) is not None:
                yield one
            if job.cancelled():
                raise Cancelled
            yield Finished(await asyncio.wrap_future(job))
        except Cancelled:
            raise ApiError(503, "The server is closing.", code="closing") from None
        finally:
            # One that still waits leaves the queue; one that runs keeps its place until its processes have ended.
            if not job.cancel() and not job.done():
                cancellation.cancel()
