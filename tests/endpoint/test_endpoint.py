"""The client against a real server that misbehaves: every request accounted for, none lost, none paid for twice."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dice.endpoint.ledger import Account, Ledger
from dice.endpoint.reading import read
from dice.endpoint.request import FAILED, Reply, Request, RequestSettings
from dice.errors import UserError
from tests.conftest import PATIENCE_S, ROOT
from tests.endpoint.server import Server, serving

pytest.importorskip("httpx", reason="the endpoint client needs httpx")
from dice.endpoint.client import Endpoint, EndpointStopped, Replies  # noqa: E402 - after the check for httpx

KEY = "sk-very-secret"
QUICK: dict[str, Any] = {"first_wait_s": 0.05, "longest_wait_s": 0.2, "read_s": 0.7, "total_s": 5.0, "max_tokens": 200}
PRICES: dict[str, Any] = {"price_in": 10.0, "price_out": 20.0}  # a whole answer of the server costs 0.002 USD


def settings(server: Server, **more: Any) -> RequestSettings:
    return RequestSettings(server.url, "teacher", **QUICK | more)


def ask(
    given: RequestSettings, prompts: Iterable[str], ledger: Path | None = None, key: str = KEY, window_s: float = 60.0
) -> tuple[dict[str, Reply], Account]:
    async def run() -> tuple[dict[str, Reply], Account]:
        async with Endpoint(given, key, ledger, window_s=window_s) as endpoint:
            found = {
                reply.request.prompt.partition("|")[0]: reply async for reply in endpoint.ask(map(Request, prompts))
            }
            return found, endpoint.account

    return asyncio.run(run())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


TROUBLE = {  # what the server does first -> the kind of failure that is noted for it
    "429": "rate_limited",
    "429:0.3": "rate_limited",
    "429:date": "rate_limited",
    "500": "server_error",
    "503:0.1": "server_error",
    "slow": "timeout",
    "truncated": "truncated_json",
    "cut": "connection",
    "reset": "connection",
    "schema": "wrong_schema",
    "nochoice": "no_choices",
    "empty": "no_content",
    "none": "no_content",
}


def test_every_kind_of_trouble_is_told_apart_and_overcome(tmp_path: Path) -> None:
    with serving() as server:
        prompts = ["first|ok", *(f"{action}|{action},ok" for action in TROUBLE)]
        found, account = ask(settings(server, **PRICES), prompts, tmp_path / "log.jsonl")
        assert server.counts == {"first": 1, **{action: 2 for action in TROUBLE}}
    assert {reply.outcome for reply in found.values()} == {"answer"} and len(found) == len(TROUBLE) + 1
    assert all(reply.text == f"answer to {reply.request.prompt}" for reply in found.values())
    log = lines(tmp_path / "log.jsonl")
    ids = {reply.request.id(settings(server)): name for name, reply in found.items()}
    failed = {ids[line["id"]]: line["outcome"] for line in log if line["event"] == "failed"}
    assert failed == TROUBLE
    sent, ended = ([line for line in log if (line["event"] == "sent") == is_sent] for is_sent in (True, False))
    assert len(sent) == len(ended) == account.sent == 2 * len(TROUBLE) + 1
    assert sum(account.outcomes.values()) == account.sent and account.unknown == 0
    assert set(account.outcomes) == {"answer", *TROUBLE.values()} and set(TROUBLE.values()) < set(FAILED)


def test_what_the_endpoint_asks_for_is_waited_for() -> None:
    with serving() as server:
        ask(settings(server, concurrency=1), ["a|429:1,ok"])
        assert server.times[1] - server.times[0] >= 1.0
        ask(settings(server, concurrency=3), ["b|429:1,ok"])
        assert server.times[3] - server.times[2] >= 1.0


def test_a_wait_that_is_asked_for_holds_the_others_too() -> None:
    with serving() as server:
        found, _ = ask(settings(server, concurrency=2), ["a|429:0.8,ok", "b|wait:0.2", "c|ok"])
        assert len(found) == 3 and sorted(server.received[:2]) == ["a|429:0.8,ok", "b|wait:0.2"]
        assert all(at - server.times[0] >= 0.75 for at in server.times[2:])


def test_what_never_succeeds_is_given_up_and_said() -> None:
    with serving() as server:
        found, account = ask(
            settings(server, attempts=3), ["good|ok", "bad|500", "odd|400", "long|length", "no|filtered"]
        )
        assert server.counts == {"good": 1, "bad": 3, "odd": 1, "long": 1, "no": 1}
    assert {name: reply.outcome for name, reply in found.items()} == {
        "good": "answer",
        "bad": "server_error",
        "odd": "refused",
        "long": "length",
        "no": "filtered",
    }
    assert found["bad"].attempts == 3 and "HTTP 500: no" in found["bad"].error and not found["bad"].answered
    assert found["long"].answered and found["long"].text
    assert dict(account.outcomes) == {"answer": 1, "server_error": 3, "refused": 1, "length": 1, "filtered": 1}


def test_tokens_and_cost() -> None:
    with serving() as server:
        found, account = ask(settings(server, **PRICES), ["a|ok", "b|500,ok", "c|unpaid"])
    assert (found["a"].usage.tokens_in, found["a"].usage.tokens_out, found["a"].usage.estimated) == (100, 50, False)
    guess = found["c"].usage
    assert guess.estimated and 10 <= guess.tokens_in <= 30 and 3 <= guess.tokens_out <= 10
    assert account.estimated == 1 and account.tokens_in == 200 + guess.tokens_in
    expected = 2 * 0.002 + (guess.tokens_in * 10 + guess.tokens_out * 20) / 1e6
    assert account.cost == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("pace", [0, 2])
def test_the_budget_is_never_exceeded(tmp_path: Path, pace: int) -> None:
    """A request may cost 0.0042 USD at most (its 200 tokens) and costs 0.002: with 0.0105 there is room for four."""
    with serving(delay_s=0.02) as server:
        given = settings(server, max_cost=0.0105, concurrency=8, requests_per_minute=pace, **PRICES)
        found, account = ask(given, [f"{number}|ok" for number in range(9)], tmp_path / "log.jsonl", window_s=0.2)
        assert len(server.received) == 4
        assert account.cost == pytest.approx(0.008)
        assert sorted(reply.outcome for reply in found.values()) == ["answer"] * 4 + ["budget"] * 5
        found, account = ask(given, [f"{number}|ok" for number in range(9)], tmp_path / "log.jsonl")
        assert len(server.received) == 4 and account.cost == pytest.approx(0.008)  # what was spent counts on


def test_requests_and_tokens_are_paced() -> None:
    """Counted from before the first is sent: on a busy machine they come later than that, and never earlier."""
    with serving() as server:
        begun = time.monotonic()
        ask(settings(server, requests_per_minute=3, concurrency=8), [f"{n}|ok" for n in range(8)], window_s=0.6)
        by_requests = [at - begun for at in server.times]
        begun = time.monotonic()
        ask(settings(server, tokens_per_minute=500), [f"t{n}|ok" for n in range(4)], window_s=0.6)
        by_tokens = [at - begun for at in server.times[len(by_requests) :]]
    assert len(by_requests) == 8 and all(at > 0.55 * (index // 3) for index, at in enumerate(by_requests))
    assert by_tokens[2] > 0.55  # 200 tokens set aside for each answer, and what each prompt takes


def test_no_more_at_once_than_allowed() -> None:
    with serving(delay_s=0.05) as server:
        ask(settings(server, concurrency=3), [f"{n}|ok" for n in range(9)])
        assert server.most_at_once == 3


@pytest.mark.parametrize(
    ("action", "words"),
    [("401:echo", "refuses the API key"), ("404", "no model 'teacher'"), ("307", "sends elsewhere")],
)
def test_what_cannot_work_stops_at_once(action: str, words: str, tmp_path: Path) -> None:
    with serving() as server:
        with pytest.raises(EndpointStopped, match=words) as caught:
            ask(settings(server, concurrency=1), [f"{n}|{action}" for n in range(50)], tmp_path / "log.jsonl")
        assert len(server.received) == 1
    assert KEY not in str(caught.value) and "\n" not in str(caught.value)
    assert KEY not in (tmp_path / "log.jsonl").read_text()


def test_refusals_of_everything_stop_soon() -> None:
    with serving() as server:
        with pytest.raises(EndpointStopped, match="refuses every request"):
            ask(settings(server, concurrency=1), [f"{n}|400" for n in range(50)])
        assert len(server.received) == 3


def test_a_wrong_url_is_one_sentence() -> None:
    with pytest.raises(EndpointStopped, match="Nothing answers at http://127.0.0.1:9/v1/chat/completions"):
        ask(RequestSettings("http://127.0.0.1:9/v1/", "teacher", **QUICK), ["a|ok"])
    with pytest.raises(UserError, match="must begin with http"):
        RequestSettings("localhost:8000", "teacher")
    with pytest.raises(UserError, match="needs prices"):
        RequestSettings("http://localhost", "teacher", max_cost=1.0)


def test_the_key_and_the_request_as_sent(tmp_path: Path) -> None:
    with serving() as server:
        ask(settings(server, temperature=0.3), ["a|ok"], tmp_path / "log.jsonl")
        ask(settings(server), ["a|ok"], key="")
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}" and "Authorization" not in server.headers[1]
        assert server.bodies[0] == {
            "model": "teacher",
            "messages": [{"role": "user", "content": "a|ok"}],
            "temperature": 0.3,
            "max_tokens": 200,
        }
    assert KEY not in (tmp_path / "log.jsonl").read_text()


RUN = """
import asyncio, sys
from pathlib import Path
from dice.endpoint.client import Endpoint
from dice.endpoint.request import Request, RequestSettings

