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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dice.commands.bench import machine
from dice.data import synth
from dice.data.whole import write_json
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier, timing
from dice.verify.cache import default_cache_dir

SEED = 4711
LARGE, SMALL = (4 << 20, 256 << 20), (0, 4 << 20)  # bytes of inputs: as a benchmark's, and less
LATE_MS = 0.01


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


def serve(link: Connection, folder: str) -> None:
    """A side of the contests: the reference, told what to do as the oracle and the candidate are."""
    import torch

    from dice.verify import stopwatch, wire
    from dice.verify.execution import Device
    from dice.verify.inputs import Step
    from dice.verify.reference import Reference

    device = Device("cuda")
    device.prepare(1)
    while True:
        step = link.recv()
        if step["step"] == "open":
            reference = Reference(step["source"], device, Path(folder), protocol="dice")
            reference.construct(SEED)
            trial = reference.trial(SEED, Step("timing", "given"))
            assert trial is not None
            link.send({})
        elif step["step"] == "close":
            reference.end_timing()
            del reference, trial
            device.release()
            link.send({})
        elif step["step"] == "show":
            wire.write(reference._bench.kept[step["call"]], Path(folder), "shown")
            link.send({})
        elif step["step"] == "check":
            shown = wire.read(Path(step["folder"]), "shown")
            asked = reference.timed_trial(step["seed"], step["call"])
            judged = reference.judge(asked, shown)
            if not judged.equal and (other := reference.as_timed(asked)) is not None:
                judged = reference.judge(other, shown)
            same = int(stopwatch.checksum(shown)) == step["checksum"]
            link.send({"equal": judged.equal and same, "message": judged.message})
        elif step["step"] == "start":
            assert trial is not None
            if "flushes" not in step:
                link.send(reference.start_timing(trial.inputs, step["warm_up_s"]))
                continue
            device.allow_tf32(True)  # told as a candidate is, and does as one does: it keeps every output
            device.timing = True
            inputs = device.place(trial.inputs)
            reference._bench = stopwatch.Bench(
                reference.model, inputs, step["salted"], stopwatch.CudaStopwatch(), step["flushes"]
            )
            with torch.no_grad():
                link.send(reference._bench.warm_up(step["warm_up_s"]))
        else:
            link.send(reference.time(step["step"], step.get("seed", 0), step.get("calls", 0)))


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

    def ask(self, side: int, step: timing.Message) -> timing.Message:
        self.links[side].send(step)
        said: timing.Message = self.links[side].recv()
        return said

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
            process.join()
        self.folder.cleanup()

    def against_itself(self, problem: Problem) -> dict[str, Any]:
        """The contest of a problem's reference with itself."""

        def check(step: timing.Message) -> None:
            judged = self.ask(0, step | {"folder": str(Path(self.folder.name) / "candidate")})
            assert judged["equal"], judged["message"]

        for link in self.links:
            link.send({"step": "open", "source": problem.source})
        for link in self.links:
            link.recv()
        started = time.perf_counter()
        try:
            found = timing.run(lambda step: self.ask(0, step), lambda step: self.ask(1, step), check)
            cache_dir = default_cache_dir()
            cache_dir.mkdir(parents=True, exist_ok=True)
            facts = timing.facts(found, lambda step: self.ask(0, step), cache_dir, problem.id, False)
        except (timing.Implausible, timing.Busy) as error:
            return {"problem": problem.name, "refused": str(error)}
        finally:
            for side in (0, 1):
                self.ask(side, {"step": "close"})
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
