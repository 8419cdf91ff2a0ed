"""Writing kernels: a checkpoint denoises replies to a problem, and the verifier judges what each holds.

`dice generate` and `from dice import generate` are both this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dice.decode.generate import DecodeConfig, StepEvent
from dice.decode.generate import generate as decode
from dice.decode.ready import load
from dice.decode.trace import Trace
from dice.errors import UserError
from dice.kernel import Kernel
from dice.model.checkpoint import resolve_model
from dice.model.sdar import SDAR
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import NO_KERNEL, PROMPTS, extract_kernel
from dice.scaffold import completed
from dice.verdict import Verdict
from dice.verify import Options, Verifier

RESAMPLE_TEMPERATURE = 0.7  # of the second reply on, where the first is greedy
# Which failed candidate to keep when none is correct: the one that came furthest.
PREFERENCE = (
    "correct", "unsupported", "infra_error", "wrong", "deceptive", "timeout", "out_of_memory", "runtime_error",
    "load_error", "compile_error", "no_kernel",
)  # fmt: skip
Prompt = Literal["auto", "compact", "one-shot"]
Way = Literal["written", "completed", "canonical", "rules"]
# Shows a reply while it is denoised: called with the writer, it gives a block that hears of each step.
Watch = Callable[["Writer"], AbstractContextManager[Callable[[StepEvent], None]]]


def generate(
    problem: Problem | str | Path,
    *,
    model: str = "nano",
    samples: int = 1,
    refine: int = 0,
    prompt: Prompt = "auto",
    decoding: DecodeConfig | None = None,
    seed: int = 0,
    backend: str = "auto",
    options: Options | None = None,
) -> list[Attempt]:
    """Write kernels for `problem`, a `Problem` or the path of its file, verify each, and return all, the best first.

    The arguments are those of `dice generate`: `samples` replies, the first greedy unless `decoding` has a temperature,
    then up to `refine` that keep the best one's beginning while none is correct. `options` are the verifier's. Raises
    `UserError` for a problem or a model that cannot be used, `BackendUnavailable` where this machine cannot verify.
    """
    problem = problem if isinstance(problem, Problem) else Problem.from_file(problem)
    with Verifier(backend=backend, options=options) as verifier:
        writer = Writer.load(model, decoding or DECODING)
        found = attempts(problem, writer, verifier, samples=samples, refine=refine, prompt=prompt, seed=seed)
        return sorted(found, key=lambda attempt: attempt.rank)


# What suits the shipped model: a lower threshold is faster and errs more often.
DECODING = DecodeConfig(max_new_tokens=2048, confidence_threshold=0.99, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One kernel: how it was written, and its verdict. `way`: "written" (the reply's file as it is), "completed" (its
    CUDA source, with all else from the module: `scaffold.py`), "canonical" (region by region, in canonical form), or
    "rules" (region by region, by no model). `drafts`: the replies that it was made of: one of a module's own text,
    several where it is canonical, none by rule."""

    drafts: tuple[Draft | Received, ...]
    kernel: Kernel | None
    verdict: Verdict
    way: Way = "written"

    @property
    def draft(self) -> Draft | Received | None:
        """The longest of its replies."""
        return max(self.drafts, key=lambda draft: draft.tokens, default=None)

    @property
    def rank(self) -> tuple[int, float, bool]:
        """Smaller is better: correct before wrong, then faster before slower, then those that leave PyTorch no
        operator."""
        speedup = self.verdict.timing.speedup if self.verdict.timing else 0.0
        return PREFERENCE.index(self.verdict.outcome), -speedup, not self.verdict.solves("all")

    def to_json(self) -> dict[str, object]:
        return {
            "text": "\n\n".join(draft.text for draft in self.drafts),
            "way": self.way,
            "kernel": self.kernel.source if self.kernel else None,
            "verdict": self.verdict.to_json(),
            "decode": self.decode(),
        }

    def decode(self) -> dict[str, object]:
        """What writing it took, over its replies."""
        longest = self.draft
        if isinstance(longest, Received):
            return longest.summary()
        drafts = [draft for draft in self.drafts if isinstance(draft, Draft)]
        tokens, forwards = sum(draft.tokens for draft in drafts), sum(draft.trace.forwards for draft in drafts)
        seconds = sum(draft.seconds for draft in drafts)
        return {
            "tokens": tokens,
            "forwards": forwards,
            "seconds": round(seconds, 3),
            "tokens_per_second": round(tokens / seconds, 1) if seconds else 0.0,
            "tokens_per_forward": round(tokens / max(forwards, 1), 2),
            "stop_reason": longest.trace.stop_reason if longest is not None else "no model",
        }


