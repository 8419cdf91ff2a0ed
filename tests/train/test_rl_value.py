"""The optional value model: its estimates, its own loss, and what it takes from advantages."""

from __future__ import annotations

import copy
from typing import Any

import torch
from rl_policies import (
    SMALL,
    assert_close,
    assert_same,
    gradients,
    layouts,
    log_probabilities_of,
    policy_of,
    recorded,
    slow_loss,
)
from rl_traces import made_up_trace, random_prompt, slow_values
from torch import Tensor
from training_helpers import tiny_model

from dice.model.sdar import SDAR
from dice.train.rl.policy import Policy


def with_value_model(model: SDAR, seed: int | None = None, **changes: Any) -> tuple[Policy, SDAR, Tensor]:
    """A policy with a value model, whose body and head are returned too; with a seed, the head is not zero."""
    policy = policy_of(model, value_lr=1e-2, minibatch=7, **changes)
    assert policy.value is not None
    critic = policy.value.weights.model
    if seed is not None:
        torch.nn.init.normal_(critic.lm_head.weight, generator=torch.Generator().manual_seed(seed))
    return policy, copy.deepcopy(critic), critic.lm_head.weight.detach()[0].clone()


def test_value_model_gradients_equal_the_slow_reference() -> None:
    """The policy's advantages are less the mean value of their round; the value model regresses on the advantages."""
    model, samples = tiny_model(), layouts()
    policy, critic, head = with_value_model(model, seed=4)
    theirs = recorded(policy.value.weights)
    ours = gradients(policy, samples)[0]

    head.requires_grad_()
    values = [slow_values(critic, head, trace) for trace, _ in samples]
    old = log_probabilities_of(model, samples, SMALL)
    slow_loss(model, samples, old, old, SMALL, [means for _, means in values]).backward()
    assert_close(ours, [weight.grad for weight in model.parameters()])
    squares = [
        0.5 * (value - advantage).square() / SMALL.max_new_tokens / len(samples)
        for (_, advantage), (tokens, _) in zip(samples, values, strict=True)
        for value in tokens
    ]
    sum(squares).backward()
    body = [weight.grad for name, weight in critic.named_parameters() if name != "lm_head.weight"]
    assert_close(theirs[0], [*body, head.grad[None]])


def test_value_model_starts_as_none() -> None:
    """Its head is zero: the first update is that without one, the second is not."""
    model, samples = tiny_model(), layouts()
    policy, without = with_value_model(model)[0], policy_of(model, minibatch=7)
    for same in (True, False):
        ours, theirs = gradients(policy, samples)[0], gradients(without, samples)[0]
        close = all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(ours, theirs, strict=True))
        assert close == same


def test_value_model_learns_and_resumes() -> None:
    model, samples = tiny_model(dtype=torch.float32), layouts()
    policy = policy_of(model, torch.float32, value_lr=3e-3, value_clip=10.0, lr=1e-6)
    losses = [policy.update(samples).value_loss for _ in range(15)]
    assert losses[-1] < 0.2 * losses[0]
    resumed = policy_of(model, torch.float32, value_lr=3e-3, value_clip=10.0, lr=1e-6)
    resumed.load(policy.tensors())
    assert resumed.update(samples) == policy.update(samples)
    assert_same(resumed, policy)
    assert policy_of(model).update(samples).value_loss is None


def test_value_model_gains_nothing_beyond_its_clip() -> None:
    """In the second minibatch of a call, values that have moved further than `value_clip` towards the return stay."""
    model = tiny_model()
    samples = [(made_up_trace(random_prompt(8), 3, seed=1), 5.0)] * 2
    policy = policy_of(model, value_lr=0.05, value_clip=1e-6, minibatch=1)
    found = recorded(policy.value.weights)
    policy.update(samples)
    first, second = (sum(float(part.square().sum()) for part in update) for update in found)
    assert first > second == 0.0
