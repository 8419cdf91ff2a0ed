"""Builds and verdicts a minute of two checkouts, measured in turns on one machine: has a change made it slower?

    python benchmarks/rates_beside.py --before FOLDER --after FOLDER --out FILE [--rounds 3] [--candidates 192]
                                      [--workers N] [--backend auto|cuda|emulated]

Each round runs `dice bench verify` of both, in the one order and then in the other, without its stock path. The report
has every run, the medians, and the quotient of the medians; `spread` is a checkout's largest run over its smallest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KINDS = ("builds", "verdicts", "warm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("before", "after", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--candidates", type=int, default=192)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--backend", default="auto")
    args = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    report: dict[str, Any] = {"command": " ".join(sys.argv), "runs": runs}
    for number in range(args.rounds):
        for name in ("before", "after") if number % 2 == 0 else ("after", "before"):
            measured = measure(getattr(args, name), args)
            report["machine"] = measured.pop("machine")
            runs[name].append(measured)
            report["summary"] = {kind: compare(runs, kind) for kind in KINDS}
            args.out.write_text(json.dumps(report, indent=1))
            print(f"{name}: {measured['per_minute']}", flush=True)
    for kind, found in report["summary"].items():
        print(
            f"{kind:<10} before {found['before']:7.1f}  after {found['after']:7.1f}  after/before {found['ratio']:.3f}"
        )
    return 0


def measure(checkout: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One run of one checkout."""
    with tempfile.TemporaryDirectory() as folder:
        asked = {"candidates": args.candidates, "workers": args.workers, "alone": 2, "backend": args.backend}
        options = [f"--{name}={value}" for name, value in asked.items()]
        command = [sys.executable, "-m", "dice", "bench", "verify", *options, "--stock-candidates=0", "--stock-alone=0"]
        paths = [str(checkout.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(
            [*command, "--out", folder], cwd=checkout, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} in {checkout} failed:\n{done.stderr[-2000:]}")
        figures = json.loads((Path(folder) / "bench_verify.json").read_text())
    found = figures["figures"]
    return {
        "machine": figures["machine"],
        "per_minute": {kind: round(found[kind]["per_minute"], 1) for kind in KINDS},
        "outcomes": {kind: found[kind].get("outcomes") for kind in KINDS[1:]},
        "alone_s": round(found["alone"]["seconds"]["median"], 4),
    }


def compare(runs: dict[str, list[dict[str, Any]]], kind: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, measured in runs.items():
        rates = [run["per_minute"][kind] for run in measured] or [float("nan")]
        found |= {name: statistics.median(rates), f"{name}_spread": max(rates) / min(rates)}
    return found | {"ratio": found["after"] / found["before"]}


if __name__ == "__main__":
    raise SystemExit(main())
