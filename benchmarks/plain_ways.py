"""nano on plain modules in each of `dice generate`'s ways, one greedy sample each: as written (or completed from the
module), and region by region in canonical form. A run that was stopped goes on.

    python benchmarks/plain_ways.py OUT.jsonl [--limit N]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dice.generation import DECODING, Attempt, Writer, attempts
from dice.optimize.run import attempt_by_regions
from dice.problem import Problem
from dice.verify import Options, Verifier

PLAIN = Path(__file__).parent / "plain.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    rows = [json.loads(line) for line in PLAIN.read_text().splitlines()][: args.limit]
    done = {json.loads(line)["name"] for line in args.out.read_text().splitlines()} if args.out.exists() else set()
    writer = Writer.load("nano", DECODING)
    with Verifier(backend="emulated", options=Options(timing=False)) as verifier, args.out.open("a") as file:
        for row in rows:
            if row["name"] in done:
                continue
            problem = Problem(row["problem"], row["name"])
            (plain,) = attempts(problem, writer, verifier, samples=1, refine=0, prompt="auto", seed=0)
            regions, why = attempt_by_regions(
                problem, "nano", writer, verifier, samples=1, prompt="auto", seed=0
            )  # whether or not it is needed
            found = {"name": row["name"], "plain": _said(plain), "canonical": _said(regions), "why": why}
            file.write(json.dumps(found) + "\n")
            file.flush()
            print(row["name"], found["plain"], found["canonical"], flush=True)


def _said(attempt: Attempt | None) -> dict[str, object]:
    if attempt is None:
        return {"outcome": "none"}
    verdict = attempt.verdict
    share = verdict.replaced.time_share if verdict.replaced else None
    all_of_it = verdict.solves("all")
    return {"outcome": verdict.outcome, "way": attempt.way, "all_operators": all_of_it, "time_share": share}


if __name__ == "__main__":
    main()
