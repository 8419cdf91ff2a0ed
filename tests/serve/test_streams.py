"""Reveal events replay to the trace; seeds decide whoever else is served; who leaves or reads slowly holds nothing."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from serve_helpers import UNSURE, Running
from sse import events

from dice.decode.engine.engine import Engine
from dice.decode.trace import Trace
from dice.generation import DECODING, Writer
from dice.serve.events import replay
from tests.conftest import PATIENCE_S

pytestmark = pytest.mark.xdist_group("serve")  # they share one server

Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer.load("nano", DECODING)


def engine_trace(engine: Engine, writer: Writer, ids: Sequence[int], seed: int, **settings: Any) -> Trace:
    from dataclasses import replace

    tokenizer = writer.tokenizer
    config = replace(DECODING, stop_ids=tokenizer.stop_ids, vocab_limit=tokenizer.vocab_size, **settings)
    handle = engine.submit(ids, config, seed)
    engine.run()
    assert handle.trace is not None
    return handle.trace


def comparable(trace: Trace) -> str:
    """All of it but the forwards, which count how the prompt was read: that depends on what was read before."""
    return json.dumps(trace.to_json() | {"forwards": 0})


def check_replays(server: Running, writer: Writer, prompt: str, count: int) -> None:
    engine = Engine(writer.model, slots=2)
    draw = random.Random(3)
    for number in range(count):
        content = prompt[: draw.randrange(20, len(prompt))]
        chats = number % 3 == 0
        settings = {
            "temperature": draw.choice([0.0, 0.6, 1.3]),
            "confidence_threshold": draw.choice([0.5, 0.9, 0.99]),
            "top_p": draw.choice([1.0, 0.9]),
            "remasking": draw.choice(["low_confidence_dynamic", "sequential", "entropy_bounded"]),
        }
        most = draw.randrange(1, 18)
        messages = [{"role": "user", "content": content}]
        body = {"max_tokens": most, "seed": number, "stream": True, **settings, "stream_options": {"diffusing": True}}
        path, asked = ("chat/completions", {"messages": messages}) if chats else ("completions", {"prompt": UNSURE})
        told = events(f"{server.url}/v1/{path}", body | asked)
        ours = [data["dice"] for name, data in told[:-1] if name.startswith("dice.")]
        assert all(data["choices"] == [] for name, data in told[:-1] if name)
        ids = writer.tokenizer.encode_chat(messages) if chats else writer.tokenizer.encode(UNSURE)
        expected = engine_trace(engine, writer, ids, number, max_new_tokens=most, **settings)
        (found,) = replay(ours).values()
        assert comparable(found) == comparable(expected)
        pieces = [data["choices"][0] for name, data in told[:-1] if not name]
        text = "".join(piece["delta"].get("content", "") if chats else piece["text"] for piece in pieces)
        assert text == writer.tokenizer.decode(found.response_ids)


def test_reveal_events_replay_to_the_trace(server: Running, writer: Writer, prompt: str) -> None:
    check_replays(server, writer, prompt, 6)


@pytest.mark.slow
def test_two_hundred_streams_replay_to_their_traces(server: Running, writer: Writer, prompt: str) -> None:
    check_replays(server, writer, prompt, 200)


def test_a_replay_that_lacks_a_step_is_noticed(server: Running, messages: Messages) -> None:
    body = {"messages": messages, "max_tokens": 8, "stream": True, "stream_options": {"diffusing": True}}
    told = [data["dice"] for name, data in events(f"{server.url}/v1/chat/completions", body) if name]
    with pytest.raises(ValueError, match="reveal nothing"):
        replay([event for event in told if event.get("step") != 1])


def test_a_text_that_a_stop_string_ended_replays_to_the_cut_trace(server: Running, messages: Messages) -> None:
    body = {"messages": messages, "max_tokens": 40, "temperature": 0, "stream": True}
    whole, cut = (
        replay(data["dice"] for name, data in events(f"{server.url}/v1/chat/completions", body | more) if name)[0]
        for more in (
            {"stream_options": {"diffusing": True}},
            {"stream_options": {"diffusing": True}, "stop": "load_inline"},
        )
    )
    assert cut.kept < whole.kept
    assert comparable(cut) == comparable(whole.cut(cut.kept))


def test_a_seed_decides_alone_and_beside_others(server: Running) -> None:
    """Sixteen streams at once, twice as many as there are slots, and each alone."""

    async def ask(client: httpx.AsyncClient, seed: int) -> str:
        body = {"prompt": UNSURE, "max_tokens": 8, "temperature": 1.0, "seed": seed % 6}
        answer = await client.post(f"{server.url}/v1/completions", json=body)
        return str(answer.json()["choices"][0]["text"])

    async def all_of_them() -> tuple[list[str], list[str]]:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            alone = [await ask(client, seed) for seed in range(6)]
            return alone, await asyncio.gather(*(ask(client, seed) for seed in range(16)))

    alone, together = asyncio.run(all_of_them())
    assert together == [alone[seed % 6] for seed in range(16)]
    assert len(set(alone)) == 6


def request_bytes(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = ("POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join((*head, f"Content-Length: {len(content)}", "", "")).encode() + content


def abort_some(server: Running, messages: Messages, count: int) -> None:
    """Requests whose clients leave: at once, after some bytes, or while waiting; whole ones and streams."""
    draw = random.Random(1)
    before = server.metric("dice_forwards_total")
    for number in range(count):
        body = {
            "messages": messages,
            "max_tokens": 2000,
            "temperature": 1.0,
            "stream": number % 3 != 0,
            "n": 1 + number % 3,
        }
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.settimeout(PATIENCE_S)
            client.sendall(request_bytes(body))
            if body["stream"] and draw.random() < 0.7:
                client.recv(draw.randrange(1, 2000))
    server.wait_idle()
    # To their ends, the texts would have taken some 20 forwards each, with eight of them in a forward.
    assert server.metric("dice_forwards_total") - before < 10 * count


def test_who_leaves_holds_nothing(server: Running, messages: Messages) -> None:
    abort_some(server, messages, 24)
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json={"messages": messages, "max_tokens": 2, "n": 8}, timeout=PATIENCE_S
    )
    assert answer.json()["usage"]["completion_tokens"] == 16


@pytest.mark.slow
def test_a_thousand_who_leave_hold_nothing(server: Running, messages: Messages) -> None:
    for _ in range(25):  # no more than may wait at once
        abort_some(server, messages, 40)


def test_a_slow_reader_stops_nobody(server: Running, messages: Messages) -> None:
    """It reads nothing of a long stream; the text is written to its end meanwhile, and others are answered."""
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        body = {"messages": messages, "max_tokens": 60, "stream": True, "n": 3, "stream_options": {"diffusing": True}}
        slow.sendall(request_bytes(body))
        found = httpx.post(
            f"{server.url}/v1/chat/completions", json={"messages": messages, "max_tokens": 4}, timeout=PATIENCE_S
        )
        assert found.json()["usage"]["completion_tokens"] == 4
        server.wait_idle()  # the slow one's slots, too


def test_edited_lines_alone_change(server: Running, messages: Messages) -> None:
    text = "```python\nimport torch\nimport torch.nn as nn\nx = 1 + 2\nprint(x)\n```"
    body = {"messages": messages, "text": text, "lines": [4], "temperature": 1.0, "seed": 7}
    whole = httpx.post(f"{server.url}/v1/edit", json=body, timeout=PATIENCE_S).json()
    edited = whole["choices"][0]["text"].split("\n")
    old = text.split("\n")
    assert edited[:3] == old[:3] and edited[-2:] == old[-2:] and whole["choices"][0]["finish_reason"] == "stop"
    told = events(f"{server.url}/v1/edit", body | {"stream": True, "stream_options": {"diffusing": True}})
    assert "".join(data["choices"][0]["text"] for name, data in told[:-1] if not name) == whole["choices"][0]["text"]
    (trace,) = replay(data["dice"] for name, data in told if name).values()
    written = sum(step >= 0 for step in trace.steps)
    assert 0 < written == whole["usage"]["completion_tokens"] < 12
    for lines in ([99], [0]):
        refused = httpx.post(f"{server.url}/v1/edit", json=body | {"lines": lines}, timeout=PATIENCE_S)
        assert refused.status_code == 400 and "error" in refused.json()
