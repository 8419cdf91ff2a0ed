"""Gated units: the input is split in two along a dimension; one half, activated, gates the other."""

from __future__ import annotations

import random

from dice.synth.kernel.cuda import KernelFile, Tensor, lines
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_shape, sentence
from dice.synth.problem.tensors import Value
from dice.synth.tables.operators import OPERATORS

NAME = "glu"
_GATES = (
    "sigmoid",
    "tanh",
    "relu",
    "silu",
    "gelu",
    "mish",
    "softplus",
    "elu",
    "hardsigmoid",
    "relu6",
    "gelu_tanh",
    "softsign",
    "leaky_relu",
    "hardswish",
    "hardtanh",
    "selu",
    "celu",
    "logsigmoid",
    "sin",
    "erf",
    "abs",
    "square",
    "swish",
    "cos",
    "atan",
)
_COMBINE = {"mul": "*", "add": "+", "sub": "-"}


def sample(rng: random.Random) -> Plan:
    features = [f"dim={rng.choices(('last', 'channel'), (3, 2))[0]}", rng.choice(("gate=second", "gate=first"))]
    gate: tuple[str, ...] = (rng.choice(_GATES),)
    if rng.random() < 0.25:
        gate = draw_chain(rng, 2)
    value = draw_chain(rng, chain_length(rng, (5, 2)))
    gate = gate if state_after(gate).magnitude <= 12 else ("sigmoid",)
    value = value if state_after(value).magnitude <= 12 else ()
    post = draw_chain(rng, chain_length(rng, (5, 3, 1)), ChainState("any", 20.0, False))
    core = rng.choices(tuple(_COMBINE), (6, 1, 1))[0]
    return Plan(NAME, core, chains(value=value, gate=gate, post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng, keep_inputs=True)
    channel = plan.has("dim=channel")
    image, signal = ("batch", "channels", "height", "width"), ("batch", "channels", "length")
    roles = (
        rng.choice((image, signal))
        if channel
        else rng.choice((("batch", "features"), ("batch", "sequence", "features")))
    )
    index = 1 if channel else len(roles) - 1
    shape = draw_shape(builder, len(roles), roles=roles, multiple={index: 2})
    dim = "1" if channel else rng.choice(("-1", "-1", str(index)))
    x = builder.tensors.input("x", shape)
    gate_first = plan.has("gate=first")
    ordinary = plan.core == "mul" and plan.chain("gate") == ("sigmoid",) and not plan.chain("value") and not gate_first
    if ordinary and rng.random() < 0.5:
        text = f"F.glu({{x}}, dim={dim})"
        if rng.random() < 0.4:
            text = f"{builder.attributes.add('glu', f'nn.GLU(dim={dim})', shared=False)}({{x}})"
        value = builder.forward.apply(text, x, "gated linear unit")
        value_steps: list[Step] = []
        gate_steps = [Step(OPERATORS["sigmoid"], ())]
    else:
        value, value_steps, gate_steps = _halves(plan, builder, x, dim, gate_first)
    value, post = builder.operators.chain(value, plan.chain("post"), state=ChainState("any", 20.0, False))
    builder.finish(value)
    builder.title = sentence(f"a gated unit with {describe(plan.chain('gate'))}", describe(plan.chain("post")))

    file = KernelFile(builder, NAME, [Tensor("x", "x")])
    first, second = ("base + half", "base") if gate_first else ("base", "base + half")
    code, launch, style = file.sweep(
        rng,
        lines(
            "int base = i / half * 2 * half + i % half;",
            f"float v = x[{first}];",
            value_steps,
            f"float w = x[{second}];",
            [step.cuda("w") for step in gate_steps],
            f"v = v {_COMBINE[plan.core]} w;",
            post,
        ),
        ["n", "half"],
    )
    host = lines(
        "auto sizes = x.sizes().vec();",
        "sizes[1] /= 2;" if channel else "sizes.back() /= 2;",
        "auto out = torch::empty(sizes, x.options());",
        "int n = out.numel(), half = " + ("x.size(1) / 2 * x.stride(1);" if channel else "x.size(-1) / 2;"),
        indent=4,
    )
    return Draft(builder, file.write(code, host + launch), style)


def _halves(
    plan: Plan, builder: ProblemBuilder, x: Value, dim: str, gate_first: bool
) -> tuple[Value, list[Step], list[Step]]:
    """Split, activate, combine. Returns the value and the steps of both halves."""
    rng = builder.rng
    names = (
        builder.names.fresh(("a", "value", "u", "left", "x1", "first")),
        builder.names.fresh(("b", "gate", "g", "right", "x2", "second")),
    )
    first, second = (Value(name) for name in names)
    split = rng.choice(
        (
            f"{x.text}.chunk(2, dim={dim})",
            f"torch.chunk({x.text}, 2, dim={dim})",
            f"torch.split({x.text}, {x.text}.size({dim}) // 2, dim={dim})",
        )
    )
    builder.forward.lines.append(f"{names[0]}, {names[1]} = {split}")
    value, gate = (second, first) if gate_first else (first, second)
    value, value_steps = builder.operators.chain(value, plan.chain("value"))
    gate, gate_steps = builder.operators.chain(gate, plan.chain("gate"))
    left, right = (gate, value) if gate_first and plan.core != "sub" else (value, gate)
    return builder.forward.apply(f"{{x}} {_COMBINE[plan.core]} {right.text}", left, "gate"), value_steps, gate_steps
