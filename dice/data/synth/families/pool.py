"""Pooling windows in one and two dimensions, with a chain before and after."""

from __future__ import annotations

import random

from dice.data.synth.chain import ChainState, Step, chain_length, chains, draw_chain, state_after
from dice.data.synth.cuda import KernelFile, Tensor, statements
from dice.data.synth.plan import Draft, Plan
from dice.data.synth.script import Scalar, Script
from dice.data.synth.shapes import describe, draw_shape, sentence

NAME = "pool"
CORES = ("max_pool", "avg_pool")
_STATE = ChainState("any", 4.5, False)

ONE = """    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int start = i % OW * stride - padding;
    const float* p = x + i / OW * W;
    float v = {identity};
    for (int c = max(start, 0); c < min(start + size, W); c++) v = {combine};
"""
TWO = """    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int top = i / OW % OH * stride - padding, left = i % OW * stride - padding;
    const float* p = x + i / OW / OH * H * W;
    float v = {identity};
    for (int r = max(top, 0); r < min(top + size, H); r++)
        for (int c = max(left, 0); c < min(left + size, W); c++) v = {combine};
"""


def sample(rng: random.Random) -> Plan:
    core = rng.choice(CORES)
    features = [f"rank={rng.choices((1, 2), (2, 3))[0]}", *(["padded"] if rng.random() < 0.5 else [])]
    pre = draw_chain(rng, chain_length(rng, (5, 3, 1)))
    pre = pre if state_after(pre).magnitude <= 30 else ()
    post = draw_chain(rng, chain_length(rng, (3, 4, 2)), _STATE)
    return Plan(NAME, core, chains(pre=pre, post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    script = Script(rng)
    two = plan.has("rank=2")
    kernel = rng.choice((2, 3, 3, 4, 5))
    roles = ("batch", "channels", "height", "width") if two else ("batch", "channels", "length")
    shape = draw_shape(script, len(roles), roles=roles, most=16384)
    for mark in shape[2:]:
        dimension = script.dimensions[int(mark.strip("@"))]
        dimension.small = max(dimension.small, 8)
    value, pre = script.chain(script.input("x", shape), plan.chain("pre"))
    numbers = [kernel, rng.choice((1, 2, 2, 3, kernel)), rng.randint(1, kernel // 2) if plan.has("padded") else 0]
    values = [
        script.scalar(role, number, hint="int")
        for role, number in zip(("kernel_size", "stride", "padding"), numbers, strict=True)
    ]
    kind = "max" if plan.core == "max_pool" else "avg"
    if rng.random() < 0.5:
        module = f"nn.{kind.capitalize()}Pool{2 if two else 1}d"
        arguments = _arguments(rng, [item.init for item in values], numbers)
        attribute = script.attribute("pool", f"{module}({arguments})", shared=False)
        value = script.apply(f"{attribute}({{x}})", value, "pooling")
    else:
        arguments = _arguments(rng, [item.forward for item in values], numbers)
        value = script.apply(f"F.{kind}_pool{2 if two else 1}d({{x}}, {arguments})", value, "pooling")
    value, post = script.chain(value, plan.chain("post"), state=_STATE)
    script.finish(value)
    what = (
        f"{'max' if plan.core == 'max_pool' else 'average'} pooling in {'two dimensions' if two else 'one dimension'}"
    )
    script.title = sentence(describe(plan.chain("pre")), what, describe(plan.chain("post")))
    return _kernel(plan, script, values, pre, post, two)


def _arguments(rng: random.Random, texts: list[str], numbers: list[int]) -> str:
    """Kernel size, stride and padding; what equals PyTorch's default may be left out."""
    size, stride, padding = texts
    plain = padding.isdigit() and numbers[2] == 0 and rng.random() < 0.7
    if plain and stride.isdigit() and numbers[1] == numbers[0] and rng.random() < 0.7:
        return size if rng.random() < 0.5 else f"kernel_size={size}"
    if rng.random() < 0.5:
        return f"kernel_size={size}, stride={stride}" + ("" if plain else f", padding={padding}")
    return f"{size}, {stride}" + ("" if plain else f", {padding}")


def _kernel(plan: Plan, script: Script, values: list[Scalar], pre: list[Step], post: list[Step], two: bool) -> Draft:
    # The window always reaches the kernel as three integers; literals are passed by `forward`.
    names = ("size", "stride", "padding")
    passed = [
        (name, f"self.{item.init}" if item.init == item.cuda and not item.cuda.isdigit() else item.cuda)
        for name, item in zip(names, values, strict=True)
    ]
    for item in values:
        script.scalars.pop(item.cuda, None)
    file = KernelFile(script, NAME, [Tensor("x", "x")])
    load = file.load(pre, "p[r * W + c]" if two else "p[c]")
    is_max = plan.core == "max_pool"
    body = (TWO if two else ONE).format(
        identity="-INFINITY" if is_max else "0.0f", combine=f"fmaxf(v, {load})" if is_max else f"v + {load}"
    )
    body += "" if is_max else f"    v = v / {'(size * size)' if two else 'size'};\n"
    body += f"{statements(post, 4)}    out[i] = v;\n"
    sizes = ["H", "W", "OH", "OW"] if two else ["W", "OW"]
    integers = ["n", *sizes, *names]
    code = file.pre(pre) + file.kernel(body, integers)
    if two:
        host = "    int H = x.size(2), W = x.size(3);\n"
        host += "    int OH = (H + 2 * padding - size) / stride + 1, OW = (W + 2 * padding - size) / stride + 1;\n"
        host += "    auto out = torch::empty({x.size(0), x.size(1), OH, OW}, x.options());\n"
    else:
        host = "    int W = x.size(2), OW = (W + 2 * padding - size) / stride + 1;\n"
        host += "    auto out = torch::empty({x.size(0), x.size(1), OW}, x.options());\n"
    host += "    int n = out.numel();\n" + file.launch("(n + 255) / 256, 256", integers)
    return Draft(script, file.write(code, host, passed), "plain")
