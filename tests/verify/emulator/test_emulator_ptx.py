"""Inline PTX: what the statements compute, and a sentence for those that have no translation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from emulator_harness import Library, compile_cuda

from dice.verify import emulator

X, N = 2.75, 13  # what each statement is given
STATEMENTS = {
    "arithmetic": ('asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(x), "f"(2.0f), "f"(1.0f));', 2 * X + 1),
    "constants": ('asm("mul.f32 %0, %1, 0f40000000;" : "=f"(y) : "f"(x));', 2 * X),
    "immediate": ('int k; asm("add.s32 %0, %1, -3;" : "=r"(k) : "r"(n)); y = k;', N - 3),
    "constraint n": ('int k; asm("add.s32 %0, %1, %2;" : "=r"(k) : "r"(n), "n"(5)); y = k;', N + 5),
    "read and written": ('y = x; asm volatile("add.f32 %0, %0, %1;" : "+f"(y) : "f"(x));', 2 * X),
    "several": (
        'asm("{\n\t.reg .f32 t;\n\tmul.f32 t, %1, %1;\n\tsub.f32 %0, t, %1;\n}" : "=f"(y) : "f"(x));', X * X - X,
    ),
    "load": ('asm volatile("ld.global.nc.L1::no_allocate.f32 %0, [%1+4];" : "=f"(y) : "l"(p));', 7.0),
    "vector": (
        'float a, b, c, d; asm("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"'
        ' : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(p));'
        " y = a + 10 * b + 100 * c + 1000 * d;", 2.75 + 70 + 800 + 9000,
    ),
    "store": ('asm volatile("st.global.cs.f32 [%0], %1;" :: "l"(q), "f"(5.0f) : "memory"); y = *q;', 5.0),
    "predicate": (
        'y = 1; asm("{ .reg .pred p; setp.gt.s32 p, %1, 20; @p mov.f32 %0, 0f40000000; @!p mov.f32 %0, 0f40400000; }"'
        ' : "+f"(y) : "r"(n));', 3.0,
    ),
    "select": (
        'asm("{ .reg .pred p; setp.lt.f32 p, %1, 0f40400000; selp.f32 %0, %1, 0f00000000, p; }"'
        ' : "=f"(y) : "f"(x));', X,
    ),
    "convert": ('int k; asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(k) : "f"(x)); y = k;', 2.0),
    "convert to nearest": ('int k; asm("cvt.rni.s32.f32 %0, %1;" : "=r"(k) : "f"(x)); y = k;', 3.0),
    "bits": ('unsigned k; asm("mov.b32 %0, %1;" : "=r"(k) : "f"(1.0f)); y = k == 0x3f800000u;', 1.0),
    "wide": ('long long k; asm("mul.wide.s32 %0, %1, %2;" : "=l"(k) : "r"(n << 20), "r"(1 << 20)); y = k >> 40;', N),
    "shift": ('unsigned k; asm("shl.b32 %0, %1, 40;" : "=r"(k) : "r"(n)); y = k;', 0.0),
    "logic": ('unsigned k; asm("and.b32 %0, %1, 6;" : "=r"(k) : "r"(n)); y = k;', N & 6),
    "named": ('asm("add.f32 %[out], %[in], %[in];" : [out] "=f"(y) : [in] "f"(x));', 2 * X),
    "exponential": ('asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));', 2**X),
    "reciprocal": ('asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));', 1 / X),
    "root": ('asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));', X**-0.5),
    "tanh": ('asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));', math.tanh(X)),
    "extremes": ('asm("max.f32 %0, %1, 0f40800000;" : "=f"(y) : "f"(x));', 4.0),
    "lane": ('unsigned k; asm("mov.u32 %0, %%laneid;" : "=r"(k)); y = k + 1;', 1.0),
    "an if without braces": ('if (n > 100) asm("mov.f32 %0, %1;" : "=f"(y) : "f"(x)); else y = 4;', 4.0),
    "barriers and hints": (
        'asm volatile("bar.sync 0;"); asm volatile("membar.gl;" ::: "memory");'
        ' asm("prefetch.global.L2 [%0];" :: "l"(p));'
        ' asm volatile("" ::: "memory"); y = x;', X,
    ),
}  # fmt: skip
SOURCE = """
__global__ void k{number}(const float* p, float* q, float* out, float x, int n) {{
  float y = 0;
  {statement}
  out[{number}] = y;
}}
extern "C" void h{number}(const float* p, float* q, float* out, float x, int n) {{
  k{number}<<<1, 1>>>(p, q, out, x, n);
}}
"""


@pytest.fixture(scope="module")
def library() -> Library:
    texts = (statement.replace("\n", "\\n").replace("\t", "\\t") for statement, _ in STATEMENTS.values())
    return Library(
        compile_cuda(
            "#include <cuda_runtime.h>\n"
            + "".join(SOURCE.format(number=i, statement=text) for i, text in enumerate(texts))
        )
    )


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement(library: Library, name: str) -> None:
    given, scratch = np.array([X, 7, 8, 9], np.float32), np.zeros(4, np.float32)
    out = np.full(len(STATEMENTS), np.nan, np.float32)
    number = list(STATEMENTS).index(name)
    library.call(f"h{number}", given, scratch, out, X, N)
    assert out[number] == pytest.approx(STATEMENTS[name][1], rel=1e-6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0}, {%1}, {%2}, {%3};" : "=f"(y) : "r"(n));',
            "mma.sync",
        ),
        ('asm("ld.shared.f32 %0, [%1];" : "=f"(y) : "r"(n));', "ld.shared"),
        ('asm("fma.rn.f32 %0, %1;" : "=f"(y) : "f"(x));', "fma.rn.f32"),
        ('asm("mov.f32 %0, %7;" : "=f"(y) : "f"(x));', "%7"),
        ('asm("mov.f32 %0, %1;" : "=q"(y) : "f"(x));', '"=q"'),
        ('asm(TEXT : "=f"(y));', "no string"),
        ("asm(", "cannot be read"),
        ('asm("" : [', "cannot be read"),
        ('asm("" : [y] );', "cannot be read"),
        ('asm("mov.f32;");', "mov.f32"),
        ('asm("{ .reg .pred p; setp.lt.f32 p; }");', "cannot be read"),
    ],
)
def test_what_has_no_translation_is_named(text: str, told: str) -> None:
    source = f"__global__ void k(float y, float x, int n) {{\n{text}\n}}"
    reason = emulator.find_unsupported(source)
    assert reason is not None and "Line 2 uses inline PTX" in reason and told in reason
