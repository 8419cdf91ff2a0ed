"""Exec and fast_p of a `dice eval` run beside what KernelBench's own scripts say of the same answers. Needs a GPU.

    git clone https://github.com/ScalingIntelligence/KernelBench
    dice eval --model nano --problems KernelBench/KernelBench --protocol kernelbench --out run
    python benchmarks/kernelbench_scores.py --run run --kernelbench KernelBench --out scores

The answers are written as a run folder of KernelBench's for each level. Each is evaluated by its
`eval_kernel_against_ref`, unchanged, with the settings of its `eval_from_generations` (float32, 5 correctness and 100
timing trials, CUDA events), in a process of its own; our builder stands under `load_inline`, so that a build takes
seconds. Correctness comes first, several at once. What is right is then timed alone, which takes one more trial; what
failed for lack of memory or time beside others is evaluated again alone, with all of them. References are timed by its
`measure_ref_program_time`. Then its `benchmark_eval_analysis` counts. Problems that have no right answer need no time
of their own: theirs is taken from the timings that KernelBench publishes (`--published`), and enters no score.

What is done is kept in OUT line by line: the same command goes on where it was stopped, or where `--budget` ended.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernelbench_code import DIED, SLOW, Gate, Row, accelerate, analysis, in_processes, module, why

from dice.errors import MachineError, UserError
from dice.evaluate.interchange import NOT_COMPILED, write_kernels
from dice.evaluate.metrics import faster, speedup
from dice.evaluate.run_folder import Generation, RunFolder, Task
from dice.files.atomic import write_json
from dice.files.journal import append_row, read_rows
from dice.verdict import Verdict
from dice.verify.execution.running import Device, exec_file
from dice.verify.options import default_cache_dir
from dice.verify.reference import workload

PROTOCOL = "kernelbench"
TRIALS, TIMING_TRIALS = 5, 100  # of its scripts
LIMIT_S = 180.0  # of its scripts, for one answer
NEAR = 0.15  # speed-ups this close are one measurement, taken twice
CROWDED = ("out of memory", SLOW, DIED)  # may be the doing of what ran beside it
Answer = tuple[Task, str]  # and the kernel's source


# In a process of its own each.


def evaluate(
    root: Path, answer: Answer, cache_dir: Path, *, trials: int = TRIALS, gate: Gate | None = None, timed: bool = True
) -> Row:
    """One entry of KernelBench's `eval_results.json`, by its evaluator. Errors become what its script makes of them."""
    evaluator = module(root, "eval").eval_kernel_against_ref  # here, for importing it starts CUDA
    accelerate(cache_dir, gate)
    if gate is not None:
        gate.enter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = evaluator(
                answer[0].source,
                answer[1],
                num_correct_trials=trials,
                num_perf_trials=TIMING_TRIALS,
                measure_performance=timed,
                timing_method="cuda_event",
                build_dir=folder,
                device=_device(),
                backend="cuda",
            )
        except Exception as error:  # as its script does
            if "CUDA is not available" in str(error):
                raise
            name = "cuda_error" if "CUDA error" in str(error) else "other_error"
            return _failed({name: str(error), f"{name}_name": type(error).__name__})
    if result is None:
        return _failed({"other_error": "the evaluator gave no result"})
    return {
        "compiled": bool(result.compiled),
        "correctness": bool(result.correctness),
        "metadata": {key: _plain(value) for key, value in result.metadata.items()},
        "runtime": float(result.runtime),
        "runtime_stats": dict(result.runtime_stats),
    }


def measure(root: Path, task: Task) -> Row:
    """One entry of its baseline file, by its code."""
    module(root, "eval")
    stats = module(root, "timing").measure_ref_program_time(f"{task.name}.py", task.source, device=_device())
    return dict(stats or {})


def _device() -> Any:
    import torch

    return torch.device("cuda:0")


def _failed(metadata: Row) -> Row:
    return {"compiled": False, "correctness": False, "metadata": metadata, "runtime": -1.0, "runtime_stats": {}}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [str(item)[:200] for item in value]
    return value if isinstance(value, bool | int | float) or value is None else str(value)[-2000:]


# In the parent, which never touches the GPU.


