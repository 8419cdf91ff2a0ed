"""The policy update is TraceRL's loss on exact traces: checked against slow float64 forwards, one per round."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rl_policies import (
    SMALL,
    assert_close,
    assert_same,
    gradients,
    layouts,
    log_probabilities_of,
    policy_of,
    slow_loss,
    weights_of,
)
from rl_traces import made_up_trace, random_prompt, sampled_traces
from training_helpers import MASK_ID, VOCAB, tiny_model

from dice.decode.generate import DecodeConfig, generate
from dice.model.sdar import SDAR
from dice.train.loss import Distribution, log_probabilities
from dice.train.rl.batch import even_parts
from dice.train.rl.policy import Policy
from dice.train.rl.replay import replay
from dice.train.world import World


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shrink": 2},
        {"shrink": 4},
        {"temperature": 0.7, "mismatch_cap": 1.5, "kl_coef": 0.5},
        {"reference": True, "kl_coef": 0.5},
        {"reference": True, "kl_coef": 0.5, "clip_ratio": 0.02},
    ],
    ids=str,
)
def test_gradients_equal_the_slow_reference(changes: dict[str, Any]) -> None:
    """Two updates of one call: in the second, ratios are not 1 and some are clipped."""
    changes = dict(changes)
    model, samples = tiny_model(), layouts()
    reference = tiny_model(seed=1) if changes.pop("reference", False) else None
    config = replace(SMALL, **changes)
    policy = policy_of(model, reference=copy.deepcopy(reference), **changes)
    found = gradients(policy, samples)
    assert len(found) == 2

    old = log_probabilities_of(model, samples, config)
    anchor = old if reference is None else log_probabilities_of(reference, samples, config)
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    scales = [weight for weight in model.parameters() if weight.ndim == 1]
    optimizer = torch.optim.AdamW([*matrices, *scales], lr=config.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    for number, part in enumerate((slice(0, 4), slice(4, 7))):
        optimizer.zero_grad()
        slow_loss(model, samples[part], old[part], anchor[part], config).backward()
        assert_close(found[number], [weight.grad for weight in model.parameters()])
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_grad)
        optimizer.step()
    assert_close(policy.weights.params, list(model.parameters()))


def test_statistics_are_those_of_the_slow_reference() -> None:
    model, samples = tiny_model(), layouts()
    policy = policy_of(model, minibatch=100)
    stats = policy.update(samples)
    old = [v for one in log_probabilities_of(model, samples, SMALL) for v in one]
    sampled = [v for trace, _ in samples for v in trace.logprobs[: trace.kept]]
    mismatch = sorted(abs(a - b) for a, b in zip(old, sampled, strict=True))
    assert (stats.samples, stats.skipped, stats.updates, stats.targets) == (7, 0, 1, len(old))
    assert stats.nll == pytest.approx(-sum(old) / len(old), rel=1e-6)
    assert stats.mismatch_mean == pytest.approx(sum(mismatch) / len(mismatch), rel=1e-6)
    assert (stats.mismatch_max, stats.kl, stats.clip_fraction) == (pytest.approx(mismatch[-1], rel=1e-6), 0.0, 0.0)
    expected = -sum(a * trace.kept / SMALL.max_new_tokens for trace, a in samples) / 7
    assert stats.loss == pytest.approx(expected, rel=1e-9), "at ratio 1 the loss is minus the mean advantage"


def test_second_minibatch_is_clipped() -> None:
    stats = policy_of(tiny_model(), lr=0.05).update(layouts())
    assert stats.updates == 2
    assert 0 < stats.clip_fraction < 1
    assert stats.ratio_max > 1.2
    assert stats.kl > 0


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_trainer_recomputes_the_probabilities_that_the_sampler_used(temperature: float) -> None:
    """The exactness claim: traces of the real sampler, several tokens a step, prompts of every length modulo 4."""
    model = tiny_model(dtype=torch.float32)
    prompts = [random_prompt(length, length) for length in (4, 5, 6, 7, 30, 30)]
    limit, ends = VOCAB - 2, frozenset(range(4, 8))
    traces = sampled_traces(
        model, prompts, temperature=temperature, vocab_limit=limit, stop_ids=ends, confidence_threshold=0.2
    )  # fmt: skip
    assert any(len(set(trace.steps)) < len(trace.steps) for trace in traces)
    assert any(trace.kept < len(trace.token_ids) for trace in traces)
    policy = policy_of(model, torch.float32, temperature=temperature, vocab_limit=limit, lr=1e-9)
    stats = policy.update([(trace, 1.0) for trace in traces])
    assert stats.targets == sum(trace.kept for trace in traces)
    assert stats.mismatch_max < 2e-5
    other = policy_of(model, torch.float32, temperature=temperature * 1.1, vocab_limit=limit, lr=1e-9)
    assert other.update([(trace, 1.0) for trace in traces]).mismatch_max > 1e-3


@pytest.mark.parametrize("micro_rows", [1, 2, 3])
def test_gradient_does_not_depend_on_the_micro_batch(micro_rows: int) -> None:
    model, samples = tiny_model(), layouts()
    whole = gradients(policy_of(model, minibatch=7, row_tokens=96, micro_rows=8), samples)[0]
    parts = gradients(policy_of(model, minibatch=7, row_tokens=96, micro_rows=micro_rows), samples)[0]
    for one, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_short_rows_of_dense_masks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU rows are as short as the longest response allows; the update is that of long ones."""
    model, samples = tiny_model(), layouts()
    long = gradients(policy_of(model, minibatch=7), samples)[0]
    monkeypatch.setattr("dice.train.rl.batch.DENSE_ROW", 17)
    policy = policy_of(model, minibatch=7)
    short = gradients(policy, samples)[0]
    for one, other in zip(short, long, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert policy.update(samples).rows > 2


def test_loss_divided_twice_by_accumulation() -> None:
    """Clipping must see the norm of the whole gradient: the same for one micro-batch and for four."""
    model, samples = tiny_model(), layouts()
    stats = [policy_of(model, minibatch=7, row_tokens=96, micro_rows=n).update(samples) for n in (1, 8)]
    assert stats[0].rows >= 4
    assert stats[0].grad_norm == pytest.approx(stats[1].grad_norm, rel=1e-9)
    assert stats[0].loss == pytest.approx(stats[1].loss, rel=1e-9)


def test_optimiser_state_lost_between_calls() -> None:
    """Two calls equal two steps of one AdamW: the second update knows the first one's moments."""
    model, samples = tiny_model(), layouts()[:4]
    policy = policy_of(model)
    policy.update(samples)
    policy.update(samples)
    slow = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(slow.parameters(), lr=SMALL.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    for _ in range(2):
        old = log_probabilities_of(slow, samples, SMALL)
        optimizer.zero_grad()
        slow_loss(slow, samples, old, old, SMALL).backward()
        torch.nn.utils.clip_grad_norm_(slow.parameters(), SMALL.clip_grad)
        optimizer.step()
    assert_close(policy.weights.params, list(slow.parameters()))


def test_leftover_minibatch_dropped() -> None:
    """Every sample is learned from, whatever the minibatch, and no minibatch is a small remainder."""
    samples = layouts()
    for minibatch in (1, 2, 3, 4, 5, 6, 7, 100):
        stats = policy_of(tiny_model(), minibatch=minibatch, lr=1e-9).update(samples)
        assert stats.targets == sum(trace.kept for trace, _ in samples)
        assert stats.updates == math.ceil(7 / minibatch)
    assert [part.stop - part.start for part in even_parts([1] * 7, 3)] == [2, 2, 3]


def test_a_minibatch_may_count_rounds_as_the_released_code_does() -> None:
    """Its row is one round of one response, all of whose blocks go on at once; 256 rows are an update."""
    samples = layouts()
    rounds = [replay(trace, 4, MASK_ID).rounds for trace, _ in samples]
    slow = []
    for trace, _ in samples:
        steps, start = [-1] * len(trace.prompt_ids) + list(trace.steps), len(trace.prompt_ids)
        kept = set(range(start, start + trace.kept))
        blocks = [range(first, first + 4) for first in range(0, len(steps), 4)]
        orders = [sorted({steps[i] for i in block if i >= start}) for block in blocks]
        slow.append(
            max(
                orders[n].index(steps[i]) + 1 for n, block in enumerate(blocks) for i in block if i in kept
            )
        )  # fmt: skip
    assert rounds == slow and len(set(rounds)) > 1
    for limit in (1, 5, 8, 100):
        stats = policy_of(tiny_model(), minibatch=limit, minibatch_unit="rounds", lr=1e-9).update(samples)
        assert abs(stats.updates - min(7, math.ceil(sum(rounds) / limit))) <= 1, limit
        assert stats.targets == sum(trace.kept for trace, _ in samples)
    parts = even_parts([4, 4, 1, 1, 1, 1, 4], 8)
    assert [sum([4, 4, 1, 1, 1, 1, 4][part]) for part in parts] == [8, 8]
    assert even_parts([9, 1], 3) == [slice(0, 1), slice(1, 2)], "what is larger than a part is one"


def test_a_fresh_optimizer_ends_each_step_as_the_released_code_saves_it() -> None:
    """Weights in bfloat16, no moments; a resumed run goes on as one that never stopped."""
    model, samples = tiny_model(dtype=torch.float32), layouts()
    kept, fresh = (policy_of(model, torch.float32, fresh_optimizer=on) for on in (False, True))
    kept.update(samples)
    fresh.update(samples)
    for ours, rounded in zip(weights_of(kept), weights_of(fresh), strict=True):
        assert torch.equal(ours.bfloat16().float(), rounded)
    moments = {name: tensor for name, tensor in fresh.tensors().items() if name.startswith("exp_avg")}
    assert moments and not any(tensor.any() for tensor in moments.values())
    saved = {name: tensor.clone() for name, tensor in fresh.tensors().items()}
    resumed = policy_of(model, torch.float32, fresh_optimizer=True)
    resumed.load(saved)
    assert fresh.update(samples).grad_norm == resumed.update(samples).grad_norm
    assert_same(fresh, resumed)


def test_rewards_misaligned_after_filtering() -> None:
    """Leaving out the samples without advantage changes nothing for the others, wherever those lay."""
    model, samples = tiny_model(), layouts()
    silent = [(trace, 0.0) for trace, _ in layouts()]
    mixed = [silent[0], samples[1], silent[2], silent[3], samples[4], samples[5]]
    left = [samples[1], samples[4], samples[5]]
    with_silent = policy_of(model, minibatch=10, kl_coef=0.0)
    found = gradients(with_silent, mixed)[0]
    alone = gradients(policy_of(model, minibatch=10, kl_coef=0.0), left)[0]
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one * 2, other, rtol=1e-9, atol=1e-12)  # 6 responses share the mean, not 3


def test_samples_without_advantage_add_their_penalty_only() -> None:
    model, reference, silent = tiny_model(), tiny_model(seed=1), [(trace, 0.0) for trace, _ in layouts()[:3]]
    stats = policy_of(model, reference=reference).update(silent)
    assert (stats.skipped, stats.updates) == (0, 1)
    assert stats.grad_norm > 0
    assert stats.loss == pytest.approx(SMALL.kl_coef * stats.kl * stats.targets / SMALL.max_new_tokens / 3, rel=1e-9)
    samples = [*layouts()[:2], silent[2]]
    assert policy_of(model, kl_coef=0.0).update(samples).skipped == 1


def test_tail_after_the_end_is_trained() -> None:
    """What the sampler put after the stop id has no gradient of its own: other last tokens, same targets and loss."""
    model, trace = tiny_model(), made_up_trace(random_prompt(8), 3, seed=2, together=0.0)
    steps = (*trace.steps[:-4], 8, 9, 10, 11)
    trace = replace(trace, kept=trace.kept - 2, steps=steps)
    other = replace(trace, token_ids=(*trace.token_ids[:-2], 11, 12))
    first, second = (gradients(policy_of(model), [(one, 1.0)])[0] for one in (trace, other))
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)


