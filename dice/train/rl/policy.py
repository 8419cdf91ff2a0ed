"""The policy update of TraceRL on exact traces: samples in, changed weights and statistics out.

Per update, with r_i the probability ratio of token i to the policy before the first update, A the advantage of its
response, R the number of responses and n the constant `max_new_tokens`:

    loss = (1 / R) * sum over responses (1 / n) * sum over its tokens i of [-min(r_i A, clip(r_i) A) + beta * KL_i]

The published code divides by the number of padded rows, one per round of denoising, and by their length instead: that
differs by a common factor, which Adam ignores.

Everything is computed at the round of denoising in which the sampler revealed the token, from what it then saw.

Several processes share the weights (FSDP2) and deal each minibatch's rows among them; the update is that of one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from dice.decode.trace import Trace
from dice.errors import MachineError, UserError
from dice.model.sdar import SDAR
from dice.train.blocks import shard
from dice.train.engine import Attention, Engine, pick_engine
from dice.train.loss import Distribution, TokenLoss, log_probabilities, score_tokens
from dice.train.plan.choose import choose_recompute
from dice.train.plan.memory import BESIDE_KERNELS
from dice.train.rl.batch import Micro, Minibatch, minibatch, parts
from dice.train.rl.objective import token_terms
from dice.train.rl.replay import Floats, Replay, replay
from dice.train.rl.stats import Step, UpdateStats, summarize
from dice.train.session import TrainingError
from dice.train.weights import Weights
from dice.train.world import World

ScoredTrace = tuple[Trace, float]
"""A trace and its advantage, the same for all of its tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyConfig:
    """How to learn from samples. AdamW, clipping and KL penalty are by default the paper's (A.4.2) and its code's; what
    else differs from them, by recipe, is listed in docs/recipes.md."""

    lr: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    moments: Literal["float32", "bfloat16"] = "float32"
    """How AdamW's moments are kept; bfloat16, rounded at random, takes half the memory."""
    sharding: Literal["all", "host"] = "all"
    """all: the weights are split over all processes. host: over those of each host, which then has a copy of its own
    (HSDP): less goes from host to host, and each GPU holds more."""
    clip_grad: float = 1.0

    clip_ratio: float = 0.2
    kl_coef: float = 0.01
    """Weight of the KL penalty; 0: none."""
    max_new_tokens: int = 4096
    """The sampler's; every response's sum over tokens is divided by it, so that all tokens weigh the same."""

    shrink: int = 1
    """Denoising rounds of a block that are replayed as one; above 1, probabilities are no longer the sampler's."""
    temperature: float = 1.0
    """The sampler's."""
    vocab_limit: int | None = None
    """The sampler's: token ids from here on are never drawn."""
    mismatch_cap: float | None = None
    """Weigh each token with min(trainer's / sampler's probability, this), both before the first update: the correction
    for responses that are one update old (staleness 1). None: no correction."""

    old_logprobs: Literal["score", "trace"] = "score"
    """Where the log-probabilities before the first update come from, in a step of several: from a forward pass over all
    samples (score), or from the traces, whose tokens were recorded with them (trace). The traces are tried on some
    rows first, and where they are further from the trainer's than rounding explains, everything is scored."""
    minibatch: int = 64
    """Responses per optimiser update. The last two are of about equal size, so that none is a small remainder."""
    minibatch_unit: Literal["responses", "rounds"] = "responses"
    """rounds: `minibatch` counts rounds of denoising instead, of which a response has up to as many as a block has
    tokens. They are the rows that the released code counts, 256 an update."""
    fresh_optimizer: bool = False
    """Every step ends as in the released code, which starts its trainer anew from what it saved: weights rounded to
    bfloat16, AdamW's moments forgotten."""
    row_tokens: int = 8192
    """Length of a packed row; it must hold the longest response with its prompt and all its rounds."""
    micro_rows: int = 1
    """Rows run at once; the split does not change the result."""
    attention: Attention = "auto"
    compile: bool | None = None
    """torch.compile the model; default: on CUDA."""
    activation_checkpointing: Literal["auto", "none", "ffn", "block"] = "none"
    """What is computed again in the backward pass instead of being kept: nothing, the feed-forward half of each block
    (less memory, a fifth more work), or the whole block (least memory, a third more work). auto: on a GPU as little as
    its memory asks for, by the plan that `dice plan` prints."""
    recompute_layers: int | None = None
    """Only in this many blocks, the first ones; default: in all, and auto chooses."""

    def check(self) -> PolicyConfig:
        """Return self, or raise `UserError` naming the first setting that cannot work."""
        whole = ("max_new_tokens", "shrink", "minibatch", "row_tokens", "micro_rows")
        for name in ("lr", "clip_grad", "clip_ratio", "temperature", *whole):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be positive, not {getattr(self, name)}.")
        if self.kl_coef < 0:
            raise UserError(f"kl_coef must not be negative, but is {self.kl_coef}.")
        if self.mismatch_cap is not None and not self.mismatch_cap > 0:
            raise UserError(f"mismatch_cap must be positive or None, not {self.mismatch_cap}.")
        if self.old_logprobs == "trace" and self.shrink > 1:
            raise UserError("old_logprobs trace goes with shrink 1: with joined rounds, others are asked for.")
        return self


