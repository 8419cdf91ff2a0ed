"""Rows in order: sorted, their largest or smallest values, medians, and what is chosen by them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.kernel.cuda import KernelFile, Tensor, lines
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence

NAME = "order"
_STATE = ChainState("any", 8.0, False)


@dataclass(frozen=True, slots=True)
class Order:
    """Spellings hold {s}, the argument for the order, and {k}, how many or the how manieth. `gives`: "all" in order,
    the first "some", or "one" value of each row. `first`: whether the largest value comes first.
    """

    phrase: str
    spellings: tuple[str, ...]
    gives: str
    first: str  # largest | smallest
    indices: bool = False
    finish: str = ""  # of the first ones: softmax | mean | keep


_DOWN = ", descending=True"
ORDERS: dict[str, Order] = {
    "sort": Order(
        "sorting",
        ("torch.sort({x}, dim=-1).values", "{x}.sort(dim=-1)[0]", "torch.sort({x}, dim=-1)[0]", "{x}.sort().values"),
        "all",
        "smallest",
    ),
    "sort_down": Order(
        "sorting from the largest",
        (f"torch.sort({{x}}, dim=-1{_DOWN}).values", f"{{x}}.sort(-1{_DOWN})[0]", f"{{x}}.sort(dim=-1{_DOWN}).values"),
        "all",
        "largest",
    ),
    "argsort": Order(
        "the order of values",
        ("torch.argsort({x}, dim=-1)", "{x}.argsort(-1)", "torch.sort({x}, dim=-1).indices", "{x}.argsort(dim=-1)"),
        "all",
        "smallest",
        True,
    ),
    "argsort_down": Order(
        "the order of values from the largest",
        (f"torch.argsort({{x}}, dim=-1{_DOWN})", f"{{x}}.argsort(dim=-1{_DOWN})", f"{{x}}.sort(-1{_DOWN})[1]"),
        "all",
        "largest",
        True,
    ),
    "topk": Order(
        "the largest values",
        ("torch.topk({x}, {k}, dim=-1).values", "{x}.topk({k}, dim=-1)[0]", "torch.topk({x}, k={k}, dim=-1)[0]"),
        "some",
        "largest",
    ),
    "smallest": Order(
        "the smallest values",
        ("torch.topk({x}, {k}, dim=-1, largest=False).values", "{x}.topk({k}, largest=False)[0]")
        + ("torch.sort({x}, dim=-1).values[..., :{k}]",),
        "some",
        "smallest",
    ),
    "topk_indices": Order(
        "the places of the largest values",
        ("torch.topk({x}, {k}, dim=-1).indices", "{x}.topk({k}, dim=-1)[1]", "torch.topk({x}, k={k}, dim=-1)[1]"),
        "some",
        "largest",
        True,
    ),
    "kth": Order(
        "the k-th smallest value",
        ("torch.kthvalue({x}, {k}, dim=-1).values", "{x}.kthvalue({k}, dim=-1)[0]")
        + ("torch.sort({x}, dim=-1).values[..., {k} - 1]",),
        "one",
        "smallest",
    ),
    "median": Order(
        "the median", ("torch.median({x}, dim=-1).values", "{x}.median(dim=-1)[0]"), "one", "smallest", finish="median"
    ),
    "topk_softmax": Order(
        "a softmax of the largest values",
        ("torch.softmax(torch.topk({x}, {k}, dim=-1).values, dim=-1)", "F.softmax({x}.topk({k}, dim=-1)[0], dim=-1)"),
        "some",
        "largest",
        finish="softmax",
    ),
    "topk_mean": Order(
        "the mean of the largest values",
        ("torch.topk({x}, {k}, dim=-1).values.mean(dim=-1)", "{x}.topk({k}, dim=-1)[0].mean(-1)"),
        "one",
        "largest",
        finish="mean",
    ),
    "keep_largest": Order(
        "keeping the largest values",
        (
            "torch.where({x} >= torch.topk({x}, {k}, dim=-1).values[..., -1:], {x}, torch.zeros_like({x}))",
            "{x}.masked_fill({x} < {x}.topk({k}, dim=-1)[0][..., -1:], 0.0)",
        ),
        "all",
        "largest",
        finish="keep",
    ),
}
# Each thread counts what comes before its value: that is its place.
COUNT = """    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int row = i / D, k = i % D, base = row * D, place = 0;
    float v = {own};
    for (int j = 0; j < D; j++) {{
        float w = {load};
        place += w {less} v{ties};
    }}
{store}"""
SHARED_COUNT = """    extern __shared__ float s[];
    int row = blockIdx.x, base = row * D;
    for (int j = threadIdx.x; j < D; j += 256) s[j] = {load};
    __syncthreads();
    for (int k = threadIdx.x; k < D; k += 256) {{
        float v = s[k];
        int place = 0;
        for (int j = 0; j < D; j++) place += s[j] {less} v{ties};
{store}    }}
"""
# Pairs ever nearer to one another are put in order, in runs that grow: P is a power of two.
BITONIC = """    extern __shared__ float s[];
{declared}    int row = blockIdx.x, base = row * D;
    for (int j = threadIdx.x; j < P; j += 256) {{
        s[j] = j < D ? {load} : {last};
{filled}    }}
    __syncthreads();
    for (int run = 2; run <= P; run *= 2) {{
        for (int gap = run / 2; gap > 0; gap /= 2) {{
            for (int j = threadIdx.x; j < P; j += 256) {{
                int other = j ^ gap;
                if (other > j && (s[other] {less} s[j]) == ((j & run) == 0)) {{
                    float v = s[j];
                    s[j] = s[other];
                    s[other] = v;
{swapped}                }}
            }}
            __syncthreads();
        }}
    }}
{store}"""
# One thread keeps the first few of its row in order.
INSERTION = """    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int base = row * D;
    float s[{k}];
{declared}    for (int k = 0; k < {k}; k++) s[k] = {last};
    for (int j = 0; j < D; j++) {{
        float w = {load};
        if (w {less} s[{k} - 1]) {{
            int k = {k} - 1;
            for (; k > 0 && w {less} s[k - 1]; k--) {{
                s[k] = s[k - 1];
{moved}            }}
            s[k] = w;
{put}        }}
    }}
{store}"""


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(ORDERS))
    order = ORDERS[core]
    pre = () if order.indices else draw_chain(rng, chain_length(rng, (4, 4, 2)))
    state = state_after(pre)  # the smallest of values that are never negative are often all the same
    pre = pre if state.magnitude <= 15 and (order.first == "largest" or state.sign == "any") else ()
    post = () if order.indices else draw_chain(rng, chain_length(rng, (4, 4, 2)), _STATE)
    k = rng.choice((1, 2, 3, 4, 5, 6, 8)) if "{k}" in order.spellings[0] else 0
    return Plan(NAME, core, chains(pre=pre, post=post), (f"rank={rng.choices((2, 3), (3, 1))[0]}", f"k={k}"))


def render(plan: Plan, rng: random.Random) -> Draft:
    order = ORDERS[plan.core]
    k = max(2, int(plan.features[1].removeprefix("k="))) if order.finish == "softmax" else int(plan.features[1][2:])
    builder = ProblemBuilder(rng)
    shape = [builder.tensors.dimension("batch", rng.choice((1, 2, 4, 8, 16)), rng.choice((64, 512, 4096)))]
    if plan.has("rank=3"):
        shape.append(builder.tensors.dimension("sequence", rng.choice((2, 3, 5, 8)), rng.choice((16, 64, 128))))
    shape.append(
        builder.tensors.dimension("features", rng.choice((9, 16, 20, 33, 64, 100)), rng.choice((64, 256, 1000, 2048)))
    )
    value, pre = builder.operators.chain(builder.tensors.input("x", shape, "torch.randn({shape})"), plan.chain("pre"))
    text = rng.choice(order.spellings).replace("{k}", str(k))
    value = value if text.count("{x}") < 2 or value.text.isidentifier() else builder.forward.name(value.text)
    value = builder.forward.apply(text, value, order.phrase)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(describe(plan.chain("pre")), order.phrase, describe(plan.chain("post")))
    file = KernelFile(builder, NAME, [Tensor("x", "x")], "int64_t" if order.indices else "float")
    styles = ["count", "count_in_shared"] * (order.finish not in ("softmax", "mean"))
    styles += ["bitonic"] * 2 if order.finish != "keep" else []
    styles += ["insertion"] * (3 if 0 < k <= 8 and order.finish != "keep" else 0)
    style = rng.choice(styles)
    body, integers = _kernel(order, file, style, k, pre, post)
    grids = {
        "count": "(n + 255) / 256, 256",
        "insertion": "(rows + 255) / 256, 256",
        "count_in_shared": "rows, 256, D * sizeof(float)",
        "bitonic": f"rows, 256, P * {'(sizeof(float) + sizeof(int))' if order.indices else 'sizeof(float)'}",
    }
    host = "    int D = x.size(-1), n = x.numel(), rows = n / D;\n"
    if style == "bitonic":
        host = host.replace(";", ", P = 1;") + "    while (P < D) P *= 2;\n"
    host += "    auto sizes = x.sizes().vec();\n"
    host += {"all": "", "some": f"    sizes.back() = {k};\n", "one": "    sizes.pop_back();\n"}[order.gives]
    kind = "x.options().dtype(torch::kLong)" if order.indices else "x.options()"
    host += f"    auto out = torch::empty(sizes, {kind});\n{file.launch(grids[style], integers)}"
    return Draft(builder, file.write(file.pre(pre) + file.kernel(body, integers), host), style)


def _kernel(
    order: Order, file: KernelFile, style: str, k: int, pre: list[Step], post: list[Step]
) -> tuple[str, list[str]]:
    """The body of that style, and the integers that it takes."""
    largest = order.first == "largest"
    fields = {
        "load": file.load(pre, "x[base + j]"),
        "less": ">" if largest else "<",
        "last": "-INFINITY" if largest else "INFINITY",
        "k": str(k),
    }
    if style.startswith("count"):
        own = "s[j]" if style == "count_in_shared" else "w"
        depth = 8 if style == "count_in_shared" else 4
        fields |= {
            "own": file.load(pre, "x[i]"),
            "ties": "" if order.finish == "keep" else f" || ({own} == v && j < k)",
        }
        store = _counted(order, k, post, depth)
        template = SHARED_COUNT if style == "count_in_shared" else COUNT
        return template.format(store=store, **fields), ["D"] if style == "count_in_shared" else ["n", "D"]
    threads = "for (int k = threadIdx.x; k < {}; k += 256)" if style == "bitonic" else "for (int k = 0; k < {}; k++)"
    fields["store"] = _stored(order, k, post, threads, "threadIdx.x == 0" if style == "bitonic" else "")
    if style == "bitonic":
        index = order.indices
        return BITONIC.format(
            declared="    int* t = reinterpret_cast<int*>(s + P);\n" if index else "",
            filled="        t[j] = j;\n" if index else "",
            swapped="                    int p = t[j];\n                    t[j] = t[other];\n"
            "                    t[other] = p;\n"
            if index
            else "",
            **fields,
        ), ["D", "P"]
    return INSERTION.format(
        declared=f"    int t[{k}];\n" if order.indices else "",
        moved="                t[k] = t[k - 1];\n" if order.indices else "",
        put="            t[k] = j;\n" if order.indices else "",
        **fields,
    ), ["D", "rows"]


def _counted(order: Order, k: int, post: list[Step], depth: int) -> str:
    """What a thread does that knows the place of its value."""
    if order.finish == "keep":
        return lines(f"v = place < {k} ? v : 0.0f;", post, "out[base + k] = v;", indent=depth)
    where = {"all": "base + place", "some": f"row * {k} + place", "one": "row"}[order.gives]
    chosen = {"all": "", "some": f"if (place < {k}) {{", "one": f"if (place == {k} - 1) {{"}[order.gives]
    chosen = "if (place == (D - 1) / 2) {" if order.finish == "median" else chosen
    inner = lines(post, f"out[{where}] = {'k' if order.indices else 'v'};", indent=depth + 4 if chosen else depth)
    return f"{' ' * depth}{chosen}\n{inner}{' ' * depth}}}\n" if chosen else inner


def _stored(order: Order, k: int, post: list[Step], threads: str, lead: str) -> str:
    """The result from `s`, and `t` for places, which are in order."""
    if order.finish == "softmax":
        total = f"    float sum = 0.0f;\n    for (int k = 0; k < {k}; k++) sum += expf(s[k] - s[0]);\n"
        inner = lines("float v = expf(s[k] - s[0]) / sum;", post, f"out[row * {k} + k] = v;")
        return f"{total}    {threads.format(k)} {{\n{inner}    }}\n"
    if order.gives == "one":
        value = f"s[{k} - 1]" if order.finish != "median" else "s[(D - 1) / 2]"
        text = [f"float v = {value};"]
        if order.finish == "mean":
            text = ["float v = 0.0f;", f"for (int k = 0; k < {k}; k++) v += s[k];", f"v /= {k}.0f;"]
        inner = lines(text, post, "out[row] = v;", indent=8 if lead else 4)
        return f"    if ({lead}) {{\n{inner}    }}\n" if lead else inner
    count, width = ("D", "base") if order.gives == "all" else (str(k), f"row * {k}")
    if order.indices:
        return f"    {threads.format(count)} out[{width} + k] = t[k];\n"
    return f"    {threads.format(count)} {{\n{lines('float v = s[k];', post, f'out[{width} + k] = v;')}    }}\n"
