"""Which share of KernelBench-style kernels compiles without PyTorch's own headers, and do they give the same results?

    python benchmarks/slim_coverage.py --out results [--count 320] [--full-sample 8] [--compile-only]

The kernels are the synthetic corpus's and the test suite's right ones, rewritten in other people's habits
(`idioms.py`). All of them are right, so each must be `correct`, whichever way it was compiled: a kernel that the
shadow headers cannot compile falls back to PyTorch's (`full` in `headers`), and one that they compile to something
else is a wrong verdict. `--full-sample` kernels also go through stock `load_inline`. `--compile-only` needs nvcc but
no GPU, and then no result is known.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from idioms import varied
from mutants import hand_written

from dice.bench.verify import VerifyBenchPlan, builds, stock
from dice.commands.bench.verify import machine
from dice.files.atomic import write_json
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier

SEED = 77
Item = tuple[Problem, Kernel, tuple[str, ...]]


def chosen(count: int) -> list[Item]:
    right = [(item.problem, item.kernel, (item.name,)) for item in hand_written() if item.name.startswith("right_")]
    return right + list(varied(SEED, count - len(right)))


def verified(items: list[Item], backend: str, workers: int, cache_dir: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{} for _ in items]
    options = Options(timing=False, trials=3, cache_dir=cache_dir)
    with Verifier(backend=backend, options=options) as verifier:
        pairs = [(problem, kernel) for problem, kernel, _ in items]
        for index, verdict in verifier.verify_many(pairs, workers=workers):
            rows[index] = {
                "name": items[index][1].name,
                "habits": items[index][2],
                "headers": verdict.headers,
                "outcome": verdict.outcome,
                "message": verdict.message[:500],
                "errors": list(verdict.errors[:3]),
            }
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Shares over the kernels that compile at all, and by habit how many needed the full headers."""
    compiled = [row for row in rows if row["headers"]]
    by_habit: dict[str, Counter[str]] = defaultdict(Counter)
    for row in compiled:
        for habit in row["habits"]:
            by_habit[habit]["full" if row["headers"] == "full" else "slim"] += 1
    slim = [row for row in compiled if row["headers"] != "full"]
    return {
        "kernels": len(rows),
        "compiled": len(compiled),
        "headers": dict(Counter(row["headers"] for row in compiled)),
        "share_without_full_headers": len(slim) / max(1, len(compiled)),
        "right_of_those": sum(row["outcome"] == "correct" for row in slim),
        "not_right": [row for row in rows if row["outcome"] != "correct"],
        "habits_that_need_full": {habit: dict(counts) for habit, counts in by_habit.items() if counts["full"]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=320)
    parser.add_argument("--full-sample", type=int, default=8)
    parser.add_argument("--backend", choices=["cuda", "emulated"], default="cuda")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    items = chosen(args.count)
    result: dict[str, Any] = {"machine": machine(args.backend), "seed": SEED, "backend": args.backend}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        pairs = tuple((problem, kernel) for problem, kernel, _ in items)
        if args.compile_only:
            result["builds"] = builds(VerifyBenchPlan(pairs, (), args.backend, args.workers, 0, 0, 0), root / "cache")
        else:
            rows = verified(items, args.backend, args.workers, root)
            result |= {"summary": summary(rows), "rows": rows}
            if args.full_sample and args.backend == "cuda":
                sample = pairs[:: max(1, len(pairs) // args.full_sample)][: args.full_sample]
                result["stock"] = stock(sample, "cuda", args.workers, 400.0, root / "stock")
    result["seconds"] = time.perf_counter() - started
    write_json(args.out / "slim_coverage.json", result)
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}, indent=1))


if __name__ == "__main__":
    main()
