"""How long the references take on this machine, eager and under `torch.compile`, in KernelBench's form.

Measured as KernelBench does: seed 42, warm-up, then single calls between CUDA events, caches flushed before each. Each
problem runs in a process of its own, so that one that fails or hangs takes no other with it. Problems are benchmark
code and run unconfined.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dice.errors import MachineError
from dice.evaluate.interchange import Baseline, Baselines, read_baselines, write_baselines
from dice.evaluate.run_folder import Task
from dice.launch import environment, python_command
from dice.problem import not_a_list

MODES = ("eager", "compile")
SEED, WARM_UP = 42, 3  # as KernelBench has them; `WARM_UP` calls are made before any is timed
FLUSH_BYTES = 256 << 20  # written before each timed call: more than the L2 cache of any GPU holds
LIMIT_S = 600.0  # seconds that one problem may take under one mode, compiling included


@dataclass(frozen=True, slots=True)
class Failure:
    task: str
    mode: str
    message: str


def file_of(path: Path, mode: str) -> Path:
    """One file a mode, as KernelBench has it: `path` for eager, `..._compile` beside it."""
    return path if mode == "eager" else path.with_name(f"{path.stem}_{mode}{path.suffix}")


def measure_baselines(
    tasks: Sequence[Task], path: Path, modes: Sequence[str], trials: int, show: Callable[[int, int], None]
) -> list[Failure]:
    """Measure what the files lack, and write each result as it comes. Raises `MachineError` without a GPU."""
    from dice.verify.options import why_no_cuda

    reason = why_no_cuda()
    if reason:
        raise MachineError(f"Baselines are timed on a GPU, and none can be used here: {reason}.")
    failures, done = [], 0
    for mode in modes:
        file = file_of(path, mode)
        known: Baselines = read_baselines(file) if file.exists() else {}
        for task in tasks:
            own = known.setdefault(f"level{task.level}", {})
            name = f"{task.name}.py"
            if name not in own:
                result = _measure(task, mode, trials)
                if isinstance(result, Failure):
                    failures.append(result)
                else:
                    own[name] = result
                    write_baselines(file, known)
            done += 1
            show(done, len(tasks) * len(modes))
    return failures


def _measure(task: Task, mode: str, trials: int) -> Baseline | Failure:
    asked = json.dumps({"source": task.source, "mode": mode, "trials": trials})
    command = python_command("dice.evaluate.baseline")
    try:
        done = subprocess.run(
            command,
            env=environment(),
            input=asked,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Failure(task.key, mode, f"it took longer than {LIMIT_S:g} s")
    if done.returncode:
        return Failure(task.key, mode, (done.stderr.strip().splitlines() or ["it was killed"])[-1][:300])
    return Baseline(**json.loads(done.stdout.splitlines()[-1]))


def summary(times: Sequence[float], hardware: str, device: str) -> dict[str, object]:
    """Times in milliseconds, in KernelBench's words."""
    return {
        "mean": float(f"{statistics.fmean(times):.4g}"),
        "std": float(f"{statistics.pstdev(times):.4g}"),
        "min": float(f"{min(times):.4g}"),
        "max": float(f"{max(times):.4g}"),
        "num_trials": len(times),
        "hardware": hardware,
        "device": device,
    }


def time_reference(source: str, mode: str, trials: int) -> dict[str, object]:
    """Runs in the child."""
    import torch

    names: dict[str, Any] = {"__name__": "reference"}
    exec(compile(source, "reference.py", "exec"), names)
    device = torch.device("cuda:0")

    def placed(values: Sequence[Any]) -> list[Any]:
        return [value.to(device) if isinstance(value, torch.Tensor) else value for value in values]

    torch.manual_seed(SEED)
    drawn, given = names["get_inputs"](), names["get_init_inputs"]()
    if isinstance(given, dict) and given:
        raise TypeError(not_a_list("get_init_inputs", "dict"))
    inputs, arguments = placed(drawn), placed(given)
    torch.manual_seed(SEED)
    model = names["Model"](*arguments).to(device)
    called = torch.compile(model) if mode == "compile" else model
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=device)
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    times = []
    with torch.no_grad():
        for count in range(WARM_UP + trials):
            flush.zero_()
            torch.cuda.synchronize()
            start.record()
            called(*inputs)
            end.record()
            torch.cuda.synchronize()
            if count >= WARM_UP:
                times.append(start.elapsed_time(end))
    return summary(times, torch.cuda.get_device_name(device), str(device))


if __name__ == "__main__":
    print(json.dumps(time_reference(**json.load(sys.stdin))))
