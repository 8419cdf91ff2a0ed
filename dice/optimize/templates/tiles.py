"""Kernels for sums of products: tiles of both factors in shared memory, sums in registers."""

from __future__ import annotations

from dice.optimize.templates.emitter import CannotWrite, Emitter, Place, computed
from dice.optimize.templates.text import THREADS, Constants, KernelText, Store, blocks, function, stored
from dice.optimize.templates.values import Product, literal


def product(name: str, of: Product, store: Store) -> KernelText:
    """Tiles of a product in shared memory, sums in registers. `store`: the product, or what is made of each element."""
    e = Emitter()
    z_count, m_count, n_count, k_count = of.extents
    ctype = computed(of.dtype)
    constants, sizes = Constants(name), (_tile(m_count), _tile(n_count), 16)
    bm, bn, bk = (constants.name(f"TILE_{one}", size) for one, size in zip("MNK", sizes, strict=True))
    tm, tn = f"{bm} / 16", f"{bn} / 16"
    for one in ("tile_m", "tile_n", "z", "tile_k"):
        e.declare(one, 0)
    zero = literal(0, of.dtype)
    head = [
        f"__shared__ {ctype} a_tile[{bk}][{bm} + 1];",
        f"__shared__ {ctype} b_tile[{bk}][{bn} + 1];",
        f"int tile_m = blockIdx.y * {bm}, tile_n = blockIdx.x * {bn}, z = blockIdx.z;",
        "int ty = threadIdx.x / 16, tx = threadIdx.x % 16;",
        f"{ctype} acc[{tm}][{tn}] = {{}};",
    ]
    z = "z" if z_count > 1 else "0"
    fast_a, fast_b = of.fast()
    loads_a = _tile_load(e, of, "a", fast_a == "k", bm, bk, z, zero, ctype)
    loads_b = _tile_load(e, of, "b", fast_b == "k", bn, bk, z, zero, ctype)
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
        *head,
        f"for (int tile_k = 0; tile_k < {k_count}; tile_k += {bk}) {{",
        *(f"    {line}" for line in steps),
        "}",
        *_results(e, of, store, bm, bn, z),
    ]
    launch = grid(of, bm, bn, sizes[0])
    return function(name, e, [store], [*e.frames[0].lines, *lines], launch, {}, constants)


def grid(of: Product, bm: str, bn: str, rows: int) -> str:
    """A block for each tile; `rows`: of one, as `bm` is at first."""
    z_count, m_count, n_count, _ = of.extents
    if z_count > 65535 or -(-m_count // rows) > 65535:
        raise CannotWrite("a product has more tiles than a grid holds")
    return f"dim3({blocks(n_count, bn)}, {blocks(m_count, bm)}, {z_count}), {THREADS}"


def _tile(extent: int) -> int:
    return 64 if extent > 32 else 32 if extent > 16 else 16


def _tile_load(
    e: Emitter, of: Product, factor: str, is_k_fast: bool, width: str, depth: str, z: str, zero: str, ctype: str
) -> list[str]:
    """The lines that bring one factor's part of a tile into shared memory."""
    _, m_count, n_count, k_count = of.extents
    other, extent = ("m", m_count) if factor == "a" else ("n", n_count)
    low, high = (depth, width) if is_k_fast else (width, depth)
    t_k, t_other = (f"t % {low}", f"t / {low}") if is_k_fast else (f"t / {low}", f"t % {low}")
    with e.block() as frame:
        for one in ("t", other, "k"):
            e.declare(one)
        e.line(f"int {other} = tile_{other} + {t_other}, k = tile_k + {t_k};")

        def make() -> str:
            return of.a(e, z, other, "k") if factor == "a" else of.b(e, z, "k", other)

        text = e.guarded(ctype, f"{other} < {extent} && k < {k_count}", zero, make)
        e.line(f"{factor}_tile[{t_k}][{t_other}] = {text};")
    loop = f"for (int t = threadIdx.x; t < {low} * {high}; t += {THREADS}) {{"
    return [loop, *(f"    {line}" for line in frame.lines), "}"]


def _results(e: Emitter, of: Product, store: Store, bm: str, bn: str, z: str) -> list[str]:
    """The lines that store a thread's sums, each after what is made of it."""
    _, m_count, n_count, _ = of.extents
    return [
        f"for (int r = 0; r < {bm} / 16; r++) {{",
        f"    for (int c = 0; c < {bn} / 16; c++) {{",
        "        int m = tile_m + ty + 16 * r, n = tile_n + tx + 16 * c;",
        f"        if (m < {m_count} && n < {n_count}) {{",
        *(f"            {line}" for line in result(e, of, store, z, "acc[r][c]")),
        "        }",
        "    }",
        "}",
    ]


def result(e: Emitter, of: Product, store: Store, z: str, total: str) -> list[str]:
    """The lines that store what is made of the sum `total` of row `m` and column `n`."""
    _, m_count, n_count, _ = of.extents
    with e.block(pinned=True) as frame:
        for one in ("m", "n", "r", "c", "s"):
            e.declare(one)
        own = of.place(e, z, "m" if m_count > 1 else "0", "n" if n_count > 1 else "0")
        flat = e.flat(own)

        def this(value: object, place: Place) -> str | None:
            return total if value is of and e.flat(place) == flat else None

        e.on_source = this
        where = own if store.value.shape == of.shape else e.at_flat(store.value.shape, flat)
        text = store.value.load(e, where)
        e.line(stored(store, text, e.flat(where)))
    return frame.lines
