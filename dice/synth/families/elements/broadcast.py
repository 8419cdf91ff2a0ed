"""A tensor combined with a smaller one: a vector over the last dimension or channels, one value per row, a scalar."""

from __future__ import annotations

import random

from dice.synth.kernel.cuda import KernelFile, Tensor, lines, when
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain, rounded, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_rank, draw_shape, sentence
from dice.synth.problem.tensors import Value
from dice.synth.tables.phrasing import SCALAR_NAMES

NAME = "broadcast"
CORES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "add": ("adding {what}", ("{x} + {w}", "torch.add({x}, {w})"), "v = v + w;"),
    "sub": ("subtracting {what}", ("{x} - {w}", "torch.sub({x}, {w})"), "v = v - w;"),
    "mul": ("scaling by {what}", ("{x} * {w}", "torch.mul({x}, {w})"), "v = v * w;"),
    "max": ("the maximum with {what}", ("torch.maximum({x}, {w})",), "v = fmaxf(v, w);"),
    "min": ("the minimum with {what}", ("torch.minimum({x}, {w})",), "v = fminf(v, w);"),
    "prelu": ("a learned slope from {what}", ("torch.where({x} > 0, {x}, {w} * {x})",), "v = v > 0.0f ? v : w * v;"),
    "sigmoid_gate": (
        "a sigmoid gate from {what}",
        ("{x} * torch.sigmoid({w})", "torch.sigmoid({w}) * {x}"),
        "v = v / (1.0f + expf(-w));",
    ),
    "div_abs": (
        "a guarded division by {what}",
        ("{x} / (torch.abs({w}) + 1)", "{x} / ({w}.abs() + 1.0)"),
        "v = v / (fabsf(w) + 1.0f);",
    ),
    "squared_difference": (
        "the squared difference to {what}",
        ("({x} - {w}) ** 2", "torch.square({x} - {w})", "({x} - {w}).pow(2)"),
        "v = (v - w) * (v - w);",
    ),
    "one_plus": ("a residual product with {what}", ("{x} * (1 + {w})", "{x} * ({w} + 1.0)"), "v = v * (1.0f + w);"),
    "affine": ("an affine map with {what}", ("{x} * {w} + {u}", "torch.addcmul({u}, {x}, {w})"), "v = v * w + u;"),
}
KINDS: dict[str, str] = {
    "last": "a vector",
    "channel": "a vector over channels",
    "row": "one value per row",
    "scalar": "a single value",
    "number": "a number",
}
_OF_NUMBERS = ("add", "sub", "mul", "squared_difference", "one_plus")
_STATE = ChainState("any", 17.0, False)


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(CORES), [2.5 if name == "prelu" else 1.0 for name in CORES])[0]
    kind = rng.choices(tuple(KINDS), (4, 3, 2, 1, 5 if core in _OF_NUMBERS else 0))[0]
    source = "input" if kind in ("row", "number") or (kind != "scalar" and rng.random() < 0.3) else "parameter"
    pre = draw_chain(rng, chain_length(rng, (5, 3, 1)))
    pre = pre if state_after(pre).magnitude <= 15 and core != "prelu" else ()
    post = draw_chain(rng, chain_length(rng, (3, 4, 3)), _STATE)
    return Plan(NAME, core, chains(pre=pre, post=post), (f"over={kind}", f"from={source}"))


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng)
    kind = plan.features[0].removeprefix("over=")
    phrase, spellings, statement = CORES[plan.core]
    if kind == "channel":
        roles = rng.choice((("batch", "channels", "height", "width"), ("batch", "channels", "length")))
        shape = draw_shape(builder, len(roles), roles=roles)
    else:
        shape = draw_shape(builder, max(2, draw_rank(rng)) if kind != "row" else 2)
    value = builder.tensors.input("x", shape)
    affine = plan.core == "affine"
    if kind == "number":
        return _number(plan, builder, value)
    layer = plan.core == "prelu" and kind in ("channel", "scalar") and plan.has("from=parameter") and rng.random() < 0.6
    if layer:
        spellings, vectors = _prelu(builder, shape[1] if kind == "channel" else "")
    else:
        vectors = _vectors(plan, builder, shape, kind, 2 if affine else 1)
    value, pre = builder.operators.chain(value, plan.chain("pre"))
    fields = dict(zip("wu", (text for text, _ in vectors), strict=False))
    value = builder.forward.apply(rng.choice(spellings), value, phrase.format(what=KINDS[kind]), **fields)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(describe(plan.chain("pre")), phrase.format(what=KINDS[kind]), describe(plan.chain("post")))

    names = ["weight", "bias"] if affine else ["bias" if plan.core in ("add", "sub") else "weight"]
    tensors = [Tensor("x", "x")]
    tensors += [
        Tensor(name, name if source is None else source) for name, (_, source) in zip(names, vectors, strict=True)
    ]
    file = KernelFile(builder, NAME, tensors)
    index = {"last": "i % C", "channel": "i / inner % C", "row": "i / C", "scalar": "0"}[kind]
    integers = {"last": ["n", "C"], "channel": ["n", "C", "inner"], "row": ["n", "C"], "scalar": ["n"]}[kind]
    sizes = {
        "last": ", C = x.size(-1)",
        "channel": ", C = x.size(1), inner = x.stride(1)",
        "row": ", C = x.size(-1)",
        "scalar": "",
    }[kind]
    loads = [f"float {variable} = {name}[{index}];" for variable, name in zip("wu", names, strict=False)]
    code, launch, style = file.sweep(rng, lines("float v = x[i];", pre, loads, statement, post), integers)
    host = f"    auto out = torch::empty_like(x);\n    int n = x.numel(){sizes};\n"
    return Draft(builder, file.write(code, host + launch), style)


