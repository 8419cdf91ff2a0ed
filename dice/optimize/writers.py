"""Who writes a region's kernel: rules, a checkpoint of DICE's, or a model behind an endpoint, behind one seam.

A writer is asked again and again for one region. It is told what it wrote before and what became of it, and gives
another text, or None once it has no more to say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dice import generation
from dice.endpoint.client import Endpoint, Replies
from dice.endpoint.request import Request, RequestSettings
from dice.errors import UserError
from dice.kernel import Kernel
from dice.optimize.printing import Printed
from dice.optimize.region import Region
from dice.optimize.templates.answer import kernel_of
from dice.optimize.templates.emitter import CannotWrite
from dice.prompts import PROMPTS, extract_kernel
from dice.scaffold import completed
from dice.verdict import Verdict

log = logging.getLogger(__name__)
RESAMPLE_TEMPERATURE = 0.7  # of the second reply on
DRAWS, WARMER = 3, 0.3  # a text that was written before is drawn again, so often and each time so much warmer
DRAWS_APART = 1 << 16  # of seeds, so that those of later samples are others
TOLD = 6  # lines of a verdict that a writer is told


@dataclass(frozen=True, slots=True)
class Written:
    """A candidate of before, for whoever writes the next one."""

    kernel: Kernel | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Answer:
    """`kernel`: None where the reply held none. `why`: why there is none, where that is known."""

    kernel: Kernel | None
    why: str = ""


class KernelWriter(Protocol):
    """`is_certain`: what it writes is right as a rule, so that no cheap look comes before the full one."""

    name: str
    is_certain: bool

    def write(self, region: Region, printed: Printed, before: Sequence[Written]) -> Answer | None:
        """Another kernel for the region; None when it has no more to offer."""


class Templates:
    """Kernels by rule (`templates/`): one for each region, on tensor cores where those may sum a large product, and
    without them where that one is not right; none where the rules do not cover it."""

    name, is_certain = "templates", True

    def write(self, region: Region, printed: Printed, before: Sequence[Written]) -> Answer | None:
        if len(before) > 1 or any(one.verdict.correct for one in before):
            return None
        try:
            kernel = kernel_of(region, printed, tensor_cores=not before)
            known = before[-1].kernel if before else None
            return None if known is not None and known.source == kernel.source else Answer(kernel)
        except CannotWrite as error:
            return Answer(None, str(error))
        except Exception as error:  # a fault in a rule costs the module this region, and not the run
            log.exception("writing %s failed", region.title)
            return Answer(None, f"the rules failed with {type(error).__name__}: {error}")


class Checkpoint:
    """A block-diffusion checkpoint: greedy first, then drawn. It writes the CUDA source; all else of the file follows
    from the region's problem (`scaffold.py`) where it can. `drafts`: all its replies, by the region's key."""

    is_certain = False

    def __init__(self, name: str, writer: generation.Writer | None = None, prompt: str = "auto", seed: int = 0):
        self.name = name
        self.drafts: dict[str, list[generation.Draft]] = {}
        self._writer = writer or generation.Writer.load(name, generation.DECODING)
        self._prompt = PROMPTS[self._writer.model.config.prompt if prompt == "auto" else prompt]
        self._seed = seed

    def write(self, region: Region, printed: Printed, before: Sequence[Written]) -> Answer | None:
        number = len(before)
        known = {one.kernel.source for one in before if one.kernel is not None}
        drawn = self._writer.decoding.temperature or RESAMPLE_TEMPERATURE
        watch: generation.Watch = lambda writer: nullcontext(lambda step: None)  # noqa: E731 - it has a type
        for again in range(DRAWS):
            temperature = drawn + WARMER * again if number else self._writer.decoding.temperature
            seed = self._seed + number + again * DRAWS_APART
            try:
                draft = self._writer.write(self._prompt(printed.problem), temperature, seed, watch)
            except UserError as error:  # a region of more text than the model reads
                return Answer(None, str(error).rstrip(".")) if not number else None
            self.drafts.setdefault(region.key, []).append(draft)
            kernel = completed(printed.problem, draft.text) or extract_kernel(draft.text)
            if kernel is None or kernel.source not in known:
                return Answer(kernel)
        return Answer(None, "it writes what it wrote before")


class Remote:
    """A model behind an OpenAI-compatible endpoint, told what was wrong with its last kernel. Nothing is paid twice:
    the log of requests lies in the run's folder."""

    is_certain = False

    def __init__(self, settings: RequestSettings, key: str, ledger: Path):
        self.name = settings.model
        self._endpoint = Endpoint(settings, key, ledger)

    def write(self, region: Region, printed: Printed, before: Sequence[Written]) -> Answer | None:
        request = Request(question(printed, before), key=f"{region.key} {len(before)}")
        with Replies(self._endpoint, [request]) as replies:
            (reply,) = list(replies)
        if not reply.answered:
            return Answer(None, f"{reply.outcome}: {reply.error}")
        return Answer(extract_kernel(reply.text))


def question(printed: Printed, before: Sequence[Written]) -> str:
    """The prompt: the problem, and the last kernel with the verdict's words where there is one to mend."""
    text = PROMPTS["one-shot"](printed.problem)
    last = before[-1] if before else None
    if last is None or last.kernel is None:
        return text
    lines = "\n".join((last.verdict.message, *last.verdict.errors[:TOLD]))
    if last.verdict.correct:
        timing = last.verdict.timing
        said = f" at {timing.speedup:.2f} times PyTorch's speed" if timing else ""
        return f"{text}\nThis answer is right{said}. Write a faster one.\n```python\n{last.kernel.source}```\n"
    said = f"This answer is not right ({last.verdict.outcome}). Mend it.\n{lines}"
    return f"{text}\n{said}\n```python\n{last.kernel.source}```\n"


def make_writer(name: str, remote: Callable[[], KernelWriter] | None = None) -> KernelWriter:
    """By name: `templates`, `endpoint`, else a checkpoint. Raises `UserError` for one that cannot be used."""
    if name == "templates":
        return Templates()
    if name == "endpoint":
        if remote is None:
            raise UserError("The writer endpoint needs --base-url and --model.")
        return remote()
    return Checkpoint(name)
