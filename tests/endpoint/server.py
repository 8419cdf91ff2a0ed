"""An OpenAI-compatible server on this machine that misbehaves as it is told to.

The prompt says how: `name|429,500,ok` is answered with 429 first, then with 500, then as it should be (and so ever on).
`Server.told` may find the actions in a prompt in another way.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}


def echo(prompt: str) -> str:
    return f"answer to {prompt}"


def after_bar(prompt: str) -> str:
    return prompt.partition("|")[2]


@dataclass
class Server:
    """`received`: prompts in the order they came; `most_at_once`: requests that were under way at the same time."""

    url: str = ""
    answer: Callable[[str], str] = echo
    told: Callable[[str], str] = after_bar
    delay_s: float = 0.0
    slow_s: float = 2.0
    received: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def counts(self) -> Counter[str]:
        return Counter(prompt.partition("|")[0] for prompt in self.received)

    def action(self, prompt: str) -> str:
        """What to do with this request, which is noted."""
        with self._lock:
            before = self.received.count(prompt)
            self.received.append(prompt)
            self.times.append(time.monotonic())
        actions = self.told(prompt).split(",")
        return actions[min(before, len(actions) - 1)] or "ok"

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1


@contextlib.contextmanager
def serving(**settings: Any) -> Iterator[Server]:
    server = Server(**settings)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # noqa: N802 - the name that http.server calls
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.headers.append(dict(self.headers))
            server.bodies.append(body)
            prompt = body["messages"][-1]["content"]
            with server.under_way(), contextlib.suppress(BrokenPipeError, ConnectionResetError):
                time.sleep(server.delay_s)
                _act(self, server, server.action(prompt), prompt)

        def log_message(self, *_: object) -> None:
            pass

    class Http(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            pass  # a client that was killed

    http = Http(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


def _act(handler: BaseHTTPRequestHandler, server: Server, action: str, prompt: str) -> None:
    kind, _, value = action.partition(":")
    if kind == "reset":
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
        handler.close_connection = True
        return
    if kind in ("slow", "wait"):
        time.sleep(float(value or server.slow_s))
    if kind.isdigit():
        _send(handler, int(kind), _error(handler, value), _retry_after(value))
        return
    text = {"empty": "", "none": None}.get(kind, server.answer(prompt))
    reason = {"length": "length", "filtered": "content_filter"}.get(kind, "stop")
    answer: dict[str, Any] = {"choices": [{"message": {"content": text}, "finish_reason": reason}], "usage": USAGE}
    if kind == "unpaid":
        del answer["usage"]
    if kind == "nochoice":
        answer["choices"] = []
    if kind == "schema":
        answer = {"result": text}
    data = json.dumps(answer).encode()
    if kind == "truncated":
        data = data[: len(data) // 2]
    _send(handler, 200, data, {}, cut=kind == "cut")


def _error(handler: BaseHTTPRequestHandler, value: str) -> bytes:
    said = handler.headers.get("Authorization", "") if value == "echo" else "no"
    return json.dumps({"error": {"message": f"{said}"}}).encode()


def _retry_after(value: str) -> dict[str, str]:
    if value == "date":
        return {"Retry-After": email.utils.formatdate(time.time() + 2, usegmt=True)}
    return {"Retry-After": value} if value.replace(".", "").isdigit() else {}


def _send(
    handler: BaseHTTPRequestHandler, status: int, data: bytes, headers: dict[str, str], cut: bool = False
) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2] if cut else data)
    handler.close_connection = cut
