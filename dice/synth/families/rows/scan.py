"""Running sums, products and extremes along a dimension: forwards, backwards, exclusive, masked; chains around them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.kernel.cuda import KernelFile, Tensor, lines, when
from dice.synth.kernel.rows import Axis, draw_axis
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_shape, sentence

NAME = "scan"


@dataclass(frozen=True, slots=True)
class Scan:
    """`join` combines what came before, {a}, with the next value, {b}. `exclusive`: the own value does not count."""

    phrase: str
    spellings: tuple[str, ...]
    first: str
    join: str
    reverse: bool = False
    exclusive: bool = False
    masked: bool = False


_SUM, _PRODUCT = ("0.0f", "{a} + {b}"), ("1.0f", "{a} * {b}")
SCANS: dict[str, Scan] = {
    "cumsum": Scan(
        "a cumulative sum", ("torch.cumsum({x}, dim={d})", "{x}.cumsum(dim={d})", "torch.cumsum({x}, {d})"), *_SUM
    ),
    "cumprod": Scan("a cumulative product", ("torch.cumprod({x}, dim={d})", "{x}.cumprod(dim={d})"), *_PRODUCT),
    "cummax": Scan(
        "a running maximum",
        ("torch.cummax({x}, dim={d})[0]", "torch.cummax({x}, dim={d}).values"),
        "-INFINITY",
        "fmaxf({a}, {b})",
    ),
    "cummin": Scan(
        "a running minimum",
        ("torch.cummin({x}, dim={d})[0]", "torch.cummin({x}, dim={d}).values"),
        "INFINITY",
        "fminf({a}, {b})",
    ),
    "reverse_cumsum": Scan(
        "a cumulative sum from the end",
        (
            "torch.flip(torch.cumsum(torch.flip({x}, dims=[{d}]), dim={d}), dims=[{d}])",
            "{x}.flip({d}).cumsum({d}).flip({d})",
        ),
        *_SUM,
        reverse=True,
    ),
    "reverse_cumprod": Scan(
        "a cumulative product from the end",
        ("{x}.flip({d}).cumprod({d}).flip({d})", "torch.cumprod({x}.flip({d}), dim={d}).flip({d})"),
        *_PRODUCT,
        reverse=True,
    ),
    "exclusive_cumsum": Scan(
        "an exclusive cumulative sum",
        ("torch.cumsum({x}, dim={d}) - {x}", "{x}.cumsum({d}) - {x}"),
        *_SUM,
        exclusive=True,
    ),
    "masked_cumsum": Scan(
        "a cumulative sum under a mask",
        ("torch.cumsum({x} * {y}, dim={d})", "({x} * {y}).cumsum(dim={d})"),
        *_SUM,
        masked=True,
    ),
    "logcumsumexp": Scan(
        "a cumulative log-sum-exp",
        ("torch.logcumsumexp({x}, dim={d})", "{x}.logcumsumexp({d})"),
        "-INFINITY",
        "log_add({a}, {b})",
    ),
}
LOG_ADD = """__device__ float log_add(float a, float b) {
    float m = fmaxf(a, b);
    return m == -INFINITY ? m : m + logf(expf(a - m) + expf(b - m));
}

