"""Running the server: sockets, time limits on connections, and a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dice.decode.ready import load
from dice.errors import MachineError, UserError
from dice.model.checkpoint import resolve_model
from dice.serve.app import Service, make_app
from dice.serve.errors import ApiError
from dice.serve.guard import JsonLines
from dice.serve.orders import new_engine
from dice.serve.settings import ServeSettings

log = logging.getLogger("dice.serve")
ENGINE_LOST = 70  # the exit code where the engine failed too often: a fault of ours
ALIVE_S = 15  # after an answer, for the next request
# A client whose machine is gone says nothing: asked after so many seconds of silence, so often and so many times, and
# given up as well where nothing that was sent is acknowledged for as long as that takes.
SILENCE_S, ASK_AGAIN_S, ASK_TIMES = 30, 10, 3
KEEP_ALIVE = {
    "TCP_KEEPIDLE": SILENCE_S,
    "TCP_KEEPINTVL": ASK_AGAIN_S,
    "TCP_KEEPCNT": ASK_TIMES,
    "TCP_USER_TIMEOUT": 1000 * (SILENCE_S + ASK_AGAIN_S * ASK_TIMES),
}


class Connection(H11Protocol):
    """A connection of uvicorn's that is cut off when the head of a request does not come whole in time, when the client
    takes nothing of its answer for too long, or when there are too many of them."""

    def __init__(self, *args: Any, settings: ServeSettings, **more: Any) -> None:
        super().__init__(*args, **more)
        self._settings = settings
        self._head: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        keep_alive(transport.get_extra_info("socket"))
        if len(self.connections) > self._settings.connections:
            transport.abort()
        else:
            self._head = self.loop.call_later(self._settings.head_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def _watch_head(self) -> None:
        """Time the head of a request, from its first byte on."""
        reading = self.cycle is None or self.cycle.response_complete
        if reading and self._head is None:
            self._head = self.loop.call_later(self._settings.head_s, self.transport.abort)
        elif not reading:
            self._cancel()

    def _cancel(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is answered in the form of everything else."""
        body = json.dumps(ApiError(400, "The request is no valid HTTP.").body()).encode()
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        headers.append((b"content-length", str(len(body)).encode()))
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self.loop.call_later(self._settings.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None


def keep_alive(client: socket.socket) -> None:
    """Have the system find out where the other machine is gone; it may lack some of these settings."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Server(uvicorn.Server):
    """uvicorn's, which ends with 0 after a SIGTERM: everything under way was answered before."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            try:
                yield
            finally:
                self._captured_signals.clear()


def serve(name: str, settings: ServeSettings, started: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code. `started` is told the URL once requests are answered.

    Raises `UserError` for a model that cannot be served, `MachineError` for an address that cannot be had.
    """
    # The tokenizers library encodes in the thread that asks, and has no threads of its own for forks to warn about.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    model, tokenizer = load(resolve_model(name), settings.tensor_parallel)
    if model.config.traits.kind == "diffusion":
        new_engine(model, settings)  # raises, saying why
    listening = listen(settings)
    _log_lines()
    lost = False

    def engine_lost() -> None:
        nonlocal lost
        lost = server.should_exit = True

    service = Service(model, tokenizer, settings, engine_lost)
    config = uvicorn.Config(
        make_app(service), http=functools.partial(Connection, settings=settings),  # type: ignore[arg-type]
        ws="none", lifespan="on", log_config=None, access_log=False, server_header=False, proxy_headers=False,
        timeout_keep_alive=ALIVE_S, timeout_graceful_shutdown=int(settings.drain_s),
    )  # fmt: skip
    server = Server(config)

    async def run() -> None:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not (server.started or serving.done()):
            await asyncio.sleep(0.01)
        if server.started:
            started(address(settings, listening))
        await serving

    gc.freeze()  # what lives as long as the server is not searched again whenever a request makes many objects
    asyncio.run(run())
    return ENGINE_LOST if lost else 0


def listen(settings: ServeSettings) -> socket.socket:
    """Raises `MachineError` for a port that is taken, `UserError` for an address that is not this machine's."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        return socket.create_server(found[0][4][:2], family=found[0][0], backlog=256)
    except socket.gaierror:
        raise UserError(f"{settings.host} is no address of this machine.") from None
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise MachineError(f"Cannot listen on {settings.host} port {settings.port}: {said}.") from None


def address(settings: ServeSettings, listening: socket.socket) -> str:
    """The URL for people; with the port that the system chose where none was asked for."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{listening.getsockname()[1]}"


def _log_lines() -> None:
    """What is logged, one JSON object a line, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("dice.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == "dice.serve" else logging.WARNING)
