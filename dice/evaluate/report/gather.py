"""Reads run folders into one `Report`: everything that tables, figures and the page show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dice.decode.trace import Trace
from dice.errors import UserError
from dice.evaluate.failures import Failures, analyse, operator_family
from dice.evaluate.metrics import Comparison, Summary, compare, summarise
from dice.evaluate.report.published import Published, are_kernelbench, published, size_of
from dice.evaluate.run_folder import Generation, RunFolder, Task
from dice.files import JsonObject
from dice.files.atomic import read_json
from dice.verdict import ReplacedWork, Timing, Verdict

# The strictest first: the order of columns, and what others are compared with.
PROTOCOL_ORDER = ("dice", "dice-paper", "kernelbench", "kernelbench-fp16", "kernelbench-bf16", "kernelbench-v0")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer to one task of one run, and what each protocol says of it."""

    run: str
    task: Task
    sample: int
    family: str
    generation: Generation | None
    verdicts: dict[str, Verdict]

    @property
    def id(self) -> str:
        return f"{self.run}/{self.task.key}#{self.sample}"

    @property
    def timing(self) -> Timing | None:
        """Of the first protocol that timed it."""
        return next((verdict.timing for verdict in self.verdicts.values() if verdict.timing), None)


@dataclass(frozen=True, slots=True)
class Run:
    """One run's folder, read. `summaries` and `failures` by protocol, in the report's order.

    `name` is the folder's, and tells runs apart; `label` is what answered, as tables and figures call the run.
    """

    name: str
    label: str
    folder: RunFolder
    model: str
    size: str
    tasks: tuple[Task, ...]
    answers: tuple[Answer, ...]
    summaries: dict[str, Summary]
    failures: dict[str, Failures]

    def trace(self, answer: Answer) -> Trace | None:
        """How an answer was denoised, where that was kept."""
        if answer.generation is None or not answer.generation.trace:
            return None
        path = self.folder.path / answer.generation.trace
        try:
            return Trace.from_json(read_json(path))
        except (UserError, ValueError, TypeError, KeyError, AttributeError):
            return None  # the picture is an extra; a report of verdicts stands without it


@dataclass(frozen=True, slots=True)
class Report:
    runs: tuple[Run, ...]
    protocols: tuple[str, ...]
    comparisons: tuple[tuple[str, str, Comparison], ...]  # (run A, run B, ...) for the first run against each other
    published: tuple[Published, ...]  # empty unless all runs are over KernelBench's own problems
    replaced: ReplacedWork = "any"  # of the reference, by what counts as solved

    @property
    def answers(self) -> tuple[Answer, ...]:
        return tuple(answer for run in self.runs for answer in run.answers)

    def without_references(self) -> Report:
        """The same, to pass on where the problems' own files may not be: each is but named."""

        def bare(answer: Answer) -> Answer:
            named = f"# {answer.task.key} is left out of this report.\n"
            return replace(answer, task=replace(answer.task, source=named))

        runs = (replace(run, answers=tuple(map(bare, run.answers))) for run in self.runs)
        return replace(self, runs=tuple(runs))

    @property
    def problems(self) -> int:
        """How many different problems were asked for."""
        return len({task.key for run in self.runs for task in run.tasks})

    @property
    def has_levels(self) -> bool:
        return any(task.level for run in self.runs for task in run.tasks)

    def run_of(self, answer: Answer) -> Run:
        return next(run for run in self.runs if run.name == answer.run)

    def to_json(self) -> dict[str, object]:
        return {
            "runs": [
                {
                    "name": run.name,
                    "label": run.label,
                    "model": run.model,
                    "size": run.size,
                    "summaries": {name: summary.to_json() for name, summary in run.summaries.items()},
                    "failures": {name: asdict(failures) for name, failures in run.failures.items()},
                }
                for run in self.runs
            ],
            "protocols": list(self.protocols),
            "replaced": self.replaced,
            "comparisons": [{"a": a, "b": b} | asdict(found) for a, b, found in self.comparisons],
            "published": [asdict(row) for row in self.published],
        }


