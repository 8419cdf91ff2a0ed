"""Normalisation layers: layer, RMS, group, instance and batch norm, with or without affine parameters."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from dice.synth.kernel.cuda import BLOCK_WIDE, ELEMENT_GRID, KernelFile, Scope, Tensor, lines, reduction_helper, when
from dice.synth.kernel.rows import SHIFTED, SQUARES, draw_scope, row_body
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import (
    ChainState,
    Step,
    chain_length,
    chains,
    draw_chain,
    python_number,
    state_after,
    statements,
)
from dice.synth.problem.constructor import Scalar
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import SMALL, describe, draw_shape, sentence
from dice.synth.problem.tensors import Value, as_tuple
from dice.synth.tables.phrasing import SCALAR_NAMES

NAME = "norm"
CORES = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm", "batch_norm_eval")
_EPS = (1e-5, 1e-5, 1e-6, 1e-5, 1e-3, 1e-4)
_STATE = ChainState("any", 8.0, False)
VARIANCE = "fmaxf(q / D - s * s, 0.0f)"


@dataclass(slots=True)
class _Layer:
    """One layer as the kernel sees it: its parameters, epsilon and shape."""

    weight: str = ""
    bias: str = ""
    eps: str = "1e-05f"
    groups: Scalar | None = None
    owner: str = ""  # the layer of torch.nn that knows its groups, where there is one
    axes: int = 1  # trailing dimensions that are normalised together


def sample(rng: random.Random) -> Plan:
    core = rng.choices(CORES, (4, 4, 3, 2, 2, 2))[0]
    features = []
    if core == "layer_norm" and rng.random() < 0.2:
        features.append("several_dims")
    affine = rng.choices(
        ("none", "weight", "full"), (3, 5 if core == "rms_norm" else 0, 0 if core == "rms_norm" else 6)
    )[0]
    features.append(f"affine={affine}")
    if rng.random() < 0.2:
        features.append("residual")
    pre = draw_chain(rng, chain_length(rng, (5, 2, 1)))
    pre = pre if state_after(pre).magnitude <= 15 else ()
    post = draw_chain(rng, chain_length(rng, (4, 4, 2, 1)), _STATE)
    return Plan(NAME, core, chains(pre=pre, post=post), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng, keep_inputs=plan.has("residual"))
    writer = {"layer_norm": _layer_norm, "rms_norm": _rms_norm, "group_norm": _group_norm}.get(plan.core, _channel_norm)
    shape, roles = _shape(plan, builder)
    value: Value = builder.tensors.input("x", shape)
    tensors = [Tensor("x", "x")]
    element = "x[{at}]"
    if plan.has("residual"):
        other = builder.tensors.input("y", shape)
        value = builder.forward.apply(f"{{x}} + {other.text}", value, "residual connection")
        tensors.append(Tensor("y", "y"))
        element = "x[{at}] + y[{at}]" if plan.chain("pre") else "(x[{at}] + y[{at}])"
    value, pre = builder.operators.chain(value, plan.chain("pre"))
    layer = _Layer()
    value = writer(plan, builder, value, shape, layer)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    phrase = plan.core.replace("_eval", "").replace("_", " ")
    residual = "a residual sum" if plan.has("residual") else ""
    builder.title = sentence(residual, describe(plan.chain("pre")), phrase, describe(plan.chain("post")))
    eval_tensors = [Tensor("mean", "self.running_mean"), Tensor("var", "self.running_var")]
    tensors += eval_tensors if plan.core == "batch_norm_eval" else []
    tensors += [Tensor(name, text) for name, text in (("weight", layer.weight), ("bias", layer.bias)) if text]
    file = KernelFile(builder, NAME, tensors)
    build = {"batch_norm": _per_channel, "batch_norm_eval": _eval_kernel}.get(plan.core, _per_row)
    return build(plan, builder, file, layer, pre, statements(post, 8), element)


def _shape(plan: Plan, builder: ProblemBuilder) -> tuple[list[str], tuple[str, ...]]:
    rng = builder.rng
    roles: tuple[str, ...]
    image, signal = ("batch", "channels", "height", "width"), ("batch", "channels", "length")
    volume = ("batch", "channels", "depth", "height", "width")
    if plan.core in ("layer_norm", "rms_norm"):
        roles = rng.choice((("batch", "features"), ("batch", "sequence", "features")))
        roles = rng.choice((image, ("batch", "sequence", "features"))) if plan.has("several_dims") else roles
    elif plan.core in ("batch_norm", "batch_norm_eval"):
        roles = rng.choice((image, image, image, signal, volume, ("batch", "features")))
    else:
        roles = rng.choice((image, image, image, signal, volume))
    groups = {1: rng.choice((8, 8, 12, 12, 10, 15))} if plan.core == "group_norm" else None
    shape = draw_shape(builder, len(roles), roles=roles, multiple=groups)
    if plan.core == "batch_norm":
        builder.tensors.dimensions[0].small = max(builder.tensors.dimensions[0].small, 4)
    last = builder.tensors.dimensions[-1]
    last.small = max(last.small, min(SMALL["width"]))
    return shape, roles


def _eps(builder: ProblemBuilder, layer: _Layer) -> Scalar:
    scalar = builder.constructor.scalar("eps", builder.rng.choice(_EPS))
    layer.eps = scalar.cuda
    return scalar


def _eps_of_layer(builder: ProblemBuilder) -> str:
    return builder.constructor.setting("eps", python_number(builder.rng.choice(_EPS), builder.rng))


def _affine(plan: Plan, builder: ProblemBuilder, layer: _Layer, size: str) -> None:
    """Affine parameters held by the module itself."""
    rng = builder.rng
    if not plan.has("affine=none"):
        start = rng.choice(("torch.ones({})", "torch.ones({})", "torch.randn({})", "torch.rand({})"))
        layer.weight = builder.attributes.add("weight", f"nn.Parameter({start.format(size)})", shared=True)
    if plan.has("affine=full"):
        start = rng.choice(("torch.zeros({})", "torch.zeros({})", "torch.randn({})"))
        layer.bias = builder.attributes.add("bias", f"nn.Parameter({start.format(size)})", shared=True)


def _size(builder: ProblemBuilder, mark: str, role: str = "size") -> str:
    """A size as `__init__` knows it: a constructor argument, or a number written there."""
    return builder.constructor.argument(SCALAR_NAMES[role], mark, "int")


def _module(plan: Plan, builder: ProblemBuilder, layer: _Layer, value: Value, expression: str) -> Value:
    """A layer of torch.nn, which the kernel's ModelNew has too, for its parameters and numbers."""
    attribute = layer.owner = builder.attributes.add("norm", expression, shared=True)
    if not plan.has("affine=none"):
        layer.weight, layer.bias = f"{attribute}.weight", f"{attribute}.bias" if plan.has("affine=full") else ""
    layer.eps = "eps" if "eps" not in builder.constructor.scalars else "norm_eps"
    builder.names.taken.add(layer.eps)
    builder.constructor.scalars[layer.eps], builder.constructor.sources[layer.eps] = "float", f"{attribute}.eps"
    return builder.forward.apply(f"{attribute}({{x}})", value, "normalize")


