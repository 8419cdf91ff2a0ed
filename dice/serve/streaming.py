"""Sending an order's texts: as one body, or as events while they are written; and stopping when nobody listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dice.errors import UserError
from dice.files import JsonObject
from dice.model.tokenizer import Tokenizer
from dice.serve import events
from dice.serve.answer import Delta, Token
from dice.serve.errors import ApiError, internal
from dice.serve.forms import Form, usage
from dice.serve.orders import Choice, Order, given_texts, token_text

log = logging.getLogger("dice.serve")
Result = TypeVar("Result")


class ClientGone(Exception):
    """The client has left before the end of its answer."""


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client leaves. Raises `ClientGone` then."""

    async def gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def last(steps: AsyncGenerator[Result, None]) -> Result:
    """What comes last of at least one step; the generator is closed, however this ends."""
    async with aclosing(steps):
        return [one async for one in steps][-1]


async def whole(request: Request, order: Order, form: Form) -> JsonObject:
    """The texts of an order in one body."""
    tokens: dict[Choice, list[Token]] = {choice: [] for choice in order.choices}

    async def collect() -> None:
        async with aclosing(order.steps()) as steps:
            async for choice, _, delta in steps:
                tokens[choice] += delta.tokens

    await while_connected(request.receive, collect())
    return form.whole(order, tokens)


async def stream(order: Order, form: Form, tokenizer: Tokenizer, diffusing: bool) -> AsyncGenerator[bytes, None]:
    """The texts of an order as server-sent events; `diffusing`: with those that show denoising."""

    def told(data: JsonObject) -> bytes:
        return events.sse(form.envelope([]) | {"dice": data}, f"dice.{data['type']}")

    for choice in order.choices:
        if (first := form.first(choice)) is not None:
            yield events.sse(first)
        if diffusing:
            text, config = choice.ticket.text, choice.ticket.config
            tokens = given_texts(tokenizer, text)
            yield told(events.started(choice.index, text, config.remasking, config.resolved_mode, tokens))
    async with aclosing(order.steps()) as steps:
        async for choice, revealed, delta in steps:
            parts = []
            if diffusing and revealed is not None:
                event = revealed.event
                texts = [token_text(tokenizer, token) for token in event.tokens]
                parts.append(told(events.revealed(choice.index, event, texts)))
            if delta.text or (form.logprobs and delta.tokens):
                parts.append(events.sse(form.chunk(choice, delta, None)))
            if choice.ending is not None:
                parts.append(events.sse(form.chunk(choice, Delta(), choice.finish_reason)))
                if diffusing:
                    parts.append(told(events.traced(choice.index, choice.ending)))
            if parts:
                yield b"".join(parts)
    if form.include_usage:
        yield events.sse(form.envelope([], usage(order)))
    yield events.DONE


class EventStream(Response):
    """Server-sent events. What goes wrong once they have begun is an event of its own, and the last. `close` is called
    when it is over, in whatever way."""

    def __init__(self, body: AsyncGenerator[bytes, None], close: Callable[[], None] = lambda: None) -> None:
        super().__init__(
            media_type="text/event-stream", headers={"cache-control": "no-store", "x-accel-buffering": "no"}
        )
        del self.headers["content-length"]
        self._events, self._close = body, close
        self._first = b""

    @classmethod
    async def begun(cls, body: AsyncGenerator[bytes, None]) -> EventStream:
        """A stream whose first event is there: what is refused at once is raised here, where it still gets a status."""
        first = await anext(body)
        stream = cls(body)
        stream._first = first
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def pump() -> None:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if self._first:
                await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for part in _guarded(self._events):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await while_connected(receive, pump())
        finally:
            self._close()
            await self._events.aclose()


async def _guarded(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for part in body:
            yield part
    except ApiError as error:
        yield events.sse(error.body())
    except UserError as error:
        yield events.sse(ApiError(400, str(error)).body())
    except Exception:
        log.exception("a stream failed")
        yield events.sse(internal().body())
