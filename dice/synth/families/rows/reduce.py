"""Reductions along one dimension, the last two, or all of them; chains before (per element) and after (per result)."""

from __future__ import annotations

import random

from dice.synth.kernel.cuda import (
    BLOCK_SHUFFLE,
    THREAD,
    TOTAL,
    TOTAL_HOST,
    KernelFile,
    Scope,
    Tensor,
    lines,
    reduction_helper,
)
from dice.synth.kernel.reductions import REDUCTIONS, Reduction
from dice.synth.kernel.rows import POSITIONS, Axis, draw_axis, draw_scope, row_body
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, state_after, statements
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_shape, sentence
from dice.synth.problem.tensors import Value

NAME = "reduce"


_INDEX_CHAINS = ((), (), ("neg",), ("abs",), ("relu",), ("square",))
# Where the reduced dimensions do not lie together at the end: how a row is addressed, and with which integers.
_ADDRESSES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "first2": ("", "j * inner + row", ("inner",)),
    "middle2": ("    int base = row / inner * D * inner + row % inner;\n", "base + j * inner", ("inner",)),
    "outer": ("", "(j / inner * C + row) * inner + j % inner", ("C", "inner")),
}
_RANKS: dict[str, tuple[int, ...]] = {"all": (1, 2, 2, 3, 4), "middle2": (4,)}
_RANKS |= dict.fromkeys(("last2", "first2", "outer"), (3, 4))
_ATOMIC = {"sum": "s", "mean": "s / n"}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(REDUCTIONS), [1.8 if name in ("sum", "mean", "max") else 1.0 for name in REDUCTIONS])[0]
    reduction = REDUCTIONS[core]
    positions = {"last": 5.0, "first": 2.0, "middle": 3.0}
    positions |= dict.fromkeys(("last2", "first2", "middle2", "outer"), 0.8) if reduction.several else {}
    positions |= {"all": 2.0} if reduction.all_spellings else {}
    position = rng.choices(tuple(positions), tuple(positions.values()))[0]
    features = [f"dim={position}"]
    if position != "all" and rng.random() < 0.35:
        features.append("keepdim")
    if core in ("argmax", "argmin"):
        return Plan(NAME, core, chains(pre=rng.choice(_INDEX_CHAINS)), tuple(features))
    pre = draw_chain(rng, chain_length(rng, (4, 3, 2)))
    # A constant row has no deviation at all; behind a chain, the rounding of its mean would show under the root.
    most = {"prod": 0, "std": 0, "std_biased": 0, "sum_exp": 4, "logmeanexp": 15}.get(core, 30)
    pre = pre if state_after(pre).magnitude <= most else ()
    post = draw_chain(rng, chain_length(rng, (5, 3, 1)), ChainState("any", reduction.magnitude, False))
    return Plan(NAME, core, chains(pre=pre, post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    reduction = REDUCTIONS[plan.core]
    builder = ProblemBuilder(rng)
    position = plan.features[0].removeprefix("dim=")
    axis = draw_axis(builder, position) if position in POSITIONS else None
    rank = axis.rank if axis else rng.choice(_RANKS[position])
    most = {"prod": 2048}.get(plan.core, 32768)
    shape = draw_shape(builder, rank, most=most)
    sampler = "torch.rand({shape}) + 0.5" if plan.core == "prod" else None
    if plan.core == "prod":
        _shorten(builder, axis.index if axis else 0)
    if plan.core in ("var", "std", "var_biased", "std_biased"):
        _lengthen(builder, axis.index if axis else 0 if position == "first2" else rank - 1)
    value, pre = builder.operators.chain(builder.tensors.input("x", shape, sampler), plan.chain("pre"))
    keepdim = plan.has("keepdim")
    text, phrase = _spell(reduction, builder, axis, position, rank, keepdim)
    pair = text.removesuffix("[0]").removesuffix(".values")
    unpacks = pair != text and rng.random() < 0.75
    value = _unpacked(builder, pair, value) if unpacks else builder.forward.apply(text, value, phrase)
    state = ChainState("any", reduction.magnitude, False)
    value, post = builder.operators.chain(value, plan.chain("post"), state=state)
    builder.finish(value)
    builder.title = sentence(describe(plan.chain("pre")), phrase, describe(plan.chain("post")))

    if position == "all" and plan.core in _ATOMIC and not post:
        return _atomic(builder, pre, _ATOMIC[plan.core])
    is_index = plan.core.startswith("arg")
    file = KernelFile(builder, NAME, (Tensor("x", "x"),), "int64_t" if is_index else "float")
    options = "x.options().dtype(torch::kInt64)" if is_index else "x.options()"
    if axis:
        scope, start, at, integers = axis.scope, axis.start, axis.at, axis.integers
        host = axis.sizes + axis.reduced(keepdim, options)
    else:
        scope = (
            BLOCK_SHUFFLE
            if position == "all"
            else THREAD
            if position in ("first2", "middle2")
            else draw_scope(rng, True)
        )
        base, at, names = _ADDRESSES.get(position, ("    int base = row * D;\n", "base + j", ()))
        start, integers = scope.start + base, ["D", *names, *(["rows"] if "rows" in scope.start else [])]
        host = _whole_sizes(position, keepdim)
    body = row_body(reduction.body, scope.loop, file.load(pre, f"x[{at}]"), scope)
    code = "".join(reduction_helper(scope, kind) for kind in reduction.kinds) + file.pre(pre)
    code += file.kernel(start + body + _store(reduction.result, statements(post, 8), scope), integers)
    return Draft(builder, file.write(code, host + file.launch(scope.grid, integers)), scope.style)


def _store(result: str, post: str, scope: Scope) -> str:
    lines = f"        float v = {result};\n{post}        out[row] = v;\n" if post else f"        out[row] = {result};\n"
    if scope.lead:
        return f"    if ({scope.lead}) {{\n{lines}    }}\n"
    return lines.replace("        ", "    ")


def _spell(
    reduction: Reduction, builder: ProblemBuilder, axis: Axis | None, position: str, rank: int, keepdim: bool
) -> tuple[str, str]:
    """The PyTorch text and its phrase."""
    rng = builder.rng
    keep = f", keepdim={builder.constructor.setting('keepdim', 'True', stored=True)}" if keepdim else ""
    if position == "all":
        return rng.choice(reduction.all_spellings), f"{reduction.phrase} over all elements"
    if axis:
        text = (
            builder.constructor.stored(rng.choice(reduction.spellings))
            .replace("{d}", axis.text.forward)
            .replace("{k}", keep)
        )
        return text, f"{reduction.phrase} over {'the given' if axis.runtime else 'one'} dimension"
    several = [text for text in reduction.spellings if "[" not in text and "values" not in text]
    if position == "outer":  # without `p`, a norm is that of a matrix or a vector
        several = [text for text in several if "torch.norm({x}, dim" not in text and "x}.norm(" not in text]
    counted = {
        "last2": (f"{rank - 2}, {rank - 1}", "-2, -1"),
        "first2": ("0, 1", "0, 1"),
        "middle2": ("1, 2", "-3, -2", "1, -2"),
        "outer": ("0, 2", "0, -1") if rank == 3 else ("0, 2, 3", "0, -2, -1"),
    }[position]
    dims = rng.choice(("({})", "({})", "[{}]")).format(rng.choice(counted))
    dims = builder.constructor.setting("dim", dims, stored=True)
    which = {
        "last2": "the last two dimensions",
        "first2": "the first two dimensions",
        "middle2": "two dimensions",
        "outer": "all but the channels",
    }
    text = builder.constructor.stored(rng.choice(several)).replace("{d}", dims).replace("{k}", keep)
    return text, f"{reduction.phrase} over {which[position]}"


def _unpacked(builder: ProblemBuilder, text: str, value: Value) -> Value:
    """`best, _ = torch.max(x, dim=1)`."""
    name = builder.names.fresh(("values", "best", "extreme"))
    builder.forward.lines.append(f"{name}, _ = {text.format(x=builder.forward.bind(value).text)}")
    return Value(name)


def _whole_sizes(position: str, keepdim: bool) -> str:
    if position == "all":
        return "    int D = x.numel(), rows = 1;\n    auto out = torch::empty({}, x.options());\n"
    if position in ("first2", "middle2"):
        one = 0 if position == "first2" else 1
        lines = f"    int D = x.size({one}) * x.size({one + 1}), inner = x.stride({one + 1}), rows = x.numel() / D;\n"
        lines += "    auto sizes = x.sizes().vec();\n"
        erased = f"    sizes.erase(sizes.begin() + {one}, sizes.begin() + {one + 2});\n"
        lines += f"    sizes[{one}] = sizes[{one + 1}] = 1;\n" if keepdim else erased
        return lines + "    auto out = torch::empty(sizes, x.options());\n"
    if position == "outer":
        lines = "    int C = x.size(1), inner = x.stride(1), D = x.numel() / C, rows = C;\n"
        if not keepdim:
            return lines + "    auto out = torch::empty({C}, x.options());\n"
        lines += "    auto sizes = x.sizes().vec();\n    for (auto& size : sizes) size = 1;\n    sizes[1] = C;\n"
        return lines + "    auto out = torch::empty(sizes, x.options());\n"
    lines = "    int D = x.size(-1) * x.size(-2), rows = x.numel() / D;\n    auto sizes = x.sizes().vec();\n"
    keep = "    sizes[sizes.size() - 1] = sizes[sizes.size() - 2] = 1;\n"
    return (
        lines
        + (keep if keepdim else "    sizes.resize(sizes.size() - 2);\n")
        + "    auto out = torch::empty(sizes, x.options());\n"
    )


def _atomic(builder: ProblemBuilder, pre: list[Step], result: str) -> Draft:
    """Sum or mean of everything: a grid of blocks, one atomic addition each."""
    file = KernelFile(builder, NAME, (Tensor("x", "x"),))
    text = lines("float v = x[i];", pre)
    code = reduction_helper(BLOCK_SHUFFLE, "sum") + file.kernel(TOTAL.format(lines=text, result=result), ["n"])
    return Draft(builder, file.write(code, TOTAL_HOST + file.launch("blocks, 256", ["n"])), "atomic")


def _shorten(builder: ProblemBuilder, index: int) -> None:
    """Long products leave float32's range."""
    dimension = builder.tensors.dimensions[index]
    dimension.small, dimension.large = min(dimension.small, 24), min(dimension.large, 32)


def _lengthen(builder: ProblemBuilder, index: int) -> None:
    """The unbiased variance needs two elements."""
    dimension = builder.tensors.dimensions[index]
    dimension.small = max(dimension.small, 5)
