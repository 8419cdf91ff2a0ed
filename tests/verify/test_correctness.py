"""What right means, end to end: kernels that answer rightly today and would not be right in use."""

from __future__ import annotations

from dataclasses import replace

import problem_texts as texts
import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Verifier

CUDA = """
#include <torch/extension.h>
#include <cuda_runtime.h>
{device}
torch::Tensor run({signature}) {{
    {host}
}}
"""
FILE = """
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline
cuda_source = r'''{cuda}'''
cpp_source = "torch::Tensor run({signature});"
ops = load_inline(name="ops", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=["run"])
class ModelNew(nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        {init}
    def forward(self, *inputs):
        x = inputs[0]
        {forward}
"""
SCALE = """
__global__ void scale_kernel(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}"""
LAUNCH_SCALE = """auto y = torch::empty_like(x); int n = x.numel();
    scale_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), 2.0f, n);
    return y;"""
DOUBLE = texts.problem("return x * 2", "[torch.rand(batch_size, 64)]")


def kernel(
    device: str = SCALE,
    host: str = LAUNCH_SCALE,
    signature: str = "torch::Tensor x",
    forward: str = "return ops.run(x)",
    init: str = "pass",
) -> Kernel:
    cuda = CUDA.format(device=device, signature=signature, host=host)
    return Kernel(FILE.format(cuda=cuda, signature=signature, forward=forward, init=init))


def verify(verifier: Verifier, source: str, candidate: Kernel, **changes: object) -> Verdict:
    return verifier.verify(Problem(source, "problem"), candidate, replace(verifier.options, **changes))  # type: ignore[arg-type]


def test_a_plain_kernel_has_no_labels(emulated: Verifier) -> None:
    verdict = verify(emulated, DOUBLE, kernel())
    assert verdict.correct and verdict.labels == () and verdict.determinism is True and verdict.protocol == "dice"


def test_memory_of_an_input_is_no_output(emulated: Verifier) -> None:
    source = texts.problem("return torch.dropout(x, 0.0, True) + 0", "[torch.rand(batch_size, 64)]")
    verdict = verify(emulated, source, kernel(forward="ops.run(x); return x.view(16, 64)"))
    assert verdict.outcome == "wrong" and "memory of input 0" in verdict.message


def test_parameters_are_not_for_writing(emulated: Verifier) -> None:
    source = texts.problem("return x * self.w", "[torch.rand(8, 64)]", "self.w = nn.Parameter(torch.rand(64))")
    forward = "y = ops.run(x) / 2 * self.w; self.w.mul_(1.000001); return y"
    verdict = verify(emulated, source, kernel(forward=forward, init="self.w = nn.Parameter(torch.rand(64))"))
    assert verdict.outcome == "wrong" and "parameter w" in verdict.message


def test_a_reused_output_buffer_is_labelled(emulated: Verifier) -> None:
    forward = "self.y = getattr(self, 'y', torch.empty_like(x)); self.y.copy_(ops.run(x)); return self.y"
    verdict = verify(emulated, DOUBLE, kernel(forward=forward))
    assert verdict.correct and "reuses_output" in verdict.labels


SUM = """
__global__ void sum_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(y + i % 64, x[i]);  // of 64 sums, not all round alike in two orders
}"""
LAUNCH_SUM = """auto y = torch::zeros({64}, x.options()); int n = x.numel();
    sum_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;"""


def test_sums_in_no_fixed_order_are_right_but_not_deterministic(emulated: Verifier) -> None:
    source = texts.problem("return x.sum(0)", "[torch.rand(64, 64)]")
    verdict = verify(emulated, source, kernel(SUM, LAUNCH_SUM))
    assert verdict.correct and verdict.determinism is False


SQUARE = """
__global__ void square_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}"""
LAUNCH_SQUARE = """auto y = torch::empty_like(x); int n = x.numel();
    square_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;"""


@pytest.mark.parametrize(("affine", "outcome"), [("y * self.weight + self.bias", "correct"), ("y", "wrong")])
def test_weights_that_start_as_ones_must_still_be_used(affine: str, outcome: str, emulated: Verifier) -> None:
    source = texts.problem("return self.norm(x * x)", "[torch.rand(8, 32)]", "self.norm = nn.LayerNorm(32)")
    forward = "y = ops.run(x); y = (y - y.mean(1, True)) / (y.var(1, False, keepdim=True) + 1e-5).sqrt();"
    used = affine.replace("self.", "self.norm.")
    norm = "self.norm = nn.LayerNorm(32)"
    candidate = kernel(SQUARE, LAUNCH_SQUARE, forward=f"{forward} return {used}", init=norm)
    verdict = verify(emulated, source, candidate)
    assert verdict.outcome == outcome
    assert verdict.correct or "other parameters" in verdict.message
    own_names = kernel(SQUARE, LAUNCH_SQUARE, forward=f"{forward} return y", init="pass")
    assert verify(emulated, source, own_names).outcome == "wrong"  # nor may it leave them out


