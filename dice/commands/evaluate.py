"""`dice eval`: a model over benchmark problems, under protocols, into a run folder; and `dice bench baseline`."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

import dice
from dice.commands.arguments import Backend, Clustered, Endpoint, Protocol, Remasking, Replaced, at_least, options
from dice.commands.endpoint_args import lines_of
from dice.commands.progress import bars
from dice.commands.scores_view import list_rows, percent, print_summaries
from dice.errors import UserError
from dice.evaluate.paper_rows import DecodingSettings, PaperRow, endpoint_settings, find, resolve
from dice.evaluate.run_folder import RunFolder, Task
from dice.files import JsonObject
from dice.files.bounded import parse_json

if TYPE_CHECKING:
    from dice.evaluate.hardware import Gpu
    from dice.evaluate.kernelbench_prompt import KernelBenchPrompt
    from dice.evaluate.models import Model
    from dice.evaluate.run import Done


NATIVE_DEFAULTS: DecodingSettings = {"max_new_tokens": 4096, "confidence_threshold": 0.9, "temperature": 0.0}
COMPACT_DEFAULTS: DecodingSettings = {"max_new_tokens": 2048, "confidence_threshold": 0.99, "temperature": 0.0}
MOST_SAMPLES = 10_000  # of one problem: a list of them is made
OUR_OWN = frozenset({"remasking", "confidence_threshold", "mode"})  # settings that only our decoder has
OTHER_DEFAULTS: DecodingSettings = {"max_new_tokens": 4096, "temperature": 0.0}


@dataclass
class Eval(Clustered):
    """Evaluate a model on KernelBench, or any problems, under one or several protocols. A killed run goes on.

    An answer is generated once; each protocol judges the same answers, also later: --reverify.

    Example: dice eval --model nano --problems KernelBench/KernelBench --level 1 --out run
    """

    run_folder: Annotated[Positional[Path | None], arg(metavar="RUN")] = None
    """With --export-kernelbench: the run to export."""
    model: str = ""
    """nano, a checkpoint's folder or hub id; the model's name with --base-url; what to call it with --answers."""
    row: str = ""
    """A row of the paper's tables, with its model and its settings, e.g. LLaDA-1.5; --model may name local weights."""
    list_rows: bool = False
    """List the rows of the paper's tables, and what runs each."""
    kind: Literal["auto", "native", "endpoint", "answers", "transformers"] = "auto"
    """What answers: our decoder, an endpoint, kernels written elsewhere, or transformers; by default as flags say."""
    answers: Path | None = None
    """Kernels written elsewhere: a KernelBench run folder, a folder of files named as their problems, JSON or JSONL."""
    problems: Path | None = None
    """KernelBench's folder (level1/ level2/ level3/), any folder of problems, or a table with a source column."""
    level: tuple[int, ...] = ()
    """These levels alone."""
    ids: str = ""
    """These numbers alone, of each level: 1-20,33."""
    subset: Path | None = None
    """A file with one problem a line: level1/19_ReLU, a name or a number."""
    limit: int | None = None
    """The first so many problems alone."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("run")
    """The run's folder; the same command goes on where a run was killed."""
    samples: int = 1
    """Answers to each problem; above 1, pass@k is reported."""
    protocol: tuple[Protocol, ...] = ("dice",)
    """How right is judged; several judge the same answers."""
    replaced: Replaced = "any"
    """What counts as solved: a right kernel for any part of the reference, as KernelBench counts, or for all of its
    operators. The other share stands beside it, from the same verdicts."""
    reverify: Path | None = None
    """Judge the answers of this run under --protocol, and generate nothing."""
    compare: tuple[Path, Path] | None = None
    """Compare two runs problem by problem: the second against the first."""
    export_kernelbench: Path | None = None
    """Write RUN under the one --protocol as KernelBench's files: a .json path is its eval_results.json; a folder gets a
    run folder for each level, kernels included."""
    prompt: Literal["auto", "one-shot", "zero-shot", "few-shot", "compact", "kernelbench"] = "auto"
    """Our wording of KernelBench's one-shot prompt, or a variant; kernelbench is its own text, from a checkout. auto:
    one-shot, compact for models taught so, as nano, and kernelbench for a --row where its checkout is known."""
    kernelbench: Path | None = None
    """A checkout of KernelBench to read its own one-shot prompt from; found by itself where --problems is in one."""
    hardware: str = ""
    """State a GPU's facts in the prompt: here, or a name such as "H100 SXM"."""
    seed: int = 0
    max_new_tokens: int | None = None
    """Longest reply, in tokens."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    remasking: Remasking | None = None
    confidence_threshold: float | None = None
    block_size: int | None = None
    setting: tuple[str, ...] = ()
    """Further settings of the model's decoding: steps=512 cfg_scale=1.5 algorithm=origin."""
    batch: int = 0
    """Answers decoded at once; 0: 64 on a GPU, 4 on a CPU."""
    tensor_parallel: int = 1
    """GPUs of this machine that the model is cut over; without a GPU, processes."""
    traces: bool = False
    """Keep how each answer was denoised."""
    trust_remote_code: bool = False
    """transformers: run the code that comes with the weights, which may do anything."""
    endpoint: Endpoint = field(default_factory=Endpoint)
    backend: Backend = "auto"
    """Where kernels run: cuda (a GPU), emulated (the CPU), or whichever this machine has."""
    timing: bool = True
    """Time kernels against PyTorch (cuda backend only)."""
    timing_seconds: float = 3.0
    """Spent at most on timing one kernel; shorter leaves the speed-up's interval wider."""
    compile_baseline: bool = False
    """Also time each reference under torch.compile."""
    trials: int = 5
    compile_timeout: float = 120.0
    run_timeout: float = 60.0
    scale: float | None = None
    """Emulated backend: shrink batch-like dimensions by this factor for the check, as stated in the verdict."""
    workers: int | None = None
    """Kernels under way at once, by default as many as this machine's cores and GPUs can take."""
    cache: bool = False
    """Keep verdicts for other runs, and take kept ones: checkpoints of one training give many equal answers."""
    report: Path | None = None
    """Also write the report of this run into this folder: tables, figures, one page (see `dice report`)."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        """0 when all was generated and judged; 3, with a sentence, where something is still lacking."""
        if self.list_rows:
            return list_rows(self.json)
        if self.compare is not None:
            return _compare(self, *self.compare)
        if self.export_kernelbench is not None:
            return _export(self, self.export_kernelbench)
        from dice.evaluate.run import check_finished, locked

        if self.report is not None:
            self.report.mkdir(parents=True, exist_ok=True)  # refused before any work is spent
        if self.reverify is not None:
            RunFolder(self.reverify).tasks()  # raises where it is no run, before a lock is made
            with locked(self.reverify) as folder:
                done, account = _rejudge(self, folder), None
        else:
            plan = _plan(self)
            with locked(self.out) as folder:
                done, account = _generate(self, plan, folder)
        _show(self, folder, done, account)
        if self.report is not None:
            from dice.commands.report import write_all
            from dice.evaluate.report import gather

            write_all(gather([folder.path], (), self.replaced), self.report)
        check_finished(done)
        return 0


@dataclass(frozen=True)
class EvaluationPlan:
    """What is asked, resolved."""

    tasks: list[Task]
    row: PaperRow | None
    kind: str
    name: str  # of the model
    settings: DecodingSettings
    prompt: str
    gpu: Gpu | None
    kernelbench: KernelBenchPrompt | None = None

    def config(self, args: Eval) -> dict[str, object]:
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
        } | ({"prompt_text": self.kernelbench.label} if self.kernelbench else {})


def _plan(args: Eval) -> EvaluationPlan:
    """Raises `UserError` for what cannot be meant, before anything is written."""
    from dice.evaluate.hardware import find_gpu
    from dice.evaluate.kernelbench_prompt import choose_prompt
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
    theirs = choose_prompt(args.prompt, args.kernelbench, args.problems, row is not None)
    if theirs and gpu:
        raise UserError("KernelBench's prompt is put word for word, so that --hardware has no place in it.")
    prompt = "kernelbench" if theirs else taught if args.prompt == "auto" else args.prompt
    return EvaluationPlan(tasks, row, kind, name, settings, prompt, gpu, theirs)


def _generate(args: Eval, plan: EvaluationPlan, folder: RunFolder) -> tuple[Done, JsonObject | None]:
    from dice.evaluate.models.endpoint import EndpointModel
    from dice.evaluate.run import begin, evaluate, questions
    from dice.evaluate.runnable import require_runnable

    judging = _judging(args)
    render = plan.kernelbench.render if plan.kernelbench else None
    asked = questions(plan.tasks, args.samples, plan.prompt, plan.gpu, args.seed, render)
    stored = {one.id for one in folder.generations()}
    lacking = {one.task.key: one.task.as_problem() for one in asked if one.id not in stored}
    if lacking and plan.kind != "answers":  # kernels that are written already cost nothing more
        with bars() as show, judging.verifier(judging.protocols[0], timed=False) as verifier:
            require_runnable(verifier, lacking, partial(show, "checked"))
    begin(folder, plan.config(args), plan.tasks)
    made: list[Model] = []

    def make_model() -> Model:
        made.append(_make_model(args, plan, folder))
        return made[0]

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

    if not args.protocol:
        raise UserError("Give at least one --protocol.")
    at_least(1, workers=args.workers)
    args.require_backend(args.backend)  # says that it cannot run before a model is loaded
    asked = options(
        trials=args.trials,
        timing=args.timing,
        timing_s=args.timing_seconds,
        compile_timeout_s=args.compile_timeout,
        run_timeout_s=args.run_timeout,
        scale=args.scale,
        compile_baseline=args.compile_baseline,
    )
    protocols, away = tuple(dict.fromkeys(args.protocol)), bool(args.cluster)
    return Judging(protocols, args.backend, asked, args.workers, None, args.cache, args.make_verifier, away)


def _kind(args: Eval, row: PaperRow | None) -> str:
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


def _name(args: Eval, row: PaperRow | None, kind: str) -> str:
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


def _settings(args: Eval, row: PaperRow | None, kind: str, prompt: str) -> DecodingSettings:
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


def _make_model(args: Eval, plan: EvaluationPlan, folder: RunFolder) -> Model:
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

    return NativeModel(
        plan.name, plan.settings, batch=args.batch, traces=args.traces, tensor_parallel=args.tensor_parallel
    )


def _endpoint(args: Eval, plan: EvaluationPlan, folder: RunFolder) -> Model:
    from dice.commands.endpoint_args import key_of, settings_of
    from dice.evaluate.models.endpoint import EndpointModel

    temperature, longest = plan.settings["temperature"], plan.settings["max_new_tokens"]
    settings = settings_of(args.endpoint, plan.name, temperature=temperature, max_tokens=longest)
    return EndpointModel(settings, key_of(args.endpoint), folder.path / "requests.jsonl")


def _fingerprint(tasks: Sequence[Task]) -> str:
    text = json.dumps([(task.key, task.source) for task in tasks])
    return f"{len(tasks)} problems, {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _show(args: Eval, folder: RunFolder, done: Done, account: JsonObject | None) -> None:
    from dice.evaluate.metrics import summarise

    summaries = [summarise(folder, protocol, replaced=args.replaced) for protocol in folder.protocols]
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
                    "answers": _answers(folder),
                }
            )
        )
        return
    print_summaries(summaries)
    if account is not None:
        print("\n".join(lines_of(account)))
    print(f"{done.generated} answers generated, {done.judged} judged; all of it is in {folder.path}")


def _answers(folder: RunFolder) -> list[JsonObject]:
    """Every answer of the run whole, with what each protocol says of it."""
    verdicts: dict[tuple[str, int], JsonObject] = {}
    for protocol in folder.protocols:
        for judgement in folder.judgements(protocol):
            verdicts.setdefault(judgement.id, {})[protocol] = judgement.verdict.to_json()
    return [
        {"task": one.task, "sample": one.sample, "text": one.reply, "kernel": one.kernel, "error": one.error}
        | {"verdicts": verdicts.get(one.id, {})}
        for one in folder.generations()
    ]


def _compare(args: Eval, first: Path, second: Path) -> int:
    from dice.evaluate.metrics import compare

    for path in (first, second):
        RunFolder(path).tasks()
    found = [
        compare(RunFolder(first), RunFolder(second), protocol, replaced=args.replaced) for protocol in args.protocol
    ]
    if args.json:
        print(json.dumps([one.to_json() for one in found]))
        return 0
    for one in found:
        if not one.problems:
            raise UserError(f"{first} and {second} have judged no problem in common under {one.protocol}.")
        print(f"{one.protocol}: {second.name} - {first.name}, {one.problems} problems")
        for name, estimate in (("Exec", one.exec), ("fast_1", one.fast1), ("fast_2", one.fast2)):
            print(f"  {name}: {percent(estimate)}")
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
