"""Who is let in, what is too much, and that nonsense is answered in OpenAI's form and ends nothing."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serve_helpers import Running

from dice.cli import main
from dice.decode.request import DecodeConfig
from dice.decode.text import Text
from dice.errors import UserError
from dice.generation import DECODING, Writer
from dice.serve.app import Service, make_app
from dice.serve.orders import new_engine
from dice.serve.scheduler import Failed, Inbox, Scheduler, Ticket
from dice.serve.settings import ServeSettings
from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.xdist_group("serve")  # they share one server

KEY = "a-key-of-many-characters"
POST = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer.load("nano", DECODING)


def ask(writer: Writer, asked: ServeSettings, method: str, path: str, **more: Any) -> httpx.Response:
    """One request to an application whose engine does not run."""

    async def once() -> httpx.Response:
        app = make_app(Service(writer.model, writer.tokenizer, asked))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            return await client.request(method, path, **more)

    return asyncio.run(once())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "my.host.example"])
def test_an_address_that_others_reach_needs_a_key(
    host: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DICE_API_KEY", raising=False)
    assert main(["serve", "--host", host]) == 2
    assert "--api-key-file" in capsys.readouterr().err
    assert main(["serve", "--host", host, "--api-key", "short"]) == 2
    assert ServeSettings(model="m", host=host, key=KEY).verifies is False


def test_a_key_comes_from_one_place(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "key"
    file.write_text("\n")
    assert main(["serve", "--api-key-file", str(file)]) == 2
    assert main(["serve", "--api-key-file", str(file), "--api-key", KEY]) == 2
    assert main(["serve", "--api-key-file", str(tmp_path / "none")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dice.commands.serve.NEEDED", ("a_package_that_is_not_there",))
    assert main(["serve"]) == 3
    assert "dice-kernels[serve]" in capsys.readouterr().err


def test_a_taken_port_is_said_in_a_sentence(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", str(server.port)]) == 3
    assert "in use" in capsys.readouterr().err


def test_the_key_is_asked_for(writer: Writer) -> None:
    asked = ServeSettings(model="nano", key=KEY)
    for header in ({}, {"authorization": KEY}, {"authorization": f"Bearer {KEY}x"}, {"authorization": "Bearer "}):
        for path in ("/v1/models", "/metrics"):
            refused = ask(writer, asked, "GET", path, headers=header)
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
            assert KEY not in refused.text
    assert ask(writer, asked, "GET", "/v1/models", headers={"authorization": f"Bearer {KEY}"}).status_code == 200
    assert ask(writer, asked, "GET", "/health").status_code == 200
    assert ask(writer, asked, "GET", "/").status_code == 200  # the page, which asks for the key


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8000"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "rebound.example"}, 403),  # a name that another site has pointed at this machine
        ({"host": "127.0.0.1.example:8000"}, 403),
        ({"origin": "http://127.0.0.1:8000"}, 200),
        ({"origin": "https://other.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9000"}, 403),
        ({"origin": "http://["}, 403),
    ],
)
def test_pages_of_other_sites_reach_nothing(writer: Writer, headers: dict[str, str], status: int) -> None:
    answer = ask(writer, ServeSettings(model="nano"), "GET", "/v1/models", headers=headers)
    assert answer.status_code == status
    assert "access-control-allow-origin" not in answer.headers
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_form_of_another_site_is_no_request(writer: Writer) -> None:
    """A browser sends text/plain anywhere without asking."""
    answer = ask(
        writer, ServeSettings(model="nano"), "POST", "/v1/verify", content="{}", headers={"content-type": "text/plain"}
    )
    assert answer.status_code == 415


def test_too_long_a_body_is_refused(writer: Writer) -> None:
    asked = ServeSettings(model="nano", body_bytes=1000)
    answer = ask(writer, asked, "POST", "/v1/completions", content=b"x" * 1001, headers=POST)
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "request_too_large"


def test_verification_is_off_for_strangers(writer: Writer) -> None:
    asked = ServeSettings(model="nano", host="0.0.0.0", key=KEY)
    assert not asked.verifies
    assert ServeSettings(model="nano", host="0.0.0.0", key=KEY, verify_strangers=True).verifies
    assert ServeSettings(model="nano").verifies and not ServeSettings(model="nano", verify=False).verifies
    body = {"problem": (ROOT / "examples" / "softmax.py").read_text(), "kernel": "x"}
    headers = {"authorization": f"Bearer {KEY}"}
    for path, fields in (("/v1/verify", ("problem", "kernel")), ("/v1/optimize", ("problem",))):
        own = {name: body[name] for name in fields}
        answer = ask(writer, asked, "POST", path, json=own | {"stream": False}, headers=headers)
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "verification_off"


def test_without_an_engine_it_is_not_ready(writer: Writer) -> None:
    asked = ServeSettings(model="nano")
    assert ask(writer, asked, "GET", "/ready").status_code == 503
    answer = ask(writer, asked, "POST", "/v1/completions", json={"prompt": "x"})
    assert answer.status_code == 503 and answer.headers["retry-after"]


def test_a_full_queue_sends_away(server: Running) -> None:
    """The server has 8 slots and a queue of 64: the fifth request of 16 texts is too much."""

    async def many() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            body = {"prompt": "import torch\n", "max_tokens": 8, "temperature": 1.0, "n": 16}
            return await asyncio.gather(*(client.post(f"{server.url}/v1/completions", json=body) for _ in range(6)))

    answers = asyncio.run(many())
    codes = sorted(answer.status_code for answer in answers)
    assert set(codes) == {200, 429} and codes.count(429) >= 1
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert int(refused.headers["retry-after"]) > 0 and refused.json()["error"]["type"] == "rate_limit_error"
    server.wait_idle()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    *("model", "messages", "prompt", "max_tokens", "temperature", "top_p", "top_k", "n", "stop", "seed", "stream"),
    *("stream_options", "logprobs", "top_logprobs", "suffix", "text", "tokens", "lines", "problem", "kernel", "tools"),
    *("denoising_steps", "remasking", "confidence_threshold", "response_format", "max_completion_tokens"),
)
ALMOST = st.fixed_dictionaries(
    {"messages": st.just([{"role": "user", "content": "x"}]), "prompt": st.just("x"), "max_tokens": st.just(2)}
)
BODIES = st.one_of(
    JSON.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5).map(lambda value: json.dumps(value).encode()),
    st.tuples(ALMOST, st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2)).map(
        lambda pair: json.dumps(pair[0] | pair[1]).encode()
    ),
    st.binary(max_size=60),
)
PATHS = st.sampled_from(
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/edit",
        "/v1/verify",
        "/v1/optimize",
        "/v1/models",
        "/",
        "/metrics",
        "/%00",
        "/static/../x",
    ]
)


def check_nonsense(server: Running, count: int) -> None:
    with httpx.Client(timeout=PATIENCE_S) as client:

        @settings(max_examples=count, suppress_health_check=list(HealthCheck), database=None)
        @given(st.sampled_from(["POST", "POST", "POST", "GET", "PUT", "DELETE"]), PATHS, BODIES)
        def send(method: str, path: str, body: bytes) -> None:
            with client.stream(method, f"{server.url}{path}", content=body, headers=POST) as answer:
                assert answer.status_code != 500 and answer.status_code < 504
                if answer.status_code >= 400 and method != "HEAD":
                    error = json.loads(answer.read())["error"]
                    assert set(error) == {"message", "type", "param", "code"} and error["message"]

        send()
    server.wait_idle()
    assert server.process.poll() is None
    assert "Traceback" not in server.log.read_text() and "traceback" not in server.log.read_text()


def test_nonsense_is_answered_in_openais_form(server: Running) -> None:
    check_nonsense(server, 60)


@pytest.mark.slow
def test_a_thousand_requests_of_nonsense(server: Running) -> None:
    check_nonsense(server, 1000)


def test_logs_hold_neither_texts_nor_keys(server: Running) -> None:
    secret = "a-secret-word-of-the-prompt"
    body = {"messages": [{"role": "user", "content": secret}], "max_tokens": 2, "user": secret}
    headers = {"authorization": f"Bearer {secret}"}
    answer = httpx.post(f"{server.url}/v1/chat/completions?x={secret}", json=body, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == 200
    deadline = time.monotonic() + PATIENCE_S  # a line is written when the answer has been sent
    while answer.headers["x-request-id"] not in server.log.read_text():
        assert time.monotonic() < deadline, "the request is not in the log"
        time.sleep(0.02)
    assert secret not in server.log.read_text()


def run_scheduler(writer: Writer, failures: int) -> tuple[list[object], Scheduler, list[str]]:
    """Four texts, one after another, of an engine of which the first `failures` fail at a step."""
    made: list[int] = []
    died: list[str] = []

    def make() -> Any:
        engine = new_engine(writer.model, ServeSettings(model="nano", slots=2))
        made.append(1)
        if len(made) <= failures:

            def fail() -> bool:
                raise RuntimeError("a fault of ours")

            engine.step = fail  # type: ignore[method-assign]
        return engine

    async def run() -> tuple[list[object], Scheduler, list[str]]:
        scheduler = Scheduler(make, lambda: died.append("dead"))
        scheduler.start()
        told: list[object] = []
        for _ in range(4):
            if died:
                break
            inbox: Inbox = asyncio.Queue()
            config = DecodeConfig(max_new_tokens=4, temperature=0, stop_ids=frozenset())
            ticket = Ticket(Text(0, [5, 6, 7], 4, 4, 3, frozenset(), 1), config, inbox)
            scheduler.submit(ticket)
            while not ticket.over:
                _, message = await asyncio.wait_for(inbox.get(), PATIENCE_S)
            told.append(message)
        await asyncio.sleep(0.2)
        scheduler.stop()
        return told, scheduler, died

    return asyncio.run(run())


def test_an_engine_that_fails_is_made_anew(writer: Writer) -> None:
    told, scheduler, died = run_scheduler(writer, 1)
    assert [isinstance(one, Failed) for one in told] == [True, False, False, False]
    assert scheduler.open == 0 and not died


def test_an_engine_that_keeps_failing_ends_the_server(writer: Writer) -> None:
    told, scheduler, died = run_scheduler(writer, 10)
    assert all(isinstance(one, Failed) for one in told) and died == ["dead"] and not scheduler.alive
    assert scheduler.open == 0


def test_keys_that_no_header_carries_are_refused() -> None:
    with pytest.raises(UserError):
        ServeSettings(model="nano", key="with a line\nbreak in the middle")
