"""Several neighbouring elements at once: how a kernel's body reads vectors of 16 bytes where single elements are asked
for.

A thread has elements `c * width + k` for each `k` below the width. Where an index into a tensor comes to some vector's
number times the width plus `k`, the whole vector is read before the loop over `k`; what does not is read one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

from dice.optimize.templates.emitter import Emitter, Place, computed, storage
from dice.optimize.templates.values import Value

BYTES = 16  # of the largest vector that one instruction reads
SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}  # others: 1

VECTOR = """// Neighbouring elements, which one instruction reads or writes.
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Vector {
    T val[N];
};"""
_RAGGED = """// The vector from an element on, without reading what lies behind the last of `count` elements.
template <int N, typename T> __device__ Vector<T, N> load_vector(const T* from, int first, int count) {
    if (first + N <= count) return *reinterpret_cast<const Vector<T, N>*>(from + first);
    Vector<T, N> v = {};
    #pragma unroll 1
    for (int k = 0; first + k < count; k++) v.val[k] = from[first + k];
    return v;
}

// Writes a vector, or as much of it as there is room for.
template <int N, typename T> __device__ void store_vector(T* to, int first, int count, const Vector<T, N>& v) {
    if (first + N <= count) {
        *reinterpret_cast<Vector<T, N>*>(to + first) = v;
    } else {
        #pragma unroll 1
        for (int k = 0; first + k < count; k++) to[first + k] = v.val[k];
    }
}"""
HELPERS = {"Vector": VECTOR, "load_vector": _RAGGED}


def width_for(kept: Iterable[Value], roots: Iterable[Value], numel: int) -> int:
    """How many elements a vector has: 16 bytes of the widest among what is stored (`kept`) and the tensors of as many
    elements that `roots` are computed of."""
    sizes, seen, waiting = {1} | {SIZES.get(value.dtype, 1) for value in kept}, set(), list(roots)
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if not value.memory:
            waiting += value.sources
        elif value.numel == numel:
            sizes.add(SIZES.get(value.dtype, 1))
    return BYTES // max(sizes)


class VectorEmitter(Emitter):
    """A body whose innermost loop goes over the elements `k` of vectors. With a width of 1 it is any other body.

    `own`: the number of the thread's own vector, where those are read ahead, by step, into `own_NAME`; `count`: the
    elements of the tensors for which that is so.
    """

    ELEMENT: ClassVar[str] = "k"

    def __init__(self, width: int, own: str = "", count: int = 0):
        super().__init__()
        self.width, self._own, self._count = width, own, count
        self.ahead: dict[str, str] = {}
        self._whole: dict[str, int] = {}  # tensors read by vectors, and those read one by one, with their elements
        self._single: dict[str, int] = {}
        self._rows_of: dict[str, tuple[str, int, str]] = {}  # rows, their length and places in them, of indices

    @property
    def pays(self) -> bool:
        """Whether most of what is read is read in vectors."""
        return sum(self._whole.values()) >= sum(self._single.values())

    @property
    def _innermost(self) -> int:
        """The level of the loop over `k`."""
        return self.level.get(self.ELEMENT, len(self.frames))

    @property
    def reads_single(self) -> bool:
        return bool(self._single)

    def vector(self, dtype: str) -> str:
        return f"Vector<{storage(dtype)}, {self.width}>" if self.width > 1 else storage(dtype)

    def load(self, name: str, dtype: str, flat: str, numel: int = 0) -> str:
        high = self.vector_of(flat)
        element = f".val[{self.ELEMENT}]" if self.width > 1 else ""
        if high == self._own != "" and numel == self._count:
            self.ahead[name] = dtype
            element = f"own_{name}[step]{element}"
        elif high is not None and self.width > 1 and self._may_move():
            text = f"reinterpret_cast<const {self.vector(dtype)}*>({name})[{high}]"
            element = f"{self.let(self.vector(dtype), text)}{element}"
        else:
            if self.width > 1 and self._level_of(flat) >= self._innermost:
                self._single[name] = numel
            return super().load(name, dtype, flat, numel)
        self.inputs.setdefault(name, dtype)
        self._whole[name] = numel
        wanted = computed(dtype)
        return self.let(wanted, element if storage(dtype) == wanted else f"static_cast<{wanted}>({element})")

    def _may_move(self) -> bool:
        """Whether lines may stand before the loop over `k`: not those that a condition within it guards."""
        return not any(frame.pinned for frame in self.frames[self._innermost :])

    def vector_of(self, flat: str) -> str | None:
        """The number of the vector whose element `k` the index names."""
        if self.width == 1:
            return flat
        high, extent, low = self._parts.get(flat, ("", 0, ""))
        if (extent, low) != (self.width, self.ELEMENT) or self._level_of(high) >= self._innermost:
            return None
        return high

    # ---- indices, taken apart so that `k` stays the last part --------------------------------------------------------

    def joined(self, high: str, extent: int, low: str, rows: int) -> str:
        inner = self._high_of(low, extent)
        if inner is None or high == "0":
            return super().joined(high, extent, low, rows)
        vectors = extent // self.width
        name = super().joined(self.joined(high, vectors, inner, rows), self.width, self.ELEMENT, rows * vectors)
        self._rows_of.setdefault(name, (high, extent, low))
        return name

    def flat(self, place: Place) -> str:
        if place.flat is None and place.dims:
            kept = [(extent, dim) for extent, dim in zip(place.shape, place.dims, strict=True) if extent != 1]
            inner = self._high_of(kept[-1][1], kept[-1][0]) if kept else None
            shape, dims = tuple(one for one, _ in kept), tuple(one for _, one in kept)
            if inner is not None and len(kept) > 1 and not self._joined_already(shape, dims):
                high = self.flat(self.at((*shape[:-1], shape[-1] // self.width), (*dims[:-1], inner)))
                result = super().joined(high, self.width, self.ELEMENT, math.prod(shape) // self.width)
                self._flat_of[shape, dims] = result
                self._dims_of.setdefault(result, (shape, dims))
                return result
        return super().flat(place)

    def _split(self, shape: tuple[int, ...], flat: str) -> tuple[str, ...]:
        high, extent, low = self._parts.get(flat, ("", 0, ""))
        is_vector = self.width > 1 and (extent, low) == (self.width, self.ELEMENT)
        if not is_vector or len(shape) < 2 or shape[-1] % self.width or shape[-1] == self.width:
            return self._split_by_rows(shape, flat) or super()._split(shape, flat)
        inner = self._split((*shape[:-1], shape[-1] // self.width), high)
        dims = (*inner[:-1], super().joined(inner[-1], self.width, self.ELEMENT, shape[-1] // self.width))
        self._flat_of[shape, dims] = flat
        return dims

    def _split_by_rows(self, shape: tuple[int, ...], flat: str) -> tuple[str, ...]:
        """The same by the row and the place in it that the index was made of, where a row is some of the dimensions."""
        high, extent, low = self._rows_of.get(flat, ("", 0, ""))
        for cut in range(1, len(shape)):
            if math.prod(shape[cut:]) == extent:
                dims = (*self._split(shape[:cut], high), *self._split(shape[cut:], low))
                self._flat_of[shape, dims] = flat
                return dims
        return ()

    def _high_of(self, low: str, extent: int) -> str | None:
        """The number of a vector, for an index below `extent` that is one of its elements."""
        if self.width == 1 or extent % self.width:
            return None
        if low == self.ELEMENT:
            return "0" if extent == self.width else None
        high, width, element = self._parts.get(low, ("", 0, ""))
        return high if (width, element) == (self.width, self.ELEMENT) else None