@dataclass(frozen=True, slots=True)
class _Sample:
    """A response and its advantage; without a `replay` it is not learned from, and only counts in the mean."""

    trace: Trace
    advantage: float
    replay: Replay | None


class Policy:
    """The model in training: float32 master weights, AdamW's moments, and the copy that samples.

    `reference`: a frozen model for the KL penalty; without one the penalty is against the policy at the start of each
    `update` call, as published. Takes both models over: moves, casts and, in a `world` of several processes, shards
    them. Those must then construct, use and call everything here together, with equal arguments.
    Raises `UserError` for a model that does not decode by block diffusion.
    """

    def __init__(
        self,
        model: SDAR,
        config: PolicyConfig,
        *,
        reference: SDAR | None = None,
        world: World | None = None,
        compute_dtype: torch.dtype = torch.float32,
        say: Callable[[str], None] = print,
    ) -> None:
        for one in (model, reference):
            if one is not None and one.config.traits.kind != "block_diffusion":
                raise UserError(f"The policy is trained on block-diffusion traces; {one.config.family} has none.")
        self.config, self.say = config.check(), say
        self.world = world or World(torch.device("cpu"))
        self.device = self.world.device
        wide = torch.float64 if compute_dtype == torch.float64 else torch.float32
        model = model.to(device=self.device, dtype=wide)
        by_host = config.sharding == "host"
        shard(model, self.world, compute_dtype, reshard=True, by_host=by_host)
        self.weights = Weights(model, config, compute_dtype)
        self.model, self.compute_dtype = self.weights.model, compute_dtype
        self.reference = None
        if reference is not None and config.kl_coef:
            self.reference = reference.to(device=self.device, dtype=compute_dtype).requires_grad_(False)
            shard(self.reference, self.world, compute_dtype, reshard=True, by_host=by_host)
        self.block_size, self.mask_id = model.config.block_size, model.config.mask_token_id
        self.distribution = Distribution(config.temperature, self.mask_id, config.vocab_limit)
        self.updates = 0
        self._engine: Engine | None = None
        self._sampler: SDAR | None = None

    @property
    def sampler(self) -> SDAR:
        """The model to decode with, whole; it always has the newest weights. Do not decode while `update` runs."""
        if self._sampler is None:
            self.weights.release_gradients()
            torch.cuda.empty_cache()  # what an update held is for decoding, and for the kernels verified meanwhile
            self._sampler = self.weights.whole()
        return self._sampler

    def must_score(self, traces: Sequence[Trace]) -> bool:
        """Whether `update` will compute log-probabilities of samples like these with the weights as they are now.

        Not where one optimiser update is all, whose own they are, nor where those in the traces are to be taken and are
        the trainer's but for rounding, by the first rows.
        """
        kept = [trace for trace in traces if trace.kept]
        by_rounds = self.config.minibatch_unit == "rounds"  # which a replay alone tells
        total = sum(self._replay(trace).rounds for trace in kept) if by_rounds else len(kept)
        if total <= self.config.minibatch or len(kept) == 1:
            return False
        if self.config.old_logprobs == "score":
            return True
        few = [self._replay(trace) for trace in kept[: self.config.minibatch]]
        batch = self._minibatch(few)
        self._forget_sampler()
        return not self._traces_agree(self._engine_for(batch), batch)

    def score(self, traces: Sequence[Trace]) -> list[Floats]:
        """The log-probability of each token of each of `traces` with the weights as they are now, as `update` takes it;
        0 for tokens that are not kept. What it returns depends on `traces` alone, never on what else was scored."""
        kept = [n for n, trace in enumerate(traces) if trace.kept]
        found = [np.zeros(len(trace.token_ids), np.float32) for trace in traces]
        if not kept:
            return found
        batch = self._minibatch([self._replay(traces[n]) for n in kept])
        engine = self._engine_for(batch)
        self._forget_sampler()
        with _advising(self.config):
            found_in = [(micro.sample, micro.position, self._score(engine, self.model, micro)) for micro in batch]
        columns = torch.cat([torch.stack([column.double() for column in part]) for part in found_in], 1)
        sample, position, log_p = self.world.all_gather_cat(columns).cpu().numpy()
        for number, place in enumerate(kept):
            own = sample == number
            found[place][position[own].astype(int) - len(traces[place].prompt_ids)] = log_p[own]
        return found

    def update(self, samples: Sequence[ScoredTrace], old: Sequence[Floats] | None = None) -> UpdateStats:
        """Learn from `samples` in one pass, in their order, one optimiser update per minibatch.

        `old`: what `score` returned for their traces since the last update; without, they are scored as far as that is
        needed. Samples with advantage 0 only add their KL penalty; without a penalty they are not even read, but still
        count in the mean. Raises `ReplayError` or `TrainingError` (a `UserError`) before any change for unusable
        samples; `TrainingError` without the update at hand for a loss or gradient that is not finite; `MachineError`
        when memory runs out. Updates made before the error in the same call stay.
        """
        read = list(self._read(samples, old))
        learned = [one for one in read if one.replay is not None]
        if not learned:
            raise TrainingError("There is nothing to learn from: no samples, or all have the same reward.")
        minibatches = list(_minibatches(read, self.config))
        with _advising(self.config):
            scored = old is not None or self.must_score([one.trace for one in learned])
            if scored and old is None:
                minibatches[1:] = _with_scores(self, minibatches[1:])
            return self._learn([self._batch(part) for part in minibatches], scored)

    def update_meanwhile(self, samples: Iterable[ScoredTrace]) -> UpdateStats | None:
        """`update` by samples that come one after the other, as verdicts do: each optimiser update is made as soon as
        its samples are known, and is the same whenever that is. For traces of which `must_score` is False. None where
        no samples come."""
        with _advising(self.config):
            read = _minibatches(self._read(samples), self.config)
            batches = (self._batch(part) for part in read if any(one.replay is not None for one in part))
            first = next(batches, None)
            return None if first is None else self._learn(itertools.chain([first], batches), scored=False)

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, by name."""
        return self.weights.tensors() | {"updates": torch.tensor(self.updates)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what `tensors` returned."""
        self.updates = int(tensors["updates"])
        self.weights.load(tensors, 0 if self.config.fresh_optimizer else self.updates)
        self._forget_sampler()

    def _read(self, samples: Iterable[ScoredTrace], old: Sequence[Floats] | None = None) -> Iterator[_Sample]:
        for number, (trace, advantage) in enumerate(samples):
            if not math.isfinite(advantage):
                raise TrainingError("An advantage is not a finite number; the weights are unchanged.")
            is_read = (advantage or self.config.kl_coef > 0) and trace.kept
            length, reach = len(trace.prompt_ids) + len(trace.token_ids), self.model.config.max_position_embeddings
            if is_read and length > reach:
                raise TrainingError(
                    f"A trace has {length} tokens, the model {reach} positions: another model wrote it."
                )
            yield _Sample(trace, advantage, self._replay(trace, old[number] if old else None) if is_read else None)

    def _forget_sampler(self) -> None:
        """Its weights, and what decoding had prepared of them, are about to be old."""
        self.model.unfuse()
        self._sampler = None

    def _replay(self, trace: Trace, old: Floats | None = None) -> Replay:
        return replay(trace, self.block_size, self.mask_id, self.config.shrink, old)

    def _learn(self, batches: Iterable[Minibatch], scored: bool) -> UpdateStats:
        """The loop: one update per minibatch. The log-probabilities of the first are the update's own, those of others
        come with their samples. `scored`: they were computed, and are not those in the traces."""
        steps: list[Step] = []
        done: list[Minibatch] = []
        self._forget_sampler()
        for batch in batches:
            steps.append(self._update(self._engine_for(batch), batch, changed=bool(steps)))
            done.append(batch)
        if self.config.fresh_optimizer:
            self.weights.restart(torch.bfloat16)
        return summarize(
            steps, done, config=self.model.config, world=self.world, clip_ratio=self.config.clip_ratio, scored=scored
        )

    def _traces_agree(self, engine: Engine, batch: Minibatch) -> bool:
        """By the first rows of each process."""
        micro = next(iter(batch))
        gaps = self._score(engine, self.model, micro) - micro.sampled
        return traces_agree(gaps, ROUNDING[self.compute_dtype], self.world, self.say)

    def _update(self, engine: Engine, batch: Minibatch, changed: bool) -> Step:
        """`changed`: whether there was an update since the samples' log-probabilities were taken."""
        self.weights.zero_gradients()
        total = batch.weight.new_zeros(())
        columns = []
        for micro in batch:
            old = micro.old if changed else None  # else nothing has changed, and they are those of the update itself
            anchor = None  # else the reference's
            if self.reference is not None:
                anchor = self._score(engine.of(self.reference), self.reference, micro)
            found = score_tokens(
                micro.states(engine), self.model.lm_head.weight, micro.labels,
                _token_loss(self.config, micro, old, anchor), self.distribution,
            )  # fmt: skip
            found.total.backward()
            total += found.total.detach()
            before = found.log_p if old is None else old
            columns.append(
                torch.stack((found.log_p, before, before if anchor is None else anchor, micro.sampled, micro.advantage))
            )
        loss, targets = float(self.world.all_reduce_sum(total)), torch.cat(columns, 1)
        norm = self.weights.clip(self.config.clip_grad)
        _check_possible(float(self.world.all_reduce_sum((targets[1] - targets[3]).abs().sum())))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingError(
                f"Update {self.updates + 1} was not made: its loss ({loss}) or gradient norm ({norm}) is not a finite "
                f"number; try a lower lr."
            )
        self.weights.update(self.config.lr, self.updates)
        self.updates += 1
        return Step(loss, norm, targets)

    def _score(self, engine: Engine, model: SDAR, micro: Micro) -> Tensor:
        """Log-probabilities of the targets [n]. A compiled model is compiled a second time for it, without gradients:
        with them it would hold the activations of a whole row, while kernels are verified on the same GPU."""
        with torch.no_grad():
            return log_probabilities(micro.states(engine), model.lm_head.weight, micro.labels, self.distribution)

    def _batch(self, samples: Sequence[_Sample]) -> Minibatch:
        read = [(one.replay, one.advantage) for one in samples if one.replay is not None]
        return self._minibatch([one for one, _ in read], [advantage for _, advantage in read], len(samples))

    def _minibatch(
        self, replays: Sequence[Replay], advantages: Sequence[float] | None = None, samples: int | None = None
    ) -> Minibatch:
        """`advantages`: 1 where nothing is learned. `samples`: how many responses share the mean; these, else."""
        config = self.config
        wide = torch.promote_types(self.compute_dtype, torch.float32)
        share = 1.0 / ((samples or len(replays)) * config.max_new_tokens)  # of each token in the loss
        return minibatch(
            replays,
            torch.tensor(advantages or [1.0] * len(replays), dtype=wide, device=self.device),
            torch.full((len(replays),), share, dtype=wide, device=self.device),
            self.world, row_tokens=config.row_tokens, micro_rows=config.micro_rows, block_size=self.block_size,
            samples=samples or len(replays),
        )  # fmt: skip

    def _engine_for(self, batch: Minibatch) -> Engine:
        """Chosen once, by the first rows that there are."""
        self._engine = self._engine or self._pick_engine(batch)
        return self._engine

    def _pick_engine(self, batch: Minibatch) -> Engine:
        compiled = self.device.type == "cuda" if self.config.compile is None else self.config.compile
        recompute = choose_recompute(
            self.config, self.model.config, self.world, tokens=self.config.micro_rows * self.config.row_tokens,
            moments=self.config.moments, reference=self.reference is not None, dtype=self.compute_dtype, say=self.say,
            usable=BESIDE_KERNELS,
        )  # fmt: skip
        return pick_engine(
            self.model, next(iter(batch)).rows, self.block_size, self.mask_id,
            attention=self.config.attention, compiled=compiled, say=self.say,
            recompute=recompute, dtype=self.compute_dtype,
        )  # fmt: skip


