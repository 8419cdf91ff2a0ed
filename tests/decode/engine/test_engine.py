"""The engine against the plain decoder: the same texts, whoever shares a step, a page or the lack of them."""

from __future__ import annotations

import random
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from decoding_helpers import CONFIG, MASK, STOP, lively_model, prompt_of
from engine_helpers import Request, assert_same, plain, requests, submit

from dice.decode.autoregressive import generate_autoregressive
from dice.decode.block_diffusion import denoise, new_texts
from dice.decode.engine import batch
from dice.decode.engine.engine import Engine
from dice.decode.engine.plan import Room, blocks_needed, plan_step
from dice.decode.engine.runner import Runner
from dice.decode.engine.weights import Projection
from dice.decode.request import ContextLengthError, DecodeConfig, DecodeError, StepEvent
from dice.decode.trace import Trace
from dice.model.sdar import SDAR


def engine_for(model: SDAR, block_size: int = 4, **changes: object) -> Engine:
    settings = {"slots": 5, "context": 128, "block_size": block_size, "page_size": 16, **changes}
    return Engine(model, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_texts_of_every_kind_are_those_of_the_plain_decoder(model: SDAR, block_size: int) -> None:
    wanted = requests(30, block_size, seed=block_size)
    engine = engine_for(model, block_size, prefill_tokens=16)
    handles = submit(engine, wanted)
    engine.run()
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(model, request))
    assert engine.pages.free == engine.pages.count


def test_products_in_two_parts_add_up_to_the_same_texts(model: SDAR) -> None:
    wanted = requests(12, 4, seed=5)
    engine = engine_for(model, prefill_tokens=16)
    _, out, _, down, _ = engine._runner.forward.alike()  # type: ignore[attr-defined]
    for projection in (*out, *down):
        projection.rows_in_parts.update(range(8, 64))
    handles = submit(engine, wanted)
    with patch.object(Projection, "in_parts", autospec=True, side_effect=Projection.in_parts) as in_parts:
        engine.run()
    assert in_parts.called
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(model, request))


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [4, 8, 16])
def test_five_hundred_texts_are_those_of_the_plain_decoder(model: SDAR, block_size: int) -> None:
    wanted = [
        replace(one, config=replace(one.config, max_new_tokens=one.config.max_new_tokens + 30 * (index % 3)))
        for index, one in enumerate(requests(167, block_size, seed=7))
    ]
    engine = engine_for(model, block_size, slots=12, cache_tokens=400, prefill_tokens=64)
    handles = submit(engine, wanted)
    engine.run()
    assert engine.preempted
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(model, request))


def test_one_text_takes_the_forwards_of_the_plain_decoder(model: SDAR) -> None:
    """A block is committed with the first step of the next one, and a prompt is read in one piece."""
    request = Request(prompt_of(9), DecodeConfig(max_new_tokens=30, stop_ids=frozenset()), 3)
    engine = engine_for(model)
    (handle,) = submit(engine, [request])
    engine.run()
    assert_same(handle.trace, plain(model, request), forwards=True)
    # One more: that the text has ended is read while a step is under way that finds nothing to do.
    assert engine.forwards == plain(model, request).forwards + 1


def test_texts_leave_and_come_back_when_pages_run_out(model: SDAR) -> None:
    """Halfway through a block as well, where its schedule has to go on: two, one and one of its positions."""
    wanted = [
        replace(
            one, config=replace(one.config, max_new_tokens=60, denoising_steps=3, remasking="low_confidence_static")
        )
        for one in requests(8, 4, seed=2)
    ]
    engine = engine_for(model, slots=8, cache_tokens=176)
    handles = submit(engine, wanted)
    engine.run()
    assert engine.preempted
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(model, request))
    assert engine.pages.free == engine.pages.count


