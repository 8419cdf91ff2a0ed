"""Two to four inputs of one shape, combined element by element once or twice, with chains before, between and after."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from dice.synth.kernel.cuda import KernelFile, Tensor, lines, when
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, rounded, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_rank, draw_shape, sentence
from dice.synth.problem.tensors import Value
from dice.synth.tables.binary import BINARY, Binary

NAME = "pointwise"
Sweep = Callable[[KernelFile, random.Random, str], tuple[str, str, str]]
# What may come second: with a fresh input, or once more with the first one (a residual connection).
_SECOND = tuple(
    name
    for name, combine in BINARY.items()
    if combine.inputs == 2 and not (combine.plain_first or combine.plain_second)
)
_WEIGHTS = {"add2": 3.0, "mul2": 3.0, "sub2": 2.0}


def sample(rng: random.Random) -> Plan:
    return drawn(rng, NAME, BINARY)


def drawn(rng: random.Random, family: str, table: Mapping[str, Binary]) -> Plan:
    """A plan of the family whose combinations are in `table`."""
    core = rng.choices(tuple(table), [_WEIGHTS.get(name, 1.0) for name in table])[0]
    combine = table[core]
    pre = () if combine.plain_first else draw_chain(rng, chain_length(rng, (5, 4, 1)))
    second = () if combine.plain_second else draw_chain(rng, chain_length(rng, (5, 4, 1)))
    pre = pre if state_after(pre).magnitude <= 12 else ()
    second = second if state_after(second).magnitude <= 12 else ()
    features = [f"inputs={combine.inputs}"]
    state = ChainState("any", combine.magnitude * (3 if pre or second else 1), False)
    post = draw_chain(rng, chain_length(rng, (4, 4, 2)), state)
    if rng.random() < 0.3 and combine.magnitude <= 30:
        other = rng.choices(_SECOND, [_WEIGHTS.get(name, 0.6) for name in _SECOND])[0]
        features.append(f"then={other}.{rng.choice(('input', 'input', 'first'))}")
        post = post if state_after(post, state).magnitude <= 20 else ()
        tail = draw_chain(rng, chain_length(rng, (4, 3, 2)), ChainState("any", 60.0, False))
        return Plan(family, core, chains(pre=pre, second=second, post=post, tail=tail), tuple(features))
    return Plan(family, core, chains(pre=pre, second=second, post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    return written(plan, rng, BINARY, KernelFile.sweep)


def written(plan: Plan, rng: random.Random, table: Mapping[str, Binary], sweep: Sweep) -> Draft:
    """The pair of such a plan; `sweep` has the kernel's threads share its outputs."""
    combine = table[plan.core]
    then = next((item.removeprefix("then=") for item in plan.features if item.startswith("then=")), "")
    builder = ProblemBuilder(rng, keep_inputs=then.endswith("first"))
    shape = draw_shape(builder, draw_rank(rng), most=16384)
    inputs = [builder.tensors.input(role, shape) for role in "xyz"[: combine.inputs]]
    value, text, names = _first(plan, builder, combine, inputs)
    builder.title = sentence(combine.phrase, describe(plan.chain("post")))
    if then:
        follower, _, source = then.partition(".")
        other = BINARY[follower]
        operand = inputs[0] if source == "first" else builder.tensors.input("z", shape)
        value, statement = _combined(builder, other, value, operand.text)
        variable = "x" if source == "first" else ("x", "y", "z", "q")[len(names)]
        names += when(source == "input", variable)
        value, tail = builder.operators.chain(value, plan.chain("tail"), state=ChainState("any", 60.0, False))
        text += lines(f"w = {variable}[i];", statement, tail)
        builder.title = sentence(builder.title, other.phrase, describe(plan.chain("tail")))
    builder.finish(value)
    file = KernelFile(builder, plan.family, [Tensor(name, name) for name in names])
    code, launch, style = sweep(file, rng, text)
    host = "    auto out = torch::empty_like(x);\n    int n = x.numel();\n"
    return Draft(builder, file.write(code, host + launch), style)


def _first(plan: Plan, builder: ProblemBuilder, combine: Binary, inputs: list[Value]) -> tuple[Value, str, list[str]]:
    """The first combination with the chains around it: its value, the kernel's lines, the tensors they read."""
    builder.forward.flow = "fresh" if plan.chain("pre") and plan.chain("second") else builder.forward.flow
    first, pre = builder.operators.chain(inputs[0], plan.chain("pre"))
    flow, builder.forward.flow = builder.forward.flow, "nested"
    second, second_steps = builder.operators.chain(inputs[1], plan.chain("second"))
    builder.forward.flow = flow
    value, statement = _combined(builder, combine, first, second.text, inputs[-1].text, is_atom=second.is_atom)
    value, post = builder.operators.chain(value, plan.chain("post"), state=ChainState("any", combine.magnitude, False))
    text = lines(
        "float v = x[i];",
        pre,
        "float w = y[i];",
        _on_second(second_steps),
        "float u = z[i];" if combine.inputs == 3 else "",
        statement,
        post,
    )
    return value, text, ["x", "y", "z"][: combine.inputs]


def _on_second(steps: Sequence[Step]) -> list[str]:
    return [step.cuda("w") for step in steps]


def _combined(
    builder: ProblemBuilder, combine: Binary, value: Value, second: str, third: str = "", *, is_atom: bool = True
) -> tuple[Value, str]:
    """The combination's value, and its statement in the kernel."""
    rng = builder.rng
    text = rng.choice(combine.spellings)
    if text.count("{y}") > 1 or not is_atom:
        second = second if second.isidentifier() else builder.forward.name(second).text
    fields, scalar = {"y": second, "z": third}, ""
    if combine.scalar:
        number = builder.constructor.scalar(
            combine.scalar, rounded(rng, 0.1, 2.5 if combine.scalar in ("scale", "shift") else 0.8)
        )
        fields["a"], scalar = number.forward, number.cuda
    return builder.forward.apply(text, value, combine.phrase, **fields), combine.statement.format(a=scalar)
