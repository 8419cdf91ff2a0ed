"""Inline PTX: what the statements compute, and a sentence for those that have no translation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from emulator_harness import Library, call_in_process, compile_cuda

from dice.verify import emulator

pytestmark = pytest.mark.xdist_group("ptx")  # one process builds what they share

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
    "logic of three": (
        'unsigned k; asm("lop3.b32 %0, %1, 12, 10, 0xe8;" : "=r"(k) : "r"(n)); y = k;', (N & 12) | (N & 10) | (12 & 10),
    ),
    "bytes": ('unsigned k; asm("prmt.b32 %0, %1, 0x44332211, 0x4440;" : "=r"(k) : "r"(n)); y = k;', 0x11111100 + N),
    "field": ('unsigned k; asm("bfe.u32 %0, 0x12345678, 8, 8;" : "=r"(k)); y = k;', 0x56),
    "signed field": ('int k; asm("bfe.s32 %0, 0xf0, 4, 4;" : "=r"(k)); y = k;', -1),
    "field put in": ('unsigned k; asm("bfi.b32 %0, 5, 0xff00, 4, 3;" : "=r"(k)); y = k;', 0xFF50),
    "upper half": ('unsigned k; asm("mul.hi.u32 %0, 0x80000000, %1;" : "=r"(k) : "r"(n)); y = k;', N // 2),
    "signed upper half": ('int k; asm("mul.hi.s32 %0, -1, %1;" : "=r"(k) : "r"(n)); y = k;', -1),
    "named": ('asm("add.f32 %[out], %[in], %[in];" : [out] "=f"(y) : [in] "f"(x));', 2 * X),
    "exponential": ('asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));', 2**X),
    "reciprocal": ('asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));', 1 / X),
    "root": ('asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));', X**-0.5),
    "tanh": ('asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));', math.tanh(X)),
    "extremes": ('asm("max.f32 %0, %1, 0f40800000;" : "=f"(y) : "f"(x));', 4.0),
    "lane": ('unsigned k; asm("mov.u32 %0, %%laneid;" : "=r"(k)); y = k + 1;', 1.0),
    "lanes below and from here": (
        'unsigned a, b; asm("mov.u32 %0, %%lanemask_lt;" : "=r"(a)); asm("mov.u32 %0, %%lanemask_ge;" : "=r"(b));'
        " y = 100 * a + __popc(b);", 32.0,
    ),
    "lanes to here and above": (
        'unsigned a, b; asm("mov.u32 %0, %%lanemask_le;" : "=r"(a)); asm("mov.u32 %0, %%lanemask_gt;" : "=r"(b));'
        ' unsigned c; asm("mov.u32 %0, %%lanemask_eq;" : "=r"(c)); y = 100 * a * c + __popc(b);', 131.0,
    ),
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
    assert out[number] == pytest.approx(STATEMENTS[name][1], rel=4e-4 if name == "tanh" else 1e-6)


ATOMICS = """
#include <cuda_runtime.h>
__global__ void k(float* f, int* n, unsigned long long* w) {
  __shared__ int most;
  const int t = threadIdx.x;
  if (t == 0) most = 0;
  __syncthreads();
  asm volatile("red.global.add.f32 [%0], %1;" :: "l"(f), "f"(0.5f) : "memory");
  asm volatile("red.relaxed.gpu.global.max.s32 [%0+4], %1;" :: "l"(n), "r"(t - 70) : "memory");
  int before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(n), "r"(1) : "memory");
  atomicAdd(w, (unsigned long long)before);
  asm volatile("red.shared.max.s32 [%0], %1;" :: "r"((unsigned)__cvta_generic_to_shared(&most)), "r"(t) : "memory");
  __syncthreads();
  int found;
  asm volatile("atom.global.cas.b32 %0, [%1+8], %2, %3;" : "=r"(found) : "l"(n), "r"(7), "r"(most) : "memory");
  if (found == 7) atomicAdd(w + 1, 1ull);
}
extern "C" void h(float* f, int* n, unsigned long long* w) { k<<<1, 64>>>(f, n, w); }
"""


def test_atomic_operations_keep_their_scope() -> None:
    """One for its own block alone is not one for the others."""
    text = 'asm volatile("red.release.{}.global.add.u32 [%0], %1;" :: "l"(y), "r"(1));'
    for scope, name in (("cta", "_block"), ("gpu", ""), ("sys", "_system")):
        translated = emulator.translate("__global__ void k(unsigned* y) { " + text.format(scope) + " }")
        assert f"atomicAdd{name}(" in translated and f"__threadfence{name}();" in translated


def test_atomic_operations() -> None:
    sums, counts, words = np.zeros(1, np.float32), np.array([0, -100, 7], np.int32), np.zeros(2, np.uint64)
    Library(compile_cuda(ATOMICS)).call("h", sums, counts, words)
    assert sums[0] == 32 and counts.tolist() == [64, -7, 63] and words.tolist() == [64 * 63 // 2, 1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('asm("red.global.add.noftz.f16x2 [%0], %1;" :: "l"(y), "r"(n));', "red.global.add"),
        ('asm("atom.global.cas.b32 %0, [%1], %2;" : "=r"(n) : "l"(y), "r"(n));', "atom.global.cas"),
        (
            'asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0}, {%1}, {%2}, {%3};" : "=f"(y) : "r"(n));',
            "mma.sync",
        ),
        ('asm("ld.const.f32 %0, [%1];" : "=f"(y) : "r"(n));', "ld.const"),
        ('asm("cp.async.bulk.commit_group;");', "cp.async.bulk"),
        ('asm("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0}, [%0];" : "+r"(n));', "ldmatrix"),
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


SHARED = """
#include <cuda_runtime.h>
__device__ unsigned at(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__global__ void copies(const float* x, float* y, int n) {
  __shared__ __align__(16) float first[32], second[32];
  const int t = threadIdx.x;
  if (t % 4 == 0) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\\n" :: "r"(at(&first[t])), "l"(x + t));
    asm volatile("cp.async.commit_group;\\n" ::);
    asm volatile("cp.async.ca.shared.global [%0+0], [%1], %2, %3;" :: "r"(at(&second[t])), "l"(x + t), "n"(16), "r"(n));
    asm volatile("cp.async.commit_group;\\n" ::);
    asm volatile("cp.async.wait_group %0;\\n" :: "n"(0));
  }
  __syncthreads();
  float a, b;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(a) : "r"(at(first) + 4 * (31 - t)));
  asm volatile("{ .reg .u64 p; .reg .u32 q; cvta.to.shared.u64 p, %1; cvt.u32.u64 q, p; ld.shared.f32 %0, [q+4]; }"
               : "=f"(b) : "l"(&second[t ^ 1] - 1));
  y[t] = a + 100 * b;
}
__global__ void matrices(const unsigned short* x, unsigned* y) {
  __shared__ __align__(16) unsigned short tile[32][8];
  const int t = threadIdx.x;
  for (int i = 0; i < 8; ++i) tile[t][i] = x[8 * t + i];
  __syncwarp();
  unsigned r[8];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at(tile[t])));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[4]), "=r"(r[5]) : "r"(at(tile[t])));
  for (int i = 0; i < 6; ++i) y[32 * i + t] = r[i];
}
__global__ void beyond(float* y) {
  __shared__ float row[32];
  asm volatile("st.shared.f32 [%0], %1;" :: "r"(at(row) + 128 + 4 * threadIdx.x), "f"(1.0f));
  y[threadIdx.x] = row[0];
}
extern "C" void h_copies(const float* x, float* y, int n) { copies<<<1, 32>>>(x, y, n); }
extern "C" void h_matrices(const unsigned short* x, unsigned* y) { matrices<<<1, 32>>>(x, y); }
extern "C" void h_beyond() {
  float* y;
  cudaMalloc(&y, 128);
  beyond<<<1, 32>>>(y);
}
"""


@pytest.mark.parametrize("order", [0, 1])
def test_shared_memory_is_copied_to_and_read(order: int) -> None:
    """Of the second copy only the first elements come, and the others are zero."""
    library = Library(compile_cuda(SHARED))
    library.runtime.dice_set_order(order)
    x, y = np.arange(1, 33, dtype=np.float32), np.zeros(32, np.float32)
    library.call("h_copies", x, y, 12)
    library.runtime.dice_set_order(0)
    some = np.where(np.arange(32) % 4 < 3, x, 0).reshape(16, 2)[:, ::-1].ravel()
    np.testing.assert_array_equal(y, x[::-1] + 100 * some)


def test_tiles_are_loaded_as_products_take_them() -> None:
    x, y = np.arange(256, dtype=np.uint16), np.zeros(192, np.uint32)
    Library(compile_cuda(SHARED)).call("h_matrices", x, y)
    tiles = x.reshape(4, 8, 8)
    np.testing.assert_array_equal(y[:128].view(np.uint16).reshape(4, 8, 8), tiles)
    np.testing.assert_array_equal(y[128:].view(np.uint16).reshape(2, 8, 8), tiles[:2].transpose(0, 2, 1))


def test_what_lies_beyond_shared_memory_is_a_fault() -> None:
    death = call_in_process(compile_cuda(SHARED), "h_beyond")
    assert death.fault is not None and death.fault["fault"] == "out_of_bounds", death


TILE = """
#include <cuda_runtime.h>
__global__ void product(const unsigned* a, const unsigned* b, float* out) {{
  const int lane = threadIdx.x;
  {sum} d[4] = {{1, 1, 1, 1}};
  asm volatile("mma.sync.aligned.m16n8k{k}.row.col.{s}.{t}.{t}.{s}\\n"
               "  {{%0, %1, %2, %3}},\\n  {{{left}}},\\n  {{{right}}}, {{%0, %1, %2, %3}};\\n"
               : "+{c}"(d[0]), "+{c}"(d[1]), "+{c}"(d[2]), "+{c}"(d[3]) : {given});
  for (int i = 0; i < 4; ++i) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = ({signed})d[i];
}}
extern "C" void entry(const unsigned* a, const unsigned* b, float* out) {{ product<<<1, 32>>>(a, b, out); }}
"""


def _bits(values: np.ndarray, kind: str) -> np.ndarray:
    """The elements of rows as 32-bit registers."""
    if kind == "f16":
        values = values.astype(np.float16)
    elif kind == "bf16":
        values = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        values = values.astype({"tf32": np.float32, "s8": np.int8, "u8": np.uint8}[kind])
    return np.ascontiguousarray(values).view(np.uint32)


@pytest.mark.parametrize(
    ("kind", "k"),
    [("f16", 16), ("f16", 8), ("bf16", 16), ("bf16", 8), ("tf32", 8), ("tf32", 4), ("s8", 32), ("u8", 16)],
)
def test_products_of_tiles(kind: str, k: int) -> None:
    """What lies where is as the PTX manual says: lane 4g + q holds row g, and of a row's registers every fourth."""
    low = 0 if kind == "u8" else -8
    a, b = np.random.default_rng(1).integers(low, 9, (16, k)), np.random.default_rng(2).integers(low, 9, (8, k))
    left, right = _bits(a, kind), _bits(b, kind)
    blocks = right.shape[1] // 4
    registers_a = [left[8 * half : 8 * half + 8, 4 * n : 4 * n + 4].ravel() for n in range(blocks) for half in (0, 1)]
    registers_b = [right[:, 4 * n : 4 * n + 4].ravel() for n in range(blocks)]
    integer = kind in ("s8", "u8")
    names = [f"a[{32 * i} + lane]" for i in range(2 * blocks)] + [f"b[{32 * i} + lane]" for i in range(blocks)]
    source = TILE.format(
        k=k,
        t=kind,
        s="s32" if integer else "f32",
        c="r" if integer else "f",
        sum="int" if integer else "float",
        signed="int" if integer else "float",
        left=", ".join(f"%{4 + i}" for i in range(2 * blocks)),
        right=", ".join(f"%{4 + 2 * blocks + i}" for i in range(blocks)),
        given=", ".join(f'"r"({name})' for name in names),
    )
    out = np.zeros((16, 8), np.float32)
    Library(compile_cuda(source)).call("entry", np.concatenate(registers_a), np.concatenate(registers_b), out)
    np.testing.assert_array_equal(out, a @ b.T + 1)


@pytest.mark.parametrize("head", ["m16n8k16.row.col.f16.f16.f16.f16", "m8n8k4.row.col.f64.f64.f64.f64", "m16n8k16.row"])
def test_other_products_are_named(head: str) -> None:
    text = f"mma.sync.aligned.{head} {{%0}}, {{%0}}, {{%0}}, {{%0}};"
    source = f'__global__ void f() {{ unsigned a = 0; asm("{text}" : "+r"(a)); }}'
    assert "inline PTX (mma.sync" in (emulator.find_unsupported(source) or "")
