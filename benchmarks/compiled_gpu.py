"""Eager PyTorch and torch.compile on problems, side by side, on a GPU: the baseline of `--without-compile` runs.

    python benchmarks/compiled_gpu.py OUT.jsonl --problems KernelBench/level3 [--jobs 12] [--stop-after-s S]

Each problem has a process of its own. Compiling takes the processor's time, so many compile at once; whoever times has
the GPU to itself, by a lock on a file. Medians of calls in turns behind a flush of the caches, in milliseconds. A row
for each problem as it is done; the same command goes on.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from dice.files import JsonObject
from dice.files.journal import Journal
from dice.problem import problem_files

ROUNDS, CALLS, WARM_UPS = 9, 3, 3
FLUSH_BYTES = 256 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=Path, nargs="+", required=True)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--stop-after-s", type=float, default=1e9)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(args.child, args.out.with_suffix(".lock"))))
        return
    ends = time.monotonic() + args.stop_after_s
    files = {f"{folder.name}/{path.stem}": path for folder in args.problems for path in problem_files(folder)}
    with Journal(args.out, "run of compiled_gpu.py") as journal, ThreadPoolExecutor(args.jobs) as pool:
        known = {row["problem"] for row in journal.rows()}
        work = [pool.submit(asked, name, path, args.out, ends) for name, path in files.items() if name not in known]
        for done in as_completed(work):
            row = done.result()
            if row is not None:
                journal.append(row)
                print(json.dumps(row), flush=True)


def asked(name: str, path: Path, out: Path, ends: float) -> JsonObject | None:
    """A problem's row, by a process; None where the time is over."""
    left = ends - time.monotonic()
    if left <= 0:
        return None
    command = [sys.executable, __file__, str(out), "--problems", str(path), "--child", str(path)]
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "2"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=left, env=environment)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return {"problem": name, "why": (done.stderr.strip().splitlines() or [""])[-1][:300]}
    row: JsonObject = {"problem": name, **json.loads(done.stdout.splitlines()[-1])}
    return row


@torch.no_grad()
def measured(path: Path, lock: Path) -> JsonObject:
    space: dict[str, Any] = {"__name__": "problem", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), space)
    torch.manual_seed(0)
    model = space["Model"](*space["get_init_inputs"]()).cuda()
    inputs = [one.cuda() if isinstance(one, torch.Tensor) else one for one in space["get_inputs"]()]
    compiled = torch.compile(model)
    begun = time.perf_counter()
    compiled(*inputs)
    torch.cuda.synchronize()
    compiling_s = time.perf_counter() - begun
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        times: dict[str, list[float]] = {"eager": [], "compiled": []}
        runs: dict[str, Callable[..., Any]] = {"eager": model, "compiled": compiled}
        for number in range(ROUNDS + 1):
            for name, run in runs.items():
                found = [timed(run, inputs, flush) for _ in range(CALLS if number else WARM_UPS)]
                times[name] += found if number else []
    medians = {f"{name}_ms": statistics.median(found) for name, found in times.items()}
    spreads = {f"{name}_quartiles": statistics.quantiles(found, n=4)[::2] for name, found in times.items()}
    return {**medians, **spreads, "compiling_s": compiling_s, "gpu": torch.cuda.get_device_name()}


def timed(run: Callable[..., Any], inputs: list[Any], flush: torch.Tensor) -> float:
    """Milliseconds on the device; the launch hides behind the flush as far as it can."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush.zero_()
    begin.record()
    run(*inputs)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


if __name__ == "__main__":
    main()
