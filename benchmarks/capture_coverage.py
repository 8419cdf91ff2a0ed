"""Which share of right kernels is verified by construction, and what keeps the others from it?

    python benchmarks/capture_coverage.py --out results.json [--count 320] [--backend auto] [--workers 2]

The kernels are the synthetic corpus's and the test suite's right ones, rewritten in other people's habits
(`idioms.py`), and the honest controls of `tests/exploits`. All are right, so each must be `correct`; `provenance` of
the verdict says how it is known who computed, and `not_captured` in its evidence why there was no program. With
`--seconds`, the same pairs are verified once more by evidence alone, for the rates side by side.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from slim_coverage import chosen

from dice.commands.bench.verify import machine
from dice.files.atomic import write_json
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier
from dice.verify.options import Provenance

EXPLOITS = Path(__file__).parent.parent / "tests" / "exploits"
Pair = tuple[str, Problem, Kernel]


def honest(backend: str) -> list[Pair]:
    """The honest controls that make sense on a backend."""
    sys.path.insert(0, str(EXPLOITS))
    import catalogue

    found = catalogue.read_all("honest")
    return [(f"honest/{name}", one.problem, one.kernel) for name, one in found.items() if backend in one.expected]


def verified(pairs: list[Pair], backend: str, workers: int | None, provenance: Provenance) -> dict[str, Any]:
    """Rows by name, and the seconds that all took once the libraries were built."""
    options = Options(timing=False, trials=3, provenance=provenance)
    rows: dict[str, Any] = {}
    stages: Counter[str] = Counter()
    with Verifier(backend=backend, options=options) as verifier:
        for _ in range(2):  # the second time with every library built
            started = time.monotonic()
            stages.clear()
            for index, verdict in verifier.verify_many([pair[1:] for pair in pairs], workers=workers):
                name = pairs[index][0]
                why = verdict.evidence.get("not_captured", "")
                rows[name] = {"outcome": verdict.outcome, "provenance": verdict.provenance, "why": why}
                stages.update(verdict.seconds)
                if not verdict.correct:
                    rows[name]["message"] = verdict.message
            seconds = time.monotonic() - started
    spent = {stage: round(total, 2) for stage, total in stages.items()}
    return {"rows": rows, "seconds": round(seconds, 2), "stages": spent}


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Shares among the corpus and among the honest controls, and the reasons of the rest."""
    told: dict[str, Any] = {}
    for part in ("corpus", "honest"):
        mine = [row for name, row in rows.items() if name.startswith(part)]
        told[part] = {
            "kernels": len(mine),
            "correct": sum(row["outcome"] == "correct" for row in mine),
            "by_construction": sum(row["provenance"] == "construction" for row in mine),
        }
    told["reasons"] = dict(Counter(row["why"][:120] for row in rows.values() if row["why"]).most_common())
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=320)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument("--seconds", action="store_true", help="also by evidence alone, and both rates")
    args = parser.parse_args()
    with Verifier(backend=args.backend) as verifier:
        backend = verifier.backend
    corpus = [(f"corpus {number}", problem, kernel) for number, (problem, kernel, _) in enumerate(chosen(args.count))]
    pairs = corpus + honest(backend)
    tried = verified(pairs, backend, args.workers, "any")
    result = {"machine": machine(backend), "count": len(pairs), **summary(tried["rows"])}
    result |= {"seconds": tried["seconds"], "stages": tried["stages"]}
    if args.seconds:
        alone = verified(pairs, backend, args.workers, "evidence")
        other = {name: row["outcome"] for name, row in alone["rows"].items()}
        result |= {"seconds_by_evidence": alone["seconds"], "stages_by_evidence": alone["stages"]}
        result["differ"] = [name for name, row in tried["rows"].items() if other[name] != row["outcome"]]
    result["rows"] = {name: row for name, row in tried["rows"].items() if row["why"] or row["outcome"] != "correct"}
    write_json(args.out, result)
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
