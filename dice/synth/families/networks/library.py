"""Layers that a kernel-writer leaves to PyTorch's libraries: products and convolutions, with what follows fused."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from dice.synth.families.windows import conv
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.plan import Plan
from dice.synth.problem.tensors import Value
from dice.synth.tables.phrasing import SCALAR_NAMES


@dataclass(slots=True)
class Head:
    """A library layer as both sides see it: its value in the problem, its lines in ModelNew, its output's shape.

    `last`: channels lie along the last dimension, as a linear layer leaves them; else along the second.
    """

    value: Value
    lines: list[str]  # set x
    inputs: list[str]  # of ModelNew.forward
    shape: list[str]  # marks, or "?" where the extent follows from the layer
    channels: str  # the number of channels: a constructor argument, or a mark
    phrase: str
    last: bool
    rank: int = field(default=0)


def linear(builder: ProblemBuilder, *, sequence: bool = False) -> Head:
    rng = builder.rng
    leading = [builder.tensors.dimension("batch", rng.choice((2, 4, 8, 10, 16, 32)), rng.choice((64, 128, 256, 1024)))]
    leading += (
        [builder.tensors.dimension("sequence", rng.choice((4, 8, 10, 16)), rng.choice((128, 512)))] if sequence else []
    )
    features = [
        builder.tensors.dimension(
            role, rng.choice((8, 16, 20, 32, 48, 64, 100, 128)), rng.choice((256, 512, 1024, 2048))
        )
        for role in ("in_features", "out_features")
    ]
    x = builder.tensors.input("x", [*leading, features[0]])
    names = [
        builder.constructor.argument(SCALAR_NAMES[role], mark, "int")
        for role, mark in zip(("in_features", "out_features"), features, strict=True)
    ]
    bias = rng.choice(("", "", "", ", bias=False"))
    attribute = builder.attributes.add("linear", f"nn.Linear({names[0]}, {names[1]}{bias})", shared=True)
    value = builder.forward.apply(f"{attribute}({{x}})", x, "linear layer")
    shape = [*leading, features[1]]
    builder.tensors.results.append(shape)
    return Head(value, [f"x = {attribute}(x)"], ["x"], shape, names[1], "a linear layer", True, len(shape))


def convolution(builder: ProblemBuilder, rank: int = 2, *, transposed: bool = False) -> Head:
    rng = builder.rng
    chances = {"strided": 0.5, "padded": 0.5, "dilated": 0.15, "asymmetric": 0.25, "bias": 0.5}
    features = [f"rank={rank}", *(name for name, chance in chances.items() if rng.random() < chance)]
    plan = Plan("", "transposed" if transposed else "conv", (), tuple(features))
    window = conv.draw_window(plan, rng)
    shape, outputs, _ = conv.draw_input(builder, window)
    x = builder.tensors.input("x", shape)
    inputs, made = (
        builder.constructor.argument(SCALAR_NAMES[role], mark, "int")
        for role, mark in (("in_channels", shape[1]), ("out_channels", outputs))
    )
    text = conv.layer_text(builder, window, inputs, made, plan.has("bias"))
    attribute = builder.attributes.add("conv", text, shared=True)
    value = builder.forward.apply(f"{attribute}({{x}})", x, "convolution")
    marks = [shape[0], outputs, *["?"] * rank]
    return Head(value, [f"x = {attribute}(x)"], ["x"], marks, made, conv.describe_window(plan), False, rank + 2)


def matmul(builder: ProblemBuilder, *, batched: bool = False) -> Head:
    rng = builder.rng
    batch = (
        [builder.tensors.dimension("batch", rng.choice((1, 2, 3, 4, 8)), rng.choice((8, 16, 32)))] if batched else []
    )
    marks = {
        letter: builder.tensors.dimension(
            letter, rng.choice((8, 15, 16, 20, 32, 48, 64)), rng.choice((256, 512, 1024, 2048))
        )
        for letter in "mkn"
    }
    a = builder.tensors.input("a", [*batch, marks["m"], marks["k"]])
    turned = rng.random() < 0.3
    b = builder.tensors.input("b", [*batch, *((marks["n"], marks["k"]) if turned else (marks["k"], marks["n"]))])
    turn = (".transpose(1, 2)" if batched else ".t()") if turned else ""
    call = rng.choice(("torch.bmm" if batched else "torch.mm", "torch.matmul"))
    shown = rng.choice((turn, ".transpose(-2, -1)", ".mT")) if turned else ""
    form = rng.choice((f"{call}({{x}}, {{y}}{shown})", f"{{x}} @ {{y}}{shown}"))
    value = builder.forward.apply(form, a, "matrix product", y=b.text)
    shape = [*batch, marks["m"], marks["n"]]
    builder.tensors.results.append(shape)
    phrase = "a batched matrix product" if batched else "a matrix product"
    return Head(value, [f"x = {call}(a, b{turn})"], ["a", "b"], shape, marks["n"], phrase, True, len(shape))


HEADS: dict[str, Callable[[ProblemBuilder], Head]] = {
    "linear": linear,
    "linear3": lambda builder: linear(builder, sequence=True),
    "conv1d": lambda builder: convolution(builder, 1),
    "conv2d": lambda builder: convolution(builder, 2),
    "conv3d": lambda builder: convolution(builder, 3),
    "conv_transpose1d": lambda builder: convolution(builder, 1, transposed=True),
    "conv_transpose2d": lambda builder: convolution(builder, 2, transposed=True),
    "conv_transpose3d": lambda builder: convolution(builder, 3, transposed=True),
    "matmul": matmul,
    "bmm": lambda builder: matmul(builder, batched=True),
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


# Layers between the head and the kernel, and behind it: left to PyTorch as well.
MIDDLES: dict[str, tuple[str, str, str]] = {  # name -> role, constructor, phrase
    "row_pool": ("pool", "nn.MaxPool1d({k})", "max pooling along the features"),
    "row_average": ("pool", "nn.AvgPool1d({k})", "average pooling along the features"),
    "batch_norm": ("norm", "nn.BatchNorm{d}({c})", "batch norm"),
    "group_norm": ("norm", "nn.GroupNorm({g}, {c})", "group norm"),
    "layer_norm": ("norm", "nn.LayerNorm({c})", "layer norm"),
    "instance_norm": ("norm", "nn.InstanceNorm{d}({c})", "instance norm"),
    "upsample": ("pool", "nn.Upsample(scale_factor=2, mode='nearest')", "upsampling"),
    "max_pool": ("pool", "nn.MaxPool{d}({k})", "max pooling"),
    "avg_pool": ("pool", "nn.AvgPool{d}({k})", "average pooling"),
}


_ALONG = ("row_pool", "row_average")  # layers that pool along the features, behind a dimension of one channel


def draw_middle(rng: random.Random, head: str) -> str:
    """A layer that may follow that head; empty for products of two inputs, which have no parameters to begin with."""
    if not head.startswith(("linear", "conv")):
        return ""
    if is_last(head):
        return rng.choice(("layer_norm", "batch_norm", "group_norm", *_ALONG) if head == "linear" else ("layer_norm",))
    return rng.choice(("batch_norm", "batch_norm", "instance_norm", "group_norm", "max_pool", "avg_pool", "upsample"))


def layer(builder: ProblemBuilder, head: Head, name: str, value: Value) -> tuple[Value, str]:
    """The named layer of `MIDDLES` behind `value`, and its call with {} for the operand."""
    role, text, phrase = MIDDLES[name]
    groups = builder.rng.choice((1, 2, 4))
    window = builder.rng.choice((2, 3, 4)) if name in _ALONG else 2
    text = text.format(d=f"{max(1, head.rank - 2)}d", c=head.channels, g=groups, k=window)
    call = f"{builder.attributes.add(role, text, shared=True)}({{}})"
    call = call.format("{}.unsqueeze(1)") + ".squeeze(1)" if name in _ALONG else call
    return builder.forward.apply(call.replace("{}", "{x}"), value, phrase), call


def add_middle(builder: ProblemBuilder, head: Head, name: str) -> None:
    head.value, call = layer(builder, head, name, head.value)
    head.lines.append(f"x = {call.format('x')}")
    head.phrase += f" with {MIDDLES[name][2]}"


def enlarge(builder: ProblemBuilder, head: Head, layers: int) -> None:
    """Make the small sizes large enough for that many poolings over space, and channels divisible by four groups."""
    for mark in head.shape[1:2] if not head.last else head.shape[-1:]:
        channels = builder.tensors.size(mark)
        channels.step = math.lcm(channels.step, 4)
        channels.small = -(-channels.small // channels.step) * channels.step
        channels.large = -(-channels.large // channels.step) * channels.step
    for mark in builder.tensors.inputs[0].shape[2:] if not head.last else ():
        space = builder.tensors.size(mark)
        space.small += 6 if layers == 1 else 16
        space.large = max(space.small, space.large)


def draw_head(rng: random.Random) -> str:
    return rng.choices(tuple(HEADS), [HEAD_WEIGHTS[name] for name in HEADS])[0]


def is_last(head: str) -> bool:
    """Whether the layer's channels lie along the last dimension."""
    return not head.startswith("conv")
