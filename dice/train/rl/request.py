"""`Request`: what the model is asked for one response, and how its tokens become a kernel."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from dice.decode.trace import Trace
from dice.kernel import Kernel, SplitError
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import compact, extract_kernel, infill, infill_compact, one_shot
from dice.train.rl.config import Stage
from dice.train.rl.scaffold import QUOTES, Scaffold
from dice.train.rl.tasks import Task
from dice.verdict import Verdict

FENCE = "```python\n"
SHOWN = 1200  # characters of what went wrong that a prompt repeats


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt_ids` end inside the reply where a scaffold begins it. `group`: the problem's place in the step.

    `sample` counts the responses of a group, `turn` the attempts of a sample.
    """

    problem: Problem
    prompt_ids: tuple[int, ...]
    scaffold: Scaffold | None
    group: int
    sample: int
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Example:
    """A kernel of an earlier step, and what was wrong with it ("" for nothing)."""

    kernel: str
    fault: str = ""


class Desk:
    """Writes prompts and reads responses, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer, *, compact: bool, scaffolded: bool, response_prefix: str = "") -> None:
        self.tokenizer = tokenizer
        self._compact, self._scaffolded = compact, scaffolded
        self._prefix = tokenizer.encode(response_prefix, control=True)

    def ask(
        self, task: Task, stage: Stage, examples: Sequence[Example] = ()
    ) -> tuple[tuple[int, ...], Scaffold | None]:
        """Prompt ids and scaffold. A core that no scaffold can hold is asked for as a whole file."""
        shown = "".join(map(_shown, examples))
        if stage == "generate" or task.parts is None:
            return self._prompt(shown + (compact if self._compact else one_shot)(task.problem), None)
        text = (infill_compact if self._compact else infill)(task.problem, task.parts)
        return self._prompt(shown + text, Scaffold.of(task.parts) if self._scaffolded else None)

    def ask_again(self, request: Request, kernel: Kernel, verdict: Verdict) -> Request | None:
        """The request to mend `kernel`: told what went wrong, the model denoises its core anew. None: it has no core.

        The rest of the kernel is kept, also where that is what is wrong: one turn mends the CUDA source.
        """
        try:
            parts = kernel.split()
        except SplitError:
            return None
        scaffold = Scaffold.of(parts)
        if scaffold is None:
            return None
        question = (infill_compact if self._compact else infill)(request.problem, parts)
        shown = _shown(Example(kernel.source, fault(verdict)))
        prompt_ids, _ = self._prompt(shown + question, scaffold)
        return Request(request.problem, prompt_ids, scaffold, request.group, request.sample, request.turn + 1)

    def stop_ids(self) -> frozenset[int]:
        """Tokens that close a scaffold's string: a core that holds one has ended, whatever follows."""
        return frozenset(
            token
            for token in range(self.tokenizer.vocab_size)
            if any(quotes in self.tokenizer.decode([token]) for quotes in QUOTES)
        )

    def read(self, request: Request, trace: Trace) -> tuple[Kernel | None, Trace]:
        """The kernel of a response, and the trace without what was denoised after the end of its core."""
        text = self.tokenizer.decode(trace.response_ids)
        if request.scaffold is None:
            return extract_kernel(text), trace
        scaffold = request.scaffold
        if scaffold.closed(text):
            end = scaffold.used(text) + len(scaffold.quotes)
            ids = trace.response_ids
            kept = bisect_left(range(len(ids)), end, key=lambda count: len(self.tokenizer.decode(ids[:count])))
            trace = trace.cut(kept)
        return scaffold.fill(text), trace

    def _prompt(self, text: str, scaffold: Scaffold | None) -> tuple[tuple[int, ...], Scaffold | None]:
        ids = self.tokenizer.encode_chat([{"role": "user", "content": text}])
        if scaffold is not None:
            ids = [*ids, *self._prefix, *self.tokenizer.encode(FENCE + scaffold.beginning)]
        return tuple(ids), scaffold


def fault(verdict: Verdict) -> str:
    """What went wrong, for whoever has to mend it: the sentence, then compiler lines and failing values."""
    return "\n".join((verdict.message or verdict.outcome, *verdict.errors))[:SHOWN]


def _shown(example: Example) -> str:
    if not example.fault:
        return f"A kernel that is right:\n{FENCE}{example.kernel.strip()}\n```\n"
    return f"A kernel that is wrong:\n{FENCE}{example.kernel.strip()}\n```\nWhat is wrong with it:\n{example.fault}\n"
