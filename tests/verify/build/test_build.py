"""Building: what is accepted, what is refused with which words, and that results are kept by content alone."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch

from dice.verify.build.build import (
    Built,
    CompileError,
    CompileTimeout,
    LinkError,
    Sources,
    ToolchainError,
    Unsupported,
    build,
)
from dice.verify.build.cache import Cache, content_key
from dice.verify.candidate import binding
from dice.verify.options import default_cache_dir
from tests.conftest import PATIENCE_S, ROOT

CACHE = default_cache_dir()
KERNEL = """
__global__ void scale_kernel(const float* x, float* y, float s, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * s;
}
torch::Tensor scale(torch::Tensor x, float s) {
  auto y = torch::empty_like(x);
  scale_kernel<<<(x.numel() + 63) / 64, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), s, x.numel());
  return y;
}
"""
DECLARATION = "torch::Tensor scale(torch::Tensor x, float s);"
FUNCTIONS = (("scale", "scale"),)


def emulate(
    cuda: str = KERNEL, cpp: str = DECLARATION, functions: tuple[tuple[str, str], ...] = FUNCTIONS, **more: Any
) -> Built:
    return build(Sources((cpp,), (cuda,), functions), backend="emulated", cache_dir=CACHE, **more)


def fresh(text: str) -> str:
    """The same source, never seen by a cache."""
    return f"{text}\n// {uuid.uuid4()}\n"


def test_equal_content_is_built_once_whatever_its_name() -> None:
    source = fresh(KERNEL)
    first, second, other = emulate(source, name="a"), emulate(source, name="b"), emulate(fresh(KERNEL), name="a")
    assert (first.cached, second.cached, other.cached) == (False, True, False)
    assert first.path == second.path != other.path


def test_candidates_that_share_a_name_keep_their_own_code() -> None:
    sources = [KERNEL.replace("* s;", f"* s * {factor};") for factor in (1, 2, 3)]
    modules = [binding.load(emulate(source, name="custom_ops"), "custom_ops") for source in sources]
    assert [module.scale(torch.ones(1), 1.0).item() for module in modules] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("cuda", "cpp", "line"),
    [
        (KERNEL.replace("int i = blockIdx.x", "int i = blokIdx.x"), DECLARATION, "cuda_source:3"),
        (KERNEL.replace("return y;", "return y"), DECLARATION, "cuda_source:9"),
        (KERNEL, "torch::Tensor scale(torch::Tensor x, flot s);", "cpp_source:1"),
        (KERNEL, DECLARATION + "\n\ntorch::Tensor other(Tensr x) { return x; }", "cpp_source:3"),
    ],
)
def test_errors_name_the_line_of_the_candidates_own_source(cuda: str, cpp: str, line: str) -> None:
    with pytest.raises(CompileError) as caught:
        emulate(cuda, cpp)
    assert caught.value.lines[0].startswith(line)
    assert not isinstance(caught.value, LinkError)


def test_bound_function_must_be_declared_in_the_cpp_source() -> None:
    with pytest.raises(CompileError, match="scale.*not declared"):
        emulate(KERNEL, "")
    with pytest.raises(CompileError, match="missing.*not declared"):
        emulate(KERNEL, DECLARATION, (("missing", ""),))


def test_cuda_source_does_not_see_what_only_the_cpp_source_defines() -> None:
    cpp = "torch::Tensor helper(torch::Tensor x);" + DECLARATION
    with pytest.raises(CompileError, match="helper"):
        emulate(KERNEL.replace("return y;", "return helper(y);"), cpp)
    with pytest.raises(CompileError, match="FACTOR"):
        emulate(KERNEL.replace("* s;", "* FACTOR;"), "#define FACTOR 2\n" + DECLARATION)


def test_cuda_helpers_need_their_header_as_with_pytorch() -> None:
    using_stream = KERNEL.replace("64>>>", "64, 0, at::cuda::getCurrentCUDAStream()>>>")
    with pytest.raises(CompileError):
        emulate(using_stream)
    assert emulate("#include <ATen/cuda/CUDAContext.h>\n" + using_stream).headers == "slim"


def test_other_signature_than_declared_is_an_undefined_symbol() -> None:
    built = emulate(KERNEL, "torch::Tensor scale(torch::Tensor x, double s);")
    with pytest.raises(binding.LoadError, match=r"undefined symbol: scale\(at::Tensor, double\)"):
        binding.load(built)


def test_two_definitions_of_one_function_do_not_link() -> None:
    definition = "torch::Tensor twice(torch::Tensor x) { return x; }\n"
    with pytest.raises(LinkError, match="multiple definition"):
        emulate(KERNEL + definition, definition + DECLARATION)


def test_what_cannot_be_emulated_is_unsupported_not_wrong() -> None:
    with pytest.raises(Unsupported, match="cuRAND"):
        emulate("#include <curand_kernel.h>\n" + KERNEL)


@pytest.mark.slow  # test_builds.py holds that a bomb is a verdict on the kernel
def test_macro_bomb_ends_in_time() -> None:
    bomb = "#define A x,x,x,x,x,x,x,x,x,x\n"
    for name, previous in zip("BCDEFGH", "ABCDEFG", strict=True):
        bomb += f"#define {name} {','.join([previous] * 10)}\n"
    marker = f"bomb_{uuid.uuid4().hex}"
    with pytest.raises(CompileTimeout):
        emulate(bomb + f"int {marker}[] = {{ H }};\n" + KERNEL.replace("x[i]", "1"), timeout_s=3)


def test_missing_compiler_is_the_machines_fault(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from dice.verify.build.build import *\n"
        f"try: build(Sources((), ('int x;',)), backend='emulated', cache_dir=Path({str(tmp_path)!r}))\n"
        "except ToolchainError as error: print(error)\n"
    )
    environment = os.environ | {"PATH": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("CXX", None)
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "g++" in done.stdout or "compiler" in done.stdout
    assert ToolchainError.__name__ not in done.stderr


def _build_and_run(source: str) -> tuple[bool, float]:
    built = emulate(source)
    return built.cached, binding.load(built).scale(torch.ones(1), 4.0).item()


@pytest.mark.slow
def test_two_processes_may_build_the_same_at_once() -> None:
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        results = list(pool.map(_build_and_run, [fresh(KERNEL)] * 2))
    assert [value for _, value in results] == [4.0, 4.0]


def test_killed_builder_leaves_nothing_that_counts_as_built() -> None:
    source = fresh(KERNEL)
    worker = multiprocessing.get_context("spawn").Process(target=_build_and_run, args=(source,))
    worker.start()
    scratch = CACHE / "extensions"
    before = {path.name for path in scratch.glob("tmp-*")} if scratch.exists() else set()
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and worker.is_alive():
        if {path.name for path in scratch.glob("tmp-*")} - before:
            break
        time.sleep(0.005)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert _build_and_run(source)[1] == 4.0


def test_cache_drops_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=2500, trim_interval_s=0)
    first, second, third = (content_key([name]) for name in ("first", "second", "third"))
    for used, key in enumerate((first, second, third)):
        with cache.scratch() as scratch:
            entry = scratch / "entry"
            entry.mkdir()
            (entry / "data").write_bytes(b"x" * 1000)
            published = cache.publish(key, entry)
        os.utime(published, (used, used))
        if key == second:
            assert cache.find(first) is not None  # used now, so the second is the oldest
    assert cache.find(second) is None
    assert cache.find(first) is not None and cache.find(third) is not None
    assert not list(tmp_path.glob("tmp-*"))
