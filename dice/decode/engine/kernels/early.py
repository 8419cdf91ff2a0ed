"""Kernels that begin while the one before them ends: programmatic dependent launch, of GPUs from Hopper on.

A step of one text is some three hundred kernels in a row, of which most take a few microseconds: to start each of them
and to fill the memory's queues again costs a tenth of a step. A kernel that is launched so may be set up as soon as all
programs of the one before have called `finish` or ended, and waits in `begin` until that one has ended altogether.

Every such kernel calls `begin` in all its programs, before it touches what another kernel writes: its end then means
that all kernels before it have ended, too. `finish` belongs behind the last large read. Called earlier it lets programs
that only wait take the place of those that read, which was measured to cost more than it gives.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from dice.decode.engine.weights import FEW_ROWS

if importlib.util.find_spec("triton.language.extra.cuda.gdc") is not None:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
else:  # an older Triton, whose kernels follow each other
    gdc_launch_dependents = gdc_wait = None

HOPPER = (9, 0)
LINE = tl.constexpr(128)  # bytes that come into the second-level cache together


@cache
def _starts_early(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None or gdc_wait is None:
        return False
    return torch.cuda.get_device_capability(device) >= HOPPER


def launch(x: Tensor) -> dict[str, bool]:
    """How to launch a kernel over the rows of `x`, whose `begin` and `finish` are given `EARLY`. Where rows are many
    a kernel takes long enough for its start not to show."""
    early = len(x) <= FEW_ROWS and _starts_early(x.device)
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


@triton.jit
def begin(EARLY: tl.constexpr) -> None:
    """Wait for the end of the kernel before."""
    if EARLY:
        gdc_wait()


@triton.jit
def finish(EARLY: tl.constexpr) -> None:
    """Let the next kernel be set up."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def fetch(address) -> None:
    """Ask for the lines at `address`, a tensor of pointers; nobody waits for them."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [address.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )
