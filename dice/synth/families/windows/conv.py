"""Convolutions in one to three dimensions: standard, transposed, depthwise, grouped, pointwise; a chain after."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from dice.synth.kernel.convolution import Convolution, Window
from dice.synth.kernel.cuda import KernelFile, Tensor
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence
from dice.synth.problem.tensors import Value, as_tuple
from dice.synth.tables.phrasing import SCALAR_NAMES

NAME = "conv"
CORES = {"conv": 6.0, "transposed": 3.0, "depthwise": 2.5, "grouped": 2.0, "pointwise": 1.5, "transposed_grouped": 0.8}
SPATIAL = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
STATE = ChainState("any", 8.0, False)
_KERNELS = {1: (2, 3, 3, 4, 5, 6, 7, 8, 9, 11, 15), 2: (2, 3, 3, 3, 3, 4, 5, 5, 6, 7, 9, 11), 3: (2, 3, 3, 3, 4, 5)}
MAX_PRODUCTS = 2_000_000  # multiplications of the small problem at most, so that the emulator runs it in a moment


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(CORES), tuple(CORES.values()))[0]
    features = [f"rank={rng.choices((1, 2, 3), (3, 6, 2))[0]}"]
    chances = {"strided": 0.35, "padded": 0.6, "dilated": 0.2, "asymmetric": 0.28}
    if core == "pointwise":
        chances = {"strided": 0.15}
    features += [name for name, chance in chances.items() if rng.random() < chance]
    features += ["bias"] if rng.random() < 0.65 else []
    return Plan(NAME, core, chains(post=draw_chain(rng, chain_length(rng, (3, 4, 3, 2, 1)), STATE)), tuple(features))


def rank_of(plan: Plan) -> int:
    return next(int(item.removeprefix("rank=")) for item in plan.features if item.startswith("rank="))


def draw_window(plan: Plan, rng: random.Random) -> Window:
    """Kernel, stride, padding and dilation along each axis, as the plan's features allow."""
    rank, transposed = rank_of(plan), plan.core.startswith("transposed")
    largest = _KERNELS[rank]
    one = rng.choice(largest)
    kernel = tuple(rng.choice((1, *largest)) for _ in range(rank)) if plan.has("asymmetric") else (one,) * rank
    kernel = (1,) * rank if plan.core == "pointwise" else kernel
    uneven = plan.has("asymmetric") and rng.random() < 0.8
    stride, dilation = (_steps(rng, rank, plan.has(name), uneven) for name in ("strided", "dilated"))
    most = [max(0, step * (size - 1)) for step, size in zip(dilation, kernel, strict=True)]
    padding = (
        tuple(rng.randint(1, max(1, reach // 2)) if reach else 0 for reach in most)
        if plan.has("padded")
        else (0,) * rank
    )
    padding = padding if plan.has("asymmetric") else (min(padding),) * rank
    extra = (0,) * rank
    if transposed and max(stride) > 1 and rng.random() < 0.5:
        extra = tuple(min(step - 1, rng.randint(1, 2)) for step in stride) if uneven else (stride[0] - 1,) * rank
    groups = 0 if plan.core == "depthwise" else rng.choice((2, 3, 4)) if plan.core.endswith("grouped") else 1
    return Window(kernel, stride, padding, dilation, extra, transposed, groups)


def _steps(rng: random.Random, rank: int, longer: bool, uneven: bool) -> tuple[int, ...]:
    """Strides or dilations: one for all axes, or one for each."""
    if not longer:
        return (1,) * rank
    return (
        tuple(rng.choice((1, 2, 2, 3, 4)) for _ in range(rank))
        if uneven
        else (rng.choice((2, 2, 2, 3, 3, 4, 5)),) * rank
    )


def draw_input(builder: ProblemBuilder, window: Window) -> tuple[list[str], str, int]:
    """The input's shape, the mark of the output channels (empty for depthwise: those of the input), and their ratio."""
    rng, rank = builder.rng, len(window.kernel)
    groups = max(window.groups, 1)
    inputs = rng.choice((1, 2, 3, 4, 6, 8)) * groups
    outputs = rng.choice((1, 2, 3, 4, 5, 8, 12, 16)) * groups
    reach = [step * (size - 1) + 1 for step, size in zip(window.dilation, window.kernel, strict=True)]
    small = [max(rng.choice((5, 6, 8, 9, 11, 12, 16, 20) if rank < 3 else (4, 5, 6, 8)), span) for span in reach]
    if rank == 1:
        small = [max(rng.choice((16, 20, 33, 50, 64, 100)), reach[0])]
    grown = math.prod(window.stride) if window.transposed else 1 / math.prod(window.stride)
    work = inputs * outputs / groups * math.prod(small) * math.prod(window.kernel) * grown
    batch = rng.choice([size for size in (1, 2, 3, 4, 8) if size * work <= MAX_PRODUCTS] or [1])
    large = {1: (512, 1024, 4096, 16384), 2: (32, 56, 64, 112, 128, 224), 3: (16, 24, 32)}[rank]
    shape = [builder.tensors.dimension("batch", batch, rng.choice((4, 8, 16, 32)))]
    shape += [builder.tensors.dimension("in_channels", inputs, rng.choice((8, 16, 32, 64)) * groups, groups)]
    shape += [
        builder.tensors.dimension(role, size, max(size, rng.choice(large)))  # a wide window fits into both
        for role, size in zip(SPATIAL[rank], small, strict=True)
    ]
    if window.groups == 0:
        return shape, "", rng.choice((1, 1, 1, 2, 3))
    return shape, builder.tensors.dimension("out_channels", outputs, rng.choice((8, 16, 32, 64)) * groups, groups), 1


def layer_text(builder: ProblemBuilder, window: Window, inputs: str, outputs: str, bias: bool) -> str:
    """The constructor call of torch.nn."""
    rank = len(window.kernel)
    parts = [inputs, outputs, _tuple(builder, window.kernel, "kernel_size")]
    parts += _options(builder, window, f"groups={window.groups or inputs}")
    parts += [] if bias else ["bias=False"]
    return f"nn.Conv{'Transpose' if window.transposed else ''}{rank}d({', '.join(parts)})"


def _tuple(builder: ProblemBuilder, numbers: tuple[int, ...], keyword: str = "") -> str:
    same = len(set(numbers)) == 1 and builder.rng.random() < 0.8
    text = str(numbers[0]) if same else as_tuple(numbers)
    return f"{keyword}={text}" if keyword and builder.rng.random() < 0.6 else text


def _options(builder: ProblemBuilder, window: Window, groups: str) -> list[str]:
    """Keyword arguments; what equals PyTorch's default may be left out."""
    rng = builder.rng
    texts = []
    for name, numbers, default in (
        ("stride", window.stride, 1),
        ("padding", window.padding, 0),
        ("output_padding", window.output_padding, 0),
        ("dilation", window.dilation, 1),
    ):
        if set(numbers) != {default} or (name in ("stride", "padding") and rng.random() < 0.25):
            texts.append(f"{name}={_tuple(builder, numbers)}")
    whole = [step * (size - 1) for step, size in zip(window.dilation, window.kernel, strict=True)]
    same = [reach == 2 * pad for reach, pad in zip(whole, window.padding, strict=True)]
    if all(same) and set(window.stride) == {1} and not window.transposed and any(window.padding) and rng.random() < 0.2:
        texts = ["padding='same'" if text.startswith("padding") else text for text in texts]
    return texts + ([groups] if window.groups != 1 else [])


def layer(
    builder: ProblemBuilder, window: Window, value: Value, shape: list[str], outputs: str, ratio: int, bias: bool
) -> tuple[Value, str, str, str]:
    """The convolution's value, and how ModelNew spells its weight, its bias, and the layer that knows its numbers; ""
    where none does."""
    rng, rank = builder.rng, len(window.kernel)
    inputs = builder.constructor.argument(SCALAR_NAMES["in_channels"], shape[1], "int")
    made = builder.constructor.argument(SCALAR_NAMES["out_channels"], outputs, "int") if outputs else inputs
    made = f"{inputs} * {ratio}" if ratio > 1 else made
    if rng.random() < 0.75:
        text = layer_text(builder, window, inputs, made, bias)
        attribute = builder.attributes.add("conv", text, shared=True)
        value = builder.forward.apply(f"{attribute}({{x}})", value, "convolution")
        knows = "" if "'same'" in text else attribute
        return value, f"{attribute}.weight", f"{attribute}.bias" if bias else "", knows
    groups = str(window.groups or inputs)
    each = "1" if window.groups == 0 else inputs if groups == "1" else f"{inputs} // {groups}"
    sizes = [made, each]
    if window.transposed:
        sizes = [inputs, made if groups == "1" else f"{made} // {groups}"]
    scale = rng.choice((" * 0.1", " * 0.2"))
    text = f"nn.Parameter(torch.randn({', '.join([*sizes, *map(str, window.kernel)])}){scale})"
    weight = builder.attributes.add("weight", text, shared=True)
    offset = builder.attributes.add("bias", f"nn.Parameter(torch.randn({made}))", shared=True) if bias else ""
    if not window.groups:
        builder.constructor.lines.append(f"self.groups = {inputs}")
    options = _options(builder, window, f"groups={'self.groups' if not window.groups else groups}")
    arguments = ", ".join(["{x}", weight, *([offset] if offset else []), *options])
    name = f"F.conv{'_transpose' if window.transposed else ''}{rank}d"
    return builder.forward.apply(f"{name}({arguments})", value, "convolution"), weight, offset, ""


def describe_window(plan: Plan) -> str:
    names = {"conv": "convolution", "transposed": "transposed convolution", "depthwise": "depthwise convolution"}
    names |= {"grouped": "grouped convolution", "pointwise": "1x1 convolution"}
    names |= {"transposed_grouped": "grouped transposed convolution"}
    adjectives = [word for word in ("strided", "dilated") if plan.has(word)]
    return f"a {' '.join([*adjectives, f'{rank_of(plan)}D', names[plan.core]])}"


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng)
    window = draw_window(plan, rng)
    shape, outputs, ratio = draw_input(builder, window)
    x = builder.tensors.input("x", shape)
    value, weight, bias, owner = layer(builder, window, x, shape, outputs, ratio, plan.has("bias"))
    value, post = builder.operators.chain(builder.operators.idle(value), plan.chain("post"), state=STATE)
    builder.finish(value)
    builder.title = sentence(describe_window(plan), describe(plan.chain("post")))
    tensors = [Tensor("x", "x"), Tensor("weight", weight), *([Tensor("bias", bias)] if bias else [])]
    file = KernelFile(builder, NAME, tensors)
    moves = ("stride", "padding", "dilation", *(("output_padding",) if window.transposed else ()))
    given: list[tuple[str, str]] = []
    if owner and plan.core != "pointwise":
        window = replace(window, named=("kernel", *moves))
        given = [(name, f"{owner}.{what}[{axis}]") for what in moves for axis, name in enumerate(window.names(what))]
        given += [("G", f"{owner}.groups")] if window.transposed and window.groups != 1 else []
    code, host, style = Convolution(window, bool(bias), post).write(file, rng)
    return Draft(builder, file.write(code, host, given), style)
