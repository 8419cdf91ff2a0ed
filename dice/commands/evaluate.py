"""`dice eval`: a model over benchmark problems, under protocols, into a run folder; and `dice bench baseline`."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

import dice
from dice.commands.arguments import at_least, options
from dice.commands.asking import lines_of
from dice.commands.progress import bars
from dice.errors import UserError
from dice.evaluate.rows import ROWS, Row, endpoint_settings, find, resolve
from dice.evaluate.run_folder import RunFolder, Task
from dice.files import parse_json
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.cli import BenchBaseline, Eval
    from dice.evaluate.hardware import Gpu
    from dice.evaluate.metrics import Score, Summary
    from dice.evaluate.models import Model
    from dice.evaluate.run import Done

Settings = dict[str, Any]
NATIVE_DEFAULTS: Settings = {"max_new_tokens": 4096, "confidence_threshold": 0.9, "temperature": 0.0}
COMPACT_DEFAULTS: Settings = {"max_new_tokens": 2048, "confidence_threshold": 0.99, "temperature": 0.0}
MOST_SAMPLES = 10_000  # of one problem: a list of them is made
OUR_OWN = frozenset({"remasking", "confidence_threshold", "mode"})  # settings that only our decoder has
OTHER_DEFAULTS: Settings = {"max_new_tokens": 4096, "temperature": 0.0}


def run(args: Eval) -> int:
    """0 when all was generated and judged; 3, with a sentence, where something is still lacking."""
    if args.list_rows:
        return _list_rows(args.json)
    if args.compare is not None:
        return _compare(args, *args.compare)
    if args.export_kernelbench is not None:
        return _export(args, args.export_kernelbench)
    from dice.evaluate.run import check_finished, locked

    if args.report is not None:
        args.report.mkdir(parents=True, exist_ok=True)  # refused before any work is spent
    if args.reverify is not None:
        RunFolder(args.reverify).tasks()  # raises where it is no run, before a lock is made
        with locked(args.reverify) as folder:
            done, account = _rejudge(args, folder), None
    else:
        plan = _plan(args)
        with locked(args.out) as folder:
            done, account = _generate(args, plan, folder)
    _show(args, folder, done, account)
    if args.report is not None:
        from dice.commands.report import write_all
        from dice.evaluate.report import gather

        write_all(gather([folder.path], ()), args.report)
    check_finished(done)
    return 0


@dataclass(frozen=True)
class Plan:
    """What is asked, resolved."""

    tasks: list[Task]
    row: Row | None
    kind: str
    name: str  # of the model
    settings: Settings
    prompt: str
    gpu: Gpu | None

    def config(self, args: Eval) -> dict[str, Any]:
        """What a run's folder is held against."""
        return {
            "model": self.name,
            "kind": self.kind,
            "family": self.row.family if self.row else "",
            "row": self.row.name if self.row else "",
            "settings": self.settings,
            "samples": args.samples,
            "prompt": self.prompt,
            "hardware": self.gpu.name if self.gpu else "",
            "seed": args.seed,
            "problems": str(args.problems),
            "tasks": _fingerprint(self.tasks),
            "versions": {"dice": dice.__version__, "torch": version("torch"), "python": platform.python_version()},
        }


def _plan(args: Eval) -> Plan:
    """Raises `UserError` for what cannot be meant, before anything is written."""
    from dice.evaluate.hardware import find_gpu
    from dice.evaluate.tasks import load_tasks

    if args.problems is None:
        raise UserError("Give --problems: a folder in KernelBench's form, any folder of problems, or a table.")
    at_least(1, samples=args.samples, limit=args.limit)
    at_least(0, batch=args.batch)
    if args.samples > MOST_SAMPLES:
        raise UserError(f"--samples must be at most {MOST_SAMPLES:,}, not {args.samples}.")
    row = find(args.row) if args.row else None
    tasks = load_tasks(args.problems, args.level, args.ids, args.subset)[: args.limit]
    kind = _kind(args, row)
    name = _name(args, row, kind)
    taught = _taught(name) if kind == "native" and row is None else "one-shot"
    settings = _settings(args, row, kind, taught)
    if kind != "answers" and args.samples > 1 and not settings.get("temperature"):
        raise UserError("Several samples at temperature 0 would all be the same; give --temperature.")
    gpu = find_gpu(args.hardware) if args.hardware else None
    prompt = taught if args.prompt == "auto" else args.prompt
    return Plan(tasks, row, kind, name, settings, prompt, gpu)


def _generate(args: Eval, plan: Plan, folder: RunFolder) -> tuple[Done, dict[str, Any] | None]:
    from dice.evaluate.models.endpoint import EndpointModel
    from dice.evaluate.run import begin, evaluate, questions

    judging = _judging(args)
    begin(folder, plan.config(args), plan.tasks)
    made: list[Model] = []

    def make_model() -> Model:
        made.append(_make_model(args, plan, folder))
        return made[0]

    asked = questions(plan.tasks, args.samples, plan.prompt, plan.gpu, args.seed)
    with bars() as show:
        done = evaluate(folder, asked, make_model, judging, show=show)
    return done, made[0].account if made and isinstance(made[0], EndpointModel) else None


