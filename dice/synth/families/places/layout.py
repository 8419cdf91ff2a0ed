"""Elements moved to other places (transposed, padded, rolled, joined, resampled), with a chain before and after."""

from __future__ import annotations

import random

from dice.synth.kernel.cuda import KernelFile, Tensor, lines, when
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_shape, sentence
from dice.synth.tables.index_maps import INDEX_MAPS, Numbers

NAME = "layout"
_STATE = ChainState("any", 6.0, False)


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(INDEX_MAPS))
    pre = () if INDEX_MAPS[core].two else draw_chain(rng, chain_length(rng, (4, 3, 1)))
    pre = pre if state_after(pre).magnitude <= 15 else ()
    # An index map alone computes nothing, so there is always a chain before or behind it.
    post = draw_chain(rng, chain_length(rng, (3, 4, 2) if pre else (0, 4, 3)), _STATE)
    return Plan(NAME, core, chains(pre=pre, post=post), (f"rank={len(INDEX_MAPS[core].shape)}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    index_map = INDEX_MAPS[plan.core]
    builder = ProblemBuilder(rng, keep_inputs=index_map.two)
    numbers = index_map.draw(rng)
    multiple = {axis: int(text) for axis, text in (index_map.multiple or {}).items()}
    shape = draw_shape(builder, len(index_map.shape), roles=index_map.shape, most=8192, multiple=multiple)
    for mark in shape[1:]:
        dimension = builder.tensors.size(mark)
        dimension.small = max(dimension.small, 8)
    x = builder.tensors.input("x", shape)
    value, pre = builder.operators.chain(x, plan.chain("pre"))
    fields = {"y": builder.tensors.input("y", shape).text} if index_map.two else {}
    text = _fill(rng.choice(index_map.spellings), numbers)
    value = builder.forward.apply(text, value, index_map.phrase, **fields)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(describe(plan.chain("pre")), index_map.phrase, describe(plan.chain("post")))

    file = KernelFile(builder, NAME, [Tensor("x", "x"), *when(index_map.two, Tensor("y", "y"))])
    body = [_fill(line, numbers) for line in index_map.lines]
    if pre:  # only loads go through the chain, not the constants that a padding fills in
        body = [_loaded(line, file.load(pre, "{at}")) for line in body]
    sizes = [_fill(text, numbers) for text in index_map.sizes]
    names = [*index_map.names, *(text.partition(" ")[0] for text in sizes)]
    used = [name for name in names if any(_mentions(line, name) for line in body)]
    code, launch, style = file.sweep(rng, lines(body, post), ["n", *used])
    host = "    int " + ", ".join(f"{name} = x.size({axis})" for axis, name in enumerate(index_map.names)) + ";\n"
    host += f"    int {', '.join(sizes)};\n" if sizes else ""
    host += f"    auto out = torch::empty({_fill(index_map.out, numbers)}, x.options());\n    int n = out.numel();\n"
    return Draft(builder, file.write(file.pre(pre) + code, host + launch), style)


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
