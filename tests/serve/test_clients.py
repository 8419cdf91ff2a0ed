"""OpenAI's SDK and a client that rejects unknown fields; and that counts, stops and seeds are exact."""

from __future__ import annotations

import asyncio
import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import BaseModel
from serve_helpers import UNSURE, Running
from sse import events

from dice.model.checkpoint import resolve_model
from dice.model.tokenizer import Tokenizer
from tests.conftest import PATIENCE_S

if TYPE_CHECKING:
    import openai

pytestmark = pytest.mark.xdist_group("serve")  # they share one server

Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    import openai  # where it is used: its import takes a second of each process that collects this file

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=PATIENCE_S, max_retries=0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(resolve_model("nano"))


def strict(name: str, data: dict[str, Any]) -> None:
    """Every field of `data`, at any depth, is one that OpenAI's own type of that name has, and is of its type."""
    import openai.types

    model: type[BaseModel] = operator.attrgetter(name)(openai.types)
    parsed = model.model_validate(data)
    unknown = []

    def walk(one: object, place: str) -> None:
        if isinstance(one, BaseModel):
            unknown.extend(f"{place}.{name}" for name in one.model_extra or ())
            for name in type(one).model_fields:
                walk(getattr(one, name), f"{place}.{name}")
        elif isinstance(one, list):
            for item in one:
                walk(item, place)

    walk(parsed, model.__name__)
    assert not unknown


