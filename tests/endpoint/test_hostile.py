"""Endpoints that mean harm: whatever they send, each request has an outcome, in bounded memory and time, without the
key in anything that is kept or shown."""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dice.endpoint.ledger import Ledger
from dice.endpoint.request import Reply, Request, RequestSettings
from dice.errors import UserError
from dice.files.journal import append_row, read_rows
from tests.conftest import PATIENCE_S, ROOT

pytest.importorskip("httpx", reason="the endpoint client needs httpx")
from dice.endpoint.client import Endpoint, EndpointStopped, Replies  # noqa: E402 - after the check for httpx

KEY = 'sk-Very+Secret/0123"'
QUICK: dict[str, Any] = {"first_wait_s": 0.01, "longest_wait_s": 0.02, "read_s": 5.0, "max_tokens": 200}
MIB = 1 << 20


def completion(text: str = "fine", **more: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], **more}).encode()


def reply(body: bytes, *headers: str, status: int = 200) -> bytes:
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


def endless(head: bytes, part: bytes, pause_s: float = 0.0) -> Callable[[], Iterator[bytes]]:
    """A reply that never ends, and never says how long it is."""

    def send() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + head
        while True:
            yield part
            time.sleep(pause_s)

    return send


def bomb() -> Iterator[bytes]:
    """Packed, each of its chunks of some KB holds MiB without end."""
    yield b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nConnection: close\r\n\r\n"
    packer, zeros = zlib.compressobj(9, zlib.DEFLATED, 31), bytes(8 * MIB)
    while True:
        yield packer.compress(zeros) + packer.flush(zlib.Z_SYNC_FLUSH)


@contextmanager
def hostile(replies: dict[str, Any], told: Callable[[str], str] = str) -> Iterator[tuple[str, list[str]]]:
    """A server that answers what `told` finds in a prompt as `replies` says, else well; and what it was asked."""
    listening, asked = socket.create_server(("127.0.0.1", 0), backlog=64), list[str]()

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file:
            try:
                while file.readline():
                    headers = dict(
                        line.decode().strip().lower().split(": ", 1) for line in iter(file.readline, b"\r\n")
                    )
                    content = json.loads(file.read(int(headers["content-length"])))["messages"][-1]["content"]
                    asked.append(told(content))
                    answer = replies.get(asked[-1], reply(completion()))
                    for part in answer() if callable(answer) else [answer]:
                        connection.sendall(part)
                    if callable(answer):
                        return
            except (OSError, ValueError):
                pass  # the client has had enough

    def accept() -> None:
        while True:
            try:
                connection = listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve, args=[connection], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1", asked
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def ask(url: str, prompts: Iterable[str], ledger: Path | None = None, **more: Any) -> dict[str, Reply]:
    key = more.pop("key", KEY)
    settings = RequestSettings(url, "teacher", **QUICK | {"attempts": 1} | more)
    with Replies(Endpoint(settings, key, ledger), [Request(prompt) for prompt in prompts]) as replies:
        return {one.request.prompt: one for one in replies}


