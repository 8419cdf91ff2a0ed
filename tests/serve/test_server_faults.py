"""What holds others up or loses somebody: work in the event loop, places in queues, engines and verifiers that fail."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from tokenizers import Tokenizer as FastTokenizer

from dice.decode.engine.engine import Engine
from dice.decode.request import DecodeConfig
from dice.decode.text import Text
from dice.generation import DECODING, Writer
from dice.model.tokenizer import LONG
from dice.serve.app import Service, make_app
from dice.serve.errors import ApiError, said_of
from dice.serve.orders import new_engine
from dice.serve.proofs import Proofs
from dice.serve.scheduler import Failed, Inbox, Scheduler, Ticket
from dice.serve.settings import ServeSettings
from dice.serve.wire import ChatRequest, CompletionRequest, EditRequest, VerifyRequest
from dice.serve.workers import QUEUE, Finished, Workers
from dice.verify.options import Options
from dice.verify.sandbox.cancel import Cancellation
from tests.conftest import PATIENCE_S, ROOT

MESSAGES = [{"role": "user", "content": "x"}]
PROBLEM = (ROOT / "examples" / "softmax.py").read_text()


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer.load("nano", DECODING)


def ask(writer: Writer, method: str, path: str, settings: ServeSettings | None = None, **more: Any) -> httpx.Response:
    """One request to an application whose engine and verifier do not run."""

    async def once() -> httpx.Response:
        app = make_app(Service(writer.model, writer.tokenizer, settings or ServeSettings(model="nano")))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, **more)

    return asyncio.run(once())


@pytest.mark.parametrize("path", ["/v1/verify", "/v1/optimize"])
def test_a_stream_that_is_refused_at_once_has_the_status_of_it(writer: Writer, path: str) -> None:
    body = {"problem": PROBLEM} | ({"kernel": "x"} if path == "/v1/verify" else {})
    off = ask(writer, "POST", path, ServeSettings(model="nano", verify=False), json=body)
    assert off.status_code == 403 and off.json()["error"]["code"] == "verification_off"
    early = ask(writer, "POST", path, json=body)
    assert early.status_code == 503 and int(early.headers["retry-after"]) > 0


@pytest.mark.parametrize("endpoint", ["proofs", "optimizer"])
def test_a_stream_of_a_bad_problem_or_to_a_full_queue_is_refused(
    writer: Writer, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1/verify" if endpoint == "proofs" else "/v1/optimize"
    body: dict[str, Any] = {"kernel": "x"} if endpoint == "proofs" else {}

    async def answers() -> list[httpx.Response]:
        service = Service(writer.model, writer.tokenizer, ServeSettings(model="nano"))
        workers = Workers(1, "jobs")
        workers._most = 0
        service.proofs._workers = service.optimizer._workers = workers
        monkeypatch.setattr(Proofs, "verifier", property(lambda self: Stopped()))
        transport = httpx.ASGITransport(app=make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return [await client.post(path, json=body | {"problem": one}) for one in ("x = 1", PROBLEM)]

    bad, full = asyncio.run(answers())
    assert bad.status_code == 400 and "no class `Model`" in bad.json()["error"]["message"]
    assert full.status_code == 429 and int(full.headers["retry-after"]) > 0


class Stopped:
    """As much of a verifier as is looked at before anything runs."""

    options = Options()


def test_texts_are_encoded_outside_of_the_event_loop(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    encode = type(writer.tokenizer).encode

    def noted(self: Any, text: str, **more: Any) -> list[int]:
        threads.append(threading.current_thread())
        return encode(self, text, **more)

    monkeypatch.setattr(type(writer.tokenizer), "encode", noted)
    for path, body in (
        ("/v1/completions", {"prompt": ["x", "y"], "suffix": "z", "max_tokens": 2}),
        ("/v1/edit", {"prompt": "x", "text": "a = 1", "lines": [1]}),
        ("/v1/edit", {"messages": MESSAGES, "text": "a = 1", "lines": [1]}),
        ("/v1/chat/completions", {"messages": MESSAGES}),
    ):
        assert ask(writer, "POST", path, json=body).status_code == 503  # no engine runs
    assert len(threads) > 6 and threading.current_thread() not in threads


def test_too_many_prompts_are_not_encoded(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(writer.tokenizer), "encode", lambda *_, **__: pytest.fail("it was encoded"))
    for more in ({"prompt": ["x"] * 17}, {"prompt": ["x"] * 9, "n": 2}, {"prompt": [[1]] * 17}):
        answer = ask(writer, "POST", "/v1/completions", json=more)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "n"


def test_a_long_text_is_encoded_while_other_threads_go_on(writer: Writer) -> None:
    text = "def f(x): return x + 1\n" * (2 * LONG // 20)
    begin, done, seen = threading.Lock(), threading.Event(), []
    pieces = [writer.tokenizer.encode(line) for line in text.splitlines(keepends=True)[:2]]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # whoever computes goes on until it lets others
    try:
        for _ in range(50):
            begin.acquire()
            done.clear()

            def look() -> None:
                with begin:
                    seen.append(done.is_set())

            other = threading.Thread(target=look)
            other.start()
            begin.release()
            ids = writer.tokenizer.encode(text)
            done.set()
            other.join()
            if not seen[-1]:
                break
    finally:
        sys.setswitchinterval(interval)
    assert not seen[-1], "nobody else could do anything meanwhile"
    assert ids[: len(pieces[0]) + len(pieces[1])] == [*pieces[0], *pieces[1]]


def test_a_megabyte_of_faults_is_told_by_the_first() -> None:
    for model, body in (
        (CompletionRequest, {"prompt": [1, "a"] * 5000}),
        (CompletionRequest, {"prompt": [["a"]] * 5000}),
        (CompletionRequest, {"prompt": ["a"] * 5000}),
        (ChatRequest, {"messages": MESSAGES} | {f"k{number}": 1 for number in range(5000)}),
        (ChatRequest, {"messages": [{}] * 200}),
        (ChatRequest, {"messages": [{"role": "user", "content": [1] * 5000}]}),
        (EditRequest, {"prompt": "x", "tokens": [-1] * 5000, "lines": [1]}),
        (EditRequest, {"prompt": "x", "text": "x", "lines": ["a"] * 5000}),
        (VerifyRequest, {"problem": "x", "kernel": "x"} | {f"k{number}": 1 for number in range(5000)}),
    ):
        with pytest.raises(ValidationError) as refused:
            model.model_validate(body)
        assert refused.value.error_count() < 4
        assert len(said_of(refused.value.errors()).message) < 300


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_for_which_the_engine_has_no_pages_is_refused_before_it_begins(writer: Writer, stream: bool) -> None:
    """Its memory may hold fewer positions than the model's context."""
    service = Service(writer.model, writer.tokenizer, ServeSettings(model="nano"))
    few = Engine(writer.model, slots=2, cache_tokens=128)
    service.scheduler = service.counter.scheduler = Scheduler(lambda: few)

    async def answers() -> list[httpx.Response]:
        service.scheduler.start()
        transport = httpx.ASGITransport(app=make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            while not service.scheduler.alive:
                await asyncio.sleep(0.01)
            bodies = [{"prompt": [5] * count, "max_tokens": 200, "stream": stream} for count in (128, 120)]
            found = [await client.post("/v1/completions", json=body) for body in bodies]
        service.scheduler.stop()
        return found

    over, fits = asyncio.run(answers())
    assert over.status_code == 400 and over.json()["error"]["code"] == "context_length_exceeded"
    assert fits.status_code == 200 and "error" not in fits.text


def test_a_text_of_far_too_many_tokens_is_not_encoded(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def f(x): return x + 1\n" * 20_000
    tokenizer, encoded = writer.tokenizer, []

    class Counting:
        """The encoder, which itself cannot be patched."""

        def __init__(self, inner: FastTokenizer) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def encode_batch(self, texts: list[str], **more: Any) -> Any:
            encoded.append(sum(map(len, texts)))
            return self.inner.encode_batch(texts, **more)

    monkeypatch.setattr(tokenizer, "_plain", Counting(tokenizer._plain))
    monkeypatch.delitem(vars(tokenizer), "_bound", raising=False)
    for path, body, param in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, "messages"),
        ("/v1/completions", {"prompt": text}, "prompt"),
        ("/v1/completions", {"prompt": "x", "suffix": text, "max_tokens": 1}, "suffix"),
        ("/v1/edit", {"prompt": "x", "text": text, "lines": [1]}, "text"),
    ):
        error = ask(writer, "POST", path, json=body).json()["error"]
        assert error["code"] == "context_length_exceeded" and error["param"] == param
    assert sum(encoded) < len(text)
    monkeypatch.delitem(vars(tokenizer), "_bound", raising=False)


