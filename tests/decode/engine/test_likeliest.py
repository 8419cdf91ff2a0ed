"""The likeliest tokens at each revealed position, of every decoder, against a plain pass over the text as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from decoding_helpers import frames_with_prompt, prompt_of, uncached_logits
from engine_helpers import Request, requests

from dice.decode.autoregressive import generate_autoregressive
from dice.decode.block_diffusion import denoise, new_texts
from dice.decode.engine.engine import Engine
from dice.decode.request import DecodeConfig, DecodeError, StepEvent
from dice.decode.sampling import truncate
from dice.decode.trace import Trace
from dice.model.sdar import SDAR

BLOCK = 4


def check(model: SDAR, request: Request, trace: Trace, told: list[StepEvent]) -> None:
    """Every step tells what a whole, uncached pass over its text gives, as many as were asked for and are possible."""
    config, frames = request.config, frames_with_prompt(trace)
    for event in told:
        assert len(event.likeliest) == (len(event.positions) if config.top_logprobs else 0)
        logits = uncached_logits(model, frames[event.step], BLOCK)
        for position, token, logprob, likeliest in zip(
            event.positions, event.tokens, event.logprobs, event.likeliest, strict=bool(config.top_logprobs)
        ):
            scaled = logits[len(trace.prompt_ids) + position][None] / (config.temperature or 1.0)
            source = truncate(scaled, config.top_k, config.top_p) if config.resolved_mode == "sample" else scaled
            expected = source.log_softmax(-1)[0]
            most = min(config.top_logprobs, int((expected > -torch.inf).sum()))
            values, tokens = expected.sort(descending=True, stable=True)
            assert [one for one, _ in likeliest] == tokens[:most].tolist()
            assert [one for _, one in likeliest] == pytest.approx(values[:most].tolist(), abs=1e-4)
            assert dict(likeliest).get(token, logprob) == pytest.approx(logprob, abs=1e-6)
    assert sum(len(event.positions) for event in told) == sum(step >= 0 for step in trace.steps)


def asking(count: int) -> list[Request]:
    """Texts of all kinds, of which every third asks for nothing."""
    return [
        replace(one, config=replace(one.config, mode="auto", top_logprobs=(0, 3, 20)[index % 3]))
        for index, one in enumerate(requests(count, BLOCK, seed=3))
    ]


def test_the_engine_tells_those_who_ask(model: SDAR) -> None:
    wanted = asking(18)
    engine = Engine(model, slots=5, context=128, block_size=BLOCK, page_size=16)
    told: list[list[StepEvent]] = [[] for _ in wanted]
    handles = [
        engine.submit(one.prompt, one.config, one.seed, on_step=events.append)
        for one, events in zip(wanted, told, strict=True)
    ]
    engine.run()
    for request, handle, events in zip(wanted, handles, told, strict=True):
        assert handle.trace is not None
        check(model, request, handle.trace, events)


def test_the_plain_decoder_tells_the_same(model: SDAR) -> None:
    for request in asking(9):
        told: list[StepEvent] = []
        (text,) = new_texts(model, [request.prompt], request.config, [request.seed])
        (trace,) = denoise(model, [text], request.config, told.append)
        check(model, request, trace, told)


def test_one_token_after_another(model: SDAR) -> None:
    """The model's blocks of one are causal, so that one pass over the whole text has every step's logits."""
    config = DecodeConfig(max_new_tokens=9, temperature=0.8, top_logprobs=4, stop_ids=frozenset())
    told: list[StepEvent] = []
    (trace,) = generate_autoregressive(model, [prompt_of(6)], config, told.append, seeds=[8])
    logprobs = (uncached_logits(model, [*trace.prompt_ids, *trace.token_ids], 1)[5:-1] / 0.8).log_softmax(-1)
    for event, expected in zip(told, logprobs, strict=True):
        values, tokens = expected.topk(4)
        assert [one for one, _ in event.likeliest[0]] == tokens.tolist()
        assert [one for _, one in event.likeliest[0]] == pytest.approx(values.tolist(), abs=1e-4)


def test_what_has_no_log_probabilities_is_refused() -> None:
    for wrong in ({"top_logprobs": -1}, {"top_logprobs": 2, "mode": "compat"}):
        with pytest.raises(DecodeError, match="log"):
            DecodeConfig(**wrong)  # type: ignore[arg-type]
