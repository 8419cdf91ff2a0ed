"""`Endpoint`: asks many requests at once, retries what may yet succeed, and stops where nothing can.

Each attempt ends in one line of the ledger. What came is told apart in `reading.py`; how fast requests go out is for
`pace.py`.
"""

from __future__ import annotations

import asyncio
import json
import queue
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx

from dice.endpoint.body import ENCODING, BodyError, read_body
from dice.endpoint.heard import Heard
from dice.endpoint.ledger import Account, Ledger
from dice.endpoint.pace import WINDOW_S, Pace
from dice.endpoint.reading import RETRIED, Reading, read
from dice.endpoint.request import ANSWERED, BYTES_PER_TOKEN, Reply, Request, RequestSettings, Usage
from dice.errors import UserError

# Seconds to wait for the thread of `Replies` to end, when its context is left.
LEAVE_S = 5.0
# From this many seconds on, a wait that an endpoint asks for is reported to the user.
LONG_WAIT_S = 5.0
# After this many refusals in a row, and no answer ever, every further request would be refused too.
HOPELESS = 3


class EndpointStopped(UserError):
    """No further request can succeed: a wrong URL, key or model."""


def _to_stderr(text: str) -> None:
    print(f"dice: {text}", file=sys.stderr, flush=True)


class Endpoint:
    """An endpoint in use. `ledger`: the log that makes a run resumable; None keeps none. `key` is never written or
    shown, and is struck out of whatever the endpoint sends (see `heard.py`). `say` reports long waits and their reason.

    Raises `UserError` for a key that no request could carry.
    """

    def __init__(
        self,
        settings: RequestSettings,
        key: str = "",
        ledger: Path | None = None,
        *,
        window_s: float = WINDOW_S,
        say: Callable[[str], None] = _to_stderr,
    ):
        if not key.isascii() or not (key.isprintable() and key == key.strip()):
            raise UserError("The API key holds blanks at its ends, or characters that no HTTP header can carry.")
        self.settings = settings
        self._key = key
        self._say = say
        self._said_until = 0.0  # when the last wait that was reported ends
        self._hear = Heard(key, settings.url)
        self._ledger = Ledger(ledger)
        self._window_s = window_s
        self._heard = False  # whether the endpoint ever answered anything, be it an error
        self._refused = 0  # requests refused in a row

    async def __aenter__(self) -> Endpoint:
        settings = self.settings
        self._ledger.__enter__()
        self._pace = Pace(settings.requests_per_minute, settings.tokens_per_minute, self._window_s)
        self._settled = asyncio.Event()
        headers = {"Content-Type": "application/json", "Accept-Encoding": ENCODING}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        timeout = httpx.Timeout(settings.read_s, connect=settings.connect_s, pool=None)
        limits = httpx.Limits(max_connections=settings.concurrency)
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout, limits=limits)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
        self._ledger.__exit__()

    @property
    def account(self) -> Account:
        """Of this run and all earlier ones of the same log."""
        return self._ledger.account

    async def ask(self, requests: Iterable[Request]) -> AsyncIterator[Reply]:
        """A reply to every request, in the order of arrival. Answers that the log holds come at once and cost nothing.

        Requests are taken one at a time, when there is room. Raises `EndpointStopped` when going on is pointless.
        """
        source, running = iter(requests), set[asyncio.Task[Reply]]()
        done: set[asyncio.Task[Reply]] = set()
        asked: set[str] = set()
        more = True
        try:
            while more or running:
                while more and len(running) < self.settings.concurrency:
                    request = next(source, None)
                    if request is None:
                        more = False
                    elif (id_ := request.id(self.settings)) in asked:
                        raise ValueError(f"two requests are the same: {request.key!r}")
                    else:
                        asked.add(id_)
                        if (known := self._known(request)) is not None:
                            yield known
                        else:
                            running.add(asyncio.create_task(self._ask(request)))
                if running:
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, *done, return_exceptions=True)  # one error is raised, the others retrieved

    def _known(self, request: Request) -> Reply | None:
        line = self._ledger.answers.get(request.id(self.settings))
        if line is None:
            return None
        return Reply(request, line["outcome"], self._hear.text(line["text"]), usage=Usage(**line["usage"]))

    async def _ask(self, request: Request) -> Reply:
        for attempt in range(1, self.settings.attempts + 1):
            if not await self._afford(request):
                return Reply(request, "budget", error="It might have cost more than what is left.")
            reading, seconds = await self._attempt(request, attempt)
            if reading.stop:
                raise EndpointStopped(reading.stop)
            if reading.outcome not in RETRIED or attempt == self.settings.attempts:
                break
            await self._back_off(reading, attempt)
        return Reply(request, reading.outcome, reading.text, reading.error, reading.usage, attempt, seconds)

    async def _attempt(self, request: Request, attempt: int) -> tuple[Reading, float]:
        """Send the request once, when it is its turn, and log what came of it."""
        settings, id_ = self.settings, request.id(self.settings)
        departure = await self._pace.go(request.tokens() + settings.max_tokens)
        self._ledger.sent(id_, attempt, settings.cost(request.tokens(), settings.max_tokens))
        started = time.monotonic()
        status, reading = await self._send(request)
        seconds = round(time.monotonic() - started, 3)
        usage = reading.usage
        departure.tokens = usage.tokens_in + usage.tokens_out
        more = {"seconds": seconds, "cost": settings.cost(usage.tokens_in, usage.tokens_out)}
        if reading.outcome in ANSWERED:
            self._ledger.answered(id_, attempt, status, reading.outcome, reading.text, usage, more)
        else:
            self._ledger.failed(id_, attempt, status, reading.outcome, reading.error, usage, more)
        self._settled.set()
        return self._judge(reading), seconds

    async def _send(self, request: Request) -> tuple[int, Reading]:
        settings, hear, url = self.settings, self._hear, self.settings.shown_url
        content = json.dumps(request.body(settings)).encode()
        try:
            async with (
                asyncio.timeout(settings.total_s),
                self._http.stream("POST", settings.url, content=content, follow_redirects=False) as response,
            ):
                self._heard = True
                status, headers, flaw = response.status_code, response.headers, None
                try:
                    body = await read_body(response.aiter_raw(), headers.get("content-encoding", ""))
                except BodyError as error:
                    body, flaw = error.part, error
        except TimeoutError:
            return 0, Reading("timeout", error=f"no whole answer within {settings.total_s:g} s")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            said = _brief(error, hear)
            stop = "" if self._heard else f"Nothing answers at {url} ({said})."
            return 0, Reading("connection", error=said, stop=stop)
        except httpx.TimeoutException as error:
            return 0, Reading("timeout", error=f"nothing came for {settings.read_s:g} s ({type(error).__name__})")
        # Beside its own classes, httpx raises what its parsers raise over malformed bytes of an endpoint.
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, ValueError, LookupError) as error:
            return 0, Reading("connection", error=_brief(error, hear))
        if flaw is not None and status == 200:
            tokens = min(settings.max_tokens, int(len(body) / BYTES_PER_TOKEN))
            usage = Usage(request.tokens(), tokens, estimated=True)
            return status, Reading(flaw.outcome, error=hear.error(str(flaw)), usage=usage)
        return status, read(status, headers, body, request, settings.model, url, hear)

    def _judge(self, reading: Reading) -> Reading:
        """The reading, with `stop` where every request so far was refused like this one."""
        self._refused = self._refused + 1 if reading.outcome == "refused" else 0
        if reading.stop or self._refused < HOPELESS or self._ledger.answers:
            return reading
        return replace(reading, stop=f"The endpoint refuses every request ({reading.error}).")

    async def _afford(self, request: Request) -> bool:
        """Set the request's highest cost aside; False where it is not within the budget even when all has settled."""
        settings = self.settings
        most = settings.cost(request.tokens(), settings.max_tokens)
        while settings.max_cost and self._ledger.at_most + most > settings.max_cost:
            if not self._ledger.under_way:
                return False
            self._settled.clear()
            await self._settled.wait()
        self._ledger.plan(request.id(settings), most)
        return True

    async def _back_off(self, reading: Reading, attempt: int) -> None:
        """Wait as long as the endpoint asks for, within reason, or else longer with each attempt."""
        settings = self.settings
        longest = min(settings.longest_wait_s, settings.first_wait_s * 2 ** (attempt - 1))
        wait = random.uniform(longest / 2, longest)
        if reading.retry_after_s is not None:
            asked = min(reading.retry_after_s, settings.longest_pause_s)
            self._pace.hold(asked)
            self._say_wait(asked, reading)
            wait = asked + random.uniform(0, settings.first_wait_s / 4)
        await asyncio.sleep(wait)

    def _say_wait(self, seconds: float, reading: Reading) -> None:
        """Report a wait, once for all requests that wait at the same time."""
        now = time.monotonic()
        if seconds < LONG_WAIT_S or now < self._said_until:
            return
        self._said_until = now + seconds
        asked = reading.retry_after_s or 0.0
        more = f", and asks for {asked:.0f} s" if asked > seconds else ""
        self._say(f"the endpoint asks for a pause{more}: waiting {seconds:.0f} s ({reading.error}).")


