"""Connections that say or take too little: they are cut off in their time, and nobody waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from dice.serve.guard import Guard
from dice.serve.metrics import Metrics
from dice.serve.scheduler import Scheduler
from dice.serve.server import Connection
from dice.serve.settings import ServeSettings
from tests.conftest import PATIENCE_S

HEAD = b"POST /endless HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"


class App:
    """Answers `/`; and `/endless` without an end, until `left` is set."""

    def __init__(self) -> None:
        self.left = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = scope["path"] in ("/", "/endless")
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": []})
        while scope["path"] == "/endless":
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            if self.left.is_set():
                return
        await send({"type": "http.response.body", "body": b"ok"})


@contextlib.contextmanager
def listening(settings: ServeSettings) -> Iterator[tuple[App, int]]:
    """A server of ours in a thread, with `App` behind its guard."""
    app = App()
    guard = Guard(app, settings, Metrics(Scheduler(lambda: pytest.fail("no engine is needed")), 1))
    config = uvicorn.Config(
        guard, http=functools.partial(Connection, settings=settings), ws="none", lifespan="off", log_config=None,
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield app, listener.getsockname()[1]
        finally:
            app.left.set()
            server.should_exit = True
            thread.join(PATIENCE_S)


def ended(client: socket.socket) -> bytes:
    """All that still comes until the other side has cut the connection off."""
    client.settimeout(PATIENCE_S)
    found = b""
    try:
        while part := client.recv(65536):
            found += part
            assert len(found) < 16 << 20, "it is never cut off"
    except ConnectionResetError:
        pass
    return found


def test_half_a_head_is_cut_off_also_after_an_answer() -> None:
    with listening(ServeSettings(model="m", head_s=0.3)) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as half:
            half.sendall(b"GET / HTTP/1.1\r\nHost: local")
            assert ended(half) == b""
        with socket.create_connection(("127.0.0.1", port)) as second:
            second.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\nHo")
            assert ended(second).count(b"HTTP/1.1 200") == 1
        with socket.create_connection(("127.0.0.1", port)) as silent:
            assert ended(silent) == b""


def test_half_a_body_is_cut_off_and_others_are_served() -> None:
    with (
        listening(ServeSettings(model="m", body_s=0.3)) as (_, port),
        socket.create_connection(("127.0.0.1", port)) as half,
    ):
        half.sendall(HEAD + b"{")
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S).text == "ok"
        assert b" 408 " in ended(half)


def test_a_client_that_takes_nothing_is_cut_off() -> None:
    with listening(ServeSettings(model="m", write_s=0.3)) as (_, port), socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", port))
        slow.sendall(HEAD + b"{}")
        time.sleep(1.0)
        found = ended(slow)  # what lay in buffers, and then the end of an answer that has none
        assert b"200 OK" in found


@pytest.mark.parametrize(("kind", "status"), [(b"application/json", b"413"), (b"text/plain", b"415")])
def test_too_long_a_body_can_be_sent_to_its_end(kind: bytes, status: bytes) -> None:
    """A client that is cut off while it sends does not read the answer."""
    body = b"x" * (6 << 20)
    head = HEAD.replace(b"application/json", kind).replace(b"Length: 2", b"Length: %d" % len(body))
    with listening(ServeSettings(model="m")) as (_, port), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", port))
        client.sendall(head + body)
        assert ended(client).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_http_is_answered_in_openais_form(sent: bytes) -> None:
    with listening(ServeSettings(model="m")) as (_, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(sent)
            head, _, body = ended(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ") and set(json.loads(body)["error"]) >= {"message", "type"}


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"Expect: 100-continue\r\nContent-Length: 99999999", b"413"),
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"400"),
        (b"Content-Encoding: gzip\r\nContent-Length: 5", b"415"),
    ],
)
def test_a_body_that_will_not_be_read_is_refused_by_its_head(more: bytes, status: bytes) -> None:
    with listening(ServeSettings(model="m")) as (_, port), socket.create_connection(("127.0.0.1", port)) as client:
        body = b"" if b"Expect" in more else b"0\r\n\r\n"
        client.sendall(HEAD.replace(b"Content-Length: 2", more) + body)
        head, _, body = ended(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status) and json.loads(body)["error"]["message"]
        assert b"content-length: %d" % len(body) in head


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/", b"localhost", b"200"),
        (b"HTTP://localhost:8000?x=1", b"a.proxy", b"200"),
        (b"http://elsewhere/", b"localhost", b"403"),
        (b"ftp://localhost/", b"localhost", b"404"),
    ],
)
def test_a_whole_url_as_a_proxy_gets_it_is_understood(target: bytes, host: bytes, status: bytes) -> None:
    with listening(ServeSettings(model="m")) as (_, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (target, host))
        assert ended(client).startswith(b"HTTP/1.1 " + status)


def test_the_system_asks_whether_a_silent_client_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = []
    made = Connection.connection_made

    def noted(self: Connection, transport: asyncio.Transport) -> None:
        made(self, transport)
        accepted.append(transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    monkeypatch.setattr(Connection, "connection_made", noted)
    with listening(ServeSettings(model="m")) as (_, port):
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S).text == "ok"
    assert accepted and all(accepted)


def test_too_many_connections_are_cut_off() -> None:
    with listening(ServeSettings(model="m", connections=3)) as (_, port):
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        assert ended(clients[-1]) == b""
        for client in clients:
            client.close()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                assert httpx.get(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S).text == "ok"
                return
        raise AssertionError("nobody is let in any more")