async def run(url, ledger, count):
    prices = {"price_in": 10, "price_out": 20}
    settings = RequestSettings(url, "teacher", concurrency=4, max_tokens=200, first_wait_s=0.05, **prices)
    async with Endpoint(settings, "sk-very-secret", Path(ledger)) as endpoint:
        async for reply in endpoint.ask(Request(f"{number}|ok") for number in range(count)):
            print(reply.outcome, flush=True)

asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def test_a_killed_run_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    log, count = tmp_path / "log.jsonl", 40
    with serving(delay_s=0.05) as server:
        command = [sys.executable, "-c", RUN, server.url, str(log), str(count)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        process = subprocess.Popen(command, env=environment)
        deadline = time.monotonic() + PATIENCE_S
        while not (log.exists() and 9 <= (text := log.read_text()).count('"event": "answer"') < text.count('"sent"')):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        time.sleep(0.2)  # what was under way reaches the server to its end
        with open(log, "a") as file:
            file.write('{"event": "answer", "id"')  # a line cut short, as a crash leaves it
        with Ledger(log) as ledger:
            answered, unknown = set(ledger.answers), ledger.account.unknown
            assert ledger.account.unknown_cost == pytest.approx(unknown * (17 * 10 + 200 * 20) / 1e6, rel=0.05)
        assert 9 <= len(answered) < count and 0 < unknown <= 4
        before = server.counts
        given = settings(server, price_in=10.0, price_out=20.0)
        found, account = ask(given, [f"{number}|ok" for number in range(count)], log)
        assert {reply.outcome for reply in found.values()} == {"answer"} and len(found) == count
        again = [name for name, times in server.counts.items() if times > 1]
        assert len(again) <= account.resent == account.unknown == unknown  # it may have died before a request left
        known = {name for name, reply in found.items() if reply.request.id(given) in answered}
        assert not known & set(again) and all(server.counts[name] == before[name] == 1 for name in known)
        assert account.sent == count + unknown and len(server.received) == count + len(again)
        received = len(server.received)
        ask(given, [f"{number}|ok" for number in range(count)], log)
        assert len(server.received) == received  # a third run has nothing to ask


def test_two_runs_cannot_share_a_log(tmp_path: Path) -> None:
    with Ledger(tmp_path / "log.jsonl"), pytest.raises(UserError, match="Another run is writing"):
        Ledger(tmp_path / "log.jsonl").__enter__()


def test_from_code_that_is_not_asynchronous() -> None:
    with serving(delay_s=0.05) as server:
        requests = (Request(f"{number}|ok") for number in range(1000))
        with Replies(Endpoint(settings(server, concurrency=2)), requests) as replies:
            first = [reply.outcome for reply, _ in zip(replies, range(3), strict=False)]
        assert first == ["answer"] * 3
        received = len(server.received)
        time.sleep(0.3)
        assert len(server.received) <= received + 2  # leaving called the rest off
        with Replies(Endpoint(settings(server)), [Request("a|401")]) as replies, pytest.raises(EndpointStopped):
            list(replies)


def test_equal_requests_are_a_mistake() -> None:
    with serving() as server, pytest.raises(ValueError, match="the same"):
        ask(settings(server, concurrency=1), ["a|ok", "a|ok"])


ODD = ("[]", "null", '"text"', "{", '{"choices": {}}', '{"choices": [3]}', '{"choices": [{"message": null}]}')
ODD += ('{"choices": [{"message": {"content": [1]}}]}', '{"choices": [{"message": {}}], "usage": 3}')


@pytest.mark.parametrize("body", [*(text.encode() for text in ODD), b"\xff\xfe"])
def test_no_body_is_too_odd(body: bytes) -> None:
    assert read(200, {}, body, Request("p"), "m", "u").outcome in ("wrong_schema", "truncated_json")
    assert read(500, {"retry-after": "soon"}, body, Request("p"), "m", "u").outcome == "server_error"