def test_reward_of_one_response_reaches_another() -> None:
    """Three responses to one prompt in one row, two without advantage: the gradient is the first one's alone."""
    model = tiny_model()
    group = [made_up_trace(random_prompt(9), 3, seed=n) for n in range(3)]
    together = gradients(policy_of(model, kl_coef=0.0), [(group[0], 1.0), (group[1], 1e-30), (group[2], 1e-30)])[0]
    alone = gradients(policy_of(model, kl_coef=0.0), [(group[0], 1.0)])[0]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one * 3, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resume_is_bit_identical(dtype: torch.dtype) -> None:
    through, samples = policy_of(tiny_model(dtype=torch.float32), dtype), layouts()
    start = {name: tensor.clone() for name, tensor in through.tensors().items()}
    for calls in (0, 1):  # a checkpoint before any update, and one after
        resumed = policy_of(tiny_model(dtype=torch.float32, seed=9), dtype)
        resumed.load(through.tensors())
        assert resumed.updates == 2 * calls
        stats = through.update(samples)
        assert resumed.update(samples) == stats
        assert_same(resumed, through)
        if calls == 0:
            first = stats
    resumed.load(start)
    assert resumed.update(samples) == first, "back to before any update: no moments are left"


def test_small_updates_lost_in_bfloat16() -> None:
    """Steps far below a bfloat16's precision add up in the master weights, and survive a checkpoint."""
    policy, samples = policy_of(tiny_model(dtype=torch.float32), torch.bfloat16, lr=1e-5), layouts()
    before, copies = weights_of(policy), [weight.clone() for weight in policy.sampler.parameters()]
    for _ in range(3):
        policy.update(samples)
    moved = torch.cat([(a - b).abs().flatten() for a, b in zip(before, weights_of(policy), strict=True)])
    assert 1e-5 < float(moved.median()) < 1e-4
    pairs = zip(copies, policy.sampler.parameters(), strict=True)
    assert float(torch.cat([(a == b).flatten().float() for a, b in pairs]).mean()) > 0.9
    resumed = policy_of(tiny_model(dtype=torch.float32), torch.bfloat16)
    resumed.load(policy.tensors())
    assert_same(resumed, policy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoding_uses_stale_weights_after_an_update(dtype: torch.dtype) -> None:
    """Decoding keeps snapshots of what it fuses. After an update the sampler writes what a fresh copy would."""
    model = tiny_model(dtype=torch.float32)
    policy = policy_of(model, dtype, lr=0.05)
    config = DecodeConfig(max_new_tokens=24, temperature=0.0, seed=0)
    prompt = random_prompt(9)
    before = generate(policy.sampler, [prompt], config)[0]
    policy.update([(trace, 1.0) for trace, _ in layouts()])
    fresh = SDAR(policy.sampler.config).to(dtype)
    fresh.load_state_dict(policy.sampler.state_dict())
    window = torch.tensor([[*prompt[:8], *[MASK_ID] * 8]])
    positions = [0]
    with torch.inference_mode():  # without another `fuse`
        ours = policy.sampler.logits(policy.sampler.step(window, positions, policy.sampler.new_cache(1, 32), 4))
        theirs = fresh.logits(fresh.step(window, positions, fresh.new_cache(1, 32), 4))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    after = generate(policy.sampler, [prompt], config)[0]
    assert after == generate(fresh, [prompt], config)[0]
    assert after != before


def test_learning_raises_the_probability_of_what_was_rewarded() -> None:
    model = tiny_model(dtype=torch.float32)
    samples = [(trace, 1.0 if n % 2 else -1.0) for n, (trace, _) in enumerate(layouts())]
    policy = policy_of(model, torch.float32, lr=3e-3, minibatch=10)
    for _ in range(10):
        policy.update(samples)
    for (_, advantage), was, now in zip(
        samples,
        log_probabilities_of(model, samples, SMALL),
        log_probabilities_of(policy.sampler, samples, SMALL),
        strict=True,
    ):
        assert (sum(now) - sum(was)) * advantage > 0


def test_reward_rises_on_traces_of_its_own_sampler() -> None:
    """The whole cycle, on-policy: sample, reward even token ids, learn. The sampler always has the newest weights."""
    policy = policy_of(tiny_model(dtype=torch.float32), torch.float32, lr=5e-3, minibatch=32)
    prompts = [random_prompt(length, length) for length in (5, 8) for _ in range(16)]
    means = []
    for step in range(12):
        traces = sampled_traces(policy.sampler, prompts, seed=step, max_new_tokens=12)
        rewards = [sum(token % 2 == 0 for token in trace.response_ids) / trace.kept for trace in traces]
        means.append(sum(rewards) / len(rewards))
        stats = policy.update([(trace, reward - means[-1]) for trace, reward in zip(traces, rewards, strict=True)])
        assert stats.mismatch_max < 1e-4
    assert means[0] < 0.65
    assert means[-1] > 0.85


def test_bf16_follows_float32() -> None:
    model, samples = tiny_model(dtype=torch.float32), layouts()
    first, second = (
        gradients(policy_of(model, dtype, minibatch=7), samples)[0] for dtype in (torch.float32, torch.bfloat16)
    )
    ours, theirs = (torch.cat([part.flatten() for part in found]) for found in (second, first))
    assert ours.dtype == torch.float32
    assert float((ours - theirs).norm()) < 0.1 * float(theirs.norm())


def test_forbidden_tokens_have_no_probability_and_no_gradient() -> None:
    torch.manual_seed(0)
    hidden, head, labels = torch.randn(6, 5), torch.randn(11, 5), torch.randint(3, 8, (6,))
    found = log_probabilities(hidden, head, labels, Distribution(0.5, mask_token_id=2, vocab_limit=9))
    kept = [0, 1, *range(3, 9)]
    logits = hidden @ head[kept].T / 0.5
    expected = logits.log_softmax(-1).gather(-1, (labels - 1)[:, None])[:, 0]
    torch.testing.assert_close(found, expected)


@pytest.mark.gpu
def test_compiled_flex_attention_updates_as_the_dense_mask_does() -> None:
    """bf16 on the GPU: the compiled sparse engine passes its check, serves update, decoding, update, and its
    probabilities are the sampler's up to bf16 rounding."""
    said: list[str] = []
    found = []
    for attention, compiled in (("auto", True), ("dense", False)):
        config = replace(SMALL, row_tokens=512, attention=attention, compile=compiled, lr=1e-4)
        model = tiny_model(dtype=torch.float32)
        policy = Policy(model, config, world=World(torch.device("cuda")), compute_dtype=torch.bfloat16, say=said.append)
        found.append([policy.update(layouts())])
        own = sampled_traces(policy.sampler, [random_prompt(length, length) for length in (5, 6, 7, 40)])
        found[-1].append(policy.update([(trace, 1.0) for trace in own]))
        assert found[-1][1].mismatch_mean < 0.05
        found[-1].append(policy.update(layouts()))
    assert all(line.startswith("Plan: ") for line in said)  # that is, no engine failed its check
    for sparse, dense in zip(found[0][::2], found[1][::2], strict=True):
        assert sparse.loss == pytest.approx(dense.loss, rel=0.05, abs=1e-2)
        assert sparse.grad_norm == pytest.approx(dense.grad_norm, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_take_no_memory_while_the_policy_samples(dtype: torch.dtype) -> None:
    policy, other = (policy_of(tiny_model(dtype=torch.float32), dtype) for _ in range(2))
    for one in (policy, other):
        one.update(layouts())
    assert policy.sampler is not None and all(weight.grad is None for weight in policy.weights.params)
    for one in (policy, other):
        one.update(layouts())
    assert_same(policy, other)
