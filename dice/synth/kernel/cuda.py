"""The kernel side: the parts every kernel file is assembled from, in one fixed order and with fixed names.

Where the problem side is as varied as possible, this side is as regular as possible: one layout of the file, one name
per role (`x`, `y`, `out`, `n`, `row`, `D`, ...), so that a small model can learn to be exact.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import indent
from typing import TypeVar

from dice.kernel_form import kernel_file
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import Step, statements

INCLUDES = "#include <torch/extension.h>\n#include <cuda_runtime.h>"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor the kernel reads: its name in C++, how ModelNew.forward spells it, its element type."""

    name: str
    python: str
    type: str = "float"

    @property
    def is_input(self) -> bool:
        return self.name == self.python


Item = TypeVar("Item")


def when(condition: object, *items: Item) -> tuple[Item, ...]:
    """The items where the condition holds, else none."""
    return items if condition else ()


@dataclass(frozen=True, slots=True)
class Scope:
    """The threads that work on one row: a block (warp shuffles or a shared tree), a warp, or a single thread.

    Kernels over rows are written once against `loop`, `at` and `reduce`; the scope supplies the rest.
    """

    style: str
    start: str  # declarations at the top of the kernel; {base} is where the row begins
    loop: str
    helper: str  # name of the reduction helpers, e.g. block -> block_sum; empty when nothing is shared
    lead: str  # condition under which one thread writes the row's result
    grid: str

    @property
    def integers(self) -> tuple[str, ...]:
        """Sizes that the start of the kernel reads."""
        return when("rows" in self.start, "rows")

    def reduce(self, kind: str, variable: str) -> str:
        """Statement that combines `variable` over the row's threads; empty when one thread has it all."""
        return f"    {variable} = {self.helper}_{kind}({variable});\n" if self.helper else ""


BLOCK_SHUFFLE = Scope(
    "block_per_row",
    "    int row = blockIdx.x;\n",
    "for (int j = threadIdx.x; j < D; j += 256)",
    "block",
    "threadIdx.x == 0",
    "rows, 256",
)
# Where rows are few and long, as the channels of a batch: four times the threads reach three times the speed.
BLOCK_WIDE = replace(BLOCK_SHUFFLE, loop="for (int j = threadIdx.x; j < D; j += 1024)", grid="rows, 1024")
BLOCK_TREE = Scope(
    "block_per_row_tree", BLOCK_SHUFFLE.start, BLOCK_SHUFFLE.loop, "block", "threadIdx.x == 0", "rows, 256"
)
WARP = Scope(
    "warp_per_row",
    "    int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;\n    if (row >= rows) return;\n",
    "for (int j = lane; j < D; j += 32)",
    "warp",
    "lane == 0",
    "(rows + 7) / 8, 256",
)
THREAD = Scope(
    "thread_per_row",
    "    int row = blockIdx.x * blockDim.x + threadIdx.x;\n    if (row >= rows) return;\n",
    "#pragma unroll 16\n    for (int j = 0; j < D; j++)",  # so that many loads are under way
    "",
    "",
    "(rows + 255) / 256, 256",
)

# One thread per element; the lines set `v` from `i`.
ELEMENT = """    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{
{lines}        out[i] = v;
    }}
"""
ELEMENT_GRID = "(n + 255) / 256, 256"


@dataclass(frozen=True, slots=True)
class Sweep:
    """How threads share `n` outputs, each computed from its index `i` by lines that set `v`."""

    style: str
    loop: str  # with one {body}, or nothing around it
    depth: int  # spaces before the body's lines
    setup: str  # host line before the launch
    grid: str


SWEEPS: tuple[Sweep, ...] = (
    Sweep("plain", ELEMENT.replace("{lines}        out[i] = v;\n", "{body}"), 8, "", ELEMENT_GRID),
    Sweep(
        "grid_stride",
        "    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {{\n"
        "{body}    }}\n",
        8,
        "    int blocks = std::min((n + 255) / 256, 2048);\n",
        "blocks, 256",
    ),
    Sweep(
        "four_per_thread",
        "    int first = blockIdx.x * 1024 + threadIdx.x;\n    for (int t = 0; t < 4; t++) {{\n"
        "        int i = first + t * 256;\n        if (i < n) {{\n{body}        }}\n    }}\n",
        12,
        "",
        "(n + 1023) / 1024, 256",
    ),
)

