"""One token after another: randomness, stops, limits, traces. Equality with `transformers` is proven in tests/model."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from decoding_helpers import CONFIG, STOP, prompt_of

from dice.decode.generate import ContextLengthError, DecodeConfig, DecodeError, StepEvent, generate
from dice.decode.sampling import truncate
from dice.decode.trace import Trace
from dice.model.family import NO_MASK
from dice.model.sdar import SDAR

CAUSAL = dataclasses.replace(CONFIG, family="llama", block_size=1, mask_token_id=NO_MASK)
SAMPLED = DecodeConfig(max_new_tokens=30, temperature=1.3, top_k=20, top_p=0.9, seed=1, stop_ids=frozenset())


@pytest.fixture(scope="module")
def llama() -> SDAR:
    torch.manual_seed(0)
    model = SDAR(CAUSAL)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.endswith("norm.weight"):
                weight.normal_(0, 0.3)
    return model


@torch.no_grad()
def test_logprobs_are_those_of_the_distribution_drawn_from(llama: SDAR) -> None:
    (trace,) = generate(llama, [prompt_of(6)], SAMPLED)
    logits = llama(torch.tensor([[*trace.prompt_ids, *trace.token_ids]]))[0, 5:-1]
    logprobs = truncate(logits / 1.3, 20, 0.9).log_softmax(-1)
    expected = logprobs.gather(-1, torch.tensor(trace.token_ids)[:, None])[:, 0]
    assert list(trace.logprobs) == pytest.approx(expected.tolist(), abs=1e-3)
    assert len(set(trace.token_ids)) > 5


def test_a_text_depends_on_its_seed_and_not_on_its_batch(llama: SDAR) -> None:
    prompts, seeds = [prompt_of(length, seed=length) for length in (5, 17, 1, 9, 30)], [3, 1, 4, 1, 5]
    for max_active in (2, 5):
        together = generate(llama, prompts, dataclasses.replace(SAMPLED, max_active=max_active), seeds=seeds)
        for prompt, seed, trace in zip(prompts, seeds, together, strict=True):
            assert generate(llama, [prompt], SAMPLED, seeds=[seed])[0].token_ids == trace.token_ids
    assert generate(llama, [prompts[0]], SAMPLED, seeds=[99])[0].token_ids != together[0].token_ids


def test_a_stop_id_ends_its_text_alone(llama: SDAR) -> None:
    greedy = DecodeConfig(max_new_tokens=20, temperature=0.0, stop_ids=frozenset())
    prompts = [prompt_of(6, seed=seed) for seed in range(4)]
    full = generate(llama, prompts, greedy)
    stop = full[0].token_ids[4]
    events: list[StepEvent] = []
    stopped = generate(llama, prompts, dataclasses.replace(greedy, stop_ids=frozenset({stop})), events.append)
    for whole, trace in zip(full, stopped, strict=True):
        end = whole.token_ids.index(stop) + 1 if stop in whole.token_ids else 20
        assert trace.response_ids == trace.token_ids == whole.token_ids[:end]
        assert trace.stop_reason == ("stop" if stop in whole.token_ids else "length")
        assert trace.forwards == end + 1 and trace.steps == tuple(range(end))
    assert stopped[0].stop_reason == "stop"
    for trace, index in zip(stopped, range(4), strict=True):
        own = [event for event in events if event.sample == index]
        assert tuple(event.tokens[0] for event in own) == trace.token_ids
        assert [event.stop_reason for event in own] == [None] * (len(own) - 1) + [trace.stop_reason]


def test_the_trace_shows_a_text_that_grows(llama: SDAR) -> None:
    (trace,) = generate(llama, [prompt_of(6)], dataclasses.replace(SAMPLED, max_new_tokens=3))
    a, b, c = trace.token_ids
    assert list(trace.frames()) == [(NO_MASK,) * 3, (a, NO_MASK, NO_MASK), (a, b, NO_MASK), (a, b, c)]
    assert (trace.strategy, trace.mode, trace.block_size, trace.stop_reason) == (
        "autoregressive",
        "sample",
        1,
        "length",
    )
    assert Trace.from_json(trace.to_json()) == trace
    assert Trace.from_json(trace.to_json(compact=True)).token_ids == trace.token_ids


def test_the_last_token_of_the_vocabulary_can_be_written(llama: SDAR) -> None:
    """`NO_MASK` is no index from the end."""
    config = dataclasses.replace(SAMPLED, temperature=50.0, top_p=None, top_k=None, max_new_tokens=100)
    traces = generate(llama, [prompt_of(3)] * 8, config)
    assert any(CAUSAL.vocab_size - 1 in trace.token_ids for trace in traces)
    limited = generate(llama, [prompt_of(3)] * 8, dataclasses.replace(config, vocab_limit=40))
    assert max(token for trace in limited for token in trace.token_ids) < 40


def test_the_context_may_be_filled_exactly(llama: SDAR) -> None:
    config = DecodeConfig(max_new_tokens=6, temperature=0.0, stop_ids=frozenset())
    (trace,) = generate(llama, [prompt_of(250)], config)
    assert len(trace.token_ids) == 6
    with pytest.raises(ContextLengthError, match="Prompt 0 has 251 tokens; with 6 new ones it needs 257 positions"):
        generate(llama, [prompt_of(251)], config)


def test_impossible_requests_are_refused(llama: SDAR) -> None:
    with pytest.raises(DecodeError, match="prompt is empty"):
        generate(llama, [[5], []], SAMPLED)
    with pytest.raises(DecodeError, match="2 prompts but 1 seeds"):
        generate(llama, [[5], [6]], SAMPLED, seeds=[1])
    assert generate(llama, [], SAMPLED) == []


def test_the_models_own_end_is_the_default_stop(llama: SDAR) -> None:
    config = DecodeConfig(max_new_tokens=200, temperature=3.0, seed=0)
    (trace,) = generate(llama, [prompt_of(4)], config)
    assert trace.stop_reason == "stop" and trace.token_ids[-1] == STOP and STOP not in trace.token_ids[:-1]