"""
SERIAL = """    float s = {first};
    {loop} {{
{step}    }}
"""
# 256 neighbours at a time. In each warp, every thread adds the values 1, 2, 4, ... places before its own; then the
# warps' totals are added up, and the total of all is what the next 256 begin with.
BLOCK = """    __shared__ float p[8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float s = {first};
    for (int top = 0; top < D; top += 256) {{
        int j = {place};
        float v = top + threadIdx.x < D ? {load} : {first};
        for (int k = 1; k < 32; k *= 2) {{
            float before = __shfl_up_sync(0xffffffff, v, k);
            if (lane >= k) v = {before_own};
        }}
        if (lane == 31) p[warp] = v;
        __syncthreads();
        for (int k = 0; k < 8; k++) {{
            if (k == warp) v = {carry_own};
            s = {carry_last};
        }}
        __syncthreads();
        if (top + threadIdx.x < D) {{
{store}        }}
    }}
"""
WARP = """    float s = {first};
    for (int top = 0; top < D; top += 32) {{
        int j = {place};
        float v = top + lane < D ? {load} : {first};
        for (int k = 1; k < 32; k *= 2) {{
            float before = __shfl_up_sync(0xffffffff, v, k);
            if (lane >= k) v = {before_own};
        }}
        v = {carry_own};
        s = __shfl_sync(0xffffffff, v, 31);
        if (top + lane < D) {{
{store}        }}
    }}
"""


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(SCANS), (4, 2, 1, 1, 2, 1, 1.5, 1.5, 1))[0]
    position = rng.choices(("last", "first", "middle"), (4, 2, 2))[0]
    scan = SCANS[core]
    pre = () if "prod" in core or scan.exclusive else draw_chain(rng, chain_length(rng, (3, 4, 1)))
    pre = pre if state_after(pre).magnitude <= 12 else ()
    post = draw_chain(rng, chain_length(rng, (4, 3, 1)), _state(core))
    return Plan(NAME, core, chains(pre=pre, post=post), (f"dim={position}",))


def _state(core: str) -> ChainState:
    return ChainState("any", 6.0 if core in ("cummax", "cummin") else 60.0, False)


def render(plan: Plan, rng: random.Random) -> Draft:
    scan = SCANS[plan.core]
    builder = ProblemBuilder(rng, keep_inputs=scan.masked)
    axis = draw_axis(builder, plan.features[0].removeprefix("dim="))
    shape = draw_shape(builder, axis.rank, most=16384)
    dimension = builder.tensors.dimensions[axis.index]
    product = "prod" in plan.core
    dimension.small = max(3, min(dimension.small, 24 if product else 300))
    dimension.large = min(dimension.large, 32) if product else dimension.large
    sampler = "torch.rand({shape}) + 0.5" if product else None
    value, pre = builder.operators.chain(builder.tensors.input("x", shape, sampler), plan.chain("pre"))
    fields, mask = {}, "float"
    if scan.masked:
        mask, made = rng.choice((("float", "float"), ("float", "float"), ("bool", "bool")))
        fields["y"] = builder.tensors.input("mask", shape, f"torch.randint(0, 2, ({{shape}},)).{made}()").text
    value = builder.forward.apply(
        rng.choice(scan.spellings).replace("{d}", axis.text.forward), value, scan.phrase, **fields
    )
    value, post = builder.operators.chain(value, plan.chain("post"), state=_state(plan.core))
    builder.finish(value)
    builder.title = sentence(describe(plan.chain("pre")), scan.phrase, describe(plan.chain("post")))

    file = KernelFile(builder, NAME, [Tensor("x", "x"), *when(scan.masked, Tensor("y", "y", mask))])
    load = file.load(pre, f"x[{axis.at}]") + (f" * y[{axis.at}]" if scan.masked else "")
    store: tuple[Step | str, ...] = (*post, f"out[{axis.at}] = v;")
    helper = LOG_ADD if "log_add" in scan.join else ""
    body, style = _body(scan, axis, load, store)
    code = helper + file.pre(pre) + file.kernel(f"{axis.start}{body}", axis.integers)
    host = f"    auto out = torch::empty_like(x);\n{axis.sizes}{file.launch(axis.scope.grid, axis.integers)}"
    return Draft(builder, file.write(code, host), style)


def _body(scan: Scan, axis: Axis, load: str, store: tuple[Step | str, ...]) -> tuple[str, str]:
    """The scan of one row by a thread, a warp or a block, and its style."""
    threads = {"warp_per_row": "lane", "thread_per_row": ""}.get(axis.scope.style, "threadIdx.x")
    if not threads or scan.exclusive:
        loop = "for (int j = D - 1; j >= 0; j--)" if scan.reverse else "for (int j = 0; j < D; j++)"
        join = f"s = {scan.join.format(a='s', b=load)};"
        step = ("float v = s;", join, *store) if scan.exclusive else (join, "float v = s;", *store)
        body = SERIAL.format(first=scan.first, loop=loop, step=lines(step))
        if threads:  # one of the row's threads does it all
            body = f"    if ({axis.scope.lead}) {{\n{_deeper(body)}    }}\n"
        return body, "serial" if threads else axis.scope.style
    place = f"D - 1 - top - {threads}" if scan.reverse else f"top + {threads}"
    text = BLOCK if threads == "threadIdx.x" else WARP
    body = text.format(
        first=scan.first,
        place=place,
        load=load,
        before_own=scan.join.format(a="before", b="v"),
        carry_own=scan.join.format(a="s", b="v"),
        carry_last=scan.join.format(a="s", b="p[k]"),
        store=lines(store, indent=12),
    )
    return body, "block_scan" if text is BLOCK else "warp_scan"


def _deeper(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())
