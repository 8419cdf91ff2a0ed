"""What a run asks of whatever writes kernels: the protocol `Model`, its questions and its answers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dice.evaluate.run_folder import Task
from dice.files import JsonObject


@dataclass(frozen=True, slots=True)
class Question:
    """One answer that is wanted: sample number `sample` (from 0) to `task`, asked by `prompt`."""

    task: Task
    sample: int
    prompt: str
    seed: int = 0  # of the run

    @property
    def id(self) -> tuple[str, int]:
        return self.task.key, self.sample

    @property
    def own_seed(self) -> int:
        """A seed for this answer alone: the same whatever else is asked, and in whatever order."""
        digest = hashlib.sha256(f"{self.seed}\0{self.task.key}\0{self.sample}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 2


@dataclass(frozen=True, slots=True)
class Answer:
    """What came. `kernel`: the source itself, from models that give no text around it; else it is sought in `text`.

    `passing`: an error that says nothing about the question (no connection, no money left): it is asked again by the
    next run. An error that is not `passing` is the question's own, and counts as an answer without a kernel.
    """

    text: str = ""
    kernel: str | None = None
    stop: str = "end"  # "end" | "length" | "error"
    error: str = ""
    passing: bool = False
    prompt_tokens: int = 0
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    trace: JsonObject | None = None
    more: JsonObject = field(default_factory=dict)


class Model(Protocol):
    """`gpu`: the index of the GPU of this machine that it computes on, which no kernel may be timed on meanwhile."""

    gpu: int | None

    def answer(self, questions: Sequence[Question]) -> Iterator[tuple[Question, Answer]]:
        """An answer to every question, in any order, as they come."""

    def close(self) -> None:
        """Give back what it holds. May be called from another thread while it answers, which then ends soon."""