# The sum of `v` over all elements: a grid of blocks, one atomic addition each.
TOTAL = """    float s = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {{
{lines}        s += v;
    }}
    s = block_sum(s);
    if (threadIdx.x == 0) atomicAdd(out, {result});
"""
TOTAL_HOST = """    auto out = torch::zeros({}, x.options());
    int n = x.numel();
    int blocks = std::min((n + 255) / 256, 1024);
"""

_COMBINE = {"sum": "{a} + {b}", "max": "fmaxf({a}, {b})", "min": "fminf({a}, {b})", "prod": "{a} * {b}"}


def reduction_helper(scope: Scope, kind: str, ctype: str = "float") -> str:
    """The `__device__` function that combines one value per thread; every thread gets the result."""
    if not scope.helper:
        return ""
    combine = _COMBINE[kind] if ctype == "float" else _COMBINE[kind].replace("fm", "m").replace("f(", "(")

    def joined(a: str, b: str) -> str:
        return combine.format(a=a, b=b)

    shuffle = f"    for (int k = 16; k > 0; k /= 2) v = {joined('v', '__shfl_xor_sync(0xffffffff, v, k)')};\n"
    head = f"__device__ {ctype} {scope.helper}_{kind}({ctype} v) {{\n"
    if scope is WARP:
        return f"{head}{shuffle}    return v;\n}}\n\n"
    if scope is BLOCK_TREE:
        return (
            f"{head}    __shared__ {ctype} s[256];\n    int t = threadIdx.x;\n    s[t] = v;\n    __syncthreads();\n"
            f"    for (int k = 128; k > 0; k /= 2) {{\n        if (t < k) s[t] = {joined('s[t]', 's[t + k]')};\n"
            "        __syncthreads();\n    }\n    v = s[0];\n    __syncthreads();\n    return v;\n}\n\n"
        )
    warps = 32 if scope is BLOCK_WIDE else 8
    return (
        f"{head}    __shared__ {ctype} s[{warps}];\n{shuffle}    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;\n"
        f"    __syncthreads();\n    v = s[0];\n    for (int k = 1; k < {warps}; k++) v = {joined('v', 's[k]')};\n"
        "    __syncthreads();\n    return v;\n}\n\n"
    )


def lines(*parts: str | Sequence[Step | str], indent: int = 8) -> str:
    """One line of text per string or step; empty strings vanish."""
    flat = [item for part in parts for item in ([part] if isinstance(part, str) else part)]
    texts = (item if isinstance(item, str) else item.cuda() for item in flat)
    return "".join(f"{' ' * indent}{text}\n" for text in texts if text)


