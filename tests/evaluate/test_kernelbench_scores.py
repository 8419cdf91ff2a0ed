"""`benchmarks/kernelbench_scores.py` by its command, over a checkout whose evaluator needs no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_runs import reference

from dice.evaluate.run_folder import Generation, Judgement, RunFolder, Task
from dice.verdict import Timing, Verdict

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started

SCRIPT = Path(__file__).parent.parent.parent / "benchmarks" / "kernelbench_scores.py"

# What the evaluator says of an answer is written in the answer. Each call leaves a line in $CALLS.
EVALUATOR = """
import os, time
from types import SimpleNamespace


def eval_kernel_against_ref(reference, kernel, measure_performance=False, **more):
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(f"{kernel.split()[1]} {measure_performance} {more['num_correct_trials']}\\n")
    assert more["num_perf_trials"] == 100 and more["backend"] == "cuda"
    if "dies" in kernel:
        os._exit(1)
    if "crowded" in kernel and not measure_performance:
        raise RuntimeError("CUDA out of memory")
    if "raises" in kernel:
        raise RuntimeError("CUDA error: an illegal memory access")
    right = "right" in kernel
    metadata = {} if right else {"correctness_issue": ValueError("Output mismatch")}
    runtime = float(kernel.split()[-1]) if right and measure_performance else -1.0
    return SimpleNamespace(compiled=True, correctness=right, metadata=metadata, runtime=runtime, runtime_stats={})
"""
TIMING = """
def measure_ref_program_time(name, source, device):
    return {"mean": 4.0}
"""
DATASET = """
import os


def construct_kernelbench_dataset(level, base_path):
    return sorted(os.listdir(os.path.join(base_path, f"level{level}")))
"""
ANALYSIS = """
import json, os
import numpy
import pydra
from kernelbench.dataset import construct_kernelbench_dataset
from tabulate import tabulate


class Config(pydra.Config):
    pass


def analyze_greedy_eval(run_name, hardware, baseline, level, baseline_file, eval_results_dir):
    names = construct_kernelbench_dataset(level)
    results = json.load(open(os.path.join(eval_results_dir, run_name, "eval_results.json")))
    times = json.load(open(baseline_file))[f"level{level}"]
    rows = {name: results.get(name.split("_")[0], [None])[0] for name in names}
    right = [times[name]["mean"] / row["runtime"] for name, row in rows.items() if row and row["correctness"]]
    return {
        "compiled_count": sum(bool(row and row["compiled"]) for row in rows.values()),
        "correctness_rate": len(right) / len(names),
        "fast_p": {str(p): sum(one > p for one in right) / len(names) for p in (0.0, 1.0, 2.0)},
    }


@pydra.main(base=Config)
def main(config):
    pass
