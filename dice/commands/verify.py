"""`dice verify PROBLEM.py KERNEL.py...`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from dice.commands.arguments import Backend, Clustered, Protocol, Provenance, Replaced, at_least, options
from dice.commands.progress import bars
from dice.commands.verdict_view import STYLE, exit_code, show_verdict
from dice.errors import UserError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.terminal import Console
from dice.verdict import Verdict

MESSAGE = 120  # characters of one in a table


@dataclass
class Verify(Clustered):
    """Compile, run and check kernels against the PyTorch module they replace.

    Example: dice verify problem.py kernel.py
    """

    problem: Annotated[Positional[Path], arg(metavar="PROBLEM.py")]
    """File that defines Model, get_inputs and get_init_inputs."""
    kernels: Annotated[Positional[tuple[Path, ...]], arg(metavar="KERNEL.py...")]
    """Files that define ModelNew."""
    backend: Backend = "auto"
    trials: int = 5
    """Fresh inputs to check on."""
    protocol: Protocol = "dice"
    """How right is judged: our checks, KernelBench's of today (1e-4), its first (1e-2), or the paper's."""
    provenance: Provenance = "any"
    """How it must be known who computed: "construction" (the file's Python runs without data, and what it does there is
    executed), "evidence" (its own process is watched), or whichever is to be had, in that order."""
    replaced: Replaced = "any"
    """How much of the reference a kernel must replace to count: any part, whose share the verdict states, or all of its
    operators."""
    timing: bool = True
    """Time the kernel against PyTorch (cuda backend only)."""
    compile_baseline: bool = False
    """Also time the reference under torch.compile (once for each problem and machine)."""
    compile_timeout: float = 120.0
    """Seconds the compiler may take."""
    run_timeout: float = 60.0
    """Seconds the candidate may run."""
    memory_mb: int = 8192
    """Host memory the candidate may use."""
    scale: float | None = None
    """Emulated backend: shrink batch-like dimensions by this factor for the check, as stated in the verdict."""
    sanitize: bool = False
    """Also look for races and other hidden errors: with our detector (emulated) or NVIDIA's compute-sanitizer (cuda).
    Several times slower. A race, or an access out of bounds, is a runtime_error even where the outputs are right."""
    profile: bool = False
    """Also say which kernels the GPU's time goes to (cuda backend only)."""
    workers: int | None = None
    """Kernels under way at once, by default as many as this machine's cores and GPUs can take."""
    cache: bool = False
    """Keep verdicts, and verify nothing again whose verdict is kept: what an interrupted run goes on from."""
    json: bool = False
    """Print one JSON object instead of text."""

    def run(self) -> int:
        """0 when every kernel is correct and replaces as much as it is to, 1 when one does not, else 3: this machine
        could not say of one."""
        if not self.kernels:
            raise UserError("Give at least one KERNEL.py.")
        at_least(1, workers=self.workers)
        problem, kernels = Problem.from_file(self.problem), [Kernel.from_file(path) for path in self.kernels]
        verdicts = _verify(self, problem, kernels)
        answers = [
            {"problem": problem.name, "kernel": kernel.name, "source": kernel.source, "verdict": verdict.to_json()}
            | {"solved": verdict.solves(self.replaced)}
            for kernel, verdict in zip(kernels, verdicts, strict=True)
        ]
        if self.json:
            print(json.dumps(answers[0] if len(answers) == 1 else answers))
        elif len(verdicts) == 1:
            show_verdict(Console(), verdicts[0], f"{kernels[0].name} for {problem.name}")
        else:
            _show_all(Console(), problem, kernels, verdicts)
        partial = sum(verdict.correct and not verdict.solves(self.replaced) for verdict in verdicts)
        if partial and not self.json:
            print(f"dice: {partial} correct, but not for all operators (--replaced all)", file=sys.stderr)
        codes = {exit_code(verdict, self.replaced) for verdict in verdicts}
        return 1 if 1 in codes else max(codes)


def _verify(args: Verify, problem: Problem, kernels: list[Kernel]) -> list[Verdict]:
    """In the order of `kernels`."""
    from dice.verify.stream import Progress as Rate

    asked = options(
        trials=args.trials,
        protocol=args.protocol,
        provenance=args.provenance,
        timing=args.timing,
        compile_baseline=args.compile_baseline,
        compile_timeout_s=args.compile_timeout,
        run_timeout_s=args.run_timeout,
        memory_mb=args.memory_mb,
        scale=args.scale,
        sanitize=args.sanitize,
        profile=args.profile,
    )
    with (
        args.make_verifier(backend=args.backend, options=asked, cache=args.cache) as verifier,
        bars(shown=len(kernels) > 1) as show,
    ):

        def count(rate: Rate) -> None:
            show("verifying", rate.done, len(kernels))

        pairs = [(problem, kernel) for kernel in kernels]
        workers = args.workers or (1 if len(kernels) == 1 else None)
        return [verdict for _, verdict in verifier.verify_many(pairs, workers, ordered=True, progress=count)]


def _show_all(console: Console, problem: Problem, kernels: list[Kernel], verdicts: list[Verdict]) -> None:
    """A row each; the fastest correct ones first."""
    rows = sorted(zip(kernels, verdicts, strict=True), key=lambda row: (not row[1].correct, -_speedup(row[1])))
    table = Table(title=f"{len(rows)} kernels for {problem.name}", box=None, title_justify="left", padding=(0, 2, 0, 0))
    for name in ("kernel", "verdict", "speed-up", "replaced", "why"):
        table.add_column(name, overflow="fold")
    for kernel, verdict in rows:
        style = STYLE.get(verdict.outcome, "bold red")
        speedup = f"{_speedup(verdict):.2f}x" if verdict.timing else ""
        part = f"{verdict.replaced.time_share:.0%}" if verdict.replaced else ""
        why = ", ".join(verdict.deceptions) or verdict.message[:MESSAGE]
        if console.is_terminal:
            table.add_row(kernel.name, Text(verdict.outcome, style=style), speedup, part, why)
        else:
            print("\t".join((kernel.name, verdict.outcome, speedup, part, why)))
    if console.is_terminal:
        console.print(table)
    correct = sum(verdict.correct for verdict in verdicts)
    console.print(f"{correct} of {len(verdicts)} correct", highlight=False)


def _speedup(verdict: Verdict) -> float:
    return verdict.timing.speedup if verdict.timing else 0.0