def attempts(
    problem: Problem,
    writer: Writer,
    verifier: Verifier,
    *,
    samples: int,
    refine: int,
    prompt: Prompt,
    seed: int,
    watch: Callable[[str], Watch] = lambda title: lambda writer: nullcontext(lambda step: None),
    checking: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> list[Attempt]:
    """All replies, in the order written. `watch` is told what is written; `checking` surrounds a verification."""
    text = PROMPTS[writer.model.config.prompt if prompt == "auto" else prompt](problem)
    asked = writer.decoding.temperature
    found: list[Attempt] = []

    def check(draft: Draft) -> None:
        attempt = judged(draft, extract_kernel(draft.text), "written")
        if not attempt.verdict.correct and attempt.verdict.about_kernel:
            # What the module says need not fail for what the reply says of it.
            kernel = completed(problem, draft.text)
            again = judged(draft, kernel, "completed") if kernel is not None else attempt
            attempt = min(attempt, again, key=lambda one: one.rank)
        found.append(attempt)

    def judged(draft: Draft, kernel: Kernel | None, way: Way) -> Attempt:
        with checking() if kernel is not None else nullcontext():
            verdict = verifier.verify(problem, kernel) if kernel is not None else NO_KERNEL
        return Attempt((draft,), kernel, verdict, way)

    for index in range(samples):
        temperature = asked or (RESAMPLE_TEMPERATURE if index else 0.0)
        check(writer.write(text, temperature, seed + index, watch(f"{problem.name}, sample {index + 1}")))
    for index in range(refine):
        best = min(found, key=lambda attempt: attempt.rank)
        if best.verdict.correct or not best.verdict.about_kernel or not isinstance(best.draft, Draft):
            break
        shown = watch(f"{problem.name}, core rewritten {index + 1}")
        check(writer.rewrite_core(best.draft, asked or RESAMPLE_TEMPERATURE, seed + samples + index, shown))
    return found


@dataclass(frozen=True, slots=True)
class Draft:
    """One reply: its text, how it was denoised, and how long that took. `beginning`: reply tokens that were given."""

    text: str
    trace: Trace
    seconds: float
    beginning: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return len(self.trace.response_ids)


@dataclass(frozen=True, slots=True)
class Received:
    """A reply that a server wrote: of how it was written nothing is known but what it counted."""

    text: str
    tokens: int
    seconds: float
    stop_reason: str

    def summary(self) -> dict[str, object]:
        rate = round(self.tokens / self.seconds, 1) if self.seconds else 0.0
        seconds = round(self.seconds, 3)
        return {"tokens": self.tokens, "seconds": seconds, "tokens_per_second": rate, "stop_reason": self.stop_reason}


class Writer:
    """A checkpoint with its tokenizer. It is greedy at temperature 0; (prompt, temperature, seed) decide each reply."""

    def __init__(self, model: SDAR, tokenizer: Tokenizer, decoding: DecodeConfig) -> None:
        self.model, self.tokenizer, self.decoding = model, tokenizer, decoding

    @classmethod
    def load(cls, name: str, decoding: DecodeConfig, tensor_parallel: int = 1) -> Writer:
        """Raises `UserError` with one sentence when the checkpoint cannot be used, `MachineError` where there are fewer
        GPUs than `tensor_parallel`."""
        model, tokenizer = load(resolve_model(name), tensor_parallel)
        return cls(model, tokenizer, decoding)

    def write(self, prompt: str, temperature: float, seed: int, watch: Watch) -> Draft:
        ids = self.tokenizer.encode_chat([{"role": "user", "content": prompt}])
        return self._denoise(ids, (), temperature, seed, watch)

    def rewrite_core(self, draft: Draft, temperature: float, seed: int, watch: Watch) -> Draft:
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
        watch: Watch,
    ) -> Draft:
        given = [*prompt, *beginning]
        limit = self.model.config.max_position_embeddings
        room = limit - len(given) - self.model.config.block_size
        if room < 1:
            raise UserError(f"the problem takes {len(given)} tokens, but this model reads at most {limit}; shorten it.")
        config = replace(
            self.decoding,
            max_new_tokens=min(self.decoding.max_new_tokens, room),
            temperature=temperature,
            stop_ids=self.tokenizer.stop_ids,
            vocab_limit=self.tokenizer.vocab_size,
        )
        start = time.perf_counter()
        with watch(self) as on_step:
            (trace,) = decode(self.model, [given], config, on_step, seeds=[seed])
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
