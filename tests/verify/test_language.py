"""The language that sources are compiled in: PyTorch's own standard, whatever shortcut a build tries first."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dice.verdict import Backend
from dice.verify.build.build import Built, CompileError, Sources, build
from dice.verify.options import default_cache_dir

NO_NVCC = shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists()
BACKENDS = ("emulated", pytest.param("cuda", marks=pytest.mark.skipif(NO_NVCC, reason="there is no nvcc")))

NEWER = {  # C++20 that no older standard knows
    "to_array": ("#include <array>", "auto a = std::to_array({1, 2, 3}); (void)a;"),
    "lerp": ("#include <cmath>", "(void)std::lerp(0.0, 1.0, 0.5);"),
    "erase_if": ("#include <vector>", "std::vector<int> v{1, 2}; std::erase_if(v, [](int x) { return x > 1; });"),
    "cmp_less": ("#include <utility>", "(void)std::cmp_less(-1, 1u);"),
    "assume_aligned": ("#include <memory>", "int one = 0; (void)std::assume_aligned<4>(&one);"),
    "shift_left": ("#include <algorithm>", "int a[2] = {1, 2}; std::shift_left(a, a + 2, 1);"),
    "aggregate": ("struct Pair { int a, b; };", "Pair p(1, 2); (void)p;"),
    "concept": ("template <class T> concept Small = sizeof(T) < 8;", "static_assert(Small<int>);"),
}
DEVICE = """
struct Pair { int a, b; };
template <class T> requires(sizeof(T) == 4) __device__ T twice(T value) { return value + value; }
__global__ void scale_kernel(const float* x, float* y, int n) {
  Pair p(1, 2);
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = twice(x[i]) * p.b;
}
"""
DEVICE_OF_TODAY = """
__global__ void scale_kernel(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i];
}
"""
HOST = """
torch::Tensor scale(torch::Tensor x) {
  HERE
  auto y = torch::empty_like(x);
  scale_kernel<<<1, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  return y;
}
"""
DECLARATION = "torch::Tensor scale(torch::Tensor x);"
FUNCTIONS = (("scale", "scale"),)


def made(backend: Backend, cuda: str, cpp: str = DECLARATION, cuda_cflags: tuple[str, ...] = ()) -> Built:
    sources = Sources((cpp,), (cuda,), FUNCTIONS, cuda_cflags=cuda_cflags)
    return build(sources, backend=backend, cache_dir=default_cache_dir(), arch="sm_90", timeout_s=900)


def with_host_code(declarations: str, statements: str, device: str = DEVICE_OF_TODAY) -> str:
    return declarations + device + HOST.replace("HERE", statements)


@pytest.mark.parametrize(
    "name",
    [name if name in ("to_array", "aggregate") else pytest.param(name, marks=pytest.mark.slow) for name in NEWER],
)
def test_cpp20_in_the_cuda_source_builds(name: str) -> None:
    """Each alone, for one that a shortcut lacks has all the others built without it. Not slow: one of the library, and
    one of the language; the next test has them all."""
    assert made("emulated", with_host_code(*NEWER[name])).headers == "slim"


ALL_NEWER = (
    "\n".join(include for include, _ in NEWER.values()),
    "\n".join(f"{{ {use} }}" for _, use in NEWER.values()),
)


RARE = """
std::queue<int> q; std::stack<int> s; std::forward_list<int> f; std::valarray<int> v; std::condition_variable c;
std::span<const int> w; auto r = std::views::iota(0, 3); (void)r;
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_cpp20_and_the_headers_of_pytorch_build_in_host_device_and_cpp_source(backend: Backend) -> None:
    """In one build, of which each takes nvcc ten seconds."""
    declarations, statements = ALL_NEWER
    cpp = f"{DECLARATION}\n{declarations}\nint other() {{ {statements} return 0; }}"
    device = DEVICE.replace("struct Pair { int a, b; };\n", "")  # the host's declarations have it
    assert device != DEVICE
    assert made(backend, with_host_code(declarations, f"{statements}\n{{ {RARE} }}", device), cpp).headers == "slim"


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_standard_headers_that_pytorch_brings_are_there_without_an_include(backend: Backend) -> None:
    assert made(backend, with_host_code("", RARE)).headers == "slim"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_standard_that_the_source_chose_is_kept(backend: Backend) -> None:
    with pytest.raises(CompileError, match="to_array"):
        made(backend, with_host_code(*NEWER["to_array"]), cuda_cflags=("-std=c++17",))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_in_any_standard_names_its_line(backend: Backend) -> None:
    with pytest.raises(CompileError, match="cuda_source:8.*missing_name") as caught:
        made(backend, with_host_code("", "missing_name = 1;"))
    assert len(caught.value.lines) == 1


WORDS = {
    "standard library under another name": (
        "#include <map>\nnamespace stl = std;",
        "stl::map<int, stl::ostringstream> m; (void)m;",
    ),
    "half in two pieces": ("#define JOIN(a, b) a##b", "JOIN(__ha, lf) h = JOIN(__float2ha, lf)(1.0f); (void)h;"),
    "operators in two pieces": ("#define JOIN(a, b) a##b", "x = x.JOIN(si, n)().JOIN(co, s)();"),
}
REST_OF_THE_WORDS = (
    *(("standard library under another name", whole) for whole in (False, True)),
    *(("half in two pieces", True), ("operators in two pieces", False)),
)


@pytest.mark.slow
@pytest.mark.skipif(NO_NVCC, reason="there is no nvcc")
@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("half in two pieces", False),
        ("operators in two pieces", True),
        *REST_OF_THE_WORDS,
    ],
)
def test_words_that_no_guess_finds_build_for_a_gpu(name: str, whole: bool) -> None:
    """nvcc is spared the parts of the headers whose words the source lacks; a source may use them all the same."""
    declarations, statements = WORDS[name]
    declarations += "\n#ifdef __CUDACC__\n#endif\n" if whole else ""
    made("cuda", with_host_code(declarations, statements))
