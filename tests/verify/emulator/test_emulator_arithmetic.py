"""Math, intrinsics, vector types, atomics and 16-bit floats against numpy and torch."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from emulator_harness import CASES, Library, case, compile_cuda

pytestmark = pytest.mark.xdist_group("arithmetic")  # one process builds what they share


@pytest.fixture
def arithmetic() -> Library:
    return case("arithmetic.cu")


@pytest.fixture
def halves() -> Library:
    return case("halves.cu")


def reference(name: str, x: torch.Tensor) -> torch.Tensor:
    base = name.removeprefix("__").removesuffix("_rn").removesuffix("f")
    special = {
        "exp10": lambda: 10**x,
        "cbrt": lambda: x ** (1 / 3),
        "rcbrt": lambda: x ** (-1 / 3),
        "tgamma": lambda: torch.lgamma(x).exp(),
        "j0": lambda: torch.special.bessel_j0(x),
        "normcdf": lambda: torch.special.ndtr(x),
        "sinpi": lambda: torch.sin(math.pi * x),
        "cospi": lambda: torch.cos(math.pi * x),
        "saturate": lambda: x.clamp(0, 1),
        "frsqrt": lambda: x.rsqrt(),
        "frcp": lambda: 1 / x,
        "fsqrt": lambda: x.sqrt(),
        "fabs": lambda: x.abs(),
        "rint": lambda: x.round(),
        "round": lambda: (x + 0.5).floor(),
        "erfcx": lambda: torch.special.erfcx(x),
    }
    return special[base]() if base in special else getattr(torch, base)(x)


def test_unary_functions(arithmetic: Library) -> None:
    source = (CASES / "arithmetic.cu").read_text()
    definition = source[source.index("#define UNARY") : source.index("__global__ void unary")]
    names = re.findall(r" X\((\w+)\)", definition)
    x = np.random.default_rng(0).uniform(0.05, 3, 500).astype(np.float32)
    y = np.zeros((len(names), 500), np.float32)
    arithmetic.call("h_unary", x, y, 500, len(names))
    for name, row in zip(names, y, strict=True):
        want = reference(name, torch.from_numpy(x).double()).numpy()
        np.testing.assert_allclose(row, want, rtol=3e-5, atol=2e-6, err_msg=name)


FAST = """#include <cuda_runtime.h>
#include <cmath>
template <class F> __device__ void each(const float* x, double* y, int n, F f) {{
  for (int i = threadIdx.x; i < n; i += 32) y[i] = f(x[i]);
}}
{kernels}
float on_host(float v) {{ return expf(v); }}
extern "C" void host(const float* x, double* y, int n) {{ for (int i = 0; i < n; ++i) y[i] = on_host(x[i]); }}
"""
KERNEL = """__global__ void kernel{0}(const float* x, double* y, int n) {{
  each(x, y, n, [](float x) {{ return double({1}); }});
}}
extern "C" void h{0}(const float* x, double* y, int n) {{ kernel{0}<<<1, 32>>>(x, y, n); }}
"""
# What is computed, where, what is right, and between which bounds the largest error lies: absolute, or of the value.
APPROXIMATE = [
    ("__sinf(x)", (-math.pi, math.pi), torch.sin, "absolute", (2**-23, 2**-21)),
    ("__cosf(x)", (-math.pi, math.pi), torch.cos, "absolute", (2**-23, 2**-21)),
    ("__sinf(x)", (800, 1000), torch.sin, "absolute", (1e-5, 1e-4)),
    ("__expf(x)", (-80, 80), torch.exp, "relative", (1e-6, 97 * 2**-23)),
    ("__expf(x)", (-4, 0), torch.exp, "relative", (1e-8, 7 * 2**-23)),
    ("__exp10f(x)", (-30, 30), lambda x: 10**x, "relative", (1e-6, 90 * 2**-23)),
    ("__logf(x)", (0.99, 1.01), torch.log, "absolute", (2**-26, 2**-21.41)),
    ("__log2f(x)", (0.5, 2), torch.log2, "absolute", (2**-25, 2**-22)),
    ("__log10f(x)", (2.5, 900), torch.log10, "relative", (1e-8, 3 * 2**-23)),
    ("__powf(x, 30.5f)", (0.6, 2), lambda x: x**30.5, "relative", (1e-6, 3e-5)),
    ("__tanf(x)", (1.5, 1.57), torch.tan, "relative", (1e-5, 1e-2)),
    ("__tanhf(x)", (-2, 2), torch.tanh, "relative", (2**-13, 2**-10.9)),
    ("__fdividef(x, 3.0f)", (1, 2), lambda x: x / 3, "relative", (2**-26, 2 * 2**-23)),
    ("__fdividef(x, 1e38f)", (1, 2), torch.zeros_like, "absolute", (0, 0)),
    ("__frsqrt_rn(x)", (1, 4), torch.rsqrt, "relative", (0, 2**-23)),
]
EXACT, QUICK = (0, 2**-23), (1e-6, 1e-5)
# The same with -use_fast_math, and without; over (-80, 80).
UNDER_THE_FLAG = {
    "expf(x)": (EXACT, QUICK),
    "::expf(x)": (EXACT, QUICK),
    "exp(x)": (EXACT, QUICK),
    "std::exp(x)": (EXACT, QUICK),
    "exp(double(x))": ((0, 1e-15), (0, 1e-15)),
}


def errors(expressions: list[str], flagged: bool, number: int, x: torch.Tensor) -> np.ndarray:
    kernels = "".join(KERNEL.format(i, expression) for i, expression in enumerate(expressions))
    library = Library(compile_cuda(FAST.format(kernels=kernels), fast=flagged))
    y = np.zeros(len(x))
    library.call(f"h{number}" if number >= 0 else "host", x.float().numpy(), y, len(x))
    return y


@pytest.mark.parametrize("number", range(len(APPROXIMATE)), ids=[f"{row[0]}-{row[1]}" for row in APPROXIMATE])
def test_fast_functions_are_as_inexact_as_a_gpus(number: int) -> None:
    _, (low, high), function, kind, (least, most) = APPROXIMATE[number]
    x = torch.linspace(low, high, 4000).double()
    right = function(x).numpy()
    error = np.abs(errors([row[0] for row in APPROXIMATE], False, number, x) - right)
    found = (error / np.abs(right) if kind == "relative" else error).max()
    assert least <= found <= most


@pytest.mark.parametrize("flagged", [False, True])
@pytest.mark.parametrize("expression", UNDER_THE_FLAG)
def test_fast_math_is_for_device_code_under_its_flag(expression: str, flagged: bool) -> None:
    x = torch.linspace(-80, 80, 4000).double()
    least, most = UNDER_THE_FLAG[expression][flagged]
    y = errors(list(UNDER_THE_FLAG), flagged, list(UNDER_THE_FLAG).index(expression), x)
    assert least <= np.abs(y / x.exp().numpy() - 1).max() <= most


def test_fast_math_leaves_host_code_alone() -> None:
    x = torch.linspace(-80, 80, 4000).double()
    assert np.abs(errors(list(UNDER_THE_FLAG), True, -1, x) / x.exp().numpy() - 1).max() < EXACT[1]


def test_overloads_and_two_argument_functions(arithmetic: Library) -> None:
    x = np.array([0.3, 1.7], np.float32)
    y = np.zeros((2, 24), np.float32)
    arithmetic.call("h_generic", x, y, 2)
    for a, out in zip(x.astype(float), y, strict=True):
        b = 0.75
        inverse = float(torch.special.erfinv(torch.tensor(a / 4, dtype=torch.float64)))
        inverse_c = float(torch.special.erfinv(torch.tensor(1 - a / 4, dtype=torch.float64)))
        quantile = float(torch.special.ndtri(torch.tensor(a / 4, dtype=torch.float64)))
        want = [
            math.exp(a) + math.sqrt(a) + math.log(a) + a * a + 2 * a**b,
            math.exp(a) + a**-0.5 + a + math.erf(a) + math.sin(math.pi * a),
            max(a, b) + min(a, b) + max(a, 0.5) + 1 + 4 + 5 + a,
            2 * a / b + a**b + a * b + 1 + (a + b) * a * b,
            math.hypot(a, b) + math.atan2(a, b) + math.fmod(a, b) - a + math.remainder(a, b) + max(a - b, 0),
            math.sin(a) + 2 * math.cos(a),
            math.sin(a) + 2 * math.cos(a),
            inverse + inverse_c + quantile,
            0,
            2 + 4 + 8 + 16,
            3 + 2.5 + 1.5 + 4,
            math.floor(a) + math.ceil(a) + 2 * round(a) + math.trunc(a),
            math.sqrt(a * a + 5) + 1 / math.hypot(a, 1) + float(np.i0(a)),
            math.nan,
        ]
        np.testing.assert_allclose(out[: len(want)], want, rtol=2e-5, atol=1e-6)


def test_bit_and_conversion_intrinsics(arithmetic: Library) -> None:
    out = np.zeros(15, np.int32)
    arithmetic.call("h_bits", out)
    want = [
        864, 634031, -(1 << 31), 0x77553311, 0x3F800000, 2000 - 200 + 30 + 2, 2**31 - 1, 0, 27, 402, 3002, 804, 4 - 12,
        4 + 5 + 6, 0x3FF00000 + 1,
    ]  # fmt: skip
    np.testing.assert_array_equal(out, want)


def test_vector_types(arithmetic: Library) -> None:
    x = np.arange(100, dtype=np.float32)
    y = np.zeros_like(x)
    arithmetic.call("h_vectors", x, y, 100)
    np.testing.assert_array_equal(y.reshape(-1, 4), x.reshape(-1, 4)[:, ::-1] + [3, 4, 5, 12 + 16])


def test_atomics_of_every_type(arithmetic: Library) -> None:
    i, u, long = np.zeros(10, np.int32), np.zeros(5, np.uint32), np.zeros(2, np.uint64)
    f, d = np.zeros(3, np.float32), np.zeros(1)
    i[5] = -1
    arithmetic.call("h_atomics", i, u, long, f, d)
    n = 2000
    exclusive = int(np.bitwise_xor.reduce(np.arange(n)))
    np.testing.assert_array_equal(i, [n, -2 * n, n - 1, 1 - n, (1 << 20) - 1, ~7, exclusive, 3 * n, n, n])
    np.testing.assert_array_equal(u, [0, 0, 4_000_000_000, 1, 1])
    np.testing.assert_array_equal(long, [n << 33, n - 1])
    np.testing.assert_array_equal(f, [n / 2, 8, n - 1])
    assert d[0] == n / 4


def test_the_last_block_sees_what_the_others_wrote(arithmetic: Library) -> None:
    x = np.random.default_rng(3).integers(0, 5, 64 * 300).astype(np.float32)
    for _ in range(3):
        partial, y = np.zeros(300, np.float32), np.zeros(1, np.float32)
        arithmetic.call("h_last_block", x, partial, y, 300)
        assert y[0] == x.sum()


# ---- 16-bit floats -----------------------------------------------------------------------------------------------


@pytest.fixture(params=["hardware", "software"])
def converting(request: pytest.FixtureRequest) -> Library:
    """With the machine's half conversions where it has them, and without."""
    if request.param == "hardware":
        return case("halves.cu")
    return Library(compile_cuda((CASES / "halves.cu").read_text(), "-U__F16C__"))