def _brief(error: Exception, hear: Heard) -> str:
    return hear.error(str(error) or type(error).__name__)


class Replies:
    """`ask` for code that is not asynchronous: its loop runs in a thread, also while the caller is busy.

        with Replies(endpoint, requests) as replies:
            for reply in replies: ...

    Leaving the context calls off what is under way.
    """

    def __init__(self, endpoint: Endpoint, requests: Iterable[Request]):
        self._endpoint, self._requests = endpoint, requests
        self._arrived: queue.SimpleQueue[Reply | BaseException | None] = queue.SimpleQueue()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._work, name="endpoint", daemon=True)

    def __enter__(self) -> Replies:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving.set()
        self._thread.join(LEAVE_S)

    def __iter__(self) -> Iterator[Reply]:
        while (reply := self._arrived.get()) is not None:
            if isinstance(reply, BaseException):
                raise reply
            yield reply

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._arrived.put(error)
        self._arrived.put(None)

    async def _run(self) -> None:
        task = asyncio.create_task(self._ask())
        while not task.done():
            if self._leaving.is_set():
                task.cancel()
            await asyncio.wait({task}, timeout=0.1)
        task.result()

    async def _ask(self) -> None:
        async with self._endpoint as endpoint:
            async for reply in endpoint.ask(self._requests):
                self._arrived.put(reply)
