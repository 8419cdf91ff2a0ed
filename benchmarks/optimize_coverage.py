"""What the front-end of `dice optimize` can take: every problem is followed, cut, written by rule and put together.

    python benchmarks/optimize_coverage.py OUT.jsonl [--problems FOLDER] [--verify N] [--limit N]

Without --problems, the structural problems at their reduced scale. With --verify N, every Nth composition is verified
on the emulated backend. Rows are appended as they are done, and what a file has is not done again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from dice.data.structural.build import samples
from dice.errors import UserError
from dice.files import JsonObject
from dice.files.journal import Journal
from dice.kernel import Kernel
from dice.optimize.operators import LEFT, kind_of
from dice.optimize.printing import problem_of
from dice.optimize.regions import cut
from dice.optimize.templates.answer import kernel_of
from dice.optimize.templates.emitter import CannotWrite
from dice.optimize.trace.tracer import Tracer
from dice.optimize.whole.compose import compose
from dice.optimize.whole.plan import Part, Plan
from dice.problem import Problem, load_problems
from dice.verify import Verifier


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=Path)
    parser.add_argument("--verify", type=int, default=0)
    parser.add_argument("--limit", type=int, default=0)
    args = parser.parse_args()
    if args.problems:
        problems = list(load_problems(args.problems))
    else:
        problems = [Problem(sample.problem, name=sample.name) for sample in samples("reduced")]
    problems = problems[: args.limit or None]
    with Journal(args.out) as journal, Tracer("emulated") as tracer, Verifier(backend="emulated") as verifier:
        rows = {row["name"]: row for row in journal.rows()}
        for number, problem in enumerate(problems):
            if problem.name in rows:
                continue
            began = time.monotonic()
            row, kernel = look(problem, tracer)
            if kernel is not None and args.verify and number % args.verify == 0:
                verdict = verifier.verify(problem, kernel)
                row |= {"outcome": verdict.outcome, "provenance": verdict.provenance, "message": verdict.message}
            row["seconds"] = round(time.monotonic() - began, 2)
            rows[problem.name] = row
            journal.append(row)
            print(json.dumps(row), flush=True)
    summarise(list(rows.values()))


def look(problem: Problem, tracer: Tracer) -> tuple[JsonObject, Kernel | None]:
    """One problem's row, and the composition where there is one."""
    row: JsonObject = {"name": problem.name, "state": "not followed"}
    try:
        trace = tracer.trace(problem, measure=False, take_apart=True)
    except UserError as error:
        return row | {"why": str(error)}, None
    units = tuple((unit, tuple(cut(unit.graph))) for unit in trace.units)
    parts: dict[str, Part] = {}
    refused: list[str] = []
    for _, regions in units:
        for region in regions:
            if region.key in parts:
                continue
            printed = problem_of(region)
            try:
                parts[region.key] = Part(kernel_of(region, printed), printed.paths)
            except CannotWrite as error:
                refused.append(str(error))
    left = Counter(node.base for unit, _ in units for node in unit.graph.nodes if kind_of(node) in LEFT)
    row |= {
        "state": "in parts" if not trace.whole else "whole",
        "why": trace.reason,
        "regions": sum(len(regions) for _, regions in units),
        "distinct": len(parts) + len(refused),
        "written": len(parts),
        "refused": refused,
        "left": dict(left),
    }
    if not parts:
        return row | {"state": "nothing written"}, None
    kernel = compose(Plan(problem, units, parts))
    return row | {"characters": len(kernel.source)}, kernel


def summarise(rows: list[JsonObject]) -> None:
    print(Counter(row["state"] for row in rows))
    print("verified:", Counter(row["outcome"] for row in rows if "outcome" in row))
    print("no rule:", Counter(why for row in rows for why in row.get("refused", ())).most_common(40))
    print("left to PyTorch:", Counter(name for row in rows for name in row.get("left", ())).most_common(40))
    for row in rows:
        if row["state"] in ("not followed", "nothing written"):
            print(row["name"], row["state"], row.get("why", ""))


if __name__ == "__main__":
    main()
