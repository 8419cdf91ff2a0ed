"""Answers from checkpoints that our own transformer runs (`dice/model/family.py`), a batch at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from dice.decode.diffusion import DiffusionConfig
from dice.decode.generate import generate
from dice.decode.ready import load
from dice.decode.request import DecodeConfig, StepEvent
from dice.errors import UserError
from dice.evaluate.models.base import Answer, Question
from dice.model.checkpoint import resolve_model
from dice.model.config import ConfigError
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer

BATCH = {"cuda": 64, "cpu": 4}  # texts that are decoded together, unless told otherwise


class Stopped(Exception):
    """The run is being called off."""


class NativeModel:
    """Raises `UserError` when made, for a checkpoint that cannot be used."""

    def __init__(
        self, name: str, settings: Mapping[str, Any], *, batch: int = 0, traces: bool = False, tensor_parallel: int = 1
    ):
        folder = resolve_model(name)
        self._writer: Writer | None = Writer.load(folder, settings, traces, tensor_parallel)
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


class Writer:
    """A loaded model: writes one answer to each prompt, in their order."""

    def __init__(self, model: SDAR, tokenizer: Tokenizer, config: DecodeConfig | DiffusionConfig, traces: bool):
        self.model, self.tokenizer, self.config, self.traces = model, tokenizer, config, traces

    @classmethod
    def load(cls, folder: Path, settings: Mapping[str, Any], traces: bool, tensor_parallel: int = 1) -> Writer:
        try:
            model, tokenizer = load(folder, tensor_parallel)
        except ConfigError as error:
            if tensor_parallel > 1:
                raise
            hint = "Add `--kind transformers`, or serve the model and give its --base-url."
            raise UserError(f"{error} {hint}") from None
        kind = model.config.traits.kind
        settings_of = DiffusionConfig if kind == "diffusion" else DecodeConfig
        known = {field.name for field in fields(settings_of)} - {"stop_ids", "vocab_limit", "seed"}
        unknown = sorted(set(settings) - known)
        if unknown:
            words = kind.replace("_", " ")
            raise UserError(
                f"Models of the kind {words} have no setting {unknown[0]!r}, but {', '.join(sorted(known))}."
            )
        try:
            config = settings_of(**settings, stop_ids=tokenizer.stop_ids, vocab_limit=tokenizer.vocab_size)
        except TypeError:
            words = ", ".join(f"{name} = {value!r}" for name, value in settings.items() if isinstance(value, str))
            raise UserError(f"A setting that must be a number is none: see {words}.") from None
        return cls(model, tokenizer, config, traces)

    def write(self, prompts: Sequence[str], seeds: Sequence[int], check: Callable[[], None]) -> list[Answer]:
        """`check` is called between forward passes; what it raises ends the work. Prompts with less room than
        `max_new_tokens` are decoded with what room they have."""
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
        config = replace(self.config, max_new_tokens=room)
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