def gather(paths: Sequence[Path], protocols: Sequence[str] = (), replaced: ReplacedWork = "any") -> Report:
    """Read the runs under `protocols`, or under all that judged any of them. `replaced`: of the reference, by what
    counts as solved. Raises `UserError` where there is none."""
    folders = [RunFolder(path) for path in paths]
    known = {protocol for folder in folders for protocol in folder.protocols}
    for folder in folders:
        folder.tasks()  # says so where this is no run
    missing = [protocol for protocol in protocols if protocol not in known]
    if missing:
        have = ", ".join(_ordered(known)) or "none"
        raise UserError(f"Nothing was judged under {', '.join(missing)}; there are verdicts under: {have}.")
    if not known:
        raise UserError(f"{', '.join(map(str, paths))}: nothing has been judged yet; dice eval does it.")
    chosen = tuple(protocols) or tuple(_ordered(known))
    names = _names(paths)
    labels = _labels(folders, names)
    runs = tuple(_read(*one, chosen, replaced) for one in zip(folders, names, labels, strict=True))
    comparisons = [
        (runs[0].name, other.name, compare(runs[0].folder, other.folder, protocol, replaced=replaced))
        for other in runs[1:]
        for protocol in chosen
        if protocol in runs[0].summaries and protocol in other.summaries
    ]
    of_the_paper = published() if all(are_kernelbench(run.tasks) for run in runs) else []
    return Report(runs, chosen, tuple(comparisons), tuple(of_the_paper), replaced)


def _ordered(protocols: set[str]) -> list[str]:
    known = [name for name in PROTOCOL_ORDER if name in protocols]
    return known + sorted(protocols.difference(known))


def _names(paths: Sequence[Path]) -> list[str]:
    """Short, and different from each other."""
    short = [path.resolve().name for path in paths]
    if len(set(short)) == len(short):
        return short
    return [f"{path.resolve().parent.name}/{path.resolve().name}" for path in paths]


def _labels(folders: Sequence[RunFolder], names: Sequence[str]) -> list[str]:
    """What answered in each run: the paper's row or the model; with the run's name where two runs would be alike."""
    plain = [_model_name(folder.config) or name for folder, name in zip(folders, names, strict=True)]
    return [label if plain.count(label) == 1 else f"{label} ({name})" for label, name in zip(plain, names, strict=True)]


def _model_name(config: JsonObject) -> str:
    """Of a checkpoint's folder the last two parts: `rl/model` tells more than `model`."""
    model = str(config.get("row") or config.get("model") or "")
    return "/".join(Path(model).parts[-2:]) if model.startswith(("/", ".", "~")) or model.count("/") > 1 else model


def _read(folder: RunFolder, name: str, label: str, protocols: Sequence[str], replaced: ReplacedWork) -> Run:
    tasks, judged = folder.tasks(), {protocol: folder.judgements(protocol) for protocol in protocols}
    judged = {protocol: found for protocol, found in judged.items() if found}
    generations = {one.id: one for one in folder.generations()}
    by_key = {task.key: task for task in tasks}
    families = {task.key: operator_family(task.source, task.name) for task in tasks}
    verdicts = {protocol: {one.id: one.verdict for one in found} for protocol, found in judged.items()}
    ids = {key for found in verdicts.values() for key in found} | set(generations)
    order = {task.key: index for index, task in enumerate(tasks)}
    answers = [
        Answer(
            run=name,
            task=by_key[key],
            sample=sample,
            family=families[key],
            generation=generations.get((key, sample)),
            verdicts={protocol: found[key, sample] for protocol, found in verdicts.items() if (key, sample) in found},
        )
        for key, sample in sorted((one for one in ids if one[0] in by_key), key=lambda one: (order[one[0]], one[1]))
    ]
    summaries = {protocol: summarise(folder, protocol, replaced=replaced) for protocol in judged}
    config = folder.config
    return Run(
        name=name,
        label=label,
        folder=folder,
        model=str(config.get("model", name)),
        size=size_of(str(config.get("row") or "")),
        tasks=tuple(tasks),
        answers=tuple(answers),
        summaries=summaries,
        failures={protocol: analyse(tasks, found) for protocol, found in judged.items()},
    )
