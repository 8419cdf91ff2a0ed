"""Events of a stream, and of those the ones that show denoising: enough of them to rebuild the trace of every text.

Each is a chunk of OpenAI's form without choices, whose `dice` says what happened, under the event name `dice.TYPE`:
`start` (what is known before a token is written), `reveal` (one denoising step) and `trace` (how the text ended).
Clients that did not ask for them get none; SDKs that did see chunks without choices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dice.decode.request import StepEvent
from dice.decode.text import Text
from dice.decode.trace import GIVEN, StopReason, Trace
from dice.files import JsonObject


@dataclass(frozen=True, slots=True)
class Ending:
    """How a text ended. `count`: positions that were denoised, those of the last block included; `kept`: of these, the
    answer's."""

    count: int
    kept: int
    forwards: int
    stop_reason: StopReason


DONE = b"data: [DONE]\n\n"


def sse(data: Mapping[str, Any], event: str = "") -> bytes:
    """One server-sent event. JSON has no line breaks of its own, so that its data is one line."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def started(index: int, text: Text, strategy: str, mode: str, tokens: Mapping[int, str]) -> JsonObject:
    """`given`: [position, token id, its text] of what nobody writes. Positions count from the end of the prompt."""
    first = text.prompt_length
    holes = {position for hole in text.holes for position in hole}
    given = [position for position in range(first, text.length) if position not in holes]
    return {
        "type": "start",
        "index": index,
        "prompt_ids": text.ids[:first],
        "length": text.length - first,
        "given": [[position - first, text.ids[position], tokens[position - first]] for position in given],
        "block_size": text.block_size,
        "mask_token_id": text.mask_token_id,
        "strategy": strategy,
        "mode": mode,
    }


def revealed(index: int, event: StepEvent, texts: Iterable[str]) -> JsonObject:
    """`texts`: of each token alone, for who shows it; a token of half a character is a replacement character."""
    return {
        "type": "reveal",
        "index": index,
        "step": event.step,
        "block": event.block,
        "positions": list(event.positions),
        "tokens": list(event.tokens),
        "texts": list(texts),
        "logprobs": list(event.logprobs),
    }


def traced(index: int, ending: Ending) -> JsonObject:
    return {"type": "trace", "index": index, **asdict(ending)}


def replay(events: Iterable[Mapping[str, Any]]) -> dict[int, Trace]:
    """The trace of every text, by index, from the `dice` objects of its stream. Raises `ValueError` where they do not
    tell all of it."""
    starts: dict[int, Mapping[str, Any]] = {}
    columns: dict[int, dict[int, tuple[int, int, float]]] = {}
    traces = {}
    for event in events:
        index = int(event["index"])
        if event["type"] == "start":
            starts[index] = event
            columns[index] = {position: (token, GIVEN, 0.0) for position, token, _ in event["given"]}
        elif event["type"] == "reveal":
            for position, token, logprob in zip(event["positions"], event["tokens"], event["logprobs"], strict=True):
                columns[index][position] = token, event["step"], logprob
        elif event["type"] == "trace":
            start, told = starts[index], columns[index]
            if missing := [position for position in range(event["count"]) if position not in told]:
                raise ValueError(f"The events reveal nothing at {len(missing)} positions of text {index}.")
            rows = [told[position] for position in range(event["count"])]
            traces[index] = Trace(
                tuple(start["prompt_ids"]), tuple(row[0] for row in rows), tuple(row[1] for row in rows),
                tuple(row[2] for row in rows), event["kept"], start["block_size"], start["mask_token_id"],
                start["strategy"], start["mode"], event["forwards"], event["stop_reason"],
            )  # fmt: skip
    return traces
