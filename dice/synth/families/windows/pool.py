"""Pooling in one to three dimensions: max, average, power average, adaptive and global; a chain before and after."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.families.windows.conv import SPATIAL, rank_of
from dice.synth.kernel.convolution import Window
from dice.synth.kernel.cuda import KernelFile, Tensor, lines, reduction_helper
from dice.synth.kernel.rows import MAX, SUM, draw_scope, row_body
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_shape, sentence
from dice.synth.problem.tensors import Value, as_tuple

NAME = "pool"
CORES = {"max_pool": 4.0, "avg_pool": 4.0, "lp_pool": 1.5, "adaptive_avg": 2.0, "adaptive_max": 1.5}
CORES |= {"global_avg": 2.0, "global_max": 1.5}
_STATE = ChainState("any", 4.5, False)


@dataclass(frozen=True, slots=True)
class Kind:
    """How the values of a window become one: first value, update with {load}, result."""

    first: str
    update: str
    result: str = ""
    phrase: str = ""


KINDS: dict[str, Kind] = {
    "max": Kind("-INFINITY", "v = fmaxf(v, {load});", "", "max pooling"),
    "avg": Kind("0.0f", "v += {load};", "v = v / {count};", "average pooling"),
    "lp": Kind("0.0f", "v += {load} * {load};", "v = sqrtf(v);", "power-average pooling"),
}


def kind_of(plan: Plan) -> str:
    return next(name for name in KINDS if name in plan.core)


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(CORES), tuple(CORES.values()))[0]
    rank = rng.choices((1, 2, 3), (3, 5, 2))[0]
    rank = min(rank, 2) if core == "lp_pool" else rank
    features = [f"rank={rank}"]
    if core in ("max_pool", "avg_pool"):
        features += ["padded"] if rng.random() < 0.5 else []
        features += ["ceil"] if rng.random() < 0.2 else []
        special = "dilated" if core == "max_pool" else "inside"  # "inside" is count_include_pad=False
        features += [special] if rng.random() < 0.2 else []
    features += ["asymmetric"] if "global" not in core and rank > 1 and rng.random() < 0.28 else []
    if core.startswith("global"):
        features += ["keepdim"] if rng.random() < 0.6 else []
    pre = draw_chain(rng, chain_length(rng, (5, 3, 1)))
    pre = pre if state_after(pre).magnitude <= 30 else ()
    post = draw_chain(rng, chain_length(rng, (3, 4, 2)), _STATE)
    return Plan(NAME, core, chains(pre=pre, post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng)
    rank = rank_of(plan)
    roles = ("batch", "channels", *SPATIAL[rank])
    shape = draw_shape(builder, len(roles), roles=roles, most=16384)
    for mark in shape[2:]:
        dimension = builder.tensors.size(mark)
        dimension.small = max(dimension.small, 9)
    value, pre = builder.operators.chain(builder.tensors.input("x", shape), plan.chain("pre"))
    write = _global if plan.core.startswith("global") else _adaptive if plan.core.startswith("adaptive") else _window
    what = f"{plan.core.split('_')[0]} " if not plan.core.endswith("pool") else ""
    phrase = (
        f"{what}{KINDS[kind_of(plan)].phrase} in {('one dimension', 'two dimensions', 'three dimensions')[rank - 1]}"
    )
    builder.title = sentence(describe(plan.chain("pre")), phrase, describe(plan.chain("post")))
    return write(plan, builder, value, pre)


def _call(
    builder: ProblemBuilder, module: str, function: str, arguments: list[str], value: Value, shared: bool = False
) -> tuple[Value, str]:
    """As a module of torch.nn, which ModelNew has too where it is `shared`, or as a function; and the module's name."""
    if builder.rng.random() < 0.5:
        attribute = builder.attributes.add("pool", f"{module}({', '.join(arguments)})", shared=shared)
        return builder.forward.apply(f"{attribute}({{x}})", value, "pooling"), attribute
    first = 1 if "lp_pool" in function else 0
    named = [argument.rpartition("=") for argument in arguments]
    if builder.style.positional:
        for place, name in enumerate(("kernel_size", "stride", "padding"), first):
            if place >= len(named) or named[place][0] not in ("", name):
                break
            named[place] = ("", "", named[place][2])
    text = ", ".join(
        f"{name}={builder.constructor.setting(name, number, stored=True)}" if name else number
        for name, _, number in named
    )
    return builder.forward.apply(f"{function}({{x}}, {text})", value, "pooling"), ""


def _numbers(rng: random.Random, numbers: tuple[int, ...], kind: str = "") -> str:
    plain = kind == "lp" and len(numbers) == 1  # PyTorch's lp_pool1d multiplies by its kernel size, and takes no tuple
    same = len(set(numbers)) == 1 and (rng.random() < 0.85 or plain)
    return str(numbers[0]) if same else as_tuple(numbers)


