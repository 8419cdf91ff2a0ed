"""Kernels for sums of products: tiles of both factors in shared memory, sums in registers."""

from __future__ import annotations

from dataclasses import dataclass

from dice.optimize.templates.contractions.division import DEPTH, division
from dice.optimize.templates.emitter import MOST_ELEMENTS, CannotWrite, Emitter, Place, computed
from dice.optimize.templates.text import THREADS, Constants, KernelText, Store, blocks, function, indented, stored
from dice.optimize.templates.values import Product, literal


@dataclass(frozen=True, slots=True)
class Share:
    """What a block does of a product: `lines` that say which tile, of which `z`, over the terms from `first` to `last`
    of its sums."""

    lines: list[str]
    z: str
    first: str
    last: str


def share(e: Emitter, of: Product, bm: str, bn: str) -> Share:
    """A block for each tile and each part of the sums; neighbours have the same rows."""
    z_count, m_count, n_count, k_count = of.extents
    if max(m_count, n_count, k_count) > MOST_ELEMENTS:
        raise CannotWrite("a product has more than 2^31 rows, columns or terms")
    for one in ("tile_m", "tile_n", "tile_k", "z", "part", "first", "last"):
        e.declare(one, 0)
    lines = [
        f"constexpr int tiles_m = {blocks(m_count, bm)}, tiles_n = {blocks(n_count, bn)};",
        f"int tile_n = blockIdx.x % tiles_n * {bn}, tile_m = blockIdx.x / tiles_n % tiles_m * {bm};",
    ]
    other = "blockIdx.x / (tiles_n * tiles_m)"
    if of.parts > 1 and z_count > 1:
        lines.append(f"int other = {other}, part = other % {of.parts}, z = other / {of.parts};")
    elif of.parts > 1 or z_count > 1:
        lines.append(f"int {'part' if of.parts > 1 else 'z'} = {other};")
    z = "z" if z_count > 1 else "0"
    terms = of.terms(e, z) if of.terms else str(k_count)
    lines += e.frames[0].lines
    e.frames[0].lines.clear()
    if of.parts == 1:
        return Share(lines, z, "0", terms)
    each = division(of.extents).steps(k_count) * DEPTH
    lines.append(f"int first = part * {each}, last = min(first + {each}, {terms});")
    return Share(lines, z, "first", "last")


def launch(of: Product, bm: str, bn: str) -> str:
    z_count, m_count, n_count, _ = of.extents
    count = f" * {z_count * of.parts}" if z_count * of.parts > 1 else ""
    return f"({blocks(n_count, bn)}) * ({blocks(m_count, bm)}){count}, {THREADS}"


def product(name: str, of: Product, store: Store) -> KernelText:
    """Tiles of a product in shared memory, sums in registers. `store`: the product, or what is made of each element."""
    e = Emitter()
    _, m_count, n_count, _ = of.extents
    ctype = computed(of.dtype)
    constants, sizes = Constants(name), (_tile(m_count), _tile(n_count), DEPTH)
    bm, bn, bk = (constants.name(f"TILE_{one}", size) for one, size in zip("MNK", sizes, strict=True))
    tm, tn = f"{bm} / 16", f"{bn} / 16"
    own = share(e, of, bm, bn)
    head = [
        f"__shared__ {ctype} a_tile[{bk}][{bm} + 1];",
        f"__shared__ {ctype} b_tile[{bk}][{bn} + 1];",
        *own.lines,
        "int ty = threadIdx.x / 16, tx = threadIdx.x % 16;",
        f"{ctype} acc[{tm}][{tn}] = {{}};",
    ]
    fast_a, fast_b = of.fast()
    loads_a = _tile_load(e, of, "a", fast_a == "k", bm, bk, own)
    loads_b = _tile_load(e, of, "b", fast_b == "k", bn, bk, own)
    inner = [
        f"for (int k = 0; k < {bk}; k++) {{",
        f"    {ctype} a[{tm}], b[{tn}];",
        f"    for (int r = 0; r < {tm}; r++) a[r] = a_tile[k][ty + 16 * r];",
        f"    for (int c = 0; c < {tn}; c++) b[c] = b_tile[k][tx + 16 * c];",
        f"    for (int r = 0; r < {tm}; r++)",
        f"        for (int c = 0; c < {tn}; c++) acc[r][c] += a[r] * b[c];",
        "}",
    ]
    steps = [*loads_a, *loads_b, "__syncthreads();", *inner, "__syncthreads();"]
    lines = [
        f"for (int tile_k = {own.first}; tile_k < {own.last}; tile_k += {bk}) {{",
        *indented(steps),
        "}",
        *_results(e, of, store, bm, bn, own.z),
    ]
    return function(name, e, [store], [*head, *e.frames[0].lines, *lines], launch(of, bm, bn), {}, constants)