def _minibatches(samples: Iterable[_Sample], config: PolicyConfig) -> Iterator[list[_Sample]]:
    """The samples of each optimiser update; what is not read adds to no minibatch's size."""
    by_rounds = config.minibatch_unit == "rounds"

    def size(one: _Sample) -> int:
        return 0 if one.replay is None else one.replay.rounds if by_rounds else 1

    return parts(samples, size, config.minibatch)


def _with_scores(policy: Policy, minibatches: Sequence[list[_Sample]]) -> list[list[_Sample]]:
    """The same samples with the log-probabilities of the weights as they are now."""
    found = policy.score([one.trace for part in minibatches for one in part if one.replay is not None])
    _check_possible(sum(float(np.abs(scores).sum()) for scores in found))
    scores = iter(found)
    return [
        [one if one.replay is None else replace(one, replay=policy._replay(one.trace, next(scores))) for one in part]
        for part in minibatches
    ]


def _check_possible(total: float) -> None:
    """Raises `TrainingError` where the sampler drew a token that the policy cannot draw; `total` sums over tokens."""
    if not math.isfinite(total):
        raise TrainingError(
            "A sampled token is impossible under the policy, or its probability is not a number; were the traces "
            "written by this model, with this temperature and vocab_limit? The weights are unchanged."
        )


