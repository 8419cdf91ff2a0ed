"""Where a verdict's time goes: `python -m benchmarks.verifier_profile --backend cuda --pairs 96`. Prints JSON lines.

Complete verdicts without timing, of distinct candidates, on a cold build cache and then on a warm one; before that, on
a GPU, what one process's CUDA context costs when several are made at once.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

from dice.kernel import Kernel
from dice.problem import Problem
from dice.synth import generate
from dice.verify import Options, Verifier

SEED = 7100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--pairs", type=int, default=96)
    parser.add_argument("--workers", type=int, default=24)
    parser.add_argument("--max_concurrent", type=int, nargs="+", default=[8])
    parser.add_argument("--contexts", type=int, nargs="*", default=[])
    arguments = parser.parse_args()
    for count in arguments.contexts:
        tell(contexts=count, **contexts(count))
    pairs = distinct_pairs(arguments.pairs)
    with tempfile.TemporaryDirectory() as folder:
        options = Options(cache_dir=Path(folder), timing=False)
        for number, max_concurrent in enumerate([arguments.max_concurrent[0], *arguments.max_concurrent]):
            with Verifier(backend=arguments.backend, options=options, max_concurrent=max_concurrent) as verifier:
                verifier.verify(*distinct_pairs(1, SEED + 1)[0])  # what is done once for all
                tell(cold=number == 0, max_concurrent=max_concurrent, **measure(verifier, pairs, arguments.workers))


def distinct_pairs(count: int, seed: int = SEED) -> list[tuple[Problem, Kernel]]:
    generated = (generate(seed, index) for index in range(count))
    return [(pair.check_problem, pair.kernel) for pair in generated]


def measure(verifier: Verifier, pairs: list[tuple[Problem, Kernel]], workers: int) -> dict[str, object]:
    started = time.perf_counter()
    verdicts = [verdict for _, verdict in verifier.verify_many(pairs, workers)]
    wall = time.perf_counter() - started
    stages: dict[str, list[float]] = {}
    outcomes: dict[str, int] = {}
    for verdict in verdicts:
        outcomes[verdict.outcome] = outcomes.get(verdict.outcome, 0) + 1
        for stage, seconds in verdict.seconds.items():
            stages.setdefault(stage, []).append(seconds)
    return {
        "per_minute": round(60 * len(verdicts) / wall, 1),
        "wall_s": round(wall, 2),
        "workers": workers,
        "outcomes": outcomes,
        "mean_s": {stage: round(statistics.fmean(values), 3) for stage, values in stages.items()},
        "odd": [verdict.message[:200] for verdict in verdicts if not verdict.correct][:5],
    }


def contexts(count: int) -> dict[str, object]:
    """Make `count` contexts in as many processes at once."""
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(count), spawn.Queue()
    started = [spawn.Process(target=_make_context, args=(barrier, results)) for _ in range(count)]
    for process in started:
        process.start()
    times = [results.get() for _ in started]
    for process in started:
        process.join()
    means = {name: round(statistics.fmean(one[name] for one in times), 3) for name in times[0]}
    return {"mean": means, "wall_s": round(max(sum(one.values()) for one in times), 3)}


def _make_context(barrier: object, results: object) -> None:
    import torch

    barrier.wait()  # type: ignore[attr-defined]
    marks = [time.perf_counter()]
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    marks.append(time.perf_counter())
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    marks.append(time.perf_counter())
    one = torch.ones(1, device="cuda")
    torch.cuda.synchronize()
    marks.append(time.perf_counter())
    (one + one).item()
    marks.append(time.perf_counter())
    steps = zip(("init", "context", "torch", "first_kernel"), marks, marks[1:], strict=False)
    results.put({name: after - before for name, before, after in steps})  # type: ignore[attr-defined]


def tell(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
