"""A module that a model cannot write as it is spelt, written region by region; and what the answer says of that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dice.decode.trace import Trace
from dice.generation import DECODING, Draft, attempts
from dice.optimize.run import attempt_by_regions
from dice.problem import Problem
from dice.prompts import compact
from dice.verify import Verifier

MODULE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        '''ReLU behind a layer that the writer below leaves alone, and a Bessel function.'''
        return torch.special.i0(F.relu(self.layer(x)) * 0.1).exp()
"""
EXP = '''
cuda_source = """
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void exp_kernel(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = expf(x[i]);
}

torch::Tensor exp_cuda(torch::Tensor x) {
    x = x.contiguous();
    auto out = torch::empty_like(x);
    int n = x.numel();
    exp_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n);
    return out;
}
"""
'''


TRACE = Trace(
    prompt_ids=(1,), token_ids=(2, 3), steps=(0, 1), logprobs=(0.0, 0.0), kept=2, block_size=4, mask_token_id=9,
    strategy="block", mode="greedy", forwards=2, stop_reason="stop",
)  # fmt: skip


class KnowsExp:
    """Stands for a checkpoint that has learnt one kernel: the source of `exp`, with nothing sensible around it."""

    def __init__(self) -> None:
        self.model: Any = SimpleNamespace(config=SimpleNamespace(prompt="compact"))
        self.decoding, self.asked = DECODING, list[str]()

    def write(self, prompt: str, temperature: float, seed: int, watch: Any) -> Draft:
        self.asked.append(prompt)
        text = f"```python\n{EXP}\nclass ModelNew(nn.Module) oops\n```"
        return Draft(text, TRACE, 0.5)


@pytest.fixture
def emulated() -> Any:
    with Verifier(backend="emulated") as verifier:
        yield verifier


def test_what_is_right_of_the_regions_is_put_together_and_says_so(
    lasting: None, write_module: Callable[..., Path], emulated: Verifier
) -> None:
    problem = Problem.from_file(write_module(MODULE, "[torch.randn(4, 16)]"))
    writer: Any = KnowsExp()
    plain = attempts(problem, writer, emulated, samples=1, refine=0, prompt="auto", seed=0)
    assert [one.verdict.correct for one in plain] == [False]
    assert writer.asked == [compact(problem)]
    found, why = attempt_by_regions(problem, "exp", writer, emulated, samples=1, prompt="auto", seed=0)
    assert found is not None and found.verdict.correct and found.way == "canonical", why
    assert found.verdict.replaced is not None and found.verdict.replaced.replaced == 1
    assert not found.verdict.solves("all") and found.verdict.solves("any")
    assert any("torch.exp(x)" in prompt and "docstring" not in prompt for prompt in writer.asked[1:])
    told = found.to_json()
    assert told["way"] == "canonical" and told["decode"]["tokens"] == 2 * len(found.drafts)  # type: ignore[index]


def test_a_module_that_cannot_be_followed_says_why(
    lasting: None, write_module: Callable[..., Path], emulated: Verifier
) -> None:
    one_way = "class Model(nn.Module):\n    def forward(self, x):\n        return x * float(x.sum())"
    problem = Problem.from_file(write_module(one_way, "[torch.randn(4)]"))
    found, why = attempt_by_regions(problem, "exp", KnowsExp(), emulated, samples=1, prompt="auto", seed=0)  # type: ignore[arg-type]
    assert found is None and why