@pytest.mark.parametrize(
    ("text", "lines", "said"),
    [("a\nb\nc", [2, 99], "3 lines, and line 99"), ("", [1], "lines are empty"), ("a\n", [2], "lines are empty")],
)
def test_lines_that_cannot_be_written_again(writer: Writer, text: str, lines: list[int], said: str) -> None:
    answer = ask(writer, "POST", "/v1/edit", json={"prompt": "x", "text": text, "lines": lines})
    assert answer.status_code == 400 and said in answer.json()["error"]["message"]


def test_a_text_of_all_private_characters_is_answered(writer: Writer) -> None:
    """One that the text lacks is needed to tell control tokens from text."""
    few = "".join(map(chr, range(0xE000, 0xF900)))
    for content, said in (
        (few, "before any answer"),
        (few + "".join(map(chr, range(0xF0000, 0x110000))), "private use"),
    ):
        body = {"messages": [{"role": "user", "content": content}]}
        answer = ask(writer, "POST", "/v1/chat/completions", json=body)
        assert answer.status_code == 400 and said in answer.json()["error"]["message"]


def test_a_number_that_the_engine_cannot_hold_is_refused() -> None:
    with pytest.raises(ValidationError):
        ChatRequest.model_validate({"messages": MESSAGES, "top_k": 2**31})


