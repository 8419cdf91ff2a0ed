"""Running sums and products along a dimension, forwards or backwards, with a chain before and after."""

from __future__ import annotations

import random

from dice.data.synth.chain import ChainState, chain_length, chains, draw_chain, state_after
from dice.data.synth.cuda import KernelFile, Tensor, statements
from dice.data.synth.plan import Draft, Plan
from dice.data.synth.rows import draw_axis
from dice.data.synth.script import Script
from dice.data.synth.shapes import describe, draw_shape, sentence

NAME = "scan"
# core -> phrase, spellings, first value, update with {load}
CORES: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "cumsum": (
        "a cumulative sum",
        ("torch.cumsum({x}, dim={d})", "{x}.cumsum(dim={d})", "torch.cumsum({x}, {d})"),
        "0.0f",
        "s += {load};",
    ),
    "cumprod": (
        "a cumulative product",
        ("torch.cumprod({x}, dim={d})", "{x}.cumprod(dim={d})"),
        "1.0f",
        "s *= {load};",
    ),
    "cummax": (
        "a running maximum",
        ("torch.cummax({x}, dim={d})[0]", "torch.cummax({x}, dim={d}).values"),
        "-INFINITY",
        "s = fmaxf(s, {load});",
    ),
    "cummin": (
        "a running minimum",
        ("torch.cummin({x}, dim={d})[0]", "torch.cummin({x}, dim={d}).values"),
        "INFINITY",
        "s = fminf(s, {load});",
    ),
    "reverse_cumsum": (
        "a cumulative sum from the end",
        (
            "torch.flip(torch.cumsum(torch.flip({x}, dims=[{d}]), dim={d}), dims=[{d}])",
            "{x}.flip({d}).cumsum({d}).flip({d})",
        ),
        "0.0f",
        "s += {load};",
    ),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(CORES), (4, 2, 1, 1, 2))[0]
    position = rng.choices(("last", "first", "middle"), (4, 2, 2))[0]
    pre = () if core == "cumprod" else draw_chain(rng, chain_length(rng, (3, 4, 1)))
    pre = pre if state_after(pre).magnitude <= 12 else ()
    post = draw_chain(rng, chain_length(rng, (4, 3, 1)), _state(core))
    return Plan(NAME, core, chains(pre=pre, post=post), (f"dim={position}",))


def _state(core: str) -> ChainState:
    return ChainState("any", 6.0 if core in ("cummax", "cummin") else 60.0, False)


def render(plan: Plan, rng: random.Random) -> Draft:
    phrase, spellings, start, update = CORES[plan.core]
    script = Script(rng)
    axis = draw_axis(script, plan.features[0].removeprefix("dim="), scopes=False)
    shape = draw_shape(script, axis.rank, most=16384)
    dimension = script.dimensions[axis.index]
    dimension.small = max(3, min(dimension.small, 24 if plan.core == "cumprod" else 200))
    sampler = "torch.rand({shape}) + 0.5" if plan.core == "cumprod" else None
    value, pre = script.chain(script.input("x", shape, sampler), plan.chain("pre"))
    value = script.apply(rng.choice(spellings).replace("{d}", axis.text.forward), value, phrase)
    value, post = script.chain(value, plan.chain("post"), state=_state(plan.core))
    script.finish(value)
    script.title = sentence(describe(plan.chain("pre")), phrase, describe(plan.chain("post")))

    file = KernelFile(script, NAME, [Tensor("x", "x")])
    load = file.load(pre, f"x[{axis.at}]")
    loop = "for (int j = D - 1; j >= 0; j--)" if plan.core == "reverse_cumsum" else axis.scope.loop
    result = (
        f"        float v = s;\n{statements(post, 8)}        out[{axis.at}] = v;\n"
        if post
        else f"        out[{axis.at}] = s;\n"
    )
    body = f"{axis.start}    float s = {start};\n    {loop} {{\n        {update.format(load=load)}\n{result}    }}\n"
    code = file.pre(pre) + file.kernel(body, axis.integers)
    host = f"    auto out = torch::empty_like(x);\n{axis.sizes}{file.launch(axis.scope.grid, axis.integers)}"
    return Draft(script, file.write(code, host), axis.scope.style)
