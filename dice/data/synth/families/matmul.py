"""Matrix products: A @ B with either side transposed, batched, with a vector, outer; an added matrix; a chain after."""

from __future__ import annotations

import random

from dice.data.synth.chain import ChainState, Step, chain_length, chains, draw_chain
from dice.data.synth.cuda import (
    BLOCK_SHUFFLE,
    ELEMENT_GRID,
    WARP,
    KernelFile,
    Tensor,
    lines,
    reduction_helper,
    statements,
)
from dice.data.synth.operators import OPERATORS, SATURATES
from dice.data.synth.plan import Draft, Plan
from dice.data.synth.script import Script, Value
from dice.data.synth.shapes import LARGE, SMALL, describe, sentence

NAME = "matmul"
_STATE = ChainState("any", 18.0, False)

# layout -> (shape of a, shape of b) by letter, spellings
LAYOUTS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "nn": ("mk", "kn", ("torch.matmul({x}, {y})", "{x} @ {y}", "torch.mm({x}, {y})", "{x}.matmul({y})", "{x}.mm({y})")),
    "nt": (
        "mk",
        "nk",
        (
            "torch.matmul({x}, {y}.T)",
            "{x} @ {y}.t()",
            "torch.mm({x}, {y}.T)",
            "{x} @ {y}.transpose(0, 1)",
            "F.linear({x}, {y})",
        ),
    ),
    "tn": (
        "km",
        "kn",
        ("torch.matmul({x}.T, {y})", "{x}.t() @ {y}", "torch.mm({x}.t(), {y})", "{x}.transpose(0, 1) @ {y}"),
    ),
    "tt": ("km", "nk", ("torch.matmul({x}.T, {y}.T)", "{x}.t() @ {y}.t()")),
}
BATCHED: dict[str, tuple[str, ...]] = {
    "nn": ("torch.bmm({x}, {y})", "torch.matmul({x}, {y})", "{x} @ {y}"),
    "nt": (
        "torch.bmm({x}, {y}.transpose(1, 2))",
        "torch.matmul({x}, {y}.transpose(-2, -1))",
        "{x} @ {y}.transpose(-1, -2)",
    ),
    "tn": ("torch.bmm({x}.transpose(1, 2), {y})", "torch.matmul({x}.transpose(-2, -1), {y})"),
}
_A = {"n": "a[row * K + {k}]", "t": "a[{k} * M + row]"}
_B = {"n": "b[{k} * N + col]", "t": "b[col * K + {k}]"}

TILED = """    __shared__ float as[{tile}][{tile}], bs[{tile}][{tile}];
    int tx = threadIdx.x, ty = threadIdx.y;
    int row = blockIdx.y * {tile} + ty, col = blockIdx.x * {tile} + tx;
{offset}    float v = 0.0f;
    for (int k = 0; k < K; k += {tile}) {{
        as[ty][tx] = row < M && k + tx < K ? {a} : 0.0f;
        bs[ty][tx] = col < N && k + ty < K ? {b} : 0.0f;
        __syncthreads();
        for (int j = 0; j < {tile}; j++) v += as[ty][j] * bs[j][tx];
        __syncthreads();
    }}
    if (row < M && col < N) {{
{epilogue}    }}
"""
NAIVE = """    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || col >= N) return;
{offset}    float v = 0.0f;
    for (int k = 0; k < K; k++) v += {a} * {b};
{epilogue}"""


def sample(rng: random.Random) -> Plan:
    core = rng.choices(("matmul", "bmm", "matvec", "outer"), (6, 3, 2, 1))[0]
    features = []
    if core in ("matmul", "bmm"):
        layouts = LAYOUTS if core == "matmul" else BATCHED
        features.append(f"layout={rng.choices(tuple(layouts), (6, 3, 2, 1)[: len(layouts)])[0]}")
        features += ["added"] if rng.random() < 0.2 else []
    elif core == "matvec":
        features.append("layout=nn")
    else:
        features.append("layout=outer")
    post = draw_chain(rng, chain_length(rng, (3, 4, 2)), _STATE)
    return Plan(NAME, core, chains(post=post), tuple(features))


def size(script: Script, role: str) -> str:
    return script.dimension(role, script.rng.choice(SMALL[role]), script.rng.choice(LARGE[role]))


def sampler(script: Script, plan: Plan) -> str:
    """Products of numbers from [0, 1) are large: functions that saturate would flatten them."""
    saturates = any(OPERATORS[name].limit <= SATURATES for name in plan.chain("post"))
    return "torch.randn({shape})" if saturates else script.sampler