def test_whoever_finds_no_room_in_a_step_waits_for_the_next(model: SDAR) -> None:
    class Narrow(Runner):
        def room(self, texts: int, blocks: int) -> Room:
            return Room(max(1, texts - 1), max(2, blocks // 2))

    wanted = requests(12, 4, seed=5)
    engine = engine_for(model, make_runner=Narrow)
    handles = submit(engine, wanted)
    engine.run()
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(model, request))


@pytest.mark.parametrize("lengths", [(8, 8, 8, 8, 8), (5, 6, 7, 8, 9), (7, 7, 7, 7, 7)])
def test_the_least_step_with_room_for_all_takes_all(model: SDAR, lengths: tuple[int, ...]) -> None:
    """Whole blocks of masks need logits for more rows than they have; few masks need rows alone."""
    engine = engine_for(model)
    config = DecodeConfig(max_new_tokens=30, stop_ids=frozenset())
    handles = submit(engine, [Request(prompt_of(length), config, length) for length in lengths])
    with torch.inference_mode():
        engine._read_prompts()
    blocks = blocks_needed([handle.text for handle in handles], engine.shape)
    assert blocks >= len(lengths)
    taken = [len(plan_step(engine._runner.slots, Room(len(lengths), count)).tiles) for count in (blocks, blocks - 1)]
    assert taken[0] == len(lengths) > taken[1]


def test_everyone_has_a_turn(model: SDAR) -> None:
    class Narrow(Runner):
        def room(self, texts: int, blocks: int) -> Room:
            return Room(2, 4)

    config = DecodeConfig(max_new_tokens=40, stop_ids=frozenset(), remasking="sequential")
    engine = engine_for(model, make_runner=Narrow)
    handles = [engine.submit(prompt_of(4, seed=seed), config, seed) for seed in range(5)]
    while engine.step():
        taken = [handle.text.step for handle in handles if handle.state == "writing"]
        assert not taken or max(taken) - min(taken) <= 1


def test_aborted_texts_leave_the_others_alone_and_nothing_behind(model: SDAR) -> None:
    chance = random.Random(1)
    wanted = requests(24, 4, seed=3)
    engine = engine_for(model, cache_tokens=256, prefill_tokens=8)
    handles = submit(engine, wanted)
    gone = chance.sample(handles, 9)
    seen_after: list[StepEvent] = []
    for handle in gone[:4]:
        engine.abort(handle)  # while it waits
    late = gone[4:]
    while engine.step():
        if late and engine.forwards % 3 == 0:
            running = [handle for handle in late if handle.state in ("reading", "writing")]
            for handle in running:
                engine.abort(handle)
                handle.on_step = seen_after.append
                late.remove(handle)
    assert not seen_after
    for handle, request in zip(handles, wanted, strict=True):
        assert handle.done
        if handle.state == "finished":
            assert_same(handle.trace, plain(model, request))
        else:
            assert handle in gone and handle.trace is None
    assert engine.pages.free == engine.pages.count


def test_abort_makes_room_for_the_next_step(model: SDAR) -> None:
    engine = engine_for(model, slots=1)
    config = DecodeConfig(max_new_tokens=40, stop_ids=frozenset())
    first, second = engine.submit(prompt_of(5), config, 1), engine.submit(prompt_of(6), config, 2)
    engine.step()
    assert (first.state, second.state) == ("writing", "waiting")
    engine.abort(first)
    engine.step()
    assert second.state == "writing"


def test_a_text_can_be_submitted_and_another_aborted_from_within_an_event(model: SDAR) -> None:
    wanted = requests(3, 4, seed=11)
    engine = engine_for(model)
    victim = engine.submit(prompt_of(4), DecodeConfig(max_new_tokens=60, stop_ids=frozenset()), 1)
    added = []

    def on_step(event: StepEvent) -> None:
        if not added:
            engine.abort(victim)
            added.extend(submit(engine, wanted))

    engine.submit(prompt_of(7), DecodeConfig(max_new_tokens=12, stop_ids=frozenset()), 2, on_step=on_step)
    engine.run()
    assert victim.state == "aborted"
    for handle, request in zip(added, wanted, strict=True):
        assert_same(handle.trace, plain(model, request))


def test_events_tell_the_trace(model: SDAR) -> None:
    request = Request(prompt_of(6), DecodeConfig(max_new_tokens=25), 4)
    expected: list[StepEvent] = []
    (text,) = new_texts(model, [request.prompt], request.config, [request.seed])
    denoise(model, [text], request.config, expected.append)
    found: list[StepEvent] = []
    engine = engine_for(model)
    engine.submit(request.prompt, request.config, request.seed, on_step=found.append)
    engine.run()
    assert [replace(event, logprobs=()) for event in found] == [replace(event, logprobs=()) for event in expected]


def test_the_prompt_of_many_samples_is_read_once(model: SDAR) -> None:
    read: list[int] = []

    class Counting(Runner):
        def prefill(self, pieces):  # type: ignore[no-untyped-def]
            read.extend(len(piece.tokens) for piece in pieces)
            super().prefill(pieces)

    prompt, config = prompt_of(70), DecodeConfig(max_new_tokens=9)
    engine = engine_for(model, slots=6, make_runner=Counting)
    handles = [engine.submit(prompt, config, seed) for seed in range(6)]
    engine.run()
    assert sum(read) == 68 + 5 * 4  # the last, unfinished page is every sample's own
    for seed, handle in enumerate(handles):
        assert_same(handle.trace, plain(model, Request(prompt, config, seed)))


def test_new_weights_forget_what_old_ones_computed(model: SDAR) -> None:
    request = Request(prompt_of(50), DecodeConfig(max_new_tokens=20), 1)
    engine = engine_for(model)
    submit(engine, [request])
    engine.run()
    other = lively_model(seed=5)
    engine.load_weights(list(other.named_parameters()))
    (handle,) = submit(engine, [request])
    engine.run()
    assert_same(handle.trace, plain(lively_model(seed=5), request))


def test_weights_cannot_change_under_a_text(model: SDAR) -> None:
    engine = engine_for(model)
    engine.submit(prompt_of(5), DecodeConfig(max_new_tokens=20), 1)
    engine.step()
    with pytest.raises(DecodeError, match="while texts are being written"):
        engine.refresh()
    with pytest.raises(DecodeError, match="no weights named nonsense"):
        engine.load_weights([("nonsense", torch.zeros(1))])


@pytest.mark.parametrize("length", [1, 2, 9, 33])
def test_autoregressive_models_are_blocks_of_one(length: int) -> None:
    torch.manual_seed(1)
    model = SDAR(replace(CONFIG, family="qwen3", block_size=1, mask_token_id=-1))
    prompt = prompt_of(length, seed=length)
    for config in (DecodeConfig(max_new_tokens=20, top_k=20), DecodeConfig(max_new_tokens=20, temperature=0.0)):
        expected = generate_autoregressive(model, [prompt], config, seeds=[8])[0]
        engine = Engine(model, slots=2, context=64, page_size=16)
        handle = engine.submit(prompt, config, 8)
        engine.run()
        assert_same(handle.trace, expected, forwards=True)


def test_the_families_without_head_norms_run_too() -> None:
    torch.manual_seed(2)
    model = SDAR(replace(CONFIG, family="stable-diffcoder"))
    request = Request(prompt_of(13), DecodeConfig(max_new_tokens=20), 8)
    engine = engine_for(model)
    (handle,) = submit(engine, [request])
    engine.run()
    assert_same(handle.trace, plain(model, request))


@pytest.mark.parametrize("suffix", [(), (7, 8, 9), tuple(range(20, 31))])
@pytest.mark.parametrize("stop_ids", [frozenset(), frozenset(range(2, 20))])
def test_forced_beginnings_and_ends(model: SDAR, suffix: tuple[int, ...], stop_ids: frozenset[int]) -> None:
    config = DecodeConfig(max_new_tokens=9, stop_ids=stop_ids)
    prompt, prefix = prompt_of(6), (3, 4, 5)
    (text,) = new_texts(model, [prompt], config, [4], prefix, suffix)
    expected = denoise(model, [text], config)[0]
    engine = engine_for(model)
    handle = engine.submit(prompt, config, 4, prefix=prefix, suffix=suffix)
    engine.run()
    assert_same(handle.trace, expected)
    assert handle.answer_ids[:3] == prefix and handle.answer_ids[len(handle.answer_ids) - len(suffix) :] == suffix
    if stop_ids:
        assert len(handle.answer_ids) < 3 + 9 + len(suffix)
        assert (handle.answer_ids[-1] in stop_ids) != bool(suffix) or suffix == (7, 8, 9)
    else:
        assert len(handle.answer_ids) == 3 + 9 + len(suffix)


def test_what_cannot_be_is_refused_when_it_is_submitted(model: SDAR) -> None:
    engine = engine_for(model, cache_tokens=64)
    with pytest.raises(ContextLengthError):
        engine.submit(prompt_of(250), DecodeConfig(max_new_tokens=20))
    with pytest.raises(DecodeError, match="keeps 64 of one at most"):
        engine.submit(prompt_of(60), DecodeConfig(max_new_tokens=20))
    with pytest.raises(DecodeError, match="blocks of 4, not of 8"):
        engine.submit(prompt_of(6), DecodeConfig(block_size=8))
    with pytest.raises(DecodeError, match="denoising_steps"):
        engine.submit(prompt_of(6), DecodeConfig(max_new_tokens=5, denoising_steps=9))
    with pytest.raises(DecodeError, match="outside the model's vocabulary"):
        engine.submit([1000], DecodeConfig(max_new_tokens=5))
    assert not engine.step()


def test_more_sets_of_stop_ids_than_the_tables_hold_wait_for_each_other(model: SDAR) -> None:
    wanted = [
        Request(prompt_of(5), DecodeConfig(max_new_tokens=9, stop_ids=frozenset({STOP, 20 + n})), n) for n in range(20)
    ]
    engine = engine_for(model, slots=20)
    handles = submit(engine, wanted)
    engine.run()
    for handle, request in zip(handles, wanted, strict=True):
        assert_same(handle.trace, plain(model, request))


def test_generate_by_the_engine_calls_back_and_cleans_up(model: SDAR) -> None:
    """`batch` with an engine for the CPU: order, callbacks, and an exception from within one."""

    def make(model: SDAR, slots: int, context: int, block_size: int) -> Engine:
        return engine_for(model, block_size, slots=slots, context=context)

    config = DecodeConfig(max_new_tokens=12, max_active=2)
    prompts = [prompt_of(length, seed=length) for length in (3, 9, 14, 6)]
    texts = new_texts(model, prompts, config, range(4))
    seen: dict[int, Trace] = {}
    traces = batch.denoise_batch(model, texts, config, None, seen.__setitem__, make)
    assert [seen[index] for index in range(4)] == traces
    for prompt, seed, trace in zip(prompts, range(4), traces, strict=True):
        assert_same(trace, plain(model, Request(prompt, config, seed)))
    (kept,) = batch._kept

    class Interrupted(Exception):
        pass

    def interrupt(event: StepEvent) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        batch.denoise_batch(model, new_texts(model, prompts, config, range(4)), config, interrupt, None, make)
    assert kept.pages.free == kept.pages.count and not batch._kept


def test_fp8_says_nearly_the_same(model: SDAR) -> None:
    """Greedy texts rarely part at once; log-probabilities stay near. On so small a model the error is far larger than
    on a real one."""
    wanted = [Request(prompt_of(20, seed=n), DecodeConfig(max_new_tokens=8, temperature=0.0), n) for n in range(12)]
    engine = engine_for(model, fp8=True)
    handles = submit(engine, wanted)
    engine.run()
    pairs = [(handle.trace, plain(model, one)) for handle, one in zip(handles, wanted, strict=True)]
    first = [(a.token_ids[i], b.token_ids[i], a.logprobs[i], b.logprobs[i]) for a, b in pairs for i in [0] if a]
    assert sum(a == b for a, b, _, _ in first) >= 8
    near = [abs(x - y) for a, b, x, y in first if a == b]
    assert sum(near) / len(near) < 0.5
    assert any(x != y for _, _, x, y in first), "nothing was rounded to fp8"
    assert MASK not in [token for token, *_ in first]
