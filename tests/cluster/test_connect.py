"""What is no cluster, or none that answers, is said in a sentence and at once. Nothing here joins one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dice.errors import MachineError, UserError

pytest.importorskip("ray")

from dice.cluster import connect as room  # noqa: E402


@contextlib.contextmanager
def answering(what: bytes) -> Iterator[str]:
    """The address of something that says this to whoever comes, and ends with that; nothing: it waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        callers: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):  # closed, with the block
                callers.append(server.accept()[0])
                if what:
                    callers[0].sendall(what)
                    callers[0].shutdown(socket.SHUT_WR)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("address", ["nowhere", "ray://host:10001", "host:", ":6379", "host:port", "1:2/3", ""])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(UserError, match="takes auto or HOST:PORT"):
        room.connect(address)


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("127.0.0.1:99999", ""),
        ("127.0.0.1:" + "9" * 30, ""),
        ("no.such.host.invalid:6379", ""),
    ],
)
def test_where_nothing_answers(address: str, why: str) -> None:
    with pytest.raises(MachineError, match=f"No Ray cluster answers at {address}: {why}"):
        room._running(address)


@pytest.mark.parametrize("says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail", b"\0"])
def test_where_something_else_answers(says: bytes) -> None:
    """Ray would try for minutes."""
    with (
        answering(says) as address,
        pytest.raises(MachineError, match=f"What answers at {address} is no head of a Ray"),
    ):
        room._running(address)


def test_where_something_listens_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "REACH_S", 0.2)
    with (
        answering(b"") as address,
        pytest.raises(MachineError, match=f"No Ray cluster answers at {address}: timed out"),
    ):
        room._running(address)


def test_a_head_is_known_by_its_first_words() -> None:
    with answering(bytes((0, 0, 6, 4, 0, 0, 0, 0, 0)) + bytes(6)) as address:
        assert room._running(address) == address


def test_where_no_cluster_runs_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may run one of theirs, which Ray would find among all processes."""
    from ray._private import services

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    with pytest.raises(MachineError, match=r"No Ray cluster runs on this machine: start one \(ray start --head\)"):
        room._running("auto")
