"""Denoised text: each token with the step that revealed it."""

from __future__ import annotations

from typing import Any

from dice.decode.trace import Trace


def pieces(trace: Trace, tokenizer: Any) -> dict[str, Any]:
    """A trace for a picture: each token's text, the step that revealed it, and its step within its block."""
    first: dict[int, int] = {}
    blocks = [(len(trace.prompt_ids) + i) // trace.block_size for i in range(len(trace.token_ids))]
    for block, step in zip(blocks, trace.steps, strict=True):
        first[block] = min(step, first.get(block, step))
    kept = range(trace.kept)
    return {
        "texts": [tokenizer.decode([trace.token_ids[i]]) for i in kept],
        "steps": [trace.steps[i] for i in kept],
        "within": [trace.steps[i] - first[blocks[i]] for i in kept],
        "block_size": trace.block_size,
        "all_steps": trace.denoising_steps,
        "forwards": trace.forwards,
        "strategy": trace.strategy,
    }
