"""What the model is asked for one response, and how its tokens become a kernel.

In the infilling stage a request may carry a `Scaffold`: a kernel file whose CUDA source is open, and everything else
fixed (paper Fig. 4). What is written goes inside a string literal and cannot leave it: no import, no call and no
`forward` can be changed, so a kernel cannot be left unbuilt, unbound or uncalled.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from dice.decode.trace import Trace
from dice.kernel import Kernel, KernelParts
from dice.model.tokenizer import Tokenizer
from dice.problem import Problem
from dice.prompts import compact, extract_kernel, infill, infill_compact, one_shot

InfillPrompt = Callable[[Problem, KernelParts], str]
FENCE = "```python\n"
QUOTES = ('"""', "'''")

# One triple-quoted literal that is no f-string, with whatever assignment it stands in. Braces in an f-string would be
# Python that runs.
_CORE = re.compile(
    r"""(?P<head>[^"'#]*?(?<![A-Za-z])[rRuU]?)(?P<quotes>\"\"\"|''')(?P<breaks>[\r\n]*+)(?P<body>.*)(?P=quotes)(?P<tail>\s*)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Scaffold:
    """`beginning` ends with the opening quotes of the core and the line ends after them, `end` begins with `quotes`."""

    beginning: str
    end: str
    quotes: str

    @classmethod
    def of(cls, parts: KernelParts) -> Scaffold | None:
        """None when the core is anything but a single triple-quoted string."""
        match = _CORE.fullmatch(parts.core)
        if match is None or match["quotes"] in match["body"]:
            return None
        quotes = match["quotes"]
        return cls(
            f"{parts.prefix}{match['head']}{quotes}{match['breaks']}", f"{quotes}{match['tail']}{parts.suffix}", quotes
        )

    def used(self, written: str) -> int:
        """How many characters of `written` belong to the core: those before the first closing quotes."""
        place = written.find(self.quotes)
        return len(written) if place < 0 else place

    def closed(self, written: str) -> bool:
        return self.quotes in written

    def fill(self, written: str) -> Kernel:
        """The whole file. Backslashes and quotes at the end of the core would change where it ends, and are dropped."""
        body = written[: self.used(written)].rstrip("\\" + self.quotes)
        return Kernel(f"{self.beginning}{body}{self.end}")


@dataclass(frozen=True, slots=True)
class KernelRequest:
    """`prompt_ids` end inside the reply where a scaffold begins it. `group`: the problem's place in the step.

    `sample` counts the responses of a group.
    """

    problem: Problem
    prompt_ids: tuple[int, ...]
    scaffold: Scaffold | None
    group: int
    sample: int


class PromptBuilder:
    """Writes prompts for one tokenizer, and parses the responses to them."""

    def __init__(
        self, tokenizer: Tokenizer, *, compact: bool, scaffolded: bool, response_prefix: str = "",
        infill: InfillPrompt = infill,
    ) -> None:  # fmt: skip
        """`infill`: how the core of a kernel is asked for, where prompts are not compact."""
        self.tokenizer = tokenizer
        self._compact, self._scaffolded = compact, scaffolded
        self._infill = infill_compact if compact else infill
        self._prefix = tokenizer.encode(response_prefix, control=True)

    def build(self, problem: Problem, parts: KernelParts | None = None) -> tuple[tuple[int, ...], Scaffold | None]:
        """Prompt ids and scaffold. `parts`: ask for the core of this kernel, else for a whole one.

        A core that no scaffold can hold is asked for as a whole file.
        """
        if parts is None:
            return self._encode((compact if self._compact else one_shot)(problem), None)
        return self._encode(self._infill(problem, parts), Scaffold.of(parts) if self._scaffolded else None)

    def stop_ids(self) -> frozenset[int]:
        """Tokens that close a scaffold's string: a core that holds one has ended, whatever follows."""
        return frozenset(
            token
            for token in range(self.tokenizer.vocab_size)
            if any(quotes in self.tokenizer.decode([token]) for quotes in QUOTES)
        )

    def parse(self, request: KernelRequest, trace: Trace) -> tuple[Kernel | None, Trace]:
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

    def _encode(self, text: str, scaffold: Scaffold | None) -> tuple[tuple[int, ...], Scaffold | None]:
        ids = self.tokenizer.encode_chat([{"role": "user", "content": text}])
        if scaffold is not None:
            ids = [*ids, *self._prefix, *self.tokenizer.encode(FENCE + scaffold.beginning)]
        return tuple(ids), scaffold
