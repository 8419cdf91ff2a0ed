"""Two to four inputs of one shape, combined element by element once or twice, with chains before, between and after."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dice.data.synth.chain import ChainState, Step, chain_length, chains, draw_chain, rounded, state_after
from dice.data.synth.combine import COMBINES, Combine
from dice.data.synth.cuda import KernelFile, Tensor, lines
from dice.data.synth.plan import Draft, Plan
from dice.data.synth.script import Script, Value
from dice.data.synth.shapes import describe, draw_rank, draw_shape, sentence

NAME = "pointwise"
# What may come second: with a fresh input, or once more with the first one (a residual connection).
_SECOND = tuple(
    name
    for name, combine in COMBINES.items()
    if combine.inputs == 2 and not (combine.plain_first or combine.plain_second)
)
_WEIGHTS = {"add2": 3.0, "mul2": 3.0, "sub2": 2.0}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(COMBINES), [_WEIGHTS.get(name, 1.0) for name in COMBINES])[0]
    combine = COMBINES[core]
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
        return Plan(NAME, core, chains(pre=pre, second=second, post=post, tail=tail), tuple(features))
    return Plan(NAME, core, chains(pre=pre, second=second, post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    combine = COMBINES[plan.core]
    then = next((item.removeprefix("then=") for item in plan.features if item.startswith("then=")), "")
    script = Script(rng, keep_inputs=then.endswith("first"))
    shape = draw_shape(script, draw_rank(rng), most=16384)
    inputs = [script.input(role, shape) for role in "xyz"[: combine.inputs]]
    value, text, names = _first(plan, script, combine, inputs)
    script.title = sentence(combine.phrase, describe(plan.chain("post")))
    if then:
        follower, _, source = then.partition(".")
        other = COMBINES[follower]
        operand = inputs[0] if source == "first" else script.input("z", shape)
        value, statement = _combined(script, other, value, operand.text)
        variable = "x" if source == "first" else ("x", "y", "z", "q")[len(names)]
        names += [variable] * (source == "input")
        value, tail = script.chain(value, plan.chain("tail"), state=ChainState("any", 60.0, False))
        text += lines(f"w = {variable}[i];", statement, tail)
        script.title = sentence(script.title, other.phrase, describe(plan.chain("tail")))
    script.finish(value)
    file = KernelFile(script, NAME, [Tensor(name, name) for name in names])
    code, launch, style = file.sweep(rng, text)
    host = "    auto out = torch::empty_like(x);\n    int n = x.numel();\n"
    return Draft(script, file.write(code, host + launch), style)


def _first(plan: Plan, script: Script, combine: Combine, inputs: list[Value]) -> tuple[Value, str, list[str]]:
    """The first combination with the chains around it: its value, the kernel's lines, the tensors they read."""
    script.flow = "fresh" if plan.chain("pre") and plan.chain("second") else script.flow
    first, pre = script.chain(inputs[0], plan.chain("pre"))
    flow, script.flow = script.flow, "nested"
    second, second_steps = script.chain(inputs[1], plan.chain("second"))
    script.flow = flow
    value, statement = _combined(script, combine, first, second.text, inputs[-1].text, is_atom=second.is_atom)
    value, post = script.chain(value, plan.chain("post"), state=ChainState("any", combine.magnitude, False))
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
    script: Script, combine: Combine, value: Value, second: str, third: str = "", *, is_atom: bool = True
) -> tuple[Value, str]:
    """The combination's value, and its statement in the kernel."""
    rng = script.rng
    text = rng.choice(combine.spellings)
    if text.count("{y}") > 1 or not is_atom:
        script.flow, flow = "fresh", script.flow
        second = script.bind(Value(second, is_atom, second.isidentifier())).text
        script.flow = flow
    fields, scalar = {"y": second, "z": third}, ""
    if combine.scalar:
        number = script.scalar(combine.scalar, rounded(rng, 0.1, 2.5 if combine.scalar in ("scale", "shift") else 0.8))
        fields["a"], scalar = number.forward, number.cuda
    return script.apply(text, value, combine.phrase, **fields), combine.statement.format(a=scalar)
