"""The writer of kernels behind `dice generate`: a checkpoint, its tokenizer, and how to decode."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dice.decode.generate import DecodeConfig, generate
from dice.decode.ready import load
from dice.decode.trace import Trace
from dice.errors import UserError
from dice.model.checkpoint import resolve_model
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer

if TYPE_CHECKING:
    from dice.cli import Generate
    from dice.commands.watch import Watcher


@dataclass(frozen=True, slots=True)
class Draft:
    """One reply: its text, how it was denoised, and how long that took. `beginning`: reply tokens that were given."""

    text: str
    trace: Trace
    seconds: float
    beginning: tuple[int, ...] = ()

    def summary(self) -> dict[str, Any]:
        tokens = len(self.trace.response_ids)
        return {
            "tokens": tokens,
            "forwards": self.trace.forwards,
            "seconds": round(self.seconds, 3),
            "tokens_per_second": round(tokens / self.seconds, 1) if self.seconds else 0.0,
            "tokens_per_forward": round(tokens / max(self.trace.forwards, 1), 2),
            "stop_reason": self.trace.stop_reason,
        }


class Writer:
    """Greedy at temperature 0; every call is determined by (prompt, temperature, seed)."""

    def __init__(self, model: SDAR, tokenizer: Tokenizer, args: Generate) -> None:
        self.model, self.tokenizer, self.args = model, tokenizer, args

    @classmethod
    def load(cls, args: Generate) -> Writer:
        """Raises `UserError` with one sentence when the checkpoint cannot be used."""
        model, tokenizer = load(resolve_model(args.model))
        return cls(model, tokenizer, args)

    def write(self, prompt: str, temperature: float, seed: int, watch: Callable[[Writer], Watcher]) -> Draft:
        ids = self.tokenizer.encode_chat([{"role": "user", "content": prompt}])
        return self._denoise(ids, (), temperature, seed, watch)

    def rewrite_core(self, draft: Draft, temperature: float, seed: int, watch: Callable[[Writer], Watcher]) -> Draft:
        """Keep the reply up to where its CUDA source begins and denoise the rest anew."""
        reply = draft.beginning + draft.trace.response_ids
        prompt = draft.trace.prompt_ids[: len(draft.trace.prompt_ids) - len(draft.beginning)]
        cut = max(draft.text.find('"""'), 0)
        kept = 0
        while kept < len(reply) and len(self.tokenizer.decode(reply[: kept + 1])) <= cut:
            kept += 1
        return self._denoise(list(prompt), reply[:kept], temperature, seed, watch)

    def _denoise(
        self,
        prompt: list[int],
        beginning: tuple[int, ...],
        temperature: float,
        seed: int,
        watch: Callable[[Writer], Watcher],
    ) -> Draft:
        args, given = self.args, [*prompt, *beginning]
        room = self.model.config.max_position_embeddings - len(given) - self.model.config.block_size
        if room < 1:
            limit = self.model.config.max_position_embeddings
            raise UserError(f"the problem takes {len(given)} tokens, but this model reads at most {limit}; shorten it.")
        config = DecodeConfig(
            max_new_tokens=min(args.max_new_tokens, room),
            remasking=args.remasking,
            confidence_threshold=args.confidence_threshold,
            temperature=temperature,
            top_p=args.top_p,
            top_k=args.top_k,
            stop_ids=self.tokenizer.stop_ids,
            vocab_limit=self.tokenizer.vocab_size,
        )
        start = time.perf_counter()
        with watch(self) as on_step:
            (trace,) = generate(self.model, [given], config, on_step, seeds=[seed])
        text = self.tokenizer.decode([*beginning, *trace.response_ids])
        return Draft(text, trace, time.perf_counter() - start, beginning)

    def partial_text(self, tokens: dict[int, int], length: int, mask: str) -> str:
        """The reply so far: revealed tokens decoded run by run, `mask` for each position still hidden."""
        pieces: list[str] = []
        run: list[int] = []
        for position in range(length):
            if position in tokens:
                run.append(tokens[position])
                continue
            pieces += [self.tokenizer.decode(run), mask]
            run = []
        return "".join((*pieces, self.tokenizer.decode(run)))