class Store:
    """Rows by name, appended as they come: {"name", "row"} a line."""

    def __init__(self, path: Path):
        self._path = path
        self.rows: dict[str, Row] = {entry["name"]: entry["row"] for entry in read_rows(path)}

    def add(self, name: str, row: Row) -> None:
        self.rows[name] = row
        append_row(self._path, {"name": name, "row": row})


@dataclass
class Bench:
    """The work of one call, by `deadline`."""

    root: Path
    out: Path
    cache_dir: Path
    workers: int
    at_once: int
    deadline: float

    def evaluate(self, answers: Sequence[Answer]) -> dict[str, Row]:
        """By task; those that the time was enough for."""
        checked, final = Store(self.out / "correctness.jsonl"), Store(self.out / "evaluations.jsonl")
        with tempfile.TemporaryDirectory() as folder:
            gate = Gate(Path(folder), self.at_once)
            lacking = [one for one in answers if one[0].key not in checked.rows]
            works = [partial(evaluate, self.root, one, self.cache_dir, gate=gate, timed=False) for one in lacking]
            for number, row in self._in_time("checked", works, self.workers):
                checked.add(lacking[number][0].key, row)
        alone: dict[str, Callable[[], Row]] = {}
        for one in answers:
            key = one[0].key
            if key not in checked.rows or key in final.rows:
                continue
            if checked.rows[key].get("correctness"):
                alone[key] = partial(evaluate, self.root, one, self.cache_dir, trials=1)
            elif _crowded(checked.rows[key]):
                alone[key] = partial(evaluate, self.root, one, self.cache_dir)
            else:
                final.add(key, checked.rows[key])
        keys = list(alone)
        for number, row in self._in_time("timed", list(alone.values()), 1):
            final.add(keys[number], _failed({"other_error": row["error"]}) if "error" in row else row)
        return final.rows

    def measure(self, tasks: Sequence[Task]) -> dict[str, Row]:
        """Its timings of the references, by task."""
        store = Store(self.out / "references.jsonl")
        lacking = [task for task in tasks if task.key not in store.rows]
        for number, row in self._in_time("reference", [partial(measure, self.root, task) for task in lacking], 1):
            if "mean" in row:
                store.add(lacking[number].key, row)
        return store.rows

    def _in_time(self, what: str, works: Sequence[Callable[[], Row]], workers: int) -> Iterator[tuple[int, Row]]:
        """As they come, until the deadline. Raises `MachineError` where the evaluator itself cannot run."""
        started = time.monotonic()
        for count, (number, row) in enumerate(in_processes(works, workers, LIMIT_S, self.deadline), start=1):
            if row.get("error", SLOW) not in (SLOW, DIED):
                raise MachineError(f"KernelBench's code cannot run here: {row['error']}.")
            yield number, row
            rest = (time.monotonic() - started) / count * (len(works) - count)
            print(f"{what} {count} of {len(works)}, about {rest:.0f} s left", file=sys.stderr, flush=True)


def _crowded(row: Row) -> bool:
    text = row.get("error") or why(row["metadata"])
    return any(sign in text for sign in CROWDED)


def answers_of(folder: RunFolder, limit: int | None) -> list[tuple[Task, Generation, Verdict]]:
    """First samples that our protocol judged, for KernelBench's analysis looks at no other; of the `limit` smallest
    problems. Raises `UserError`."""
    tasks = {task.key: task for task in folder.tasks()}
    if {task.level for task in tasks.values()} - {1, 2, 3, 4}:
        raise UserError(f"{folder.path} is no run over KernelBench's levels.")
    verdicts = {one.task: one.verdict for one in folder.judgements(PROTOCOL) if not one.sample}
    found = [
        (tasks[one.task], one, verdicts[one.task])
        for one in folder.generations()
        if not one.sample and one.task in verdicts and verdicts[one.task].about_kernel
    ]
    if not found:
        raise UserError(f"{folder.path} was not judged under {PROTOCOL}.")
    if limit is not None:
        found = sorted(found, key=lambda one: _size(one[0]))[:limit]
    return sorted(found, key=lambda one: (one[0].level, one[0].number))


