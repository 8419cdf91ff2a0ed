"""The split build: host and device code compiled apart must be what nvcc makes of the whole."""

from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path

import pytest
import torch
from shadow_cases import KERNEL_CASES
from shadow_cases_host import HOST_CASES
from split_cases import CASES, SplitCase
from test_shadow_kernels import Case, same, sources

from dice.verify.build import build, split_build
from dice.verify.build.object_files import NotElf, symbols
from dice.verify.build.split_source import NotSplit, device_text, host_text
from dice.verify.candidate import binding
from dice.verify.options import default_cache_dir

NO_NVCC = shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists()
needs_nvcc = pytest.mark.skipif(NO_NVCC, reason="there is no nvcc")
CPP = "torch::Tensor run(torch::Tensor x);"


def split_sources(case: SplitCase) -> build.Sources:
    flags = ("--extended-lambda",) if "__device__ (" in case.cuda else ()
    return build.Sources((CPP,), (case.cuda,), (("run", "run"),), cuda_cflags=flags)


def build_cuda(wanted: build.Sources) -> build.Built:
    return build.build(wanted, backend="cuda", cache_dir=default_cache_dir())


QUICK = ("constant_symbol",)


@needs_nvcc
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in QUICK else pytest.mark.slow) for case in CASES],
)
def test_case_takes_the_path_it_should(case: SplitCase) -> None:
    assert build_cuda(split_sources(case)).headers == case.headers


@pytest.mark.slow
@needs_nvcc
def test_errors_are_nvccs_own_and_name_the_line() -> None:
    source = CASES[0].cuda.replace("2 * x[i]", "2 * y_of[i]")
    with pytest.raises(build.CompileError, match="cuda_source:3.*y_of"):
        build_cuda(build.Sources((CPP,), (source,), (("run", "run"),)))
    source = CASES[0].cuda.replace("empty_like(x)", "empty_like(z)")
    with pytest.raises(build.CompileError, match="cuda_source:5.*z"):
        build_cuda(build.Sources((CPP,), (source,), (("run", "run"),)))


def test_lines_keep_their_numbers() -> None:
    for case in CASES:
        if case.headers == "split":
            host, device = host_text(case.cuda), device_text(case.cuda)
            assert host.count("\n") == case.cuda.count("\n"), case.name
            assert device is None or device.count("\n") == case.cuda.count("\n"), case.name


def test_neither_half_holds_the_others_code() -> None:
    case = next(case for case in CASES if case.name == "constant_symbol")
    host, device = host_text(case.cuda), device_text(case.cuda)
    assert device is not None
    assert "table[0]" not in host and "<<<" not in host and "cudaMemcpyToSymbol" in host
    assert "table[0]" in device and "torch" not in device and "cudaMemcpyToSymbol" not in device


def test_a_source_without_kernels_is_not_split() -> None:
    with pytest.raises(NotSplit):
        host_text("torch::Tensor run(torch::Tensor x) { return x; }")


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 100, b"MZ" * 100])
def test_damaged_objects_are_noticed(data: bytes) -> None:
    with pytest.raises(NotElf):
        list(symbols(data))


# ---- on a GPU ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["split", pytest.param("whole", marks=pytest.mark.slow)])
def path(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Which way libraries are built; each has a cache of its own."""
    if request.param == "whole":
        monkeypatch.setattr(split_build, "attempt", lambda *_: None)
    monkeypatch.setattr(build, "recipe_hash", lambda: request.param)
    return str(request.param)


CARRIES = """
#include <torch/extension.h>
#include <cuda_runtime.h>
__device__ float symbol[64];
__global__ void k(float* x) { x[threadIdx.x] = symbol[threadIdx.x]; }
void carry(int64_t way) {
  static char host[4096];
  switch (way) {
    case 0: cudaMemcpy(host, host + 1024, 1000, cudaMemcpyDeviceToHost); break;
    case 1: cudaMemcpyAsync(host, host + 1024, 1000, cudaMemcpyDeviceToHost, nullptr); break;
    case 2: cudaMemcpy2D(host, 100, host + 1024, 100, 50, 20, cudaMemcpyDeviceToHost); break;
    case 3: cudaMemcpyFromSymbol(host, symbol, 256); break;
    case 4: cudaMemcpy(host, host + 1024, 1000, cudaMemcpyHostToDevice); break;
    case 5: cudaMemcpy(host, host + 1024, 1000, cudaMemcpyHostToHost); break;
    case 6: cudaMemcpy(host, host + 1024, 1000, cudaMemcpyDefault); break;
  }
}
"""


@needs_nvcc
def test_what_goes_to_the_host_is_counted(path: str) -> None:
    """Also where there is no driver: the calls are counted before they fail. In a process of its own: another may hold
    the emulator's functions of the same names."""
    wanted = build.Sources(("void carry(int64_t way);",), (CARRIES,), (("carry", "carry"),))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        counted = pool.apply(carried, (build_cuda(wanted), 7))
    assert [2 * count for count in counted] == [1000, 1000, 1000, 256, 0, 0, 0]


def carried(built: build.Built, ways: int) -> list[int]:
    module, counted = binding.load(built), []
    for way in range(ways):
        binding.reset_launches()
        module.carry(way)
        counted.append(binding.host_elements())
    return counted


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_runs(case: SplitCase, path: str) -> None:
    built = build_cuda(split_sources(case))
    assert built.headers == (case.headers if path == "split" else "slim")
    module = binding.load(built)
    binding.reset_launches()
    torch.manual_seed(0)
    x = torch.randn(1000, device="cuda")
    expected = case.expect(x.clone())
    torch.testing.assert_close(module.run(x), expected)
    assert set(binding.launches()) == set(case.kernels)
    torch.testing.assert_close(module.run(x) if case.name != "device_counter" else expected, expected)
    torch.cuda.synchronize()


@pytest.mark.gpu
def test_muted_kernels_do_nothing(path: str) -> None:
    module = binding.load(build_cuda(split_sources(CASES[0])))
    x = torch.randn(1000, device="cuda")
    binding.reset_launches()
    binding.set_muted(True)
    try:
        assert not torch.equal(module.run(x), 2 * x)
    finally:
        binding.set_muted(False)
    assert binding.launches() == {"k": 1}
    assert torch.equal(module.run(x), 2 * x)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*KERNEL_CASES, *HOST_CASES], ids=lambda case: case.name)
def test_shadow_case_runs(case: Case, path: str) -> None:
    module = binding.load(build_cuda(sources(case)))
    torch.manual_seed(1)
    arguments = tuple(item.cuda() if isinstance(item, torch.Tensor) else item for item in case.arguments())
    copies = tuple(item.clone() if isinstance(item, torch.Tensor) else item for item in arguments)
    binding.reset_launches()
    same(_on_gpu(case.run(module, *arguments)), _on_gpu(case.expect(*copies)), case.tolerance)
    assert set(binding.launches()) == set(case.kernels)


def _on_gpu(value: object) -> object:
    """Some cases say what they expect on the CPU."""
    if isinstance(value, list | tuple):
        return type(value)(_on_gpu(item) for item in value)
    return value.cuda() if isinstance(value, torch.Tensor) else value
