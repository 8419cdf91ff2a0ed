"""Can the timings be believed? Needs an NVIDIA GPU.

    python benchmarks/timing_quality.py --out results [--problems 24] [--small] [--kernels 3] [--times 20]

1. Each problem's reference as its own candidate, in a process of its own and measured as a candidate is: the speed-up
   must be 1.00. (`dice verify` would call it deceptive before timing it, so this drives the timing itself.)
   `late` is the share of calls that took 10 us more than the quickest one: a call whose launch was not hidden starts
   as much too late. `--small` takes problems whose calls take some microseconds, where that matters most.
2. The same kernels verified and timed many times over, each time in new processes: the spread of the times.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from dice import synth
from dice.commands.bench.verify import machine
from dice.files.atomic import write_json
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier
from dice.verify.ipc import messages as m
from dice.verify.options import default_cache_dir
from dice.verify.supervisor import timing

SEED = 4711
LARGE, SMALL = (4 << 20, 256 << 20), (0, 4 << 20)  # bytes of inputs: as a benchmark's, and less
LATE_MS = 0.01
T = TypeVar("T")


def pairs_of(size: tuple[int, int], count: int) -> list[Any]:
    """Pairs of the synthetic corpus whose inputs have this size, families taken in turn."""
    by_family: dict[str, list[Any]] = {}
    for index in range(1500):
        pair = synth.generate(SEED, index)
        if pair.check_source is not None and size[0] <= input_bytes(pair.problem) < size[1]:
            by_family.setdefault(pair.family, []).append(pair)
    queues = [list(pairs) for _, pairs in sorted(by_family.items())]
    found: list[Any] = []
    while len(found) < count and any(queues):
        for queue in queues:
            if queue and len(found) < count:
                found.append(queue.pop(0))
    return found


def input_bytes(problem: Problem) -> int:
    """Size of a problem's inputs, which are not made for it."""
    import torch

    namespace: dict[str, Any] = {}
    exec(problem.source, namespace)
    with torch.device("meta"):
        return sum(item.nbytes for item in namespace["get_inputs"]() if isinstance(item, torch.Tensor))


@dataclass(frozen=True)
class Open:
    """To a side: take on this problem."""

    source: str


@dataclass(frozen=True)
class Close:
    """To a side: forget it."""


@dataclass(frozen=True)
class Check:
    """To the reference's side: judge the output that the other has written to `folder`."""

    timed: m.JudgeTimed
    folder: str


def serve(link: Connection, folder: str) -> None:
    """A side of the contests: the reference, told what to do as the reference's process and the candidate are."""
    import torch

    from dice.verify.execution import stopwatch
    from dice.verify.execution.running import Device
    from dice.verify.reference.judge import judge
    from dice.verify.reference.reference import Reference
    from dice.verify.reference.subject import Subject
    from dice.verify.reference.timing import TimedReference, as_timed
    from dice.verify.tensors import transport

    device = Device("cuda")
    device.prepare(1)
    bench: Any = None
    while True:
        command = link.recv()
        if isinstance(command, Open):
            reference = Reference(Subject(command.source, device, Path(folder), protocol="dice"))
            reference.construct(SEED)
            trial = reference.trial(SEED, m.Step(timing.INPUTS, "given"))
            assert trial is not None
            link.send(None)
        elif isinstance(command, Close):
            if isinstance(bench, TimedReference):
                bench.end()
            del reference, trial, bench
            bench = None
            device.timing = False
            device.release()
            link.send(None)
        elif isinstance(command, m.StartTiming) and not command.salted:
            assert trial is not None
            bench = TimedReference(reference, trial.inputs, command.warm_up_s)
            link.send(bench.started)
        elif isinstance(command, m.StartTiming):
            assert trial is not None
            device.allow_tf32(True)  # told as a candidate is, and does as one does: it keeps every output
            device.timing = True
            inputs, watch = device.place(trial.inputs), stopwatch.CudaStopwatch()
            bench = stopwatch.Bench(reference.model, inputs, command.salted, watch, command.flushes)
            with torch.no_grad():
                link.send(m.TimingStarted(*bench.warm_up(command.warm_up_s)))
        elif isinstance(command, m.ShowOutput):
            transport.write(bench.kept[command.call], Path(folder), "shown")
            link.send(m.OutputShown())
        elif isinstance(command, Check):
            shown = transport.read(Path(command.folder), "shown")
            asked = bench.trial(command.timed.seed, command.timed.call)
            judged = judge(reference, asked, shown)
            if not judged.equal and (other := as_timed(reference, asked)) is not None:
                judged = judge(reference, other, shown)
            same = int(stopwatch.checksum(shown)) == command.timed.checksum
            link.send(m.Judged(judged.equal and same, judged.message))
        else:
            link.send(_answer(bench, command))


def _answer(bench: Any, command: Any) -> Any:
    """Of either side, to a step of timing that both take."""
    import torch

    from dice.verify.execution.stopwatch import Bench

    if isinstance(bench, Bench):
        with torch.no_grad():
            if isinstance(command, m.TimeRound):
                return bench.round(command.seed, command.calls, command.idle)
            return bench.block(command.seed, command.calls)
    answers = {m.TimeRound: bench.round, m.TimeBlock: bench.block}
    if type(command) in answers:
        return answers[type(command)](command)
    asked = {
        m.DescribeWork: bench.describe_work,
        m.CountNeededBytes: bench.count_needed_bytes,
        m.MeasureCeilings: bench.measure_ceilings,
        m.TimeCompiled: bench.time_compiled,
    }
    return asked[type(command)]()