def _layer_norm(plan: Plan, builder: ProblemBuilder, value: Value, shape: list[str], layer: _Layer) -> Value:
    rng = builder.rng
    dims = shape[rng.choice((1, -2)) :] if plan.has("several_dims") and len(shape) == 4 else shape[1:]
    dims = dims if plan.has("several_dims") else shape[-1:]
    layer.axes = len(dims)
    sizes = [] if len(dims) > 1 and rng.random() < 0.4 else [_size(builder, mark) for mark in dims]
    if not sizes:
        shown = builder.constructor.argument(
            ("normalized_shape", "norm_shape", "shape"), f"({', '.join(dims)})", "tuple"
        )
        affine = ", elementwise_affine=False" if plan.has("affine=none") else ""
        return _module(plan, builder, layer, value, f"nn.LayerNorm({shown}{affine})")
    listed = as_tuple(sizes)
    spelled = rng.choice((listed, f"[{', '.join(sizes)}]")) if len(sizes) > 1 or rng.random() < 0.3 else sizes[0]
    if rng.random() < 0.6:
        use_default = rng.random() < 0.5
        eps = "" if use_default else f", eps={_eps_of_layer(builder)}"
        affine = ", elementwise_affine=False" if plan.has("affine=none") else ""
        return _module(plan, builder, layer, value, f"nn.LayerNorm({spelled}{eps}{affine})")
    _affine(plan, builder, layer, listed if len(sizes) > 1 else sizes[0])
    axes = "-1" if len(sizes) == 1 else str(tuple(range(-len(sizes), 0)))
    if len(sizes) == 1 and rng.random() < 0.4:
        return _explicit(builder, value, layer, axes)
    last = "x.shape[-1:]" if len(sizes) == 1 else f"x.shape[-{len(sizes)}:]"
    value = builder.forward.bind(value)
    last = last.replace("x.", f"{value.text}.")
    weight, bias = layer.weight or "None", layer.bias or "None"
    eps = "" if rng.random() < 0.4 else f", {_eps(builder, layer).forward}"
    return builder.forward.apply(
        f"F.layer_norm({{x}}, {last}, {weight}, {bias}{eps})".replace("None, None)", ")").replace(", )", ")"),
        value,
        "layer norm",
    )


