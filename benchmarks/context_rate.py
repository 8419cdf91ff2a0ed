"""How many processes a minute can make a CUDA context, use it once and end: what no verifier with a process for each
candidate can go beyond.

    python benchmarks/context_rate.py [--workers 1 4 8 16] [--seconds 15] [--out FILE.json]

Each process is forked from one that has imported PyTorch, as the verifier's are, computes one small sum and ends. The
driver makes and ends contexts one after the other, on all GPUs of a host together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch


def once(_: int) -> float:
    """Seconds of one process, from its fork to its end."""
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(float(torch.ones(8, device="cuda").sum()) != 8.0)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"a process ended with {status}")
    return time.monotonic() - started


def measured(workers: int, seconds: float) -> dict[str, float]:
    """Of so many at once, for so long."""
    taken: list[float] = []
    started = time.monotonic()
    with ThreadPoolExecutor(workers) as pool:
        while time.monotonic() - started < seconds:
            taken += pool.map(once, range(2 * workers))
    wall = time.monotonic() - started
    return {"workers": workers, "per_minute": 60 * len(taken) / wall, "median_s": statistics.median(taken)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=15.0, help="for each number of workers")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if torch.cuda.device_count() == 0:  # which makes no context, so that forks can
        print("context_rate.py: there is no GPU here.", file=sys.stderr)
        return 3
    rows = [measured(workers, args.seconds) for workers in args.workers]
    for row in rows:
        print(json.dumps(row), flush=True)
    if args.out:
        known = {"torch": torch.__version__, "gpus": torch.cuda.device_count(), "cores": len(os.sched_getaffinity(0))}
        args.out.write_text(json.dumps({"machine": known, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
