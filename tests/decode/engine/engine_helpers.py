"""Runs of the engine beside the plain decoder, on models small enough for either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from decoding_helpers import MASK, prompt_of

from dice.decode.block_diffusion import denoise, new_texts
from dice.decode.engine.engine import Engine, Handle
from dice.decode.request import DecodeConfig
from dice.decode.sampling import STRATEGIES
from dice.decode.trace import Trace
from dice.model.sdar import SDAR


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    config: DecodeConfig
    seed: int


def requests(count: int, block_size: int, seed: int = 0) -> list[Request]:
    """Prompts of every length modulo the block, of one token at least, all strategies and ways to draw; every third
    prompt begins like another."""
    ways = ({}, {"temperature": 0.7}, {"temperature": 0.0}, {"top_k": 9, "top_p": 0.8}, {"mode": "compat"})
    common = prompt_of(40, seed=99)
    made = []
    for index in range(count):
        length = 1 + (index * 7 + seed) % 37
        prompt = prompt_of(length, seed=seed + index)
        if index % 3 == 0:
            prompt = [*common[: 16 + index % 24], *prompt[:3]]
        config = DecodeConfig(
            max_new_tokens=5 + (index * 5 + seed) % 23, block_size=block_size,
            remasking=STRATEGIES[index % len(STRATEGIES)], confidence_threshold=0.3, entropy_bound=6.0,
            denoising_steps=(None, max(1, block_size // 2), 3)[index % 3], **ways[index % len(ways)],
        )  # fmt: skip
        made.append(Request(prompt, config, 1000 * seed + index))
    return made


def plain(model: SDAR, request: Request) -> Trace:
    (text,) = new_texts(model, [request.prompt], request.config, [request.seed])
    return denoise(model, [text], request.config)[0]


def submit(engine: Engine, wanted: Sequence[Request]) -> list[Handle]:
    return [engine.submit(one.prompt, one.config, one.seed) for one in wanted]


def assert_same(found: Trace | None, expected: Trace, *, atol: float = 1e-4, forwards: bool = False) -> None:
    """Equal in everything but rounding and, unless asked, in how many forwards it took."""
    assert found is not None
    assert found.token_ids == expected.token_ids
    assert found.steps == expected.steps
    same = ("prompt_ids", "kept", "block_size", "mask_token_id", "strategy", "mode", "stop_reason")
    assert [getattr(found, name) for name in same] == [getattr(expected, name) for name in same]
    torch.testing.assert_close(torch.tensor(found.logprobs), torch.tensor(expected.logprobs), atol=atol, rtol=1e-4)
    assert not forwards or found.forwards == expected.forwards
    assert MASK not in found.token_ids
