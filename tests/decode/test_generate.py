"""Block-diffusion decoding by what it promises, checked against uncached passes over its own trace."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding_helpers import CONFIG, MASK, STOP, frames_with_prompt, lively_model, prompt_of, uncached_logits

from dice.decode.generate import (
    ENGINE_PARAMETERS,
    ContextLengthError,
    DecodeConfig,
    DecodeError,
    StepEvent,
    generate,
    sample_seeds,
    write,
)
from dice.decode.sampling import STRATEGIES, truncate
from dice.decode.text import Text
from dice.decode.trace import Trace
from dice.model.cache import KVCache
from dice.model.sdar import SDAR

NEVER: frozenset[int] = frozenset()


def config(**changes: Any) -> DecodeConfig:
    return DecodeConfig(**{"max_new_tokens": 22, "stop_ids": NEVER, "seed": 3, **changes})


def one(model: SDAR, prompt: list[int], settings: DecodeConfig) -> Trace:
    return generate(model, [prompt], settings)[0]


def steps_by_block(trace: Trace) -> dict[int, list[int]]:
    blocks = defaultdict(list)
    for index, step in enumerate(trace.steps):
        blocks[(len(trace.prompt_ids) + index) // trace.block_size].append(step)
    return blocks


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("prompt_length", [0, 1, 2, 3, 4, 5, 6, 7, 8, 13])
def test_every_trace_replays_on_the_uncached_model(model: SDAR, prompt_length: int, strategy: str) -> None:
    """Each log-probability, recomputed from the frame its step was given: cache, commit, grid and trace agree."""
    trace = one(model, prompt_of(prompt_length), config(remasking=strategy))
    frames = frames_with_prompt(trace)
    assert len(trace.token_ids) == len(frames[0]) - prompt_length
    for step, frame in enumerate(frames[:-1]):
        logprobs = uncached_logits(model, frame, 4).log_softmax(-1)
        for index in (i for i, s in enumerate(trace.steps) if s == step):
            expected = logprobs[prompt_length + index, trace.token_ids[index]].item()
            assert trace.logprobs[index] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("block_size", [1, 2, 8, 16])
def test_other_block_sizes_replay_too(model: SDAR, block_size: int) -> None:
    trace = one(model, prompt_of(11), config(block_size=block_size, denoising_steps=max(1, block_size // 2)))
    for step, frame in enumerate(frames_with_prompt(trace)[:-1]):
        logprobs = uncached_logits(model, frame, block_size).log_softmax(-1)
        for index in (i for i, s in enumerate(trace.steps) if s == step):
            expected = logprobs[11 + index, trace.token_ids[index]].item()
            assert trace.logprobs[index] == pytest.approx(expected, abs=1e-3)


def test_filtered_log_probabilities_replay(model: SDAR) -> None:
    """With temperature, top-k and top-p the trace refers to the distribution that was sampled from."""
    trace = one(model, prompt_of(6), config(temperature=0.7, top_k=12, top_p=0.8))
    for step, frame in enumerate(frames_with_prompt(trace)[:-1]):
        logprobs = truncate(uncached_logits(model, frame, 4) / 0.7, 12, 0.8).log_softmax(-1)
        for index in (i for i, s in enumerate(trace.steps) if s == step):
            expected = logprobs[6 + index, trace.token_ids[index]].item()
            assert trace.logprobs[index] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("prompt_length", [5, 8])
def test_cache_equals_one_pass_over_the_finished_text(
    model: SDAR, monkeypatch: pytest.MonkeyPatch, prompt_length: int
) -> None:
    caches: list[KVCache] = []
    new_cache = SDAR.new_cache

    def remembered(self: SDAR, rows: int, capacity: int) -> KVCache:
        caches.append(new_cache(self, rows, capacity))
        return caches[-1]

    monkeypatch.setattr(SDAR, "new_cache", remembered)
    trace = one(model, prompt_of(prompt_length), config(remasking="low_confidence_static"))
    text = [*trace.prompt_ids, *trace.token_ids]
    whole = new_cache(model, 1, len(text))
    with torch.no_grad():
        model.prefill(torch.tensor([text]), whole, 4)
    committed = len(text) - 4  # the last block needs no commit: nothing comes after it
    used = caches[0].storage[:, :, :, :committed]
    torch.testing.assert_close(used, whole.storage[:, :, :, :committed], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_prompts_and_revealed_tokens_never_change(model: SDAR, strategy: str) -> None:
    events: list[StepEvent] = []
    prompts = [prompt_of(7), [MASK, MASK, MASK, STOP, MASK], prompt_of(12, seed=2)]
    traces = generate(model, prompts, config(remasking=strategy), events.append)
    seen: dict[tuple[int, int], int] = {}
    for event in events:
        for position, token in zip(event.positions, event.tokens, strict=True):
            assert (event.sample, position) not in seen
            seen[event.sample, position] = token
    for sample, (trace, prompt) in enumerate(zip(traces, prompts, strict=True)):
        assert trace.prompt_ids == tuple(prompt)
        assert trace.token_ids == tuple(seen[sample, position] for position in range(len(trace.token_ids)))
        assert MASK not in trace.token_ids


@pytest.mark.parametrize("prompt_length", range(9))
def test_the_last_block_is_whole_and_the_answer_has_the_asked_length(model: SDAR, prompt_length: int) -> None:
    trace = one(model, prompt_of(prompt_length), config(max_new_tokens=10))
    assert (prompt_length + len(trace.token_ids)) % 4 == 0
    assert 10 <= len(trace.token_ids) < 14
    assert len(trace.response_ids) == 10 and trace.stop_reason == "length"


@pytest.mark.parametrize("strategy", ["low_confidence_static", "sequential"])
@pytest.mark.parametrize(("denoising_steps", "counts"), [(4, [1, 1, 1, 1]), (3, [2, 1, 1]), (2, [2, 2]), (1, [4])])
def test_static_schedules_reveal_exactly_n_per_step(
    model: SDAR, strategy: str, denoising_steps: int, counts: list[int]
) -> None:
    trace = one(model, prompt_of(8), config(max_new_tokens=24, remasking=strategy, denoising_steps=denoising_steps))
    for steps in steps_by_block(trace).values():
        per_step = Counter(steps)
        assert [per_step[step] for step in sorted(per_step)] == counts
    assert trace.denoising_steps == 6 * len(counts)


def test_sequential_reveals_left_to_right(model: SDAR) -> None:
    trace = one(model, prompt_of(6), config(remasking="sequential"))
    assert list(trace.steps) == list(range(len(trace.token_ids)))


def test_fused_commit_costs_no_forward_of_its_own(model: SDAR) -> None:
    trace = one(model, prompt_of(8), config(max_new_tokens=16, remasking="low_confidence_static"))
    assert trace.forwards == 1 + 16  # the prefill, then one per revealed token
    assert one(model, prompt_of(3), config(max_new_tokens=1)).forwards == 1  # no whole block to prefill


def test_dynamic_reveals_all_sure_positions_and_falls_back_to_the_best(model: SDAR) -> None:
    prompt = prompt_of(8)
    never_sure = one(model, prompt, config(confidence_threshold=1.0, mode="greedy"))
    static = one(model, prompt, config(remasking="low_confidence_static", mode="greedy"))
    assert never_sure.steps == static.steps and never_sure.token_ids == static.token_ids
    always_sure = one(model, prompt, config(confidence_threshold=0.0, mode="greedy"))
    assert all(len(set(steps)) == 1 for steps in steps_by_block(always_sure).values())
    threshold = math.exp(sorted(static.logprobs)[len(static.logprobs) // 2])
    mixed = one(model, prompt, config(max_new_tokens=80, confidence_threshold=threshold, mode="greedy"))
    several = {step for step, count in Counter(mixed.steps).items() if count > 1}
    assert several and mixed.denoising_steps > 20
    for logprob, step in zip(mixed.logprobs, mixed.steps, strict=True):
        assert step not in several or math.exp(logprob) > threshold


def test_top_k_one_greedy_and_compat_are_the_same_tokens_in_another_order(model: SDAR) -> None:
    """compat: all confidences are 1, so static goes left to right and dynamic unmasks a block at once."""
    prompt = prompt_of(8)
    static = {"remasking": "low_confidence_static", "top_k": 1}
    greedy, compat = one(model, prompt, config(**static)), one(model, prompt, config(**static, mode="compat"))
    assert greedy.mode == "greedy" and compat.mode == "compat"
    assert list(compat.steps) == list(range(len(compat.token_ids)))
    assert list(greedy.steps) != list(compat.steps)
    assert set(compat.logprobs) == {0.0} and max(greedy.logprobs) < 0
    at_once = one(model, prompt, config(top_k=1, mode="compat", remasking="low_confidence_dynamic"))
    assert all(len(set(steps)) == 1 for steps in steps_by_block(at_once).values())


def test_greedy_takes_the_most_probable_token(model: SDAR) -> None:
    trace = one(model, prompt_of(5), config(temperature=0))
    assert trace.mode == "greedy"
    for step, frame in enumerate(frames_with_prompt(trace)[:-1]):
        best = uncached_logits(model, frame, 4).argmax(-1)
        assert all(best[5 + i] == trace.token_ids[i] for i, s in enumerate(trace.steps) if s == step)


@pytest.mark.parametrize("changes", [{}, {"temperature": 0}, {"remasking": "entropy_bounded"}, {"max_active": 2}])
def test_a_sample_does_not_depend_on_its_batch(model: SDAR, changes: dict[str, Any]) -> None:
    """Ragged lengths, samples that finish early, and rows that are refilled."""
    prompts = [prompt_of(length, seed=length) for length in (9, 1, 4, 31, 18, 2, 7)]
    seeds = list(range(100, 107))
    settings = config(max_new_tokens=40, stop_ids=frozenset({STOP, 2, 3, 4}), **changes)
    together = generate(model, prompts, settings, seeds=seeds)
    alone = [generate(model, [prompt], settings, seeds=[seed])[0] for prompt, seed in zip(prompts, seeds, strict=True)]
    assert len({len(trace.token_ids) for trace in together}) > 2
    for mixed, single in zip(together, alone, strict=True):
        assert (mixed.token_ids, mixed.steps, mixed.kept) == (single.token_ids, single.steps, single.kept)
        assert mixed.logprobs == pytest.approx(single.logprobs, abs=1e-3)


def test_seeds_decide(model: SDAR) -> None:
    prompt = prompt_of(6)
    first, again, other = (one(model, prompt, config(seed=seed)).token_ids for seed in (1, 1, 2))
    assert first == again != other
    group = generate(model, [prompt] * 4, config())
    assert len({trace.token_ids for trace in group}) == 4
    assert sample_seeds(5, 3) == sample_seeds(5, 8)[:3] and len(set(sample_seeds(5, 1000))) == 1000
    assert sample_seeds(None, 2) != sample_seeds(None, 2)


def force(model: SDAR, monkeypatch: pytest.MonkeyPatch, wanted: Callable[[], dict[int, int]]) -> None:
    """Make the model write given tokens at given response positions (with its own tokens elsewhere)."""
    reveal = Text.reveal

    def scripted(self: Any, positions: list[int], tokens: list[int], logprobs: list[float]) -> None:
        reveal(self, positions, [wanted().get(p, t) for p, t in zip(positions, tokens, strict=True)], logprobs)

    monkeypatch.setattr(Text, "reveal", scripted)


@pytest.mark.parametrize("position", range(8))
def test_decoding_stops_after_the_block_that_holds_a_stop_id(
    model: SDAR, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    force(model, monkeypatch, lambda: {position: STOP, 7: STOP})
    trace = one(model, prompt_of(6), config(max_new_tokens=40, stop_ids=frozenset({STOP}), vocab_limit=MASK))
    first = next(i for i, token in enumerate(trace.token_ids) if token == STOP)
    assert first <= position and trace.stop_reason == "stop"
    assert trace.response_ids == trace.token_ids[: first + 1]
    assert len(trace.token_ids) == 2 + -(-max(first - 1, 0) // 4) * 4


def test_stop_id_beyond_the_asked_length_is_not_a_stop(model: SDAR, monkeypatch: pytest.MonkeyPatch) -> None:
    force(model, monkeypatch, lambda: dict.fromkeys(range(3), 5) | {3: STOP})
    trace = one(model, prompt_of(8), config(max_new_tokens=3, stop_ids=frozenset({STOP})))
    assert trace.stop_reason == "length" and len(trace.response_ids) == 3 and trace.token_ids[3] == STOP


@pytest.mark.parametrize("prompt_length", [5, 6, 7])
@pytest.mark.parametrize("block_size", [4, 8])
def test_stop_ids_in_the_prompts_tail_stop_nothing(model: SDAR, prompt_length: int, block_size: int) -> None:
    """A chat prompt has an end-of-turn five tokens before its end; published engines stop there, with no output."""
    prompt = prompt_of(prompt_length)[:-2] + [STOP, 9]
    forbidden_stop = config(block_size=block_size, stop_ids=frozenset({STOP}), seed=8)
    trace = one(model, prompt, forbidden_stop)
    assert STOP not in trace.token_ids[:12]  # the draw happens to contain none early, so nothing else may stop it
    assert len(trace.token_ids) >= 12


def test_model_configuration_gives_the_default_stop(model: SDAR, monkeypatch: pytest.MonkeyPatch) -> None:
    force(model, monkeypatch, lambda: {1: CONFIG.eos_token_id})
    assert one(model, prompt_of(4), config(stop_ids=None, max_new_tokens=40)).stop_reason == "stop"


def test_mask_and_unused_rows_are_never_written() -> None:
    """A model that loves its mask token and rows no token has."""
    model = lively_model()
    with torch.no_grad():
        model.lm_head.weight[50:] = 30 * model.lm_head.weight[:11].abs()
    for settings in (config(), config(temperature=0), config(top_k=1, mode="compat"), config(top_p=0.5)):
        limited = one(model, prompt_of(5), DecodeConfig(**{**vars(settings), "vocab_limit": 50}))
        assert max(limited.token_ids) < 50
        assert MASK not in one(model, prompt_of(5), settings).token_ids


def test_events_tell_the_whole_story(model: SDAR) -> None:
    events: list[StepEvent] = []
    traces = generate(model, [prompt_of(6), prompt_of(9)], config(), events.append)
    for sample, trace in enumerate(traces):
        own = [event for event in events if event.sample == sample]
        assert [event.step for event in own] == list(range(trace.denoising_steps))
        assert [event.stop_reason for event in own][-1] == trace.stop_reason
        assert all(event.stop_reason is None for event in own[:-1])
        for event in own:
            assert [trace.steps[position] for position in event.positions] == [event.step] * len(event.positions)
            assert {(len(trace.prompt_ids) + p) // 4 for p in event.positions} == {event.block}
            assert tuple(trace.logprobs[position] for position in event.positions) == event.logprobs


def test_context_limit_is_told_before_any_work(model: SDAR) -> None:
    fits = prompt_of(256 - 24)
    assert len(one(model, fits, config(max_new_tokens=24)).token_ids) == 24
    with pytest.raises(ContextLengthError, match="Prompt 1 has 233 tokens; .* needs 260 positions, .* has 256"):
        generate(model, [prompt_of(3), prompt_of(233)], config(max_new_tokens=24))


def test_ragged_batch_may_reach_the_context_limit_while_another_commits(model: SDAR) -> None:
    traces = generate(model, [prompt_of(248), prompt_of(4)], config(max_new_tokens=8, confidence_threshold=0.3))
    assert [len(trace.token_ids) for trace in traces] == [8, 8]


def test_no_prompts_no_traces(model: SDAR) -> None:
    assert generate(model, [], config()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"max_new_tokens": 0},
        {"block_size": 0},
        {"block_size": 1000},
        {"denoising_steps": 0},
        {"denoising_steps": 5},
        {"remasking": "random"},
        {"mode": "beam"},
        {"temperature": -1.0},
        {"mode": "sample", "temperature": 0.0},
        {"top_p": 0.0},
        {"top_k": -1},
        {"confidence_threshold": 1.5},
        {"entropy_bound": -0.1},
        {"max_active": 0},
    ],
)
def test_impossible_requests_are_told(model: SDAR, changes: dict[str, Any]) -> None:
    with pytest.raises(DecodeError, match=r"\.$"):
        generate(model, [prompt_of(3)], config(**changes))


def test_bad_prompts_and_seeds_are_told(model: SDAR) -> None:
    with pytest.raises(DecodeError, match="outside the model's vocabulary"):
        generate(model, [[1, 61]], config())
    with pytest.raises(DecodeError, match="2 prompts but 1 seeds"):
        generate(model, [[1], [2]], config(), seeds=[1])


def test_finished_traces_are_handed_over_at_once(model: SDAR) -> None:
    """While other texts are still being written, and as they are returned in the end."""
    told: dict[int, Trace] = {}
    left_after: list[int] = []

    def on_trace(index: int, trace: Trace) -> None:
        told[index] = trace

    def on_step(event: StepEvent) -> None:
        left_after.append(len(told))

    traces = generate(model, [prompt_of(n) for n in (3, 5, 8, 2)], config(max_active=2), on_step, on_trace=on_trace)
    assert [told[index] for index in range(4)] == traces
    assert set(left_after) >= {0, 2}


@pytest.mark.parametrize("kept", [1, 4, 9, 21])
def test_a_cut_trace_is_a_trace_of_its_own(model: SDAR, kept: int) -> None:
    """Whole blocks, up to the one that the last kept token is in; what they were denoised from is unchanged."""
    whole = one(model, prompt_of(5), config())
    cut = whole.cut(kept)
    end = len(cut.token_ids)
    assert (5 + end) % 4 == 0 and kept <= end < kept + 4 and (cut.kept, cut.stop_reason) == (kept, "stop")
    frames = [frame[:end] for frame in list(whole.frames())[: cut.denoising_steps + 1]]
    assert list(cut.frames()) == frames
    assert cut.response_ids == whole.token_ids[:kept]


@pytest.mark.parametrize(
    ("texts", "parameters", "said", "engine"),
    [
        (8, 10, "", True),
        (7, 10, "", False),
        (1, ENGINE_PARAMETERS, "", True),
        (1, 10, "1", True),
        (64, ENGINE_PARAMETERS, "0", False),
    ],
)
def test_the_engine_writes_where_that_pays(
    monkeypatch: pytest.MonkeyPatch, texts: int, parameters: int, said: str, engine: bool
) -> None:
    asked: list[bool] = []
    with torch.device("meta"):
        weight = torch.nn.Parameter(torch.empty(parameters))
    head = SimpleNamespace(weight=SimpleNamespace(is_cuda=True))
    model = SimpleNamespace(tensor_parallel=1, lm_head=head, parameters=lambda: [weight])
    monkeypatch.setenv("DICE_ENGINE", said)
    monkeypatch.setattr("dice.decode.engine.batch.can_run", lambda model: True)
    monkeypatch.setattr("dice.decode.generate.denoise", lambda *_: asked.append(False))
    monkeypatch.setattr("dice.decode.engine.batch.denoise_batch", lambda *_: asked.append(True))
    write(model, [object()] * texts, config())  # type: ignore[arg-type, list-item]
    assert asked == [engine]