def _rejudge(args: Eval, folder: RunFolder) -> Done:
    from dice.evaluate.run import evaluate

    def make_model() -> Model:
        raise AssertionError("nothing is generated")

    with bars() as show:
        return evaluate(folder, (), make_model, _judging(args), show=show)


def _judging(args: Eval) -> Any:
    from dice.evaluate.run import Judging
    from dice.verify.options import resolve_backend

    if not args.protocol:
        raise UserError("Give at least one --protocol.")
    at_least(1, workers=args.workers)
    resolve_backend(args.backend)  # says that it cannot run here before a model is loaded
    asked = options(
        trials=args.trials,
        timing=args.timing,
        timing_s=args.timing_seconds,
        compile_timeout_s=args.compile_timeout,
        run_timeout_s=args.run_timeout,
        scale=args.scale,
        compile_baseline=args.compile_baseline,
    )
    return Judging(tuple(dict.fromkeys(args.protocol)), args.backend, asked, args.workers, cache=args.cache)


def _kind(args: Eval, row: Row | None) -> str:
    """What answers: as told, or as the other flags say, or as the row does."""
    if args.kind != "auto":
        return args.kind
    if args.answers is not None:
        return "answers"
    if args.endpoint.base_url:
        return "endpoint"
    if row is None:
        return "native"
    kind, why = resolve(row)
    if kind in ("endpoint", "answers"):
        raise UserError(why)
    if why:
        print(f"dice: {why}", file=sys.stderr)
    return kind


def _name(args: Eval, row: Row | None, kind: str) -> str:
    name = args.model or (row.model if row else "")
    if not name and kind == "answers":
        return args.answers.name if args.answers else ""
    if not name:
        raise UserError("Give --model, or --row with a row of the paper's tables, or --answers.")
    return name


def _taught(name: str) -> str:
    """The form of prompt that a checkpoint of ours was trained on, as its config.json says."""
    from dice.model.checkpoint import read_config, resolve_model

    return read_config(resolve_model(name)).prompt


def _settings(args: Eval, row: Row | None, kind: str, prompt: str) -> Settings:
    """The row's, or the kind's own defaults, under what the command line says."""
    if kind == "answers":
        return {}
    if row is not None:
        settings = dict(row.settings)
    elif kind == "native":
        settings = dict(COMPACT_DEFAULTS if prompt == "compact" else NATIVE_DEFAULTS)
    else:
        settings = dict(OTHER_DEFAULTS)
    given = {
        "max_new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "remasking": args.remasking,
        "confidence_threshold": args.confidence_threshold,
        "block_size": args.block_size,
    }
    settings |= {key: value for key, value in given.items() if value is not None} | dict(map(_setting, args.setting))
    if kind == "endpoint":
        if args.setting:
            raise UserError("An endpoint is told a temperature and a longest answer; --setting does not reach it.")
        temperature, longest = endpoint_settings(settings)
        return {"temperature": temperature, "max_new_tokens": longest}
    if kind == "transformers":  # which has its own names for the rest
        return {key: value for key, value in settings.items() if key not in OUR_OWN}
    return settings


