"""Kernels that begin while the one before them ends: programmatic dependent launch, of GPUs from Hopper on.

A step of one text is some three hundred kernels in a row, of which most take two microseconds and read next to nothing.
A kernel launched in this way may start as soon as all programs of the one before have begun. It then reads what nobody
writes, which is weights, and waits until that one has ended before it touches anything else. So the memory is read
while the small kernels run, and no launch is waited for.

Every such kernel waits in all its programs, at first, whatever it does afterwards: its end then means that all kernels
before it have ended, too.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

if importlib.util.find_spec("triton.language.extra.cuda.gdc") is not None:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
else:  # an older Triton, whose kernels follow each other
    gdc_launch_dependents = gdc_wait = None

HOPPER = (9, 0)
PIECE = tl.constexpr(256)  # bytes that one thread asks for at once
# Of a program, 64 KB: what all running programs ask for fits into the second-level cache.
PIECES = tl.constexpr(256)


@cache
def _starts_early(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None or gdc_wait is None:
        return False
    return torch.cuda.get_device_capability(device) >= HOPPER


def launch(x: Tensor) -> dict[str, bool]:
    """How to launch a kernel on the device of `x`, whose `begin` is given `EARLY`."""
    return {"EARLY": True, "launch_pdl": True} if _starts_early(x.device) else {"EARLY": False}


@triton.jit
def begin(EARLY: tl.constexpr) -> None:
    """Let the next kernel start, and wait for the end of the one before."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def fetch(matrix, first, last, width, ROWS: tl.constexpr, BYTES: tl.constexpr) -> None:
    """Ask for the beginnings of ROWS rows of a matrix, from row `first` to at most `last`: they come into the
    second-level cache, and nobody waits for them. A row has `width` elements of BYTES bytes, a multiple of PIECE."""
    each: tl.constexpr = PIECES // ROWS
    index = tl.arange(0, PIECES)
    row = tl.minimum(first + index // each, last).to(tl.int64)
    address = matrix.to(tl.int64) + row * width * BYTES + index % each * PIECE % (width * BYTES)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], 256; mov.u32 $0, 0;", "=r,l", [address], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip
