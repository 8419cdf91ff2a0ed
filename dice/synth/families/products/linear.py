"""Linear layers with an epilogue: bias, residual, an elementwise chain; weights of nn.Linear or plain parameters."""

from __future__ import annotations

import random

from dice.synth.families.products.matmul import size
from dice.synth.kernel.cuda import KernelFile, Tensor, when
from dice.synth.kernel.products import Operands, product
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence
from dice.synth.problem.tensors import Value
from dice.synth.tables.phrasing import SCALAR_NAMES

NAME = "linear"
_STATE = ChainState("any", 8.0, False)


def sample(rng: random.Random) -> Plan:
    features = [f"weights={rng.choices(('module', 'nt', 'nn'), (6, 2, 2))[0]}"]
    features += ["bias"] if rng.random() < 0.75 else []
    features += ["residual"] if rng.random() < 0.12 else []
    return Plan(
        NAME, "linear", chains(post=draw_chain(rng, chain_length(rng, (1, 4, 4, 2, 1)), _STATE)), tuple(features)
    )


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng)
    residual = plan.has("residual")
    leading = rng.choices((("batch",), ("batch", "sequence")), (3, 1))[0]
    batch = [
        builder.tensors.dimension(role, rng.choice((1, 2, 3, 4, 8, 10, 16, 32)), rng.choice((64, 128, 256, 1024)))
        for role in leading
    ]
    k, n = size(builder, "in_features"), size(builder, "out_features")
    inputs, outputs = (
        builder.constructor.argument(SCALAR_NAMES[role], mark, "int")
        for role, mark in (("in_features", k), ("out_features", n))
    )
    weights = plan.features[0].removeprefix("weights=")
    x = builder.tensors.input("x", [*batch, k])
    other = builder.tensors.input("y", [*batch, n]) if residual else None
    builder.tensors.results.append([*batch, n])
    value, weight, bias = _layer(plan, builder, x, weights, inputs, outputs)
    value = builder.operators.idle(value)
    if other:
        value = builder.forward.apply(
            rng.choice((f"{{x}} + {other.text}", f"{other.text} + {{x}}")), value, "residual connection"
        )
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence("a linear layer", "a residual sum" if residual else "", describe(plan.chain("post")))

    tensors = [
        Tensor("x", "x"),
        *when(residual, Tensor("y", "y")),
        Tensor("weight", weight),
        *when(bias, Tensor("bias", bias)),
    ]
    file = KernelFile(builder, NAME, tensors)
    transposed = weights != "nn"  # the weight's rows are outputs
    extra = [*when(bias, "v += bias[col];"), *when(residual, "v += y[row * N + col];")]
    side = "weight[col * K + {k}]" if transposed else "weight[{k} * N + col]"
    plain = ("x", "weight") if transposed else ()
    kernel = product(rng, Operands("x[row * K + {k}]", side, b_k_first=not transposed, extra=extra, plain=plain), post)
    code = file.kernel(kernel.body, ["M", "N", "K"])
    host = f"    int K = x.size(-1), N = weight.size({0 if transposed else 1}), M = x.numel() / K;\n"
    host += "    auto sizes = x.sizes().vec();\n    sizes.back() = N;\n"
    host += f"    auto out = torch::{'zeros' if kernel.slices else 'empty'}(sizes, x.options());\n{kernel.grid()}"
    return Draft(builder, file.write(code, host + file.launch(kernel.launch, ["M", "N", "K"])), kernel.style)


def _layer(
    plan: Plan, builder: ProblemBuilder, x: Value, weights: str, inputs: str, outputs: str
) -> tuple[Value, str, str]:
    """The layer's value, and how ModelNew spells its weight and bias."""
    rng = builder.rng
    if weights == "module":
        flag = "" if plan.has("bias") else ", bias=False"
        attribute = builder.attributes.add("linear", f"nn.Linear({inputs}, {outputs}{flag})", shared=True)
        bias = f"{attribute}.bias" if plan.has("bias") else ""
        return builder.forward.apply(f"{attribute}({{x}})", x, "linear layer"), f"{attribute}.weight", bias
    rows, cols = (outputs, inputs) if weights == "nt" else (inputs, outputs)
    scale = rng.choice((" * 0.1", " * 0.05", ""))
    weight = builder.attributes.add("weight", f"nn.Parameter(torch.randn({rows}, {cols}){scale})", shared=True)
    bias = ""
    if plan.has("bias"):
        start = rng.choice(("randn", "zeros", "rand"))
        bias = builder.attributes.add("bias", f"nn.Parameter(torch.{start}({outputs}))", shared=True)
    if weights == "nt" and rng.random() < 0.6:
        return (
            builder.forward.apply(f"F.linear({{x}}, {weight}{', ' + bias if bias else ''})", x, "linear layer"),
            weight,
            bias,
        )
    turned = rng.choice((f"{weight}.t()", f"{weight}.T", f"{weight}.mT", f"{weight}.transpose(0, 1)"))
    side = turned if weights == "nt" else weight
    if bias and len(builder.tensors.inputs[0].shape) == 2 and rng.random() < 0.25:
        return builder.forward.apply(f"torch.addmm({bias}, {{x}}, {side})", x, "linear layer"), weight, bias
    forms = [f"torch.matmul({{x}}, {side})", f"{{x}} @ {side}", f"{{x}}.matmul({side})"]
    if weights == "nt":
        forms.append(f"torch.einsum('...i,oi->...o', {{x}}, {weight})")
    value = builder.forward.apply(rng.choice(forms), x, "matrix product")
    if bias:
        value = builder.forward.apply(rng.choice((f"{{x}} + {bias}", f"torch.add({{x}}, {bias})")), value, "bias")
    return value, weight, bias
