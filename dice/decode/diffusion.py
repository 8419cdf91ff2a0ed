"""Diffusion of a whole answer: every position attends to every other, masks included, so nothing can be cached.

The answer is a row of masks after the prompt, denoised in blocks from the left (LLaDA's semi-autoregressive decoding)
or all at once (Dream). Two schedules say how many positions a step reveals, and six algorithms say which:

- low_confidence, random (LLaDA): equally many each step; the surest, or any.
- maskgit_plus, topk_margin, entropy (Dream): by the time grid 1 .. `eps`; those with the greatest probability, the
  greatest lead over the runner-up, or the least entropy.
- origin (Dream): by the same grid, each position by a coin of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch
from torch import Tensor

from dice.decode.request import DecodeConfig, DecodeError, StepEvent, check_prompts, end_ids, prompt_seeds
from dice.decode.sampling import draw, forbid, reveal_counts, truncate
from dice.decode.trace import Trace
from dice.model.config import SDARConfig
from dice.model.sdar import SDAR

Algorithm = Literal["low_confidence", "random", "origin", "maskgit_plus", "topk_margin", "entropy"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
# The algorithms that reveal equally many positions in each step.
_EVEN = ("low_confidence", "random")
# What the authors' own examples use: the algorithm, and the block size (None: the whole answer is one block).
_PUBLISHED: dict[str, tuple[Algorithm, int | None]] = {"llada": ("low_confidence", 32), "dream": ("entropy", None)}


@dataclass(frozen=True, kw_only=True)
class DiffusionConfig:
    """How to denoise a whole answer.

    - `steps` over the whole answer, shared equally by its blocks; None: one per token. `block_size` None: one block.
    - `temperature` 0 takes the most probable tokens. `top_k`, `top_p`, `stop_ids`, `vocab_limit`, `seed` and
      `max_active` as in `DecodeConfig`.
    - `cfg_scale` above 0: away from what the model says when it does not see the prompt (LLaDA's classifier-free
      guidance), by this much. `logits_eos_inf`: the end-of-text token is never proposed. `confidence_eos_eot_inf`: stop
      tokens are revealed last; they count in no confidence. LLaDA's names.
    - `algorithm_temperature` above 0 draws the positions too, by softmax(score / algorithm_temperature); Dream's
      `alg_temp`. `eps`: where Dream's time grid ends.
    """

    max_new_tokens: int = 512
    steps: int | None = None
    block_size: int | None = None
    algorithm: Algorithm = "low_confidence"
    algorithm_temperature: float = 0.0
    eps: float = 1e-3
    cfg_scale: float = 0.0
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop_ids: frozenset[int] | None = None
    vocab_limit: int | None = None
    max_active: int = 16

    def __post_init__(self) -> None:
        checks = (
            (self.max_new_tokens >= 1, "max_new_tokens must be at least 1"),
            (self.steps is None or self.steps >= 1, "steps must be at least 1"),
            (self.block_size is None or self.block_size >= 1, "block_size must be at least 1"),
            (self.algorithm in ALGORITHMS, f"algorithm must be one of {', '.join(ALGORITHMS)}"),
            (self.algorithm_temperature >= 0, "algorithm_temperature must not be negative"),
            (0 < self.eps < 1, "eps must be between 0 and 1"),
            (self.cfg_scale >= 0, "cfg_scale must not be negative"),
            (
                not self.confidence_eos_eot_inf or self.algorithm == "low_confidence",
                "confidence_eos_eot_inf is an option of the algorithm low_confidence",
            ),
            (self.temperature >= 0, "temperature must not be negative"),
            (self.top_p is None or 0 < self.top_p <= 1, "top_p must be above 0 and at most 1"),
            (self.top_k is None or self.top_k >= 0, "top_k must not be negative"),
            (self.max_active >= 1, "max_active must be at least 1"),
        )
        for holds, message in checks:
            if not holds:
                raise DecodeError(f"{message}.")

    @classmethod
    def published(cls, model: SDARConfig, request: DecodeConfig) -> DiffusionConfig:
        """The sampler of the model's authors, with length, temperature, truncation, stops and seed of `request`."""
        algorithm, block_size = _PUBLISHED[model.family]
        return cls(
            max_new_tokens=request.max_new_tokens,
            block_size=block_size,
            algorithm=algorithm,
            temperature=0.0 if request.resolved_mode != "sample" else request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
            stop_ids=request.stop_ids,
            vocab_limit=request.vocab_limit,
            max_active=request.max_active,
        )

    @property
    def blocks(self) -> list[range]:
        """The answer's positions, block by block; the last may be shorter."""
        size = self.block_size or self.max_new_tokens
        starts = range(0, self.max_new_tokens, size)
        return [range(start, min(start + size, self.max_new_tokens)) for start in starts]


@dataclass
class _Answer:
    """A prompt followed by masks. Positions count from the end of the prompt."""

    index: int
    ids: list[int]
    prompt_length: int
    generator: torch.Generator
    masked: list[int]
    steps: list[int]
    logprobs: list[float]
    step: int = 0
    forwards: int = 0
    end: int = 0  # of the last finished block

    def uniforms(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator, dtype=torch.float64)

    def masked_in(self, block: range) -> list[int]:
        return [position for position in self.masked if position in block]


