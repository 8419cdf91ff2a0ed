"""A run's folder: what was asked, what was generated, what each protocol says of it. Readers and writers share it.

    run.json                  what was asked, resolved: model, settings, problems, versions
    problems.json             the `Task`s, with their sources
    generations.jsonl         one `Generation` a line, appended as it comes
    verdicts/PROTOCOL.jsonl   one `Judgement` a line, appended as it comes
    traces/                   denoising traces, where the model has any and they were asked for

Files are appended a whole line at a time and synced, so that a kill loses no more than the line under way; a torn last
line is dropped by the next run. A (problem, sample) occurs once in each file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from dice.errors import UserError
from dice.files import JsonObject
from dice.files.atomic import read_json, write_json
from dice.files.journal import append_row, read_rows
from dice.problem import Problem
from dice.prompts import first_fence
from dice.verdict import Verdict
from dice.verify.protocols import counts_as_published

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """One problem of a benchmark. `key` names it in a run: `level1/19_ReLU`."""

    key: str
    level: int
    number: int  # the benchmark's own
    name: str
    source: str

    def as_problem(self) -> Problem:
        return Problem(self.source, name=self.name, level=self.level)


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer to one task. `kernel`: the source found in `reply`, None where none was."""

    task: str
    sample: int
    reply: str
    kernel: str | None
    stop: str = ""  # "end" | "length" | "error"
    error: str = ""  # of the endpoint or the decoder; then there is no reply
    prompt_tokens: int = 0
    tokens: int = 0
    forwards: int = 0  # of a diffusion model: tokens / forwards is what a step reveals
    seconds: float = 0.0
    cost: float = 0.0  # USD
    trace: str = ""  # file below the folder
    more: JsonObject = field(default_factory=dict)

    @property
    def id(self) -> tuple[str, int]:
        return self.task, self.sample

    def kernel_under(self, protocol: str) -> str | None:
        """The kernel that a protocol judges: what its own evaluation takes from the reply. Kernels that were written
        elsewhere, without a reply around them, are the same under all."""
        if not counts_as_published(protocol) or self.reply in ("", self.kernel):
            return self.kernel
        found = first_fence(self.reply)
        return found.source if found else None


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a protocol says of one answer."""

    task: str
    sample: int
    verdict: Verdict

    @property
    def id(self) -> tuple[str, int]:
        return self.task, self.sample


class RunFolder:
    """Reads and appends. One process writes at a time; `dice eval` holds a lock."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def config(self) -> JsonObject:
        return dict(self._read("run.json"))

    def begin(self, config: JsonObject, tasks: list[Task]) -> None:
        """Write what was asked. Raises `UserError` where the folder holds answers of another run."""
        path = self.path / "run.json"
        begun = path.exists() and (self.path / "generations.jsonl").exists()
        if begun and self.config != json.loads(json.dumps(config)):
            changed = [key for key in {*config, *self.config} if config.get(key) != self.config.get(key)]
            raise UserError(f"{self.path} holds a run with other {', '.join(sorted(changed))}; choose another folder.")
        write_json(self.path / "problems.json", [asdict(task) for task in tasks])
        write_json(path, config)

    def tasks(self) -> list[Task]:
        return self._all(Task, self._read("problems.json"))

    def generations(self) -> list[Generation]:
        return self._all(Generation, read_rows(self.path / "generations.jsonl"))

    def judgements(self, protocol: str) -> list[Judgement]:
        """One for each answer: the last, where a backend could not say and another one did."""
        rows = read_rows(self.path / "verdicts" / f"{protocol}.jsonl")
        return list({one.id: one for one in self._all(_judgement, rows)}.values())

    @property
    def protocols(self) -> list[str]:
        """Those that judged anything, by name."""
        return sorted(path.stem for path in self.path.glob("verdicts/*.jsonl"))

    def add_generation(self, generation: Generation) -> None:
        append_row(self.path / "generations.jsonl", asdict(generation))

    def add_judgement(self, protocol: str, judgement: Judgement) -> None:
        row = {"task": judgement.task, "sample": judgement.sample, "verdict": judgement.verdict.to_json()}
        append_row(self.path / "verdicts" / f"{protocol}.jsonl", row)

    def _all(self, kind: Callable[..., T], rows: Iterable[Any]) -> list[T]:
        what = kind.__name__.strip("_").capitalize()
        try:
            found = [kind(**row) for row in rows]
            {getattr(one, "id", None) for one in found}  # which must be hashable
            return found
        except (TypeError, ValueError, LookupError, AttributeError):
            raise UserError(f"{self.path} is a run of another version of dice: a {what} differs.") from None

    def _read(self, name: str) -> Any:
        path = self.path / name
        if not path.exists():
            raise UserError(f"{self.path} is no run of `dice eval`: it has no {name}.")
        return read_json(path)


def _judgement(task: str, sample: int, verdict: JsonObject, **_: Any) -> Judgement:
    return Judgement(task, sample, Verdict.from_json(verdict))