def _size(task: Task) -> float:
    """Bytes of its inputs, parameters and output, as far as can be told without running it."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            problem = exec_file(task.source, Path(folder), "problem")
    except Exception:  # a package that is not here
        return float("inf")
    sizes = workload.sizes(problem, Device("emulated"))
    return sizes.inputs + sizes.parameters + sizes.outputs


def analyse(root: Path, out: Path, level: int, tasks: Sequence[Task], rows: dict[str, Row], base: Path) -> Row:
    """What KernelBench's script counts over these tasks alone; `total_count` of them."""
    problems = out / "problems"
    folder = problems / f"level{level}"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.py"):
        stale.unlink()
    for task in tasks:
        (folder / f"{task.name}.py").write_text(task.source, encoding="utf-8")
    results = {str(task.number): [{"sample_id": 0} | rows[task.key]] for task in tasks if task.key in rows}
    write_json(out / "runs" / f"level{level}" / "eval_results.json", results)
    script = analysis(root)
    script.construct_kernelbench_dataset = partial(  # type: ignore[attr-defined]
        module(root, "dataset").construct_kernelbench_dataset, base_path=str(problems)
    )
    found: Row = script.analyze_greedy_eval(
        f"level{level}", "here", "eager", level, baseline_file=str(base), eval_results_dir=str(out / "runs")
    )
    return found


def beside(
    theirs: Row, compared: Sequence[tuple[Task, Generation, Verdict]], rows: dict[str, Row], times: Row
) -> dict[str, Any]:
    """One level: the scores of both, and every problem on which they differ."""
    count = len(compared)
    verdicts = [verdict for _, _, verdict in compared]
    points = [float(p) for p in theirs["fast_p"]]
    own = {p: sum(faster(verdict, p) for verdict in verdicts) / count for p in points}
    return {
        "problems": count,
        "compiled": {
            "kernelbench": theirs["compiled_count"],
            "ours": sum(verdict.outcome not in NOT_COMPILED for verdict in verdicts),
        },
        "exec": {"kernelbench": theirs["correctness_rate"], "ours": sum(v.correct for v in verdicts) / count},
        "fast_p": {f"{p:g}": {"kernelbench": theirs["fast_p"][str(p)], "ours": own[p]} for p in points},
        "differing": [
            found
            for task, generation, verdict in compared
            if (found := _difference(task, generation, verdict, rows.get(task.key), times.get(task.key), points))
        ],
    }


def _difference(
    task: Task,
    generation: Generation,
    verdict: Verdict,
    row: Row | None,
    reference: Row | None,
    points: Sequence[float],
) -> Row | None:
    """None where both say the same of correctness and of every p."""
    row = row or _failed({"other_error": "the answer holds no kernel"})
    their_speedup = 0.0
    if row["correctness"] and row["runtime"] > 0 and reference:
        their_speedup = reference["mean"] / row["runtime"]
    different = [p for p in points if faster(verdict, p) != (row["correctness"] and their_speedup > p)]
    if row["correctness"] == verdict.correct and not different:
        return None
    return {
        "problem": task.key,
        "exec": row["correctness"] != verdict.correct,
        "fast_p": different,
        "kernelbench": {
            "compiled": row["compiled"],
            "correct": row["correctness"],
            "speedup": their_speedup,
            "why": why(row["metadata"]),
        },
        "ours": {
            "outcome": verdict.outcome,
            "speedup": speedup(verdict),
            "why": verdict.message[:600] or verdict.no_timing,
            "deceptions": verdict.deceptions,
        },
        "explained": explain(row, verdict, their_speedup),
        "kernel": generation.kernel,
    }


def explain(row: Row, verdict: Verdict, their_speedup: float) -> str | None:
    """Why the two differ; None when that takes a person."""
    if row["correctness"] and verdict.outcome == "no_kernel":
        return "KernelBench accepts a file without a CUDA kernel"
    if row["correctness"] and verdict.outcome == "deceptive":
        return "KernelBench does not ask which code made the output"
    if row["correctness"] and verdict.correct and their_speedup and speedup(verdict):
        apart = abs(their_speedup / speedup(verdict) - 1)
        if apart <= NEAR:
            return f"both are right, and the two measurements, {100 * apart:.0f}% apart, lie on two sides of p"
    return None


