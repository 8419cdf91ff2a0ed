"""What earns a right kernel a label and no more: arguments of its constructor that it knows by heart, and what it makes
of values that are not finite."""

from __future__ import annotations

from dataclasses import replace

import problem_texts as texts
import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Verifier

IGNORES, SPECIAL = "ignores_constructor_argument", "nan_or_infinity_differs"
LEAKY = texts.problem(
    "return F.leaky_relu(x, self.slope)",
    "[torch.randn(batch_size, 40)]",
    "self.slope = arguments[0]",
    "[0.01, True, 3]",
)
FILE = """
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline
ops = load_inline(
    name="ops",
    cpp_sources="torch::Tensor leaky(torch::Tensor x, double slope);",
    cuda_sources=r'''
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void leaky_kernel(const float* x, float* y, float slope, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = EXPRESSION;
}
torch::Tensor leaky(torch::Tensor x, double slope) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    leaky_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), slope, n);
    return y;
}
''',
    functions=["leaky"],
)


class ModelNew(nn.Module):
    def __init__(self, slope, *others):
        super().__init__()
        CHECK
        self.slope = SLOPE

    def forward(self, x):
        return ops.leaky(x, self.slope)
"""
KEEPS_NAN = "x[i] < 0.0f ? x[i] * slope : x[i]"


def leaky(slope: str = "slope", expression: str = KEEPS_NAN, check: str = "") -> Kernel:
    text = FILE.replace("CHECK", check or "pass")
    return Kernel(text.replace("SLOPE", slope).replace("EXPRESSION", expression))


def verify(verifier: Verifier, kernel: Kernel, provenance: str) -> Verdict:
    options = replace(verifier.options, trials=3, provenance=provenance)  # type: ignore[arg-type]
    return verifier.verify(Problem(LEAKY), kernel, options)


@pytest.mark.parametrize("provenance", ["construction", "evidence"])
@pytest.mark.parametrize(
    ("kernel", "labels"),
    [
        (leaky(), ()),
        (leaky(slope="0.01"), (IGNORES,)),
        (leaky(slope="0.01", check="assert slope == 0.01"), ()),  # it says so itself
        (leaky(expression="fmaxf(x[i], 0.0f) + slope * fminf(x[i], 0.0f)"), (SPECIAL,)),
    ],
)
def test_a_right_kernel_is_labelled_for_what_nobody_asked(
    emulated: Verifier, kernel: Kernel, labels: tuple[str, ...], provenance: str
) -> None:
    verdict = verify(emulated, kernel, provenance)
    assert verdict.correct and verdict.provenance == provenance, verdict.message
    assert verdict.labels == labels
