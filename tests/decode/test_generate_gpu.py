"""Decoding on a GPU keeps the promises that the CPU tests check in full."""

from __future__ import annotations

import pytest
import torch
from decoding_helpers import lively_model, prompt_of

from dice.decode.generate import DecodeConfig, generate

pytestmark = pytest.mark.gpu


def test_a_gpu_trace_replays_on_the_uncached_model() -> None:
    model = lively_model().cuda()
    prompts = [prompt_of(length, seed=length) for length in (6, 17, 3)]
    traces = generate(model, prompts, DecodeConfig(max_new_tokens=30, seed=1, stop_ids=frozenset()))
    for trace in traces:
        frames = [[*trace.prompt_ids, *frame] for frame in trace.frames()]
        for step, frame in enumerate(frames[:-1]):
            with torch.no_grad():
                logits = model(torch.tensor([frame]).cuda())[0].float()
            logits[:, trace.mask_token_id] = float("-inf")
            logprobs = logits.log_softmax(-1)
            for index in (i for i, s in enumerate(trace.steps) if s == step):
                expected = logprobs[len(trace.prompt_ids) + index, trace.token_ids[index]].item()
                assert trace.logprobs[index] == pytest.approx(expected, abs=2e-2)


def test_bfloat16_decodes() -> None:
    model = lively_model().to("cuda", torch.bfloat16)
    (trace,) = generate(model, [prompt_of(6)], DecodeConfig(max_new_tokens=30, seed=1, temperature=0.8, top_p=0.9))
    assert max(trace.logprobs) <= 0 and len(trace.response_ids) >= 1
