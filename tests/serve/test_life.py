"""Starting again after kill -9, draining on SIGTERM."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import httpx
from serve_helpers import Running
from sse import read

from tests.conftest import PATIENCE_S


def test_kill_and_drain(tmp_path: Path, messages: list[dict[str, str]]) -> None:
    """One server is killed in the middle of a stream; the next one takes its port, and ends with what it has begun."""
    body = {"messages": messages, "max_tokens": 60, "temperature": 0, "stream": True}
    first = Running(tmp_path, "--no-verify")
    url = f"{first.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as response:
        parts = response.iter_raw()
        next(parts)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(PATIENCE_S)
        try:
            rest = b"".join(parts)
        except httpx.TransportError:
            rest = b""
        assert b"[DONE]" not in rest
    second = Running(tmp_path, "--no-verify", port=first.port)
    told: list[Any] = []
    begun = threading.Event()

    def follow() -> None:
        with httpx.stream("POST", url, json=body, timeout=PATIENCE_S) as response:
            for event in read(response):
                told.append(event)
                begun.set()

    following = threading.Thread(target=follow)
    following.start()
    assert begun.wait(PATIENCE_S)
    assert second.end() == 0  # a SIGTERM, and everything that was begun is finished
    following.join(PATIENCE_S)
    assert told[-1] == ("", "[DONE]")
    assert told[-2][1]["choices"][0]["finish_reason"] == "length"
    assert "Traceback" not in second.log.read_text()
