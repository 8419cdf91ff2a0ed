"""What every family that works along one dimension shares: which dimension, which threads, and how it is addressed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.kernel.cuda import BLOCK_SHUFFLE, BLOCK_TREE, THREAD, WARP, Scope, reduction_helper
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.constructor import Scalar

# What is computed for one row, with {loop} and {load}. `<sum:s>` combines the variable s over the row's threads.
SUM = """float s = 0.0f;
{loop} s += {load};
<sum:s>
"""
SQUARES = """float s = 0.0f;
{loop} {{
    float d = {load};
    s += d * d;
}}
<sum:s>
"""
MOMENTS = (
    SUM
    + """float mean = s / D, q = 0.0f;
{loop} {{
    float d = {load} - mean;
    q += d * d;
}}
<sum:q>
"""
)
# In one pass: deviations from the first element of the row, which is about as near to the mean, keep their digits.
SHIFTED = """float first = {first}, s = 0.0f, q = 0.0f;
{loop} {{
    float d = {load} - first;
    s += d;
    q += d * d;
}}
<sum:s>
<sum:q>
s /= D;
float mean = first + s;
"""
MAX = """float m = -INFINITY;
{loop} m = fmaxf(m, {load});
<max:m>
"""
MIN = """float m = INFINITY;
{loop} m = fminf(m, {load});
<min:m>
"""
# In one pass: what was summed below an earlier maximum is scaled down when a larger value comes. It begins with a
# finite one, for two infinite ones have no difference.
EXP = """float m = -1e30f, s = 0.0f;
{loop} {{
    float d = {load}, t = fmaxf(m, d);
    s = s * expf(m - t) + expf(d - t);
    m = t;
}}
<top:s>
<sum:s>
"""
ARGMAX = """float m = -INFINITY;
int k = 0;
{loop} {{
    float d = {load};
    if (d > m) {{
        m = d;
        k = j;
    }}
}}
<pick:max>
"""
ARGMIN = ARGMAX.replace("-INFINITY", "INFINITY").replace("d > m", "d < m").replace("pick:max", "pick:min")

POSITIONS: dict[str, tuple[tuple[int, int], ...]] = {  # position -> (rank, dimension)
    "last": ((2, 1), (2, 1), (2, 1), (3, 2), (3, 2), (4, 3), (5, 4)),
    "first": ((2, 0), (3, 0), (2, 0), (4, 0)),
    "middle": ((3, 1), (4, 1), (4, 2), (3, 1), (5, 1), (5, 2)),
}


@dataclass(frozen=True, slots=True)
class Axis:
    """The dimension a family works along: its text in the problem, and how the kernel addresses it.

    `dim` is what the host code calls it: the literal of the problem, or `dim` when the constructor was given it.
    """

    rank: int
    index: int
    text: Scalar
    runtime: bool
    scope: Scope

    @property
    def is_last(self) -> bool:
        return self.index == self.rank - 1

    @property
    def is_generic(self) -> bool:
        """Rows are `inner` apart, rather than one after the other."""
        return self.runtime or not self.is_last

    @property
    def dim(self) -> str:
        if self.is_last and not self.runtime:
            return "-1"
        return self.text.cuda

    @property
    def start(self) -> str:
        """The kernel's first lines: `row`, and `base`, where that row begins."""
        address = "row / inner * D * inner + row % inner" if self.is_generic else "row * D"
        return f"{self.scope.start}    int base = {address};\n"

    @property
    def at(self) -> str:
        return "base + j * inner" if self.is_generic else "base + j"

    @property
    def integers(self) -> list[str]:
        names = ["D"]
        names += ["inner"] if self.is_generic else []
        return names + (["rows"] if "rows" in self.scope.start else [])

    @property
    def sizes(self) -> str:
        """Host lines that compute the integers."""
        inner = f", inner = x.stride({self.dim})" if self.is_generic else ""
        return f"    int D = x.size({self.dim}){inner}, rows = x.numel() / D;\n"

    def helpers(self, *kinds: str) -> str:
        return "".join(reduction_helper(self.scope, kind) for kind in kinds)

    def reduced(self, keepdim: bool, options: str) -> str:
        """Host lines that allocate the output with this dimension removed, or of size one."""
        lines = "    auto sizes = x.sizes().vec();\n"
        if self.is_last and not self.runtime:
            lines += "    sizes.back() = 1;\n" if keepdim else "    sizes.pop_back();\n"
        else:
            lines += f"    if ({self.dim} < 0) {self.dim} += x.dim();\n" if self.runtime else ""
            counted_back = self.dim.startswith("-")
            place = f"sizes.size() - {self.dim[1:]}" if counted_back else self.dim
            where = f"sizes.end() - {self.dim[1:]}" if counted_back else f"sizes.begin() + {self.dim}"
            lines += f"    sizes[{place}] = 1;\n" if keepdim else f"    sizes.erase({where});\n"
        return f"{lines}    auto out = torch::empty(sizes, {options});\n"


def draw_axis(builder: ProblemBuilder, position: str, *, may_be_runtime: bool = True, scopes: bool = True) -> Axis:
    """Rank, dimension, its spelling and the scope of the work."""
    rng = builder.rng
    rank, index = rng.choice(POSITIONS[position])
    shown = index - rank if rng.random() < (0.6 if position == "last" else 0.2) else index
    spelled = builder.constructor.setting("dim", str(shown), stored=True)
    text = Scalar(spelled, spelled.removeprefix("self."), str(shown))
    if spelled == str(shown):
        text = builder.constructor.scalar("dim", shown, hint="int", may_be_argument=may_be_runtime)
    runtime = not text.cuda.lstrip("-").isdigit()
    return Axis(rank, index, text, runtime, draw_scope(rng, position == "last", runtime) if scopes else THREAD)


def draw_scope(rng: random.Random, is_last: bool, runtime: bool = False) -> Scope:
    if not is_last:
        return THREAD
    if runtime:
        return BLOCK_SHUFFLE
    return rng.choices((BLOCK_SHUFFLE, BLOCK_TREE, WARP), (7, 1.2, 1.8))[0]


def row_body(body: str, loop: str, load: str, scope: Scope, first: str = "") -> str:
    """Fill one of the bodies above for a scope, indented for a kernel."""
    lines = []
    for line in body.format(loop=loop.replace("\n    ", "\n"), load=load, first=first).splitlines():
        if line.startswith("<"):
            kind, variable = line.strip("<>").split(":")
            special = {"pick": _pick, "top": _top}.get(kind)
            lines.append(special(variable, scope) if special else scope.reduce(kind, variable))
        else:
            lines.append(f"    {line}\n")
    return "".join(lines)


def _top(variable: str, scope: Scope) -> str:
    """The largest maximum of all threads, and what each has summed, below that."""
    if not scope.helper:
        return ""
    return f"    float t = m;\n    m = {scope.helper}_max(m);\n    {variable} *= expf(t - m);\n"


def _pick(kind: str, scope: Scope) -> str:
    """Of all threads that found the best value, the smallest index."""
    if not scope.helper:
        return ""
    best = f"    float best = {scope.helper}_{kind}(m);\n"
    return f"{best}    k = (int){scope.helper}_min(m == best ? (float)k : 1e9f);\n"
