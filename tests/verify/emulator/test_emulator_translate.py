"""The text rewriting itself, and the sentences for what cannot be emulated."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from emulator_harness import CASES, CompileFailed, compile_cuda
from hypothesis import given
from hypothesis import strategies as st

from dice.verify import emulator
from dice.verify.build.split_source import NotSplit, device_text, host_text, whole_device_text
from dice.verify.emulator.tokens import MOST_GROWTH, ROOM


def test_text_without_cuda_is_untouched() -> None:
    source = 'int a = b << 3 >> 1; // k<<<1, 2>>>(x) __shared__ int s[3];\nconst char* t = R"(__global__ k<<<1>>>())";'
    assert emulator.translate(source) == source


@pytest.mark.parametrize("path", sorted(CASES.glob("*.cu")), ids=lambda path: path.stem)
def test_lines_keep_their_numbers(path: Path) -> None:
    source = path.read_text()
    translated = emulator.translate(source)
    assert translated.count("\n") == source.count("\n")
    marked = source.replace("\n", "\n/*here*/")
    for before, after in zip(marked.split("\n"), emulator.translate(marked).split("\n"), strict=True):
        assert before.startswith("/*here*/") == after.startswith("/*here*/") or "<<<" in before


def test_indices_of_local_arrays_alone_are_checked() -> None:
    line = (
        "float a[4], b[2]; std::array<int, 2> c[2]; int m[2][3]; __shared__ int s[3]; m[0][5] = s[1] + x[2] + t.a[1];"
    )
    translated = emulator.translate(f"__global__ void k(int* x) {{ {line} b[x[0]] = a[1]; f(&a[4]); c[1][0] = 1; }}")
    checked = ('in_array(b, (x[0]), "b")', 'in_array(a, (1), "a")', 'in_array(c, (1), "c")')
    assert translated.count("in_array") == len(checked) and all(text in translated for text in checked)


def test_loops_count_their_rounds_where_lanes_come_together() -> None:
    loops = (
        "if (n) for (int i = 0; i < n; ++i) n -= i; else while (n < 9) ++n; do { ++n; } while (n < 99); for (;;) break;"
    )
    source = f"__global__ void k(int n) {{ {loops} MARK }}"
    assert "dice_loop" not in emulator.translate(source)
    translated = emulator.translate(source.replace("MARK", "__activemask();"))
    assert translated.count("dice_loop.once()") == 4 and translated.count("dice_loop.next()") == 4
    compile_cuda("#include <cuda_runtime.h>\n" + source.replace("MARK", "__activemask();"))


@given(st.text(alphabet="ab<>(){}[];,*&:#\"'\\/ \n_", max_size=60) | st.text(max_size=30))
def test_any_text_survives(text: str) -> None:
    assert emulator.translate(text).count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("__global__ void a(int x) {} static __global__ void __launch_bounds__(256) b() {}", ("a", "b")),
        ("__global__ void only_declared(int x); __device__ void d() {}", ()),
        ("template <typename T> __global__ void t(T* x) { if (x) { } } template <> __global__ void t<int>(int*) {}",
         ("t", "t")),
        ("#define K __global__ void\nK hidden(float* x) { }", ("hidden",)),
        ("void __global__ behind(int n) { }", ("behind",)),
        ('extern "C" __global__ __launch_bounds__(256, 2) void c() {}', ("c",)),
        ("// __global__ void commented() {}\n", ()),
    ],
)  # fmt: skip
def test_kernels_are_found(source: str, names: tuple[str, ...]) -> None:
    assert emulator.kernel_names(source) == names


def test_compiler_errors_point_at_the_candidates_line() -> None:
    source = (
        "#include <cuda_runtime.h>\n__global__ void k(float* x,\n  int n) {\n  __shared__ float s[4],\n    t;\n"
        "  s[0] = n;\n  x[0] = undefined_name;\n}\n"
        "void f(float* x) {\n  k<<<1,\n    2>>>(x, 3);\n  also_undefined();\n}\n"
    )
    with pytest.raises(CompileFailed) as failure:
        compile_cuda(source)
    assert ":7:" in str(failure.value)
    assert ":12:" in str(failure.value)
    assert emulator.explain_failure(str(failure.value)) is None


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ('__global__ void k() { asm volatile("mma.sync 0;"); }', "inline PTX"),
        ("void f() { wmma::bmma_sync(d, a, b, c); }", "tensor-core"),
        ("#include <cublas_v2.h>\n", "cuBLAS"),
        ("void f() { cublasSgemm(h); }", "cuBLAS (cublasSgemm)"),
        ("#include <curand_kernel.h>", "cuRAND"),
        ("void f() { thrust::shuffle(a, b, c); }", "Thrust"),
        ("#include <thrust/set_operations.h>", "Thrust"),
        ("#include <cub/device/device_copy.cuh>", "CUB"),
        ("void f() { cub::DeviceCopy::Batched(a, b, c, d, e, f); }", "CUB"),
        ("typedef cub::BlockRunLengthDecode<int, 32, 4, 8> Runs;", "CUB"),
        ("#include <cuda/pipeline>", "libcu++"),
        ("__global__ void k() { cuda::latch<x> b; }", "libcu++"),
        ("cudaTextureObject_t t;", "textures"),
        ("__global__ void __cluster_dims__(2) k() {}", "clusters"),
        ("__global__ void a() {}\n__global__ void b() { a<<<1, 1>>>(); }", "dynamic parallelism"),
    ],
)
def test_what_cannot_be_emulated_is_named(source: str, word: str) -> None:
    assert word in (emulator.find_unsupported(source) or "")


@pytest.mark.parametrize(
    "source",
    [
        '// asm("bar"); cublasSgemm\n/* #include <curand.h> */ const char* s = "thrust::sort";',
        "auto stream = at::cuda::getCurrentCUDAStream(); c10::cuda::CUDAGuard guard(0);",
        "#include <ATen/cuda/CUDAContext.h>\n#include <c10/cuda/CUDAGuard.h>\n#include <cuda_fp16.h>\n",
        "int asmr = 0; bool cublas_like = true; float wmma_tile;",
        "__global__ void a() {}\nvoid f() { a<<<1, 1>>>(); }",
        "#include <mma.h>\nusing namespace nvcuda; wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;",
        "#include <cub/block/block_reduce.cuh>\nusing R = cub::BlockReduce<float, 128>; auto m = cuda::maximum<>{};",
    ],
)
def test_ordinary_sources_are_not_refused(source: str) -> None:
    assert emulator.find_unsupported(source) is None


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("#include <cusparse.h>\n", "cuSPARSE"),
        ("__global__ void k(unsigned* x) { x[0] = __vaddss4(x[1], x[2]); }", "__vaddss4"),
        ("template <typename T> __global__ void k(T* x) { x[0] = __vaddss4(1, 2); }", "__vaddss4"),
        ("void f() { cudaGraph_t g; }", "cudaGraph_t"),
        ("#include <cooperative_groups.h>\nnamespace cg = cooperative_groups; __global__ void k() {"
         " auto t = cg::tiled_partition<128>(cg::this_thread_block()); t.sync(); }", "more than one warp"),
    ],
)  # fmt: skip
def test_failures_on_real_cuda_names_are_explained(body: str, word: str) -> None:
    with pytest.raises(CompileFailed) as failure:
        compile_cuda("#include <cuda_runtime.h>\n" + body)
    assert word in (emulator.explain_failure(str(failure.value)) or "")


@pytest.mark.parametrize(
    "body",
    [
        "__global__ void k(float* x) { x[0] = __shfl_fancy_sync(1); }",
        "__global__ void k(float* x) { x[0] = __shfl(1, 2); }",
        "#include <nothere.h>\n",
        "int x = ;",
    ],
)
def test_the_candidates_own_errors_are_not_explained_away(body: str) -> None:
    with pytest.raises(CompileFailed) as failure:
        compile_cuda("#include <cuda_runtime.h>\n" + body)
    assert emulator.explain_failure(str(failure.value)) is None


@pytest.mark.parametrize("macro", ["", "-D__CUDA_NO_HALF_OPERATORS__ -D__CUDA_NO_HALF_CONVERSIONS__"])
def test_switched_off_half_operators_are_rejected_as_nvcc_does(macro: str) -> None:
    source = "#include <cuda_fp16.h>\n__global__ void k(half* x) { x[0] = x[1] + half(2.0f); }"
    if not macro:
        assert compile_cuda(source).exists()
        return
    with pytest.raises(CompileFailed):
        compile_cuda(source, *macro.split())


def test_one_dynamic_array_name_has_one_type_as_nvcc_demands() -> None:
    source = (
        "#include <cuda_runtime.h>\n"
        "__global__ void a(int* x) { extern __shared__ int buffer[]; buffer[0] = *x; }\n"
        "__global__ void b(float* x) { extern __shared__ %s; buffer[0] = *x; }\n"
    )
    assert compile_cuda(source % "int buffer[]").exists()
    with pytest.raises(CompileFailed, match=":3:.*conflicting declaration"):
        compile_cuda(source % "float buffer[]")


@pytest.mark.parametrize("flag", ["-DFIRST", "-DSECOND"])
def test_braces_opened_in_both_branches_of_a_condition(flag: str) -> None:
    source = (
        "#include <cuda_runtime.h>\n__global__ void k(float* x, int n) {\n  int i = threadIdx.x;\n#ifdef FIRST\n"
        "  if (i < n - 1) {\n#else\n  if (i < n) {\n#endif\n    x[i] = 1;\n  }\n}\n"
        "void f(float* x) { k<<<1, 2>>>(x, 3); }\n"
    )
    assert compile_cuda(source, flag).exists()


UNFINISHED = {
    "semicolon": ("__global__ void k(float* x) { { __shared__ float tile[32] } x[0] = 1; }", "expected"),
    "parameter": ("__device__ float g(__shared__ float* s, int t) { return s[t]; }", "__shared__"),
    "bracket": ("__global__ void k(float* x) { __shared__ float tile[32; }", "expected"),
    "alignment": ("__global__ void k() { __shared__ __align__(16 float x; }", "expected"),
}


@pytest.mark.parametrize(("source", "said"), UNFINISHED.values(), ids=UNFINISHED)
def test_what_is_not_finished_is_the_compilers_to_say(source: str, said: str) -> None:
    with pytest.raises(CompileFailed, match=said):
        compile_cuda("#include <cuda_runtime.h>\n" + source)


LONG = {
    "openings": "<<<" * 20_000,
    "marks": "__global__ " * 20_000,
    "markers in vain": "__device__ " * 10_000 + "__global__ void k() {}",
    "closed templates": "a>>>(" * 10_000,
    "nested launches": "k<<<" * 5000 + "1" + ">>>()" * 5000,
    "nested functions": "__device__ void f() {" * 3000 + "}" * 3000,
    "shared": "__shared__ " * 20_000,
    "shared by many": "".join(f"__shared__ int a{number};" for number in range(3000)) + "__device__ void f() {}" * 3000,
    "branches": "(" * 10_000 + "\n#if 1\n" * 10_000,
    "raw strings": 'R"(' * 20_000,
    "hashes": "#" * 60_000,
    "macros": "#define #define " * 8000,
    "directives": "template <\n#\n" * 8000 + "namespace\n#\n" * 8000,
    "local arrays": "__global__ void k() { " + "float a[1]; a[0] = 1; " * 3000 + "}",
    "rounds": "__global__ void k() { __activemask(); " + "for (;;) do { " * 2000 + "} while (1); " * 2000 + "}",
    "casts": "cudaLaunchKernel((" * 8000 + ")" * 8000,
    "alignment": "__shared__ __attribute__((" + "aligned(" * 20_000 + ")) float x;",
}


# What each of the translator's passes looks for; the others are variations.
QUICK = ("openings", "nested launches", "nested functions", "shared by many", "branches", "raw strings", "casts")


@pytest.mark.parametrize(
    "text",
    [pytest.param(LONG[name], id=name, marks=() if name in QUICK else pytest.mark.slow) for name in LONG],
)
def test_a_source_is_translated_in_time_that_grows_with_it(text: str) -> None:
    began = time.process_time()
    with contextlib.suppress(emulator.Unsupported):
        assert len(emulator.translate(text)) <= ROOM + (MOST_GROWTH + 1) * len(text)
    for split in (host_text, device_text, whole_device_text):
        with contextlib.suppress(NotSplit):
            split(text)
    emulator.find_unsupported(text)
    assert time.process_time() - began < 10


def test_alignment_may_be_given_as_an_attribute() -> None:
    source = "__global__ void k() { __shared__ __attribute__((aligned(16))) float x[4]; x[0] = 1; }"
    compile_cuda("#include <cuda_runtime.h>\n" + source)


def test_a_name_in_a_very_long_line_of_a_log_is_found() -> None:
    line = "case.cpp:1:2: error: \u2018" + "a::" * 30_000 + "cudaMalloc3D\u2019 was not declared in this scope\n"
    began = time.process_time()
    said = emulator.explain_failure("error: \u2018a" * 20_000 + "\n" + line)
    assert said is not None and "cudaMalloc3D" in said and time.process_time() - began < 5
