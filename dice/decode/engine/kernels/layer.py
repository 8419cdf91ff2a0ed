"""What stands between the products of a layer: residual and norm, heads and cache, SiLU, and casts to fp8.

Every kernel computes in float32 and rounds once. Shape letters as in `forward`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dice.decode.engine.kernels.early import begin, finish

FP8_MAX = tl.constexpr(448.0)


@triton.jit
def store_row(
    values,
    out,
    scales,
    row,
    column,
    inside,
    width,
    EIGHTH: tl.constexpr,
    FACTOR: tl.constexpr = 1.0,
) -> None:
    """Write a row [width]: in `out`'s own precision, times FACTOR, or in fp8 with its scale."""
    if EIGHTH:
        scale = tl.maximum(tl.max(tl.where(inside, tl.abs(values), 0.0), 0), 1e-12) / FP8_MAX
        tl.store(scales + row, scale)
        values = tl.minimum(tl.maximum(values / scale, -FP8_MAX), FP8_MAX)
    else:
        values *= FACTOR
    tl.store(out + row * width + column, values.to(out.dtype.element_ty), inside)


@triton.jit
def add_norm_kernel(
    x, delta, weight, out, scales, rows, width, eps,
    PARTS: tl.constexpr, EIGHTH: tl.constexpr, FACTOR: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """x += delta; out = x / rms(x) * weight * FACTOR. A program a row. PARTS: of delta [PARTS, rows, width].

    Only `delta` may be the kernel before's; without parts, x is.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    scale = tl.load(weight + column, inside, other=0.0).to(tl.float32)
    if PARTS == 0:
        begin(EARLY)
    own = tl.load(x + row * width + column, inside, other=0.0)
    if PARTS > 0:
        begin(EARLY)
        # The sum is rounded before it is normalised: what follows starts from what is stored.
        more = tl.load(delta + row * width + column, inside, other=0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            more += tl.load(delta + (part * rows + row) * width + column, inside, other=0.0)
        own = (own.to(tl.float32) + more).to(own.dtype)
        tl.store(x + row * width + column, own, inside)
    values = own.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
    values = values * inverse * scale
    finish(EARLY)
    store_row(values, out, scales, row, column, inside, width, EIGHTH, FACTOR)


@triton.jit
def silu_mul_kernel(
    gate_up, out, scales, width, EIGHTH: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr
) -> None:
    """out = silu(gate) * up of a row [2 * width]; a program a row and part of it, a whole row where it is scaled."""
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, inside, other=0.0).to(tl.float32)
    finish(EARLY)
    store_row(gate / (1.0 + tl.exp(-gate)) * up, out, scales, row, column, inside, width, EIGHTH)


@triton.jit
def quantize_kernel(x, out, scales, width, WIDTH: tl.constexpr, EARLY: tl.constexpr) -> None:
    """x [N, width] in fp8, with a scale for each row."""
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    inside = column < width
    values = tl.load(x + row * width + column, inside, other=0.0).to(tl.float32)
    finish(EARLY)
    store_row(values, out, scales, row, column, inside, width, True)


@triton.jit
def rotated(x, y, scale, scale_other, angle_cos, angle_sin, eps, DIM: tl.constexpr, NORMS: tl.constexpr) -> tl.tensor:
    """Heads x [R, DIM] normalised and rotated; y: of each element its partner, which the half-split rotation needs."""
    turned, other = x, y
    if NORMS:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / DIM + eps)[:, None]
        turned = x * inverse * scale.to(tl.float32)
        other = y * inverse * scale_other.to(tl.float32)
    return turned * angle_cos + other * angle_sin


@triton.jit
def rotate_store_kernel(
    qkv, q_norm, k_norm, cos, sin, slots, positions, pages, q_out,
    cache, page_count, table_width, eps,
    QUERY: tl.constexpr, KEY: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, NORMS: tl.constexpr,
    HEADS: tl.constexpr, EARLY: tl.constexpr,
) -> None:  # fmt: skip
    """Queries and keys normalised by head and rotated; keys and values into their page. A program: HEADS heads of a
    row. The half-split rotation needs each element's partner, which is read a second time."""
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dim = tl.arange(0, DIM)
    partner = (dim + DIM // 2) % DIM
    inside = (head < QUERY + 2 * KEY)[:, None]
    base = qkv + row * (QUERY + 2 * KEY) * DIM + head[:, None] * DIM
    x = tl.load(base + dim[None, :], inside, other=0.0).to(tl.float32)
    y = tl.load(base + partner[None, :], inside, other=0.0).to(tl.float32)
    scale, scale_other = 1.0, 1.0
    if NORMS:
        is_query = (head < QUERY)[:, None]
        scale = tl.where(is_query, tl.load(q_norm + dim)[None, :], tl.load(k_norm + dim)[None, :])
        scale_other = tl.where(is_query, tl.load(q_norm + partner)[None, :], tl.load(k_norm + partner)[None, :])
    position = tl.load(positions + row)
    angle_cos = tl.load(cos + position * DIM + dim)[None, :]
    angle_sin = tl.load(sin + position * DIM + dim)[None, :]
    turned = rotated(x, y, scale, scale_other, angle_cos, angle_sin, eps, DIM, NORMS)
    finish(EARLY)
    is_value = (head >= QUERY + KEY)[:, None]
    values = tl.where(is_value, x, turned).to(q_out.dtype.element_ty)
    tl.store(q_out + row * QUERY * DIM + head[:, None] * DIM + dim[None, :], values, (head < QUERY)[:, None])
    slot = tl.load(slots + row)
    if slot >= 0:
        page = tl.load(pages + slot * table_width + position // PAGE).to(tl.int64)
        key_head = tl.where(head < QUERY + KEY, head - QUERY, head - QUERY - KEY)
        half = tl.where(head < QUERY + KEY, 0, 1).to(tl.int64)
        place = ((half * page_count + page) * KEY + key_head) * PAGE + position % PAGE
        tl.store(cache + place[:, None] * DIM + dim[None, :], values, inside & (head >= QUERY)[:, None])
