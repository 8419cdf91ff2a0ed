"""KernelBench's own files: `eval_results.json` of a run, written, and baseline timings of a machine, read and written.

`eval_results.json` belongs to one level: {problem id: [{sample_id, compiled, correctness, metadata, runtime,
runtime_stats}]}. `runtime` is the mean in milliseconds, -1
where it was not measured. A baseline file is {"level1": {"19_ReLU.py": {mean, std, min, max, num_trials, hardware,
device}}}, in milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dice.errors import UserError
from dice.evaluate.run_folder import Judgement, RunFolder, Task
from dice.files import JsonObject
from dice.files.atomic import read_json, write_json, write_text
from dice.verdict import Verdict

# Outcomes of candidates that were not compiled, in KernelBench's sense of the word.
NOT_COMPILED = frozenset({"no_kernel", "compile_error", "load_error"})


@dataclass(frozen=True, slots=True)
class Baseline:
    """One timing of a reference, in milliseconds."""

    mean: float
    std: float
    min: float
    max: float
    num_trials: int
    hardware: str = ""
    device: str = ""

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


Baselines = dict[str, dict[str, Baseline]]  # "level1" -> "19_ReLU.py"


def eval_results(tasks: Sequence[Task], judgements: Sequence[Judgement]) -> dict[str, list[JsonObject]]:
    """The content of `eval_results.json` for the tasks of one level. What says nothing of a kernel is left out."""
    numbers = {task.key: task.number for task in tasks}
    found: dict[int, list[JsonObject]] = defaultdict(list)
    for one in sorted(judgements, key=lambda one: (numbers.get(one.task, 0), one.sample)):
        if one.task in numbers and one.verdict.about_kernel:
            found[numbers[one.task]].append({"sample_id": one.sample} | _entry(one.verdict))
    return {str(number): found[number] for number in sorted(found)}


def _entry(verdict: Verdict) -> dict[str, object]:
    timing = verdict.timing if verdict.correct else None
    compiled = verdict.outcome not in NOT_COMPILED and not (verdict.outcome == "timeout" and verdict.stage == "compile")
    metadata: JsonObject = {"hardware": verdict.device, "outcome": verdict.outcome, "protocol": verdict.protocol}
    if verdict.message:
        metadata["message"] = verdict.message
    stats: JsonObject = {}
    if timing is not None:
        stats = {
            "mean": timing.kernel_ms,
            "std": timing.kernel_spread_ms / 1.349,  # of a normal distribution with that interquartile range
            "num_trials": timing.repeats,
            "hardware": verdict.device,
            "reference_ms": timing.reference_ms,
        }
    runtime = -1.0 if timing is None else timing.kernel_ms
    return {
        "compiled": compiled,
        "correctness": verdict.correct,
        "metadata": metadata,
        "runtime": runtime,
        "runtime_stats": stats,
    }


def export_kernelbench(folder: RunFolder, protocol: str, path: Path) -> list[Path]:
    """Write `eval_results.json` for each level of a run: `path` itself where there is one level, else with `_level1`
    and so on before its suffix. Returns the files. Raises `UserError` where the run has no levels of KernelBench's."""
    results = _results_by_level(folder, protocol)
    files = []
    for level, content in results.items():
        file = path if len(results) == 1 else path.with_name(f"{path.stem}_level{level}{path.suffix}")
        write_json(file, content)
        files.append(file)
    return files


def export_run_folders(folder: RunFolder, protocol: str, path: Path) -> list[Path]:
    """Write a run folder of KernelBench's for each level, `PATH/level1/` and so on: kernels and `eval_results.json`.
    Returns them. Raises as `export_kernelbench` does."""
    folders = []
    for level, content in _results_by_level(folder, protocol).items():
        write_json(path / f"level{level}" / "eval_results.json", content)
        folders.append(path / f"level{level}")
    write_kernels(folder, path, protocol)
    return folders


def _results_by_level(folder: RunFolder, protocol: str) -> dict[int, dict[str, list[JsonObject]]]:
    tasks = folder.tasks()
    if len({(task.level, task.number) for task in tasks}) < len(tasks):
        raise UserError(f"Problems of {folder.path} share a number, so that KernelBench's file cannot hold them.")
    judgements = folder.judgements(protocol)
    if not judgements:
        raise UserError(f"{folder.path} was not judged under {protocol}.")
    levels = sorted({task.level for task in tasks})
    return {level: eval_results([task for task in tasks if task.level == level], judgements) for level in levels}


def write_kernels(folder: RunFolder, path: Path, protocol: str = "dice") -> list[Path]:
    """Write the kernels that a protocol judges as run folders of KernelBench's, one a level: `PATH/level1/` and so on.
    Returns them. An answer without a kernel has no file, which KernelBench counts as a failure."""
    tasks = {task.key: task for task in folder.tasks()}
    written = set()
    for one in folder.generations():
        task = tasks.get(one.task)
        kernel = one.kernel_under(protocol)
        if task is not None and kernel is not None:
            own = path / f"level{task.level}"
            name = f"level_{task.level}_problem_{task.number}_sample_{one.sample}_kernel.py"
            write_text(own / name, kernel)
            written.add(own)
    return sorted(written)


def read_baselines(path: Path) -> Baselines:
    """Raises `UserError` for what is no such file."""
    try:
        return {
            level: {name: Baseline(**_known(entry)) for name, entry in problems.items()}
            for level, problems in _read(path).items()
        }
    except (TypeError, AttributeError):
        raise UserError(f"{path} is no baseline file of KernelBench.") from None


def write_baselines(path: Path, baselines: Baselines) -> None:
    write_json(
        path,
        {level: {name: one.to_json() for name, one in problems.items()} for level, problems in baselines.items()},
    )


def _known(entry: JsonObject) -> JsonObject:
    return {name: value for name, value in entry.items() if name in Baseline.__dataclass_fields__}


def _read(path: Path) -> JsonObject:
    data = read_json(path)
    if not isinstance(data, dict):
        raise UserError(f"{path} holds no JSON object.")
    return data
