"""CUB's reductions and scans inside a block and a warp: right where CUB is, and undefined where CUB's are."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_harness import CASES, CompileFailed, Library, call_in_process, case, compile_cuda

from dice.verify import emulator


@pytest.fixture
def blockwide() -> Library:
    return case("blockwide.cu")


def drawn(count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(-500, 500, count).astype(np.int32)


def test_reductions_over_a_block(blockwide: Library) -> None:
    x, out = drawn(96), np.zeros(7, np.int32)
    x[[17, 60]] = 700  # the first of equal values is the greatest
    blockwide.call("h_reductions", x, out, 50)
    assert out.tolist() == [x.sum(), x[:50].sum(), 700, x.sum() + 96 * 1000, 17, 700, x.min()]


def test_a_block_of_two_dimensions(blockwide: Library) -> None:
    x, out = drawn(32), np.zeros(1, np.int32)
    blockwide.call("h_planes", x, out)
    assert out[0] == x.max()


def test_a_block_of_another_shape_is_a_fault() -> None:
    death = call_in_process(compile_cuda((CASES / "blockwide.cu").read_text()), "h_turned", 0)
    assert death.fault is not None and death.fault["fault"] == "cub_block_size"


def test_scans_over_a_block(blockwide: Library) -> None:
    x, out = drawn(64), np.zeros(256 + 3 * 64, np.int32)
    blockwide.call("h_scans", x, out)
    upto = np.cumsum(x)
    np.testing.assert_array_equal(out[:64], upto)
    np.testing.assert_array_equal(out[64:128], upto - x)
    assert set(out[128:192]) == {x.sum()}
    np.testing.assert_array_equal(out[192:256], np.maximum.accumulate(np.concatenate([[-7], x[:-1]])))
    items = np.stack([np.arange(64), np.ones(64), x], 1).reshape(-1)
    np.testing.assert_array_equal(out[256:], np.cumsum(items))


def test_what_threads_hold_is_sorted() -> None:
    library = case("blocksort.cu")
    x = np.random.default_rng(1).normal(size=128).astype(np.float32)
    x[[5, 70]] = x[9]  # equal keys stay in their order
    y, places = np.zeros(128, np.float32), np.zeros(128, np.int32)
    library.call("h_sorted", x, y, places, 100)
    order = np.argsort(np.concatenate([x[:100], np.full(28, 1e9, np.float32)]), kind="stable")
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(y, np.concatenate([x[order[:100]], np.zeros(28, np.float32)]))
    keys, out = np.random.default_rng(2).integers(0, 200, 128).astype(np.uint32), np.zeros(192, np.uint32)
    library.call("h_striped", keys, out)
    np.testing.assert_array_equal(out[:64], keys[64:])
    held = np.stack([keys[:64], keys[64:]], 1).reshape(-1)
    np.testing.assert_array_equal(out[64:], held[np.argsort(15 - held % 16, kind="stable")])
    merged = np.zeros(256, np.float32)
    library.call("h_merged", x, merged)
    np.testing.assert_array_equal(merged[:128], np.sort(x.reshape(4, 32), 1).reshape(-1))
    np.testing.assert_array_equal(merged[128:], np.sort(x)[::-1])


def test_items_that_change_hands() -> None:
    x, y = drawn(64), np.zeros(128, np.int32)
    case("blocksort.cu").call("h_exchanged", x, y)
    assert y.tolist() == [*x, *x[::-1]]


def test_items_that_differ_from_their_neighbours() -> None:
    x, y = np.repeat(drawn(32), 2)[1:].tolist() + [5], np.zeros(256, np.int32)
    x = np.array(x, np.int32)
    case("blocksort.cu").call("h_flagged", x, y)
    differs = x[1:] != x[:-1]
    assert y[:64].tolist() == [1, *differs]
    assert y[64:128].tolist() == [0, *differs] and y[128:192].tolist() == [*differs, 1]
    assert y[192:].tolist() == [*(differs | (np.arange(1, 64) % 8 == 0)), 1]


def test_histograms_of_a_block() -> None:
    x = np.random.default_rng(4).integers(0, 16, 128).astype(np.uint8)
    counts, added = np.full(16, 9, np.uint32), np.full(16, 3, np.uint32)
    case("blocksort.cu").call("h_counted", x, counts, added)
    expected = np.bincount(x, minlength=16)
    assert counts.tolist() == expected.tolist() and added.tolist() == (3 + expected).tolist()


def test_differences_of_neighbours() -> None:
    x, y = drawn(64), np.zeros(256, np.int32)
    case("blocksort.cu").call("h_differences", x, y, 51)
    left, right = np.diff(x, prepend=0), -np.diff(x, append=1000)
    assert y[:64].tolist() == [x[0], *left[1:]]
    assert y[64:128].tolist() == [x[0] - 7, *left[1:51], *x[51:]]
    assert y[128:192].tolist() == right.tolist()
    assert y[192:].tolist() == [*right[:50], *x[50:]]


def test_bytes_and_halves_of_a_word() -> None:
    words, out = np.array([0x80FF0110, 0x7F01FF20], np.uint32), np.zeros(10, np.uint32)
    case("blocksort.cu").call("h_bytes", words, out)
    a, b = (words[i : i + 1].view(np.uint8).astype(int) for i in (0, 1))
    c, d = (words[i : i + 1].view(np.int8).astype(int) for i in (0, 1))
    every = (a + b, a - b, np.maximum(c, d), np.minimum(a, b), abs(a - b), None, -(c > d).astype(int), (a + b + 1) // 2)
    for index, found in enumerate(every):
        if found is not None:
            assert out[index : index + 1].view(np.uint8).tolist() == (found & 255).astype(int).tolist()
    halves = [words[i : i + 1].view(np.int16).astype(int) for i in (0, 1)]
    assert out[5] == abs(a - b).sum() and out[9] == abs(halves[0] - halves[1]).sum()
    assert out[8:9].view(np.uint16).tolist() == (sum(halves) & 0xFFFF).tolist()


def test_warps(blockwide: Library) -> None:
    x, out = drawn(64), np.zeros(8 + 128, np.int32)
    blockwide.call("h_warps", x, out)
    halves = x.reshape(4, 16)
    np.testing.assert_array_equal(out[:4], halves.sum(1))
    np.testing.assert_array_equal(out[4:8], halves[:, :5].max(1))
    np.testing.assert_array_equal(out[8:72].reshape(2, 32), x.reshape(2, 32).cumsum(1))
    before = np.concatenate([np.full((2, 1), 100), x.reshape(2, 32)[:, :-1]], 1)
    np.testing.assert_array_equal(out[72:].reshape(2, 32), np.minimum.accumulate(before, 1))


KERNEL = """#include <cub/cub.cuh>
__global__ void k(float* x) {{
  __shared__ typename cub::BlockReduce<float, 64>::TempStorage storage;
  float total = {call};
  {store}
}}
extern "C" void h_k(float* x) {{ k<<<1, 64>>>(x); }}
"""


def test_only_the_first_thread_gets_the_result() -> None:
    call = "cub::BlockReduce<float, 64>(storage).Sum(x[threadIdx.x])"
    x = np.ones(64, np.float32)
    Library(compile_cuda(KERNEL.format(call=call, store="x[threadIdx.x] = total;"))).call("h_k", x)
    assert x[0] == 64 and (x[1:] != 64).all()


@pytest.mark.parametrize("form", ["Sum(x[0], 1, 2)", "HeadSegmentedSum(x[0], 1)"])
def test_forms_that_are_not_there_are_unsupported(form: str) -> None:
    source = KERNEL.format(call=f"cub::BlockReduce<float, 64>(storage).{form}", store="x[0] = total;")
    assert emulator.find_unsupported(source) is None
    with pytest.raises(CompileFailed) as failure:
        compile_cuda(source)
    assert "a form of `cub::BlockReduce`" in (emulator.explain_failure(str(failure.value)) or "")


PREFIXES = """
#include <cub/cub.cuh>
struct Running {
  int total;
  __device__ int operator()(int aggregate) { int before = total; total += aggregate; return before; }
};
__global__ void scan(const int* x, int* out) {
  typedef cub::BlockScan<int, 64> Scan;
  __shared__ typename Scan::TempStorage storage;
  Running one{5}, two{5}, three{-100};
  for (int part = 0; part < 3; ++part) {
    int v[2] = {x[part * 128 + 2 * threadIdx.x], x[part * 128 + 2 * threadIdx.x + 1]}, w[2], single;
    Scan(storage).InclusiveSum(v, w, one);
    __syncthreads();
    for (int i = 0; i < 2; ++i) out[part * 128 + 2 * threadIdx.x + i] = w[i];
    Scan(storage).ExclusiveSum(v, w, two);
    __syncthreads();
    for (int i = 0; i < 2; ++i) out[384 + part * 128 + 2 * threadIdx.x + i] = w[i];
    Scan(storage).ExclusiveScan(v[0] + v[1], single, cub::Sum(), three);
    __syncthreads();
    out[768 + part * 64 + threadIdx.x] = single;
  }
}
extern "C" void entry(const int* x, int* out) { scan<<<1, 64>>>(x, out); }
"""


def test_scans_that_go_on_from_block_to_block() -> None:
    x, out = drawn(384), np.zeros(768 + 192, np.int32)
    Library(compile_cuda(PREFIXES)).call("entry", x, out)
    np.testing.assert_array_equal(out[:384], np.cumsum(x) + 5)
    np.testing.assert_array_equal(out[384:768], np.cumsum(x) - x + 5)
    pairs = x.reshape(-1, 2).sum(1)
    np.testing.assert_array_equal(out[768:], np.cumsum(pairs) - pairs - 100)