def _explicit(builder: ProblemBuilder, value: Value, layer: _Layer, axes: str) -> Value:
    """Layer norm written out."""
    eps = _eps(builder, layer)
    value = builder.forward.bind(value)
    mean = builder.forward.name(f"{value.text}.mean(dim={axes}, keepdim=True)")
    var = builder.forward.name(f"{value.text}.var(dim={axes}, keepdim=True, unbiased=False)")
    value = builder.forward.apply(f"({{x}} - {mean.text}) / torch.sqrt({var.text} + {eps.forward})", value, "normalize")
    return _scaled(builder, value, layer)


def _scaled(builder: ProblemBuilder, value: Value, layer: _Layer) -> Value:
    if layer.weight and layer.bias:
        return builder.forward.apply(f"{{x}} * {layer.weight} + {layer.bias}", value, "affine")
    if layer.weight:
        return builder.forward.apply(
            builder.rng.choice((f"{{x}} * {layer.weight}", f"{layer.weight} * {{x}}")), value, "scale"
        )
    return value


def _rms_norm(plan: Plan, builder: ProblemBuilder, value: Value, shape: list[str], layer: _Layer) -> Value:
    rng = builder.rng
    size = _size(builder, shape[-1]) if not plan.has("affine=none") or rng.random() < 0.2 else ""
    if size and rng.random() < 0.25:
        affine = ", elementwise_affine=False" if plan.has("affine=none") else ""
        return _module(plan, builder, layer, value, f"nn.RMSNorm({size}, eps={_eps_of_layer(builder)}{affine})")
    if not plan.has("affine=none"):
        _affine(plan, builder, layer, size)
    eps = _eps(builder, layer)
    value = builder.forward.bind(value)
    square = rng.choice(
        (
            "torch.mean({x} ** 2, dim=-1, keepdim=True)",
            "{x}.pow(2).mean(dim=-1, keepdim=True)",
            "({x} * {x}).mean(-1, keepdim=True)",
        )
    )
    mean = square.format(x=value.text)
    mean = builder.forward.name(mean).text if rng.random() < 0.5 else mean
    form = rng.choice((f"{{x}} * torch.rsqrt({mean} + {eps.forward})", f"{{x}} / torch.sqrt({mean} + {eps.forward})"))
    return _scaled(builder, builder.forward.apply(form, value, "RMS norm"), layer)


