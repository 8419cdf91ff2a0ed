"""Values chosen under two conditions at once: of the input, of a second one, of a mask that is given, of places."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.kernel.cuda import KernelFile, Tensor, lines, when
from dice.synth.kernel.lanes import spread
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain, rounded, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_shape, sentence

NAME = "selection"


@dataclass(frozen=True, slots=True)
class Condition:
    """`text`: of v = {x}, w = {y} and the number {a}, or of the row r and column c. `reads`: which tensors."""

    spellings: tuple[str, ...]
    text: str
    reads: str = "x"
    scalar: str = ""


_ROWS = "torch.arange({x}.size(-2), device={x}.device).unsqueeze(1)"
_COLUMNS = "torch.arange({x}.size(-1), device={x}.device)"
CONDITIONS: dict[str, Condition] = {
    "above": Condition(("{x} > {a}", "torch.gt({x}, {a})", "{x}.gt({a})"), "v > {a}", scalar="threshold"),
    "below": Condition(("{x} < {a}", "torch.lt({x}, {a})", "{x}.lt({a})"), "v < {a}", scalar="threshold"),
    "at_least": Condition(("{x} >= -{a}", "torch.ge({x}, -{a})"), "v >= -{a}", scalar="threshold"),
    "at_most": Condition(("{x} <= {a}", "torch.le({x}, {a})", "{x}.le({a})"), "v <= {a}", scalar="threshold"),
    "inside": Condition(("torch.abs({x}) < {a}", "{x}.abs() < {a}"), "fabsf(v) < {a}", scalar="threshold"),
    "outside": Condition(("{x}.abs() > {a}", "torch.abs({x}) > {a}"), "fabsf(v) > {a}", scalar="threshold"),
    "positive": Condition(("{x} > 0", "{x} > 0.0", "torch.gt({x}, 0)"), "v > 0.0f"),
    "other_above": Condition(("{y} > {a}", "torch.gt({y}, {a})", "{y}.gt({a})"), "w > {a}", "xy", "threshold"),
    "other_at_most": Condition(("{y} <= {a}", "torch.le({y}, {a})"), "w <= {a}", "xy", "threshold"),
    "other_positive": Condition(("{y} > 0", "{y} > 0.0"), "w > 0.0f", "xy"),
    "less": Condition(("{x} < {y}", "torch.lt({x}, {y})", "{y} > {x}"), "v < w", "xy"),
    "not_less": Condition(("{x} >= {y}", "torch.ge({x}, {y})", "{x}.ge({y})"), "v >= w", "xy"),
    "given": Condition(("{m}",), "m[i]", "xm"),
    "causal": Condition((f"{_COLUMNS} <= {_ROWS}", f"{_ROWS} >= {_COLUMNS}"), "c <= r", "xp"),
    "window": Condition((f"({_COLUMNS} - {_ROWS}).abs() < {{k}}",), "abs(c - r) < {k}", "xp"),
    "off_diagonal": Condition((f"{_COLUMNS} != {_ROWS}",), "c != r", "xp"),
}
JOINS: dict[str, tuple[str, tuple[str, ...], str]] = {  # phrase, spellings, in CUDA
    "and": (
        "both conditions hold",
        ("({p}) & ({q})", "torch.logical_and({p}, {q})", "torch.bitwise_and({p}, {q})", "({p}).logical_and({q})"),
        "({p}) && ({q})",
    ),
    "or": (
        "one of two conditions holds",
        ("({p}) | ({q})", "torch.logical_or({p}, {q})", "torch.bitwise_or({p}, {q})"),
        "({p}) || ({q})",
    ),
    "and_not": (
        "one condition holds and another does not",
        ("({p}) & ~({q})", "torch.logical_and({p}, torch.logical_not({q}))"),
        "({p}) && !({q})",
    ),
    "xor": (
        "just one of two conditions holds",
        ("({p}) ^ ({q})", "torch.logical_xor({p}, {q})", "torch.bitwise_xor({p}, {q})", "({p}) != ({q})"),
        "({p}) != ({q})",
    ),
}
USES: dict[str, tuple[tuple[str, ...], str]] = {  # of the value {x}, its mask {c}, a number {b}, a tensor {y}
    "where_zero": (("torch.where({c}, {x}, torch.zeros_like({x}))", "torch.where({c}, {x}, 0.0)"), "keep ? v : 0.0f"),
    "where_number": (
        ("torch.where({c}, {x}, torch.full_like({x}, {b}))", "torch.where({c}, {x}, {b})"),
        "keep ? v : {b}f",
    ),
    "where_other": (("torch.where({c}, {x}, {y})", "{x}.where({c}, {y})"), "keep ? v : w"),
    "fill": (("{x}.masked_fill({c}, {b})", "torch.masked_fill({x}, {c}, {b})"), "keep ? {b}f : v"),
    "fill_others": (
        ("{x}.masked_fill(~({c}), {b})", "{x}.masked_fill(torch.logical_not({c}), {b})"),
        "keep ? v : {b}f",
    ),
    "product": (("{x} * ({c}).float()", "{x} * ({c})", "({c}).to({x}.dtype) * {x}"), "keep ? v : 0.0f"),
    "scaled": (("torch.where({c}, {x}, {b} * {x})", "torch.where({c}, {x}, {x} * {b})"), "keep ? v : {b}f * v"),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(JOINS), (5, 4, 2, 1))[0]
    first, second = _pair(rng, core)
    use = rng.choice(tuple(USES))
    chain = draw_chain(rng, chain_length(rng, (3, 4, 2)))
    chain = chain if state_after(chain).magnitude <= 20 else ()
    state = ChainState("any", state_after(chain).magnitude + 4, False)
    post = draw_chain(rng, chain_length(rng, (4, 3, 1)), state)
    return Plan(NAME, core, chains(chain=chain, post=post), (f"if={first}", f"if={second}", f"use={use}"))


def _pair(rng: random.Random, core: str) -> tuple[str, str]:
    """Two conditions of which neither decides the other: of two things, or of one value's both ends."""
    first, second = sorted(rng.sample(tuple(CONDITIONS), 2))
    if CONDITIONS[first].reads != CONDITIONS[second].reads:
        return first, second
    return _pair(rng, core) if core == "or" or rng.random() < 0.7 else ("at_least", rng.choice(("at_most", "below")))