class KernelFile:
    """Assembles one kernel file. `tensors` are in the order of the host function's parameters."""

    def __init__(self, builder: ProblemBuilder, name: str, tensors: Sequence[Tensor], out_type: str = "float") -> None:
        self.builder = builder
        self.name = name
        self.tensors = tuple(tensors)
        self.out_type = out_type

    @property
    def floats(self) -> list[str]:
        """Scalars the device code takes at run time."""
        return [name for name, ctype in self.builder.constructor.scalars.items() if ctype == "float"]

    def pre(self, steps: Sequence[Step], name: str = "pre") -> str:
        """A chain as a `__device__` function, for kernels that load an element at several places."""
        if not steps:
            return ""
        parameters = ", ".join(["float v", *(f"float {scalar}" for scalar in self.used(steps))])
        return f"__device__ float {name}({parameters}) {{\n{statements(steps, 4)}    return v;\n}}\n\n"

    def load(self, steps: Sequence[Step], element: str, name: str = "pre") -> str:
        """The expression that loads one element through `pre`."""
        return f"{name}({', '.join([element, *self.used(steps)])})" if steps else element

    def used(self, steps: Sequence[Step]) -> list[str]:
        present = {scalar for step in steps for scalar in step.scalars}
        return [name for name in self.floats if name in present]

    def kernel(self, body: str, integers: Sequence[str] = ()) -> str:
        """The `__global__` function; parameters are the tensors, `out`, the integers, then the scalars."""
        parameters = [f"const {tensor.type}* {tensor.name}" for tensor in self.tensors]
        parameters += [f"{self.out_type}* out", *(f"int {name}" for name in integers)]
        parameters += [f"float {name}" for name in self.floats]
        return f"__global__ void {self.name}_kernel({', '.join(parameters)}) {{\n{body}}}"

    def per_element(self, text: str, integers: Sequence[str] = ("n",)) -> str:
        return self.kernel(ELEMENT.format(lines=text), integers)

    def sweep(
        self, rng: random.Random, text: str, integers: Sequence[str] = ("n",), weights: Sequence[float] = (6, 2, 2)
    ) -> tuple[str, str, str]:
        """Kernel, launch and style where one thread computes one output; `text` (indented by 8) sets `v` from `i`."""
        sweep = rng.choices(SWEEPS, weights)[0]
        body = indent(text + "        out[i] = v;\n", " " * (sweep.depth - 8))
        launch = sweep.setup + self.launch(sweep.grid, integers)
        return self.kernel(sweep.loop.format(body=body), integers), launch, sweep.style

    def launch(self, grid: str, integers: Sequence[str] = ()) -> str:
        arguments = [f"{tensor.name}.data_ptr<{tensor.type}>()" for tensor in self.tensors]
        arguments += [f"out.data_ptr<{self.out_type}>()", *integers, *self.floats]
        return f"    {self.name}_kernel<<<{grid}>>>({', '.join(arguments)});\n"

    def write(
        self,
        code: str,
        host: str,
        integers: Sequence[tuple[str, str]] = (),
        *,
        inputs: Sequence[str] | None = None,
        before: Sequence[str] = (),
        result: str = "{}",
    ) -> str:
        """The whole file. `host` is the body between the `contiguous` lines and `return out`.

        `integers` are further host parameters with the expression that `forward` passes for each; an expression that
        unpacks into several has their names with spaces between. Where PyTorch does part of the work: `inputs` are the
        arguments of `forward`, `before` its lines before the kernel is called, and `result` what it returns, with {}
        for the kernel's output.
        """
        scalars = self.builder.constructor.scalars
        parameters = [f"torch::Tensor {tensor.name}" for tensor in self.tensors]
        parameters += [f"int {name}" for names, _ in integers for name in names.split()] + [
            f"{ctype} {name}" for name, ctype in scalars.items()
        ]
        given = inputs or ()  # numbers among the arguments of forward
        call = [tensor.python for tensor in self.tensors]
        call += [expression for _, expression in integers] + [
            name if name in given else self.builder.constructor.sources.get(name, f"self.{name}") for name in scalars
        ]
        passed = [tensor.name for tensor in self.tensors if tensor.is_input]
        contiguous = "".join(f"    {name} = {name}.contiguous();\n" for name in passed)
        python = "\n".join([*before, result, *self.builder.constructor.shared_lines])
        modules = (("F.", "import torch.nn.functional as F\n"), ("math.", "import math\n"))
        imports = "".join(line for use, line in modules if use in python)
        each = next((name for name in ("_single", "_pair", "_triple") if any(f"{name}(" in part for part in call)), "")
        imports += f"from torch.nn.modules.utils import {each}\n" if each else ""
        declaration = f"torch::Tensor {self.name}_cuda({', '.join(parameters)})"
        host = (contiguous + host).rstrip("\n")
        returned = result.format(f"ops.{self.name}_cuda({', '.join(call)})")
        return kernel_file(
            imports=imports,
            cuda="\n\n".join((INCLUDES, code.strip("\n"), f"{declaration} {{\n{host}\n    return out;\n}}")),
            declaration=declaration,
            name=self.name,
            function=f"{self.name}_cuda",
            constructor=self._init(),
            arguments=", ".join(passed if inputs is None else inputs),
            body="\n".join(f"        {line}" for line in (*before, f"return {returned}")),
        )

    def _init(self) -> str:
        lines = self.builder.constructor.kernel_lines
        if not lines and not self.builder.constructor.arguments:
            return ""
        body = "".join(f"        {line}\n" for line in lines)
        return f"    def __init__({self.builder.constructor.kernel_signature}):\n        super().__init__()\n{body}\n"
