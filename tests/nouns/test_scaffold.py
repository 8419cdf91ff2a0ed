"""What a kernel file has from the module, whatever the reply says of it."""

from __future__ import annotations

import ast

import pytest

from dice.problem import Problem
from dice.scaffold import completed

PROBLEM = Problem('''"""RMS norm."""
import torch
import torch.nn as nn

EPS = 1e-6


class Model(nn.Module):
    def __init__(self, channels, eps=EPS):
        super(Model, self).__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(channels))
        self.mix = nn.Linear(channels, channels, bias=False)

    def forward(self, x, gate=None, *, shift):
        return self.mix(x) * self.scale + shift


def get_inputs():
    return [torch.randn(4, 8)]


def get_init_inputs():
    return [8]
''')  # fmt: skip
REPLY = '''```python
import torch
cuda_source = """
#include <torch/extension.h>
__global__ void k(const float* x) {{ }}

torch::Tensor helper(torch::Tensor x) {{
    return x;
}}

torch::Tensor norm_cuda({parameters}) {{
    return x;
}}
"""
ops = load_inline(name="n", functions=["norm"])

class ModelNew(nn.Module):
    def forward(self, y):
        return ops.norm_cuda({own})
  broken
```'''


def call(parameters: str, own: str = "") -> str | None:
    """What `forward` gives to the host function, as text; None where there is no file."""
    kernel = completed(PROBLEM, REPLY.format(parameters=parameters, own=own))
    if kernel is None:
        return None
    forward = ast.parse(kernel.source).body[-1].body[-1]  # type: ignore[attr-defined]
    assert ast.unparse(forward.args) == "self, x, gate=None, *, shift"
    return ast.unparse(forward.body[0].value).removeprefix("ops.norm_cuda")


@pytest.mark.parametrize(
    ("parameters", "own", "given"),
    [
        # Of the file's own call what is there, and is of the parameter's kind.
        (
            "torch::Tensor x, torch::Tensor gate, torch::Tensor shift, torch::Tensor w, float e",
            "x, gate, shift, self.eps, self.scale",
            "(x, gate, shift, self.mix.weight, self.eps)",
        ),
        (
            "torch::Tensor x, torch::Tensor gate, torch::Tensor shift, torch::Tensor scale, float eps",
            "x, gate, shift, self.eps, self.scale",
            "(x, gate, shift, self.scale, self.eps)",
        ),
        # A tensor that it gives twice is meant once.
        (
            "torch::Tensor x, torch::Tensor gate, torch::Tensor shift, torch::Tensor scale, torch::Tensor other",
            "x, gate, shift, self.scale, self.scale",
            "(x, gate, shift, self.scale, self.mix.weight)",
        ),
        # By names, spelt out or not.
        (
            "torch::Tensor x, torch::Tensor gate, torch::Tensor shift, torch::Tensor mix_weight",
            "",
            "(x, gate, shift, self.mix.weight)",
        ),
        ("torch::Tensor x, torch::Tensor gate, torch::Tensor shift, float e", "", "(x, gate, shift, self.eps)"),
        # An input that would be dropped, a tensor that there is not, a type that Python does not pass.
        ("torch::Tensor x, torch::Tensor gate", "x, gate", None),
        ("torch::Tensor x, torch::Tensor gate, torch::Tensor shift, float* p", "", None),
    ],
)
def test_the_host_function_is_given_what_the_module_has(parameters: str, own: str, given: str | None) -> None:
    assert call(parameters, own) == given


def test_the_file_has_the_modules_constructor_and_what_that_needs() -> None:
    parameters = "torch::Tensor x, torch::Tensor gate, torch::Tensor shift"
    kernel = completed(PROBLEM, REPLY.format(parameters=parameters, own=""))
    assert kernel is not None and kernel.defines_model_new and kernel.bound_functions == ("norm_cuda",)
    assert "EPS = 1e-06" in kernel.source and "super().__init__()" in kernel.source and "broken" not in kernel.source
    assert "get_inputs" not in kernel.source and kernel.split().core.count("torch::Tensor norm_cuda(") == 1


def test_a_reply_without_cuda_and_a_module_with_methods_have_none() -> None:
    assert completed(PROBLEM, "```python\nclass ModelNew: pass\n```") is None
    methods = Problem(PROBLEM.source.replace("def forward", "def other(self):\n        pass\n\n    def forward"))
    assert completed(methods, REPLY.format(parameters="torch::Tensor x", own="x")) is None
