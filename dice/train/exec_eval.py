"""Exec of a model in training: write one kernel for each problem of a small set, greedily, and verify it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dice.data.sources import read_problems
from dice.decode.generate import DecodeConfig, generate
from dice.errors import UserError
from dice.model.sdar import SDAR, SDARConfig
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import NO_KERNEL, PROMPTS, compact, extract_kernel
from dice.train.config import SFTConfig
from dice.train.world import World
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.options import resolve_backend, visible_gpus

# A decoding step reveals every token that is at least this likely. At most one such token in a hundred then differs
# from what one token a step would have written.
CONFIDENCE = 0.99


def exec_verdicts(
    model: SDAR,
    tokenizer: Tokenizer,
    problems: Sequence[Problem],
    *,
    backend: str = "auto",
    prompt: Callable[[Problem], str] = compact,
    max_new_tokens: int = 2048,
    max_active: int = 64,
    workers: int | None = None,
    devices: Sequence[int | str] | None = None,
) -> list[Verdict]:
    """Of one greedy answer to each of `problems` by the whole (unsharded) `model`, which is left as it was.

    `prompt` makes the question; `max_active` answers are decoded at once. A question that leaves no room for
    `max_new_tokens` in the model's context counts as answered without a kernel. `workers`, `devices`: the verifier's.
    Raises `BackendUnavailable` when this machine cannot run `backend`.
    """
    room = model.config.max_position_embeddings - max_new_tokens - model.config.block_size
    ids = [tokenizer.encode_chat([{"role": "user", "content": prompt(problem)}]) for problem in problems]
    asked = [index for index, one in enumerate(ids) if len(one) <= room]
    config = DecodeConfig(
        max_new_tokens=max_new_tokens, temperature=0.0, confidence_threshold=CONFIDENCE, max_active=max_active,
        stop_ids=tokenizer.stop_ids, vocab_limit=tokenizer.vocab_size,
    )  # fmt: skip
    traces = generate(model, [ids[index] for index in asked], config)
    model.unfuse()
    if model.lm_head.weight.is_cuda:
        torch.cuda.empty_cache()  # the kernels run on the same device, in processes of their own
    found = [extract_kernel(tokenizer.decode(trace.response_ids)) for trace in traces]
    kernels = {index: kernel for index, kernel in zip(asked, found, strict=True) if kernel is not None}
    verdicts, places = [NO_KERNEL] * len(problems), list(kernels)
    if kernels:
        pairs = [(problems[index], kernel) for index, kernel in kernels.items()]
        with Verifier(backend=backend, options=Options(timing=False), devices=devices) as verifier:
            for number, verdict in verifier.verify_many(pairs, workers):
                verdicts[places[number]] = verdict
    return verdicts


@dataclass(frozen=True, slots=True)
class ExecTrial:
    """The problems that a run writes kernels for now and then, and how."""

    problems: Sequence[Problem]
    tokenizer: Tokenizer
    prompt_form: str
    backend: str
    max_new_tokens: int
    max_active: int
    world: World

    @classmethod
    def read(
        cls, config: SFTConfig, tokenizer: Tokenizer, model: SDARConfig, prompt_form: str, world: World
    ) -> ExecTrial | None:
        """None without `config.exec_data`. Raises `UserError` where an answer would fill the model's whole context."""
        path, reach = config.exec_data, model.max_position_embeddings
        if path is None:
            return None
        if config.exec_max_new_tokens + model.block_size >= reach:
            raise UserError(f"exec_max_new_tokens {config.exec_max_new_tokens} leaves no prompt of {reach} positions.")
        backend = world.broadcast_from_leader(lambda: resolve_backend(config.exec_backend))
        problems = world.broadcast_from_leader(lambda: read_problems([path])[: config.exec_problems])
        return cls(problems, tokenizer, prompt_form, backend, config.exec_max_new_tokens, config.exec_batch, world)

    def run(self, model: SDAR) -> tuple[int, int]:
        """(right kernels, judged kernels) of `model`; each process writes and verifies its share."""
        world, workers, devices = self.world, None, None
        if world.size > 1:
            workers = max(1, len(os.sched_getaffinity(0)) // world.local_size)
            if self.backend == "cuda":
                devices = [visible_gpus()[world.local_rank]]
        verdicts = exec_verdicts(
            model, self.tokenizer, self.problems[world.rank :: world.size],
            backend=self.backend, prompt=PROMPTS[self.prompt_form],
            max_new_tokens=self.max_new_tokens, max_active=self.max_active, workers=workers, devices=devices,
        )  # fmt: skip
        about = [verdict.correct for verdict in verdicts if verdict.about_kernel]
        found = world.all_reduce_sum(torch.tensor([sum(about), len(about)], dtype=torch.float64))
        correct, judged = (int(value) for value in found.tolist())
        return correct, judged
