"""What nvcc or a GPU refuses is refused here too, and what they take is taken."""

from __future__ import annotations

import re

import pytest
from emulator_harness import EXTENDED_LAMBDA, CompileFailed, Library, call_in_process, compile_cuda, runtime_library

from dice.verify import emulator

REFUSED = {
    "a variable": ("static float table[4];", "y[0] = table[1];", "identifier 'table' is undefined in device code"),
    "a table of constants": ("const float table[2] = {1, 2};", "y[0] = table[n];", "identifier 'table' is undefined"),
    "in a namespace": ("namespace { int count; int other; }", "y[0] = count;", "identifier 'count' is undefined"),
    "in a call": ("float scale;", "y[0] = fmaf(y[1], scale, 1.0f);", "identifier 'scale' is undefined"),
    "a container": ("#include <vector>", "std::vector<float> v(3); y[0] = v[0];", "__host__ function.'std::vector'"),
    "a function": ("float twice(float v) { return 2 * v; }", "y[0] = twice(y[1]);", "__host__ function.'twice'"),
    "declared": ("float twice(float v);", "y[0] = twice(y[1]);", "__host__ function.'twice'"),
    "a template": ("template <class T> T twice(T v) { return 2 * v; }", "y[0] = twice(y[1]);", "'twice'"),
    "constants": ("__constant__ int big[20000];", "y[0] = big[n];", "uses too much global constant data"),
    "many constants": (
        "namespace a { __constant__ double one[5000]; }\n__constant__ double two[5000];",
        "y[0] = a::one[n] + two[n];",
        "uses too much global constant data",
    ),
}
TWICE = "__device__ float twice(float v) { return 2 * v; }\n"
GAIN = "__device__ float gain;\n"
KERNEL = "template <class F> __global__ void with(F f) {}\n"
REFUSED |= {
    "a device function called by the host": (
        TWICE + "float on_host() { return twice(1); }",
        "y[0] = twice(y[1]);",
        "calling a __device__ function.'twice'. from a __host__ function",
    ),
    "a template called by the host": (
        "template <int n> __device__ int times(int v) { return n * v; }\nint on_host() { return times<3>(1); }",
        "y[0] = times<2>(n);",
        "calling a __device__ function.'times'.",
    ),
    "its address": (TWICE + "auto on_host() { return &twice; }", "", "taking the address of a __device__ function"),
    "its address in a launch": (
        TWICE + KERNEL + "void on_host() { with<<<1, 1>>>(twice); }",
        "",
        "taking the address of a __device__ function",
    ),
    "a device variable set by the host": (
        GAIN + "void on_host() { gain = 2; }",
        "y[0] = gain;",
        "a __device__ variable.'gain'. is another one in a __host__",
    ),
    "one in a launch": (GAIN + KERNEL + "void on_host() { with<<<1, 1>>>(gain); }", "", "variable.'gain'. is another"),
    "a structure of 40 KB for a kernel": (
        "struct Table { float values[10000]; };\n"
        "__global__ void reads(Table table, float* y) { y[0] = table.values[1]; }",
        "",
        "Formal parameter space overflowed",
    ),
    "an element of one": (
        "__constant__ float taps[4];\nfloat on_host(int i) { return taps[i] + 1; }",
        "y[0] = taps[n];",
        "variable.'taps'. is another",
    ),
}
TAKEN = {
    "a constant": ("static const float scale = 2; constexpr int table[2] = {1, 2};", "y[0] = scale * table[1];"),
    "a local variable of its name": (
        "static float table[4];",
        "const float* table = y; float a = 1, b = table[0] * a; y[0] = b;",
    ),
    "a loop's": ("static int i;", "for (int i = 0; i < 2; ++i) y[i] = i;"),
    "a member": (
        "static float x; struct P { float x; __device__ float get() const { return x; } };",
        "P p{1}; y[0] = p.x;",
    ),
    "a parameter": (
        "static int n; static int m;\ntemplate <int m> __device__ int f() { return m; }",
        "y[0] = n + f<3>();",
    ),
    "bindings": ("#include <utility>\nstatic int a, b;", "auto [a, b] = std::pair<int, int>(1, n); y[0] = a + b;"),
    "its size": ("static float table[4];", "y[0] = sizeof(table) / sizeof(table[0]);"),
    "a macro": ("static float twice(float v);\n#define twice(v) (2 * (v))", "y[0] = twice(y[1]);"),
    "a lambda": ("static float twice(float v);", "auto twice = [](float v) { return 2 * v; }; y[0] = twice(y[1]);"),
    "an overload": (
        "static double twice(double v) { return 2 * v; }\n__device__ float twice(float v) { return 2 * v; }",
        "y[0] = twice(y[1]);",
    ),
    "marked by a macro": (
        "#define HD __host__ __device__\nHD float twice(float v) { return 2 * v; }",
        "y[0] = twice(y[1]);",
    ),
    "constexpr": ("constexpr int twice(int v) { return 2 * v; }", "y[0] = twice(n);"),
    "of std": (
        "#include <algorithm>\n#include <array>\n#include <limits>\n#include <tuple>",
        "std::array<float, 2> a{1, std::numeric_limits<float>::max()}; auto t = std::make_tuple(1, 2);"
        " y[0] = std::max(a[0], float(std::get<1>(t)));",
    ),
    "for the host": (
        "#include <vector>\nstatic int count;\n__host__ __device__ inline int both(int v) { return v; }\n"
        "int on_host() { std::vector<int> v(++count); return both(v.size()); }",
        "y[0] = both(n);",
    ),
    "left out": ("static float table[4];", "\n#if 0\ny[0] = table[0];\n#endif\n"),
    "symbols of the host's": (
        "#include <utility>\n" + GAIN + "__constant__ float taps[4];\n"
        "template <class T> void put(T& to, const void* from) { cudaMemcpyToSymbol(to, from, sizeof to); }\n"
        "void on_host(float v) { float t[4]; void* at; cudaMemcpyToSymbol(gain, &v, sizeof(gain)); put(taps, t);\n"
        "  cudaMemcpyFromSymbol(t, taps, sizeof taps); cudaGetSymbolAddress(&at, taps[0]); }",
        "y[0] = gain * taps[n];",
    ),
    "its own of that name": (
        TWICE + GAIN + "struct P { float gain; float twice() { return 2 * gain; } };\n"
        "float on_host(P p, float (*twice)(float)) { float gain = p.gain; return twice(gain) + p.twice(); }",
        "y[0] = twice(gain);",
    ),
    "both know it": (
        "__host__ __device__ float twice(float v) { return 2 * v; }\n"
        "constexpr __device__ int thrice(int v) { return 3 * v; }\n"
        "float on_host() { return twice(1) + thrice(1); }",
        "y[0] = twice(thrice(n));",
    ),
    "a kernel's argument": (
        TWICE + "template <float (*f)(float)> __global__ void maps(float* y) { y[0] = f(y[0]); }\n"
        "void on_host(float* y) { maps<twice><<<1, 1>>>(y); auto kernel = maps<twice>; (void)kernel; }",
        "",
    ),
    "constants of both": (
        "__device__ constexpr int width = 4;\n__constant__ const int depth = 2;\n"
        "int on_host() { return width * depth; }",
        "y[0] = width * depth;",
    ),
    "managed": ("__managed__ int count;\nint on_host() { return ++count; }", "y[0] = count;"),
    "a lambda's mark in a comment": (
        KERNEL + "// with<<<1, 1>>>([] __device__(float v) { return v; });\n"
        'const char* said = "[=] __device__ (float v)";\nvoid on_host() { with<<<1, 1>>>([](float v) { return v; }); }',
        "",
    ),
    "an attribute before a mark": (
        "[[nodiscard]] __device__ float twice(float v) { return 2 * v; }",
        "float z[2] = {1, y[0]}; y[0] = twice(z[1]);",
    ),
    "marked lambdas that are left out": (
        "#define AHEAD [] __device__\n#if 0\nauto twice = [] __device__(float v) { return 2 * v; };\n#endif",
        "",
    ),
    "enough constants": ("__constant__ char one[40000];\n__constant__ char two[20000];", "y[0] = one[n] + two[n];"),
}
SOURCE = """#include <cuda_runtime.h>
{before}
__global__ void kernel(float* y, int n) {{ {body} }}
extern "C" int entry() {{ kernel<<<1, 1>>>(nullptr, 0); return 0; }}
"""


