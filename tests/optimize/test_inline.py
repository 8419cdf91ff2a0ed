"""A kernel file as a part of another one: what is taken over, what is renamed, and what is refused."""

from __future__ import annotations

import pytest

from dice.kernel import Kernel
from dice.optimize.whole.inline import NotInlined, inlined

FILE = '''import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = """
// cuda_source and ops stay what they are in here
"""

ops = load_inline(name="scaled", cpp_sources="", cuda_sources=cuda_source, functions=["scaled_cuda"])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.ops = ops
        self.scale = 0.5

    def forward(self, x):
        """Scaled."""
        x = x.contiguous()
        return self.ops.scaled_cuda(x, self.linear.weight, self.scale)
'''


def test_the_function_takes_the_tensors_and_has_the_constants() -> None:
    part = inlined(Kernel(FILE), ("linear.weight",), 3)
    assert part.function == "region_3"
    assert "def region_3(x, linear_weight):" in part.text
    assert "return ops_3.scaled_cuda(x, linear_weight, 0.5)" in part.text
    assert 'name="scaled_3"' in part.text and "cuda_sources=cuda_source_3" in part.text
    assert "// cuda_source and ops stay what they are in here" in part.text
    assert "from torch.utils.cpp_extension import load_inline" in part.imports
    compile(part.text, "part", "exec")


def test_numbers_of_layers_are_known() -> None:
    text = FILE.replace("self.scale)", "self.linear.in_features)")
    assert "(x, linear_weight, 4)" in inlined(Kernel(text), ("linear.weight",), 1, {"linear.in_features": "4"}).text


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("self.linear.weight,", "self.linear(x),", "uses self.linear, which is no tensor"),
        ("self.scale = 0.5", "self.packed = torch.randn(4)", "uses self.other"),
        ("return self.ops", "self.seen = x\n        return self.ops", "uses self.seen"),
        ("super().__init__()", "super().__init__()\n        for i in range(3):\n            pass", "does more than"),
        ("class ModelNew(nn.Module):", "ModelNew = 3\nclass Another(nn.Module):", "not a class of its own"),
        ("def forward(self, x):", "def forward(self, *x):", "variable number of arguments"),
        ("return self.ops", "return helper(self)", "passes itself on"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(old: str, new: str, reason: str) -> None:
    text = FILE.replace(old, new).replace(
        "x, self.linear.weight", "x, self.linear.weight" if "other" not in reason else "self.other"
    )
    with pytest.raises(NotInlined, match=reason):
        inlined(Kernel(text), ("linear.weight",), 1)