@contextmanager
def _advising(config: PolicyConfig) -> Iterator[None]:
    """What to do where memory runs out."""
    try:
        yield
    except torch.OutOfMemoryError:
        advice = f"micro_rows {config.micro_rows} of row_tokens {config.row_tokens}; lower either"
        raise MachineError(f"The GPU's memory ran out with {advice}.") from None


def _token_loss(config: PolicyConfig, micro: Micro, old: Tensor | None, anchor: Tensor | None) -> TokenLoss:
    """`old`: the policy's log-probabilities before the first update [n]; None: its own. `anchor`: the reference's;
    None: there is no reference."""

    def loss(log_p: Tensor, part: slice) -> Tensor:
        before = log_p.detach() if old is None else old[part]
        base = before if anchor is None else anchor[part]
        terms = token_terms(log_p, before, base, micro.advantage[part], config.clip_ratio)
        gain = terms.surrogate
        if config.mismatch_cap is not None:
            gain = gain * (before - micro.sampled[part]).exp().clamp(max=config.mismatch_cap)
        return micro.weight[part] * (config.kl_coef * terms.kl - gain)

    return loss


# How far log-probabilities of a trace may be from the trainer's on average, by the type that both compute in.
ROUNDING = {torch.bfloat16: 0.01, torch.float32: 1e-4, torch.float64: 1e-4}


def traces_agree(gaps: Tensor, limit: float, world: World, say: Callable[[str], None]) -> bool:
    """Whether the log-probabilities in traces are those of the trainer, from which they are `gaps` [n] away in this
    process, but for rounding: `limit` on average. Says where they are not."""
    sums = torch.stack((gaps.abs().sum().double(), gaps.new_tensor(float(len(gaps))).double()))
    total, count = world.all_reduce_sum(sums).tolist()
    if total <= limit * max(1.0, count):
        return True
    say(
        f"The traces' log-probabilities differ from the trainer's by {total / count:.2g} on average, where "
        f"rounding explains {limit:.2g}: all samples are scored again."
    )
    return False