MARKED = {
    "for the device": "with<<<1, 1>>>([] __device__(float v) { return twice(v); });",
    "for both": "with<<<1, 1>>>([=] __host__ __device__(float v) { return twice(v); });",
    "by a macro": "with<<<1, 1>>>([&]\nBOTH (float v) { return twice(v); });",
    "kept": "auto kept = [a = 1] __device__(float v) { return a * twice(v); };",
}
MARKED_BEFORE = "#define BOTH __host__ __device__\n" + TWICE + KERNEL


def written(before: str, body: str) -> str:
    return SOURCE.format(before=before, body=body)


@pytest.mark.parametrize(("before", "body", "sentence"), REFUSED.values(), ids=list(REFUSED))
def test_what_nvcc_refuses(before: str, body: str, sentence: str) -> None:
    with pytest.raises(CompileFailed, match=sentence):
        compile_cuda(written(before, body))


@pytest.mark.parametrize(("before", "body"), TAKEN.values(), ids=list(TAKEN))
def test_what_nvcc_takes(before: str, body: str) -> None:
    compile_cuda(written(before, body))


@pytest.mark.parametrize("statement", MARKED.values(), ids=list(MARKED))
def test_a_marked_lambda_takes_the_flag(statement: str) -> None:
    source = written(MARKED_BEFORE + f"void on_host() {{ {statement} }}", "")
    with pytest.raises(CompileFailed, match="annotation on lambda requires --extended-lambda"):
        compile_cuda(source)
    compile_cuda(source, EXTENDED_LAMBDA)


