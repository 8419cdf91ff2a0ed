"""Repair: what is chosen is written again with both sides in view, as far as the mask allows, and nothing else is."""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoding_helpers import MASK, frames_with_prompt, prompt_of, uncached_logits

from dice.decode.engine.engine import Engine
from dice.decode.generate import DecodeConfig, DecodeError, generate
from dice.decode.repair import holes_of_lines, repair
from dice.decode.text import Text
from dice.decode.trace import GIVEN, Trace
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer

NEVER: frozenset[int] = frozenset()
CONFIG = DecodeConfig(max_new_tokens=50, stop_ids=NEVER, seed=5)
# Parts of a block, whole blocks with a finished one between, two in one block, and the end.
HOLES = [range(3, 5), range(20, 33), range(34, 35), range(48, 50)]
NANO = Path(__file__).parents[2] / "dice" / "nano"


@pytest.fixture
def trace(model: SDAR) -> Trace:
    return generate(model, [prompt_of(6)], CONFIG)[0]


def test_only_holes_are_written_again(model: SDAR, trace: Trace) -> None:
    (repaired,) = repair(model, [trace], [HOLES], CONFIG, seeds=[9])
    inside = {place for hole in HOLES for place in hole}
    for place, token in enumerate(trace.token_ids):
        if place in inside:
            assert repaired.steps[place] >= 0 and repaired.token_ids[place] != MASK
        else:
            assert (repaired.token_ids[place], repaired.steps[place], repaired.logprobs[place]) == (token, GIVEN, 0.0)
    assert (repaired.kept, repaired.stop_reason) == (trace.kept, trace.stop_reason)
    assert repaired.token_ids != trace.token_ids


@pytest.mark.parametrize("block_size", [4, 8])
def test_a_repair_replays_on_the_uncached_model(model: SDAR, block_size: int) -> None:
    config = replace(CONFIG, block_size=block_size)
    (whole,) = generate(model, [prompt_of(6)], config)
    (repaired,) = repair(model, [whole], [HOLES], config, seeds=[9])
    for step, frame in enumerate(frames_with_prompt(repaired)[:-1]):
        logprobs = uncached_logits(model, frame, block_size).log_softmax(-1)
        for place in (i for i, s in enumerate(repaired.steps) if s == step):
            expected = logprobs[6 + place, repaired.token_ids[place]].item()
            assert repaired.logprobs[place] == pytest.approx(expected, abs=1e-3)


def test_what_follows_in_the_block_is_seen(model: SDAR, trace: Trace) -> None:
    """Another token behind the hole, in the same block, changes what is written into it; one block on, it does not."""
    greedy = replace(CONFIG, temperature=0.0)
    hole = [range(2, 3)]  # position 8, whose block ends at 11

    def logprob(place: int) -> float:
        token_ids = list(trace.token_ids)
        token_ids[place] = (token_ids[place] + 1) % 50 + 2
        (repaired,) = repair(model, [replace(trace, token_ids=tuple(token_ids))], [hole], greedy)
        return repaired.logprobs[2]

    (plain,) = repair(model, [trace], [hole], greedy)
    assert logprob(4) != pytest.approx(plain.logprobs[2], abs=1e-6)
    assert logprob(6) == plain.logprobs[2]


def test_the_engine_repairs_alike(model: SDAR, trace: Trace) -> None:
    (expected,) = repair(model, [trace], [HOLES], CONFIG, seeds=[9])
    text = Text(0, trace.prompt_ids, trace.kept, 4, MASK, NEVER, 9, answer=trace.token_ids, holes=HOLES)
    engine = Engine(model, slots=2, context=128, page_size=16)
    handle = engine.add(text, CONFIG)
    engine.run()
    assert handle.trace is not None
    assert (handle.trace.token_ids, handle.trace.steps) == (expected.token_ids, expected.steps)
    torch.testing.assert_close(
        torch.tensor(handle.trace.logprobs), torch.tensor(expected.logprobs), atol=1e-4, rtol=1e-4
    )


