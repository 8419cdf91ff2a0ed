"""Log-probabilities before an update: from the traces or computed, and samples that come one by one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from rl_policies import (
    SMALL,
    assert_same,
    layouts,
    log_probabilities_of,
    policy_of,
)
from rl_traces import random_prompt, sampled_traces
from torch import Tensor
from training_helpers import tiny_model

from dice.model.sdar import SDAR
from dice.train.rl.policy import Policy, ScoredTrace


def real_samples(model: SDAR) -> list[ScoredTrace]:
    prompts = [random_prompt(length, length) for length in (4, 5, 6, 7, 30, 9, 11, 13)]
    traces = sampled_traces(model, prompts, temperature=1.0, confidence_threshold=0.2)
    return [(trace, (-1.0) ** n) for n, trace in enumerate(traces)]


def passes(policy: Policy) -> list[int]:
    """Will count the forward passes that only score."""
    counted = [0]
    score = policy._score

    def count(*given: Any) -> Tensor:
        counted[0] += 1
        return score(*given)

    policy._score = count  # type: ignore[method-assign]
    return counted


def test_old_probabilities_of_exact_traces_need_no_second_pass() -> None:
    """Two updates from the sampler's own probabilities are those from scored ones, but for rounding."""
    model = tiny_model(dtype=torch.float32)
    samples = real_samples(model)
    scoring, trusting = (
        policy_of(model, torch.float32, old_logprobs=how, lr=1e-3, adam_eps=1e-3) for how in ("score", "trace")
    )
    counts = [passes(scoring), passes(trusting)]
    stats = [policy.update(samples) for policy in (scoring, trusting)]
    assert stats[0].updates == stats[1].updates == 2
    assert counts == [[2], [1]] and stats[1].mismatch_max < 2e-5
    assert stats[0].work == stats[1].work > 0
    for ours, theirs in zip(trusting.weights.params, scoring.weights.params, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    many = policy_of(model, torch.float32, old_logprobs="trace", lr=1e-3, minibatch=1)
    count = passes(many)
    many.update(samples)
    assert many.updates == 8 and count == [1], "the first rows alone"


@pytest.mark.parametrize("kl_coef", [0.01, 0.0])
def test_samples_may_come_one_by_one_and_change_nothing(kl_coef: float) -> None:
    """An update is made once half of another one's samples are known, however late the rest comes."""
    model = tiny_model(dtype=torch.float32)
    samples = [(trace, 0.0 if n in (2, 5) else advantage) for n, (trace, advantage) in enumerate(real_samples(model))]
    changes = {"old_logprobs": "trace", "minibatch": 3, "kl_coef": kl_coef}
    whole, meanwhile = (policy_of(model, torch.float32, **changes) for _ in "ab")
    seen: list[int] = []

    def coming() -> Iterator[ScoredTrace]:
        for sample in samples:
            seen.append(meanwhile.updates)
            yield sample

    assert not meanwhile.must_score([trace for trace, _ in samples])
    assert meanwhile.update_meanwhile(coming()) == whole.update(samples)
    assert seen == ([0] * 5 + [1] * 3 if kl_coef else [0] * 7 + [1])
    assert_same(meanwhile, whole)
    assert meanwhile.update_meanwhile(iter([])) is None and meanwhile.updates == whole.updates


def test_scores_are_the_slow_references_and_serve_the_update() -> None:
    """Responses of every layout, cut answers among them; what was scored before is not scored again."""
    model, samples = tiny_model(), layouts()
    traces = [trace for trace, _ in samples]
    policy, other = policy_of(model), policy_of(model)
    assert policy.must_score(traces) and not policy.must_score(traces[:4]), "a single update's are its own"
    slow = log_probabilities_of(model, samples, SMALL)
    for trace, scores, expected in zip(traces, policy.score(traces), slow, strict=True):
        assert scores.tolist() == pytest.approx([*expected, *[0.0] * (len(trace.token_ids) - trace.kept)], abs=1e-5)
    old = [scores for part in (traces[:3], traces[3:]) for scores in policy.score(part)]
    counts = [passes(policy), passes(other)]
    stats = [policy.update(samples, old), other.update(samples)]
    assert counts == [[0], [1]]
    assert stats[0].mismatch_mean == pytest.approx(stats[1].mismatch_mean, rel=1e-5)
    assert stats[0].clip_fraction == stats[1].clip_fraction > 0
    for ours, theirs in zip(policy.weights.params, other.weights.params, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    nothing = replace(traces[0], kept=0)
    assert not policy.score([nothing])[0].any()


def test_scores_are_asked_for_where_traces_disagree() -> None:
    model = tiny_model(dtype=torch.float32)
    traces = [trace for trace, _ in real_samples(model)]
    said: list[str] = []
    policy = Policy(
        copy.deepcopy(model), replace(SMALL, old_logprobs="trace"), compute_dtype=torch.float32, say=said.append
    )
    assert not policy.must_score(traces) and not said
    other = [replace(trace, logprobs=tuple(value - 0.01 for value in trace.logprobs)) for trace in traces]
    assert policy.must_score(other) and "scored again" in said[0]


def test_traces_of_another_policy_are_scored_again() -> None:
    model = tiny_model(dtype=torch.float32)
    samples = [
        (replace(trace, logprobs=tuple(value - 0.01 for value in trace.logprobs)), advantage)
        for trace, advantage in real_samples(model)
    ]
    said: list[str] = []
    found = []
    for how in ("score", "trace"):
        config = replace(SMALL, old_logprobs=how, lr=1e-3)  # type: ignore[arg-type]
        policy = Policy(copy.deepcopy(model), config, compute_dtype=torch.float32, say=said.append)
        policy.update(samples)
        found.append(policy)
    assert_same(*found)
    assert len(said) == 1 and "differ from the trainer's by 0.01 on average" in said[0]
