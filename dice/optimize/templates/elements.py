"""Kernels that compute each element by itself: vectors of neighbouring elements where tensors lie alike."""

from __future__ import annotations

from collections.abc import Sequence

from dice.optimize.templates.emitter import block_index, index_type
from dice.optimize.templates.text import (
    THREADS,
    Constants,
    KernelText,
    Store,
    as_stored,
    blocks,
    function,
    indented,
    stored,
)
from dice.optimize.templates.vectors import HELPERS, VectorEmitter, width_for

FEW = 1 << 16  # elements up to which a thread has one: a GPU has room for more threads
MOST_ITEMS = 4  # vectors that a thread reads before it computes
ENOUGH_BLOCKS = 1056  # eight for each multiprocessor of an H100


def pointwise(name: str, stores: Sequence[Store]) -> KernelText:
    """All values have as many elements."""
    values = [store.value for store in stores]
    count = values[0].numel
    if count <= FEW:
        return _single(name, stores, count)
    width = width_for(values, values, count)
    if width > 1 and (count % width == 0 or index_type(count) == "int"):
        text, pays = _in_steps(name, stores, count, width)
        if pays:
            return text
    return _in_steps(name, stores, count, 1)[0]


def _single(name: str, stores: Sequence[Store], count: int) -> KernelText:
    """One element for each thread."""
    e, constants = VectorEmitter(1), Constants(name)
    block = constants.name("BLOCK", THREADS)
    e.declare("i", 0)
    e.line(f"int i = blockIdx.x * {block} + threadIdx.x;")
    e.line(f"if (i >= {count}) return;")
    for store in stores:
        e.line(stored(store, store.value.load(e, e.at_flat(store.value.shape, "i")), "i"))
    return function(name, e, stores, e.frames[0].lines, f"{blocks(count, block)}, {block}", {}, constants)


def _in_steps(name: str, stores: Sequence[Store], count: int, width: int) -> tuple[KernelText, bool]:
    """Several vectors for each thread, a block's width apart. All that lies alike is read first, so that the reads
    wait for memory together. Also tells whether vectors are worth it."""
    own = "c" if width > 1 else "i"
    e, constants = VectorEmitter(width, own, count), Constants(name)
    vectors, is_ragged = -(-count // width), count % width > 0
    with e.block() as frame:
        e.declare("step")
        e.declare(own, count=vectors)
        if width > 1:
            lines = _of_vector(e, stores, count, width, is_ragged, frame.lines)
        else:
            for store in stores:
                e.line(stored(store, store.value.load(e, e.at_flat(store.value.shape, "i")), "i"))
            lines = frame.lines
    number = MOST_ITEMS // max(1, len(e.ahead)) or 1
    while number > 1 and vectors < ENOUGH_BLOCKS * THREADS * number:
        number //= 2
    block, items = constants.name("BLOCK", THREADS), constants.name("ITEMS", number)
    ctype = index_type(vectors)

    def steps(inner: Sequence[str]) -> list[str]:
        return [
            "#pragma unroll",
            f"for (int step = 0; step < {items}; step++) {{",
            f"    {ctype} {own} = first + step * {block};",
            f"    if ({own} < {vectors}) {{",
            *indented(inner, 2),
            "    }",
            "}",
        ]

    reads = [f"own_{one}[step] = {_read(e, one, dtype, count, is_ragged)};" for one, dtype in e.ahead.items()]
    body = [
        *e.frames[0].lines,
        f"{ctype} first = {block_index(vectors)} * ({block} * {items}) + threadIdx.x;",
        *(f"{e.vector(dtype)} own_{one}[{items}];" for one, dtype in e.ahead.items()),
        *(steps(reads) if reads else ()),
        *steps(lines),
    ]
    helpers = {one: text for one, text in HELPERS.items() if width > 1 and (is_ragged or one == "Vector")}
    launch = f"{blocks(vectors, f'({block} * {items})')}, {block}"
    return function(name, e, stores, body, launch, helpers, constants), e.pays


def _of_vector(
    e: VectorEmitter, stores: Sequence[Store], count: int, width: int, is_ragged: bool, before: list[str]
) -> list[str]:
    """The lines that compute and store vector `c`. `before`: what the elements have in common."""
    with e.block() as frame:
        e.declare("k")
        i = e.joined("c", width, "k", -(-count // width))
        for store in stores:
            text = as_stored(store, store.value.load(e, e.at_flat(store.value.shape, i)))
            e.line(f"own_{store.name}.val[k] = {text};")
    names = [(store.name, e.vector(store.value.dtype)) for store in stores]
    keep = [
        f"store_vector({one}, c * {width}, {count}, own_{one});"
        if is_ragged
        else f"reinterpret_cast<{vector}*>({one})[c] = own_{one};"
        for one, vector in names
    ]
    # Of the last vector, what lies behind the end may not even be looked for.
    end = f" && c * {width} + k < {count}" if is_ragged and e.reads_single else ""
    loop = ["#pragma unroll", f"for (int k = 0; k < {width}{end}; k++) {{", *indented(frame.lines), "}"]
    return [*before, *(f"{vector} own_{one};" for one, vector in names), *loop, *keep]


def _read(e: VectorEmitter, name: str, dtype: str, count: int, is_ragged: bool) -> str:
    if e.width == 1:
        return f"{name}[i]"
    if is_ragged:
        return f"load_vector<{e.width}>({name}, c * {e.width}, {count})"
    return f"reinterpret_cast<const {e.vector(dtype)}*>({name})[c]"


__all__ = ["pointwise"]