def test_an_engine_that_fails_over_a_text_fails_its_client(writer: Writer) -> None:
    made: list[int] = []

    def make() -> Any:
        engine = new_engine(writer.model, ServeSettings(model="nano", slots=2))
        made.append(1)

        def add(*given: Any) -> Any:
            raise RuntimeError("a fault of ours")

        if len(made) == 1:
            engine.add = add  # type: ignore[method-assign]
        return engine

    async def run() -> object:
        scheduler = Scheduler(make)
        scheduler.start()
        inbox: Inbox = asyncio.Queue()
        config = DecodeConfig(max_new_tokens=4, temperature=0, stop_ids=frozenset())
        scheduler.submit(Ticket(Text(0, [5, 6, 7], 4, 4, 3, frozenset(), 1), config, inbox))
        try:
            return (await asyncio.wait_for(inbox.get(), PATIENCE_S))[1]
        finally:
            scheduler.stop()

    assert isinstance(asyncio.run(run()), Failed)


def test_a_verifier_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**more: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("dice.serve.proofs.Verifier", fail)
    proofs = Proofs(True, "auto")
    proofs.open()
    with pytest.raises(ApiError, match="could not be started") as refused:
        assert proofs.verifier
    assert refused.value.status == 403 and "a fault of ours" not in refused.value.message
    proofs.close()


def test_who_leaves_the_queue_frees_its_place() -> None:
    async def run() -> None:
        workers, release = Workers(1, "jobs"), threading.Event()

        def follow() -> AsyncGenerator[object, None]:
            return workers.follow(lambda tell: release.wait(PATIENCE_S), Cancellation(), "wait")

        jobs = [follow() for _ in range(1 + QUEUE)]
        assert [await anext(job) for job in jobs] == ["wait"] * (1 + QUEUE)
        with pytest.raises(ApiError) as refused:
            await anext(follow())
        assert refused.value.status == 429
        await jobs[2].aclose()
        another = follow()
        assert await anext(another) == "wait"
        release.set()
        for job in (*jobs[:2], *jobs[3:], another):
            assert await anext(job) == Finished(True)

    asyncio.run(run())


def test_who_waits_when_the_server_ends_is_told() -> None:
    async def run() -> None:
        workers, release = Workers(1, "jobs"), threading.Event()
        jobs = [workers.follow(lambda tell: release.wait(PATIENCE_S), Cancellation(), "wait") for _ in range(2)]
        assert [await anext(job) for job in jobs] == ["wait"] * 2
        workers.close()
        with pytest.raises(ApiError, match="closing"):
            await asyncio.wait_for(anext(jobs[1]), PATIENCE_S)
        release.set()

    asyncio.run(run())


def test_a_name_may_have_a_slash(writer: Writer) -> None:
    settings = ServeSettings(model="people/nano")
    assert ask(writer, "GET", "/v1/models/people/nano", settings).json()["id"] == "people/nano"
    assert ask(writer, "GET", "/v1/models/people/other", settings).json()["error"]["code"] == "model_not_found"


def test_head_and_options(writer: Writer) -> None:
    for path in ("/", "/health", "/v1/models", "/v1/models/nano"):
        assert ask(writer, "HEAD", path).status_code == 200
    refused = ask(writer, "OPTIONS", "/v1/chat/completions")
    assert refused.status_code == 405 and refused.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "tools": [{"type": "function"}]}, "tools"),
        ("/v1/chat/completions", {"messages": MESSAGES, "moderation": {"model": "x"}}, "moderation"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
            "tool_calls",
        ),
        ("/v1/completions", {"prompt": "x", "best_of": 2}, "best_of"),
        ("/v1/completions", {"prompt": "x", "echo": True}, "echo"),
    ],
)
def test_what_is_not_supported_is_named(writer: Writer, path: str, body: dict[str, Any], param: str) -> None:
    error = ask(writer, "POST", path, json=body).json()["error"]
    assert error["code"] == "unsupported_parameter" and error["param"] == param


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "parts of type `text`"),
        ({"messages": MESSAGES, "stop": ["x"] * 17}, "up to 16"),
    ],
)
def test_what_a_field_takes_is_said_in_a_sentence(writer: Writer, more: dict[str, Any], said: str) -> None:
    error = ask(writer, "POST", "/v1/chat/completions", json=more).json()["error"]
    assert said in error["message"] and error["param"]


def test_what_asks_for_nothing_more_is_let_through() -> None:
    options = {"include_usage": None, "include_obfuscation": None}
    chat = ChatRequest.model_validate({"messages": MESSAGES, "stream": True, "stream_options": options})
    assert not chat.include_usage and not chat.diffusing
    assert CompletionRequest.model_validate({"prompt": "x", "n": 2, "best_of": 2}).best_of == 2
    assert json.loads(ChatRequest.model_validate({"messages": MESSAGES, "prompt_cache_options": {}}).model_dump_json())
