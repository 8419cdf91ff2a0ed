"""Elementwise chains under a triangular or diagonal mask of the last two dimensions."""

from __future__ import annotations

import random

from dice.synth.kernel.cuda import KernelFile, Tensor, lines
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_shape, sentence

NAME = "mask"
# core -> phrase, spellings with the diagonal {a}, condition that keeps an element
CORES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "tril": (
        "the lower triangle",
        ("torch.tril({x}, diagonal={a})", "{x}.tril({a})", "torch.tril({x}, {a})"),
        "c - r <= {a}",
    ),
    "triu": (
        "the upper triangle",
        ("torch.triu({x}, diagonal={a})", "{x}.triu({a})", "torch.triu({x}, {a})"),
        "c - r >= {a}",
    ),
    "tril0": ("the lower triangle", ("torch.tril({x})", "{x}.tril()"), "c <= r"),
    "triu0": ("the upper triangle", ("torch.triu({x})", "{x}.triu()"), "c >= r"),
    "band": (
        "a band around the diagonal",
        ("torch.triu(torch.tril({x}, diagonal={a}), diagonal=-{a})", "torch.tril({x}, {a}).triu(-{a})"),
        "c - r <= {a} && r - c <= {a}",
    ),
    "causal_fill": (
        "a causal mask",
        (
            "{x}.masked_fill(torch.ones_like({x}).triu(1) > 0, {b})",
            "torch.where(torch.ones_like({x}).tril() > 0, {x}, torch.full_like({x}, {b}))",
        ),
        "c <= r",
    ),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(CORES))
    chain = draw_chain(rng, chain_length(rng, (1, 4, 3)))
    post = draw_chain(rng, chain_length(rng, (5, 3, 1)), ChainState("any", state_after(chain).magnitude + 2, False))
    return Plan(NAME, core, chains(chain=chain, post=post), (f"rank={rng.choices((2, 3), (3, 2))[0]}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    phrase, spellings, condition = CORES[plan.core]
    builder = ProblemBuilder(rng)
    roles = ("m", "n") if plan.has("rank=2") else ("batch", "m", "n")
    shape = draw_shape(builder, len(roles), roles=roles)
    for mark in shape[-2:]:
        dimension = builder.tensors.size(mark)
        dimension.small = max(dimension.small, 8)
    value, steps = builder.operators.chain(builder.tensors.input("x", shape), plan.chain("chain"))
    fields, cuda = {}, ""
    if "{a}" in condition:
        low = 1 if plan.core == "band" else -3
        number = rng.choice([offset for offset in range(low, 4) if offset])
        scalar = builder.constructor.scalar("diagonal", number, hint="int", may_be_argument=False)
        fields["a"], cuda = scalar.forward, scalar.cuda
    fill = "0.0"
    if plan.core == "causal_fill":
        fill = rng.choice(("-1e9", "-100.0", "-1.0", "0.5"))
        fields["b"] = fill
    value = builder.forward.apply(rng.choice(spellings), value, phrase, **fields)
    value, post = builder.operators.chain(
        value, plan.chain("post"), state=ChainState("any", state_after(plan.chain("chain")).magnitude + 2, False)
    )
    builder.finish(value)
    builder.title = sentence(describe(plan.chain("chain")), phrase, describe(plan.chain("post")))
    file = KernelFile(builder, NAME, [Tensor("x", "x")])
    keep = condition.format(a=cuda)
    select = f"v = {keep} ? v : {fill}f;"
    code, launch, style = file.sweep(
        rng, lines("int r = i / N % M, c = i % N;", "float v = x[i];", steps, select, post), ["n", "M", "N"]
    )
    host = "    auto out = torch::empty_like(x);\n    int n = x.numel(), M = x.size(-2), N = x.size(-1);\n"
    return Draft(builder, file.write(code, host + launch), style)
