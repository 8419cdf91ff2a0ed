"""`dice optimize` over KernelBench's levels and real networks, on a GPU. Resumable: run it again and it goes on.

    python benchmarks/optimize_gpu.py OUT --problems KernelBench/level1 KernelBench/level3 benchmarks/networks \
        [--writer templates] [--budget 4] [--limit-s 600] [--backend cuda]

Each problem is one `dice optimize` with a run folder of its own, so that a killed problem, too, goes on where it was;
OUT/results.jsonl has a row for each. At the end: Exec and fast_p, as any part (KernelBench's rule: one verified kernel)
and as all operators (nothing of weight left to PyTorch), and the shares of the time that was replaced.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from dice.files import JsonObject
from dice.files.journal import Journal
from dice.launch import environment, python_command
from dice.problem import problem_files

ALL = 0.99  # of the module's time, that counts as all of its operators
LEAST = 0.01  # of the module's time, below which a kernel does nothing of weight


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=Path, nargs="+", required=True)
    parser.add_argument("--writer", default="templates")
    parser.add_argument("--budget", type=int, default=4)
    parser.add_argument("--limit-s", type=float, default=600.0)
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--keep", default="faster", choices=("faster", "right"))
    parser.add_argument("--stop-after-s", type=float, default=0.0, help="begin no problem after so long; 0: go on")
    args = parser.parse_args()
    began = time.monotonic()
    files = [(folder.name, path) for folder in args.problems for path in problem_files(folder)]
    with Journal(args.out / "results.jsonl") as journal:
        rows = {row["problem"]: row for row in journal.rows()}
        for group, path in files:
            name = f"{group}/{path.stem}"
            if name in rows or (args.stop_after_s and time.monotonic() - began > args.stop_after_s):
                continue
            rows[name] = row = one(name, path, args)
            journal.append(row)
            print(f"{len(rows)}/{len(files)} {name}: {row['outcome']} {row.get('speedup') or ''}", flush=True)
    for folder in args.problems:
        tell(folder.name, [row for row in rows.values() if row["problem"].startswith(f"{folder.name}/")])


def one(name: str, path: Path, args: argparse.Namespace) -> JsonObject:
    """One problem's row. What is above the time limit is killed, and its run folder stays."""
    folder = args.out / name
    folder.mkdir(parents=True, exist_ok=True)
    command = python_command(
        "dice",
        *("optimize", str(path), "-o", str(folder / "whole.py"), "--run", str(folder / "run")),
        *("--writer", args.writer, "--budget", str(args.budget), "--backend", args.backend, "--keep", args.keep),
        *("--compile-baseline", "--json") if args.backend == "cuda" else ("--json",),
    )
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=args.limit_s, env=environment(), check=False
        )
    except subprocess.TimeoutExpired:
        return {"problem": name, "outcome": "too slow", "seconds": args.limit_s}
    (folder / "stderr.txt").write_text(done.stderr)
    row: JsonObject = {"problem": name, "seconds": round(time.monotonic() - start, 1), "exit": done.returncode}
    if done.returncode not in (0, 1):
        return row | {"outcome": "refused", "why": done.stderr.strip().splitlines()[-1][:400] if done.stderr else ""}
    report = json.loads(done.stdout.splitlines()[-1])
    (folder / "report.json").write_text(json.dumps(report, indent=1))
    verdict = report["verdict"] or {}
    timing = verdict.get("timing") or {}
    replaced = [region for region in report["regions"] if region["replaced"]]
    return row | {
        "outcome": verdict.get("outcome", "nothing replaced") if report["written"] else "nothing replaced",
        "speedup": timing.get("speedup"),
        "compile_ms": timing.get("compile_ms"),
        "kernel_ms": timing.get("kernel_ms"),
        "share": report["share_replaced"],
        "regions": len(report["regions"]),
        "replaced": len(replaced),
        "left": report["left_to_pytorch"],
        "why": verdict.get("message", ""),
    }


def tell(group: str, rows: Sequence[JsonObject]) -> None:
    if not rows:
        return
    print(f"\n{group}: {len(rows)} problems")
    for setting, least in (("any part", LEAST), ("all operators", ALL)):
        right = [row for row in rows if row["outcome"] == "correct" and row["share"] >= least]
        faster = [row for row in right if (row["speedup"] or 0) > 1]
        over = [row for row in right if row["compile_ms"] and row["compile_ms"] > row["kernel_ms"]]
        shares = [100 * len(found) / len(rows) for found in (right, faster, over)]
        print(f"  {setting}: Exec {shares[0]:.1f}, fast1 {shares[1]:.1f}, faster than torch.compile {shares[2]:.1f}")
    for row in rows:
        if row["outcome"] != "correct":
            print(f"  {row['problem']}: {row['outcome']} {row.get('why', '')[:160]}")


if __name__ == "__main__":
    main()
