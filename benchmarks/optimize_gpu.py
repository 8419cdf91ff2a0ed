"""`dice optimize` over KernelBench's levels and real networks, on a GPU. Resumable: run it again and it goes on.

    python benchmarks/optimize_gpu.py OUT --problems KernelBench/level1 KernelBench/level3 benchmarks/networks \
        [--writer templates] [--budget 4] [--tune N] [--limit-s 600] [--jobs N] [--stop-after-s S] [--backend cuda]
        [--keep faster|right|either] [--without-compile] [--also PROTOCOL...]

`--jobs` problems are under way at once, by one verifier: one follows, writes or compiles while another one is timed,
and whoever is timed has the GPU to itself. Only pricing (what share of the time an operator takes) has no such right.
`--keep either`: what makes the module faster; where nothing does, all that is right, which is KernelBench's question.
`--without-compile`: torch.compile is not timed. `--also`: the answer is judged and timed under these protocols as well.
Each problem has a run folder of its own, so that one that was cut off, too, goes on where it was; OUT/results.jsonl has
a row for each. At the end: Exec and fast_p, as any part (KernelBench's rule: one verified kernel) and as all operators
(nothing of weight left to PyTorch), and the shares of the time that was replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.files.atomic import write_json, write_text
from dice.files.journal import Journal, read_rows
from dice.optimize.library import Library
from dice.optimize.printing import Printed
from dice.optimize.region import Region
from dice.optimize.run import Result, optimize_module
from dice.optimize.search import Policy, journal_path
from dice.optimize.trace.tracer import Tracer
from dice.optimize.writers import Answer, KernelWriter, Written, make_writer
from dice.problem import Problem, problem_files
from dice.verify import Options, Verifier
from dice.verify.options import Protocol
from dice.verify.protocols import PROTOCOLS
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.process import Cancelled

ALL = 0.99  # of the module's time, that counts as all of its operators
LEAST = 0.01  # of the module's time, below which a kernel does nothing of weight


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=Path, nargs="+", required=True)
    parser.add_argument("--writer", default="templates")
    parser.add_argument("--budget", type=int, default=4)
    parser.add_argument("--tune", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=600.0, help="for one problem")
    parser.add_argument("--jobs", type=int, default=1, help="problems that are under way at once")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--keep", default="faster", choices=("faster", "right", "either"))
    parser.add_argument("--without-compile", action="store_true")
    parser.add_argument("--also", default=[], nargs="+", choices=tuple(PROTOCOLS), help="further protocols")
    parser.add_argument("--stop-after-s", type=float, default=0.0, help="call off what runs then; 0: go on")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    files = {f"{folder.name}/{path.stem}": path for folder in args.problems for path in problem_files(folder)}
    with Journal(args.out / "results.jsonl", "run of optimize_gpu.py") as journal:
        rows = {row["problem"]: row for row in journal.rows()}
        for row in measured({name: path for name, path in files.items() if name not in rows}, args):
            rows[row["problem"]] = row
            journal.append(row)
            print(f"{len(rows)}/{len(files)} {row['problem']}: {row['outcome']} {row.get('speedup') or ''}", flush=True)
    for folder in args.problems:
        tell(folder.name, [row for row in rows.values() if row["problem"].startswith(f"{folder.name}/")])


def measured(files: dict[str, Path], args: argparse.Namespace) -> Iterator[JsonObject]:
    """A row for each problem, as they are done; none for what was called off at the end of the time."""
    end = Cancellation()
    options = Options(compile_baseline=args.backend == "cuda" and not args.without_compile)
    with (
        Verifier(backend=args.backend, options=options) as verifier,
        Tracer(args.backend) as tracer,
        ThreadPoolExecutor(args.jobs, thread_name_prefix="problem") as pool,
        after(args.stop_after_s, end),
    ):
        writers = [InTurns(make_writer(name)) for name in args.writer.split(",")]
        policy = Policy(samples=args.budget, tune=args.tune)
        right = replace(policy, keep="right")
        policies = {"faster": [policy], "right": [right], "either": [policy, right]}[args.keep]
        work = [pool.submit(one, *item, args, verifier, tracer, writers, policies, end) for item in files.items()]
        for done in as_completed(work):
            row = done.result()
            if row is not None:
                yield row


class InTurns:
    """A writer that several problems ask, one at a time: a checkpoint writes one text at a time."""

    def __init__(self, writer: KernelWriter):
        self.name, self.is_certain = writer.name, writer.is_certain
        self._writer, self._lock = writer, threading.Lock()

    def write(self, region: Region, printed: Printed, before: Sequence[Written]) -> Answer | None:
        with self._lock:
            return self._writer.write(region, printed, before)


class Stages:
    """What a module was at, and for how many seconds, as it is told how far it is."""

    def __init__(self) -> None:
        self.now, self._since, self._spent = "the start", time.monotonic(), dict[str, float]()

    def __call__(self, what: str, done: int, total: int) -> None:
        self._spent, self._since, self.now = self.seconds(), time.monotonic(), what

    def seconds(self) -> dict[str, float]:
        spent = self._spent.get(self.now, 0.0) + time.monotonic() - self._since
        return self._spent | {self.now: round(spent, 2)}


@contextmanager
def after(seconds: float, cancellation: Cancellation) -> Iterator[None]:
    """Call off after so long; 0: never."""
    timer = threading.Timer(seconds, cancellation.cancel) if seconds else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


def one(
    name: str,
    path: Path,
    args: argparse.Namespace,
    verifier: Verifier,
    tracer: Tracer,
    writers: Sequence[KernelWriter],
    policies: Sequence[Policy],
    end: Cancellation,
) -> JsonObject | None:
    """One problem's row, by the first policy that leaves a kernel. What is above the time limit is called off, and its
    run folder stays."""
    start, own, stages = time.monotonic(), Cancellation(), Stages()
    folder = args.out / name
    try:
        end.watch(own)
        with after(args.limit_s, own):
            for policy in policies:  # a run folder goes on: what is verified is not verified again
                result = optimize_module(
                    Problem.from_file(path),
                    verifier,
                    writers,
                    folder,
                    policy=policy,
                    library=Library(),
                    tracer=tracer,
                    show=stages,
                    cancellation=own,
                )
                if result.kernel is not None:
                    break
    except Cancelled:
        late = time.monotonic() - start >= args.limit_s
        print(f"{name}: called off at {stages.now} after {stages.seconds()}", flush=True)
        return {"problem": name, "outcome": "too slow", "seconds": args.limit_s} if late else None
    except (UserError, MachineError) as error:
        outcome: JsonObject = {"outcome": "refused", "why": str(error)[:400]}
    except Exception:  # a fault of ours in one problem: the others go on, and the row has all that is known of it
        outcome = {"outcome": "crashed", "why": traceback.format_exc()[-2000:]}
    else:
        write_json(folder / "report.json", result.report.to_json())
        if result.kernel is not None:
            write_text(folder / "whole.py", result.kernel.source)
        outcome = told(result) | {"also": also(args.also, Problem.from_file(path), result, verifier)}
    return {"problem": name, "seconds": round(time.monotonic() - start, 1), "stages": stages.seconds()} | outcome


def told(result: Result) -> JsonObject:
    report, verdict = result.report, result.verdict
    timing = verdict.timing if verdict else None
    return {
        "outcome": verdict.outcome if verdict and result.kernel else "nothing replaced",
        "speedup": timing.speedup if timing else None,
        "compile_ms": timing.compile_ms if timing else None,
        "kernel_ms": timing.kernel_ms if timing else None,
        "share": report.share if result.kernel else 0.0,
        "regions": len(report.rows),
        "replaced": len(report.replaced),
        "outcomes": outcomes(result.folder),
        "tuned": {row.key: row.tuned for row in report.rows if row.tuned},
        "left": dict(report.left),
        "why": verdict.message if verdict else "",
    }


def also(protocols: Sequence[Protocol], problem: Problem, result: Result, verifier: Verifier) -> JsonObject:
    """What these protocols make of the answer: its outcome and its speed-up."""
    found: JsonObject = {}
    if result.kernel is None:
        return found
    for protocol in protocols:
        verdict = verifier.verify(problem, result.kernel, replace(verifier.options, protocol=protocol))
        found[protocol] = {"outcome": verdict.outcome, "speedup": verdict.timing.speedup if verdict.timing else None}
    return found


def outcomes(folder: Path) -> dict[str, dict[str, int]]:
    """How many candidates of each writer had which outcome."""
    found: dict[str, dict[str, int]] = {}
    for row in read_rows(journal_path(folder)):
        if row.get("kind") == "candidate":
            own = found.setdefault(row["writer"], {})
            outcome = row["verdict"]["outcome"]
            own[outcome] = own.get(outcome, 0) + 1
    return found


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
    print(f"  candidates: {json.dumps(summed([row.get('outcomes', {}) for row in rows]))}")
    for row in rows:
        if row["outcome"] != "correct":
            print(f"  {row['problem']}: {row['outcome']} {row.get('why', '')[:160]}")


def summed(counts: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for own in counts:
        for writer, outcome_counts in own.items():
            for outcome, count in outcome_counts.items():
                total.setdefault(writer, {}).setdefault(outcome, 0)
                total[writer][outcome] += count
    return total


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"optimize_gpu.py: {error}")
