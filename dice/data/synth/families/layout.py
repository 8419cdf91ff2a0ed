"""Elements moved to other places (transposed, padded, rolled, joined, resampled), with a chain before and after."""

from __future__ import annotations

import random

from dice.data.synth.chain import ChainState, chain_length, chains, draw_chain, state_after
from dice.data.synth.cuda import KernelFile, Tensor, lines
from dice.data.synth.moves import MOVES, Numbers
from dice.data.synth.plan import Draft, Plan
from dice.data.synth.script import Script
from dice.data.synth.shapes import describe, draw_shape, sentence

NAME = "layout"
_STATE = ChainState("any", 6.0, False)


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(MOVES))
    pre = () if MOVES[core].two else draw_chain(rng, chain_length(rng, (4, 3, 1)))
    pre = pre if state_after(pre).magnitude <= 15 else ()
    # A move alone computes nothing: there is always something to compute on the way.
    post = draw_chain(rng, chain_length(rng, (3, 4, 2) if pre else (0, 4, 3)), _STATE)
    return Plan(NAME, core, chains(pre=pre, post=post), (f"rank={len(MOVES[core].shape)}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    move = MOVES[plan.core]
    script = Script(rng, keep_inputs=move.two)
    numbers = move.draw(rng)
    multiple = {axis: int(text) for axis, text in (move.multiple or {}).items()}
    shape = draw_shape(script, len(move.shape), roles=move.shape, most=8192, multiple=multiple)
    for mark in shape[1:]:
        dimension = script.dimensions[int(mark.strip("@"))]
        dimension.small = max(dimension.small, 8)
    x = script.input("x", shape)
    value, pre = script.chain(x, plan.chain("pre"))
    fields = {"y": script.input("y", shape).text} if move.two else {}
    text = _fill(rng.choice(move.spellings), numbers)
    value = script.apply(text, value, move.phrase, **fields)
    value, post = script.chain(value, plan.chain("post"), state=_STATE)
    script.finish(value)
    script.title = sentence(describe(plan.chain("pre")), move.phrase, describe(plan.chain("post")))

    file = KernelFile(script, NAME, [Tensor("x", "x")] + [Tensor("y", "y")] * move.two)
    body = [_fill(line, numbers) for line in move.lines]
    if pre:  # loads go through the chain; what is filled in beside them does not
        body = [_loaded(line, file.load(pre, "{at}")) for line in body]
    sizes = [_fill(text, numbers) for text in move.sizes]
    names = [*move.names, *(text.partition(" ")[0] for text in sizes)]
    used = [name for name in names if any(_mentions(line, name) for line in body)]
    code, launch, style = file.sweep(rng, lines(body, post), ["n", *used])
    host = "    int " + ", ".join(f"{name} = x.size({axis})" for axis, name in enumerate(move.names)) + ";\n"
    host += f"    int {', '.join(sizes)};\n" if sizes else ""
    host += f"    auto out = torch::empty({_fill(move.out, numbers)}, x.options());\n    int n = out.numel();\n"
    return Draft(script, file.write(file.pre(pre) + code, host + launch), style)


def _fill(text: str, numbers: Numbers) -> str:
    for name, number in numbers.items():
        text = text.replace(f"{{{name}}}", str(number))
    return text


def _mentions(line: str, name: str) -> bool:
    return (
        name in line.replace("(", " ").replace(")", " ").replace(",", " ").replace(";", " ").replace("]", " ").split()
    )


def _loaded(line: str, load: str) -> str:
    """Each `x[...]` of a line wrapped in the chain's function."""
    result, place = "", 0
    while (start := line.find("x[", place)) >= 0:
        depth, end = 0, start + 1
        while True:
            depth += (line[end] == "[") - (line[end] == "]")
            end += 1
            if depth == 0:
                break
        result += line[place:start] + load.replace("{at}", line[start:end])
        place = end
    return result + line[place:]
