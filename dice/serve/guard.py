"""`Guard`: what every request passes on its way in and every answer on its way out, whichever route it takes."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import time
import uuid
from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dice.serve.errors import ApiError, internal
from dice.serve.events import sse
from dice.serve.metrics import Metrics
from dice.serve.settings import ServeSettings
from dice.serve.streaming import ClientGone

log = logging.getLogger("dice.serve")
OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
DROPPED = 8  # times the longest body
NEEDS_KEY = ("/v1/", "/metrics")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
ROUTES = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/edit", "/v1/verify", "/v1/optimize", "/metrics")


class Guard:
    """Checks host, origin and key; reads the body within its limits; adds the headers; logs and counts.

    Neither texts nor keys are logged. An answer that failed in a way of ours is 500, and the process goes on.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics) -> None:
        self.app, self.settings, self.metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope, passage = origin_form(scope), Passage(send)
        try:
            body = await self._admitted(scope, receive)
            # What answers GET answers HEAD, of which the connection sends the head alone.
            asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
            await self.app(asked, _replayed(body, receive), passage.send)
        except ClientGone:
            passage.left = True
        except ApiError as error:
            await passage.refuse(error, scope)
        except asyncio.CancelledError:  # by the server that stops, once the time for what was under way is over
            await passage.break_off(ApiError(503, "The server has stopped.", code="stopped"), scope)
        except Exception:
            log.exception("request %s failed", passage.id)
            await passage.refuse(internal(), scope)
        finally:
            self._note(scope, passage)

    async def _admitted(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a request that may come in. Raises `ApiError`, `ClientGone`."""
        has_body = scope["method"] == "POST"
        try:
            self._check(scope)
        except ApiError:
            # Who asks before it sends is told by the answer.
            if has_body and not any(name == b"expect" for name, _ in scope["headers"]):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.body_s):
                        await self._drop(receive)
            raise
        return await self._body(receive) if has_body else b""

    def _check(self, scope: Scope) -> None:
        """Raises `ApiError`. A page of another site may make a browser ask us: by a name that it has pointed at this
        machine, or with an origin that is not ours."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self.settings.is_loopback and name not in (*OWN_NAMES, self.settings.host):
            raise ApiError(403, "This server answers under this machine's own name alone.", code="invalid_host")
        origin = headers.get(b"origin")
        if origin is not None and _netloc(origin) != host:
            raise ApiError(403, "Pages of other sites may not use this server.", code="invalid_origin")
        if self.settings.key and scope["path"].startswith(NEEDS_KEY):
            scheme, _, given = headers.get(b"authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode(), self.settings.key.encode())
            if scheme.lower() != "bearer" or not same:
                raise ApiError(401, "The API key is missing or wrong.", code="invalid_api_key")
        # Proxies that go by the one and servers that go by the other see different requests.
        if b"content-length" in headers and b"transfer-encoding" in headers:
            raise ApiError(400, "A request has a content length or a transfer encoding, not both.")
        if scope["method"] == "POST":
            if headers.get(b"content-encoding", "identity").lower() != "identity":
                raise ApiError(
                    415, "The body must come as it is, without a content encoding.", code="unsupported_media_type"
                )
            kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":  # browsers send others across origins without asking
                raise ApiError(415, "The content type must be application/json.", code="unsupported_media_type")
            if int(headers.get(b"content-length", 0)) > self.settings.body_bytes:
                raise self._too_large()

    async def _body(self, receive: Receive) -> bytes:
        """All of it. Raises `ApiError` for one that is too long or too slow, `ClientGone`."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.settings.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self.settings.body_bytes:
                        if message.get("more_body", False):
                            await self._drop(receive)
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, "The request did not come in time.", code="request_timeout") from None

    def _too_large(self) -> ApiError:
        said = f"The request is longer than {self.settings.body_bytes} bytes."
        return ApiError(413, said, code="request_too_large")

    async def _drop(self, receive: Receive) -> None:
        """The rest of a body, up to a bound: a client that still sends it would not read the answer."""
        left = DROPPED * self.settings.body_bytes
        while left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    def _note(self, scope: Scope, passage: Passage) -> None:
        path = scope["path"]
        known = next((route for route in ROUTES if path == route or path.startswith(f"{route}/")), None)
        route = known or ("page" if passage.status < 400 else "other")
        status = 499 if passage.left else passage.status
        seconds = time.monotonic() - passage.started
        self.metrics.requests.labels(route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        said = {"request": passage.id, "method": scope["method"], "route": route, "status": status}
        log.info("answered", extra={"facts": said | {"seconds": round(seconds, 4)} | scope.get("state", {})})


class Passage:
    """One answer on its way out."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.id = f"req_{uuid.uuid4().hex}"
        self.started = time.monotonic()
        self.status = 0
        self.left = self.streams = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.streams = (b"content-type", b"text/event-stream; charset=utf-8") in message.get("headers", ())
            extra = [(name.encode(), value.encode()) for name, value in (HEADERS | {"x-request-id": self.id}).items()]
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await self._send(message)

    async def refuse(self, error: ApiError, scope: Scope) -> None:
        """Say so, where nothing was said yet. The connection ends with it: more of the request may be on its way."""
        if self.status:
            return
        body = json.dumps(error.body()).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        headers |= error.headers
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": raw})
        await self.send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def break_off(self, error: ApiError, scope: Scope) -> None:
        """Refuse, or let a stream that has begun end with an event that says why."""
        if self.streams:
            await self.send({"type": "http.response.body", "body": sse(error.body())})
        await self.refuse(error, scope)


def origin_form(scope: Scope) -> Scope:
    """The request as if it had named its path alone: to a proxy a client sends the whole URL, and some pass it on. The
    name in it stands for that of the header Host, which a server is to overlook then."""
    scheme, mark, rest = scope.get("raw_path", b"").partition(b"://")
    if not mark or scheme.lower() not in (b"http", b"https"):
        return scope
    authority, slash, path = rest.partition(b"/")
    raw_path = slash + path or b"/"
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    named = {
        "raw_path": raw_path,
        "path": unquote(raw_path.decode("ascii")),
        "headers": [(b"host", authority), *headers],
    }
    return {**scope, **named}


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read, and then what comes."""
    given: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return given.pop() if given else await receive()

    return again


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


class JsonLines(logging.Formatter):
    """A log line as one JSON object."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._now = now

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": round(self._now(), 3), "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