POINTERS = """#include <cuda_runtime.h>
#include <vector>
struct Pair { int n; const float* from; };
static float variable[4];
__device__ float symbol[4], other[4];
namespace inner { __constant__ float constant[4]; }
__managed__ float managed[4];
__global__ void reads(const float* from, float* to) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void reads_pair(Pair pair, float* to) { to[threadIdx.x] = pair.from[threadIdx.x]; }
template <class T> const T* address_of(const T& what) {
  void* place = nullptr;
  cudaGetSymbolAddress(&place, what);
  return static_cast<const T*>(place);
}
extern "C" int entry(int which) {
  float *memory, *pinned, *to, local[4] = {};
  std::vector<float> heap(4);
  cudaMalloc(&memory, 16); cudaMallocHost(&pinned, 16); cudaMalloc(&to, 16);
  const float* from[] = {variable, local, heap.data(), memory, pinned, *address_of(symbol), *address_of(other),
                         *address_of(inner::constant), managed};
  if (which >= 100) reads_pair<<<1, 4>>>(Pair{4, from[which - 100]}, to);
  else reads<<<1, 4>>>(from[which], to);
  return 0;
}
"""


@pytest.mark.parametrize(
    ("which", "what"), [(0, "a variable"), (1, "a local variable"), (2, "the host's memory"), (100, "a variable")]
)
def test_a_pointer_to_the_hosts_memory_is_a_fault(which: int, what: str) -> None:
    death = call_in_process(compile_cuda(POINTERS), "entry", which, guarded=True)
    assert death.fault is not None and death.fault["fault"] == "illegal_address", death
    assert re.search(f"kernel reads\\w* is given (from|pair), a pointer to {what}", death.fault["message"]), death


@pytest.mark.parametrize("which", [3, 4, 5, 6, 7, 8, 103, 105])
def test_a_pointer_to_the_devices_memory_is_none(which: int) -> None:
    death = call_in_process(compile_cuda(POINTERS), "entry", which, guarded=True)
    assert death.returncode == 0, death


COPIES = """#include <cuda_runtime.h>
__device__ float symbol[4];
extern "C" int entry(int kind, int from_device, int to_device) {
  float *one, *other, host[4] = {}, more[4] = {};
  cudaMalloc(&one, 16); cudaMalloc(&other, 16);
  void* place; cudaGetSymbolAddress(&place, symbol);
  const float* from = from_device == 2 ? static_cast<float*>(place) : from_device ? other : more;
  return cudaMemcpy(to_device ? one : host, from, 16, (cudaMemcpyKind)kind);
}
"""


@pytest.mark.parametrize("kind", ["HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice", "Default"])
@pytest.mark.parametrize(("from_device", "to_device"), [(1, 0), (2, 0), (1, 1), (0, 1)])
def test_a_copy_is_what_its_pointers_say(kind: str, from_device: int, to_device: int) -> None:
    """But for one that is named a copy to the host: a tensor of the host's lies on the same heap here."""
    library, runtime = Library(compile_cuda(COPIES)), runtime_library()
    number = ["HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice", "Default"].index(kind)
    runtime.dice_host_bytes(1)
    assert library.call("entry", number, from_device, to_device) == 0
    is_read = (from_device and not to_device) or kind == "DeviceToHost"
    assert runtime.dice_host_bytes(1) == (16 if is_read else 0)


def test_the_device_has_the_name_and_the_size_of_a_real_one() -> None:
    source = """#include <cuda_runtime.h>
    extern "C" int entry(int at) {
      cudaDeviceProp p; cudaGetDeviceProperties(&p, 0);
      return at < 0 ? int(p.totalGlobalMem >> 30) : p.name[at];
    }"""
    library = Library(compile_cuda(source))
    assert bytes(library.call("entry", at) for at in range(11)) == b"NVIDIA H100"
    assert library.call("entry", -1) == 79


MACROS = """
#include <cuda_runtime.h>
#if !defined(__CUDACC_VER_BUILD__) || !defined(__CUDA_ARCH_LIST__) || !defined(__CUDACC_RELAXED_CONSTEXPR__)
#error "this is no nvcc"
#endif
extern "C" int entry() {
#ifdef __CUDA_ARCH__
  return 1;
#else
  return 0;
#endif
}
__global__ void kernel() {
#if __CUDA_ARCH__ < 700
  a GPU that is too old;
#endif
}
"""


def test_macros_are_those_of_nvcc() -> None:
    assert Library(compile_cuda(MACROS)).call("entry") == 0


@pytest.mark.parametrize(
    "text",
    [
        "#ifdef DICE_EMULATED\n#endif",
        "#if __has_include(<dice_emu/core.h>)\n#endif",
        "#if __has_include(<cublas_v2.h>)\n#endif",
        '#include "dice/tensor.h"',
        "int worker = dice_worker_id;",
        "#if defined(__AVX2__)\n#endif",
    ],
)
def test_what_only_the_emulator_has_is_not_run(text: str) -> None:
    assert "Line 1 uses " in (emulator.find_unsupported(text) or "")


def test_names_of_a_programs_own_are_left_alone() -> None:
    text = "#define DICE_SMOOTH 1\nstruct DiceLoss {}; float dice_score(float dice); __global__ void dice_kernel() {}"
    assert emulator.find_unsupported(text) is None