def render(plan: Plan, rng: random.Random) -> Draft:
    if plan.core in ("matvec", "outer"):
        return _vector(plan, rng)
    script = Script(rng)
    batched = plan.core == "bmm"
    layout = plan.features[0].removeprefix("layout=")
    first, second, spellings = LAYOUTS[layout]
    batch = [script.dimension("batch", rng.choice((1, 2, 3, 4, 5, 8)), rng.choice((16, 32, 64)))] if batched else []
    marks = {letter: size(script, letter) for letter in "mkn"}
    if not batched and rng.random() < 0.15:  # square
        marks = dict.fromkeys("mkn", marks["m"])
        script.dimensions[int(marks["m"].strip("@"))].small = rng.choice((16, 24, 32, 48, 64))
    script.sampler = sampler(script, plan)
    a = script.input("a", [*batch, *(marks[letter] for letter in first)])
    b = script.input("b", [*batch, *(marks[letter] for letter in second)])
    added = script.input("z", [*batch, marks["m"], marks["n"]]) if plan.has("added") else None
    text = rng.choice(BATCHED[layout] if batched else spellings)
    value = script.apply(text, a, "matrix product", y=b.text)
    if added:
        value = script.apply(rng.choice((f"{{x}} + {added.text}", f"{added.text} + {{x}}")), value, "add")
    value, post = script.chain(value, plan.chain("post"), state=_STATE)
    script.finish(value)
    what = "a batched matrix product" if batched else "a matrix product"
    script.title = sentence(what, "adding a matrix" * bool(added), describe(plan.chain("post")))

    tensors = [Tensor("a", "a"), Tensor("b", "b")] + [Tensor("c", "c")] * bool(added)
    file = KernelFile(script, plan.core, tensors)
    offset = (
        "    a += blockIdx.z * M * K;\n    b += blockIdx.z * K * N;\n    out += blockIdx.z * M * N;\n"
        if batched
        else ""
    )
    offset += "    c += blockIdx.z * M * N;\n" if batched and added else ""
    extra = "v += c[row * N + col];\n" if added else ""
    style, kernel, block = product_kernel(rng, layout, offset, extra, post)
    code = file.kernel(kernel, ["M", "N", "K"])
    m, k = (-2, -1) if first == "mk" else (-1, -2)
    n = -1 if second == "kn" else -2
    host = f"    int M = a.size({m}), K = a.size({k}), N = b.size({n});\n"
    host += f"    auto out = torch::empty({{{'a.size(0), ' * batched}M, N}}, a.options());\n"
    host += f"    dim3 grid((N + {block - 1}) / {block}, (M + {block - 1}) / {block}{', a.size(0)' * batched});\n"
    return Draft(script, file.write(code, host + file.launch(f"grid, dim3({block}, {block})", ["M", "N", "K"])), style)


def product_kernel(
    rng: random.Random, layout: str, offset: str, extra: str, post: list[Step], *, tiled: float = 0.7
) -> tuple[str, str, int]:
    """Style, body and block width of a product; `offset` moves the pointers, `extra` precedes the chain."""
    if rng.random() >= tiled:
        epilogue = (f"    {extra}" if extra else "") + statements(post, 4) + "    out[row * N + col] = v;\n"
        a, b = _A[layout[0]].format(k="k"), _B[layout[1]].format(k="k")
        return "naive", NAIVE.format(offset=offset, a=a, b=b, epilogue=epilogue), 16
    tile = 16 if rng.random() < 0.8 else 32
    epilogue = (f"        {extra}" if extra else "") + statements(post, 8) + "        out[row * N + col] = v;\n"
    a, b = _bracket(_A[layout[0]], "k + tx"), _bracket(_B[layout[1]], "k + ty")
    return f"tiled{tile}", TILED.format(tile=tile, offset=offset, a=a, b=b, epilogue=epilogue), tile


def _bracket(text: str, index: str) -> str:
    """`row * K + k + tx` needs no parentheses, `(k + tx) * M` does."""
    return text.format(k=f"({index})" if "[{k} *" in text else index)


def _vector(plan: Plan, rng: random.Random) -> Draft:
    script = Script(rng)
    script.sampler = sampler(script, plan)
    m, n = size(script, "m"), size(script, "n")
    if plan.core == "outer":
        x, y = script.input("x1", [m]), script.input("x2", [n])
        text = rng.choice(
            ("torch.outer({x}, {y})", "{x}.unsqueeze(1) * {y}.unsqueeze(0)", "{x}[:, None] * {y}[None, :]")
        )
        names, title = ("x", "y"), "an outer product"
    else:
        x, y = script.input("a", [m, n]), script.input("vector", [n])
        column = rng.random() < 0.4
        if column:
            script.inputs[-1].shape.append("1")
        text = rng.choice(
            ("torch.matmul({x}, {y})", "{x} @ {y}")
            if column
            else ("torch.mv({x}, {y})", "{x} @ {y}", "torch.matmul({x}, {y})", "({x} * {y}).sum(dim=1)")
        )
        names, title = ("a", "b"), "a matrix-vector product"
    value: Value = script.apply(text, x, title, y=y.text)
    value, post = script.chain(value, plan.chain("post"), state=_STATE)
    script.finish(value)
    script.title = sentence(title, describe(plan.chain("post")))
    file = KernelFile(script, plan.core, [Tensor(name, name) for name in names])
    if plan.core == "outer":
        code = file.per_element(lines("float v = x[i / N] * y[i % N];", post), ["n", "N"])
        host = "    int M = x.numel(), N = y.numel(), n = M * N;\n    auto out = torch::empty({M, N}, x.options());\n"
        return Draft(script, file.write(code, host + file.launch(ELEMENT_GRID, ["n", "N"])), "plain")
    scope = rng.choices((BLOCK_SHUFFLE, WARP), (7, 3))[0]
    store = lines("float v = s;", post, "out[row] = v;")
    integers = ["D"] + ["rows"] * ("rows" in scope.start)
    code = reduction_helper(scope, "sum") + file.kernel(
        f"{scope.start}    float s = 0.0f;\n    {scope.loop} s += a[row * D + j] * b[j];\n"
        f"{scope.reduce('sum', 's')}    if ({scope.lead}) {{\n{store}    }}\n",
        integers,
    )
    shape = "{rows, 1}" if column else "{rows}"
    host = f"    int D = a.size(1), rows = a.size(0);\n    auto out = torch::empty({shape}, a.options());\n"
    return Draft(script, file.write(code, host + file.launch(scope.grid, integers)), scope.style)
