"""Convolutions as products: channels by pixels of all images, summed over input channels and taps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dice.optimize.graph import Node
from dice.optimize.templates.contractions.products import FEW, in_parts, with_bias
from dice.optimize.templates.emitter import Emitter, Place, computed, sum_of, times
from dice.optimize.templates.pointwise import rule
from dice.optimize.templates.reductions import accumulated, reduced
from dice.optimize.templates.shapes import viewed
from dice.optimize.templates.values import Guarded, Keywords, Positional, Product, Value, cast


def _listed(value: Any, n: int) -> list[int]:
    return [value] * n if isinstance(value, int) else list(value) * (n if len(value) == 1 else 1)


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution")
def _convolution(node: Node, given: list[Any], options: Keywords) -> Value:
    n = len(given[1].shape) - 2
    is_turned = "transpose" in node.base
    defaults: list[Any] = [None, None, None, 1, 0, 0, 1, 1] if is_turned else [None, None, None, 1, 0, 1, 1]
    full = list(given) + defaults[len(given) :]
    if node.base == "convolution":
        value, weight, bias, stride, pad, dilation, is_turned, _, groups = full[:9]
    elif is_turned:
        value, weight, bias, stride, pad, _, groups, dilation = full[:8]
    else:
        value, weight, bias, stride, pad, dilation, groups = full[:7]
    shape = node.spec.shape
    if len(shape) < n + 2:  # one image without a batch
        shape, value = (1, *shape), viewed(value, (1, *value.shape))
    stride, dilation = _listed(stride, n), _listed(dilation, n)
    if isinstance(pad, str):  # "same" or "valid"
        around = [d * (k - 1) if pad == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)]
        pad = [one // 2 for one in around]
    form = Transposed if is_turned else Convolution
    result = form(shape, value, weight, stride, _listed(pad, n), dilation, groups).value_of(node.spec.dtype)
    result = viewed(result, node.spec.shape)
    return with_bias(node, result, viewed(bias, (bias.numel, *(1,) * n)) if bias is not None else None)


class Convolution:
    """Output channels of a group by pixels of all images, summed over the group's input channels and the taps."""

    def __init__(
        self,
        shape: tuple[int, ...],
        value: Value,
        weight: Value,
        stride: list[int],
        pad: list[int],
        dilation: list[int],
        groups: int,
    ):
        self.shape, self.value, self.weight = shape, value, weight
        self.stride, self.pad, self.dilation, self.groups = stride, pad, dilation, groups
        self.batch, in_channels, *self.extents = value.shape
        self.taps, self.outs = weight.shape[2:], shape[2:]
        self.own_in, self.own_out = in_channels // groups, shape[1] // groups

    def value_of(self, dtype: str) -> Value:
        """The result, without a bias."""
        work = accumulated(dtype)
        return self._thin(work) if self.own_out < FEW else in_parts(self.product(work))

    def product(self, work: str) -> Product:
        pixels, depth = math.prod(self.outs), self.own_in * math.prod(self.taps)
        return Product(
            self.shape,
            work,
            (self.groups, self.own_out, self.batch * pixels, depth),
            self.weighed,
            self.seen,
            self.place,
            in_pairs=pixels % 2 == 0,
            among=(self.value, self.weight),
        )

    def weighed(self, e: Emitter, z: str, m: str, k: str) -> tuple[Value, Place]:
        """The weight of tap and input channel `k` for output channel `m` of group `z`."""
        channel, *tap = e.dims(e.at_flat((self.own_in, *self.taps), k))
        return self.weight, e.at(self.weight.shape, (self.in_group(e, z, self.own_out, m), channel, *tap))

    def seen(self, e: Emitter, z: str, k: str, pixel: str) -> tuple[Value, Place]:
        """What lies under tap and input channel `k` at a pixel; 0 outside of the image."""
        channel, *tap = e.dims(e.at_flat((self.own_in, *self.taps), k))
        image, *at = e.dims(e.at_flat((self.batch, *self.outs), pixel))
        conditions, there = [], []
        for index, (out, one) in enumerate(zip(at, tap, strict=True)):
            extent, pad, step = self.extents[index], self.pad[index], self.stride[index]
            moved = times(one, self.dilation[index], extent)
            start = sum_of(times(out, step, extent), moved)
            inner = e.index(f"{start} - {pad}" if pad else start)
            reach = (self.outs[index] - 1) * step + (self.taps[index] - 1) * self.dilation[index] - pad
            conditions += [f"{inner} >= 0"] if pad else []
            conditions += [f"{inner} < {extent}"] if reach >= extent else []
            there.append(inner)
        return self.inside(conditions, (image, self.in_group(e, z, self.own_in, channel), *there))

    def inside(self, conditions: Sequence[str], dims: tuple[str, ...]) -> tuple[Value, Place]:
        """An element of the images where it is one, and else 0."""
        place = Place(self.value.shape, dims)
        chosen = [(" && ".join(conditions), self.value, place)]
        return Guarded(self.value.shape, self.value.dtype, lambda e, dims: chosen, "0", (self.value,)), place

    def place(self, e: Emitter, z: str, m: str, pixel: str) -> Place:
        """Where the result for output channel `m` of group `z` and a pixel of any image goes."""
        pixels, channels = math.prod(self.outs), self.shape[1]
        image, inner = "0", pixel
        if self.batch > 1:
            image, inner = e.dims(e.at_flat((self.batch, pixels), pixel))
        channel = self.in_group(e, z, self.own_out, m)
        row = e.joined(image, channels, channel, self.batch) if self.batch > 1 else channel
        return e.at_flat(self.shape, e.joined(row, pixels, inner, self.batch * channels) if pixels > 1 else row)

    def in_group(self, e: Emitter, z: str, size: int, index: str) -> str:
        return index if z == "0" else e.joined(z, size, index, self.groups)

    def _thin(self, work: str) -> Value:
        """With few channels in a group, such as depthwise: each sum by its own threads."""
        pixels = math.prod(self.outs)

        def terms(e: Emitter, dims: tuple[str, ...]) -> str:
            image, channel, pixel, k = dims
            z, m = channel, "0"
            if self.own_out > 1:
                z, m = e.dims(e.at_flat((self.groups, self.own_out), channel))
            z = "0" if self.groups == 1 else z
            whole = e.joined(image, pixels, pixel, self.batch) if self.batch > 1 else pixel
            return self.term(e, z, m, k, whole, work)

        shape = (self.batch, self.shape[1], pixels, self.thin_depth)
        return viewed(reduced(_Terms(shape, work, terms, (self.value, self.weight)), [3], "sum"), self.shape)

    @property
    def thin_depth(self) -> int:
        return self.own_in * math.prod(self.taps)

    def term(self, e: Emitter, z: str, m: str, k: str, pixel: str, work: str) -> str:
        """One product of the sum for a channel and a pixel."""
        factors = self.weighed(e, z, m, k), self.seen(e, z, k, pixel)
        return " * ".join(cast(value.load(e, place), value.dtype, work) for value, place in factors)


