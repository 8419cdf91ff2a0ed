"""Cooperative groups, lockstep warps, the runtime API, guarded tensors, forks, and agreement with nvcc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from emulator_harness import CACHE, CASES, ROOT, Library, call_in_process, case, compile_cuda

from dice.verify import emulator
from tests.conftest import PATIENCE_S


def test_tiles_of_a_block() -> None:
    tiles, out = np.zeros(4, np.float32), np.zeros((7, 64), np.int32)
    case("groups.cu").call("h_tiles", tiles, out)
    t = np.arange(64)
    rows = t.reshape(4, 16)
    np.testing.assert_array_equal(tiles, rows.sum(1))
    assert out[0, :2].tolist() == [2016, 64]
    np.testing.assert_array_equal(out[1], rows.cumsum(1).ravel())
    np.testing.assert_array_equal(out[2], (rows.cumsum(1) - rows).ravel())
    np.testing.assert_array_equal(out[3], (t ^ 1) * 1000 + np.where(t % 16 > 12, t, t + 3))
    np.testing.assert_array_equal(out[4], (t // 16 == 1) * 10 + (t < 48))
    assert (out[5] == 0x1111).all()
    np.testing.assert_array_equal(out[6], t // 32 * 32 + 31)


@pytest.mark.parametrize("order", [0, 1, 3])
def test_coalesced_threads_are_those_of_the_branch(order: int) -> None:
    library = case("groups.cu")
    library.runtime.dice_set_order(order)
    out = np.zeros(128, np.int32)
    library.call("h_coalesced", out)
    library.runtime.dice_set_order(0)
    for first in (0, 32):
        taken = [t for t in range(first, first + 32) if t % 3 == 0]
        for rank, t in enumerate(taken):
            assert out[t] == len(taken) * 100 + rank
            assert out[64 + t] == taken[2]
        assert all(out[t] == 32 - len(taken) for t in range(first, first + 32) if t % 3)


@pytest.mark.parametrize("order", [0, 1, 3])
@pytest.mark.parametrize("entry", ["h_lockstep_pointer", "h_lockstep_array"])
def test_volatile_reductions_see_a_warp_in_lockstep(entry: str, order: int) -> None:
    library = case("lockstep.cu")
    library.runtime.dice_set_order(order)
    x = np.random.default_rng(0).integers(0, 9, (30, 256)).astype(np.float32)
    y = np.zeros(30, np.float32)
    library.call(entry, x, y, 30)
    library.runtime.dice_set_order(0)
    np.testing.assert_array_equal(y, x.sum(1))


def test_the_runtime_api() -> None:
    x, y = np.ones(64, np.float32), np.full(64, -1, np.float32)
    assert case("host.cu").call("h_everything", x, y) == 0
    np.testing.assert_array_equal(y, np.where(np.arange(64) < 60, np.arange(64) % 8, 0))


def test_printf_in_a_kernel() -> None:
    assert call_in_process(compile_cuda((CASES / "host.cu").read_text()), "h_prints").stdout == "thread 1 of 2\n0\n"


def test_a_forked_child_starts_its_own_threads() -> None:
    library = case("shared.cu")
    x = np.ones((64, 100), np.float32)
    y = np.zeros(64, np.float32)
    library.call("h_sum_rows", x, y, 64, 100)  # the parent's pool exists now
    child = os.fork()
    if child == 0:
        y[:] = 0
        library.call("h_sum_rows", x, y, 64, 100)
        os._exit(0 if (y == 1).all() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


GUARD_SCRIPT = """
import ctypes, sys
from pathlib import Path
import torch
from dice.verify.emulator import guard

before = torch.zeros(100)
guard.enable(Path(sys.argv[1]))
x = torch.empty(1001)
assert x.isnan().all() and x.data_ptr() % 16 == 0
assert guard.label(x, "input 0") and not guard.label(before, "before")
assert guard.check() == []
ctypes.memset(x.data_ptr() + 4004 + 3, 0, 1)
assert guard.check() == ["wrote 4 bytes past the end of input 0, float32 1001 (4004 bytes)"], guard.check()
assert guard.check() == []
y = torch.randn(64, 64) @ torch.randn(64, 64)
assert torch.nn.functional.conv2d(torch.randn(1, 3, 32, 32), torch.randn(8, 3, 3, 3)).isfinite().all()
if sys.argv[3] == "past":  # also more tensors than guard pages can be had for
    many = [torch.zeros(3) for _ in range(25000)]
    assert all((t == 0).all() for t in many[::1000])
    del many
guard.disable()
assert not guard.label(torch.zeros(3), "plain")
runtime = ctypes.CDLL(sys.argv[2])
runtime.dice_set_fault_fd(1)
if sys.argv[3] == "past":
    print(ctypes.c_char.from_address(x.data_ptr() + 4016))
