"""`dice verify PROBLEM.py KERNEL.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.console import Console

from dice.commands.show import exit_code, show_verdict
from dice.kernel import Kernel
from dice.problem import Problem

if TYPE_CHECKING:
    from dice.cli import Verify


def run(args: Verify) -> int:
    problem, kernel = Problem.from_file(args.problem), Kernel.from_file(args.kernel)
    from dice.verify import Options, verify

    options = Options(
        trials=args.trials,
        protocol=args.protocol,
        timing=args.timing,
        compile_timeout_s=args.compile_timeout,
        run_timeout_s=args.run_timeout,
        memory_mb=args.memory_mb,
        scale=args.scale,
    )
    verdict = verify(problem, kernel, backend=args.backend, options=options)
    if args.json:
        print(json.dumps({"problem": problem.name, "kernel": kernel.name, "verdict": verdict.to_json()}))
    else:
        show_verdict(Console(), verdict, f"{kernel.name} for {problem.name}")
    return exit_code(verdict)