def render(plan: Plan, rng: random.Random) -> Draft:
    conditions = [CONDITIONS[item.removeprefix("if=")] for item in plan.features if item.startswith("if=")]
    texts, chosen = USES[plan.features[-1].removeprefix("use=")]
    reads = {letter for one in conditions for letter in one.reads} | set("y" if "other" in plan.features[-1] else "")
    builder = ProblemBuilder(rng, keep_inputs=True)
    shape = draw_shape(builder, rng.choice((2, 3)) if "p" in reads else rng.choice((1, 2, 2, 3, 4)), most=16384)
    x = builder.tensors.input("x", shape, "torch.randn({shape})")
    fields = {"x": x.text}
    if "y" in reads:
        fields["y"] = builder.tensors.input("y", shape, "torch.randn({shape})").text
    if "m" in reads:
        make = rng.choice(("torch.rand({shape}) > 0.4", "torch.randn({shape}) > 0"))
        fields["m"] = builder.tensors.input("mask", shape, make).text
    mask, keep = _mask(plan, builder, conditions, fields)
    value, steps = builder.operators.chain(x, plan.chain("chain"))
    number = str(rounded(rng, 0.1, 2.0) * rng.choice((1, -1)))
    text = rng.choice(texts)
    value = value if text.count("{x}") < 2 or value.text.isidentifier() else builder.forward.name(value.text)
    value = builder.forward.apply(text.replace("{c}", mask), value, "selection", b=number, y=fields.get("y", ""))
    state = ChainState("any", state_after(plan.chain("chain")).magnitude + 4, False)
    value, post = builder.operators.chain(value, plan.chain("post"), state=state)
    builder.finish(value)
    builder.title = sentence(
        describe(plan.chain("chain")), f"a selection where {JOINS[plan.core][0]}", describe(plan.chain("post"))
    )
    places = "p" in reads
    file = KernelFile(
        builder,
        NAME,
        [Tensor("x", "x"), *when("y" in reads, Tensor("y", "y")), *when("m" in reads, Tensor("m", "m", "bool"))],
    )
    body = lines(
        "int r = i / N % M, c = i % N;" if places else "",
        "float v = x[i];",
        "float w = y[i];" if "y" in reads else "",
        f"bool keep = {keep};",
        steps,
        f"v = {chosen.format(b=number)};",
        post,
    )
    code, launch, style = spread(file, rng, body, ("n", "M", "N") if places else ("n",))
    sizes = ", M = x.size(-2), N = x.size(-1)" if places else ""
    host = f"    auto out = torch::empty_like(x);\n    int n = x.numel(){sizes};\n"
    return Draft(builder, file.write(code, host + launch), style)


def _mask(plan: Plan, builder: ProblemBuilder, conditions: list[Condition], fields: dict[str, str]) -> tuple[str, str]:
    """The mask as `forward` calls it, and its condition in the kernel."""
    rng = builder.rng
    shown, meant = [], []
    for condition in conditions:
        more = {"k": str(rng.randint(2, 5)), "a": ""}
        cuda = dict(more)
        if condition.scalar:
            scalar = builder.constructor.scalar(condition.scalar, rounded(rng, 0.1, 1.2))
            more["a"], cuda["a"] = scalar.forward, scalar.cuda
        text = rng.choice(condition.spellings).format(**fields, **more)
        shown.append(builder.forward.name(text).text if rng.random() < 0.25 and not text.isidentifier() else text)
        meant.append(condition.text.format(**cuda))
    _, spellings, joined = JOINS[plan.core]
    text = rng.choice(spellings).format(p=shown[0], q=shown[1])
    if rng.random() < 0.7:
        text = builder.forward.name(text).text
    return text, joined.format(p=meant[0], q=meant[1])
