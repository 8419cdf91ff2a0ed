"""Starting again after kill -9. That a SIGTERM lets end what was begun is seen when servers of tests end."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import httpx
import pytest
from serve_helpers import UNSURE, Running, descendants

from tests.conftest import PATIENCE_S


@pytest.mark.slow
def test_kill_and_start_again(tmp_path: Path, messages: list[dict[str, str]]) -> None:
    """Two servers are started: one is killed in the middle of a stream, the next one takes its port and its work."""
    first = Running(tmp_path)
    body = {"messages": messages, "max_tokens": 60, "temperature": 0, "stream": True}
    with httpx.stream("POST", f"{first.url}/v1/chat/completions", json=body, timeout=PATIENCE_S) as response:
        parts = response.iter_raw()
        next(parts)
        left = descendants(first.process.pid)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(PATIENCE_S)
        try:
            rest = b"".join(parts)
        except httpx.TransportError:
            rest = b""
        assert b"[DONE]" not in rest
    deadline = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in left):
        assert time.monotonic() < deadline, "a process outlives its server"
        time.sleep(0.05)
    second = Running(tmp_path, port=first.port)
    answer = httpx.post(
        f"{second.url}/v1/chat/completions", json=body | {"stream": False, "max_tokens": 4}, timeout=PATIENCE_S
    )
    assert answer.json()["usage"]["completion_tokens"] == 4
    second.end()


@pytest.mark.slow
def test_what_takes_longer_than_a_drain_is_broken_off_in_words(tmp_path: Path) -> None:
    server = Running(tmp_path, "--drain", "1")
    body = {"prompt": UNSURE, "max_tokens": 2000, "n": 8, "stream": True}
    told = b""
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S) as response:
        for part in response.iter_raw():
            if not told:
                server.process.send_signal(signal.SIGTERM)
            told += part
    assert server.process.wait(PATIENCE_S) == 0
    assert json.loads(told.decode().split("data: ")[-1])["error"]["code"] == "stopped"
    assert "raceback" not in server.log.read_text()