def _tile(extent: int) -> int:
    return 64 if extent > 32 else 32 if extent > 16 else 16


def _tile_load(e: Emitter, of: Product, factor: str, is_k_fast: bool, width: str, depth: str, own: Share) -> list[str]:
    """The lines that bring one factor's part of a tile into shared memory."""
    _, m_count, n_count, _ = of.extents
    other, extent = ("m", m_count) if factor == "a" else ("n", n_count)
    low, high = (depth, width) if is_k_fast else (width, depth)
    t_k, t_other = (f"t % {low}", f"t / {low}") if is_k_fast else (f"t / {low}", f"t % {low}")
    with e.block() as frame:
        for one in ("t", other, "k"):
            e.declare(one)
        e.line(f"int {other} = tile_{other} + {t_other}, k = tile_k + {t_k};")
        condition = f"{other} < {extent} && k < {own.last}"
        text = e.guarded(
            computed(of.dtype), condition, literal(0, of.dtype), lambda: of.loaded(e, factor, own.z, other, "k")
        )
        e.line(f"{factor}_tile[{t_k}][{t_other}] = {text};")
    loop = f"for (int t = threadIdx.x; t < {low} * {high}; t += {THREADS}) {{"
    return [loop, *indented(frame.lines), "}"]


def _results(e: Emitter, of: Product, store: Store, bm: str, bn: str, z: str) -> list[str]:
    """The lines that store a thread's sums, each after what is made of it."""
    _, m_count, n_count, _ = of.extents
    return [
        f"for (int r = 0; r < {bm} / 16; r++) {{",
        f"    for (int c = 0; c < {bn} / 16; c++) {{",
        "        int m = tile_m + ty + 16 * r, n = tile_n + tx + 16 * c;",
        f"        if (m < {m_count} && n < {n_count}) {{",
        *indented(result(e, of, store, z, "acc[r][c]"), 3),
        "        }",
        "    }",
        "}",
    ]


def result(e: Emitter, of: Product, store: Store, z: str, total: str, in_pairs: bool = False) -> list[str]:
    """The lines that store what is made of the sum `total` of row `m` and column `n`. `in_pairs`: an even column waits
    in `pair` for the next one, whose `s` is odd."""
    _, m_count, n_count, _ = of.extents
    m, n = "m" if m_count > 1 else "0", "n" if n_count > 1 else "0"
    with e.block(pinned=True) as outer:
        for one in ("m", "n", "r", "c", "s"):
            e.declare(one)
        exists = of.exists(e, z, n)
        with e.block(pinned=True) as frame:
            own = of.place(e, z, m, n)
            if of.parts > 1:
                own = e.at_flat(of.shape, e.joined("part", of.numel // of.parts, e.flat(own), of.parts))
            flat = e.flat(own)

            def this(value: object, place: Place) -> str | None:
                return total if value is of and e.flat(place) == flat else None

            e.on_source = this
            where = own if store.value.shape == of.shape else e.at_flat(store.value.shape, flat)
            text = store.value.load(e, where)
            if in_pairs:
                e.line(f"pair[s % 2] = {text};")
                to = f"*reinterpret_cast<float2*>(&{store.name}[{e.flat(where)} - 1])"
                e.line(f"if (s % 2 == 1) {to} = make_float2(pair[0], pair[1]);")
            else:
                e.line(stored(store, text, e.flat(where)))
    return [*outer.lines, f"if ({exists}) {{", *indented(frame.lines), "}"] if exists else [*outer.lines, *frame.lines]
