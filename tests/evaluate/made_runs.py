"""Run folders for the report's tests: real files, with judgements whose counts the tests know by heart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dice.decode.trace import Trace
from dice.evaluate.run_folder import Generation, Judgement, RunFolder, Task
from dice.verdict import Timing, Verdict

CASES = Path(__file__).parent.parent / "cases"
TAIL = "def get_inputs():\n    return [torch.randn(16, 100)]\n\n\ndef get_init_inputs():\n    return []\n"


def reference(body: str) -> str:
    forward = f"class Model(nn.Module):\n    def forward(self, x):\n        return {body}\n"
    return f"import torch\nimport torch.nn as nn\n\n\n{forward}\n\n{TAIL}"


TASKS = [  # by KernelBench's names; what they compute is much smaller
    Task(f"level{level}/{name}", level, int(name.split("_")[0]), name, reference(body))
    for level, name, body in (
        (1, "19_ReLU", "torch.relu(x)"),
        (1, "47_Sum_reduction_over_a_dimension", "x.sum(dim=1)"),
        (1, "2_Standard_matrix_multiplication_", "x @ x.T"),
        (2, "9_Matmul_Subtract_Multiply_ReLU", "torch.relu(nn.Conv2d(1, 1, 1)(x))"),
        (2, "10_ConvTranspose2d_MaxPool_Hardtanh_Mean_Tanh", "nn.MaxPool2d(2)(x) < 3  # </script><b>&amp;"),
    )
]
TIMING = Timing(2.0, 5.0, 2.5, 100, speedup_low=2.4, speedup_high=2.6, bytes_moved=10**9, flops=10**9, ceiling_ms=0.5)
CORRECT = Verdict("correct", "done", timing=TIMING, backend="cuda", device="H100", trials=5, trials_passed=5)
COMPILE = Verdict(
    "compile_error",
    "compile",
    "the CUDA source does not compile: line 16 (cuda_source:8): error: \u2018foo\u2019 was not declared in this scope",
    errors=("line 16 (cuda_source:8): error: \u2018foo\u2019 was not declared in this scope", "second line"),
    backend="cuda",
    device="H100",
)
DECEPTIVE = Verdict("deceptive", "run", "the file's CUDA kernels never ran.", ("never_invoked",), backend="cuda")
WRONG = Verdict("wrong", "compare", "trial 1 (centred inputs): output has the wrong shape: expected (1, 2), got ().")

# What each protocol says of the five tasks, in their order.
VERDICTS = {
    "dice": [CORRECT, COMPILE, replace(COMPILE, message=COMPILE.message.replace("16", "90")), DECEPTIVE, WRONG],
    "kernelbench": [CORRECT, COMPILE, COMPILE, replace(CORRECT, timing=replace(TIMING, speedup=0.9)), WRONG],
}


def own_tasks() -> list[Task]:
    """The same five as a user's own problems, from a folder without levels."""
    names = ("matmul", "my_relu", "softmax", "total", "pool")
    pairs = enumerate(zip(names, TASKS, strict=True), start=1)
    return [Task(name, 0, place, name, task.source) for place, (name, task) in pairs]


def make_run(
    path: Path,
    *,
    model: str = "made",
    row: str = "",
    tasks: Sequence[Task] = TASKS,
    verdicts: dict[str, list[Verdict]] | None = None,
) -> RunFolder:
    """Five problems, one sample each; the last reply held no kernel file worth highlighting."""
    folder = RunFolder(path)
    folder.begin({"model": model, "samples": 1, "row": row}, list(tasks))
    kernel = (CASES / "right_relu.py").read_text()
    for task in tasks:
        text = None if task is tasks[-1] else kernel
        folder.add_generation(Generation(task.key, 0, kernel, text, "end", tokens=300, forwards=100, seconds=2.0))
    for protocol, found in (VERDICTS if verdicts is None else verdicts).items():
        for task, verdict in zip(tasks, found, strict=True):
            folder.add_judgement(protocol, Judgement(task.key, 0, verdict))
    return folder


def make_traced_run(path: Path) -> RunFolder:
    """nano's tokens of one short reply, revealed two a step in blocks of four."""
    from dice.model.checkpoint import NANO_FOLDER
    from dice.model.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(NANO_FOLDER)
    ids = tuple(tokenizer.encode("class ModelNew(nn.Module):\n    pass\n"))
    steps = tuple(2 * (i // 4) + (i % 4) // 2 for i in range(len(ids)))
    trace = Trace((), ids, steps, (0.0,) * len(ids), len(ids), 4, tokenizer.mask_id, "made", "greedy", 9, "stop")
    folder = RunFolder(path)
    folder.begin({"model": "nano", "samples": 1, "row": ""}, TASKS[:1])
    (path / "traces").mkdir()
    (path / "traces" / "one.json").write_text(json.dumps(trace.to_json(compact=True)))
    folder.add_generation(Generation(TASKS[0].key, 0, "", "class ModelNew: pass", trace="traces/one.json"))
    folder.add_judgement("dice", Judgement(TASKS[0].key, 0, WRONG))
    return folder