def _prelu(builder: ProblemBuilder, mark: str) -> tuple[tuple[str, ...], list[tuple[str, str | None]]]:
    """The layer of torch.nn: its call, and its weight."""
    size = builder.constructor.argument(SCALAR_NAMES["size"], mark, "int") if mark else ""
    init = [f"init={builder.rng.choice((0.1, 0.2, 0.3))}"] if builder.rng.random() < 0.4 else []
    attribute = builder.attributes.add("activation", f"nn.PReLU({', '.join([*when(size, size), *init])})", shared=True)
    return (f"{attribute}({{x}})",), [("", f"{attribute}.weight")]


def _number(plan: Plan, builder: ProblemBuilder, value: Value) -> Draft:
    """The second operand is a Python number, an argument of `forward`."""
    phrase, spellings, statement = CORES[plan.core]
    number = builder.tensors.input("number", [], repr(rounded(builder.rng, 0.1, 5.0)))
    value, pre = builder.operators.chain(value, plan.chain("pre"))
    value = builder.forward.apply(builder.rng.choice(spellings), value, phrase.format(what="a number"), w=number.text)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(describe(plan.chain("pre")), phrase.format(what="a number"), describe(plan.chain("post")))
    builder.constructor.scalars["w"] = "float"
    file = KernelFile(builder, NAME, [Tensor("x", "x")])
    code, launch, style = file.sweep(builder.rng, lines("float v = x[i];", pre, statement, post))
    host = "    auto out = torch::empty_like(x);\n    int n = x.numel();\n"
    return Draft(builder, file.write(code, host + launch, inputs=["x", "w"]), style)


def _vectors(
    plan: Plan, builder: ProblemBuilder, shape: list[str], kind: str, count: int
) -> list[tuple[str, str | None]]:
    """For each vector: its text in `forward`, and how ModelNew spells it (None: an input of `forward`)."""
    rng = builder.rng
    mark = {"last": shape[-1], "channel": shape[1], "row": shape[0], "scalar": "1"}[kind]
    spread = ", 1, 1" if len(shape) == 4 else ", 1"
    if plan.has("from=input"):
        made: list[tuple[str, str | None]] = []
        for _ in range(count):
            wide = kind == "row" or (kind == "channel" and rng.random() < 0.5)
            sizes = [mark, *spread.split(", ")[1:]] if wide else [mark]
            role = "row" if kind == "row" else "bias"
            value: Value = builder.tensors.input(role, sizes)
            view = f".view(1, -1{spread})" if kind == "channel" and not wide else ""
            made.append((value.text + view, None))
        return made
    by_argument = kind != "scalar"
    size = builder.constructor.argument(SCALAR_NAMES["size"], mark, "int") if by_argument else "1"
    wide = kind == "channel" and rng.random() < 0.6
    shape_text = f"{size}{spread}" if wide else size
    shape_text = rng.choice((shape_text, f"({shape_text}{',' * (not wide)})")) if by_argument else "1"
    view = f".view(1, -1{spread})" if kind == "channel" and not wide else ""
    parameters: list[tuple[str, str | None]] = []
    for _ in range(count):
        attribute = builder.attributes.parameter("parameter", shape_text)
        parameters.append((attribute + view, attribute))
    return parameters
