"""Repair: chosen parts of a finished text are masked again and written anew, between what stays as it was.

The model sees all that comes before a masked position and, of what comes after it, the rest of its block: block
diffusion never looks further ahead. What stays after a repaired block was written with the old text in view. A part
keeps its length in tokens.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate

from dice.decode.generate import write
from dice.decode.request import DecodeConfig, DecodeError, StepEvent, prompt_seeds
from dice.decode.text import Text
from dice.decode.trace import Trace
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer


def repair(
    model: SDAR,
    traces: Sequence[Trace],
    holes: Sequence[Sequence[range]],
    config: DecodeConfig,
    on_step: Callable[[StepEvent], None] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Trace]:
    """Each text with its `holes`, ranges of response tokens, written again; steps and log-probabilities are those of
    this writing, and what stayed is `GIVEN`. No stop token ends a repair.

    `config` says how to decode, but not how much. Raises `DecodeError` for holes outside of the answer, for texts
    without any, and for texts or models of another kind than block diffusion.
    """
    seeds = prompt_seeds(config.seed, seeds, len(traces))
    texts = [
        repair_text(model, index, trace, parts, config, seed)
        for index, (trace, parts, seed) in enumerate(zip(traces, holes, seeds, strict=True))
    ]
    written = write(model, texts, config, on_step)
    pairs = zip(written, traces, strict=True)
    return [replace(new, kept=old.kept, stop_reason=old.stop_reason) for new, old in pairs]


def repair_text(model: SDAR, index: int, trace: Trace, holes: Sequence[range], config: DecodeConfig, seed: int) -> Text:
    """The text of `trace` with masks in its `holes`, for any decoder to write. Raises what `repair` raises."""
    size = config.block_size or model.config.block_size
    if model.config.traits.kind != "block_diffusion":
        raise DecodeError(f"Only block diffusion can repair a text; {model.config.family} writes in another way.")
    if trace.block_size != size or trace.mask_token_id != model.config.mask_token_id:
        raise DecodeError(f"Text {index} was written in blocks of {trace.block_size} by another kind of model.")
    parts = [part for part in holes if len(part)]
    if not parts or any(part.step != 1 or part.start < 0 or part.stop > trace.kept for part in parts):
        raise DecodeError(f"What is to be repaired in text {index} must lie in its {trace.kept} tokens.")
    if (len(trace.prompt_ids) + len(trace.token_ids)) % size:
        raise DecodeError(f"Text {index} is not complete: its last block is cut off.")
    return Text(
        index,
        trace.prompt_ids,
        trace.kept,
        size,
        trace.mask_token_id,
        frozenset(),
        seed,
        answer=trace.token_ids,
        holes=_merged(parts),
    )


def holes_of_lines(tokenizer: Tokenizer, trace: Trace, lines: Collection[int]) -> list[range]:
    """The response tokens that hold a character of the given lines, counted from 0; line ends stay.

    Raises `DecodeError` for a line that the answer lacks; to people it counts from 1.
    """
    ids = trace.response_ids
    found = tokenizer.decode(ids).split("\n")
    begins = list(accumulate((len(line) + 1 for line in found), initial=0))
    lengths = _lengths(tokenizer, ids)
    holes = []
    for line in sorted(set(lines)):
        if not 0 <= line < len(found):
            raise DecodeError(f"The answer has {len(found)} lines, and line {line + 1} is none of them.")
        begin, end = begins[line], begins[line] + len(found[line])
        if begin < end:
            holes.append(range(bisect_right(lengths, begin) - 1, bisect_left(lengths, end)))
    return _merged(holes)


def _lengths(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """How many characters the first tokens decode to, for each count of them; half a character is shown as one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    lengths, whole = [0], 0
    for token in ids:
        whole += len(decoder.decode(tokenizer.token_bytes(token)))
        lengths.append(whole + bool(decoder.getstate()[0]))
    return lengths


def _merged(holes: Sequence[range]) -> list[range]:
    """The same positions in ascending ranges that do not touch."""
    merged: list[range] = []
    for hole in sorted(holes, key=lambda hole: hole.start):
        if merged and hole.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, hole.stop))
        else:
            merged.append(hole)
    return merged