def compare(bench: Bench, run: RunFolder, published: Path | None, limit: int | None) -> Row:
    """Evaluate, measure, analyse, compare: what there was time for."""
    chosen = answers_of(run, limit)
    write_kernels(run, bench.out / "runs")
    answers = [(task, generation.kernel) for task, generation, _ in chosen if generation.kernel is not None]
    rows = bench.evaluate(answers)
    known = json.loads(published.read_text(encoding="utf-8")) if published is not None else {}
    right = {one[0].key for one in chosen if one[2].correct or rows.get(one[0].key, _failed({}))["correctness"]}
    base = {
        task.key: known.get(f"level{task.level}", {}).get(f"{task.name}.py")
        for task, _, _ in chosen
        if task.key not in right
    }
    times = bench.measure([task for task, _, _ in chosen if not base.get(task.key)])
    base |= times
    compared = [one for one in chosen if (one[1].kernel is None or one[0].key in rows) and base.get(one[0].key)]
    own_base: dict[str, Row] = {}
    for task, _, _ in compared:
        own_base.setdefault(f"level{task.level}", {})[f"{task.name}.py"] = base[task.key]
    write_json(bench.out / "baseline.json", own_base)
    levels = {}
    for level in sorted({task.level for task, _, _ in compared}):
        own = [one for one in compared if one[0].level == level]
        theirs = analyse(bench.root, bench.out, level, [task for task, _, _ in own], rows, bench.out / "baseline.json")
        levels[str(level)] = beside(theirs, own, rows, times)
    differing = [one for level in levels.values() for one in level["differing"]]
    return {
        "run": run.path.name,
        "model": run.config.get("model", ""),
        "devices": sorted({v.device for _, _, v in chosen if v.device}),
        "kernels": len(answers),
        "compared": len(compared),
        "lacking": len(chosen) - len(compared),
        "unjudged_by_us": len(run.tasks()) - len(chosen) if limit is None else None,
        "exec_differs": sum(one["exec"] for one in differing),
        "fast_p_differs": sum(bool(one["fast_p"]) for one in differing),
        "unexplained": sum(one["explained"] is None for one in differing),
        "levels": levels,
    }


def show(result: Row) -> None:
    print(f"{result['compared']} problems compared, {result['kernels']} kernels, {result['lacking']} lacking")
    for level, one in result["levels"].items():
        scores = {"Exec": one["exec"]} | {f"fast_{p}": pair for p, pair in one["fast_p"].items()}
        cells = (f"{name} {100 * pair['kernelbench']:.1f} / {100 * pair['ours']:.1f}" for name, pair in scores.items())
        print(f"level {level}, {one['problems']} problems, KernelBench's / ours in percent: {', '.join(cells)}")
        for row in one["differing"]:
            print(f"  {row['problem']}: {row['explained'] or 'UNEXPLAINED'}")
            for who in ("kernelbench", "ours"):
                facts = ", ".join(f"{name} {value}" for name, value in row[who].items() if value not in ("", ()))
                print(f"    {who}: {' '.join(facts.split())[:300]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of a `dice eval` run judged as `kernelbench`")
    parser.add_argument("--kernelbench", type=Path, required=True, help="folder of KernelBench's source")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="so many answers alone, of the problems of the least memory")
    parser.add_argument(
        "--budget", type=float, default=float("inf"), help="seconds after which it stops; call again to go on"
    )
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="processes at once")
    parser.add_argument("--at-once", type=int, default=6, help="so many of them on the GPU, while none is timed")
    parser.add_argument("--cache", type=Path, default=default_cache_dir(), help="of builds, shared with `dice eval`")
    parser.add_argument("--published", type=Path, help="a timing file of KernelBench's; default: its own for H100")
    args = parser.parse_args()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a GPU must not start CUDA before a fork
    import torch.utils.cpp_extension  # noqa: F401 - children inherit it

    root = args.kernelbench.resolve()
    published = args.published or root / "results" / "timing" / "H100_Modal" / "baseline_time_torch.json"
    args.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + args.budget
    bench = Bench(root, args.out.resolve(), args.cache.absolute(), args.workers, args.at_once, deadline)
    try:
        result = compare(bench, RunFolder(args.run), published if published.exists() else None, args.limit)
    except (UserError, MachineError) as error:
        print(f"kernelbench_scores: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 3
    write_json(args.out / "kernelbench_scores.json", result)
    show(result)
    return 3 if result["lacking"] else 0


if __name__ == "__main__":
    sys.exit(main())
