"""Constants of kernels: where they are found, and what becomes of variants that are right, wrong, or slower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.files.journal import Journal
from dice.kernel import Kernel
from dice.kernel_form import kernel_file
from dice.optimize.library import Library
from dice.optimize.printing import Printed, problem_of
from dice.optimize.region import Region
from dice.optimize.regions import cut
from dice.optimize.search import Policy, Search
from dice.optimize.trace.capture_graph import export_graph
from dice.optimize.tuning.constants import changed, constants_of, differences
from dice.optimize.tuning.tune import gain, tune
from dice.optimize.writers import KernelWriter, Templates
from dice.problem import Problem
from dice.verdict import Timing, Verdict
from dice.verify import Options, Verifier
from dice.verify.execution.running import Device


def file_of(cuda: str) -> Kernel:
    return Kernel(
        kernel_file(
            cuda=cuda,
            declaration="torch::Tensor f(torch::Tensor x)",
            name="f",
            function="f",
            constructor="",
            arguments="x",
            body="        return ops.f(x)",
        )
    )


NAMED = """
#define TILE 16
constexpr int BLOCK = 256;
static const int kVec = 4, kRows = 2;
constexpr float EPS = 1e-5f;
template <int UNROLL = 8>
__global__ void __launch_bounds__(256) f_kernel(const float* x, float* y, int n) {
    __shared__ float s[TILE][TILE + 1];
    for (int i = 0; i < n; i += BLOCK) y[i] = x[i];
}
torch::Tensor f(torch::Tensor x) {
    auto y = torch::empty_like(x);
    f_kernel<<<(x.numel() + BLOCK - 1) / BLOCK, BLOCK>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""
OF_HOST = """
__global__ void f_kernel(const float* x, float* y, int n) {
    __shared__ float s[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    #pragma unroll 4
    for (int k = 0; k < 12; k++) if (i < n) y[i] = x[i];
}
torch::Tensor f(torch::Tensor x) {
    int n = x.numel(), other = 64;
    const int threads = 256;
    const int blocks = (n + 255) / 256;
    f_kernel<<<blocks, threads>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
}
"""
BARE = """
template <int A, int B> __global__ void g_kernel(float* y) {}
__global__ void f_kernel(const float* x, float* y, int n) { y[0] = x[0]; }
torch::Tensor f(torch::Tensor x) {
    f_kernel<<<(n + 127) / 128, dim3(128)>>>(x.data_ptr<float>(), y.data_ptr<float>(), 100);
    g_kernel<64, 3><<<1, 32>>>(y.data_ptr<float>());
}
void other() { int k = 128; }
"""
OF_DIM3 = """
__global__ void f_kernel(float* y) { y[threadIdx.x] = 0; }
torch::Tensor f(torch::Tensor x) {
    dim3 block(512);
    f_kernel<<<(n + 511) / 512, block>>>(y);
}
"""


@pytest.mark.parametrize(
    ("cuda", "found"),
    [
        (NAMED, {"BLOCK": (256, 2), "TILE": (16, 1), "kVec": (4, 1), "kRows": (2, 1), "UNROLL": (8, 1)}),
        (OF_HOST, {"threads": (256, 4), "unroll": (4, 1)}),
        (
            BARE,
            {
                "block of f_kernel": (128, 3),
                "block of g_kernel": (32, 1),
                "argument 1 of g_kernel": (64, 1),
                "argument 2 of g_kernel": (3, 1),
            },
        ),
        (OF_DIM3, {"block of f_kernel": (512, 3)}),
    ],
)
def test_constants_are_found_as_cuda_is_written(cuda: str, found: dict[str, tuple[int, int]]) -> None:
    constants = constants_of(file_of(cuda))
    assert {one.name: (one.value, len(one.places)) for one in constants} == found
    assert constants[0].is_block


def test_a_changed_constant_is_changed_wherever_it_stands() -> None:
    kernel = file_of(OF_HOST)
    threads = constants_of(kernel)[0]
    variant = changed(kernel, threads, 512)
    assert "threads = 512;" in variant.source and "(n + 511) / 512" in variant.source
    assert "float s[512]" in variant.source and "other = 64" in variant.source and "256" not in variant.source
    assert differences(variant, kernel) == "threads 512 instead of 256"
    assert threads.others == (512, 128)


@pytest.mark.parametrize(
    "source", ["not Python (", "x = 1\n", 'a = "__global__ void f(){}"\nb = 1\nc = "__global__"\n']
)
def test_a_file_without_one_cuda_source_has_no_constants(source: str) -> None:
    assert constants_of(Kernel(source)) == ()


# ---- the walk ------------------------------------------------------------------------------------------------------


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x) * 2


Judge = Callable[[Kernel], Verdict]


class Timed:
    """A verifier whose verdicts come from `judge`, and whose right kernels take what `ms` says of their constants."""

    backend = "cuda"

    def __init__(self, judge: Callable[[Problem, Kernel], Verdict], ms: Callable[[dict[str, int]], float]):
        self.judge, self.ms, self.options = judge, ms, Options()
        self.asked: list[str] = []

    def verify_many(self, pairs: Iterable[tuple[Problem, Kernel]], **how: object) -> Iterator[tuple[int, Verdict]]:
        for index, (problem, kernel) in enumerate(pairs):
            self.asked.append(kernel.source)
            verdict = self.judge(problem, kernel)
            ms = self.ms({one.name: one.value for one in constants_of(kernel)})
            timing = Timing(ms, 8.0, 8.0 / ms, 5) if verdict.correct else None
            yield index, replace(verdict, timing=timing, backend="cuda", device="X")