def _window(plan: Plan, builder: ProblemBuilder, value: Value, pre: list[Step]) -> Draft:
    rng, rank, kind = builder.rng, rank_of(plan), kind_of(plan)
    one = rng.choice((2, 3, 3, 4, 5, 6, 7, 8, 9, 11) if rank < 3 else (2, 3, 3, 4, 5))
    kernel = tuple(rng.choice((2, 3, 4, 5, 6)) for _ in range(rank)) if plan.has("asymmetric") else (one,) * rank
    stride = kernel if rng.random() < 0.5 else (rng.choice((1, 1, 2, 2, 3, 4, 5)),) * rank
    if plan.has("asymmetric") and stride != kernel and rng.random() < 0.5:
        stride = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rank))
    padding = tuple(rng.randint(1, max(1, size // 2)) for size in kernel) if plan.has("padded") else (0,) * rank
    padding = padding if plan.has("asymmetric") else (min(padding),) * rank
    dilation = (rng.choice((2, 2, 3, 4)),) * rank if plan.has("dilated") else (1,) * rank
    for dimension, extent, step in zip(builder.tensors.dimensions[2:], kernel, dilation, strict=False):
        dimension.small = max(dimension.small, step * (extent - 1) + 1)
        dimension.large = max(dimension.small, dimension.large)
    inside = plan.has("inside") or (plan.has("ceil") and plan.has("padded"))
    arguments = ["2"] if kind == "lp" else []
    size = _numbers(rng, kernel, kind)
    arguments.append(size if rng.random() < 0.5 else f"kernel_size={size}")
    if stride != kernel or rng.random() < 0.4:
        arguments.append(f"stride={_numbers(rng, stride)}")
    elif rng.random() < 0.45:
        arguments.append("stride=None")
    arguments += [f"padding={_numbers(rng, padding)}"] if any(padding) else []
    arguments += [f"dilation={_numbers(rng, dilation)}"] if plan.has("dilated") else []
    arguments += ["ceil_mode=True"] if plan.has("ceil") else []
    arguments += ["count_include_pad=False"] if inside and kind == "avg" else []
    title = {"max": "MaxPool", "avg": "AvgPool", "lp": "LPPool"}[kind]
    knows = {"max": ("kernel", "stride", "padding", "dilation"), "avg": ("kernel", "stride", "padding")}.get(kind, ())
    function = f"F.{kind}_pool{rank}d"
    value, owner = _call(builder, f"nn.{title}{rank}d", function, arguments, value, shared=bool(knows))

    window = Window(kernel, stride, padding, dilation, (0,) * rank, named=knows if owner else ())
    count = "count" if kind == "avg" and (inside or plan.has("ceil")) else window.volume
    update = KINDS[kind].update + ("\ncount++;" if count == "count" else "") + "\n"
    sizes = window.sizes()
    if plan.has("ceil"):
        whats = ("kernel", "stride", "padding", "dilation")
        sizes = ", ".join(
            f"{out} = pooled({', '.join([size, *(window.text(what, axis) for what in whats)])})"
            for axis, (size, out, *_) in enumerate(window.axes)
        )
    helper = CEIL if plan.has("ceil") else ""
    return _finish(plan, builder, value, pre, window, (window.walk(update, 8), count, sizes, helper), owner)


CEIL = """// the last window must begin inside the input or its left padding
int pooled(int size, int kernel, int stride, int padding, int dilation) {
    int last = (size + 2 * padding - dilation * (kernel - 1) - 1 + stride - 1) / stride;
    return last * stride >= size + padding ? last : last + 1;
}

"""


def _adaptive(plan: Plan, builder: ProblemBuilder, value: Value, pre: list[Step]) -> Draft:
    rng, rank, kind = builder.rng, rank_of(plan), kind_of(plan)
    one = rng.choice((2, 3, 4, 5, 6, 7, 8))
    sizes = tuple(rng.choice((1, 2, 3, 4, 5, 7)) for _ in range(rank)) if plan.has("asymmetric") else (one,) * rank
    name = kind.capitalize()
    value, _ = _call(
        builder, f"nn.Adaptive{name}Pool{rank}d", f"F.adaptive_{kind}_pool{rank}d", [_numbers(rng, sizes)], value
    )
    window = Window(*(((1,) * rank,) * 5))
    text, places, counts = "", window.axes, []
    for size, out, _, at, step in places:
        text += lines(f"int {step}0 = {at} * {size} / {out}, {step}1 = (({at} + 1) * {size} + {out} - 1) / {out};")
        counts.append(f"({step}1 - {step}0)")
    for depth, (_, _, place, _, step) in enumerate(places):
        text += f"{' ' * (8 + 4 * depth)}for (int {place} = {step}0; {place} < {step}1; {place}++)\n"
    text += f"{' ' * (8 + 4 * rank)}{KINDS[kind].update}\n"
    extents = ", ".join(f"{axis[1]} = {size}" for axis, size in zip(places, sizes, strict=True))
    return _finish(plan, builder, value, pre, window, (text, f"({' * '.join(counts)})", extents, ""))


def _finish(
    plan: Plan,
    builder: ProblemBuilder,
    value: Value,
    pre: list[Step],
    window: Window,
    parts: tuple[str, str, str, str],
    owner: str = "",
) -> Draft:
    """One output a thread. `parts`: the loops over the window, the divisor, the output's extents, a helper. `owner`:
    the layer that knows the window's numbers, as one or as one for each axis."""
    walk, count, extents, helper = parts
    kind = KINDS[kind_of(plan)]
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    file = KernelFile(builder, NAME, [Tensor("x", "x")])
    plane = " * ".join(axis[1] for axis in window.axes)
    load = file.load(pre, f"x[plane + {window.inside}]")
    text = lines(
        f"int p = i % ({plane}), plane = i / ({plane}) * {' * '.join(axis[0] for axis in window.axes)};",
        f"int {window.unpack('p')}{', count = 0' if count == 'count' else ''};",
        f"float v = {kind.first};",
    )
    text += walk.replace("{load}", load) + lines(kind.result.format(count=count), post)
    names = [axis[0] for axis in window.axes] + [axis[1] for axis in window.axes] + window.names(*window.named)
    code, launch, style = file.sweep(builder.rng, text, ["n", *names])
    spatial = ", ".join(f"{axis[0]} = x.size({place + 2})" for place, axis in enumerate(window.axes))
    host = f"    int {spatial};\n    int {extents};\n"
    host += f"    auto out = torch::empty({{x.size(0), x.size(1), {plane.replace(' * ', ', ')}}}, x.options());\n"
    host += "    int n = out.numel();\n"
    each = ("_single", "_pair", "_triple")[len(window.axes) - 1]
    given = [
        (" ".join(window.names(what)), f"*{each}({owner}.{what.replace('kernel', 'kernel_size')})")
        for what in window.named
    ]
    return Draft(builder, file.write(helper + file.pre(pre) + code, host + launch, given), style)


def _global(plan: Plan, builder: ProblemBuilder, value: Value, pre: list[Step]) -> Draft:
    """All positions of a channel: a reduction of a row."""
    rng, rank, kind = builder.rng, rank_of(plan), kind_of(plan)
    dims = (
        rng.choice((str(tuple(range(2, rank + 2))), str(list(range(-rank, 0)))))
        if rank > 1
        else rng.choice(("2", "-1"))
    )
    keep = ", keepdim=True" if plan.has("keepdim") else ""
    name = {"avg": "mean", "max": "amax"}[kind]
    if plan.has("keepdim") and rng.random() < 0.6:
        ones = rng.choice(("1", f"({', '.join('1' * rank)})")) if rank > 1 else "1"
        module = f"nn.Adaptive{kind.capitalize()}Pool{rank}d"
        value, _ = _call(builder, module, f"F.adaptive_{kind}_pool{rank}d", [ones], value)
    elif not plan.has("keepdim") and rng.random() < 0.5:
        ones = rng.choice(("1", f"({', '.join('1' * rank)})")) if rank > 1 else "1"
        module = f"nn.Adaptive{kind.capitalize()}Pool{rank}d"
        value, _ = _call(builder, module, f"F.adaptive_{kind}_pool{rank}d", [ones], value)
        forms = ("{x}.flatten(1)", "torch.flatten({x}, 1)", "{x}.flatten(start_dim=1)", "{x}" + ".squeeze(-1)" * rank)
        value = builder.forward.apply(rng.choice((*forms, "{x}.view({x}.size(0), -1)")), value, "flatten")
    else:
        text = rng.choice((f"torch.{name}({{x}}, dim={dims}{keep})", f"{{x}}.{name}(dim={dims}{keep})"))
        value = builder.forward.apply(text, value, "global pooling")
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    file = KernelFile(builder, NAME, [Tensor("x", "x")])
    scope = draw_scope(rng, True)
    integers = ["D", *scope.integers]
    body, result = (SUM, "s / D") if kind == "avg" else (MAX, "m")
    text = f"{scope.start}    int base = row * D;\n{row_body(body, scope.loop, file.load(pre, 'x[base + j]'), scope)}"
    text += f"    if ({scope.lead}) {{\n{lines(f'float v = {result};', post, 'out[row] = v;')}    }}\n"
    code = reduction_helper(scope, "sum" if kind == "avg" else "max") + file.pre(pre) + file.kernel(text, integers)
    shape = ", ".join(["x.size(0)", "x.size(1)", *(["1"] * rank if plan.has("keepdim") else [])])
    host = "    int D = x.stride(1), rows = x.size(0) * x.size(1);\n"
    host += f"    auto out = torch::empty({{{shape}}}, x.options());\n"
    return Draft(builder, file.write(code, host + file.launch(scope.grid, integers)), scope.style)
