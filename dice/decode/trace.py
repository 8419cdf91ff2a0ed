"""`Trace`: how one text was denoised. The only thing reinforcement learning trains on, and what a display shows."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dice.files import JsonObject

StopReason = Literal["stop", "length"]
GIVEN = -1  # the step of a token that was not written, but given


@dataclass(frozen=True, slots=True)
class Trace:
    """One denoised text, as token ids: never re-tokenised text.

    `token_ids` is everything that was denoised after the prompt, whole last block included, because tokens after the
    first stop id may have been revealed before it and then conditioned what came later. `kept` says how many of them
    are the answer: up to and including the first stop id, or `max_new_tokens`.

    - `steps[i]`: the denoising step, counted from 0 over the whole text, that revealed `token_ids[i]`. Tokens of one
      block share a range of steps, later blocks have larger ones. `GIVEN` for tokens that nobody wrote: an answer's
      forced beginning or end, and what a repair left as it was. They were in view from the start, and their
      log-probability is 0.
    - `logprobs[i]`: natural log-probability of `token_ids[i]` under the distribution that it was drawn from at that
      step: temperature, top-k and top-p applied in mode "sample"; the untruncated softmax (at temperature 1 when
      temperature is 0) in mode "greedy"; 0 in mode "compat". The mask token and unused vocabulary rows are excluded.
    - Blocks lie on the absolute grid: token i belongs to block (len(prompt_ids) + i) // block_size. Whole-answer
      diffusion has its own grid, from the start of the answer. A text written token after token has blocks of one,
      one step each, and the mask id `NO_MASK`.
    - `forwards`: model calls that this text took part in, the prefill included.
    - `stop_reason`: "stop" (a stop id ended it) or "length".
    - `weights`: in training, after how many updates of the weights it was written; None elsewhere.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    steps: tuple[int, ...]
    logprobs: tuple[float, ...]
    kept: int
    block_size: int
    mask_token_id: int
    strategy: str
    mode: str
    forwards: int
    stop_reason: StopReason
    weights: int | None = None

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.steps) == len(self.logprobs):
            raise ValueError("A trace needs one step and one log-probability for every token.")
        if not 0 <= self.kept <= len(self.token_ids):
            raise ValueError("A trace cannot keep more tokens than it has.")

    @property
    def response_ids(self) -> tuple[int, ...]:
        """The answer, its stop token included."""
        return self.token_ids[: self.kept]

    @property
    def denoising_steps(self) -> int:
        """How many denoising steps the whole text took."""
        return max(self.steps, default=-1) + 1

    def cut(self, kept: int) -> Trace:
        """This text as if it had ended after `kept` tokens: without the blocks after that token's.

        Later blocks never bear on earlier ones, so what is left was denoised exactly as it says.
        """
        start = len(self.prompt_ids)
        end = min(-(-(start + kept) // self.block_size) * self.block_size - start, len(self.token_ids))
        return replace(
            self,
            token_ids=self.token_ids[:end],
            steps=self.steps[:end],
            logprobs=self.logprobs[:end],
            kept=kept,
            stop_reason="stop",
        )

    def frames(self) -> Iterator[tuple[int, ...]]:
        """The response as it looked before step 0, after step 0, after step 1, ...: masks where not yet revealed.

        Frame s is what step s was given, and frame s + 1 what it left. All frames have the length of `token_ids`.
        """
        given = zip(self.token_ids, self.steps, strict=True)
        current = [token if step == GIVEN else self.mask_token_id for token, step in given]
        by_step: list[list[int]] = [[] for _ in range(self.denoising_steps)]
        for position, step in enumerate(self.steps):
            if step != GIVEN:
                by_step[step].append(position)
        yield tuple(current)
        for positions in by_step:
            for position in positions:
                current[position] = self.token_ids[position]
            yield tuple(current)

    def to_json(self, *, compact: bool = False) -> dict[str, object]:
        """A JSON object; `compact` packs the four long columns as base64 (int32 and float32, little-endian)."""
        data: JsonObject = {name: getattr(self, name) for name in self.__slots__}
        for name in _INTEGER_COLUMNS:
            data[name] = _pack("i", data[name]) if compact else list(data[name])
        data["logprobs"] = _pack("f", self.logprobs) if compact else list(self.logprobs)
        return data

    @classmethod
    def from_json(cls, data: JsonObject) -> Trace:
        """Read either form of `to_json`."""
        data = dict(data)
        for name in _INTEGER_COLUMNS:
            data[name] = tuple(_unpack("i", data[name]))
        data["logprobs"] = tuple(_unpack("f", data["logprobs"]))
        return cls(**data)


_INTEGER_COLUMNS = ("prompt_ids", "token_ids", "steps")


def _pack(kind: str, values: Sequence[float]) -> str:
    return base64.b64encode(_little_endian(array(kind, values)).tobytes()).decode("ascii")


def _unpack(kind: str, values: str | Sequence[float]) -> Sequence[float]:
    if not isinstance(values, str):
        return values
    return _little_endian(array(kind, base64.b64decode(values)))


def _little_endian(values: array[float]) -> array[float]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
