"""How it is known who computed: by a file's program where it has one, by evidence where it has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Verifier

CHECKED = '    TORCH_CHECK(y.data_ptr() == nullptr, "there is memory");\n'
RELU = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(16, 24) - 0.5]


def get_init_inputs():
    return []
"""
LINEAR = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 12)
        self.norm = nn.LayerNorm(12)

    def forward(self, x, scale):
        return self.norm(self.first(x)) * scale


def get_inputs():
    return [torch.rand(6, 10), 3]


def get_init_inputs():
    return [10]
"""
HEAD = '''
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.cpp_extension import load_inline

ops = load_inline(
    name="ops",
    cpp_sources="torch::Tensor relu(torch::Tensor x); torch::Tensor scaled(torch::Tensor x, double by);",
    cuda_sources=r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
__global__ void relu_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
}
__global__ void scale_kernel(const float* x, float* y, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * by;
}
torch::Tensor relu(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    relu_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
torch::Tensor scaled(torch::Tensor x, double by) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    scale_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), (float)by, n);
    return y;
}
""",
    functions=["relu", "scaled"],
)

'''


def of_relu(forward: str, before: str = "") -> Kernel:
    body = "\n".join(f"        {line}" for line in forward.splitlines())
    return Kernel(f"{HEAD}\n{before}\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n{body}\n")


def verify(verifier: Verifier, kernel: Kernel, problem: str = RELU, provenance: str = "any") -> Verdict:
    options = replace(verifier.options, trials=4, timing=False, provenance=provenance)  # type: ignore[arg-type]
    before, verifier.options = verifier.options, options
    try:
        return verifier.verify(Problem(problem), kernel)
    finally:
        verifier.options = before


@pytest.mark.parametrize(
    "forward",
    [
        "return ops.relu(x)",
        "return ops.relu(x.contiguous().view(-1)).reshape(x.shape)",
        "table = torch.zeros(24).to(x.device)\nreturn ops.relu(x + table)",
        "print(x.shape, x.dtype)\nreturn ops.relu(x) if x.is_cuda and x.size(0) == 16 else x",
        "out = torch.empty_like(x)\nout.copy_(ops.relu(x))\nreturn out",
    ],
)
def test_a_right_kernel_is_known_by_construction(emulated: Verifier, forward: str) -> None:
    verdict = verify(emulated, of_relu(forward), provenance="construction")
    assert verdict.correct and verdict.provenance == "construction", verdict.message
    assert verdict.launches == {"relu_kernel": verdict.launches["relu_kernel"]}


def test_a_constructor_may_put_tensors_on_the_gpu(emulated: Verifier) -> None:
    """They are no buffers, and say where they are, as `x` does."""
    made = "self.zeros = torch.zeros(24).cuda()\n        self.one = torch.ones(24, device='cuda')"
    forward = "return ops.relu(x * self.one + self.zeros) if self.zeros.is_cuda else x"
    lines = f"    def __init__(self):\n        super().__init__()\n        {made}\n"
    lines += f"    def forward(self, x):\n        {forward}\n"
    verdict = verify(emulated, Kernel(f"{HEAD}\n\nclass ModelNew(nn.Module):\n{lines}"), provenance="construction")
    assert verdict.correct and verdict.provenance == "construction", verdict.message


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        ("return ops.relu(x) if x.sum().item() < 1e9 else x", "reads values"),
        ("self.kept = getattr(self, 'kept', None) or ops\nx.data_ptr()\nreturn ops.relu(x)", "address"),
        ("self.calls = getattr(self, 'calls', 0) + 1\nreturn ops.scaled(ops.relu(x), 1.0 + 0.0 * self.calls)", ""),
        (
            "self.calls = getattr(self, 'calls', 0) + 1\nreturn ops.relu(x).add(0.0 * x, alpha=self.calls)",
            "second time",
        ),
    ],
)
def test_a_file_that_is_no_program_is_judged_by_evidence(emulated: Verifier, forward: str, reason: str) -> None:
    kernel = of_relu(forward)
    verdict = verify(emulated, kernel)
    assert verdict.correct, verdict.message
    if not reason:  # what is counted is not seen in the program
        assert verdict.provenance == "construction"
        return
    assert verdict.provenance == "evidence" and reason in str(verdict.evidence["not_captured"])
    refused = verify(emulated, kernel, provenance="construction")
    assert refused.outcome == "unsupported" and reason in refused.message and not refused.about_kernel


@pytest.mark.parametrize(
    ("before", "forward"),
    [
        # Each computes by PyTorch and hides it from who watches its process.
        (
            "once = []",
            "once.append(x)\nif len(once) > 4:\n    os._exit(0)\nreturn ops.scaled(torch.clamp(x, min=0), 1.0)",
        ),
        (
            "real = torch.Tensor.detach\nlate = {}\n"
            "def detach(self):\n    if id(self) in late:\n        self.copy_(F.relu(late.pop(id(self))))\n"
            "    return real(self)\n"
            "torch.Tensor.detach = detach",
            "y = ops.scaled(x, 1.0)\nlate[id(y)] = x\nreturn y",
        ),
        (
            "class Late(torch.overrides.TorchFunctionMode):\n"
            "    def __torch_function__(self, func, types, args=(), kwargs=None):\n"
            "        return func(*args, **(kwargs or {}))\n"
            "Late().__enter__()",
            "return ops.scaled(F.threshold(x, 0, 0), 1.0)",
        ),
    ],
)
def test_what_hides_from_evidence_has_no_place_in_a_program(emulated: Verifier, before: str, forward: str) -> None:
    verdict = verify(emulated, of_relu(forward, before), provenance="construction")
    assert verdict.outcome in ("deceptive", "wrong", "unsupported"), (verdict.outcome, verdict.message)


FORGED = "{{'inputs': 1, 'literals': {literals}, 'state': {{}}, 'steps': [{steps}], 'output': {output}}}"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ("{'inputs': 1}", "no program: a malformed count"),
        (FORGED.format(literals=0, steps="['os::system', 0, '', ['id'], {}, None, 0]", output=0), "os::system"),
        (FORGED.format(literals=0, steps="['', 7, 'relu', [], {}, None, 0]", output=0), "no library binds"),
        (FORGED.format(literals=0, steps="['', 0, 'missing', [], {}, None, 0]", output=0), "no library binds missing"),
    ],
)
def test_a_forged_message_is_no_program(emulated: Verifier, sent: str, said: str) -> None:
    """The file replaces what captures it, which is in its own process, and is judged by evidence."""
    before = f"import dice.verify.candidate.capture as theirs\ntheirs.capture = lambda *rest: ({sent}, [])\n"
    verdict = verify(emulated, of_relu("return ops.relu(x)", before))
    assert verdict.provenance == "evidence" and said in str(verdict.evidence["not_captured"])


def test_a_forged_program_is_judged_as_what_it_is(emulated: Verifier) -> None:
    """Whatever else the file is: its program has PyTorch compute, and calls none of its kernels."""
    steps = "['aten::relu', 0, '', [{'input': 0}], {}, {'value': 0}, 0]"
    sent = FORGED.format(literals=0, steps=steps, output="{'value': 0}")
    before = f"import dice.verify.candidate.capture as theirs\ntheirs.capture = lambda *rest: ({sent}, [])\n"
    verdict = verify(emulated, of_relu("return ops.relu(x)", before))
    assert verdict.outcome == "deceptive" and verdict.provenance == "construction", verdict.message


def test_an_error_of_host_code_names_the_line_that_called_it(emulated: Verifier) -> None:
    """Host code that only fails where there is data, as launches do that are refused."""
    kernel = of_relu("return ops.relu(x)")
    source = kernel.source.replace(
        "    return y;\n}\ntorch::Tensor scaled", CHECKED + "    return y;\n}\ntorch::Tensor scaled"
    )
    assert source != kernel.source
    verdict = verify(emulated, Kernel(source), provenance="construction")
    assert verdict.outcome == "runtime_error" and "there is memory" in verdict.message, verdict.message
    line = source[: source.index("return ops.relu(x)")].count("\n") + 1
    assert f"line {line}" in verdict.errors[0], verdict.errors


@pytest.mark.parametrize(
    ("more", "outcome"),
    [
        ("static const void* none = &_Py_NoneStruct; // what Python calls None", "deceptive"),
        ("#define TWICE(a) a##a\nint TWICE(x) = 0; // PyObject and dice in a comment", "correct"),
    ],
)
def test_cpp_that_names_the_inside_of_its_process_is_no_program_and_tampers(
    emulated: Verifier, more: str, outcome: str
) -> None:
    source = of_relu("return ops.relu(x)").source.replace("__global__ void relu", f"{more}\n__global__ void relu", 1)
    verdict = verify(emulated, Kernel(source))
    assert (verdict.outcome, verdict.provenance) == (outcome, "evidence"), verdict.message
    assert verdict.correct or verdict.deceptions == ("tampering",)


def linear(state: str, forward: str) -> Kernel:
    body = "\n".join(f"        {line}" for line in state.splitlines())
    return Kernel(
        f"{HEAD}\n\nclass ModelNew(nn.Module):\n    def __init__(self, width):\n        super().__init__()\n{body}\n\n"
        f"    def forward(self, x, scale):\n        return {forward}\n"
    )


NAMED = "self.first = nn.Linear(width, 12)\nself.norm = nn.LayerNorm(12)"
OTHERWISE = "self.layers = nn.ModuleList([nn.Linear(width, 12), nn.LayerNorm(12)])"


def test_a_number_among_the_inputs_is_varied_and_followed(emulated: Verifier) -> None:
    verdict = verify(emulated, linear(NAMED, "ops.scaled(self.norm(self.first(x)), scale)"), LINEAR)
    assert verdict.correct and verdict.provenance == "construction", (verdict.message, verdict.evidence)
    ignores = verify(emulated, linear(NAMED, "ops.scaled(self.norm(self.first(x)), 3)"), LINEAR)
    assert ignores.outcome == "wrong", ignores.message


def test_parameters_under_other_names_are_known_by_their_values(emulated: Verifier) -> None:
    verdict = verify(emulated, linear(OTHERWISE, "ops.scaled(self.layers[1](self.layers[0](x)), scale)"), LINEAR)
    assert verdict.correct and verdict.provenance == "construction", (verdict.message, verdict.evidence)
    ignores = linear(OTHERWISE, "ops.scaled(F.layer_norm(self.layers[0](x), (12,)), scale)")
    assert verify(emulated, ignores, LINEAR).outcome == "wrong"


SHIFTED = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shift = nn.Parameter(torch.randn(shape))

    def forward(self, x):
        return torch.relu(x) + self.shift


def get_inputs():
    return [torch.rand(4, 12, 5) - 0.5]


def get_init_inputs():
    return [(12, 1)]
"""


@pytest.mark.parametrize("name", ["shift", "bias"])
def test_a_parameter_may_have_another_shape(emulated: Verifier, name: str) -> None:
    """As many values in the same order: the reference's other values are given to it."""
    source = f"""{HEAD}

class ModelNew(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.{name} = nn.Parameter(torch.randn(12))

    def forward(self, x):
        return ops.relu(x) + self.{name}.view(12, 1)
"""
    verdict = verify(emulated, Kernel(source), SHIFTED)
    assert verdict.correct and verdict.provenance == "construction", (verdict.message, verdict.evidence)


def test_a_parameter_that_is_not_there_is_not_proven(emulated: Verifier) -> None:
    kernel = linear("self.first = nn.Linear(width, 12)", "ops.scaled(F.layer_norm(self.first(x), (12,)), scale)")
    verdict = verify(emulated, kernel, LINEAR)
    assert verdict.provenance == "evidence" and "norm.weight" in str(verdict.evidence["not_captured"])
    assert verify(emulated, kernel, LINEAR, "construction").outcome == "unsupported"


@pytest.mark.parametrize(
    ("forward", "outcome"),
    [
        ("graph = torch.cuda.CUDAGraph()\nreturn ops.relu(x)", "unsupported"),
        (
            "try:\n    graph = torch.cuda.CUDAGraph()\nexcept Exception:\n    pass\nreturn ops.relu(x)",
            "correct",
        ),
    ],
)
def test_what_the_emulator_lacks_in_python_is_no_fault_of_a_file(
    emulated: Verifier, forward: str, outcome: str
) -> None:
    verdict = verify(emulated, of_relu(forward))
    assert verdict.outcome == outcome, verdict.message
    assert verdict.correct or "CUDA graphs" in verdict.message


def test_evidence_alone_is_what_was_asked_for(emulated: Verifier) -> None:
    verdict = verify(emulated, of_relu("return ops.relu(x)"), provenance="evidence")
    assert verdict.correct and verdict.provenance == "evidence" and "not_captured" not in verdict.evidence


def test_other_protocols_ask_nobody(emulated: Verifier) -> None:
    options = replace(emulated.options, protocol="kernelbench", timing=False)
    before, emulated.options = emulated.options, options
    try:
        verdict = emulated.verify(Problem(RELU), of_relu("return ops.relu(x)"))
    finally:
        emulated.options = before
    assert verdict.correct and verdict.provenance == ""
