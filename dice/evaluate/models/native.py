"""Answers from checkpoints that our own decoder runs, a batch at a time.

A family is one entry of `FAMILIES`: the model types of its `config.json`, and what loads it. A loader gives a `Writer`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import torch

from dice.decode.generate import DecodeConfig, StepEvent, generate
from dice.errors import UserError
from dice.evaluate.models.seam import Answer, Question
from dice.model.checkpoint import NANO_FOLDER, load_model, resolve_model
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer

BATCH = {"cuda": 64, "cpu": 4}
SMALL_MODEL = 50_000_000  # parameters


class Stopped(Exception):
    """The run is being called off."""


class Writer(Protocol):
    """A loaded model of some family: writes one answer to each prompt, in their order."""

    def write(self, prompts: Sequence[str], seeds: Sequence[int], check: Callable[[], None]) -> list[Answer]:
        """`check` is called between forward passes; what it raises ends the work."""


@dataclass(frozen=True, slots=True)
class Family:
    """`types`: `model_type` of its checkpoints. `load(folder, settings, traces)`: raises `UserError` for bad ones."""

    name: str
    types: tuple[str, ...]
    load: Callable[[Path, Mapping[str, Any], bool], Writer]


class NativeModel:
    """Raises `UserError` when made, for a checkpoint that cannot be used."""

    def __init__(
        self, name: str, settings: Mapping[str, Any], *, family: str = "", batch: int = 0, traces: bool = False
    ):
        folder = resolve_model(name)
        self._writer: Writer | None = family_of(folder, family).load(folder, settings, traces)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.gpu = torch.cuda.current_device() if device == "cuda" else None
        self._batch = batch or BATCH[device]
        self._leaving = threading.Event()

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        for first in range(0, len(questions), self._batch):
            group = questions[first : first + self._batch]
            writer = self._writer
            if writer is None:
                return
            try:
                answers = writer.write([one.prompt for one in group], [one.own_seed for one in group], self._check)
            except Stopped:
                return
            yield from zip(group, answers, strict=True)

    def close(self) -> None:
        self._leaving.set()
        self._writer = None
        if self.gpu is not None:
            torch.cuda.empty_cache()

    def _check(self) -> None:
        if self._leaving.is_set():
            raise Stopped


class SdarWriter:
    """SDAR, TraDo, DICE and nano: block diffusion (paper A.4.4: static decoding, block size 4)."""

    def __init__(self, model: SDAR, tokenizer: Tokenizer, config: DecodeConfig, traces: bool):
        self.model, self.tokenizer, self.config, self.traces = model, tokenizer, config, traces

    @classmethod
    def load(cls, folder: Path, settings: Mapping[str, Any], traces: bool) -> SdarWriter:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        exact = device == "cpu" or folder == NANO_FOLDER  # as `dice generate` decodes it
        model = load_model(folder, torch.float32 if exact else torch.bfloat16, device)
        if device == "cpu" and sum(weight.numel() for weight in model.parameters()) < SMALL_MODEL:
            torch.set_num_threads(1)  # a step is too short to share
        tokenizer = Tokenizer.from_folder(folder)
        known = {field.name for field in fields(DecodeConfig)} - {"stop_ids", "vocab_limit", "seed"}
        unknown = sorted(set(settings) - known)
        if unknown:
            raise UserError(f"Block diffusion has no setting {unknown[0]!r}; there are {', '.join(sorted(known))}.")
        config = DecodeConfig(**settings, stop_ids=tokenizer.stop_ids, vocab_limit=tokenizer.vocab_size)
        return cls(model, tokenizer, config, traces)

    def write(self, prompts: Sequence[str], seeds: Sequence[int], check: Callable[[], None]) -> list[Answer]:
        """Prompts with less room than `max_new_tokens` are decoded with what room they have."""
        ids = [self.tokenizer.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
        limit = self.model.config.max_position_embeddings
        rooms = [min(self.config.max_new_tokens, limit - len(one) - self.model.config.block_size) for one in ids]
        answers: dict[int, Answer] = {}
        for room in sorted(set(rooms)):
            group = [index for index, own in enumerate(rooms) if own == room]
            if room < 1:
                for index in group:
                    said = f"the prompt takes {len(ids[index])} tokens, and the model reads at most {limit}"
                    answers[index] = Answer(stop="error", error=said, prompt_tokens=len(ids[index]))
                continue
            found = self._generate([ids[index] for index in group], [seeds[index] for index in group], room, check)
            answers |= dict(zip(group, found, strict=True))
        return [answers[index] for index in range(len(prompts))]

    def _generate(
        self, prompts: list[list[int]], seeds: list[int], room: int, check: Callable[[], None]
    ) -> list[Answer]:
        own = {field.name: getattr(self.config, field.name) for field in fields(DecodeConfig)}
        config = DecodeConfig(**own | {"max_new_tokens": room})
        start, ended = time.perf_counter(), [0.0] * len(prompts)

        def on_step(event: StepEvent) -> None:
            check()
            if event.stop_reason:
                ended[event.sample] = time.perf_counter() - start

        traces = generate(self.model, prompts, config, on_step, seeds=seeds)
        share = max(ended) / len(prompts)  # a batch's time is shared by its texts
        return [
            Answer(
                self.tokenizer.decode(trace.response_ids),
                stop="length" if trace.stop_reason == "length" else "end",
                prompt_tokens=len(trace.prompt_ids),
                tokens=len(trace.response_ids),
                forwards=trace.forwards,
                seconds=round(share, 4),
                trace=trace.to_json(compact=True) if self.traces else None,
                more={"latency_s": round(ended[index], 4), "batch": len(prompts)},
            )
            for index, trace in enumerate(traces)
        ]


FAMILIES: dict[str, Family] = {family.name: family for family in (Family("sdar", ("sdar",), SdarWriter.load),)}


def family_of(folder: Path, name: str = "") -> Family:
    """The family of that name, or of the checkpoint's `model_type`. Raises `UserError` where there is none."""
    if name:
        if name not in FAMILIES:
            raise UserError(f"There is no native family {name!r}; there are {', '.join(FAMILIES)}.")
        return FAMILIES[name]
    try:
        kind = str(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type", ""))
    except (OSError, ValueError, AttributeError):
        raise UserError(f"{folder} holds no readable config.json: it is no checkpoint.") from None
    found = next((family for family in FAMILIES.values() if kind in family.types), None)
    if found is None:
        raise UserError(
            f"Models of type {kind!r} have no native code here; add `--kind transformers`, or serve the model and give "
            "its --base-url."
        )
    return found