def _setting(text: str) -> tuple[str, Any]:
    """A name and its value: a number, true, false, or else a word."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UserError(f"{text!r} is no setting such as steps=512.")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value


def _make_model(args: Eval, plan: Plan, folder: RunFolder) -> Model:
    if plan.kind == "answers":
        from dice.evaluate.models.answers import AnswersModel

        if args.answers is None:
            raise UserError("Give --answers: a folder of kernels, or a JSON or JSONL file of them.")
        return AnswersModel(args.answers, plan.tasks)
    if plan.kind == "endpoint":
        return _endpoint(args, plan, folder)
    if plan.kind == "transformers":
        from dice.evaluate.models.huggingface import TransformersModel

        return TransformersModel(plan.name, plan.settings, trust_remote_code=args.trust_remote_code)
    from dice.evaluate.models.native import NativeModel

    return NativeModel(plan.name, plan.settings, batch=args.batch, traces=args.traces)


def _endpoint(args: Eval, plan: Plan, folder: RunFolder) -> Model:
    from dice.commands.asking import key_of, settings_of
    from dice.evaluate.models.endpoint import EndpointModel

    temperature, longest = plan.settings["temperature"], plan.settings["max_new_tokens"]
    settings = settings_of(args.endpoint, plan.name, temperature=temperature, max_tokens=longest)
    return EndpointModel(settings, key_of(args.endpoint), folder.path / "requests.jsonl")


def _fingerprint(tasks: Sequence[Task]) -> str:
    text = json.dumps([(task.key, task.source) for task in tasks])
    return f"{len(tasks)} problems, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _show(args: Eval, folder: RunFolder, done: Done, account: dict[str, Any] | None) -> None:
    from dice.evaluate.metrics import summarise

    summaries = [summarise(folder, protocol) for protocol in folder.protocols]
    if args.json:
        print(
            json.dumps(
                {
                    "run": str(folder.path),
                    "generated": done.generated,
                    "judged": done.judged,
                    "untried": done.untried,
                    "faults": done.faults,
                    "endpoint": account,
                    "protocols": {one.protocol: one.to_json() for one in summaries},
                }
            )
        )
        return
    _print_summaries(summaries)
    if account is not None:
        print("\n".join(lines_of(account)))
    print(f"{done.generated} answers generated, {done.judged} judged; all of it is in {folder.path}")


def _print_summaries(summaries: Sequence[Summary]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    wide = console.width >= 104  # room for every interval; the report has them all
    table = Table(box=None, padding=(0, 2 if wide else 1, 0, 0))
    for name in ("protocol", "level", "judged", "Exec %", "fast_1 %", "fast_2 %", "speed-up", "deceptive %"):
        table.add_column(name, justify="left" if name == "protocol" else "right", no_wrap=True)
    for one in summaries:
        levels = [(str(level), score) for level, score in one.levels.items()]
        for level, score in (*levels, *([("all", one.total)] if len(levels) > 1 else [])):
            table.add_row(one.protocol, level, *_cells(score, wide))
    console.print(table)


def _cells(score: Score, wide: bool) -> list[str]:
    shares = [_percent(share, wide) for share in (score.fast1, score.fast2)]
    speedup = "-" if score.speedup_correct.value is None else f"{score.speedup_correct.value:.2f}x"
    judged = f"{score.judged}" if not score.unjudged else f"{score.judged} of {score.judged + score.unjudged}"
    return [judged, _percent(score.exec), *shares, speedup, _percent(score.deception, wide)]


def _percent(estimate: Any, with_interval: bool = True) -> str:
    if with_interval or estimate.value is None:
        return str(estimate.percent())
    return f"{100 * estimate.value:.1f}"


def _list_rows(as_json: bool) -> int:
    if as_json:
        print(json.dumps([row.to_json() for row in ROWS]))
        return 0
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("table", "row", "size", "model", "runs as", "Exec by level %"):
        table.add_column(name, no_wrap=True)
    for row in ROWS:
        numbers = " / ".join(f"{row.published[level][0]:g}" for level in (1, 2, 3))
        table.add_row(str(row.table), row.name, row.size, row.model, resolve(row)[0], numbers)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0


def _compare(args: Eval, first: Path, second: Path) -> int:
    from dice.evaluate.metrics import compare

    for path in (first, second):
        RunFolder(path).tasks()
    found = [compare(RunFolder(first), RunFolder(second), protocol) for protocol in args.protocol]
    if args.json:
        print(json.dumps([one.to_json() for one in found]))
        return 0
    for one in found:
        if not one.problems:
            raise UserError(f"{first} and {second} have judged no problem in common under {one.protocol}.")
        print(f"{one.protocol}: {second.name} - {first.name}, {one.problems} problems")
        for name, estimate in (("Exec", one.exec), ("fast_1", one.fast1), ("fast_2", one.fast2)):
            print(f"  {name}: {_percent(estimate)}")
        print(f"  better on {one.better}, worse on {one.worse}: sign test p = {one.p_value:.3g}")
    return 0


def _export(args: Eval, path: Path) -> int:
    from dice.evaluate.interchange import export_kernelbench, export_run_folders

    if args.run_folder is None:
        raise UserError("Say which run to export: dice eval --export-kernelbench FILE RUN.")
    if len(args.protocol) != 1:
        raise UserError("Give one --protocol to export.")
    export = export_kernelbench if path.suffix == ".json" else export_run_folders
    files = export(RunFolder(args.run_folder), args.protocol[0], path)
    print(json.dumps([str(file) for file in files]) if args.json else "\n".join(map(str, files)))
    return 0


def baseline(args: BenchBaseline) -> int:
    """0 when every problem was timed, else 1."""
    from dice.evaluate.baseline import file_of, measure_baselines
    from dice.evaluate.tasks import load_tasks

    tasks = load_tasks(args.problems, args.level, args.ids)
    with bars() as show:
        failures = measure_baselines(tasks, args.out, args.modes, args.trials, partial(show, "timed"))
    files = [str(file_of(args.out, mode)) for mode in args.modes]
    if args.json:
        lost = [{"task": one.task, "mode": one.mode, "message": one.message} for one in failures]
        print(json.dumps({"files": files, "failures": lost}))
    else:
        for one in failures:
            print(f"{one.task} ({one.mode}): {one.message}", file=sys.stderr)
        print("\n".join(files))
    return 1 if failures else 0