def _group_norm(plan: Plan, builder: ProblemBuilder, value: Value, shape: list[str], layer: _Layer) -> Value:
    rng = builder.rng
    channels_size = builder.tensors.dimensions[1]
    common = math.gcd(channels_size.small, channels_size.large)
    number = rng.choice([size for size in (1, 2, 2, 3, 4, 4, 5, 6, 8) if common % size == 0])
    if rng.random() < 0.65:
        groups = layer.groups = Scalar("", builder.constructor.setting("num_groups", str(number)), "groups")
        channels = _size(builder, shape[1])
        eps = "" if rng.random() < 0.6 else f", eps={_eps_of_layer(builder)}"
        affine = ", affine=False" if plan.has("affine=none") else ""
        return _module(plan, builder, layer, value, f"nn.GroupNorm({groups.init}, {channels}{eps}{affine})")
    groups = layer.groups = builder.constructor.scalar("groups", number, hint="int")
    if not plan.has("affine=none"):
        _affine(plan, builder, layer, _size(builder, shape[1]))
    parameters = f", {layer.weight}, {layer.bias}" if layer.weight else ""
    eps = "" if rng.random() < 0.5 else f", eps={_eps(builder, layer).forward}"
    return builder.forward.apply(f"F.group_norm({{x}}, {groups.forward}{parameters}{eps})", value, "group norm")


def _channel_norm(plan: Plan, builder: ProblemBuilder, value: Value, shape: list[str], layer: _Layer) -> Value:
    """Instance norm, batch norm with batch statistics, batch norm with stored statistics."""
    rng = builder.rng
    suffix = {2: "1d", 3: "1d", 4: "2d", 5: "3d"}[len(shape)]
    affine = not plan.has("affine=none")
    if plan.core == "batch_norm_eval":
        size = _size(builder, shape[1])
        builder.constructor.shared_lines.append(
            f'self.register_buffer("running_mean", torch.{rng.choice(("randn", "rand", "zeros"))}({size}))'
        )
        builder.constructor.shared_lines.append(f'self.register_buffer("running_var", torch.rand({size}) + 0.5)')
        _affine(plan, builder, layer, size)
        parameters = f", {layer.weight}, {layer.bias}" if affine else ""
        eps = "" if rng.random() < 0.5 else f", eps={_eps(builder, layer).forward}"
        return builder.forward.apply(
            f"F.batch_norm({{x}}, self.running_mean, self.running_var{parameters}, training=False{eps})",
            value,
            "batch norm",
        )
    instance = plan.core == "instance_norm"
    if rng.random() < 0.6:
        size = _size(builder, shape[1])
        eps = "" if rng.random() < 0.6 else f", eps={_eps_of_layer(builder)}"
        flag = (", affine=True" if instance else "") if affine else ("" if instance else ", affine=False")
        name = f"nn.InstanceNorm{suffix}" if instance else f"nn.BatchNorm{suffix}"
        flag += "" if instance or rng.random() < 0.5 else ", track_running_stats=False"
        return _module(plan, builder, layer, value, f"{name}({size}{eps}{flag})")
    if affine:
        _affine(plan, builder, layer, _size(builder, shape[1]))
    eps = "" if rng.random() < 0.5 else f", eps={_eps(builder, layer).forward}"
    if instance:
        parameters = f", weight={layer.weight}, bias={layer.bias}" if affine else ""
        return builder.forward.apply(f"F.instance_norm({{x}}{parameters}{eps})", value, "instance norm")
    parameters = f", weight={layer.weight}, bias={layer.bias}" if affine else ""
    return builder.forward.apply(
        f"F.batch_norm({{x}}, None, None{parameters}, training=True{eps})", value, "batch norm"
    )


# --- kernels ------------------------------------------------------------


def _affine_line(layer: _Layer, index: str) -> str:
    if not layer.weight:
        return ""
    bias = f" + bias[{index}]" if layer.bias else ""
    return f"        v = v * weight[{index}]{bias};\n"


