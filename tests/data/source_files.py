"""Small files in the form in which each data set is published, written by the tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dice import prompts
from dice.problem import Problem


def notes_of(path: Path) -> Any:
    """What `write_samples` was given as `notes`."""
    return json.loads(pq.read_metadata(path).metadata[b"dice"])


def problem(number: int = 0, name: str = "Model") -> str:
    return f"""import torch
import torch.nn as nn


class {name}(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.relu(x) + {number}


def get_inputs():
    return [torch.rand(4, 8)]


def get_init_inputs():
    return []
"""


def kernel(number: int = 0) -> str:
    return prompts.EXAMPLE_KERNEL.replace("add", f"add_{number}")


def triton_kernel() -> str:
    body = "@triton.jit\ndef f(x):\n    pass\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    return f"import torch\nimport triton\n\n\n{body}"


def prompt(number: int = 0) -> str:
    return prompts.one_shot(Problem(problem(number)))


REASONING = "The module adds a number after a rectifier, so one kernel reads each value once and writes it once. " * 4


def response(number: int = 0) -> str:
    return f"<think>\n{REASONING}\n</think>\nHere it is:\n```python\n{kernel(number)}```\nIt is fused."


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """By suffix; `.arrow` is a stream, as the `datasets` library writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        table = pa.Table.from_pylist(list(rows))
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table, max_chunksize=1000)
    return path


def chat(number: int = 0) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt(number)}]


def cudallm_rl(number: int) -> dict[str, Any]:
    return {
        "data_source": "cuda_llm",
        "prompt": chat(number),
        "ability": "kernel_optimization",
        "reward_model": {"ground_truth": problem(number), "style": "rule"},
        "extra_info": {"index": number, "level": "1"},
    }


def drkernel_rl(number: int) -> dict[str, Any]:
    info = {"entry_point": "Model", "uuid": f"cuda_llm_{number}", "level": "0", "ops": '["torch.relu"]'}
    return cudallm_rl(number) | {"extra_info": info | {"original_prompt": chat(number)}}


def drkernel_coldstart(number: int) -> dict[str, Any]:
    turns = [*chat(number), {"role": "assistant", "content": f"```python\n{triton_kernel()}```"}]
    extra = {"uuid": number, "entry_point": "Model", "final_speedup": 1.5, "num_rounds": 5, "best_round": 3}
    return {"messages": turns * 5, "original_python_code": problem(number)} | extra


def infilling(number: int) -> dict[str, Any]:
    text = kernel(number)
    start, end = text.index("cuda_source"), text.index("cpp_source")
    parts = {"prefix": text[:start], "middle": text[start:end], "suffix": text[end:]}
    return {"id": number, "pytorch_code": problem(number), "cuda_code": text} | parts


def generation(number: int) -> dict[str, Any]:
    return {"idx": number, "level": "2", "pytorch_code": problem(number), "cuda_code": "", "raw_answer": "\\boxed{2}"}


def sft_prompts(number: int) -> dict[str, Any]:
    return {"prompts": prompt(number), "responses": response(number)}


def sft_messages(number: int) -> dict[str, Any]:
    turns = [*chat(number), {"role": "assistant", "content": response(number)}]
    truth = {"ground_truth": problem(number), "entry_point": "Model"}
    return {"messages": turns, "py_code": problem(number), "reward_model": truth}


def concur(number: int) -> dict[str, Any]:
    return {"a": number, "b": kernel(number), "c": problem(number), "d": REASONING, "e": "KernelBook"}


def concur_fenced(number: int) -> dict[str, Any]:
    return {"x": REASONING, "y": f"```python\n{kernel(number)}```", "z": problem(number)}


def cuke(number: int) -> dict[str, Any]:
    return {"prompt": prompt(number), "response": response(number)}


def kernelbench(number: int) -> dict[str, Any]:
    return {"code": problem(number), "level": 1, "name": f"{number}_ReLU.py", "problem_id": number}


def hosted(number: int) -> dict[str, Any]:
    """As two of the 99 released rows for evaluation: CUDA for the host alone, without a kernel of its own."""
    row = infilling(number)
    bare = {name: row[name].replace("__global__ ", "") for name in ("cuda_code", "prefix", "middle", "suffix")}
    return row | bare


def kernelbench_bare(number: int) -> dict[str, Any]:
    """As the paper's authors pack KernelBench's levels for their own evaluation: no names, no numbers."""
    return {"pytorch_code": problem(number)}
