"""Tiny problems, kernels for them right and wrong, and a model that writes a right one two times in five."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

from dice.data.train_tokenizer import train_tokenizer
from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import compact, infill_compact, reply
from dice.recipes import tiny_sft
from dice.train.sft import train_sft

TORCH = {"add": "x + 2", "commuted": "2 + x", "doubled": "x + 1 + 1"}
RIGHT, WRONG = "x[i] + 2.0f", "x[i] + 3.0f"

PROBLEM = """import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {torch}
def get_inputs():
    return [torch.randn(64)]
def get_init_inputs():
    return []
"""

KERNEL = '''import torch
from torch.utils.cpp_extension import load_inline
source = """
#include <torch/extension.h>
__global__ void k(float* x, float* y) {{
    int i = threadIdx.x;
    y[i] = {body};
}}
torch::Tensor f(torch::Tensor x) {{
    auto y = torch::empty_like(x);
    k<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>());
    return y;
}}
"""
m = load_inline("m", "torch::Tensor f(torch::Tensor x);", source, functions=["f"])
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {call}
'''


def problem(name: str) -> Problem:
    return Problem(PROBLEM.format(torch=TORCH[name]), name)


def kernel(body: str = RIGHT, *, call: str = "m.f(x)") -> Kernel:
    return Kernel(KERNEL.format(body=body, call=call))


def deceptive() -> Kernel:
    """Builds its kernel and never calls it."""
    return kernel(call="x + 2")


def write_data(folder: Path) -> None:
    """The two RL sets in the form of `dice data rl`'s JSON files, and SFT pairs of which two in five are right."""
    parts = kernel().split()
    middle = {"prefix": parts.prefix, "middle": parts.core, "suffix": parts.suffix, "cuda_code": kernel().source}
    rows = [{"id": n, "idx": n, "level": "1", "pytorch_code": problem(name).source} for n, name in enumerate(TORCH)]
    (folder / "kernel_infilling.json").write_text(json.dumps([row | middle for row in rows]))
    (folder / "kernel_generation.json").write_text(json.dumps([row | {"cuda_code": ""} for row in rows]))
    rng = random.Random(0)
    with (folder / "pairs.jsonl").open("w") as file:
        for name in list(TORCH) * 40:
            asked = rng.choice([compact(problem(name)), infill_compact(problem(name), parts)])
            answer = reply(kernel(rng.choices([RIGHT, WRONG], [2, 3])[0]))
            file.write(json.dumps({"prompt": asked, "response": answer}) + "\n")


def train_model(folder: Path) -> Path:
    """SFT on the pairs; the checkpoint's folder."""
    tokenizer = train_tokenizer([folder / "pairs.jsonl"], folder / "tokenizer", 500)
    config = replace(
        tiny_sft(), data=folder / "pairs.jsonl", out=folder / "sft", tokenizer=tokenizer, device="cpu",
        row_tokens=336, batch_rows=4, micro_rows=4, max_steps=150, lr=6e-3,
    )  # fmt: skip
    return train_sft(config).model
