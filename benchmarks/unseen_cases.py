"""Cheats and unusual honest kernels that were written from the README alone, and what the verifier says of them.

    python benchmarks/unseen_cases.py [--cases FILE.jsonl] [--names rowsum_nonatomic ...] [--out FILE.json]
        [--backend cuda] [--stop-after-s S]

`verifier/unseen_cases.jsonl` has a row for each, `unseen_cases_2.jsonl` for those of a second time,
`unseen_cases_3.jsonl` of a third, about races and streams, and `unseen_cases_4.jsonl` to `unseen_cases_19.jsonl` of a
fourth to a nineteenth: name, kind (cheat or honest), problem, kernel, and a note where a case was put into the other
kind, or was mistaken itself. A miss is a cheat that is judged `correct`, or an honest kernel that is not; the interval
of its share is Wilson's, 95%, in percent. Once they are mended these cases are no longer unseen: the next measurement
needs new ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections import Counter
from pathlib import Path

from optimize_gpu import after

from dice.evaluate.statistics import wilson
from dice.files.atomic import write_json
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.process import Cancelled

CASES = Path(__file__).parent / "verifier" / "unseen_cases.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, default=CASES)
    parser.add_argument("--names", nargs="+", help="these alone")
    parser.add_argument("--backend", default="emulated")
    parser.add_argument("--provenance", default="any", help="construction: what is no program is not taken")
    parser.add_argument("--stop-after-s", type=float, default=0.0, help="what is judged until then counts")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.cases.read_text().splitlines()]
    rows = [row for row in rows if not args.names or row["name"] in args.names]
    pairs = [(Problem(row["problem"], row["name"]), Kernel(row["kernel"], row["name"])) for row in rows]
    outcomes: dict[str, str] = {}
    misses: Counter[str] = Counter()
    options, off = Options(timing=False, provenance=args.provenance), Cancellation()
    with (
        Verifier(backend=args.backend, options=options) as verifier,
        after(args.stop_after_s, off),
        contextlib.suppress(Cancelled),
    ):
        for index, verdict in verifier.verify_many(pairs, cancellation=off):
            row = rows[index]
            outcomes[row["name"]] = verdict.outcome
            if verdict.correct != (row["kind"] == "honest"):
                misses[row["kind"]] += 1
                print(f"{row['kind']} {row['name']}: {verdict.outcome} {verdict.message[:200]}", flush=True)
    count = Counter(row["kind"] for row in rows if row["name"] in outcomes)
    found = {kind: _share(misses[kind], count[kind]) for kind in count}
    print(found)
    if args.out:
        write_json(args.out, {"backend": args.backend, "found": found, "outcomes": outcomes})


def _share(missed: int, cases: int) -> dict[str, object]:
    share = wilson(missed, cases)
    return {
        "cases": cases,
        "missed": missed,
        "interval": [round(100 * (end or 0.0), 1) for end in (share.low, share.high)],
    }


if __name__ == "__main__":
    main()