def test_stop_tokens_end_no_repair(model: SDAR) -> None:
    (whole,) = generate(model, [prompt_of(6)], replace(CONFIG, max_new_tokens=30))
    everything = replace(CONFIG, stop_ids=frozenset(range(MASK)))
    whole = replace(whole, stop_reason="stop")
    (repaired,) = repair(model, [whole], [[range(0, 2), range(25, 30)]], everything)
    assert (repaired.kept, repaired.stop_reason) == (30, "stop")
    assert all(repaired.steps[place] >= 0 for place in (0, 1, *range(25, 30)))


@pytest.mark.parametrize(
    ("holes", "message"),
    [([], "must lie in"), ([range(49, 51)], "must lie in its 50"), ([range(-1, 3)], "must lie in")],
)
def test_what_cannot_be_repaired_is_refused(model: SDAR, trace: Trace, holes: list[range], message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        repair(model, [trace], [holes], CONFIG)


def test_texts_of_another_kind_are_refused(model: SDAR, trace: Trace) -> None:
    with pytest.raises(DecodeError, match="blocks of 8"):
        repair(model, [replace(trace, block_size=8)], [HOLES], CONFIG)
    with pytest.raises(DecodeError, match="not complete"):
        cut = {name: getattr(trace, name)[:-1] for name in ("token_ids", "steps", "logprobs")}
        repair(model, [replace(trace, **cut, kept=20)], [[range(2)]], CONFIG)


def test_lines_are_found_in_tokens() -> None:
    tokenizer = Tokenizer.from_folder(NANO)
    text = "import torch\n\nclass ModelNew:\n    x = 1\n    y = 22\n"
    ids = tuple(tokenizer.encode(text))
    trace = Trace((), ids, (0,) * len(ids), (0.0,) * len(ids), len(ids), 4, 3, "sequential", "greedy", 1, "length")
    (hole,) = holes_of_lines(tokenizer, trace, [3])
    assert "x = 1" in tokenizer.decode(ids[hole.start : hole.stop])
    assert "ModelNew" not in tokenizer.decode(ids[hole.start : hole.stop])
    assert "22" not in tokenizer.decode(ids[hole.start : hole.stop])
    both = holes_of_lines(tokenizer, trace, [3, 4])
    found = "|".join(tokenizer.decode(ids[part.start : part.stop]) for part in both)
    assert "x = 1" in found and "y = 22" in found and "ModelNew" not in found
    assert holes_of_lines(tokenizer, trace, [1]) == []
    with pytest.raises(DecodeError, match="line 10 is none"):
        holes_of_lines(tokenizer, trace, [9])


def test_lines_are_found_where_characters_lie_across_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also half of one at the end; and the tokenizer is asked for the text once, however many lines there are."""
    tokenizer, draw = Tokenizer.from_folder(NANO), random.Random(4)
    tokens = tokenizer.encode("ä😀\u4e2d\nx = 1\n")
    decode, asked = Tokenizer.decode, []
    monkeypatch.setattr(Tokenizer, "decode", lambda *given: asked.append(1) or decode(*given))
    for _ in range(50):
        ids = tuple(draw.choices(tokens, k=24))
        trace = Trace((), ids, (0,) * 24, (0.0,) * 24, 24, 4, 3, "sequential", "greedy", 1, "length")
        lengths = [len(decode(tokenizer, ids[:count])) for count in range(25)]
        begin = 0
        for number, line in enumerate(lines := decode(tokenizer, ids).split("\n")):
            end = begin + len(line)
            hole = range(bisect_right(lengths, begin) - 1, bisect_left(lengths, end)) if line else None
            assert holes_of_lines(tokenizer, trace, [number]) == ([hole] if hole else [])
            begin = end + 1
        asked.clear()
        holes_of_lines(tokenizer, trace, range(len(lines)))
        assert len(asked) == 1
