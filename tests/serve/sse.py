"""A strict reader of server-sent events: anything but `event:` and one `data:` line with JSON is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx


def read(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """(event name, data) of each event; the last is ("", "[DONE]"), and nothing follows it."""
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    rest, done = b"", False
    for part in response.iter_raw():
        rest += part
        while b"\n\n" in rest:
            block, _, rest = rest.partition(b"\n\n")
            assert not done, "an event follows [DONE]"
            lines = block.decode("utf-8", "strict").split("\n")
            name = lines.pop(0).removeprefix("event: ") if lines[0].startswith("event: ") else ""
            assert len(lines) == 1 and lines[0].startswith("data: "), lines
            text = lines[0].removeprefix("data: ")
            done = text == "[DONE]"
            yield name, text if done else json.loads(text)
    assert done and not rest


def events(url: str, body: dict[str, Any]) -> list[tuple[str, Any]]:
    with httpx.stream("POST", url, json=body, timeout=600) as response:
        assert response.status_code == 200, response.read()
        return list(read(response))