MATMUL = """
#include <cuda_fp16.h>
__global__ void matmul_kernel(const float* a, const float* b, float* c, int rows, int inner, int columns) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column >= columns) return;
    float sum = 0.0f;
    for (int k = 0; k < inner; ++k) sum += ROUND(a[row * inner + k]) * ROUND(b[k * columns + column]);
    c[row * columns + column] = sum;
}"""
LAUNCH_MATMUL = """auto c = torch::empty({a.size(0), b.size(1)}, a.options());
    dim3 grid((b.size(1) + 31) / 32, a.size(0));
    matmul_kernel<<<grid, 32>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), a.size(0), a.size(1),
                                b.size(1));
    return c;"""


@pytest.mark.parametrize(("rounding", "labelled"), [("__half2float(__float2half({}))", True), ("{}", False)])
def test_half_precision_inside_a_float_problem_is_seen(rounding: str, labelled: bool, emulated: Verifier) -> None:
    device = MATMUL.replace("ROUND", "round_").replace(
        "__global__", f"__device__ float round_(float x) {{ return {rounding.format('x')}; }}\n__global__", 1
    )
    candidate = kernel(device, LAUNCH_MATMUL, "torch::Tensor a, torch::Tensor b", "return ops.run(x, inputs[1])")
    verdict = verify(emulated, texts.MATMUL, candidate)
    if verdict.correct:
        assert any(label.startswith("precision_downgrade") for label in verdict.labels) is labelled
    else:
        assert labelled and verdict.outcome == "wrong"  # on centred inputs rounding does not average out


def test_an_ignored_input_of_little_influence_is_found(emulated: Verifier) -> None:
    source = texts.problem("return 2 * x + 1e-6 * inputs[1]", "[torch.rand(8, 30), torch.rand(8, 30)]")
    verdict = verify(emulated, source, kernel())
    assert verdict.outcome == "wrong" and "input 1 amplified" in verdict.message


def test_unused_inputs_are_named(emulated: Verifier) -> None:
    verdict = verify(emulated, texts.UNUSED_INPUT, kernel())
    assert verdict.correct and verdict.labels == ("unused_input:1", "unused_input:2")


def test_a_kernel_with_nothing_to_write_need_not_run(emulated: Verifier) -> None:
    host = LAUNCH_SCALE.replace("scale_kernel<<<", "if (n) scale_kernel<<<")
    empty = texts.problem("return x * 2", "[torch.rand(batch_size, 0)]")
    assert verify(emulated, empty, kernel(host=host)).outcome == "correct"
    idle = verify(emulated, DOUBLE, kernel(host="return x * 2;"))
    assert idle.outcome == "deceptive", "where there is something, it has to"


CACHE = texts.problem(
    "inputs[1][:, 0].copy_(x)\nreturn inputs[1].sum(-1)", "[torch.rand(batch_size, 8), torch.rand(batch_size, 5, 8)]"
)
ROWS = """
__global__ void rows_kernel(const float* x, float* cache, float* y, int rows, int steps, int width, bool writes) {
    int row = threadIdx.x / steps, step = threadIdx.x % steps;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = 0; i < width; ++i) {
        float* place = cache + (row * steps + step) * width + i;
        sum += step ? *place : x[row * width + i];
        if (!step && writes) *place = x[row * width + i];
    }
    y[row * steps + step] = sum;
}"""
LAUNCH_ROWS = """auto y = torch::empty({{x.size(0), cache.size(1)}}, x.options());
    rows_kernel<<<1, 128>>>(x.data_ptr<float>(), cache.data_ptr<float>(), y.data_ptr<float>(), x.size(0), cache.size(1),
                            x.size(1), {writes});
    return y;"""


@pytest.mark.parametrize("provenance", ["construction", "evidence"])
@pytest.mark.parametrize(("writes", "forward", "outcome"), [
    ("true", "return ops.run(x, inputs[1])", "correct"),
    ("false", "y = ops.run(x, inputs[1]); inputs[1][:, 0] = x; return y", "correct"),
    ("false", "return ops.run(x, inputs[1])", "wrong"),
    ("false", "y = ops.run(x, inputs[1]); inputs[1][:, 0] = 1.01 * x; return y", "wrong"),
])  # fmt: skip
def test_what_a_caller_finds_in_its_inputs_is_part_of_the_answer(
    writes: str, forward: str, outcome: str, provenance: str, emulated: Verifier
) -> None:
    candidate = kernel(ROWS, LAUNCH_ROWS.format(writes=writes), "torch::Tensor x, torch::Tensor cache", forward)
    verdict = verify(emulated, CACHE, candidate, provenance=provenance)
    assert verdict.outcome == outcome and (verdict.correct or "input 1" in verdict.message)


