"""`dice data difficulty SET...`: problems labelled and put in the order from easy to hard."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from dice.commands.arguments import Endpoint, at_least, spare
from dice.commands.endpoint_args import key_of, lines_of, settings_of
from dice.commands.progress import bars
from dice.errors import UserError
from dice.files import JsonObject
from dice.problem import Problem

if TYPE_CHECKING:
    from dice.data.difficulty import Difficulty
    from dice.data.sample import Sample

SHOWN = 10


Show = Callable[[int, int], None]


@dataclass
class DifficultyCommand:
    """Label problems single, fusion or model, and put them in the order from easy to hard.

    By a look at what each runs; or, given --base-url and --model, by asking a teacher, with the offline labels beside.

    Example: dice data difficulty problems -o ordered.parquet
    """

    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="SET", help_behavior_hint="")] = ()
    """Sets of samples, problem files, folders of them, or tables with a source column."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Parquet file for the labelled set; files beside it keep what is done, and an interrupted run resumes there."""
    workers: int = os.cpu_count() or 1
    """Problems run at once."""
    model: str = ""
    """The teacher's name at the endpoint."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    temperature: float = 0.0
    max_tokens: int = 2048
    """Longest answer, in tokens."""
    json: bool = False
    """Print everything as JSON."""

    def run(self) -> int:
        if not self.paths:
            raise UserError("Give at least one SET: a folder of problems, a problem file or a table.")
        at_least(1, workers=self.workers)
        spare(self.paths, self.out)
        from dice.data import difficulty
        from dice.data.sample import write_samples

        samples = [sample for path in self.paths for sample in _read(path)]
        problems = [sample.as_problem() for sample in samples]
        taught: dict[str, str] = {}
        report: JsonObject = {}
        with bars() as show:
            record = self.out.with_suffix(".jsonl") if self.out else None
            count = partial(show, "labelling")
            found = difficulty.label_all(problems, workers=self.workers, record=record, progress=count)
            if self.endpoint.base_url or self.model:
                taught, report = _ask(self, problems, found, partial(show, "asking"))
        labels = [
            _taught(one, taught.get(problem.id), self.model) for one, problem in zip(found, problems, strict=True)
        ]
        order = sorted(range(len(samples)), key=lambda index: (*labels[index].order, index))
        if self.out:
            write_samples(self.out, (_labelled(samples[index], labels[index]) for index in order))
        report = _summary(labels) | report
        if self.json:
            rows = [{"name": samples[index].name, **labels[index].to_json()} for index in order]
            print(json.dumps(report | {"problems": rows}))
        else:
            _print(report, len(samples), self.out)
        return 0


def _ask(
    args: DifficultyCommand, problems: Sequence[Problem], found: Sequence[Difficulty], show: Show
) -> tuple[dict[str, str], JsonObject]:
    """The teacher's levels by problem id, and where they differ from the offline labeller's."""
    from dice.data.difficulty.teacher import ask_levels
    from dice.endpoint.client import Endpoint as Client

    settings = settings_of(args.endpoint, args.model, temperature=args.temperature, max_tokens=args.max_tokens)
    key = key_of(args.endpoint)
    log = args.out.with_suffix(".requests.jsonl") if args.out else None
    endpoints: list[Client] = []

    def make_endpoint() -> Client:
        endpoints.append(Client(settings, key, log))
        return endpoints[-1]

    taught, unparsed = ask_levels(problems, make_endpoint, show)
    rows = [
        {"name": problem.name, "teacher": taught[problem.id], "offline": label.level, "why": label.why}
        for problem, label in zip(problems, found, strict=True)
        if taught.get(problem.id, label.level) != label.level
    ]
    account = endpoints[-1].account.to_json()
    return taught, {"taught": len(taught), "unparsed": unparsed, "disagreements": rows, "endpoint": account}


def _print(report: JsonObject, total: int, out: Path | None) -> None:
    counts = ", ".join(f"{count} {level}" for level, count in report["levels"].items())
    print(f"{total} problems: {counts}; {report['by_text']} could not be run and were labelled by their text")
    if "taught" in report:
        print("\n".join(lines_of(report["endpoint"])))
        rows = report["disagreements"]
        print(f"the teacher labelled {report['taught']}; it differs from the offline labeller on {len(rows)}")
        for row in rows[:SHOWN]:
            print(f"  {row['name']}: teacher {row['teacher']}, offline {row['offline']} ({row['why']})")
    if out:
        print(f"written to {out}, easy to hard")


def _read(path: Path) -> list[Sample]:
    from dice.data.sample import Sample, is_sample_file, read_samples
    from dice.data.sources import read_problems

    if is_sample_file(path):
        return list(read_samples(path))
    return [Sample(problem.source, name=problem.name) for problem in read_problems([path])]


def _labelled(sample: Sample, label: Difficulty) -> Sample:
    return replace(sample, difficulty=label.level, meta=sample.meta | {"difficulty": label.to_json()})


def _taught(label: Difficulty, level: str | None, model: str) -> Difficulty:
    """The teacher's level, where it gave one, with the place within it by the offline labeller."""
    return label if level is None else replace(label, level=level, by=model)


def _summary(labels: Sequence[Difficulty]) -> dict[str, object]:
    from dice.data.difficulty import LEVELS

    counts = Counter(label.level for label in labels)
    return {
        "levels": {level: counts[level] for level in LEVELS},
        "by_text": sum(label.by == "text" for label in labels),
    }
