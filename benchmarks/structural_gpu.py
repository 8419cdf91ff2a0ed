"""Every structural problem at full scale on this machine's GPU: audited, then timed one after the other.

    python benchmarks/structural_gpu.py -o benchmarks/structural/h100.json

Writes NAME.json: the machine; for each problem the audit's findings, whether its output is finite and the same twice,
milliseconds of an eager forward (median, float32 without TF32, cold L2 cache) and the peak of memory; and what does not
hold. NAME.audit.jsonl and NAME.timing.jsonl keep what is done; an interrupted run goes on there. Exit code 1 when
something does not hold. `--backend emulated --scale reduced` tries the script where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dice.data.sample import Sample
from dice.data.structural.build import samples
from dice.files.atomic import write_json
from dice.files.journal import append_row, read_rows
from dice.verify.audit.run import AuditSettings, audit_all
from dice.verify.execution.running import Device, exec_file, seed_everything
from dice.verify.execution.stopwatch import CudaStopwatch
from dice.verify.tensors import transport

MOST_MS, MOST_GIB = 50.0, 16.0  # what a problem may take
WARM_UP, CALLS, CALLS_S = 2, 9, 0.4
HARMLESS = ("shrunk",)

Row = dict[str, Any]


def main() -> int:
    args = _arguments()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    problems = samples(args.scale, args.family)
    settings = AuditSettings(args.backend, limit_s=args.timeout, memory_mb=8192)
    audits = audit_all(
        [problem.as_problem() for problem in problems],
        settings,
        workers=args.workers,
        record=args.out.with_suffix(".audit.jsonl"),
        progress=_progress("audited"),
    )
    audited_s = time.monotonic() - started
    rows = time_all(problems, Device(args.backend), args.out)
    for row, audit in zip(rows, audits, strict=True):
        row["findings"] = [f"{one.severity} {one.kind}: {one.message}" for one in audit.findings]
        row["audit_s"] = audit.seconds
        row["wrong"] = wrong(row, args.scale)
    report = {
        "machine": machine(args.backend),
        "scale": args.scale,
        "problems": len(rows),
        "structures": len({problem.origin for problem in problems}),
        "wrong": {row["name"]: row["wrong"] for row in rows if row["wrong"]},
        "milliseconds": spread([row["eager_ms"] for row in rows if "eager_ms" in row]),
        "gib": spread([row["peak_gib"] for row in rows if "peak_gib" in row]),
        "audit_s": round(audited_s, 1),
        "timing_s": round(time.monotonic() - started - audited_s, 1),
        "rows": rows,
    }
    write_json(args.out, report)
    print(json.dumps({key: value for key, value in report.items() if key != "rows"}, indent=1))
    return 1 if report["wrong"] else 0


def wrong(row: Row, scale: str) -> list[str]:
    """What does not hold of one problem."""
    kinds = [text for text in row["findings"] if text.split()[1].rstrip(":") not in HARMLESS]
    found = [text for text in kinds if scale == "full" or "launch_bound" not in text]
    if "error" in row:
        return [*found, row["error"]]
    if not row["finite"]:
        found.append("not finite")
    if not row["repeatable"]:
        found.append("two equal calls differ")
    if row["eager_ms"] > MOST_MS:
        found.append(f"{row['eager_ms']:.0f} ms, over {MOST_MS:g}")
    if row["peak_gib"] > MOST_GIB:
        found.append(f"{row['peak_gib']:.1f} GiB, over {MOST_GIB:g}")
    return found


def time_all(problems: list[Sample], device: Device, out: Path) -> list[Row]:
    """A row for each problem; those in the record are not timed again."""
    device.prepare(4)
    record, folder = out.with_suffix(".timing.jsonl"), out.parent
    done = {row["id"]: row for row in read_rows(record)}
    watch = CudaStopwatch() if not device.emulated else None
    show = _progress("timed")
    for number, problem in enumerate(problems):
        show(number, len(problems))
        id_ = problem.as_problem().id
        if id_ not in done:
            row = {"id": id_, "name": problem.name, "family": problem.family, "kind": problem.meta["kind"]}
            try:
                row |= time_one(problem.problem, folder, watch)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                row["error"] = str(error).splitlines()[0]
            done[id_] = row
            append_row(record, row)
    show(len(problems), len(problems))
    (folder / "timed_problem.py").unlink(missing_ok=True)
    return [done[problem.as_problem().id] for problem in problems]


def time_one(source: str, folder: Path, watch: CudaStopwatch | None) -> Row:
    """One model and one set of inputs, made where they are used. Peak memory includes both."""
    module = exec_file(source, folder, "timed_problem")
    seed_everything(0)
    if watch:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    with torch.device("cuda" if watch else "cpu"), torch.no_grad():
        model, inputs = module.Model(*module.get_init_inputs()), module.get_inputs()

    def forward() -> Any:
        with torch.no_grad():
            return model(*inputs)

    one, two = transport.tensors(forward()), transport.tensors(forward())
    row = {
        "finite": all(bool(tensor.isfinite().all()) for tensor in one),
        "repeatable": all(torch.equal(left, right) for left, right in zip(one, two, strict=True)),
        "output": [list(tensor.shape) for tensor in one],
        "std": float(one[0].float().std()),
    }
    del one, two
    row["eager_ms"] = round(_median_ms(forward, watch), 4)
    row["peak_gib"] = round((torch.cuda.max_memory_allocated() - before) / 2**30, 3) if watch else 0.0
    return row


def _median_ms(forward: Callable[[], Any], watch: CudaStopwatch | None) -> float:
    times: list[float] = []
    started = time.monotonic()
    while len(times) < WARM_UP + 1 or (len(times) < WARM_UP + CALLS and time.monotonic() - started < CALLS_S):
        if watch:
            watch.flush()
            times.append(watch.time(forward)[1])
        else:
            begin = time.perf_counter()
            forward()
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[WARM_UP:])


def machine(backend: str) -> dict[str, str]:
    found = {"torch": torch.__version__, "python": platform.python_version(), "cpu_cores": str(os.cpu_count())}
    if backend == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda)}
    return found


def spread(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {
        "least": min(values),
        "median": statistics.median(values),
        "most": max(values),
        "sum": round(sum(values), 1),
    }


def _progress(what: str) -> Callable[[int, int], None]:
    started = time.monotonic()

    def show(done: int, total: int) -> None:
        spent = time.monotonic() - started
        left = spent / done * (total - done) if done else 0.0
        print(f"\r{what} {done} of {total}, {spent:.0f} s, {left:.0f} s left ", end="", file=sys.stderr, flush=True)
        if done == total:
            print(file=sys.stderr)

    return show


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True, help="the report, NAME.json")
    parser.add_argument("--scale", choices=("full", "reduced"), default="full")
    parser.add_argument("--family", default="", help="only the problems of this model family")
    parser.add_argument("--backend", choices=("cuda", "emulated"), default="cuda")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4), help="audits at once")
    parser.add_argument("--timeout", type=float, default=40.0, help="seconds for one audit")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
