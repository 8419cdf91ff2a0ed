"""`dice data teach PROBLEMS...`: kernels from a teacher, kept when they prove faster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dice.commands.asking import key_of, lines_of, settings_of
from dice.commands.progress import bars
from dice.data.sources import read_problems
from dice.data.teacher import Plan, teach
from dice.endpoint.client import Endpoint
from dice.errors import UserError
from dice.verify import Options, Verifier

if TYPE_CHECKING:
    from dice.cli_data import Teach


def run(args: Teach) -> int:
    """0 when at least one kernel was kept (or asked for, without measuring), else 1."""
    if not args.paths:
        raise UserError("Give at least one PROBLEM: a folder of problems, a problem file or a table.")
    problems = [problem.check() for problem in read_problems(args.paths)]
    plan = Plan(args.samples, args.prompt, args.measure, args.executions, args.min_speedup)
    settings = settings_of(args.endpoint, args.model, temperature=args.temperature, max_tokens=args.max_tokens)
    endpoint = Endpoint(settings, key_of(args.endpoint), args.out / "requests.jsonl")
    with bars() as show:
        show("asked", 0, len(problems) * plan.samples)

        def count(what: str, done: int, total: int) -> None:
            spent = f"{endpoint.account.cost:.3f} USD" if what == "asked" and endpoint.account.cost else ""
            show(what, done, total, spent)

        def make_verifier() -> Verifier:
            return Verifier(backend=args.backend, options=Options(timing=True))

        report = teach(problems, endpoint, plan, args.out, make_verifier=make_verifier, show=count)
    if args.json:
        print(json.dumps(report))
    else:
        print("\n".join(lines_of(report["endpoint"])))
        failed = ", ".join(f"{count} {kind}" for kind, count in report["failed"].items()) or "none"
        print(f"answers: {report['answered']} of {report['asked']}, {report['cut_short']} cut short; failed: {failed}")
        dropped = ", ".join(f"{count} {why}" for why, count in report["dropped"].items()) or "none"
        print(f"kept: {report['kept']}, for {report['problems_with_a_kernel']} problems; dropped: {dropped}")
        print(f"written to {args.out}")
    return 0 if report["kept"] or (report["answered"] and not args.measure) else 1
