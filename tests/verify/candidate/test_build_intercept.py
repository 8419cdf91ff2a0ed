"""`load_inline` and `load` as the candidate sees them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.cpp_extension as cpp_extension

from dice.verify.build.build import Built, CompileError, Sources, build
from dice.verify.candidate import intercept
from dice.verify.options import default_cache_dir

CPP = "torch::Tensor negate(torch::Tensor x);"
CUDA = """
__global__ void negate_kernel(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = -x[threadIdx.x]; }
torch::Tensor negate(torch::Tensor x) {
  auto y = x.clone();
  negate_kernel<<<1, 64>>>(y.data_ptr<float>(), y.numel());
  return y;
}
"""
STOCK = {name: inspect.signature(getattr(cpp_extension, name)) for name in ("load_inline", "load")}


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Sources, str]]]:
    """What was asked to be built."""
    for name in ("load_inline", "load", "CUDAExtension", "CppExtension", "BuildExtension", "CUDA_HOME"):
        monkeypatch.setattr(cpp_extension, name, getattr(cpp_extension, name))
    seen: list[tuple[Sources, str]] = []

    def build_here(sources: Sources, name: str) -> Built:
        seen.append((sources, name))
        return build(sources, backend="emulated", cache_dir=default_cache_dir())

    intercept.install(build_here)
    yield seen


def test_a_kernelbench_answer_runs_unchanged(builds: list[tuple[Sources, str]]) -> None:
    from torch.utils.cpp_extension import load_inline

    module = load_inline(
        name="negate_ext",
        cpp_sources=[CPP],
        cuda_sources=[CUDA],
        functions=["negate"],
        verbose=True,
        with_cuda=True,
        extra_cflags=["-O3"],
        extra_cuda_cflags=["-O3", "--use_fast_math", "-gencode=arch=compute_80,code=sm_80"],
        extra_ldflags=["-lcudart"],
        build_directory="/nonexistent",
    )
    x = torch.randn(40)
    torch.testing.assert_close(module.negate(x), -x)
    ((sources, name),) = builds
    assert (name, sources.cpp, sources.cuda, sources.functions) == (
        "negate_ext",
        (CPP,),
        (CUDA,),
        (("negate", "negate"),),
    )
    assert Sources.from_json(json.loads(json.dumps(sources.to_json()))) == sources


@pytest.mark.parametrize("functions", ["negate", ["negate"], {"negate": "the docstring"}])
def test_functions_may_be_a_name_a_list_or_a_dict(builds: list[Any], functions: Any) -> None:
    module = cpp_extension.load_inline("ext", CPP, CUDA, functions=functions)
    assert module.negate(torch.ones(1)).item() == -1
    assert (functions["negate"] if isinstance(functions, dict) else "negate") in module.negate.__doc__


def test_the_same_source_may_be_loaded_twice(builds: list[Any]) -> None:
    first, second = (cpp_extension.load_inline(name, CPP, CUDA, functions=["negate"]) for name in ("one", "two"))
    assert first.negate(torch.ones(1)).item() == second.negate(torch.ones(1)).item() == -1
    assert first is not second


def test_wrong_functions_argument_is_pytorchs_error(builds: list[Any]) -> None:
    with pytest.raises(ValueError, match="Expected 'functions' to be a list or dict"):
        cpp_extension.load_inline("ext", CPP, CUDA, functions=("negate",))


def test_load_takes_files(builds: list[Any], tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(
        f"#include <torch/extension.h>\n{CPP}\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("negate", &negate); }\n'
    )
    (tmp_path / "kernel.cu").write_text("#include <torch/types.h>\n" + CUDA)
    module = cpp_extension.load("ext", [str(tmp_path / "main.cpp"), str(tmp_path / "kernel.cu")])
    assert module.negate(torch.ones(2)).tolist() == [-1, -1]


def test_a_refused_source_raises_what_the_compiler_said(builds: list[Any]) -> None:
    with pytest.raises(CompileError, match="klone"):
        cpp_extension.load_inline("ext", CPP, CUDA.replace("clone", "klone"), functions=["negate"])


def test_a_file_that_asks_for_a_toolkit_finds_one(monkeypatch: pytest.MonkeyPatch, builds: list[Any]) -> None:
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)  # as it is where there is no nvcc
    intercept.install(lambda sources, name: pytest.fail("nothing is built"))
    assert cpp_extension.CUDA_HOME
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", "/opt/cuda")
    intercept.install(lambda sources, name: pytest.fail("nothing is built"))
    assert cpp_extension.CUDA_HOME == "/opt/cuda"


def test_setuptools_builds_are_refused_in_words(builds: list[Any]) -> None:
    with pytest.raises(RuntimeError, match="load_inline"):
        cpp_extension.CUDAExtension("ext", ["a.cu"])


@pytest.mark.parametrize("name", ["load_inline", "load"])
def test_every_argument_of_pytorchs_is_accepted(builds: list[Any], name: str) -> None:
    ours = inspect.signature(getattr(cpp_extension, name))
    assert list(ours.parameters) == list(STOCK[name].parameters)
