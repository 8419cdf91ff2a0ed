"""`dice generate PROBLEM.py`: denoise a kernel, verify it, keep the best."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from dice.commands.arguments import Backend, Remasking, at_least, options, spare
from dice.commands.verdict_view import exit_code, show_verdict
from dice.errors import UserError
from dice.evaluate.runnable import require_runnable
from dice.files import JsonObject
from dice.files.atomic import write_text
from dice.problem import Problem
from dice.terminal import Console
from dice.verdict import Verdict

if TYPE_CHECKING:
    from dice.generation import Attempt, Watch, Writer
    from dice.verify import Verifier

WAYS = {
    "written": "",
    "completed": ", the CUDA source as written, the rest from the module",
    "canonical": ", written region by region in canonical form",
    "rules": ", written region by region by rule, not by the model",
}
PHRASES = {"canonical": "in canonical form", "rules": "by rule"}
MARKS = ("wrong", "unchecked")  # in the names of kernels that --keep-wrong keeps


@dataclass
class Generate:
    """Write a CUDA kernel for a PyTorch module, then compile it, run it and check it.

    Example: dice generate problem.py -o kernel.py
    """

    problems: Annotated[Positional[tuple[Path, ...]], arg(metavar="PROBLEM.py", help_behavior_hint="")]
    """One or more files that define Model, get_inputs and get_init_inputs."""
    output: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Where the kernel goes: a file, or a folder when there are several problems (default: NAME_kernel.py)."""
    model: str = "nano"
    """The shipped nano, a folder with a checkpoint in SDAR's layout, or the id of one on the Hugging Face hub."""
    tensor_parallel: int = 1
    """GPUs of this machine that the model is cut over; without a GPU, processes."""
    endpoint: str = ""
    """Have --model of an OpenAI-compatible server write, such as http://localhost:8000/v1 (`dice serve`), the module as
    its file is written. The server's key, if it wants one, is in OPENAI_API_KEY."""
    samples: int = 1
    """Candidates to write; the best correct one is kept."""
    form: Literal["auto", "written", "canonical", "rules"] = "auto"
    """How the module is written: by the model, from the text of its file; by the model, from its regions in canonical
    form, where PyTorch may keep a part (the verdict says how much); by rule, from its regions, without a model; auto:
    one after the other, until a kernel is right, and by rule where PyTorch kept an operator or is faster."""
    keep_wrong: bool = False
    """Also keep the best candidate where none is correct, marked in its name (NAME_kernel_wrong.py) and first line."""
    refine: int = 0
    """After a failed verdict, write the CUDA core anew behind the same beginning, up to this many times."""
    backend: Backend = "auto"
    """Where kernels run: cuda (a GPU), emulated (the CPU), or whichever this machine has."""
    trace: Path | None = None
    """Also write how the text was denoised (token ids, reveal steps, log-probabilities) to this JSON file."""
    prompt: Literal["auto", "compact", "one-shot"] = "auto"
    """The compact prompt of DICE's small models, or KernelBench's one-shot prompt; auto: what the model was taught."""
    max_new_tokens: int = 2048
    """Longest reply, in tokens."""
    temperature: float = 0.0
    """0 takes the likeliest token; above 0 samples. The second sample on uses 0.7 when this is 0."""
    top_p: float = 1.0
    top_k: int = 0
    remasking: Remasking = "low_confidence_dynamic"
    """Which masked tokens a denoising step reveals."""
    confidence_threshold: float = 0.99
    """low_confidence_dynamic reveals every token at least this likely; lower is faster and errs more (paper: 0.9)."""
    seed: int = 0
    scale: float | None = None
    """Emulated backend: shrink batch-like dimensions by this factor for the check, as stated in the verdict."""
    timing: bool = True
    """Time the kernel against PyTorch (cuda backend only)."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        if not self.problems:
            raise UserError("Give at least one PROBLEM.py; `dice generate --help` shows the options.")
        at_least(1, samples=self.samples, tensor_parallel=self.tensor_parallel)
        at_least(0, refine=self.refine)
        if self.endpoint and (self.trace or self.refine):
            raise UserError("A server tells no trace and rewrites nothing: leave out --trace and --refine.")
        if self.endpoint and self.form in ("canonical", "rules"):
            raise UserError("A server writes single modules as written; `dice optimize` has it write regions.")
        if self.form == "rules" and (self.trace or self.refine):
            raise UserError("Kernels by rule have no trace and are not rewritten: leave out --trace and --refine.")
        problems = [Problem.from_file(path) for path in self.problems]
        targets = _targets(self, problems)
        # The verifier's warm process imports PyTorch on one core while this one loads the model on the other.
        from dice.verify import Verifier

        console = Console(stderr=self.json)
        with Verifier(backend=self.backend, options=options(timing=self.timing, scale=self.scale)) as verifier:
            from dice.decode.request import DecodeConfig
            from dice.generation import Writer

            start = time.perf_counter()
            decoding = DecodeConfig(
                max_new_tokens=self.max_new_tokens,
                remasking=self.remasking,
                confidence_threshold=self.confidence_threshold,
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
            )
            needs_none = self.endpoint or self.form == "rules"
            writer = None if needs_none else Writer.load(self.model, decoding, self.tensor_parallel)
            loading = time.perf_counter() - start
            require_runnable(verifier, dict(zip(map(str, self.problems), problems, strict=True)))
            results = []
            for problem, target in zip(problems, targets, strict=True):
                try:
                    samples = _samples(self, problem, writer, verifier, console)
                except _NothingRight as lack:
                    print(f"dice: {lack}", file=sys.stderr)
                    results.append({"problem": problem.name, "error": str(lack)})
                    continue
                results.append(_finish(self, problem, target, samples, console))
        if self.json:
            print(json.dumps(results[0] if len(results) == 1 else {"results": results}))
        else:
            _summary(console, results, loading)
        return max(_exit_code(result) for result in results)


class _NothingRight(Exception):
    """The one form that was asked for gave nothing right for a problem; the message is one sentence."""


def _exit_code(result: JsonObject) -> int:
    return exit_code(Verdict.from_json(result["verdict"])) if "verdict" in result else 1


def _samples(
    args: Generate, problem: Problem, writer: Writer | None, verifier: Verifier, console: Console
) -> list[Attempt]:
    """What was written for a problem, in the order written: as its file is; region by region where none of these is
    right; by rule where none is, PyTorch kept an operator, or is faster. Raises `_NothingRight` where the one form that
    was asked for gave none."""
    samples = _as_written(args, problem, writer, verifier, console) if args.form in ("auto", "written") else []
    for form in ("canonical", "rules"):
        done = any(_suffices(one.verdict, form) for one in samples)
        if args.form not in ("auto", form) or done or (form == "canonical" and writer is None):
            continue
        with console.status(f"writing the module region by region, {PHRASES[form]}"):
            found, why = _by_regions(args, form, problem, writer, verifier)
        samples += [found] if found is not None else []
        if found is None and args.form == form:
            raise _NothingRight(f"{problem.name}: nothing right was written {PHRASES[form]}: {why.rstrip('.')}.")
        if found is None and not args.json and not any(one.verdict.correct for one in samples):
            print(f"  {PHRASES[form]} nothing right was written, either: {why}", file=sys.stderr)
    return samples


def _suffices(verdict: Verdict, form: str) -> bool:
    """Whether a form need not be tried after this verdict."""
    if not verdict.correct:
        return not verdict.about_kernel
    is_whole = verdict.replaced is None or verdict.replaced.all
    is_fast = verdict.timing is None or verdict.timing.speedup >= 1
    return form == "canonical" or (is_whole and is_fast)


def _as_written(
    args: Generate, problem: Problem, writer: Writer | None, verifier: Verifier, console: Console
) -> list[Attempt]:
    """By a server, where there is no writer."""
    if writer is None:
        from dice.commands.from_endpoint import from_endpoint

        return from_endpoint(args, problem, verifier)
    from dice.generation import attempts

    return attempts(
        problem,
        writer,
        verifier,
        samples=args.samples,
        refine=args.refine,
        prompt=args.prompt,
        seed=args.seed,
        watch=partial(_watcher, args, console),
        checking=partial(console.status, "compiling, running and checking"),
    )


def _by_regions(
    args: Generate, form: str, problem: Problem, writer: Writer | None, verifier: Verifier
) -> tuple[Attempt | None, str]:
    from dice.optimize.run import attempt_by_regions, attempt_by_rules

    if form == "rules" or writer is None:
        return attempt_by_rules(problem, verifier)
    return attempt_by_regions(
        problem, args.model, writer, verifier, samples=args.samples, prompt=args.prompt, seed=args.seed
    )


def _watcher(args: Generate, console: Console, title: str) -> Watch:
    from dice.commands.denoising_view import Progress, Screen

    return partial(Screen if console.is_terminal and not args.json else Progress, console, title)


def _targets(args: Generate, problems: list[Problem]) -> list[Path]:
    """Where each kernel goes. It, and where traces go, is shown to be writable before any work is spent."""
    many = len(problems) > 1 or (args.output is not None and args.output.is_dir())
    if not many:
        targets = [args.output or Path(f"{problems[0].name}_kernel.py")]
    else:
        targets = [(args.output or Path()) / f"{problem.name}_kernel.py" for problem in problems]
    marked = [_marked(target, mark) for target in targets for mark in MARKS] if args.keep_wrong else []
    written = targets + marked + [_trace(args, problem) for problem in problems if args.trace]
    spare(args.problems, *written)
    for path in written:
        if path.is_dir():
            raise UserError(f"{path} is a folder, and a file is needed.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    return targets


def _trace(args: Generate, problem: Problem) -> Path:
    """Where the problem's trace goes."""
    assert args.trace is not None
    return args.trace if len(args.problems) == 1 else args.trace.with_stem(f"{args.trace.stem}_{problem.name}")