SURROGATE = b'{"choices": [{"message": {"content": "half \\ud800 of \\udfff\\ud83d\\ude00"}}]}'
MILLION = b'{"choices": [' + b"[]," * 1_000_000 + b"[]]}"
HOSTILE: dict[str, tuple[Any, str, str]] = {  # what is sent, the outcome, and words of the error
    "not gzip": (reply(b"plain", "Content-Encoding: gzip"), "truncated_json", "it is no gzip, as it says"),
    "half gzip": (
        reply(gzip.compress(completion())[:30], "Content-Encoding: gzip"),
        "truncated_json",
        "that are no JSON",
    ),
    "brotli": (reply(b"\x00", "Content-Encoding: br"), "truncated_json", "'br', which was not asked for"),
    "packed twice": (reply(b"", "Content-Encoding: gzip, gzip"), "truncated_json", "which was not asked for"),
    "bomb": (bomb, "too_long", "more than 16 MiB, unpacked"),
    "long": (endless(b"\r\n", b" " * MIB), "too_long", "more than 16 MiB"),
    "long text": (reply(completion("x" * 30_000_000)), "too_long", "more than 16 MiB"),
    "long chunks": (
        endless(b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + b" " * MIB + b"\r\n"),
        "too_long",
        "more than 16",
    ),
    "headers without end": (endless(b"", b"X: " + b"y" * 1000 + b"\r\n"), "connection", ""),
    "deep": (reply(b"[" * 100_000), "truncated_json", "nested too deeply"),
    "deep error": (
        reply(b'{"error": {"message": ' + b"[" * 900 + b"]" * 900 + b"}}", status=500),
        "server_error",
        "HTTP 500",
    ),
    "million": (reply(MILLION), "wrong_schema", "[["),
    "number": (reply(b'{"choices": 1' + b"0" * 5000 + b"}"), "truncated_json", "no JSON"),
    "choices of a text": (reply(b'{"choices": "abc"}'), "wrong_schema", "choices"),
    "content of a number": (reply(b'{"choices": [{"message": {"content": 1e999}}]}'), "wrong_schema", "a float"),
    "long reason": (
        reply(b'{"choices": [{"message": {"content": ""}, "finish_reason": "' + b"r" * 99_999 + b'"}]}'),
        "no_content",
        "an empty text",
    ),
    "odd place": (reply(b"", "Location: http://[::1", status=200), "truncated_json", "0 bytes"),
    "odd status": (reply(b"no", status=999), "server_error", "HTTP 999"),
    "no http": (b"\x16\x03\x01\x00\xff\xfe garbage\r\n\r\n", "connection", ""),
    "surrogate": (reply(SURROGATE), "answer", ""),
    "gzip": (reply(gzip.compress(completion()) + b"rest", "Content-Encoding: gzip"), "answer", ""),
    "deflate": (reply(zlib.compress(completion()), "Content-Encoding: DEFLATE"), "answer", ""),
}


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.slow) if name == "million" else name for name in HOSTILE]
)
def test_no_reply_ends_a_run(case: str, tmp_path: Path) -> None:
    sent, outcome, words = HOSTILE[case]
    with hostile({"bad": sent}) as (url, asked):
        found = ask(url, ["good", "bad", "also good"], tmp_path / "log.jsonl", total_s=60.0)
        assert found["good"].text == found["also good"].text == "fine"
        assert found["bad"].outcome == outcome and words in found["bad"].error and len(found["bad"].error) < 500
        again = ask(url, ["good", "bad"], tmp_path / "log.jsonl", total_s=60.0)
        assert [again[name].text for name in ("good", "bad")] == [found[name].text for name in ("good", "bad")]
        assert asked.count("good") == 1
    if case == "surrogate":
        assert found["bad"].text == "half \ufffd of \ufffd\U0001f600"
    (tmp_path / "log.jsonl").read_text(encoding="utf-8")  # any program can