def _per_row(
    plan: Plan, builder: ProblemBuilder, file: KernelFile, layer: _Layer, pre: list[Step], post: str, element: str
) -> Draft:
    """Layer, RMS, group and instance norm: rows of D consecutive elements."""
    scope: Scope = draw_scope(builder.rng, True)
    by_channel = plan.core in ("group_norm", "instance_norm") and bool(layer.weight)
    integers = ["D", *when(by_channel, "C", "inner"), *scope.integers]
    load = file.load(pre, element.format(at="base + j"))
    rms = plan.core == "rms_norm"
    first = file.load(pre, element.format(at="base"))
    body = row_body(SQUARES if rms else SHIFTED, scope.loop, load, scope, first)
    body += f"    float scale_by = rsqrtf({'s / D' if rms else VARIANCE} + {layer.eps});\n"
    value = f"{load} * scale_by" if rms else f"({load} - mean) * scale_by"
    channel = "        int c = (base + j) / inner % C;\n" if by_channel else ""
    body += (
        f"    {scope.loop} {{\n        float v = {value};\n{channel}{_affine_line(layer, 'c' if by_channel else 'j')}"
    )
    body += f"{post}        out[base + j] = v;\n    }}\n"
    code = reduction_helper(scope, "sum") + file.pre(pre)
    code += file.kernel(f"{scope.start}    int base = row * D;\n{body}", integers)
    host = f"    auto out = torch::empty_like(x);\n{_row_sizes(plan, builder, layer, by_channel)}"
    given = [("groups", f"{layer.owner}.num_groups")] if layer.owner and plan.core == "group_norm" else []
    return Draft(builder, file.write(code, host + file.launch(scope.grid, integers), given), scope.style)


def _row_sizes(plan: Plan, builder: ProblemBuilder, layer: _Layer, by_channel: bool) -> str:
    if plan.core in ("layer_norm", "rms_norm"):
        product = " * ".join(f"x.size({-axis})" for axis in range(1, layer.axes + 1))
        size = "weight.numel()" if layer.weight else product  # right for however many dimensions
        return f"    int D = {size}, rows = x.numel() / D;\n"
    groups = layer.groups.cuda if layer.groups else "C"
    return f"    int C = x.size(1), inner = x.stride(1), D = C / {groups} * inner, rows = x.numel() / D;\n"


def _per_channel(
    plan: Plan, builder: ProblemBuilder, file: KernelFile, layer: _Layer, pre: list[Step], post: str, element: str
) -> Draft:
    """Batch norm with batch statistics: one block per channel; its elements are strided over the batch."""
    scope = BLOCK_WIDE
    at = "(j / inner * C + row) * inner + j % inner"
    load = file.load(pre, element.format(at=at))
    body = row_body(SHIFTED, scope.loop, load, scope, file.load(pre, element.format(at="row * inner")))
    body += f"    float scale_by = rsqrtf({VARIANCE} + {layer.eps});\n    {scope.loop} {{\n"
    body += f"        float v = ({load} - mean) * scale_by;\n"
    body += f"{_affine_line(layer, 'row')}{post}        out[{at}] = v;\n    }}\n"
    code = reduction_helper(scope, "sum") + file.pre(pre) + file.kernel(scope.start + body, ["D", "C", "inner"])
    host = "    auto out = torch::empty_like(x);\n"
    host += "    int C = x.size(1), inner = x.stride(1), D = x.numel() / C, rows = C;\n"
    return Draft(builder, file.write(code, host + file.launch(scope.grid, ["D", "C", "inner"])), "block_per_channel")


def _eval_kernel(
    plan: Plan, builder: ProblemBuilder, file: KernelFile, layer: _Layer, pre: list[Step], post: str, element: str
) -> Draft:
    """Batch norm with stored statistics is elementwise."""
    text = lines(
        "int c = i / inner % C;",
        f"float v = {element.format(at='i').strip('()')};",
        pre,
        f"v = (v - mean[c]) * rsqrtf(var[c] + {layer.eps});",
        _affine_line(layer, "c").strip(),
    )
    code = file.per_element(text + post, ["n", "C", "inner"])
    host = "    auto out = torch::empty_like(x);\n    int n = x.numel(), C = x.size(1), inner = x.stride(1);\n"
    return Draft(builder, file.write(code, host + file.launch(ELEMENT_GRID, ["n", "C", "inner"])), "plain")