def post(server: Running, path: str, **body: Any) -> dict[str, Any]:
    response = httpx.post(f"{server.url}{path}", json=body, timeout=PATIENCE_S)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_the_sdk_whole_and_streamed(client: openai.OpenAI, messages: Messages, tokenizer: Tokenizer) -> None:
    asked: dict[str, Any] = {"model": "nano", "messages": messages, "max_tokens": 22, "temperature": 0.7, "seed": 5}
    whole = client.chat.completions.create(**asked, logprobs=True)
    (choice,) = whole.choices
    assert choice.finish_reason == "length" and choice.message.role == "assistant"
    assert whole.usage is not None and choice.logprobs is not None and choice.logprobs.content is not None
    assert whole.usage.prompt_tokens == len(tokenizer.encode_chat(messages))
    assert whole.usage.completion_tokens == 22 == len(choice.logprobs.content)
    assert b"".join(bytes(one.bytes or ()) for one in choice.logprobs.content).decode() == choice.message.content
    assert all(one.logprob <= 0 for one in choice.logprobs.content)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(one.choices[0].delta.content or "" for one in chunks if one.choices) == choice.message.content
    assert [one.choices[0].finish_reason for one in chunks if one.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage and all(one.usage is None for one in chunks[:-1])
    assert len(chunks) > 4  # it did come in pieces


def test_the_sdk_asynchronously_with_several_texts(server: Running) -> None:
    import openai

    async def ask() -> tuple[list[str], list[str]]:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", timeout=PATIENCE_S)
        asked: dict[str, Any] = {"model": "nano", "prompt": UNSURE, "max_tokens": 16, "temperature": 1.0, "seed": 40}
        stream = await client.completions.create(**asked, n=3, stream=True)
        texts = ["", "", ""]
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        alone = [
            client.completions.create(**asked | {"seed": 40 + index}) for index in range(3)
        ]  # the i-th of seed s is the first of seed s + i
        answers = [(await one).choices[0].text for one in alone]
        await client.close()
        return texts, answers

    texts, answers = asyncio.run(ask())
    assert texts == answers and len(set(texts)) == 3


def test_text_completions(client: openai.OpenAI, tokenizer: Tokenizer) -> None:
    prompts = ["import torch\n", "class Model(nn.Module):\n"]
    found = client.completions.create(
        model="nano", prompt=prompts, max_tokens=6, n=2, temperature=1.0, seed=1, logprobs=0
    )
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    assert found.usage is not None
    assert found.usage.prompt_tokens == sum(len(tokenizer.encode(prompt)) for prompt in prompts)
    logprobs = found.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None
    assert "".join(logprobs.tokens) == found.choices[0].text
    ids = client.completions.create(model="nano", prompt=tokenizer.encode(prompts[1]), max_tokens=6, temperature=0)
    text = client.completions.create(model="nano", prompt=prompts[1], max_tokens=6, temperature=0)
    assert ids.choices[0].text == text.choices[0].text


def test_a_suffix_is_what_the_text_ends_before(server: Running) -> None:
    """So many tokens are written, or fewer; and the suffix itself is not repeated."""
    asked = {"prompt": "def f(x):\n    y =", "suffix": "\n    return y\n", "max_tokens": 6, "temperature": 0}
    found = post(server, "/v1/completions", **asked)
    assert found["usage"]["completion_tokens"] <= 6
    assert "return y\n" not in found["choices"][0]["text"]


def test_stop_strings_cut_exactly(server: Running, messages: Messages) -> None:
    """Also where they lie across tokens and blocks, whole and streamed."""
    asked = {"messages": messages, "max_tokens": 40, "temperature": 0}
    text = post(server, "/v1/chat/completions", **asked)["choices"][0]["message"]["content"]
    for start, end in ((12, 20), (31, 48), (60, 61)):
        stop = text[start:end]
        expected = text[: text.find(stop)]
        found = post(server, "/v1/chat/completions", **asked, stop=[stop, "never there"])
        assert found["choices"][0]["message"]["content"] == expected
        assert found["choices"][0]["finish_reason"] == "stop"
        assert found["usage"]["completion_tokens"] < 40
        chunks = events(f"{server.url}/v1/chat/completions", asked | {"stop": stop, "stream": True})
        deltas = [chunk["choices"][0]["delta"].get("content", "") for _, chunk in chunks[:-1]]
        assert "".join(deltas) == expected
    server.wait_idle()


def test_max_tokens_cuts_within_a_block(server: Running, messages: Messages, tokenizer: Tokenizer) -> None:
    texts = []
    for most in (1, 2, 3, 5, 6):
        found = post(server, "/v1/chat/completions", messages=messages, max_tokens=most, temperature=0)
        assert found["usage"]["completion_tokens"] == most and found["choices"][0]["finish_reason"] == "length"
        texts.append(found["choices"][0]["message"]["content"])
    assert all(longer.startswith(shorter) for shorter, longer in zip(texts, texts[1:], strict=False))


def test_clients_that_reject_unknown_fields_are_served(server: Running, messages: Messages) -> None:
    asked = {"messages": messages, "max_tokens": 5, "temperature": 0.5, "n": 2}
    strict("chat.ChatCompletion", post(server, "/v1/chat/completions", **asked, logprobs=True))
    strict("Completion", post(server, "/v1/completions", prompt="import", max_tokens=3, logprobs=0))
    for more in ({}, {"stream_options": {"include_usage": True}}):
        told = events(f"{server.url}/v1/chat/completions", asked | {"stream": True} | more)
        assert [name for name, _ in told] == [""] * len(told)  # no event of ours
        for _, chunk in told[:-1]:
            strict("chat.ChatCompletionChunk", chunk)


def test_the_likeliest_tokens_are_told(server: Running, client: openai.OpenAI, messages: Messages) -> None:
    """Whole and streamed; greedily, the token that was written is the likeliest one of its place."""
    asked: dict[str, Any] = {"messages": messages, "max_tokens": 9, "temperature": 0, "logprobs": True}
    whole = post(server, "/v1/chat/completions", **asked, top_logprobs=4)
    strict("chat.ChatCompletion", whole)
    content = whole["choices"][0]["logprobs"]["content"]
    for one in content:
        told = [other["logprob"] for other in one["top_logprobs"]]
        assert len(told) == 4 and told == sorted(told, reverse=True) and sum(map(math.exp, told)) < 1.0001
        assert one["top_logprobs"][0] == {name: one[name] for name in ("token", "logprob", "bytes")}
        assert all(other["token"] and other["bytes"] != [] for other in one["top_logprobs"])
    chunks = events(f"{server.url}/v1/chat/completions", asked | {"top_logprobs": 4, "stream": True})
    pieces = [chunk["choices"][0]["logprobs"] for _, chunk in chunks[:-1] if chunk["choices"][0]["logprobs"]]
    assert [one for piece in pieces for one in piece["content"]] == content
    silent = post(server, "/v1/chat/completions", **asked)["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in silent] == [one["logprob"] for one in content]
    assert all(one["top_logprobs"] == [] for one in silent)

    drawn = client.completions.create(
        model="nano", prompt=UNSURE, max_tokens=12, temperature=1.0, top_p=0.5, seed=2, logprobs=3
    )
    logprobs = drawn.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens and logprobs.token_logprobs and logprobs.top_logprobs
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == logprob and len(top) in range(1, 5)
    assert any(len(top) < 3 for top in logprobs.top_logprobs)  # what top-p rules out is impossible
    strict("Completion", post(server, "/v1/completions", prompt="import", max_tokens=3, logprobs=2))


@pytest.mark.slow
def test_langchain(server: Running, messages: Messages) -> None:
    """Where `langchain-openai` is installed, which takes more packages than all of ours."""
    api = pytest.importorskip("langchain_openai")
    settings = {
        "model": "nano",
        "base_url": f"{server.url}/v1",
        "api_key": "unused",
        "temperature": 0,
        "max_tokens": 24,
    }
    chat = api.ChatOpenAI(**settings, stream_usage=True)
    whole = chat.invoke([("user", messages[0]["content"])])
    assert whole.content and whole.usage_metadata["output_tokens"] == 24
    pieces = list(chat.stream([("user", messages[0]["content"])]))
    joined = functools.reduce(operator.add, pieces)
    assert len(pieces) > 4 and joined.content == whole.content and joined.usage_metadata == whole.usage_metadata
    assert joined.response_metadata["finish_reason"] == "length"
    written = api.OpenAI(**settings)
    assert "".join(written.stream("import torch\n")) == written.invoke("import torch\n")
    both = chat.batch([[("user", messages[0]["content"])]] * 2)
    assert [one.content for one in both] == [whole.content] * 2


def test_models(client: openai.OpenAI) -> None:
    from openai import NotFoundError

    assert [model.id for model in client.models.list()] == ["nano"]
    assert client.models.retrieve("nano").owned_by == "dice"
    with pytest.raises(NotFoundError):
        client.models.retrieve("another")


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"5": 10}},
        {"presence_penalty": 1.0},
        {"top_logprobs": 3},
        {"never_heard_of": 1},
        {"temperature": -0.5},
        {"temperature": "hot"},
        {"n": 17},
        {"stop": ""},
        {"stream_options": {"include_usage": True}},
        {"denoising_steps": 100},
        {"messages": []},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
        {"messages": [{"role": "user", "content": "a word " * 5000}]},
    ],
    ids=lambda body: next(iter(body)),
)
def test_what_would_be_ignored_although_it_matters_is_refused(
    server: Running, messages: Messages, body: dict[str, Any]
) -> None:
    response = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": messages} | body, timeout=PATIENCE_S)
    error = response.json()["error"]
    assert response.status_code == 400 and set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and error["message"].count("\n") == 0


def test_what_asks_for_nothing_is_let_through(server: Running, messages: Messages) -> None:
    harmless = {
        "user": "u", "metadata": {"a": "b"}, "tools": [], "tool_choice": "none", "presence_penalty": 0,
        "response_format": {"type": "text"}, "logit_bias": None, "parallel_tool_calls": True, "store": False,
    }  # fmt: skip
    found = post(server, "/v1/chat/completions", messages=messages, max_tokens=1, **harmless)
    assert found["usage"]["completion_tokens"] == 1