class Arena:
    """Two processes that hold the same reference, one in the part of the candidate."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.links: list[Connection] = []
        self.processes = []
        for name in ("reference", "candidate"):
            own = Path(self.folder.name) / name
            own.mkdir()
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, str(own)), daemon=True)
            process.start()
            theirs.close()
            self.links.append(ours)
            self.processes.append(process)

    def ask(self, side: int, command: Any) -> Any:
        self.links[side].send(command)
        return self.links[side].recv()

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
            process.join()
        self.folder.cleanup()

    def against_itself(self, problem: Problem) -> dict[str, Any]:
        """The contest of a problem's reference with itself."""

        def check(timed: m.JudgeTimed) -> None:
            judged = self.ask(0, Check(timed, str(Path(self.folder.name) / "candidate")))
            assert judged.equal, judged.message

        def ask_reference(command: Any, answer: type[T]) -> T:
            said = self.ask(0, command)
            assert isinstance(said, answer)
            return said

        def ask_candidate(command: Any, answer: type[T]) -> T:
            said = self.ask(1, command)
            assert isinstance(said, answer)
            return said

        for link in self.links:
            link.send(Open(problem.source))
        for link in self.links:
            link.recv()
        started = time.perf_counter()
        try:
            found = timing.run(ask_reference, ask_candidate, check, timing.BUDGET_S)
            cache_dir = default_cache_dir()
            cache_dir.mkdir(parents=True, exist_ok=True)
            facts = timing.facts(found, ask_reference, cache_dir, problem.id, False)
        except (timing.Implausible, timing.Busy) as error:
            return {"problem": problem.name, "refused": str(error)}
        finally:
            for side in (0, 1):
                self.ask(side, Close())
        result = found.timing(**facts)
        return {
            "problem": problem.name,
            "ms": result.kernel_ms,
            "reference_ms": result.reference_ms,
            "speedup": result.speedup,
            "low": result.speedup_low,
            "high": result.speedup_high,
            "rounds": result.rounds,
            "ceiling_ms": result.ceiling_ms,
            "hidden_ms": found.kernel.hidden_ms,
            "host_ms": statistics.median(found.kernel.host_ms),
            "late": late(found.kernel.ms),
            "reference_late": late(found.reference.ms),
            "seconds": time.perf_counter() - started,
        }


def late(times: list[float]) -> float:
    """Share of calls that took clearly longer than the quickest of them."""
    return sum(ms > min(times) + LATE_MS for ms in times) / len(times)


def repeated(verifier: Verifier, problem: Problem, kernel: Kernel, times: int) -> dict[str, Any]:
    """One kernel, verified and timed anew each time."""
    milliseconds, speedups = [], []
    for _ in range(times):
        verdict = verifier.verify(problem, kernel)
        if verdict.timing is None:
            return {"kernel": kernel.name, "verdict": f"{verdict.outcome} {verdict.stage}: {verdict.message}"}
        milliseconds.append(verdict.timing.kernel_ms)
        speedups.append(verdict.timing.speedup)
    return {"kernel": kernel.name, "ms": milliseconds, **_spread("time", milliseconds), **_spread("speedup", speedups)}


def _spread(name: str, values: list[float]) -> dict[str, float]:
    median = statistics.median(values)
    low, _, high = statistics.quantiles(values, n=4)
    return {
        f"median_{name}": median,
        f"{name}_range": (max(values) - min(values)) / median,
        f"{name}_interquartile": (high - low) / median,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=24)
    parser.add_argument("--small", action="store_true", help="problems of a few microseconds")
    parser.add_argument("--kernels", type=int, default=3)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds; what does not fit is left out")
    args = parser.parse_args()
    deadline = time.monotonic() + args.budget
    result: dict[str, Any] = {"machine": machine("cuda"), "itself": [], "repeated": []}

    def store() -> None:
        itself = [row for row in result["itself"] if "speedup" in row]
        again = [row for row in result["repeated"] if "ms" in row]
        result["summary"] = {
            "problems": len(itself),
            "within_3_percent": sum(abs(row["speedup"] - 1) <= 0.03 for row in itself),
            "largest_deviation": max((abs(row["speedup"] - 1) for row in itself), default=None),
            "median_late": statistics.median(row["late"] for row in itself) if itself else None,
            "interval_holds_1": sum(row["low"] <= 1 <= row["high"] for row in itself),
            "median_range_of_times": statistics.median(row["time_range"] for row in again) if again else None,
            "median_range_of_speedups": statistics.median(row["speedup_range"] for row in again) if again else None,
        }
        write_json(args.out / "timing_quality.json", result)

    pairs = pairs_of(SMALL if args.small else LARGE, max(args.problems, args.kernels))
    arena = Arena()
    for pair in pairs[: args.problems]:
        if time.monotonic() > deadline - args.budget / 3:
            break
        try:
            row = arena.against_itself(pair.problem)
        except (EOFError, BrokenPipeError):
            row = {"problem": pair.problem.name, "refused": "a process died"}
            arena.close()
            arena = Arena()
        result["itself"].append(row)
        print({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}, flush=True)
        store()
    arena.close()
    with Verifier(backend="cuda", options=Options(trials=1)) as verifier:
        for pair in pairs[: args.kernels]:
            if time.monotonic() > deadline:
                break
            row = repeated(verifier, pair.problem, pair.kernel, args.times)
            result["repeated"].append(row)
            print({key: value for key, value in row.items() if key != "ms"}, flush=True)
            store()
    store()
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    main()
