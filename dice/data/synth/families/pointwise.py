"""Two or three inputs of one shape, combined element by element, with chains before and after."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.data.synth.chain import ChainState, chain_length, chains, draw_chain, rounded, state_after
from dice.data.synth.cuda import ELEMENT_GRID, KernelFile, Tensor, lines
from dice.data.synth.plan import Draft, Plan
from dice.data.synth.script import Script, Value
from dice.data.synth.shapes import describe, draw_rank, draw_shape, sentence

NAME = "pointwise"


@dataclass(frozen=True, slots=True)
class Combine:
    """An operator on two or three tensors; {y} and {z} may be any expression that is an atom."""

    phrase: str
    spellings: tuple[str, ...]
    statement: str  # updates v (first operand) from w (second) and u (third)
    scalar: str = ""
    inputs: int = 2
    magnitude: float = 10.0
    plain_first: bool = False  # discontinuous in the first operand: no chain before it


COMBINES: dict[str, Combine] = {
    "add2": Combine("the sum of two tensors", ("{x} + {y}", "torch.add({x}, {y})", "{x}.add({y})"), "v = v + w;"),
    "sub2": Combine(
        "the difference of two tensors", ("{x} - {y}", "torch.sub({x}, {y})", "torch.subtract({x}, {y})"), "v = v - w;"
    ),
    "mul2": Combine(
        "the product of two tensors",
        ("{x} * {y}", "torch.mul({x}, {y})", "{x}.mul({y})", "torch.multiply({x}, {y})"),
        "v = v * w;",
        magnitude=25.0,
    ),
    "div_abs": Combine(
        "a guarded quotient",
        ("{x} / ({y}.abs() + {a})", "{x} / (torch.abs({y}) + {a})", "torch.div({x}, torch.abs({y}) + {a})"),
        "v = v / (fabsf(w) + {a});",
        "shift",
        magnitude=50.0,
    ),
    "maximum": Combine(
        "the elementwise maximum",
        ("torch.maximum({x}, {y})", "torch.max({x}, {y})", "{x}.maximum({y})"),
        "v = fmaxf(v, w);",
    ),
    "minimum": Combine(
        "the elementwise minimum",
        ("torch.minimum({x}, {y})", "torch.min({x}, {y})", "{x}.minimum({y})"),
        "v = fminf(v, w);",
    ),
    "lerp": Combine(
        "linear interpolation",
        ("torch.lerp({x}, {y}, {a})", "{x} + {a} * ({y} - {x})", "{x}.lerp({y}, {a})"),
        "v = v + {a} * (w - v);",
        "weight",
    ),
    "axpy": Combine(
        "a scaled sum",
        ("{a} * {x} + {y}", "{x} * {a} + {y}", "torch.add({y}, {x}, alpha={a})"),
        "v = {a} * v + w;",
        "scale",
        magnitude=20.0,
    ),
    "add_scaled": Combine(
        "adding a scaled tensor",
        ("{x} + {a} * {y}", "torch.add({x}, {y}, alpha={a})", "{x} + {y} * {a}"),
        "v = v + {a} * w;",
        "scale",
        magnitude=20.0,
    ),
    "sub_scaled": Combine(
        "subtracting a scaled tensor",
        ("{x} - {a} * {y}", "torch.sub({x}, {y}, alpha={a})"),
        "v = v - {a} * w;",
        "scale",
        magnitude=20.0,
    ),
    "squared_difference": Combine(
        "the squared difference",
        ("({x} - {y}) ** 2", "torch.square({x} - {y})", "torch.pow({x} - {y}, 2)", "({x} - {y}).pow(2)"),
        "v = (v - w) * (v - w);",
        magnitude=80.0,
    ),
    "absolute_difference": Combine(
        "the absolute difference", ("torch.abs({x} - {y})", "({x} - {y}).abs()"), "v = fabsf(v - w);"
    ),
    "mean2": Combine(
        "the mean of two tensors", ("({x} + {y}) / 2", "({x} + {y}) * 0.5", "0.5 * ({x} + {y})"), "v = 0.5f * (v + w);"
    ),
    "hypot": Combine(
        "the hypotenuse",
        ("torch.hypot({x}, {y})", "torch.sqrt({x} * {x} + {y} * {y})", "torch.sqrt({x} ** 2 + {y} ** 2)"),
        "v = sqrtf(v * v + w * w);",
    ),
    "where_positive": Combine(
        "a selection by sign", ("torch.where({x} > 0, {x}, {y})",), "v = v > 0.0f ? v : w;", plain_first=True
    ),
    "where_greater": Combine(
        "a selection by threshold",
        ("torch.where({x} > {a}, {x}, {y})",),
        "v = v > {a} ? v : w;",
        "threshold",
        plain_first=True,
    ),
    "addcmul": Combine(
        "a sum with a product",
        ("torch.addcmul({x}, {y}, {z})", "{x} + {y} * {z}", "{x}.addcmul({y}, {z})"),
        "v = v + w * u;",
        inputs=3,
        magnitude=30.0,
    ),
    "addcmul_scaled": Combine(
        "a sum with a scaled product",
        ("torch.addcmul({x}, {y}, {z}, value={a})", "{x} + {a} * {y} * {z}"),
        "v = v + {a} * w * u;",
        "scale",
        3,
        60.0,
    ),
    "fma": Combine(
        "multiply-add",
        ("{x} * {y} + {z}", "torch.add(torch.mul({x}, {y}), {z})", "torch.addcmul({z}, {x}, {y})"),
        "v = v * w + u;",
        inputs=3,
        magnitude=30.0,
    ),
    "add3": Combine(
        "the sum of three tensors",
        ("{x} + {y} + {z}", "torch.add({x}, {y}) + {z}"),
        "v = v + w + u;",
        inputs=3,
        magnitude=15.0,
    ),
    "blend": Combine(
        "a gated blend",
        ("torch.sigmoid({z}) * {x} + (1 - torch.sigmoid({z})) * {y}", "torch.lerp({y}, {x}, torch.sigmoid({z}))"),
        "u = 1.0f / (1.0f + expf(-u)); v = u * v + (1.0f - u) * w;",
        inputs=3,
    ),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(COMBINES), [2.0 if name in ("add2", "mul2", "sub2") else 1.0 for name in COMBINES])[0]
    combine = COMBINES[core]
    pre = () if combine.plain_first else draw_chain(rng, chain_length(rng, (6, 3, 1)))
    second = draw_chain(rng, chain_length(rng, (5, 4, 1)))
    pre = pre if state_after(pre).magnitude <= 12 else ()
    second = second if state_after(second).magnitude <= 12 else ()
    state = ChainState("any", combine.magnitude * (3 if pre or second else 1), False)
    post = draw_chain(rng, chain_length(rng, (4, 4, 2)), state)
    return Plan(NAME, core, chains(pre=pre, second=second, post=post), (f"inputs={combine.inputs}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    combine = COMBINES[plan.core]
    script = Script(rng)
    shape = draw_shape(script, draw_rank(rng), most=16384)
    inputs = [script.input(role, shape) for role in "xyz"[: combine.inputs]]
    script.flow = "fresh" if plan.chain("pre") and plan.chain("second") else script.flow
    first, pre = script.chain(inputs[0], plan.chain("pre"))
    flow, script.flow = script.flow, "nested"
    second, second_steps = script.chain(inputs[1], plan.chain("second"))
    script.flow = flow
    text = rng.choice(combine.spellings)
    if text.count("{y}") > 1 or not second.is_atom:
        script.flow, flow = "fresh", script.flow
        second = script.bind(second)
        script.flow = flow
    fields = {"y": second.text, "z": inputs[-1].text}
    scalar = ""
    if combine.scalar:
        number = script.scalar(combine.scalar, rounded(rng, 0.1, 2.5 if combine.scalar in ("scale", "shift") else 0.8))
        fields["a"], scalar = number.forward, number.cuda
    value: Value = script.apply(text, first, combine.phrase, **fields)
    value, post = script.chain(value, plan.chain("post"), state=ChainState("any", combine.magnitude, False))
    script.finish(value)
    script.title = sentence(combine.phrase, describe(plan.chain("post")))

    names = ["x", "y", "z"][: combine.inputs]
    file = KernelFile(script, NAME, [Tensor(name, name) for name in names])
    code = file.per_element(
        lines(
            "float v = x[i];",
            pre,
            "float w = y[i];",
            [step.cuda("w") for step in second_steps],
            "float u = z[i];" if combine.inputs == 3 else "",
            combine.statement.format(a=scalar),
            post,
        )
    )
    host = "    auto out = torch::empty_like(x);\n    int n = x.numel();\n" + file.launch(ELEMENT_GRID, ["n"])
    return Draft(script, file.write(code, host), "plain")
