"""Linear layers with an epilogue: bias, residual, an elementwise chain; weights of nn.Linear or plain parameters."""

from __future__ import annotations

import random

from dice.data.synth.chain import ChainState, chain_length, chains, draw_chain
from dice.data.synth.cuda import KernelFile, Tensor
from dice.data.synth.families.matmul import size
from dice.data.synth.phrasing import SCALAR_NAMES
from dice.data.synth.plan import Draft, Plan
from dice.data.synth.products import Operands, product
from dice.data.synth.script import Script, Value
from dice.data.synth.shapes import describe, sentence

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
    script = Script(rng)
    residual = plan.has("residual")
    leading = rng.choices((("batch",), ("batch", "sequence")), (3, 1))[0]
    batch = [
        script.dimension(role, rng.choice((1, 2, 3, 4, 8, 10, 16, 32)), rng.choice((64, 128, 256, 1024)))
        for role in leading
    ]
    k, n = size(script, "in_features"), size(script, "out_features")
    inputs, outputs = (
        script.argument(SCALAR_NAMES[role], mark, "int") for role, mark in (("in_features", k), ("out_features", n))
    )
    weights = plan.features[0].removeprefix("weights=")
    x = script.input("x", [*batch, k])
    other = script.input("y", [*batch, n]) if residual else None
    script.results.append([*batch, n])
    value, weight, bias = _layer(plan, script, x, weights, inputs, outputs)
    value = script.idle(value)
    if other:
        value = script.apply(
            rng.choice((f"{{x}} + {other.text}", f"{other.text} + {{x}}")), value, "residual connection"
        )
    value, post = script.chain(value, plan.chain("post"), state=_STATE)
    script.finish(value)
    script.title = sentence("a linear layer", "a residual sum" * residual, describe(plan.chain("post")))

    tensors = (
        [Tensor("x", "x")]
        + [Tensor("y", "y")] * residual
        + [Tensor("weight", weight)]
        + [Tensor("bias", bias)] * bool(bias)
    )
    file = KernelFile(script, NAME, tensors)
    transposed = weights != "nn"  # the weight's rows are outputs
    extra = ["v += bias[col];"] * bool(bias) + ["v += y[row * N + col];"] * residual
    side = "weight[col * K + {k}]" if transposed else "weight[{k} * N + col]"
    plain = ("x", "weight") if transposed else ()
    kernel = product(rng, Operands("x[row * K + {k}]", side, b_k_first=not transposed, extra=extra, plain=plain), post)
    code = file.kernel(kernel.body, ["M", "N", "K"])
    host = f"    int K = x.size(-1), N = weight.size({0 if transposed else 1}), M = x.numel() / K;\n"
    host += "    auto sizes = x.sizes().vec();\n    sizes.back() = N;\n"
    host += f"    auto out = torch::{'zeros' if kernel.slices else 'empty'}(sizes, x.options());\n{kernel.grid()}"
    return Draft(script, file.write(code, host + file.launch(kernel.launch, ["M", "N", "K"])), kernel.style)


def _layer(plan: Plan, script: Script, x: Value, weights: str, inputs: str, outputs: str) -> tuple[Value, str, str]:
    """The layer's value, and how ModelNew spells its weight and bias."""
    rng = script.rng
    if weights == "module":
        flag = "" if plan.has("bias") else ", bias=False"
        attribute = script.attribute("linear", f"nn.Linear({inputs}, {outputs}{flag})", shared=True)
        bias = f"{attribute}.bias" if plan.has("bias") else ""
        return script.apply(f"{attribute}({{x}})", x, "linear layer"), f"{attribute}.weight", bias
    rows, cols = (outputs, inputs) if weights == "nt" else (inputs, outputs)
    scale = rng.choice((" * 0.1", " * 0.05", ""))
    weight = script.attribute("weight", f"nn.Parameter(torch.randn({rows}, {cols}){scale})", shared=True)
    bias = ""
    if plan.has("bias"):
        start = rng.choice(("randn", "zeros", "rand"))
        bias = script.attribute("bias", f"nn.Parameter(torch.{start}({outputs}))", shared=True)
    if weights == "nt" and rng.random() < 0.6:
        return script.apply(f"F.linear({{x}}, {weight}{', ' + bias if bias else ''})", x, "linear layer"), weight, bias
    turned = rng.choice((f"{weight}.t()", f"{weight}.T", f"{weight}.mT", f"{weight}.transpose(0, 1)"))
    side = turned if weights == "nt" else weight
    if bias and len(script.inputs[0].shape) == 2 and rng.random() < 0.25:
        return script.apply(f"torch.addmm({bias}, {{x}}, {side})", x, "linear layer"), weight, bias
    forms = [f"torch.matmul({{x}}, {side})", f"{{x}} @ {side}", f"{{x}}.matmul({side})"]
    if weights == "nt":
        forms.append(f"torch.einsum('...i,oi->...o', {{x}}, {weight})")
    value = script.apply(rng.choice(forms), x, "matrix product")
    if bias:
        value = script.apply(rng.choice((f"{{x}} + {bias}", f"torch.add({{x}}, {bias})")), value, "bias")
    return value, weight, bias