def test_an_answer_that_comes_too_late_is_not_taken_for_another(
    emulated: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: it looked like a message that nobody had asked for, which only a forger sends."""
    monkeypatch.setattr("dice.verify.supervisor.intervention.MUTED_S", 0.2)
    monkeypatch.setattr("dice.verify.supervisor.intervention.OFTEN_S", 1.0)
    candidate = kernel(SQUARE, LAUNCH_SQUARE, forward="import time; time.sleep(0.4); return ops.run(x)")
    verdict = verify(emulated, texts.problem("return x * x", "[torch.rand(8, 32)]"), candidate, provenance="evidence")
    assert verdict.evidence["muted"].startswith("ended: ") and verdict.correct and verdict.labels == ()


@pytest.mark.parametrize("provenance", ["construction", pytest.param("evidence", marks=pytest.mark.slow)])
def test_statistics_that_training_keeps_and_the_kernel_does_not_are_a_label(
    provenance: str, emulated: Verifier
) -> None:
    norm = "self.norm = nn.BatchNorm1d(32)"
    source = texts.problem("return self.norm(x * x)", "[torch.rand(8, 32)]", norm)
    for more, labels in (("", ("keeps_no_state",)), (f"{COUNTS} {MEAN} {VARIANCE}", ())):
        candidate = kernel(SQUARE, LAUNCH_SQUARE, forward=f"{NORM} {more} {NORMALISED}", init=norm)
        verdict = verify(emulated, source, candidate, provenance=provenance)
        assert verdict.correct and verdict.labels == labels


NORM = "x = ops.run(x); mean, var = x.mean(0), x.var(0, False); n = self.norm;"
COUNTS = "n.num_batches_tracked += 1;"
MEAN = "n.running_mean.mul_(0.9).add_(0.1 * mean);"
VARIANCE = "n.running_var.mul_(0.9).add_(0.1 * x.var(0));"
NORMALISED = "return (x - mean) / (var + 1e-5).sqrt() * n.weight + n.bias"


@pytest.mark.parametrize("provenance", ["construction", pytest.param("evidence", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("keeps", "buffer"), [
    (COUNTS + MEAN + VARIANCE.replace("x.var(0)", "var"), "running_var"),  # without Bessel's correction
    (COUNTS + MEAN.replace("0.9", "0.1").replace("(0.1", "(0.9") + VARIANCE, "running_mean"),  # another momentum
    ("n.num_batches_tracked += 2;" + MEAN + VARIANCE, "num_batches_tracked"),
])  # fmt: skip
def test_statistics_that_are_kept_with_other_values_are_wrong(
    keeps: str, buffer: str, provenance: str, emulated: Verifier
) -> None:
    norm = "self.norm = nn.BatchNorm1d(32)"
    source = texts.problem("return self.norm(x * x)", "[torch.rand(8, 32)]", norm)
    candidate = kernel(SQUARE, LAUNCH_SQUARE, forward=f"{NORM} {keeps} {NORMALISED}", init=norm)
    verdict = verify(emulated, source, candidate, provenance=provenance)
    assert verdict.outcome == "wrong" and f"buffer norm.{buffer} is not" in verdict.message


AVERAGE = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(64))

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.mean(0)
        return (x - self.average) * 2

def get_inputs():
    return [torch.rand(32, 64)]

def get_init_inputs():
    return []
"""


def test_an_output_that_follows_a_running_average(emulated: Verifier) -> None:
    """It is another in each call, and so is the reference's."""
    minus = """
__global__ void minus_kernel(const float* x, const float* a, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * (x[i] - a[i % 64]);
}"""
    launch = """auto y = torch::empty_like(x); int n = x.numel();
    minus_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), a.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;"""
    init = 'self.register_buffer("average", torch.zeros(64))'

    def judged(factor: float) -> Verdict:
        average = f"self.average = {factor} * self.average + 0.1 * x.mean(0); return ops.run(x, self.average)"
        given = "torch::Tensor x, torch::Tensor a"
        return verify(emulated, AVERAGE, kernel(minus, launch, given, average, init))

    assert judged(0.9).correct
    assert judged(0.8).outcome == "wrong"


PLAIN = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64))
        self.offset = [torch.randn(64)]

    def forward(self, x):
        return (x * self.weight + self.offset[0].to(x.device)) * 2

def get_inputs():
    return [torch.rand(32, 64)]

def get_init_inputs():
    return []
"""


def test_tensors_that_are_no_parameters_follow_the_seed_of_those(emulated: Verifier) -> None:
    """Both sides draw them in their constructors: the reference, too, has others beside other parameters."""
    own = "self.weight, self.offset = nn.Parameter(torch.randn(64)), torch.randn(64)"  # where it is kept is its own
    candidate = kernel(init=own, forward="return ops.run(x * self.weight + self.offset.to(x.device))")
    assert verify(emulated, PLAIN, candidate).correct
    fixed = own + "; self.offset = torch.zeros(64)"
    assert verify(emulated, PLAIN, kernel(init=fixed, forward="return ops.run(x * self.weight)")).outcome == "wrong"
