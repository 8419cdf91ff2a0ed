"""The trace as a value: frames, JSON, limits."""

from __future__ import annotations

import dataclasses
import json

import pytest
from decoding_helpers import MASK, prompt_of

from dice.decode.generate import DecodeConfig, generate
from dice.decode.trace import Trace
from dice.model.sdar import SDAR

TRACE = Trace(
    prompt_ids=(7, 8, 9),
    token_ids=(11, 12, 13, 14, 15),
    steps=(0, 2, 1, 1, 2),
    logprobs=(-0.5, -0.25, -1.0, 0.0, -2.0),
    kept=4,
    block_size=4,
    mask_token_id=MASK,
    strategy="low_confidence_dynamic",
    mode="sample",
    forwards=3,
    stop_reason="stop",
)


def test_frames_go_from_all_masked_to_the_text() -> None:
    assert list(TRACE.frames()) == [
        (MASK, MASK, MASK, MASK, MASK),
        (11, MASK, MASK, MASK, MASK),
        (11, MASK, 13, 14, MASK),
        (11, 12, 13, 14, 15),
    ]
    assert TRACE.denoising_steps == 3 and TRACE.response_ids == (11, 12, 13, 14)


@pytest.mark.parametrize("compact", [False, True])
def test_json_round_trip(model: SDAR, compact: bool) -> None:
    assert Trace.from_json(json.loads(json.dumps(TRACE.to_json(compact=compact)))) == TRACE
    (real,) = generate(model, [prompt_of(6)], DecodeConfig(max_new_tokens=20, seed=0))
    read = Trace.from_json(json.loads(json.dumps(real.to_json(compact=compact))))
    assert read.logprobs == pytest.approx(real.logprobs, rel=1e-6)
    assert dataclasses.replace(read, logprobs=real.logprobs) == real


def test_compact_form_is_smaller() -> None:
    long = dataclasses.replace(TRACE, token_ids=(151000,) * 900, steps=(9,) * 900, logprobs=(-0.1 / 3,) * 900)
    assert len(json.dumps(long.to_json(compact=True))) < 0.6 * len(json.dumps(long.to_json()))


@pytest.mark.parametrize("change", [{"steps": (0,)}, {"logprobs": ()}, {"kept": 6}, {"kept": -1}])
def test_inconsistent_traces_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="trace"):
        dataclasses.replace(TRACE, **change)
