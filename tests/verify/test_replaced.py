"""How much of the reference a kernel file took over from PyTorch: what verdicts say of it, and what is too little."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Replaced, Verdict
from dice.verify import Options, Verifier
from dice.verify.execution import evidence, operator_cost
from dice.verify.ipc import replaced
from dice.verify.ipc.operator_counts import MAX_CALLS, OperatorCounts, by_kind
from dice.verify.reference.timing import _Timed

PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)

    def forward(self, x):
        y = {forward}
        return y


def get_inputs():
    return [torch.randn(4, 256)]


def get_init_inputs():
    return [256]
"""
KERNEL = """
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = '''
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void gelu_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 0.5f * x[i] * (1.0f + erff(x[i] * 0.70710678f));
}

__global__ void sigmoid_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 1.0f / (1.0f + expf(-x[i]));
}

__global__ void linear_kernel(const float* x, const float* w, const float* b, float* y, int rows, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * width) return;
    float sum = b[i % width];
    for (int k = 0; k < width; ++k) sum += x[i / width * width + k] * w[i % width * width + k];
    y[i] = sum;
}

torch::Tensor gelu(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    gelu_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}

torch::Tensor sigmoid(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    sigmoid_kernel<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}

torch::Tensor linear(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    linear_kernel<<<(n + 255) / 256, 256>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), x.size(0), x.size(1));
    return y;
}

torch::Tensor behind_linear(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    return gelu(at::linear(x, w, b));
}
'''
cpp_source = '''
torch::Tensor gelu(torch::Tensor x);
torch::Tensor sigmoid(torch::Tensor x);
torch::Tensor linear(torch::Tensor x, torch::Tensor w, torch::Tensor b);
torch::Tensor behind_linear(torch::Tensor x, torch::Tensor w, torch::Tensor b);
'''
names = ["gelu", "sigmoid", "linear", "behind_linear"]
ops = load_inline(name="partial", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=names)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, width)

    def forward(self, x):
        w, b = self.first.weight, self.first.bias
        return {forward}
"""
GELU = "torch.nn.functional.gelu(self.first(x))"
TINY = "torch.sigmoid(self.first(x)[:, :1])"


def judge(verifier: Verifier, reference: str, candidate: str) -> Verdict:
    problem = Problem(PROBLEM.format(forward=reference), "partial")
    return verifier.verify(problem, Kernel(KERNEL.replace("{forward}", candidate)))


def shares(verdict: Verdict) -> Replaced:
    assert verdict.replaced is not None, verdict.message
    return verdict.replaced


def test_one_operator_of_two_is_stated_with_its_share_of_the_time(emulated: Verifier) -> None:
    verdict = judge(emulated, GELU, "ops.gelu(self.first(x))")
    found = shares(verdict)
    assert verdict.correct and verdict.solves("any") and not verdict.solves("all")
    assert (found.replaced, found.operators, found.left) == (1, 2, {"contraction": 1})
    # The linear reads 262,144 bytes of weights and 8 kB beside them, GELU reads and writes 4 kB each.
    assert found.time_share == pytest.approx(8192 / (8192 + 4 * (65536 + 256 + 2048)), rel=1e-3)
    assert found.estimated and found.known_by == "program"
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))).replaced == found


def test_all_operators(emulated: Verifier) -> None:
    verdict = judge(emulated, GELU, "ops.gelu(ops.linear(x, w, b))")
    assert verdict.solves("all"), verdict.message
    assert shares(verdict).all and shares(verdict).time_share == 1 and shares(verdict).left == {}


def test_what_pytorch_computes_inside_of_the_files_own_function_is_left_to_it(emulated: Verifier) -> None:
    verdict = judge(emulated, GELU, "ops.behind_linear(x, w, b)")
    assert verdict.correct and shares(verdict).left == {"contraction": 1} and not verdict.solves("all")


def test_a_kernel_for_less_than_a_hundredth_of_the_time_is_no_solution(emulated: Verifier) -> None:
    verdict = judge(emulated, TINY, "ops.sigmoid(self.first(x)[:, :1].contiguous())")
    assert verdict.outcome == "deceptive" and verdict.deceptions == ("replaced_too_little",)
    assert "1 of the reference's 2 operators" in verdict.message and "0.01%" in verdict.message