def _finish(args: Generate, problem: Problem, target: Path, samples: list[Attempt], console: Console) -> JsonObject:
    """Write the best kernel (and its trace), show its verdict, and return the JSON result."""
    from dice.generation import Draft

    in_order = sorted(samples, key=lambda sample: sample.rank)
    best = in_order[0]
    path = _write(args, target, best)
    if args.trace is not None:
        draft = next(sample.draft for sample in in_order if isinstance(sample.draft, Draft))
        write_text(_trace(args, problem), json.dumps(draft.trace.to_json(compact=True)))
    if not args.json:
        kept = f" (best of {len(samples)})" if len(samples) > 1 else ""
        kept += WAYS[best.way]
        show_verdict(console, best.verdict, f"{problem.name}{kept}")
        print(f"  {_said(best, path)}", flush=True)
    return {
        "problem": problem.name,
        "kernel_path": str(path) if path else None,
        "kept_wrong": path is not None and not best.verdict.correct,
        "kernel": best.kernel.source if best.kernel else None,
        "verdict": best.verdict.to_json(),
        "way": best.way,
        "decode": best.decode(),
        "samples": [sample.to_json() for sample in samples],
        "model": args.model,
    }


def _write(args: Generate, target: Path, best: Attempt) -> Path | None:
    """The file that now holds the kernel: `target` a correct one alone, so that nobody takes another for it."""
    if best.kernel is None:
        return None
    if best.verdict.correct:
        write_text(target, best.kernel.source)
        return target
    if not args.keep_wrong:
        return None
    mark = _mark(best.verdict)
    path = _marked(target, mark)
    reason = " ".join(best.verdict.message.split())
    write_text(path, f"# {mark.upper()}, by dice verify ({best.verdict.outcome}): {reason}\n{best.kernel.source}")
    return path


def _mark(verdict: Verdict) -> str:
    return "wrong" if verdict.about_kernel else "unchecked"


def _marked(target: Path, mark: str) -> Path:
    return target.with_stem(f"{target.stem}_{mark}")


def _said(best: Attempt, path: Path | None) -> str:
    """What became of the kernel."""
    if best.kernel is None:
        return "the reply held no kernel; nothing was written"
    if best.verdict.correct:
        return f"kernel written to {path}"
    what = "wrong kernel" if best.verdict.about_kernel else "kernel that could not be checked here"
    if path is None:
        return f"a {what}, so nothing was written; --keep-wrong keeps it, marked as such"
    return f"{what} written to {path}"


def _summary(console: Console, results: list[JsonObject], loading: float) -> None:
    if len(results) < 2:
        return
    judged = [result for result in results if "verdict" in result]
    correct = sum(result["verdict"]["correct"] for result in judged)
    print(f"\n{correct} of {len(results)} kernels are correct. Seconds by stage (model loaded in {loading:.1f}):")
    for result in judged:
        stages = {"write": result["decode"]["seconds"], **result["verdict"]["seconds"]}
        print(f"  {result['problem']:<24}" + "  ".join(f"{name} {value:.1f}" for name, value in stages.items()))
