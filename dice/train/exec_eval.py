"""Exec of a model in training: write one kernel for each problem of a small set, greedily, and verify it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from dice.decode.generate import DecodeConfig, generate
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import NO_KERNEL, compact, extract_kernel
from dice.verdict import Verdict
from dice.verify import Options, Verifier

CONFIDENCE = 0.99  # reveal at once what is this likely: all but one in a hundred as one token a step would be


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