def test_all_half_bit_patterns(converting: Library) -> None:
    out = np.zeros(65536, np.float32)
    converting.call("h_round_trip", out)
    np.testing.assert_array_equal(out, np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32))


def test_rounding_to_half_and_bfloat16(converting: Library) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    x[:20_000] = rng.standard_normal(20_000) * 10.0 ** rng.integers(-9, 6, 20_000)
    x[:6] = [65519.996, 65520, 2**-25, 2**-25 * 1.5, -0.0, np.inf]
    h, b, directed = np.zeros(50_000, np.uint16), np.zeros(50_000, np.uint16), np.zeros((50_000, 3), np.float16)
    converting.call("h_from_float", x, h, b, directed, 50_000)
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    finite = ~np.isnan(x)
    np.testing.assert_array_equal(h[finite], want.view(np.uint16)[finite])
    assert np.isnan(h.view(np.float16)[~finite]).all()
    brain = torch.from_numpy(x).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(b[finite], brain[finite])
    inside = np.abs(x) < 65504
    toward_zero, up, down = directed[inside].astype(np.float64).T
    exact = x[inside].astype(np.float64)
    assert (np.abs(toward_zero) <= np.abs(exact)).all()
    assert (up >= exact).all()
    assert (down <= exact).all()
    assert ((up == down) == (want[inside].astype(np.float64) == exact)).all()