"""


def right(speedup: float) -> Verdict:
    return Verdict("correct", "done", timing=Timing(4.0 / speedup, 4.0, speedup, 100), device="made")


WRONG = Verdict("wrong", "compare", "every value differs")
# The kernel of each problem, and what our protocol said of it.
ANSWERS: list[tuple[str | None, Verdict]] = [
    ("# a right 2.5", right(1.6)),  # 1.6x by both
    ("# b right 1.9", right(1.95)),  # theirs 2.1x
    ("# c right 1.0", right(1.1)),  # theirs 4x: no noise
    ("# d wrong", WRONG),
    ("# e right 2.0", Verdict("deceptive", "run", "never ran", ("never_invoked",))),
    ("# f dies", Verdict("runtime_error", "run", "it crashed")),
    ("# g crowded right 8.0", right(0.5)),
    (None, Verdict("no_kernel", "extract", "nothing")),
    ("# i raises", right(3.0)),
]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    files = {"eval": EVALUATOR, "timing": TIMING, "dataset": DATASET}
    for name, text in files.items():
        path = root / "src" / "kernelbench" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "scripts").mkdir()
    (root / "scripts" / "benchmark_eval_analysis.py").write_text(ANALYSIS)
    return root


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = RunFolder(tmp_path / "run")
    tasks = [Task(f"level1/{n}_P{n}", 1, n, f"{n}_P{n}", reference(f"x + {n}")) for n in range(1, len(ANSWERS) + 1)]
    folder.begin({"model": "made", "samples": 1}, tasks)
    for task, (kernel, verdict) in zip(tasks, ANSWERS, strict=True):
        folder.add_generation(Generation(task.key, 0, kernel or "no", kernel))
        folder.add_judgement("kernelbench", Judgement(task.key, 0, verdict))
    return folder.path


def scores(tmp_path: Path, run: Path, checkout: Path, *more: str) -> tuple[int, dict[str, Any], list[str]]:
    """Exit status, the result, and the calls of the evaluator in this run alone."""
    calls = tmp_path / "calls"
    calls.write_text("")
    command = [sys.executable, str(SCRIPT), "--run", str(run), "--kernelbench", str(checkout), *more]
    command += ["--out", str(tmp_path / "out"), "--workers", "3", "--cache", str(tmp_path / "cache")]
    environment = {"CALLS": str(calls), "PYTHONPATH": str(SCRIPT.parent.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode in (0, 3), done.stdout + done.stderr
    result = json.loads((tmp_path / "out" / "kernelbench_scores.json").read_text())
    return done.returncode, result, sorted(calls.read_text().splitlines())


def test_both_scores_and_every_difference(tmp_path: Path, run: Path, checkout: Path) -> None:
    status, result, calls = scores(tmp_path, run, checkout)
    level = result["levels"]["1"]
    assert (status, result["compared"], result["kernels"], result["lacking"]) == (0, 9, 8, 0)
    assert level["exec"] == {"kernelbench": 5 / 9, "ours": 5 / 9}
    assert level["fast_p"] == {
        "0": {"kernelbench": 5 / 9, "ours": 5 / 9},
        "1": {"kernelbench": 3 / 9 + 1 / 9, "ours": 4 / 9},
        "2": {"kernelbench": 2 / 9, "ours": 1 / 9},
    }
    reasons = {one["problem"][7:]: one["explained"] for one in level["differing"]}
    assert set(reasons) == {"2_P2", "3_P3", "5_P5", "9_P9"}
    assert "8% apart" in reasons["2_P2"] and "which code made" in reasons["5_P5"]
    assert reasons["3_P3"] is reasons["9_P9"] is None and result["unexplained"] == 2
    assert (result["exec_differs"], result["fast_p_differs"]) == (2, 4)
    assert level["differing"][3]["kernelbench"]["why"].startswith("cuda_error: CUDA error")
    # Timed alone: what is right, and what lacked memory or died, maybe because of what ran beside it.
    assert [call for call in calls if "True" in call] == [f"{one} True {5 if one in 'fg' else 1}" for one in "abcefg"]
    assert [call for call in calls if "False" in call] == [f"{name} False 5" for name in "abcdefgi"]
    again, same, none = scores(tmp_path, run, checkout)
    assert none == [] and same == result and again == 0


def test_an_evaluator_that_cannot_run_is_no_verdict(tmp_path: Path, run: Path, checkout: Path) -> None:
    (checkout / "src" / "kernelbench" / "eval.py").write_text("import no_such_module\n")
    command = [sys.executable, str(SCRIPT), "--run", str(run), "--kernelbench", str(checkout)]
    environment = {"PYTHONPATH": str(SCRIPT.parent.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 3 and "cannot run here: ModuleNotFoundError" in done.stderr
    assert not (tmp_path / "out" / "kernelbench_scores.json").exists()


@pytest.mark.slow
def test_a_budget_that_ends_leaves_the_rest_for_the_next_call(tmp_path: Path, run: Path, checkout: Path) -> None:
    status, part, _ = scores(tmp_path, run, checkout, "--budget", "0.0")
    assert status == 3 and part["lacking"] == 9 - part["compared"] > 0
    status, whole, calls = scores(tmp_path, run, checkout)
    assert status == 0 and whole["compared"] == 9 and len(calls) == 8 + 6
    files = sorted(path.name for path in (tmp_path / "out" / "runs" / "level1").iterdir())
    assert files[0] == "eval_results.json" and files[1] == "level_1_problem_1_sample_0_kernel.py" and len(files) == 9