def test_other_operators_of_pytorchs_in_the_place_of_one_are_not_all(emulated: Verifier) -> None:
    reference = "torch.nn.functional.gelu(torch.sigmoid(x).exp())"
    verdict = judge(emulated, reference, "ops.gelu((1 / (1 + (-x).exp())).exp())")
    found = shares(verdict)
    assert found.left == {"exp": 1, "sigmoid": 1} and found.added == ("reciprocal",) and not found.all


def test_by_evidence_the_census_of_its_process_says_so(emulated: Verifier) -> None:
    problem = Problem(PROBLEM.format(forward=GELU), "partial")
    peeking = KERNEL.replace("{forward}", "ops.gelu(self.first(x)) if float(x[0, 0]) < 1e9 else x")
    found = shares(emulated.verify(problem, Kernel(peeking)))
    assert found.known_by == "census" and found.replaced == 1


def test_verify_counts_by_all_operators_where_it_is_to(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM.format(forward=GELU))
    (tmp_path / "kernel.py").write_text(KERNEL.replace("{forward}", "ops.gelu(self.first(x))"))
    command = [sys.executable, "-m", "dice", "verify", "problem.py", "kernel.py", "--backend", "emulated"]
    done = subprocess.run([*command, "--replaced", "all"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "not for all operators" in done.stderr
    assert "replaced: 1 of 2 operators" in done.stdout and "PyTorch still computes contraction x1" in done.stdout


# ---- the arithmetic ------------------------------------------------------------------------------------------------


def work(**costs: list[int]) -> OperatorCounts:
    found = OperatorCounts()
    for kind, calls in costs.items():
        for cost in calls:
            found.note(kind, cost, cost)
    return found


def test_one_of_two_layers_is_told_from_the_other() -> None:
    found = replaced.of(work(contraction=[900, 100]), work(contraction=[100]), "program")
    assert (found.replaced, found.operators, found.time_share) == (1, 2, 0.9)
    found = replaced.of(work(contraction=[100, 900]), work(contraction=[900]), "program")
    assert (found.replaced, found.time_share) == (1, 0.1)


def test_some_rows_of_an_operator_are_a_share_of_its_time_and_no_operator() -> None:
    found = replaced.of(work(softmax=[1000]), work(softmax=[600]), "program")
    assert (found.replaced, found.time_share, found.left) == (0, 0.4, {"softmax": 1})


def test_a_last_sum_over_partial_sums_leaves_nothing_to_pytorch() -> None:
    assert replaced.of(work(sum=[1000]), work(sum=[5]), "program").all


def test_measured_times_take_the_place_of_the_estimate() -> None:
    reference, candidate = work(contraction=[900], relu=[100]), work(contraction=[900])
    assert replaced.of(reference, candidate, "program").time_share == 0.1
    found = replaced.of(reference, candidate, "program", {"contraction": [0.5], "relu": [0.5]})
    assert found.time_share == 0.5 and not found.estimated
    assert replaced.of(reference, candidate, "program", {"relu": [0.5]}).estimated, "of another forward"


def test_work_without_calls_that_only_the_profiler_saw_is_left_to_pytorch() -> None:
    hidden = OperatorCounts()
    hidden.elements["contraction"] = 1000
    found = replaced.of(work(contraction=[600, 400]), hidden, "census")
    assert found.left == {"contraction": 2} and found.time_share == 0


def test_a_candidate_may_claim_any_costs_without_harm() -> None:
    essences = {"sum": [[1 << 70, "x", -1], 7, [1]] * MAX_CALLS, "exp": "x"}
    told = {
        "costs": {"sum": [-1, "x", None, 1 << 70, *[5] * 10 * MAX_CALLS], "softmax": 7},
        "elements": {"sum": 9},
        "essences": essences,
    }
    claimed = OperatorCounts.from_json(told)
    assert len(claimed.costs["sum"]) == MAX_CALLS and "softmax" not in claimed.costs
    assert 0 <= replaced.of(work(sum=[1000] * 2 * MAX_CALLS, softmax=[1]), claimed, "census").time_share <= 1


def census(forward: Callable[..., object], *shapes: tuple[int, ...]) -> OperatorCounts:
    with torch.no_grad(), evidence.Census() as census:
        forward(*(torch.rand(shape) for shape in shapes))
    return census.work


def row_softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(1)


NORM = torch.nn.functional.layer_norm
CONV = torch.nn.functional.conv2d
WIDE = [(8, 16, 24, 24), (48, 16, 9, 9)]  # a convolution that costs many times what its transforms do


def fourier(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """`CONV`, by transforms there and back."""
    size = x.shape[-2:]
    product = torch.einsum("bcij,ocij->boij", torch.fft.rfft2(x), torch.fft.rfft2(w.flip(-2, -1), size))
    return torch.fft.irfft2(product, size)[..., w.shape[-2] - 1 :, w.shape[-1] - 1 :]


SPELT_OUT = {
    "a softmax but for its quotient": (row_softmax, lambda x: (x - x.amax(1, True)).exp().sum(1), [(8, 32)]),
    "a softmax by its logarithm": (row_softmax, lambda x: x - x.logsumexp(1, True), [(8, 32)]),
    "a sum of products": (torch.bmm, lambda a, b: (a[..., None] * b[:, None]).sum(2), [(2, 8, 9), (2, 9, 7)]),
    "the sum alone of products": (torch.mv, lambda a, b: a.sum(1), [(8, 32), (32,)]),
    "distances by products": (
        lambda a, b: torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist"),
        lambda a, b: a @ b.T,
        [(9, 32), (8, 32)],
    ),
    "distances that PyTorch multiplies out itself": (torch.cdist, lambda a, b: a @ b.T, [(48, 32), (40, 32)]),
    "differences by products": (
        lambda a, b: (a[:, None] - b).square().sum(-1),
        lambda a, b: a @ b.T + a.square().sum(1)[:, None] + b.square().sum(1),
        [(48, 32), (40, 32)],
    ),
    "absolute differences by products": (
        lambda a, b: torch.linalg.vector_norm(a[:, None] - b, dim=-1),
        lambda a, b: a @ b.T,
        [(48, 32), (40, 32)],
    ),
    "a norm by both moments": (lambda x: NORM(x, [32]), lambda x: x.mean(1) + (x * x).mean(1), [(8, 32)]),
    "a norm by sums of products": (
        lambda x: NORM(x, [32]),
        lambda x: (x * x) @ torch.ones(32) + x @ torch.ones(32),
        [(8, 32)],
    ),
    "a pool by windows": (
        lambda x: torch.nn.functional.avg_pool2d(x, 2),
        lambda x: x.unfold(2, 2, 2).sum(-1).sum(-1) + x.sum(),
        [(1, 2, 8, 8)],
    ),
    "a gelu but for its product": (torch.nn.functional.gelu, lambda x: (x / 2**0.5).erf(), [(8, 32)]),
    "a convolution by Fourier transforms": (CONV, fourier, WIDE),
    "the largest by a sort": (lambda x: x.topk(3), lambda x: x.sort().values[:, :3], [(8, 32)]),
}
OWN_WORK = {
    "the products between two transforms": (CONV, lambda x, w: torch.fft.irfft2(torch.fft.rfft2(x)), WIDE),
    "a convolution beside transforms that it has itself": (
        lambda x, w: (CONV(x, w), torch.fft.irfft2(torch.fft.rfft2(x) * torch.fft.rfft2(x))),
        lambda x, w: torch.fft.irfft2(torch.fft.rfft2(x) * torch.fft.rfft2(x)),
        WIDE,
    ),
    "the maximum of a softmax": (row_softmax, lambda x: x.amax(1), [(8, 32)]),
    "the mean of a norm": (lambda x: NORM(x, [32]), lambda x: x.mean(1), [(8, 32)]),
    "the last sum of a split product": (torch.mm, lambda a, b: torch.ones(4, 8, 7).sum(0), [(8, 32), (32, 7)]),
    "the products of an attention": (lambda q, k: torch.nn.functional.scaled_dot_product_attention(q, k, k),
                                     lambda q, k: (q @ k.mT) @ k, [(2, 2, 16, 8), (2, 2, 16, 8)]),
    "the elements of a sum by a product with ones": (
        lambda x: (x * x + x).sum(-1),
        lambda x: x @ torch.ones(32),
        [(40, 48, 32)],
    ),
    "the squares of distances": (
        lambda a, b: (a[:, None] - b).square().sum(-1),
        lambda a, b: a.square().sum(1)[:, None] + b.square().sum(1),
        [(48, 32), (40, 32)],
    ),
    "factors of weights": (lambda x: torch.nn.functional.batch_norm(x, torch.zeros(4), torch.ones(4)),
                           lambda x: torch.rsqrt(torch.ones(4) + 1e-5), [(8, 4, 16)]),
}  # fmt: skip


@pytest.mark.parametrize("what", SPELT_OUT)
def test_what_pytorch_computes_by_other_operators_was_not_replaced(what: str) -> None:
    forward, instead, shapes = SPELT_OUT[what]
    found = replaced.of(census(forward, *shapes), census(instead, *shapes), "program")
    assert (found.replaced, found.time_share) == (0, 0)


@pytest.mark.parametrize("what", OWN_WORK)
def test_a_kernel_whose_heart_pytorch_does_not_compute_replaced_it(what: str) -> None:
    forward, instead, shapes = OWN_WORK[what]
    found = replaced.of(census(forward, *shapes), census(instead, *shapes), "program")
    assert found.time_share > 0


def test_a_convolution_by_transforms_counts_as_one_by_pytorch_does() -> None:
    """Who has PyTorch convolve and rectifies himself replaced the same part, whichever way PyTorch goes."""
    reference = census(lambda x, w: CONV(x, w).relu(), *WIDE)
    plain = replaced.of(reference, census(CONV, *WIDE), "program")
    transformed = replaced.of(reference, census(fourier, *WIDE), "program")
    assert plain.left == transformed.left == {"contraction": 1} and 0 < plain.time_share == transformed.time_share < 0.2
    assert (plain.added, transformed.added) == ((), ("fft",))
    torch.testing.assert_close(
        fourier(*(rows := [torch.rand(shape) for shape in WIDE])), CONV(*rows), rtol=1e-3, atol=1e-3
    )


def test_one_operator_spelt_out_leaves_the_others_replaced() -> None:
    found = replaced.of(
        census(lambda x: x.softmax(1) + x, (8, 32)),
        census(lambda x: (x - x.amax(1, True)).exp().sum(1), (8, 32)),
        "program",
    )
    assert found.left == {"softmax": 1} and found.time_share > 0.3


# ---- times of the reference's operators ------------------------------------------------------------------------------


class Marks:
    """Stands for events of a GPU: the clock is one tick further at each record."""

    now = 0

    def __init__(self, enable_timing: bool):
        self.at = 0

    def record(self) -> None:
        Marks.now += 1
        self.at = Marks.now

    def elapsed_time(self, end: Marks) -> float:
        return float(end.at - self.at)


def test_operators_are_timed_in_the_order_in_which_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in (("Event", Marks), ("synchronize", lambda: None), ("_sleep", lambda cycles: None)):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Flatten(0)), torch.randn(2, 4)

    def forward(times: operator_cost.OperatorTimes) -> None:
        with torch.no_grad(), _Timed(times):
            model(x.clone())

    found = operator_cost.measured(forward)
    with torch.no_grad(), evidence.Census() as census:
        model(x)
    assert found == [("contraction", 1.0), ("gelu", 1.0)]
    assert {kind: len(ms) for kind, ms in by_kind(found).items()} == {k: len(v) for k, v in census.work.costs.items()}


def test_a_counter_that_goes_on_is_no_operator() -> None:
    """A batch normalisation in training counts its batches."""
    norm = torch.nn.BatchNorm1d(4)
    with torch.no_grad(), evidence.Census() as census:
        norm(torch.rand(8, 4))
    assert norm.num_batches_tracked == 1 and dict(census.work.calls) == {"batch_norm": 1}
    with evidence.Census() as census:
        torch.zeros(1).add_(1.0)
        torch.zeros(2, dtype=torch.int64).add_(1)
    assert dict(census.work.calls) == {"add": 2}


def test_the_cost_of_a_product_is_its_operations_where_these_take_longer_than_its_bytes() -> None:
    with evidence.Census() as census:
        torch.ones(512, 512) @ torch.ones(512, 512)
        torch.ones(512, 512).exp()
    assert census.work.costs["contraction"] == [2 * 512**3 // operator_cost.FLOPS_PER_BYTE]
    assert census.work.costs["exp"] == [2 * 4 * 512 * 512]


@pytest.mark.gpu
def test_on_a_gpu_the_shares_of_time_are_measured() -> None:
    with Verifier(backend="cuda", options=Options(trials=2, timing_s=1.0)) as verifier:
        verdict = judge(verifier, GELU, "ops.gelu(self.first(x))")
    found = shares(verdict)
    assert verdict.correct and verdict.timing is not None, verdict.message or verdict.no_timing
    assert not found.estimated and 0.05 < found.time_share < 0.95, found