def test_doubles_are_rounded_to_half_once(converting: Library) -> None:
    tie = 1 + 2.0**-11  # half-way between two halves
    x = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-40, 3 * 2.0**-11 + 1 - 2.0**-40, 1e300, 2.0**-30])
    h = np.zeros(len(x), np.float16)
    converting.call("h_from_double", x, h, len(x))
    up = 1 + 2.0**-10
    np.testing.assert_array_equal(h, np.array([1, up, 1, -up, up, np.inf, 0], np.float16))


@pytest.mark.parametrize(("entry", "dtype"), [("h_half_operators", torch.half), ("h_bfloat_operators", torch.bfloat16)])
def test_operators_and_functions(halves: Library, entry: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(64).to(dtype), torch.randn(64).to(dtype)
    y = torch.zeros(64, 16, dtype=dtype)
    halves.call(entry, *(t.view(torch.int16).numpy() for t in (a, b, y)), 64)
    x, z = a.float(), b.float()
    want = [x + z, x - z, x * z, x / z, -x, torch.addcmul(x.double(), x.double(), z.double()), torch.maximum(x, z),
            (x < z).float(), x.exp(), z.abs().sqrt(), x + 1, x + z, torch.full((64,), 3.0), x.tanh()]  # fmt: skip
    for column, expected in enumerate(want):
        torch.testing.assert_close(y[:, column], expected.to(dtype), rtol=1e-2 if column in (8, 13) else 0, atol=0)


def test_pairs(halves: Library) -> None:
    x = torch.randint(-8, 8, (16, 2)).half()
    b = torch.randint(-8, 8, (16, 2)).bfloat16()
    y, c = torch.zeros_like(x), torch.zeros_like(b)
    halves.call("h_pairs", *(t.view(torch.int16).numpy() for t in (x, y, b, c)))
    w = x + torch.tensor([1, 2]).half()
    torch.testing.assert_close(y, 2 * (x * w + x[:, :1] + x.flip(1)), rtol=0, atol=0)
    torch.testing.assert_close(c, b + b.flip(1), rtol=0, atol=0)


def test_half_atomics(halves: Library) -> None:
    h, pair, b = torch.zeros(1).half(), torch.zeros(2).half(), torch.zeros(1).bfloat16()
    halves.call("h_half_atomics", *(t.view(torch.int16).numpy() for t in (h, pair, b)))
    assert h.item() == 64
    assert pair.tolist() == [64, 128]
    assert b.item() == 64


# ---- whole kernels -----------------------------------------------------------------------------------------------


def test_typical_kernels_agree_with_torch() -> None:
    library = case("typical.cu")
    torch.manual_seed(0)
    x = torch.randn(64, 1000)
    y = torch.zeros_like(x)
    library.call("h_softmax", x.numpy(), y.numpy(), 64, 1000)
    torch.testing.assert_close(y, x.softmax(1))
    a, b, c = torch.randn(128, 128), torch.randn(128, 128), torch.zeros(128, 128)
    library.call("h_sgemm", a.numpy(), b.numpy(), c.numpy(), 128)
    torch.testing.assert_close(c, a @ b, atol=1e-3, rtol=1e-3)
    x, y = torch.randn(1003), torch.zeros(1003)
    library.call("h_act", x.numpy(), y.numpy(), 1003, 1)
    torch.testing.assert_close(y, torch.nn.functional.gelu(x))
    library.call("h_act", x.numpy(), y.numpy(), 1003, 0)
    torch.testing.assert_close(y, x.relu())
    x, w, bias, y = torch.randn(2, 3, 20, 24), torch.randn(5, 3, 3, 3), torch.randn(5), torch.zeros(2, 5, 20, 24)
    library.call("h_conv", *(t.numpy() for t in (x, w, bias, y)), 2, 3, 20, 24, 5)
    torch.testing.assert_close(y, torch.nn.functional.conv2d(x, w, bias, padding=1), atol=1e-4, rtol=1e-4)
    f, i, h = torch.arange(32.0), torch.arange(1, 33, dtype=torch.int32), torch.arange(32).half()
    library.call("h_misc", f.numpy(), i.numpy(), h.numpy())
    assert (f == 32).all()
    assert (i == 1).all()
    assert (h == 2 * torch.arange(32)).all()


COMPLEX = """
#include <cuComplex.h>
template <class T> __device__ void put(T*& out, T value) { *out++ = value; }
__global__ void each(const cuFloatComplex* f, const cuDoubleComplex* d, cuFloatComplex* of, cuDoubleComplex* od) {
  put(of, cuCaddf(f[0], f[1])); put(of, cuCsubf(f[0], f[1])); put(of, cuCmulf(f[0], f[1]));
  put(of, cuCdivf(f[0], f[1]));
  put(of, cuConjf(f[0])); put(of, cuCfmaf(f[0], f[1], f[1])); put(of, make_cuComplex(cuCabsf(f[0]), cuCrealf(f[1])));
  put(od, cuCadd(d[0], d[1])); put(od, cuCsub(d[0], d[1])); put(od, cuCmul(d[0], d[1])); put(od, cuCdiv(d[0], d[1]));
  put(od, cuConj(d[0])); put(od, cuCfma(d[0], d[1], d[1])); put(od, make_cuDoubleComplex(cuCabs(d[0]), cuCreal(d[1])));
}
extern "C" void entry(const cuFloatComplex* f, const cuDoubleComplex* d, cuFloatComplex* of, cuDoubleComplex* od) {
  each<<<1, 1>>>(f, d, of, od);
}
"""


def test_complex_numbers() -> None:
    d = np.array([1.5 - 2j, -0.25 + 3j])
    f = d.astype(np.complex64)
    of, od = np.zeros(7, np.complex64), np.zeros(7, np.complex128)
    Library(compile_cuda(COMPLEX)).call("entry", f, d, of, od)
    a, b = d
    expected = [a + b, a - b, a * b, a / b, a.conjugate(), a * b + b, complex(abs(a), b.real)]
    np.testing.assert_allclose(od, expected, rtol=1e-14)
    np.testing.assert_allclose(of, expected, rtol=1e-6)


EIGHT_BITS = """
#include <cuda_fp8.h>
template <class T, class Four> __global__ void converts(const float* x, unsigned char* codes, float* back) {
  const int t = threadIdx.x;
  reinterpret_cast<T*>(codes)[t] = T(x[t]);
  __syncthreads();
  back[t] = t % 2 ? static_cast<float>(reinterpret_cast<const T*>(codes)[t])
                  : static_cast<float4>(reinterpret_cast<const Four*>(codes)[t / 4]).x * (t % 4 == 0);
}
extern "C" void entry(const float* x, unsigned char* codes, float* back, int e4m3) {
  if (e4m3) converts<__nv_fp8_e4m3, __nv_fp8x4_e4m3><<<1, 1024>>>(x, codes, back);
  else converts<__nv_fp8_e5m2, __nv_fp8x4_e5m2><<<1, 1024>>>(x, codes, back);
}
"""


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits_round_as_pytorch_rounds_them(kind: torch.dtype) -> None:
    chance = torch.Generator().manual_seed(1)
    x = torch.randn(1024, generator=chance) * torch.exp2(torch.randint(-12, 7, (1024,), generator=chance))
    x = x.clamp(-448, 448)
    x[:256] = torch.arange(256, dtype=torch.uint8).view(kind).float().nan_to_num(0, posinf=0, neginf=0)
    codes, back = torch.zeros(1024, dtype=torch.uint8), torch.zeros(1024)
    e4m3 = int(kind == torch.float8_e4m3fn)
    Library(compile_cuda(EIGHT_BITS)).call("entry", x.numpy(), codes.numpy(), back.numpy(), e4m3)
    expected = x.to(kind)
    torch.testing.assert_close(codes, expected.view(torch.uint8), rtol=0, atol=0)
    read = torch.arange(1024) % 4 != 2
    torch.testing.assert_close(back[read], expected.float()[read], rtol=0, atol=0)
