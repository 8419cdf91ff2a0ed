"""Reductions along one dimension, the last two, or all of them; chains before (per element) and after (per result)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.data.synth.chain import ChainState, Step, chain_length, chains, draw_chain, state_after
from dice.data.synth.cuda import (
    BLOCK_SHUFFLE,
    TOTAL,
    TOTAL_HOST,
    KernelFile,
    Scope,
    Tensor,
    lines,
    reduction_helper,
    statements,
)
from dice.data.synth.plan import Draft, Plan
from dice.data.synth.rows import (
    ARGMAX,
    ARGMIN,
    EXP,
    MAX,
    MIN,
    MOMENTS,
    SQUARES,
    SUM,
    Axis,
    draw_axis,
    draw_scope,
    row_body,
)
from dice.data.synth.script import Script
from dice.data.synth.shapes import describe, draw_shape, sentence

NAME = "reduce"


@dataclass(frozen=True, slots=True)
class Reduction:
    """{d} is the dimension, {k} the keepdim argument. `body` has {load}, {loop} and reductions as <kind:variable>."""

    phrase: str
    spellings: tuple[str, ...]
    body: str
    result: str
    kinds: tuple[str, ...]
    magnitude: float = 60.0
    several: bool = True  # also over two dimensions at once, or all
    all_spellings: tuple[str, ...] = ()


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(
        "a sum",
        ("torch.sum({x}, dim={d}{k})", "{x}.sum(dim={d}{k})"),
        SUM,
        "s",
        ("sum",),
        100.0,
        True,
        ("torch.sum({x})", "{x}.sum()"),
    ),
    "mean": Reduction(
        "a mean",
        ("torch.mean({x}, dim={d}{k})", "{x}.mean(dim={d}{k})"),
        SUM,
        "s / D",
        ("sum",),
        5.0,
        True,
        ("torch.mean({x})", "{x}.mean()"),
    ),
    "max": Reduction(
        "a maximum",
        (
            "torch.amax({x}, dim={d}{k})",
            "{x}.amax(dim={d}{k})",
            "torch.max({x}, dim={d}{k})[0]",
            "torch.max({x}, dim={d}{k}).values",
            "{x}.max(dim={d}{k})[0]",
        ),
        MAX,
        "m",
        ("max",),
        6.0,
        True,
        ("torch.max({x})", "{x}.max()"),
    ),
    "min": Reduction(
        "a minimum",
        (
            "torch.amin({x}, dim={d}{k})",
            "{x}.amin(dim={d}{k})",
            "torch.min({x}, dim={d}{k})[0]",
            "torch.min({x}, dim={d}{k}).values",
            "{x}.min(dim={d}{k})[0]",
        ),
        MIN,
        "m",
        ("min",),
        6.0,
        True,
        ("torch.min({x})", "{x}.min()"),
    ),
    "prod": Reduction(
        "a product",
        ("torch.prod({x}, dim={d}{k})", "{x}.prod(dim={d}{k})"),
        "float s = 1.0f;\n{loop} s *= {load};\n<prod:s>\n",
        "s",
        ("prod",),
        100.0,
        False,
    ),
    "l1": Reduction(
        "an L1 norm",
        (
            "torch.norm({x}, p=1, dim={d}{k})",
            "torch.linalg.vector_norm({x}, ord=1, dim={d}{k})",
            "{x}.abs().sum(dim={d}{k})",
            "torch.sum(torch.abs({x}), dim={d}{k})",
        ),
        "float s = 0.0f;\n{loop} s += fabsf({load});\n<sum:s>\n",
        "s",
        ("sum",),
        100.0,
        False,
    ),
    "l2": Reduction(
        "an L2 norm",
        (
            "torch.norm({x}, p=2, dim={d}{k})",
            "torch.norm({x}, dim={d}{k})",
            "{x}.norm(dim={d}{k})",
            "torch.linalg.vector_norm({x}, dim={d}{k})",
            "torch.sqrt(torch.sum({x} ** 2, dim={d}{k}))",
        ),
        SQUARES,
        "sqrtf(s)",
        ("sum",),
        50.0,
        False,
        ("torch.norm({x})", "{x}.norm()"),
    ),
    "var": Reduction(
        "a variance",
        ("torch.var({x}, dim={d}{k})", "{x}.var(dim={d}{k})"),
        MOMENTS,
        "q / (D - 1)",
        ("sum",),
        10.0,
        True,
        ("torch.var({x})", "{x}.var()"),
    ),
    "var_biased": Reduction(
        "a biased variance",
        (
            "torch.var({x}, dim={d}, unbiased=False{k})",
            "{x}.var(dim={d}, unbiased=False{k})",
            "torch.var({x}, dim={d}, correction=0{k})",
        ),
        MOMENTS,
        "q / D",
        ("sum",),
        10.0,
    ),
    "std": Reduction(
        "a standard deviation",
        ("torch.std({x}, dim={d}{k})", "{x}.std(dim={d}{k})"),
        MOMENTS,
        "sqrtf(q / (D - 1))",
        ("sum",),
        5.0,
        True,
        ("torch.std({x})", "{x}.std()"),
    ),
    "logsumexp": Reduction(
        "a log-sum-exp",
        ("torch.logsumexp({x}, dim={d}{k})", "{x}.logsumexp(dim={d}{k})"),
        EXP,
        "m + logf(s)",
        ("max", "sum"),
        15.0,
    ),
    "argmax": Reduction(
        "the index of the maximum",
        (
            "torch.argmax({x}, dim={d}{k})",
            "{x}.argmax(dim={d}{k})",
            "torch.max({x}, dim={d}{k})[1]",
            "torch.max({x}, dim={d}{k}).indices",
        ),
        ARGMAX,
        "k",
        ("max", "min"),
        0.0,
        False,
    ),
    "argmin": Reduction(
        "the index of the minimum",
        ("torch.argmin({x}, dim={d}{k})", "{x}.argmin(dim={d}{k})", "torch.min({x}, dim={d}{k})[1]"),
        ARGMIN,
        "k",
        ("min",),
        0.0,
        False,
    ),
}
_INDEX_CHAINS = ((), (), ("neg",), ("abs",), ("relu",), ("square",))
_ATOMIC = {"sum": "s", "mean": "s / n"}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(REDUCTIONS), [1.8 if name in ("sum", "mean", "max") else 1.0 for name in REDUCTIONS])[0]
    reduction = REDUCTIONS[core]
    positions = ["last", "first", "middle"] + ["last2"] * reduction.several + ["all"] * bool(reduction.all_spellings)
    position = rng.choices(positions, [5, 2, 3, 1, 2][: len(positions)])[0]
    features = [f"dim={position}"]
    if position != "all" and rng.random() < 0.35:
        features.append("keepdim")
    if core in ("argmax", "argmin"):
        return Plan(NAME, core, chains(pre=rng.choice(_INDEX_CHAINS)), tuple(features))
    pre = draw_chain(rng, chain_length(rng, (4, 3, 2)))
    pre = pre if state_after(pre).magnitude <= 30 and core != "prod" else ()
    post = draw_chain(rng, chain_length(rng, (5, 3, 1)), ChainState("any", reduction.magnitude, False))
    return Plan(NAME, core, chains(pre=pre, post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    reduction = REDUCTIONS[plan.core]
    script = Script(rng)
    position = plan.features[0].removeprefix("dim=")
    whole = position in ("all", "last2")
    axis = None if whole else draw_axis(script, position)
    rank = axis.rank if axis else rng.choice((3, 4)) if position == "last2" else rng.choice((1, 2, 2, 3, 4))
    most = {"prod": 2048}.get(plan.core, 32768)
    shape = draw_shape(script, rank, most=most)
    sampler = "torch.rand({shape}) + 0.5" if plan.core == "prod" else None
    if plan.core == "prod":
        _shorten(script, axis.index if axis else 0)
    if plan.core in ("var", "std"):
        _lengthen(script, axis.index if axis else rank - 1)
    value, pre = script.chain(script.input("x", shape, sampler), plan.chain("pre"))
    keepdim = plan.has("keepdim")
    text, phrase = _spell(reduction, rng, axis, position, rank, keepdim)
    value = script.apply(text, value, phrase)
    state = ChainState("any", reduction.magnitude, False)
    value, post = script.chain(value, plan.chain("post"), state=state)
    script.finish(value)
    script.title = sentence(describe(plan.chain("pre")), phrase, describe(plan.chain("post")))

    if position == "all" and plan.core in _ATOMIC and not post:
        return _atomic(script, pre, _ATOMIC[plan.core])
    is_index = plan.core.startswith("arg")
    file = KernelFile(script, NAME, (Tensor("x", "x"),), "int64_t" if is_index else "float")
    options = "x.options().dtype(torch::kInt64)" if is_index else "x.options()"
    if axis:
        scope, start, at, integers = axis.scope, axis.start, axis.at, axis.integers
        host = axis.sizes + axis.reduced(keepdim, options)
    else:
        scope = BLOCK_SHUFFLE if position == "all" else draw_scope(rng, True)
        start, at = f"{scope.start}    int base = row * D;\n", "base + j"
        integers = ["D", "rows"] if "rows" in scope.start else ["D"]
        host = _whole_sizes(position, keepdim)
    body = row_body(reduction.body, scope.loop, file.load(pre, f"x[{at}]"), scope)
    code = "".join(reduction_helper(scope, kind) for kind in reduction.kinds) + file.pre(pre)
    code += file.kernel(start + body + _store(reduction.result, statements(post, 8), scope), integers)
    return Draft(script, file.write(code, host + file.launch(scope.grid, integers)), scope.style)


def _store(result: str, post: str, scope: Scope) -> str:
    lines = f"        float v = {result};\n{post}        out[row] = v;\n" if post else f"        out[row] = {result};\n"
    if scope.lead:
        return f"    if ({scope.lead}) {{\n{lines}    }}\n"
    return lines.replace("        ", "    ")


def _spell(
    reduction: Reduction, rng: random.Random, axis: Axis | None, position: str, rank: int, keepdim: bool
) -> tuple[str, str]:
    """The PyTorch text and its phrase."""
    keep = ", keepdim=True" if keepdim else ""
    if position == "all":
        return rng.choice(reduction.all_spellings), f"{reduction.phrase} over all elements"
    if axis:
        text = rng.choice(reduction.spellings).replace("{d}", axis.text.forward).replace("{k}", keep)
        return text, f"{reduction.phrase} over {'the given' if axis.runtime else 'one'} dimension"
    several = [text for text in reduction.spellings if "[" not in text and "values" not in text]
    dims = rng.choice((f"({rank - 2}, {rank - 1})", "(-2, -1)", f"[{rank - 2}, {rank - 1}]"))
    return rng.choice(several).replace("{d}", dims).replace(
        "{k}", keep
    ), f"{reduction.phrase} over the last two dimensions"


def _whole_sizes(position: str, keepdim: bool) -> str:
    if position == "all":
        return "    int D = x.numel(), rows = 1;\n    auto out = torch::empty({}, x.options());\n"
    lines = "    int D = x.size(-1) * x.size(-2), rows = x.numel() / D;\n    auto sizes = x.sizes().vec();\n"
    keep = "    sizes[sizes.size() - 1] = sizes[sizes.size() - 2] = 1;\n"
    return (
        lines
        + (keep if keepdim else "    sizes.resize(sizes.size() - 2);\n")
        + "    auto out = torch::empty(sizes, x.options());\n"
    )


def _atomic(script: Script, pre: list[Step], result: str) -> Draft:
    """Sum or mean of everything: a grid of blocks, one atomic addition each."""
    file = KernelFile(script, NAME, (Tensor("x", "x"),))
    text = lines("float v = x[i];", pre)
    code = reduction_helper(BLOCK_SHUFFLE, "sum") + file.kernel(TOTAL.format(lines=text, result=result), ["n"])
    return Draft(script, file.write(code, TOTAL_HOST + file.launch("blocks, 256", ["n"])), "atomic")


def _shorten(script: Script, index: int) -> None:
    """Long products leave float32's range."""
    dimension = script.dimensions[index]
    dimension.small, dimension.large = min(dimension.small, 24), min(dimension.large, 32)


def _lengthen(script: Script, index: int) -> None:
    """The unbiased variance needs two elements."""
    dimension = script.dimensions[index]
    dimension.small = max(dimension.small, 5)
