"""Layers that a kernel-writer leaves to PyTorch's libraries: products and convolutions, with what follows fused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dice.data.synth.families import conv
from dice.data.synth.phrasing import SCALAR_NAMES
from dice.data.synth.plan import Plan
from dice.data.synth.script import Script, Value


@dataclass(slots=True)
class Head:
    """A library layer as both sides see it: its value in the problem, its line in ModelNew, its output's shape.

    `last`: channels lie along the last dimension, as a linear layer leaves them; else along the second.
    """

    value: Value
    line: str  # sets x
    inputs: list[str]  # of ModelNew.forward
    shape: list[str]  # marks, or "?" where the extent follows from the layer
    channels: str  # the number of channels: a constructor argument, or a mark
    phrase: str
    last: bool
    rank: int = field(default=0)


def linear(script: Script, *, sequence: bool = False) -> Head:
    rng = script.rng
    leading = [script.dimension("batch", rng.choice((2, 4, 8, 10, 16, 32)), rng.choice((64, 128, 256, 1024)))]
    leading += [script.dimension("sequence", rng.choice((4, 8, 10, 16)), rng.choice((128, 512)))] if sequence else []
    features = [
        script.dimension(role, rng.choice((8, 16, 20, 32, 48, 64, 100, 128)), rng.choice((256, 512, 1024, 2048)))
        for role in ("in_features", "out_features")
    ]
    x = script.input("x", [*leading, features[0]])
    names = [
        script.argument(SCALAR_NAMES[role], mark, "int")
        for role, mark in zip(("in_features", "out_features"), features, strict=True)
    ]
    bias = rng.choice(("", "", "", ", bias=False"))
    attribute = script.attribute("linear", f"nn.Linear({names[0]}, {names[1]}{bias})", shared=True)
    value = script.apply(f"{attribute}({{x}})", x, "linear layer")
    shape = [*leading, features[1]]
    script.results.append(shape)
    return Head(value, f"x = {attribute}(x)", ["x"], shape, names[1], "a linear layer", True, len(shape))


def convolution(script: Script, rank: int = 2, *, transposed: bool = False) -> Head:
    rng = script.rng
    features = [f"rank={rank}", *(name for name in ("strided", "padded", "bias") if rng.random() < 0.5)]
    plan = Plan("", "transposed" if transposed else "conv", (), tuple(features))
    window = conv.draw_window(plan, rng)
    shape, outputs, _ = conv.draw_input(script, window)
    x = script.input("x", shape)
    inputs, made = (
        script.argument(SCALAR_NAMES[role], mark, "int")
        for role, mark in (("in_channels", shape[1]), ("out_channels", outputs))
    )
    text = conv.layer_text(script, window, inputs, made, plan.has("bias"))
    attribute = script.attribute("conv", text, shared=True)
    value = script.apply(f"{attribute}({{x}})", x, "convolution")
    marks = [shape[0], outputs, *["?"] * rank]
    return Head(value, f"x = {attribute}(x)", ["x"], marks, made, conv.describe_window(plan), False, rank + 2)


def matmul(script: Script, *, batched: bool = False) -> Head:
    rng = script.rng
    batch = [script.dimension("batch", rng.choice((1, 2, 3, 4, 8)), rng.choice((8, 16, 32)))] if batched else []
    marks = {
        letter: script.dimension(letter, rng.choice((8, 15, 16, 20, 32, 48, 64)), rng.choice((256, 512, 1024, 2048)))
        for letter in "mkn"
    }
    a = script.input("a", [*batch, marks["m"], marks["k"]])
    b = script.input("b", [*batch, marks["k"], marks["n"]])
    call = rng.choice(("torch.bmm" if batched else "torch.mm", "torch.matmul"))
    value = script.apply(rng.choice((f"{call}({{x}}, {{y}})", "{x} @ {y}")), a, "matrix product", y=b.text)
    shape = [*batch, marks["m"], marks["n"]]
    script.results.append(shape)
    phrase = "a batched matrix product" if batched else "a matrix product"
    return Head(value, f"x = {call}(a, b)", ["a", "b"], shape, marks["n"], phrase, True, len(shape))


HEADS: dict[str, Callable[[Script], Head]] = {
    "linear": linear,
    "linear3": lambda script: linear(script, sequence=True),
    "conv1d": lambda script: convolution(script, 1),
    "conv2d": lambda script: convolution(script, 2),
    "conv3d": lambda script: convolution(script, 3),
    "conv_transpose1d": lambda script: convolution(script, 1, transposed=True),
    "conv_transpose2d": lambda script: convolution(script, 2, transposed=True),
    "conv_transpose3d": lambda script: convolution(script, 3, transposed=True),
    "matmul": matmul,
    "bmm": lambda script: matmul(script, batched=True),
}
HEAD_WEIGHTS: dict[str, float] = {
    "linear": 6,
    "linear3": 2,
    "conv1d": 1.5,
    "conv2d": 6,
    "conv3d": 1.5,
    "conv_transpose1d": 0.8,
    "conv_transpose2d": 3,
    "conv_transpose3d": 0.8,
    "matmul": 2.5,
    "bmm": 1.5,
}


def draw_head(rng: random.Random) -> str:
    return rng.choices(tuple(HEADS), [HEAD_WEIGHTS[name] for name in HEADS])[0]


def is_last(head: str) -> bool:
    """Whether the layer's channels lie along the last dimension."""
    return not head.startswith("conv")
