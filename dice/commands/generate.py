"""`dice generate PROBLEM.py`: denoise a kernel, prove it, keep the best."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dice.commands.arguments import at_least, options, spare
from dice.commands.show import exit_code, show_verdict
from dice.data.whole import write_text
from dice.errors import UserError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import NO_KERNEL, PROMPTS, extract_kernel
from dice.terminal import Console
from dice.verdict import Verdict

if TYPE_CHECKING:
    from dice.cli import Generate
    from dice.commands.writer import Draft, Writer
    from dice.verify import Verifier

RESAMPLE_TEMPERATURE = 0.7
# Which failed candidate to keep when none is correct: the one that came furthest.
PREFERENCE = (
    "correct", "unsupported", "infra_error", "wrong", "deceptive", "timeout", "out_of_memory", "runtime_error",
    "load_error", "compile_error", "no_kernel",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One candidate: how it was written, the kernel found in it, and the verdict."""

    draft: Draft
    kernel: Kernel | None
    verdict: Verdict

    @property
    def rank(self) -> tuple[int, float]:
        """Smaller is better: correct before wrong, then faster before slower."""
        speedup = self.verdict.timing.speedup if self.verdict.timing else 0.0
        return PREFERENCE.index(self.verdict.outcome), -speedup

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict.to_json(), "decode": self.draft.summary()}


def run(args: Generate) -> int:
    if not args.problems:
        raise UserError("Give at least one PROBLEM.py; `dice generate --help` shows the options.")
    at_least(1, samples=args.samples)
    at_least(0, refine=args.refine)
    problems = [Problem.from_file(path) for path in args.problems]
    targets = _targets(args, problems)
    # The verifier's warm process imports PyTorch on one core while this one loads the model on the other.
    from dice.verify import Verifier

    console = Console(stderr=args.json)
    with Verifier(backend=args.backend, options=options(timing=args.timing, scale=args.scale)) as verifier:
        from dice.commands.writer import Writer

        start = time.perf_counter()
        writer = Writer.load(args)
        loading = time.perf_counter() - start
        results = []
        for problem, target in zip(problems, targets, strict=True):
            samples = _write_and_check(args, problem, writer, verifier, console)
            results.append(_finish(args, problem, target, samples, console))
    if args.json:
        print(json.dumps(results[0] if len(results) == 1 else {"results": results}))
    else:
        _summary(console, results, loading)
    return max(exit_code(Verdict.from_json(result["verdict"])) for result in results)


def _write_and_check(
    args: Generate, problem: Problem, writer: Writer, verifier: Verifier, console: Console
) -> list[Sample]:
    """Greedy first, then `--samples - 1` drawn ones; then `--refine` rounds that rewrite the best one's core."""
    prompt = PROMPTS[writer.model.config.prompt if args.prompt == "auto" else args.prompt](problem)
    samples: list[Sample] = []

    def check(draft: Draft) -> None:
        kernel = extract_kernel(draft.text)
        if kernel is None:
            verdict = NO_KERNEL
        else:
            with console.status("compiling, running and checking"):
                verdict = verifier.verify(problem, kernel)
        samples.append(Sample(draft, kernel, verdict))

    for index in range(args.samples):
        temperature = args.temperature or (RESAMPLE_TEMPERATURE if index else 0.0)
        check(
            writer.write(
                prompt, temperature, args.seed + index, _watcher(args, console, f"{problem.name}, sample {index + 1}")
            )
        )
    for index in range(args.refine):
        best = min(samples, key=lambda sample: sample.rank)
        if best.verdict.correct or not best.verdict.about_kernel:
            break
        title = f"{problem.name}, core rewritten {index + 1}"
        temperature = args.temperature or RESAMPLE_TEMPERATURE
        seed = args.seed + args.samples + index
        check(writer.rewrite_core(best.draft, temperature, seed, _watcher(args, console, title)))
    return samples


def _watcher(args: Generate, console: Console, title: str) -> Callable[..., Any]:
    from dice.commands.watch import Progress, Screen

    return Screen(console, title) if console.is_terminal and not args.json else Progress(console, title)


def _targets(args: Generate, problems: list[Problem]) -> list[Path]:
    """Where each kernel goes. It, and where traces go, is proven writable before any work is spent."""
    many = len(problems) > 1 or (args.output is not None and args.output.is_dir())
    if not many:
        targets = [args.output or Path(f"{problems[0].name}_kernel.py")]
    else:
        targets = [(args.output or Path()) / f"{problem.name}_kernel.py" for problem in problems]
    written = targets + [_trace(args, problem) for problem in problems if args.trace]
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


def _finish(args: Generate, problem: Problem, target: Path, samples: list[Sample], console: Console) -> dict[str, Any]:
    """Write the best kernel (and its trace), show its verdict, and return the JSON result."""
    best = min(samples, key=lambda sample: sample.rank)
    if best.kernel is not None:
        write_text(target, best.kernel.source)
    if args.trace is not None:
        write_text(_trace(args, problem), json.dumps(best.draft.trace.to_json(compact=True)))
    if not args.json:
        kept = f" (best of {len(samples)})" if len(samples) > 1 else ""
        show_verdict(console, best.verdict, f"{problem.name}{kept}")
        print(
            f"  kernel written to {target}" if best.kernel else "  the reply held no kernel; nothing was written",
            flush=True,
        )
    return {
        "problem": problem.name,
        "kernel_path": str(target) if best.kernel else None,
        "kernel": best.kernel.source if best.kernel else None,
        "verdict": best.verdict.to_json(),
        "decode": best.draft.summary(),
        "samples": [sample.to_json() for sample in samples],
        "model": args.model,
    }


def _summary(console: Console, results: list[dict[str, Any]], loading: float) -> None:
    if len(results) < 2:
        return
    correct = sum(result["verdict"]["correct"] for result in results)
    print(f"\n{correct} of {len(results)} kernels are correct. Seconds by stage (model loaded in {loading:.1f}):")
    for result in results:
        stages = {"write": result["decode"]["seconds"], **result["verdict"]["seconds"]}
        print(f"  {result['problem']:<24}" + "  ".join(f"{name} {value:.1f}" for name, value in stages.items()))
