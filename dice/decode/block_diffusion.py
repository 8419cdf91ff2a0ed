"""Block diffusion: one visible loop over a batch of texts, each on its own absolute block grid.

A text is denoised block by block. A step feeds the current block (masks where undecided) to the model and reveals some
positions. Keys and values of a block count only once computed from its finished tokens; that commit pass is fused with
the first step of the next block, as one window of two blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dice.decode.request import (
    PREFILL_TOKENS,
    ContextLengthError,
    DecodeConfig,
    DecodeError,
    StepEvent,
    end_ids,
)
from dice.decode.sampling import Proposal, forbid, propose, reveal_counts, select
from dice.decode.text import Text
from dice.decode.trace import Trace
from dice.model.cache import KVCache
from dice.model.sdar import SDAR


def denoise(
    model: SDAR,
    texts: Sequence[Text],
    config: DecodeConfig,
    on_step: Callable[[StepEvent], None] | None = None,
    on_trace: Callable[[int, Trace], None] | None = None,
) -> list[Trace]:
    """Write what is masked in `texts`, whatever else is given in them; callbacks are those of `generate`."""
    decoder = _Decoder(model, config, on_step, on_trace)
    model.fuse()
    with torch.inference_mode():
        decoder.run(texts)
    return [decoder.trace(text) for text in texts]


def new_texts(
    model: SDAR,
    prompts: Sequence[Sequence[int]],
    config: DecodeConfig,
    seeds: Sequence[int],
    prefix: Sequence[int] = (),
    suffix: Sequence[int] = (),
) -> list[Text]:
    """A text of masks for each prompt. Raises `ContextLengthError`, and `DecodeError` for ids that the model lacks."""
    shape = model.config
    # A model that writes one token after another has blocks of one, whatever it is asked.
    block_size = 1 if shape.traits.kind == "autoregressive" else config.block_size or shape.block_size
    stop_ids = config.stop_ids if config.stop_ids is not None else end_ids(model)
    texts = []
    for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        text = Text(
            index, prompt, config.max_new_tokens, block_size, shape.mask_token_id, stop_ids, seed,
            prefix=prefix, suffix=suffix,
        )  # fmt: skip
        if text.length > shape.max_position_embeddings:
            raise ContextLengthError(
                f"Prompt {index} has {len(prompt)} tokens; with {config.max_new_tokens} new ones it needs "
                f"{text.length} positions, but the model has {shape.max_position_embeddings}."
            )
        if any(not 0 <= token < shape.vocab_size for token in (*prompt, *prefix, *suffix)):
            raise DecodeError(f"Prompt {index} holds a token id outside the model's vocabulary.")
        texts.append(text)
    return texts


def check_denoising_steps(config: DecodeConfig, block_size: int) -> int:
    """Denoising steps of a block. Raises `DecodeError` where they exceed its positions."""
    denoising_steps = config.denoising_steps or block_size
    if denoising_steps > block_size:
        raise DecodeError(f"denoising_steps ({denoising_steps}) cannot exceed block_size ({block_size}).")
    return denoising_steps


class _Decoder:
    """The loop of block diffusion: rows of a key/value cache, each occupied by one unfinished text."""

    def __init__(
        self,
        model: SDAR,
        config: DecodeConfig,
        on_step: Callable[[StepEvent], None] | None,
        on_trace: Callable[[int, Trace], None] | None,
    ) -> None:
        self.model = model
        self.config = config
        self.on_step = on_step
        self.on_trace = on_trace
        self.mode = config.resolved_mode
        self.block_size = config.block_size or model.config.block_size
        self.device = model.lm_head.weight.device
        self.reveal_counts = reveal_counts(self.block_size, check_denoising_steps(config, self.block_size))

    def run(self, texts: Sequence[Text]) -> None:
        if not texts:
            return
        waiting = list(texts)[::-1]
        active = [waiting.pop() for _ in range(min(self.config.max_active, len(texts)))]
        capacity = max(text.length for text in texts) + self.block_size
        cache = self.model.new_cache(len(active), capacity)
        self._prefill(active, cache)
        while active:
            self._step(active, cache)
            for row, text in enumerate(active):
                if text.stop_reason and waiting:
                    active[row] = waiting.pop()
                    self._prefill([active[row]], cache.rows(row, row + 1))
                elif text.behind and not text.stop_reason:
                    self._prefill([text], cache.rows(row, row + 1))
            unfinished = [row for row, text in enumerate(active) if not text.stop_reason]
            if unfinished and len(unfinished) < len(active):
                cache = cache.keep(unfinished)
            active = [active[row] for row in unfinished]

    def trace(self, text: Text) -> Trace:
        return text.trace(self.config.remasking, self.mode)

    def _prefill(self, texts: list[Text], cache: KVCache) -> None:
        """Cache the whole blocks of each prompt; rows are right-padded, a bounded number of tokens at a time."""
        longest = max(text.block_start for text in texts)
        if not longest:
            return
        rows = max(1, PREFILL_TOKENS // longest)
        for first in range(0, len(texts), rows):
            group = texts[first : first + rows]
            width = max(text.block_start for text in group)
            if width:
                ids = torch.tensor([text.padded(0, text.block_start, width) for text in group], device=self.device)
                self.model.prefill(ids, cache.rows(first, first + len(group)), self.block_size)
        for text in texts:
            text.behind = False
            if text.block_start:
                text.forwards += 1

    def _step(self, texts: list[Text], cache: KVCache) -> None:
        """One forward and one reveal for every text; commits finished blocks on the way."""
        width = self.block_size * (2 if any(text.uncommitted for text in texts) else 1)
        starts = [text.window_start for text in texts]
        ids = torch.tensor([text.padded(text.window_start, text.length, width) for text in texts], device=self.device)
        hidden = self.model.step(ids, starts, cache, self.block_size)
        # Only masked positions need logits: the head and the softmax over the vocabulary dominate the sampler.
        wanted = [
            row * width + position - start
            for row, (text, start) in enumerate(zip(texts, starts, strict=True))
            for position in text.masked
        ]
        logits = self.model.logits(hidden.flatten(0, 1)[torch.tensor(wanted, device=self.device)]).float()
        proposal = self._propose(logits, texts)
        first = 0
        for text in texts:
            last = first + len(text.masked)
            self._reveal(text, proposal.part(first, last))
            first = last

    def _propose(self, logits: Tensor, texts: list[Text]) -> Proposal:
        config = self.config
        uniforms = None
        if self.mode == "sample":
            uniforms = torch.cat([text.uniforms() for text in texts]).to(self.device)
        return propose(
            forbid(logits, self.model.config.mask_token_id, config.vocab_limit),
            uniforms,
            mode=self.mode,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            with_entropy=config.remasking == "entropy_bounded",
            top_logprobs=config.top_logprobs,
        )

    def _reveal(self, text: Text, proposal: Proposal) -> None:
        chosen = select(
            proposal,
            self.config.remasking,
            self.reveal_counts[min(text.block_step, len(self.reveal_counts) - 1)],
            confidence_threshold=self.config.confidence_threshold,
            entropy_bound=self.config.entropy_bound,
        )
        positions = [text.masked[index] - text.prompt_length for index in chosen]
        tokens = [proposal.tokens[index] for index in chosen]
        logprobs = [proposal.logprobs[index] for index in chosen]
        step, block = text.step, text.block_start // self.block_size
        text.reveal(positions, tokens, logprobs)
        if self.on_step is not None:
            likeliest = tuple(proposal.likeliest[index] for index in chosen) if proposal.likeliest else ()
            done = tuple(positions), tuple(tokens), tuple(logprobs), text.stop_reason, likeliest
            self.on_step(StepEvent(text.index, step, block, *done))
        if self.on_trace is not None and text.stop_reason:
            self.on_trace(text.index, self.trace(text))