class _Terms(Positional):
    """Products that are computed of their indices, and read other values."""

    def __init__(self, shape: tuple[int, ...], dtype: str, write: Any, among: tuple[Value, ...]):
        super().__init__(shape, dtype, write)
        self._among = among

    @property
    def sources(self) -> Sequence[Value]:
        return self._among


class Transposed(Convolution):
    """A transposed convolution. With a stride of s, an output pixel meets only every s-th tap along a dimension: those
    whose pixels have the same ones are a *phase*, and a product of its own.

    Phase p has the taps p, p + s, p + 2s and so on, and the output pixels y with y + pad = p * dilation modulo s: y is
    `first + s * q`. There tap p + s * a meets the input pixel `q + base - a * dilation`.
    """

    def __init__(self, *given: Any):
        super().__init__(*given)
        # Where the dilation has a divisor in common with the stride, there is one phase, and most taps meet nothing.
        pairs = zip(self.stride, self.dilation, strict=True)
        self.phases = tuple(step if math.gcd(step, spread) == 1 else 1 for step, spread in pairs)
        self.own_taps = tuple(-(-taps // count) for taps, count in zip(self.taps, self.phases, strict=True))
        self.own_outs = tuple(-(-out // count) for out, count in zip(self.outs, self.phases, strict=True))

    def product(self, work: str) -> Product:
        phases = math.prod(self.phases)
        extents = (
            self.groups * phases,
            self.own_out,
            self.batch * math.prod(self.own_outs),
            self.own_in * math.prod(self.own_taps),
        )
        is_even = all(taps % count == 0 for taps, count in zip(self.taps, self.phases, strict=True))
        return Product(
            self.shape,
            work,
            extents,
            self.weighed,
            self.seen,
            self.place,
            lambda: ("m", "n"),
            None if is_even else self._terms,
            self._exists,
            among=(self.value, self.weight),
        )

    def _phase(self, e: Emitter, z: str) -> tuple[str, list[str]]:
        """The group, and the phase along each dimension."""
        group, *phase = e.dims(e.at_flat((self.groups, *self.phases), z))
        return group, phase

    def _count(self, e: Emitter, phase: str, index: int) -> str:
        """How many taps a phase has along a dimension."""
        taps, count = self.taps[index], self.phases[index]
        return str(taps // count) if taps % count == 0 else e.index(f"({taps + count - 1} - {phase}) / {count}")

    def _terms(self, e: Emitter, z: str) -> str:
        """How many terms the sums of a phase have."""
        _, phase = self._phase(e, z)
        counts = [self._count(e, one, index) for index, one in enumerate(phase)]
        return e.index(" * ".join([str(self.own_in), *counts]))

    def _tap(self, e: Emitter, phase: Sequence[str], k: str) -> tuple[str, list[str]]:
        """The input channel of `k`, and the number of its tap in the phase along each dimension."""
        rest, channel = e.dims(e.at_flat((math.prod(self.own_taps), self.own_in), k))
        own = []
        for index in range(len(phase) - 1, 0, -1):
            most, count = self.own_taps[index], self._count(e, phase[index], index)
            quotient = rest
            if most > 1:
                less = rest if most == 2 else f"{rest} / {most - 1}"
                whole = f"{rest} / {most}"
                quotient = e.index(whole if count == str(most) else f"{count} == {most} ? {whole} : {less}")
            own.append(e.index(f"{rest} - {quotient} * {count}") if most > 1 else "0")
            rest = quotient
        return channel, [rest if self.own_taps[0] > 1 else "0", *reversed(own)]

    def weighed(self, e: Emitter, z: str, m: str, k: str) -> tuple[Value, Place]:
        group, phase = self._phase(e, z)
        channel, own = self._tap(e, phase, k)
        taps = [sum_of(one, times(a, step)) for one, a, step in zip(phase, own, self.phases, strict=True)]
        return self.weight, e.at(self.weight.shape, (self.in_group(e, group, self.own_in, channel), m, *taps))

    def seen(self, e: Emitter, z: str, k: str, pixel: str) -> tuple[Value, Place]:
        group, phase = self._phase(e, z)
        channel, own = self._tap(e, phase, k)
        image, *at = e.dims(e.at_flat((self.batch, *self.own_outs), pixel))
        conditions, there = [], []
        for index, (q, a) in enumerate(zip(at, own, strict=True)):
            moved, extent = times(a, self.dilation[index]), self.extents[index]
            if self.phases[index] == 1 < self.stride[index]:
                offset = e.index(f"{sum_of(q, str(self.pad[index]))} - {moved}")
                inner = e.index(f"{offset} / {self.stride[index]}")
                conditions += [f"{offset} >= 0", f"{offset} % {self.stride[index]} == 0", f"{inner} < {extent}"]
            else:
                base = self._base(e, phase[index], index)
                inner = e.index(f"{sum_of(q, base)} - {moved}" if moved != "0" else sum_of(q, base))
                least, most = self._reach(index)
                conditions += [f"{inner} >= 0"] if least < 0 else []
                conditions += [f"{inner} < {extent}"] if most >= extent else []
            there.append(inner)
        return self.inside(conditions, (image, self.in_group(e, group, self.own_in, channel), *there))

    def _first(self, e: Emitter, phase: str, index: int) -> str:
        """The first output pixel of a phase along a dimension."""
        count = self.phases[index]
        if count == 1:
            return "0"
        return e.index(f"({sum_of(times(phase, self.dilation[index]), str(-self.pad[index] % count))}) % {count}")

    def _base(self, e: Emitter, phase: str, index: int) -> str:
        """The input pixel that the first tap of a phase meets at its first output pixel."""
        count, pad = self.phases[index], self.pad[index]
        if count == 1:
            return str(pad)
        moved = times(phase, self.dilation[index])
        return e.index(f"({sum_of(self._first(e, phase, index), str(pad))} - {moved}) / {count}")

    def _reach(self, index: int) -> tuple[int, int]:
        """The first and the last input pixel that any phase's product asks for along a dimension."""
        count, pad, spread = self.phases[index], self.pad[index], self.dilation[index]
        bases = [((phase * spread - pad) % count + pad - phase * spread) // count for phase in range(count)]
        fewest = [base - (-(-(self.taps[index] - phase) // count) - 1) * spread for phase, base in enumerate(bases)]
        return min(*bases, *fewest), max(bases) + self.own_outs[index] - 1

    def _pixel(self, e: Emitter, z: str, pixel: str) -> tuple[str, list[str]]:
        """The image, and the output pixel, along each dimension."""
        _, phase = self._phase(e, z)
        image, *at = e.dims(e.at_flat((self.batch, *self.own_outs), pixel))
        pairs = zip(phase, at, self.phases, strict=True)
        return image, [
            e.index(sum_of(times(q, step), self._first(e, one, index))) for index, (one, q, step) in enumerate(pairs)
        ]

    def _exists(self, e: Emitter, z: str, pixel: str) -> str:
        """Whether there is such an output pixel: phases differ by one."""
        _, at = self._pixel(e, z, pixel)
        pairs = zip(at, self.outs, self.phases, strict=True)
        return " && ".join(f"{one} < {out}" for one, out, count in pairs if out % count)

    def place(self, e: Emitter, z: str, m: str, pixel: str) -> Place:
        group, _ = self._phase(e, z)
        image, at = self._pixel(e, z, pixel)
        return e.at_flat(self.shape, e.flat(e.at(self.shape, (image, self.in_group(e, group, self.own_out, m), *at))))

    @property
    def thin_depth(self) -> int:
        return self.own_in * math.prod(self.own_taps)

    def term(self, e: Emitter, z: str, m: str, k: str, pixel: str, work: str) -> str:
        """The phase follows from the pixel here."""
        channel, *own = e.dims(e.at_flat((self.own_in, *self.own_taps), k))
        image, *at = e.dims(e.at_flat((self.batch, *self.outs), pixel))
        conditions, there, taps = [], [], []
        for index, (y, a) in enumerate(zip(at, own, strict=True)):
            count, step, spread = self.phases[index], self.stride[index], self.dilation[index]
            moved, tap = e.index(sum_of(y, str(self.pad[index]))), a
            if count > 1:
                phase = e.index(f"{moved} * {pow(spread, -1, count)} % {count}")
                tap = e.index(sum_of(phase, times(a, count)))
                conditions += [f"{tap} < {self.taps[index]}"] if self.taps[index] % count else []
            offset = e.index(f"{moved} - {times(tap, spread)}" if tap != "0" else moved)
            inner = e.index(f"{offset} / {step}" if step > 1 else offset)
            conditions += [f"{offset} >= 0", f"{inner} < {self.extents[index]}"]
            conditions += [f"{offset} % {step} == 0"] if count == 1 < step else []
            there.append(inner)
            taps.append(tap)
        first = self.in_group(e, z, self.own_in, channel)
        factors = (
            (self.weight, e.at(self.weight.shape, (first, m, *taps))),
            (self.value, Place(self.value.shape, (image, first, *there))),
        )

        def make() -> str:
            return " * ".join(cast(value.load(e, place), value.dtype, work) for value, place in factors)

        return e.guarded(computed(work), " && ".join(conditions), "0", make)
