"""Kernels of convolutions in one to three dimensions, standard and transposed, in several styles."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent

from dice.synth.kernel.cuda import KernelFile, lines
from dice.synth.kernel.products import Operands, product
from dice.synth.problem.chain import Step

SHARED_ELEMENTS = 12_000  # floats in the 48 KB of shared memory that a block may have
NAMES = {"kernel": "K", "stride": "S", "padding": "P", "dilation": "D", "output_padding": "Q"}  # before the axis
# For each spatial axis: extent in and out, position in and out, position in the window.
AXES = (("D", "OD", "d", "od", "e"), ("H", "OH", "h", "oh", "r"), ("W", "OW", "w", "ow", "s"))


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution moves along each axis. `groups`: 1, a number, or 0 for one group per input channel.

    `named`: what the kernel is given when it is launched, and has names for: KH, SH, PH, DH, QH, and so on for other
    axes. Other numbers are written into it.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    transposed: bool = False
    groups: int = 1
    named: tuple[str, ...] = ()

    def text(self, what: str, axis: int) -> str:
        """A number of that axis, or its name."""
        return NAMES[what] + self.axes[axis][0] if what in self.named else str(getattr(self, what)[axis])

    def names(self, *whats: str) -> list[str]:
        return [NAMES[what] + axis[0] for what in whats for axis in self.axes]

    @property
    def axes(self) -> tuple[tuple[str, str, str, str, str], ...]:
        return AXES[-len(self.kernel) :]

    @property
    def volume(self) -> str:
        """The window's number of places."""
        return _product([self.text("kernel", axis) for axis in range(len(self.kernel))])

    def sizes(self) -> str:
        """Host text for the output's extents."""
        return ", ".join(f"{out} = {self._extent(axis, size)}" for axis, (size, out, *_) in enumerate(self.axes))

    def _extent(self, axis: int, size: str) -> str:
        """The extent in the numbers of the problem. No number is computed and the form is always the same, because a
        small model copies better than it calculates or chooses."""
        stride, padding, more = (self.text(what, axis) for what in ("stride", "padding", "output_padding"))
        reach = self._reach(axis)
        if self.transposed:
            return f"({size} - 1) * {stride} - 2 * {padding} + {reach} + {more} + 1"
        return f"({size} + 2 * {padding} - {reach} - 1) / {stride} + 1"

    def patch(self, axis: int, outputs: int) -> str:
        """How much of the input lies under `outputs` neighbouring outputs."""
        return f"{outputs - 1} * {self.stride[axis]} + {self._reach(axis)} + 1"

    def _reach(self, axis: int) -> str:
        """The distance of the window's last place from its first."""
        return f"{self.text('dilation', axis)} * ({self.text('kernel', axis)} - 1)"

    def walk(self, inner: str, depth: int) -> str:
        """Loops over the window with {inner} where the input's position is inside; `continue` leaves out the rest."""
        text = ""
        for axis, (size, _, place, out, step) in enumerate(self.axes):
            stride = self.text("stride", axis)
            pad = " " * (depth + 4 * axis)
            text += f"{pad}for (int {step} = 0; {step} < {self.text('kernel', axis)}; {step}++) {{\n"
            text += f"{pad}    int {place} = {self.place(axis, out, step)};\n"
            if self.transposed:
                text += (
                    f"{pad}    if ({place} < 0 || {place} % {stride} != 0) continue;\n{pad}    {place} /= {stride};\n"
                )
                text += f"{pad}    if ({place} >= {size}) continue;\n"
            else:
                text += f"{pad}    if ({place} < 0 || {place} >= {size}) continue;\n"
        pad = " " * (depth + 4 * len(self.axes))
        text += indent(inner, pad)
        for axis in reversed(range(len(self.axes))):
            text += " " * (depth + 4 * axis) + "}\n"
        return text

    def place(self, axis: int, out: str, step: str) -> str:
        """The input's position under a place of the window, for an output; of a transposed one, before its stride."""
        stride, padding, dilation = (self.text(what, axis) for what in ("stride", "padding", "dilation"))
        if self.transposed:
            return f"{out} + {padding} - {step} * {dilation}"
        return f"{out} * {stride} - {padding} + {step} * {dilation}"

    @property
    def inside(self) -> str:
        """The position in one input plane."""
        return _flat([place for _, _, place, _, _ in self.axes], [size for size, *_ in self.axes])

    @property
    def tap(self) -> str:
        """The position in one window."""
        return _flat([step for *_, step in self.axes], [self.text("kernel", axis) for axis in range(len(self.axes))])

    def unpack(self, index: str) -> str:
        """Declarations of the output's position from its number in a plane."""
        parts, divided = [], index
        for _, out, _, place, _ in reversed(self.axes):
            parts.append(f"{place} = {divided} % {out}")
            divided = f"{divided} / {out}"
        parts[-1] = parts[-1].rpartition(" % ")[0]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution kernel to be written into a file whose tensors are x, weight and, where there is one, bias."""

    window: Window
    bias: bool
    post: Sequence[Step]
    extra: Sequence[str] = ()  # statements on v with `at`, the output's index

    @property
    def integers(self) -> list[str]:
        """Sizes every style needs; XC and OC are all channels, C and O those of one group."""
        window = self.window
        names = ["C", "O"] if window.groups == 1 else ["C", "O", "XC", "OC"]
        return names + self._extents

    @property
    def _extents(self) -> list[str]:
        """Sizes of the input and the output, and what a named window is made of."""
        window = self.window
        return [axis[0] for axis in window.axes] + [axis[1] for axis in window.axes] + window.names(*window.named)

    @property
    def channels(self) -> tuple[str, str]:
        return ("C", "O") if self.window.groups == 1 else ("XC", "OC")

    def host(self) -> str:
        """Sizes and the output's allocation."""
        window, outputs = self.window, self.channels[1]
        if window.groups == 1:
            channels = f"C = x.size(1), O = weight.size({1 if window.transposed else 0})"
        else:
            groups = window.groups or "XC"
            if window.named:  # a transposed layer's weights do not tell
                groups = "G" if window.transposed else "(XC / C)"
            each = f"C = XC / {groups}, O = weight.size(1), OC = O * {groups}"
            each = each if window.transposed else f"C = weight.size(1), OC = weight.size(0), O = OC / {groups}"
            channels = f"XC = x.size(1), {each}"
        spatial = ", ".join(f"{axis[0]} = x.size({place + 2})" for place, axis in enumerate(window.axes))
        out = ", ".join(axis[1] for axis in window.axes)
        kernel = [f"{name} = weight.size({place})" for place, name in enumerate(window.names("kernel"), 2)]
        spatial += f";\n    int {', '.join(kernel)}" if window.named else ""
        return (
            f"    int {channels};\n    int {spatial};\n    int {window.sizes()};\n"
            f"    auto out = torch::empty({{x.size(0), {outputs}, {out}}}, x.options());\n"
        )

    def write(self, file: KernelFile, rng: random.Random) -> tuple[str, str, str]:
        """Device code, host code and style."""
        fixed = not self.window.named  # arrays in shared memory take sizes that are known
        weights = {"sweep": 6.0} | ({"shared_weights": 2.0} if fixed else {})
        if self.window.groups == 1:
            weights |= {"four_channels": 2.0} | ({} if self.window.transposed else {"implicit": 3.5})
        flat = not self.window.transposed and len(self.window.axes) < 3
        if fixed and flat and self._patch_elements() <= SHARED_ELEMENTS:
            weights["tiled"] = 2.5
        style = rng.choices(tuple(weights), tuple(weights.values()))[0]
        return {
            "sweep": self._sweep,
            "shared_weights": self._shared_weights,
            "four_channels": self._four_channels,
            "implicit": self._implicit,
            "tiled": self._tiled,
        }[style](file, rng)

    @property
    def _edge(self) -> int:
        """Outputs along each axis of a tile."""
        return 256 if len(self.window.axes) == 1 else 16

    def _patch_elements(self) -> int:
        """How many elements lie under a tile of outputs."""
        window = self.window
        spans = zip(window.stride, window.kernel, window.dilation, strict=True)
        return math.prod((self._edge - 1) * stride + dilation * (kernel - 1) + 1 for stride, kernel, dilation in spans)

    # --- parts ------------------------------------------------------------

    @property
    def plane(self) -> str:
        return " * ".join(axis[1] for axis in self.window.axes)

    @property
    def area(self) -> str:
        return " * ".join(axis[0] for axis in self.window.axes)

    def _input(self, channel: str = "c") -> str:
        inputs = self.channels[0]
        channel = channel if self.window.groups == 1 else f"oc / O * C + {channel}"
        first = f"(b * {inputs} + {channel})"
        axes = self.window.axes
        return _flat([first, *(axis[2] for axis in axes)], ["", *(axis[0] for axis in axes)])

    def _weight(self, oc: str = "oc") -> str:
        if self.window.transposed:
            own = "c" if self.window.groups == 1 else f"({oc} / O * C + c)"
            row = f"({own} * O + {oc if self.window.groups == 1 else f'{oc} % O'})"
        else:
            row = f"({oc} * C + c)"
        return _flat(
            [row, *(axis[4] for axis in self.window.axes)],
            ["", *(self.window.text("kernel", axis) for axis in range(len(self.window.axes)))],
        )

    def _finish(self, at: str, oc: str = "oc") -> list[str]:
        return [*([f"v += bias[{oc}];"] if self.bias else []), *(text.format(at=at) for text in self.extra)]

    # --- styles ------------------------------------------------------------

    def _sweep(self, file: KernelFile, rng: random.Random) -> tuple[str, str, str]:
        outputs = self.channels[1]
        text = lines(
            f"int p = i % ({self.plane}), oc = i / ({self.plane}) % {outputs}, b = i / ({self.plane}) / {outputs};"
        )
        text += lines(f"int {self.window.unpack('p')};", "float v = 0.0f;", "for (int c = 0; c < C; c++) {")
        text += self.window.walk(f"v += x[{self._input()}] * weight[{self._weight()}];\n", 12) + "        }\n"
        text += lines(self._finish("i"), self.post)
        code, launch, style = file.sweep(rng, text, ["n", *self.integers])
        return code, f"{self.host()}    int n = out.numel();\n{launch}", style

    def _shared_weights(self, file: KernelFile, rng: random.Random) -> tuple[str, str, str]:
        """One block works on one output channel; its window of weights, one input channel at a time, is shared."""
        volume, outputs = self.window.volume, self.channels[1]
        body = f"    __shared__ float ws[{volume}];\n"
        body += "    int p = blockIdx.x * 256 + threadIdx.x, oc = blockIdx.y, b = blockIdx.z;\n"
        body += f"    int {self.window.unpack('p')};\n"
        body += "    float v = 0.0f;\n    for (int c = 0; c < C; c++) {\n        __syncthreads();\n"
        body += (
            f"        for (int j = threadIdx.x; j < {volume}; j += 256) ws[j] = weight[{self._row()} * {volume} + j];\n"
        )
        body += f"        __syncthreads();\n        if (p >= {self.plane}) continue;\n"
        body += self.window.walk(f"v += x[{self._input()}] * ws[{self.window.tap}];\n", 8)
        body += f"    }}\n    if (p >= {self.plane}) return;\n    int i = (b * {outputs} + oc) * {self.plane} + p;\n"
        body += lines(self._finish("i"), self.post, "out[i] = v;", indent=4)
        host = f"{self.host()}    dim3 grid(({self.plane} + 255) / 256, {outputs}, x.size(0));\n"
        return file.kernel(body, self.integers), host + file.launch("grid, 256", self.integers), "shared_weights"

    def _row(self) -> str:
        """The number of the window that belongs to input channel c and output channel oc."""
        if not self.window.transposed:
            return "(oc * C + c)"
        if self.window.groups == 1:
            return "(c * O + oc)"
        return "((oc / O * C + c) * O + oc % O)"

    def _four_channels(self, file: KernelFile, rng: random.Random) -> tuple[str, str, str]:
        """Each thread computes four output channels at one place, so that an input value is fetched once for them."""
        inner = f"float f = x[{self._input()}];\nfor (int q = 0; q < 4; q++)\n"
        inner += f"    if (oc + q < O) sum[q] += f * weight[{self._weight('(oc + q)')}];\n"
        body = "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= n) return;\n"
        body += f"    int p = i % ({self.plane}), g = i / ({self.plane});\n"
        body += "    int oc = g % ((O + 3) / 4) * 4, b = g / ((O + 3) / 4);\n"
        body += f"    int {self.window.unpack('p')};\n    float sum[4] = {{}};\n    for (int c = 0; c < C; c++) {{\n"
        body += self.window.walk(inner, 8)
        body += "    }\n    for (int q = 0; q < 4 && oc + q < O; q++) {\n"
        body += f"        int at = (b * O + oc + q) * {self.plane} + p;\n        float v = sum[q];\n"
        body += lines(self._finish("at", "oc + q"), self.post, "out[at] = v;") + "    }\n"
        integers = ["n", *self.integers]
        host = f"{self.host()}    int n = x.size(0) * ((O + 3) / 4) * {self.plane};\n"
        return file.kernel(body, integers), host + file.launch("(n + 255) / 256, 256", integers), "four_channels"

    def _implicit(self, file: KernelFile, rng: random.Random) -> tuple[str, str, str]:
        """A matrix product of the weights with the input's windows, which are looked up and never stored."""
        window = self.window
        pointwise = set(window.kernel) == {1} and set(window.stride) == {1} and not any(window.padding)
        names = self._extents
        helper, b = "", "x[{k} * N + col]"
        if not pointwise:
            b = f"patch(x, {{k}}, col, {', '.join(names)})"
            parameters = ", ".join(f"int {name}" for name in ("k", "p", *names))
            helper = f"__device__ float patch(const float* x, {parameters}) {{\n"
            helper += f"    int {window.unpack('p')}, c = k / {window.volume}, j = k % {window.volume};\n"
            for axis, (size, _, place, out, _) in enumerate(window.axes):
                rest = _product([window.text("kernel", other) for other in range(axis + 1, len(window.axes))])
                step = f"j / {rest}" if rest else "j"
                step = step if axis == 0 else f"{step} % {window.text('kernel', axis)}"
                helper += f"    int {place} = {window.place(axis, out, step)};\n"
                helper += f"    if ({place} < 0 || {place} >= {size}) return 0.0f;\n"
            axes = [axis[2] for axis in window.axes]
            helper += f"    return x[{_flat(['c', *axes], ['', *(axis[0] for axis in window.axes)])}];\n}}\n\n"
        offset = f"    x += blockIdx.z * C * {self.area};\n    out += blockIdx.z * M * N;\n"
        extra = [*(["v += bias[row];"] if self.bias else [])]
        extra += [text.format(at="blockIdx.z * M * N + row * N + col") for text in self.extra]
        operands = Operands("weight[row * K + {k}]", b, offset=offset, extra=extra, batched=True)
        kernel = product(rng, operands, self.post)
        integers = ["M", "N", "K", "C", *names]
        host = self.host() + f"    int M = O, N = {self.plane}, K = C * {window.volume};\n{kernel.grid('x.size(0)')}"
        code = helper + file.kernel(kernel.body, integers)
        return code, host + file.launch(kernel.launch, integers), f"implicit_{kernel.style}"

    def _tiled(self, file: KernelFile, rng: random.Random) -> tuple[str, str, str]:
        """A block shares the input patch under its tile of outputs, one input channel at a time."""
        window, outputs = self.window, self.channels[1]
        edge = self._edge
        spans = [f"P{axis[0]}" for axis in window.axes]
        total = " * ".join(spans)
        patches = ", ".join(f"{span} = {window.patch(axis, edge)}" for axis, span in enumerate(spans))
        thread = ["threadIdx.x"] if edge == 256 else ["threadIdx.x / 16", "threadIdx.x % 16"]
        origin = ["tile * 256"] if edge == 256 else ["tile / across * 16", "tile % across * 16"]
        body = f"    constexpr int {patches};\n    __shared__ float xs[{total}];\n"
        body += "    int tile = blockIdx.x, oc = blockIdx.y, b = blockIdx.z;\n"
        body += "" if edge == 256 else "    int across = (OW + 15) / 16;\n"
        for (_, _, _, out, _), start, own in zip(window.axes, origin, thread, strict=True):
            body += f"    int {out}0 = {start}, {out} = {out}0 + {own};\n"
        body += "    float v = 0.0f;\n    for (int c = 0; c < C; c++) {\n        __syncthreads();\n"
        body += f"        for (int j = threadIdx.x; j < {total}; j += 256) {{\n"
        inside = []
        for axis, (size, _, place, out, _) in enumerate(window.axes):
            rest = " * ".join(spans[axis + 1 :])
            local = f"j / {rest}" if rest else "j"
            local = local if axis == 0 else f"{local} % {spans[axis]}"
            first = f"{out}0 * {window.stride[axis]} - {window.padding[axis]}"
            body += f"            int {place} = {first} + {local};\n"
            inside.append(f"{place} >= 0 && {place} < {size}")
        body += f"            xs[j] = {' && '.join(inside)} ? x[{self._input()}] : 0.0f;\n"
        body += "        }\n        __syncthreads();\n"
        taps, pad = [], 8
        for axis, (_, _, _, _, step) in enumerate(window.axes):
            body += f"{' ' * pad}for (int {step} = 0; {step} < {window.kernel[axis]}; {step}++)\n"
            taps.append(f"({thread[axis]} * {window.stride[axis]} + {step} * {window.dilation[axis]})")
            pad += 4
        local = _flat(taps, ["", *spans[1:]])
        body += f"{' ' * pad}v += xs[{local}] * weight[{self._weight()}];\n    }}\n"
        body += f"    if ({' || '.join(f'{axis[3]} >= {axis[1]}' for axis in window.axes)}) return;\n"
        places = [f"(b * {outputs} + oc)", *(axis[3] for axis in window.axes)]
        body += f"    int i = {_flat(places, ['', *(axis[1] for axis in window.axes)])};\n"
        body += lines(self._finish("i"), self.post, "out[i] = v;", indent=4)
        tiles = "(OW + 255) / 256" if edge == 256 else "((OH + 15) / 16) * ((OW + 15) / 16)"
        host = f"{self.host()}    dim3 grid({tiles}, {outputs}, x.size(0));\n"
        return file.kernel(body, self.integers), host + file.launch("grid, 256", self.integers), "tiled"


def _product(sizes: Sequence[str]) -> str:
    """`(3 * 3)`, not 9; one size alone."""
    return sizes[0] if len(sizes) == 1 else f"({' * '.join(sizes)})" if sizes else ""


def _flat(places: Sequence[str], sizes: Sequence[str]) -> str:
    """The index of nested places: a * S1 + b, then (a * S1 + b) * S2 + c."""
    text = places[0]
    for place, size in zip(places[1:], sizes[1:], strict=True):
        text = f"({text}) * {size} + {place}" if " + " in text and not _closed(text) else f"{text} * {size} + {place}"
    return text


def _closed(text: str) -> bool:
    """Whether one pair of parentheses goes around the whole text."""
    if not text.startswith("(") or not text.endswith(")"):
        return False
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place == len(text) - 1
    return False