def region_of(model: nn.Module, *inputs: torch.Tensor) -> tuple[Region, Printed]:
    unit = export_graph(model, inputs, {}, Device("emulated"), own_file=__name__)
    (region,) = cut(unit.graph)
    return region, problem_of(region)


def searched(
    verifier: Any,
    path: Path,
    budget: int,
    region: tuple[Region, Printed],
    *,
    library: Library | None = None,
    writer: KernelWriter | None = None,
    share: float = 1.0,
) -> Search:
    """A search by rule, and the walk from what it found."""
    with Journal(path) as journal:
        search = Search(verifier, "X", Policy(samples=1, tune=budget), library, journal)
        search.resume()
        search.run([region], [writer or Templates()], nothing)
        tune(search, [region], {region[0].key: share}, nothing)
    return search


def nothing(what: str, done: int, total: int) -> None:
    pass


def right(problem: Problem, kernel: Kernel) -> Verdict:
    return Verdict("correct", "done", provenance="construction")


def test_the_walk_goes_on_while_it_is_faster_and_ends_at_its_budget(tmp_path: Path) -> None:
    """The best is three steps away: BLOCK 64 and ITEMS 2."""
    region = region_of(Model(), torch.randn(2048, 64))

    def ms(values: dict[str, int]) -> float:
        return 1.0 + abs(values["BLOCK"].bit_length() - 7) + abs(values["ITEMS"].bit_length() - 2)

    for budget, found in ((40, (64, 2)), (2, (128, 1)), (0, (256, 1))):
        verifier, library = Timed(right, ms), Library(tmp_path / f"library{budget}.sqlite")
        search = searched(verifier, tmp_path / f"{budget}.jsonl", budget, region, library=library)
        best = search.best(region[0].key)
        assert best is not None and best.kernel is not None
        values = {one.name: one.value for one in constants_of(best.kernel)}
        assert (values["BLOCK"], values["ITEMS"]) == found
        assert len(verifier.asked) == len(set(verifier.asked)) <= budget + 1
        assert library.find(region[0].key, "cuda", "X")[0].kernel.id == best.kernel.id
    assert gain(search, region[0].key) == ""


def test_a_killed_walk_goes_on_where_it_was(tmp_path: Path) -> None:
    region = region_of(Model(), torch.randn(2048, 64))

    def ms(values: dict[str, int]) -> float:
        return 1.0 / values["BLOCK"]

    first, again = Timed(right, ms), Timed(right, ms)
    for verifier in (first, again):
        search = searched(verifier, tmp_path / "journal.jsonl", 6, region)
    assert len(first.asked) > 2 and again.asked == []
    assert gain(search, region[0].key).startswith("6 variants tried, BLOCK 1024 instead of 256: 4.00 times as fast")


def test_what_is_far_too_slow_or_small_is_not_tuned(tmp_path: Path) -> None:
    region = region_of(Model(), torch.randn(4, 8))

    def slow(values: dict[str, int]) -> float:
        return 40.0

    def quick(values: dict[str, int]) -> float:
        return 4.0

    for name, share in (("slow", 0.5), ("small", 0.001)):
        verifier = Timed(right, {"slow": slow, "small": quick}[name])
        searched(verifier, tmp_path / f"{name}.jsonl", 8, region, share=share)
        assert len(verifier.asked) == 1


@pytest.mark.parametrize(
    ("budget", "found"),
    [
        (1, ["correct", "wrong"]),
        pytest.param(3, ["correct", "wrong", "correct"], marks=pytest.mark.slow),  # each is a build
    ],
)
@pytest.mark.usefixtures("lasting")
def test_variants_run_and_wrong_ones_are_refused(budget: int, found: list[str], tmp_path: Path) -> None:
    """Under emulation, with the real verifier and times of ours: a kernel that is wrong for blocks of more than 256,
    with which it would win."""
    region = region_of(Model(), torch.randn(64, 8))
    answer = Templates().write(*region, [])
    assert answer is not None and answer.kernel is not None
    kernel = answer.kernel
    spoilt = kernel.source.replace("i >= 512)", "i >= 512 - (BLOCK > 256))")
    assert spoilt != kernel.source

    class Writer(Templates):
        def write(self, region: Region, printed: Printed, before: Any) -> Any:
            answer = super().write(region, printed, before)
            return answer and replace(answer, kernel=Kernel(spoilt))

    def ms(values: dict[str, int]) -> float:
        return 256 / values["BLOCK"]

    with Verifier(backend="emulated", options=Options(trials=1, timing=False)) as real:
        search = searched(Timed(real.verify, ms), tmp_path / "journal.jsonl", budget, region, writer=Writer())
    assert [one.verdict.outcome for one in search.kept[region[0].key]] == found
    best = search.best(region[0].key)
    assert best is not None and best.kernel is not None and "BLOCK = 256" in best.kernel.source
    assert gain(search, region[0].key).endswith("tried, none is faster")
