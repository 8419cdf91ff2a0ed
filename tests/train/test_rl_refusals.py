"""What cannot be learned from is said in a sentence, and leaves the weights as they were."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rl_policies import layouts, policy_of, weights_of
from rl_traces import made_up_trace, random_prompt
from training_helpers import tiny_model

import dice.train.rl.policy
from dice.decode.trace import Trace
from dice.errors import MachineError, UserError
from dice.train.loss import TokenScores, score_tokens
from dice.train.session import TrainingError


@pytest.mark.parametrize("advantage", [math.nan, math.inf])
def test_advantage_that_is_not_a_number_is_refused(advantage: float) -> None:
    policy, samples = policy_of(tiny_model()), layouts()
    before = weights_of(policy)
    with pytest.raises(TrainingError, match="advantage is not a finite number"):
        policy.update([*samples, (samples[0][0], advantage)])
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(policy), strict=True))


def test_gradient_that_is_not_a_number_leaves_the_weights() -> None:
    policy, samples = policy_of(tiny_model(dtype=torch.float32), torch.float32), layouts()
    before = weights_of(policy)
    with pytest.raises(TrainingError, match="Update 1 was not made.*not a finite number"):
        policy.update([(trace, a * 1e38) for trace, a in samples])
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(policy), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_that_runs_out_leaves_the_weights(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model, samples = tiny_model(dtype=torch.float32), layouts()
    policy = policy_of(model, dtype, row_tokens=96, minibatch=7)
    before, calls = weights_of(policy), []

    def failing(*given: Any) -> TokenScores:
        calls.append(None)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("no room")
        return score_tokens(*given)

    with monkeypatch.context() as patched:
        patched.setattr(dice.train.rl.policy, "score_tokens", failing)
        with pytest.raises(MachineError, match="memory ran out with micro_rows 1 of row_tokens 96; lower either"):
            policy.update(samples)
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(policy), strict=True))
    undisturbed = policy_of(model, dtype, row_tokens=96, minibatch=7)
    assert policy.update(samples) == undisturbed.update(samples), "nothing of the failed update is left"


@pytest.mark.parametrize("position", [0, 6])
def test_impossible_token_is_refused_before_any_update(position: int) -> None:
    """A trace of a sampler with another vocabulary, in the first or in a later minibatch."""
    policy, samples = policy_of(tiny_model(), vocab_limit=60), layouts()
    samples = [(clipped(trace, 59), a) for trace, a in samples]
    foreign = samples[position][0]
    samples[position] = (replace(foreign, token_ids=(62, *foreign.token_ids[1:])), 1.0)
    before = weights_of(policy)
    with pytest.raises(TrainingError, match="impossible under the policy"):
        policy.update(samples)
    assert all(torch.equal(a, b) for a, b in zip(before, weights_of(policy), strict=True))


def clipped(trace: Trace, limit: int) -> Trace:
    return replace(trace, token_ids=tuple(min(token, limit) for token in trace.token_ids))


def test_nothing_to_learn_from_is_said() -> None:
    silent = [(trace, 0.0) for trace, _ in layouts()]
    for samples, changes in (([], {}), (silent, {"kl_coef": 0.0})):
        with pytest.raises(TrainingError, match="nothing to learn from"):
            policy_of(tiny_model(), **changes).update(samples)


def test_trace_longer_than_the_model_is_refused() -> None:
    trace = made_up_trace(random_prompt(500), 4)
    with pytest.raises(TrainingError, match="516 tokens, the model 512 positions"):
        policy_of(tiny_model(), row_tokens=1024).update([(trace, 1.0)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": 0.0}, "lr must be positive"),
        ({"shrink": 0}, "shrink must be positive"),
        ({"kl_coef": -0.1}, "kl_coef must not be negative"),
        ({"mismatch_cap": 0.0}, "mismatch_cap must be positive or None"),
    ],
)
def test_unusable_settings_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        policy_of(tiny_model(), **change)