freed = x.data_ptr()
del x
print(ctypes.c_char.from_address(freed))
"""


@pytest.mark.parametrize(
    ("what", "words"),
    [("past", "read 12 bytes past the end of input 0, float32 1001 (4004 bytes)"), ("freed", "after it was freed")],
)
def test_guarded_tensors(what: str, words: str) -> None:
    command = [sys.executable, "-c", GUARD_SCRIPT, str(CACHE), str(emulator.runtime(CACHE)), what]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    assert done.returncode == 86, done.stderr
    assert words in done.stdout
    assert "host code" in done.stdout


ACCEPTED_BY_NVCC = (
    "indexing", "shared", "warp", "arithmetic", "halves", "groups", "lockstep", "host", "typical", "blockwide",
    "blocksort", "tensor_cores", "grid",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_nvcc_accepts_the_same_text(tmp_path: Path) -> None:
    texts = [(CASES / f"{name}.cu").read_text() for name in ACCEPTED_BY_NVCC]
    headers = sorted({line for text in texts for line in text.splitlines() if line.startswith("#include")})
    spaces = [f'#include "{CASES / ACCEPTED_BY_NVCC[0]}.cu"']
    spaces += [f'namespace {name} {{\n#include "{CASES / name}.cu"\n}}' for name in ACCEPTED_BY_NVCC[1:]]
    (tmp_path / "all.cu").write_text("\n".join([*headers, *spaces, ""]))
    command = ["nvcc", "-std=c++17", "-cubin", "-arch=sm_90", "-o", "all.cubin", "all.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


# blocks, threads, bytes of each, how often, and whether there are 8 MB for all that a GPU has at once
HOLDS = {
    "little": (1, 32, 1024, 1, True),
    "one after the other": (1, 1, 5 << 20, 4, True),
    "each again and again": (8, 256, 1024, 20, True),
    "too much for one": (1, 1, 9 << 20, 1, False),
    "too much for a block": (1, 256, 40000, 1, False),
    "too much for blocks side by side": (64, 256, 1600, 1, False),
    "enough for those side by side": (5000, 256, 16, 1, True),
}


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("by_new", [0, 1])
@pytest.mark.parametrize("name", HOLDS)
def test_kernels_take_memory_from_a_heap_of_8_mb(name: str, by_new: int, order: int) -> None:
    *sizes, enough = HOLDS[name]
    library = case("device_heap.cu")
    library.runtime.dice_set_order(order)
    without = library.call("h_holds", *sizes, by_new)
    library.runtime.dice_set_order(0)
    assert (without == 0) == enough
    assert library.call("h_holds", 1, 1, 5 << 20, 1, by_new) == 0, "all was given back"


def test_the_heap_of_kernels_may_be_larger() -> None:
    assert case("device_heap.cu").call("h_raised", 64, 64, 256, 1600) == 0
    assert case("device_heap.cu").call("h_raised", 16, 64, 256, 1600) > 0


def test_what_a_kernel_keeps_is_taken_for_the_next() -> None:
    assert case("device_heap.cu").call("h_keeps", 5 << 20) == 10


def test_what_a_kernel_takes_holds_no_zeros() -> None:
    assert case("device_heap.cu").call("h_looks", 4096) == 0


LAUNCHES = """
#include <cooperative_groups.h>
#include <cuda_runtime.h>
__global__ void twice(const float* x, float* y, int pitch) {
  const int i = blockIdx.x * pitch + threadIdx.x;
  y[i] = 2 * x[i];
}
__global__ void total(const float* x, float* y, int count) {
  cooperative_groups::this_grid().sync();
  if (blockIdx.x == 0 && threadIdx.x == 0)
    for (int i = 0; i < count; ++i) *y += x[i];
}
extern "C" int h(const float* x, float* y, float* sum, int rows, int width, int pitch) {
  float *in, *out;
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  cudaMalloc(&in, rows * pitch * sizeof(float));
  cudaMalloc(&out, rows * pitch * sizeof(float));
  const size_t length = width * sizeof(float), apart = pitch * sizeof(float);
  int failed = cudaMemcpy2DAsync(in, apart, x, length, length, rows, cudaMemcpyHostToDevice, stream);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(rows), config.blockDim = dim3(width), config.stream = stream;
  cudaLaunchAttribute attributes[1];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes, config.numAttrs = 1;
  failed |= cudaLaunchKernelEx(&config, twice, static_cast<const float*>(in), out, pitch);
  failed |= cudaMemcpy2DAsync(y, length, out, apart, length, rows, cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  attributes[0].id = cudaLaunchAttributeCooperative;
  attributes[0].val.cooperative = 1;
  cudaMemset(out, 0, sizeof(float));
  failed |= cudaMemcpy(in, y, rows * width * sizeof(float), cudaMemcpyHostToDevice);
  failed |= cudaLaunchKernelEx(&config, total, static_cast<const float*>(in), out, rows * width);
  failed |= cudaMemcpyAsync(sum, out, sizeof(float), cudaMemcpyDeviceToHost, stream);
  cudaStreamSynchronize(stream);
  return failed;
}
"""


def test_extended_launches_and_copies_of_planes() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y, total = np.zeros_like(x), np.zeros(1, np.float32)
    assert Library(compile_cuda(LAUNCHES)).call("h", x, y, total, 3, 4, 8) == 0
    np.testing.assert_array_equal(y, 2 * x)
    assert total[0] == 2 * x.sum()
