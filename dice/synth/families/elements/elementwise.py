"""One input, a chain of elementwise operators."""

from __future__ import annotations

import random

from dice.synth.kernel.cuda import ELEMENT_GRID, KernelFile, Tensor, lines
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import chains, draw_chain
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_rank, draw_shape

NAME = "elementwise"


def sample(rng: random.Random) -> Plan:
    length = rng.choices((1, 2, 3, 4, 5), (3, 4, 3, 2, 1))[0]
    names = draw_chain(rng, length)
    if length == 1:
        return Plan(NAME, names[0], (), ("alone",))
    return Plan(NAME, "chain", chains(chain=names))


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng)
    names = plan.chain("chain") or (plan.core,)
    shape = draw_shape(builder, draw_rank(rng))
    value, steps = builder.operators.chain(builder.tensors.input("x", shape), names)
    builder.finish(value)
    builder.title = describe(names)
    file = KernelFile(builder, NAME, (Tensor("x", "x"),))
    style = rng.choices(("plain", "grid_stride", "float4"), (1.5, 0.5, 8))[0]
    sizes = "    auto out = torch::empty_like(x);\n    int n = x.numel();\n"
    if style == "plain":
        code = file.per_element(lines("float v = x[i];", steps))
        host = sizes + file.launch(ELEMENT_GRID, ["n"])
    elif style == "grid_stride":
        code = file.kernel(
            "    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {\n"
            f"{lines('float v = x[i];', steps, 'out[i] = v;')}    }}\n",
            ["n"],
        )
        blocks = "    int blocks = std::min((n + 255) / 256, 2048);\n"
        host = sizes + blocks + file.launch("blocks, 256", ["n"])
    else:
        load = {lane: file.load(steps, f"q.{lane}", "f") for lane in "xyzw"}
        code = file.pre(steps, "f") + file.kernel(
            "    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;\n    if (i + 3 < n) {\n"
            "        float4 q = *reinterpret_cast<const float4*>(x + i);\n"
            + "".join(f"        q.{lane} = {text};\n" for lane, text in load.items())
            + "        *reinterpret_cast<float4*>(out + i) = q;\n    } else {\n"
            f"        for (; i < n; i++) out[i] = {file.load(steps, 'x[i]', 'f')};\n    }}\n",
            ["n"],
        )
        host = sizes + file.launch("(n + 1023) / 1024, 256", ["n"])
    return Draft(builder, file.write(code, host), style)
