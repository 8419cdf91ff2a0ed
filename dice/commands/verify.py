"""`dice verify PROBLEM.py KERNEL.py...`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dice.commands.arguments import at_least, options
from dice.commands.progress import bars
from dice.commands.show import STYLE, exit_code, show_verdict
from dice.errors import UserError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.terminal import Console
from dice.verdict import Verdict

if TYPE_CHECKING:
    from dice.cli import Verify

MESSAGE = 120  # characters of one in a table


def run(args: Verify) -> int:
    """0 when every kernel is correct, 1 when one is not, else 3: this machine could not say of one."""
    if not args.kernels:
        raise UserError("Give at least one KERNEL.py.")
    at_least(1, workers=args.workers)
    problem, kernels = Problem.from_file(args.problem), [Kernel.from_file(path) for path in args.kernels]
    verdicts = _verify(args, problem, kernels)
    answers = [
        {"problem": problem.name, "kernel": kernel.name, "verdict": verdict.to_json()}
        for kernel, verdict in zip(kernels, verdicts, strict=True)
    ]
    if args.json:
        print(json.dumps(answers[0] if len(answers) == 1 else answers))
    elif len(verdicts) == 1:
        show_verdict(Console(), verdicts[0], f"{kernels[0].name} for {problem.name}")
    else:
        _show_all(Console(), problem, kernels, verdicts)
    codes = {exit_code(verdict) for verdict in verdicts}
    return 1 if 1 in codes else max(codes)


def _verify(args: Verify, problem: Problem, kernels: list[Kernel]) -> list[Verdict]:
    """In the order of `kernels`."""
    from dice.verify import Verifier
    from dice.verify.stream import Progress as Rate

    asked = options(
        trials=args.trials,
        protocol=args.protocol,
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
        Verifier(backend=args.backend, options=asked, cache=args.cache) as verifier,
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
    for name in ("kernel", "verdict", "speed-up", "why"):
        table.add_column(name, overflow="fold")
    for kernel, verdict in rows:
        style = STYLE.get(verdict.outcome, "bold red")
        speedup = f"{_speedup(verdict):.2f}x" if verdict.timing else ""
        why = ", ".join(verdict.deceptions) or verdict.message[:MESSAGE]
        if console.is_terminal:
            table.add_row(kernel.name, Text(verdict.outcome, style=style), speedup, why)
        else:
            print("\t".join((kernel.name, verdict.outcome, speedup, why)))
    if console.is_terminal:
        console.print(table)
    correct = sum(verdict.correct for verdict in verdicts)
    console.print(f"{correct} of {len(verdicts)} correct", highlight=False)


def _speedup(verdict: Verdict) -> float:
    return verdict.timing.speedup if verdict.timing else 0.0