@dataclass(frozen=True)
class _Proposal:
    """Per masked position: a token, its log-probability, and a score to be revealed by, the greater the sooner."""

    tokens: Tensor
    logprobs: Tensor
    scores: Tensor


@dataclass
class _Work:
    """One call of `generate_diffusion`."""

    model: SDAR
    config: DiffusionConfig
    stop_ids: frozenset[int]
    on_step: Callable[[StepEvent], None] | None
    device: torch.device = field(init=False)
    ends: Tensor = field(init=False)  # stop ids and the model's own end of text

    def __post_init__(self) -> None:
        self.device = self.model.lm_head.weight.device
        self.ends = torch.tensor(sorted(self.stop_ids | end_ids(self.model)), dtype=torch.long, device=self.device)

    def denoise(self, answers: list[_Answer]) -> None:
        """The loop: block by block, step by step; an answer leaves once a finished block holds a stop id."""
        for number, block in enumerate(self.config.blocks):
            steps = max(1, (self.config.steps or self.config.max_new_tokens) // len(self.config.blocks))
            for step in range(steps):
                self._step(answers, number, block, step, steps)
            for answer in answers:
                answer.end = block.stop
            answers = [answer for answer in answers if not self.stopped(answer)]
            if not answers:
                return

    def stopped(self, answer: _Answer) -> bool:
        first = answer.prompt_length
        return any(token in self.stop_ids for token in answer.ids[first : first + answer.end])

    def _step(self, answers: list[_Answer], number: int, block: range, step: int, steps: int) -> None:
        wanted = [answer.masked_in(block) for answer in answers]
        counts = [self._count(len(masked), len(block), step, steps) for masked in wanted]
        if not any(counts):
            return  # the published loops compute such a step and reveal nothing
        logits = self._logits(answers, wanted)
        proposal = self._propose(logits, answers, wanted)
        first = 0
        for answer, masked, count in zip(answers, wanted, counts, strict=True):
            part = slice(first, first + len(masked))
            chosen = self._choose(answer, proposal.scores[part], count)
            tokens, logprobs = proposal.tokens[part][chosen].tolist(), proposal.logprobs[part][chosen].tolist()
            answer.forwards += 1
            self._reveal(answer, number, [masked[index] for index in chosen], tokens, logprobs)
            first = part.stop

    def _count(self, masked: int, size: int, step: int, steps: int) -> float:
        """How many positions to reveal now; for "origin" the probability of each, times how many there are."""
        if self.config.algorithm in _EVEN:
            return min(masked, reveal_counts(size, steps)[step])
        if step == steps - 1:
            return masked
        times = torch.linspace(1, self.config.eps, steps + 1)
        count = float(masked * (1 - times[step + 1] / times[step]))  # float32, as published: 0.999... reveals none
        return count if self.config.algorithm == "origin" else int(count)

    def _logits(self, answers: list[_Answer], wanted: list[list[int]]) -> Tensor:
        """Logits [M, V] of the tokens at the wanted positions of all answers, in order."""
        lengths = [len(answer.ids) for answer in answers]
        width = max(lengths)
        mask_id = self.model.config.mask_token_id
        back = 1 if self.model.config.traits.shift else 0  # how far before a token its logits stand
        ids = torch.tensor([answer.ids + [0] * (width - len(answer.ids)) for answer in answers], device=self.device)
        columns = torch.arange(width, device=self.device)
        mask = None
        if min(lengths) < width:
            mask = columns < torch.tensor(lengths, device=self.device)[:, None, None, None]
        places = torch.tensor(
            [
                row * width + max(answer.prompt_length + position - back, 0)
                for row, (answer, positions) in enumerate(zip(answers, wanted, strict=True))
                for position in positions
            ],
            device=self.device,
        )

        def at_places(ids: Tensor) -> Tensor:
            return self.model.logits(self.model.hidden(ids, None, mask).flatten(0, 1)[places]).float()

        logits = at_places(ids)
        if self.config.cfg_scale:
            prompts = torch.tensor([answer.prompt_length for answer in answers], device=self.device)[:, None]
            blind = at_places(ids.masked_fill(columns < prompts, mask_id))
            logits = blind + (self.config.cfg_scale + 1) * (logits - blind)
        if self.config.logits_eos_inf:
            logits[:, sorted(end_ids(self.model))] = -torch.inf
        return forbid(logits, mask_id, self.config.vocab_limit)

    def _propose(self, logits: Tensor, answers: list[_Answer], wanted: list[list[int]]) -> _Proposal:
        config = self.config
        scaled = logits / config.temperature if config.temperature else logits
        log_p = truncate(scaled, config.top_k, config.top_p).log_softmax(-1)
        if config.temperature:
            draws = [answer.uniforms(len(masked)) for answer, masked in zip(answers, wanted, strict=True)]
            tokens = draw(log_p.exp(), torch.cat(draws).to(self.device))
        else:
            tokens = log_p.argmax(-1)
        logprobs = log_p.gather(-1, tokens[:, None])[:, 0]
        return _Proposal(tokens.cpu(), logprobs.cpu(), self._scores(logits, log_p, tokens).cpu())

    def _scores(self, logits: Tensor, log_p: Tensor, tokens: Tensor) -> Tensor:
        """LLaDA scores by the untempered distribution, Dream by the one that was drawn from."""
        if self.config.algorithm == "low_confidence":
            if self.config.confidence_eos_eot_inf:
                logits = logits.index_fill(-1, self.ends, -torch.inf)
            return logits.softmax(-1).gather(-1, tokens[:, None])[:, 0]
        p = log_p.exp()
        if self.config.algorithm == "maskgit_plus":
            return p.gather(-1, tokens[:, None])[:, 0]
        if self.config.algorithm == "topk_margin":
            best = p.topk(2, -1).values
            return best[:, 0] - best[:, 1]
        if self.config.algorithm == "entropy":
            score: Tensor = torch.special.xlogy(p, p).sum(-1)
            return score
        return torch.zeros_like(p[:, 0])

    def _choose(self, answer: _Answer, scores: Tensor, count: float) -> list[int]:
        """Ascending indices of the positions to reveal; equal scores go to the leftmost."""
        if self.config.algorithm == "origin":
            coins = answer.uniforms(len(scores)) * len(scores)
            return [index for index, coin in enumerate(coins.tolist()) if coin < count]
        scores = scores.double()
        if self.config.algorithm == "random":
            scores = answer.uniforms(len(scores))
        if self.config.algorithm_temperature:
            # The greatest of score + Gumbel noise are draws without replacement from the softmax of the scores.
            noise = -(-answer.uniforms(len(scores)).clamp_min(math.ulp(0.0)).log()).log()
            scores = scores / self.config.algorithm_temperature + noise
        return sorted(scores.sort(descending=True, stable=True).indices[: int(count)].tolist())

    def _reveal(
        self, answer: _Answer, block: int, positions: list[int], tokens: list[int], logprobs: list[float]
    ) -> None:
        if not positions:
            return
        for position, token, logprob in zip(positions, tokens, logprobs, strict=True):
            answer.ids[answer.prompt_length + position] = token
            answer.steps[position] = answer.step
            answer.logprobs[position] = logprob
            answer.masked.remove(position)
        if self.on_step is not None:
            reason: Literal["stop", "length"] | None = None
            if not answer.masked_in(self.config.blocks[block]):
                answer.end = self.config.blocks[block].stop
                reason = "stop" if self.stopped(answer) else None if answer.masked else "length"
            event = StepEvent(
                answer.index, answer.step, block, tuple(positions), tuple(tokens), tuple(logprobs), reason
            )
            self.on_step(event)
        answer.step += 1


def generate_diffusion(
    model: SDAR,
    prompts: Sequence[Sequence[int]],
    config: DiffusionConfig,
    on_step: Callable[[StepEvent], None] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Trace]:
    """Denoise an answer of `config.max_new_tokens` tokens to each prompt.

    The mask token itself is never proposed. Denoising ends early after a block that holds a stop id: what follows it is
    no part of the answer. Randomness, order and errors are those of `generate`.
    """
    check_prompts(model, prompts, config.max_new_tokens)
    if model.config.traits.shift and not all(prompts):
        raise DecodeError("A prompt is empty, but this model needs a token to continue from.")
    length, mask = config.max_new_tokens, model.config.mask_token_id
    answers = [
        _Answer(
            index,
            [*prompt, *[mask] * length],
            len(prompt),
            torch.Generator().manual_seed(seed),
            list(range(length)),
            [-1] * length,
            [0.0] * length,
        )
        for index, (prompt, seed) in enumerate(
            zip(prompts, prompt_seeds(config.seed, seeds, len(prompts)), strict=True)
        )
    ]
    work = _Work(model, config, config.stop_ids if config.stop_ids is not None else end_ids(model), on_step)
    model.fuse()
    with torch.inference_mode():
        for first in range(0, len(answers), config.max_active):
            work.denoise(answers[first : first + config.max_active])
    return [_trace(answer, config, work.stop_ids, mask) for answer in answers]


def _trace(answer: _Answer, config: DiffusionConfig, stop_ids: frozenset[int], mask: int) -> Trace:
    token_ids = tuple(answer.ids[answer.prompt_length : answer.prompt_length + answer.end])
    stop = next((place for place, token in enumerate(token_ids) if token in stop_ids), None)
    return Trace(
        prompt_ids=tuple(answer.ids[: answer.prompt_length]),
        token_ids=token_ids,
        steps=tuple(answer.steps[: answer.end]),
        logprobs=tuple(answer.logprobs[: answer.end]),
        kept=len(token_ids) if stop is None else stop + 1,
        block_size=config.block_size or config.max_new_tokens,
        mask_token_id=mask,
        strategy=config.algorithm,
        mode="sample" if config.temperature else "greedy",
        forwards=answer.forwards,
        stop_reason="length" if stop is None else "stop",
    )