MEASURED = """
import resource, sys
from dice.endpoint.client import Endpoint, Replies
from dice.endpoint.request import Request, RequestSettings

settings = RequestSettings(sys.argv[1], "m", attempts=1, total_s=60.0, concurrency=8)
with Replies(Endpoint(settings), [Request("warm")]) as replies:
    list(replies)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with Replies(Endpoint(settings), [Request("bad", key=str(number)) for number in range(8)]) as replies:
    print({one.outcome for one in replies}, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize(
    "case", ["bomb", *(pytest.param(name, marks=pytest.mark.slow) for name in ("long", "long chunks"))]
)
def test_eight_bombs_at_once_take_no_memory(case: str) -> None:
    """16 MiB each, and what Python needs to handle them. Endless ones would take all there is."""
    with hostile({"bad": HOSTILE[case][0]}) as (url, _):
        command = ["bash", "-c", 'ulimit -v 8000000; exec "$@"', "-", sys.executable, "-c", MEASURED, url]
        done = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=PATIENCE_S
        )
    outcomes, mib = done.stdout.rsplit(None, 1)
    assert outcomes == "{'too_long'}" and int(mib) < 1500


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 10**400, "completion_tokens": 1},
        {"prompt_tokens": 1, "completion_tokens": 10**15},
        {"prompt_tokens": -5, "completion_tokens": 1},
        {"prompt_tokens": 1.5, "completion_tokens": 1},
        {"prompt_tokens": True, "completion_tokens": 1},
        {"prompt_tokens": float("nan"), "completion_tokens": float("inf")},
        [10**400],
        "many",
    ],
    ids=lambda usage: str(usage)[:40],
)
def test_counts_that_cannot_be_are_not_told(usage: Any, tmp_path: Path) -> None:
    body = completion(usage=usage)
    with hostile({"bad": reply(body)}) as (url, _):
        found = ask(url, ["bad"], tmp_path / "log.jsonl", price_in=1.0, price_out=1.0, max_cost=1.0)
        assert found["bad"].outcome == "answer" and found["bad"].usage.estimated
        assert found["bad"].usage.tokens_in < 100 and found["bad"].usage.tokens_out < 100
        assert ask(url, ["bad", "more"], tmp_path / "log.jsonl", price_in=1.0, max_cost=1.0)["more"].answered


def test_a_log_with_counts_that_cannot_be_is_gone_on_from(tmp_path: Path) -> None:
    usage = {"tokens_in": 10**400, "tokens_out": 1, "estimated": False}
    line = {"event": "answer", "id": "x", "outcome": "answer", "usage": usage, "cost": 10**400, "text": "t"}
    append_row(tmp_path / "log.jsonl", line)
    append_row(tmp_path / "log.jsonl", {"event": "failed", "id": [], "usage": {}, "outcome": "x"})
    with Ledger(tmp_path / "log.jsonl") as ledger:
        assert ledger.at_most >= 0


@pytest.mark.parametrize(
    "value", ["inf", "1e300", "31536000", "nan", "-inf", "-5", "Fri, 31 Dec 9999 23:59:59 GMT", "date", "soon, later"]
)
def test_a_pause_is_bounded_and_said(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dice.endpoint.client.LONG_WAIT_S", 1.0)
    value = formatdate(time.time() + 10**8, usegmt=True) if value == "date" else value
    long = value in ("inf", "1e300", "31536000") or "GMT" in value
    refusal = reply(b'{"error": {"message": "too fast"}}', f"Retry-After: {value}", status=429)
    said: list[str] = []
    with hostile({"bad": refusal}) as (url, asked):
        settings = RequestSettings(url, "teacher", **QUICK, attempts=2, longest_pause_s=1.0)
        with Replies(Endpoint(settings, KEY, say=said.append), [Request("bad"), Request("other")]) as replies:
            found = {one.request.prompt: one for one in replies}
        assert asked.count("bad") == 2
    assert found["bad"].outcome == "rate_limited" and found["other"].answered
    assert ["asks for a pause" in text and "waiting 1 s (HTTP 429: too fast)" in text for text in said] == [True] * long


def test_a_trickle_ends_when_time_is_up() -> None:
    with hostile({"bad": endless(b"Content-Length: 100000\r\n\r\n", b" ", pause_s=0.05)}) as (url, _):
        found = ask(url, ["bad", "good"], total_s=5.0)  # the good one needs some of it, where others are busy
        assert found["bad"].outcome == "timeout" and "within 5 s" in found["bad"].error and found["good"].answered


SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "upper case": str.upper,
    "json": lambda key: json.dumps(key)[1:-1],
    "json twice": lambda key: json.dumps(json.dumps(key)[1:-1])[1:-1],
    "json, slashes too": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "code points": lambda key: "".join(f"\\u{ord(one):04X}" for one in key),
    "url": lambda key: quote(key, safe=""),
    "url, every character": lambda key: "".join(f"%{ord(one):02x}" for one in key),
    "html": html.escape,
    "repr": lambda key: repr(key.encode()),
    "hexadecimal": lambda key: key.encode().hex(),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of the header": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "base64 for a url": lambda key: base64.urlsafe_b64encode(f"user:{key}:x".encode()).decode(),
    "spaced": " ".join,
    "over two lines": lambda key: f"{key[:7]}\n\t{key[7:]}",
}
# What must be gone: pieces of the key itself, and of its codes.
PIECES = [KEY[at : at + 6].lower() for at in range(len(KEY) - 5)]


def assert_hidden(text: str) -> None:
    bare = "".join(text.split()).replace("\\", "").lower()
    assert not [piece for piece in PIECES if piece in bare]
    for code in (KEY.encode().hex(), base64.b64encode(KEY.encode()).decode(), quote(KEY, safe="")):
        assert code[4:16].lower() not in bare


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_key_is_in_nothing_that_is_kept_or_shown(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    echoed = SPELLINGS[name](KEY)
    line = " ".join(echoed.split())  # for headers
    replies = {
        "answer": reply(completion(f"import torch\n# {echoed}\ntorch.empty(1)")),
        "filler": reply(json.dumps({"error": {"message": "x" * 285 + echoed}}).encode(), status=400),
        "object": reply(json.dumps({"error": {"echo": echoed}}).encode(), status=500),
        "plain": reply(f"<p>{echoed}</p>".encode(), f"Retry-After: {line}", status=429),
        "schema": reply(json.dumps({"result": echoed}).encode()),
        "reason": reply(json.dumps({"choices": [{"message": {"content": ""}, "finish_reason": echoed}]}).encode()),
        "encoding": reply(b"", f"Content-Encoding: {line}"),
        "header": f"HTTP/1.1 200 OK\r\n{line} {line}\r\n\r\n".encode(),
        "stop": reply(json.dumps({"error": {"message": echoed}}).encode(), status=401),
    }
    with hostile(replies) as (url, _):
        found = ask(url, ["ok", *replies][:-1], tmp_path / "log.jsonl", concurrency=1)
        with pytest.raises(EndpointStopped, match="refuses the API key") as caught:
            ask(url, ["stop"], tmp_path / "log.jsonl")
    assert found["answer"].text.startswith("import torch\n# ") and found["answer"].text.endswith("\ntorch.empty(1)")
    assert "[key]" in found["answer"].text and "[key]" in found["schema"].error and "[key]" in str(caught.value)
    told = capfd.readouterr()
    for text in (
        *(one.text + one.error for one in found.values()),
        (tmp_path / "log.jsonl").read_text(),
        str(caught.value),
        told.out + told.err,
    ):
        assert_hidden(text)


def test_a_log_of_before_is_read_without_the_key(tmp_path: Path) -> None:
    with hostile({"bad": reply(completion("harmless"))}) as (url, asked):
        ask(url, ["bad"], tmp_path / "log.jsonl")
        rows = list(read_rows(tmp_path / "log.jsonl"))
        (tmp_path / "log.jsonl").unlink()
        for row in rows:
            append_row(tmp_path / "log.jsonl", row | ({"text": f"\ud800 {KEY}"} if "text" in row else {}))
        assert ask(url, ["bad"], tmp_path / "log.jsonl")["bad"].text == "\ufffd [key]" and len(asked) == 1


def test_a_password_in_the_url_is_a_key(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with hostile({"bad": reply(completion("hunter2hunter2 and hunter2%2Fhunter2"))}) as (url, _):
        found = ask(url.replace("//", "//user:hunter2hunter2@"), ["bad"], tmp_path / "log.jsonl")
    assert found["bad"].text == "[key] and hunter2%2Fhunter2"
    with pytest.raises(EndpointStopped, match="Nothing answers at http://127.0.0.1:9/v1") as caught:
        ask("http://user:hunter2hunter2@127.0.0.1:9/v1", ["other"], tmp_path / "log.jsonl")
    assert "hunter2" not in str(caught.value) and "hunter2hunter2" not in (tmp_path / "log.jsonl").read_text()
    with pytest.raises(UserError, match="is no URL") as refused:
        RequestSettings("http://user:hunter2hunter2@localhost:99999/v1", "m")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("key", ["sk-secret\n", "sk-sécret", "sk-\x00secret", " sk-secret"])
def test_a_key_that_no_request_can_carry_is_refused_unseen(key: str) -> None:
    with pytest.raises(UserError, match="The API key holds") as caught:
        Endpoint(RequestSettings("http://localhost", "m"), key)
    assert "cret" not in str(caught.value)


def test_a_word_for_a_key_spoils_no_kernel() -> None:
    with hostile({"bad": reply(completion("torch.empty(EMPTY)"))}) as (url, _):
        assert ask(url, ["bad"], key="EMPTY")["bad"].text == "torch.empty(EMPTY)"


def test_half_a_pair_in_a_question_is_sent() -> None:
    with hostile({}) as (url, asked):
        assert ask(url, ["half \ud800"])["half \ud800"].answered and asked == ["half \ud800"]
