"""Operators that normalise along one dimension and keep the shape: softmax and its relatives, centring, scaling."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.kernel.cuda import KernelFile, Tensor
from dice.synth.kernel.rows import EXP, MAX, MIN, MOMENTS, SQUARES, SUM, draw_axis, row_body
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain, state_after, statements
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_shape, sentence
from dice.synth.tables.operators import Sign

NAME = "softmax"


@dataclass(frozen=True, slots=True)
class RowMap:
    phrase: str
    spellings: tuple[str, ...]
    body: str  # as in families/rows/reduce.py
    result: str  # of one element, with {load}
    kinds: tuple[str, ...]
    magnitude: float
    module: str = ""
    sign: Sign = "any"

    @property
    def after(self) -> ChainState:
        return ChainState(self.sign, self.magnitude, False)


ROW_MAPS: dict[str, RowMap] = {
    "softmax": RowMap(
        "softmax",
        (
            "torch.softmax({x}, dim={d})",
            "F.softmax({x}, dim={d})",
            "{x}.softmax(dim={d})",
            "torch.exp({x}) / torch.sum(torch.exp({x}), dim={d}, keepdim=True)",
            "torch.exp({x} - {x}.amax(dim={d}, keepdim=True))"
            " / torch.exp({x} - {x}.amax(dim={d}, keepdim=True)).sum(dim={d}, keepdim=True)",
        ),
        EXP,
        "expf({load} - m) / s",
        ("max", "sum"),
        1.0,
        "nn.Softmax(dim={d})",
        "nonneg",
    ),
    "log_softmax": RowMap(
        "log-softmax",
        (
            "torch.log_softmax({x}, dim={d})",
            "F.log_softmax({x}, dim={d})",
            "{x}.log_softmax(dim={d})",
            "{x} - torch.logsumexp({x}, dim={d}, keepdim=True)",
        ),
        EXP,
        "{load} - m - logf(s)",
        ("max", "sum"),
        12.0,
        "nn.LogSoftmax(dim={d})",
        "nonpos",
    ),
    "softmin": RowMap(
        "softmin",
        ("F.softmin({x}, dim={d})", "torch.softmax(-{x}, dim={d})", "F.softmax(-{x}, dim={d})"),
        MIN + "float s = 0.0f;\n{loop} s += expf(m - {load});\n<sum:s>\n",
        "expf(m - {load}) / s",
        ("min", "sum"),
        1.0,
        "nn.Softmin(dim={d})",
        "nonneg",
    ),
    "l2_normalize": RowMap(
        "L2 normalization",
        (
            "F.normalize({x}, p=2, dim={d})",
            "F.normalize({x}, dim={d})",
            "{x} / torch.norm({x}, p=2, dim={d}, keepdim=True).clamp(min=1e-12)",
            "{x} / {x}.norm(dim={d}, keepdim=True).clamp_min(1e-12)",
        ),
        SQUARES,
        "{load} / fmaxf(sqrtf(s), 1e-12f)",
        ("sum",),
        1.0,
    ),
    "l1_normalize": RowMap(
        "L1 normalization",
        (
            "F.normalize({x}, p=1, dim={d})",
            "{x} / torch.sum(torch.abs({x}), dim={d}, keepdim=True).clamp(min=1e-12)",
            "{x} / {x}.abs().sum(dim={d}, keepdim=True).clamp_min(1e-12)",
        ),
        "float s = 0.0f;\n{loop} s += fabsf({load});\n<sum:s>\n",
        "{load} / fmaxf(s, 1e-12f)",
        ("sum",),
        1.0,
    ),
    "center": RowMap(
        "centring",
        ("{x} - torch.mean({x}, dim={d}, keepdim=True)", "{x} - {x}.mean(dim={d}, keepdim=True)"),
        SUM,
        "{load} - s / D",
        ("sum",),
        8.0,
    ),
    "subtract_max": RowMap(
        "subtracting the maximum",
        (
            "{x} - torch.amax({x}, dim={d}, keepdim=True)",
            "{x} - {x}.max(dim={d}, keepdim=True)[0]",
            "{x} - torch.max({x}, dim={d}, keepdim=True).values",
        ),
        MAX,
        "{load} - m",
        ("max",),
        10.0,
        sign="nonpos",
    ),
    "standardize": RowMap(
        "standardization",
        (
            "({x} - {x}.mean(dim={d}, keepdim=True)) / ({x}.std(dim={d}, keepdim=True) + 1e-5)",
            "({x} - torch.mean({x}, dim={d}, keepdim=True)) / (torch.std({x}, dim={d}, keepdim=True) + 1e-5)",
        ),
        MOMENTS,
        "({load} - mean) / (sqrtf(q / (D - 1)) + 1e-5f)",
        ("sum",),
        6.0,
    ),
    "minmax": RowMap(
        "min-max scaling",
        ("({x} - {x}.amin({d}, keepdim=True)) / ({x}.amax({d}, keepdim=True) - {x}.amin({d}, keepdim=True) + 1e-3)",),
        MAX + "float q = INFINITY;\n{loop} q = fminf(q, {load});\n<min:q>\n",
        "({load} - q) / (m - q + 1e-3f)",
        ("max", "min"),
        1.0,
        sign="nonneg",
    ),
    "squash": RowMap(
        "squashing by the norm",
        (
            "{x} * {x}.norm(dim={d}, keepdim=True) / (1 + {x}.norm(dim={d}, keepdim=True) ** 2)",
            "{x} * torch.norm({x}, dim={d}, keepdim=True) / (1.0 + {x}.pow(2).sum(dim={d}, keepdim=True))",
        ),
        SQUARES,
        "{load} * sqrtf(s) / (1.0f + s)",
        ("sum",),
        1.0,
    ),
    "max_normalize": RowMap(
        "division by the largest magnitude",
        (
            "{x} / ({x}.abs().amax(dim={d}, keepdim=True) + 1e-5)",
            "{x} / (torch.amax(torch.abs({x}), dim={d}, keepdim=True) + 1e-5)",
        ),
        "float m = 0.0f;\n{loop} m = fmaxf(m, fabsf({load}));\n<max:m>\n",
        "{load} / (m + 1e-5f)",
        ("max",),
        1.0,
    ),
    "mean_magnitude": RowMap(
        "division by the mean magnitude",
        (
            "{x} / (torch.mean(torch.abs({x}), dim={d}, keepdim=True) + 1e-5)",
            "{x} / ({x}.abs().mean(dim={d}, keepdim=True) + 1e-5)",
        ),
        "float s = 0.0f;\n{loop} s += fabsf({load});\n<sum:s>\n",
        "{load} / (s / D + 1e-5f)",
        ("sum",),
        6.0,
    ),
    "mean_magnitude_bare": RowMap(
        "division by the mean of the magnitudes",
        ("{x} / torch.mean(torch.abs({x}), dim={d}, keepdim=True)", "{x} / {x}.abs().mean(dim={d}, keepdim=True)"),
        "float s = 0.0f;\n{loop} s += fabsf({load});\n<sum:s>\n",
        "{load} / (s / D)",
        ("sum",),
        6.0,
    ),
    "rms_scale": RowMap(
        "division by the root mean square",
        (
            "{x} / torch.sqrt(torch.mean({x} ** 2, dim={d}, keepdim=True) + 1e-6)",
            "{x} * torch.rsqrt({x}.pow(2).mean(dim={d}, keepdim=True) + 1e-6)",
        ),
        SQUARES,
        "{load} * rsqrtf(s / D + 1e-6f)",
        ("sum",),
        6.0,
    ),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(
        tuple(ROW_MAPS), [3.0 if name in ("softmax", "log_softmax", "l2_normalize") else 1.0 for name in ROW_MAPS]
    )[0]
    features = [f"dim={rng.choices(('last', 'first', 'middle'), (5, 1, 3))[0]}"]
    features += ["second_input"] if rng.random() < 0.2 else []
    pre = draw_chain(rng, chain_length(rng, (4, 3, 1)))
    pre = pre if state_after(pre).magnitude <= 15 and not core.endswith("bare") else ()
    post = draw_chain(rng, chain_length(rng, (5, 3, 1)), ROW_MAPS[core].after)
    return Plan(NAME, core, chains(pre=pre, post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    row_map = ROW_MAPS[plan.core]
    builder = ProblemBuilder(rng)
    axis = draw_axis(builder, plan.features[0].removeprefix("dim="))
    shape = draw_shape(builder, axis.rank)
    dimension = builder.tensors.dimensions[axis.index]
    dimension.small = max(dimension.small, 4)
    value = builder.tensors.input("x", shape)
    tensors = [Tensor("x", "x")]
    element = f"x[{axis.at}]"
    if plan.has("second_input"):
        other = builder.tensors.input("mask", shape, "torch.randn({shape})")
        value = builder.forward.apply(f"{{x}} + {other.text}", value, "add the second input")
        tensors.append(Tensor("y", "y"))
        element = f"x[{axis.at}] + y[{axis.at}]"
    value, pre = builder.operators.chain(value, plan.chain("pre"))
    if row_map.module and not axis.runtime and rng.random() < 0.25:
        attribute = builder.attributes.add("softmax", row_map.module.format(d=axis.text.init), shared=False)
        value = builder.forward.apply(f"{attribute}({{x}})", value, row_map.phrase)
    else:
        text = builder.constructor.stored(rng.choice(row_map.spellings).replace("{d}", axis.text.forward))
        value = builder.forward.apply(text, value, row_map.phrase)
    value, post = builder.operators.chain(value, plan.chain("post"), state=row_map.after)
    builder.finish(value)
    over = f"{row_map.phrase} over {'the given' if axis.runtime else 'one'} dimension"
    builder.title = sentence(describe(plan.chain("pre")), over, describe(plan.chain("post")))

    file = KernelFile(builder, NAME, tensors)
    load = file.load(pre, element)
    grouped = load if pre or not plan.has("second_input") else f"({load})"
    body = row_body(row_map.body, axis.scope.loop, grouped, axis.scope)
    store = f"    {axis.scope.loop} {{\n        float v = {row_map.result.format(load=grouped)};\n{statements(post, 8)}"
    code = axis.helpers(*row_map.kinds) + file.pre(pre)
    code += file.kernel(f"{axis.start}{body}{store}        out[{axis.at}] = v;\n    }}\n", axis.integers)
    host = f"    auto out = torch::empty_like(x);\n{axis.sizes}{file.launch(axis.scope.grid, axis.integers)}"
    return Draft(builder, file.write(code, host), axis.scope.style)
