"""Losses: elementwise ones reduced over everything, and those that work row by row."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.data.synth.chain import Step, chain_length, chains, draw_chain, rounded, state_after
from dice.data.synth.cuda import (
    BLOCK_SHUFFLE,
    ELEMENT_GRID,
    TOTAL,
    TOTAL_HOST,
    KernelFile,
    Tensor,
    lines,
    reduction_helper,
)
from dice.data.synth.plan import Draft, Plan
from dice.data.synth.rows import EXP, row_body
from dice.data.synth.script import Scalar, Script, Value
from dice.data.synth.shapes import describe, draw_shape, sentence

NAME = "loss"
Inputs = tuple[tuple[str, str | None], ...]  # role and how it is made (None: the script's habit)
_PAIR: Inputs = (("predictions", None), ("targets", None))
_BINARY: Inputs = (("predictions", "torch.randn({shape})"), ("targets", "torch.rand({shape})"))
_SIGNS: Inputs = (
    ("predictions", "torch.randn({shape})"),
    ("targets", "torch.randint(0, 2, ({shape},)).float() * 2 - 1"),
)
_LABELS: Inputs = (("predictions", "torch.randn({shape})"), ("labels", "torch.randint(0, {classes}, ({shape},))"))
_VECTORS: Inputs = (("x1", "torch.randn({shape})"), ("x2", "torch.randn({shape})"))
_TRIPLET: Inputs = (
    ("anchor", "torch.randn({shape})"),
    ("positive", "torch.randn({shape})"),
    ("negative", "torch.randn({shape})"),
)


@dataclass(frozen=True, slots=True)
class Loss:
    """`statement` turns v (prediction) and w (target) into the element's loss; row losses have a `body` and `result`.

    Spellings hold {r}, the reduction argument; explicit ones hold {R}, the method that reduces (`.mean()`).
    """

    phrase: str
    spellings: tuple[str, ...]
    explicit: tuple[str, ...] = ()
    module: str = ""
    statement: str = ""
    body: str = ""
    result: str = ""
    kinds: tuple[str, ...] = ("sum",)
    inputs: Inputs = _PAIR
    scalar: str = ""
    chain: bool = True


_COSINE = """float s = 0.0f, a = 0.0f, b = 0.0f;
{loop} {{
    float v = x[base + j], w = y[base + j];
    s += v * w;
    a += v * v;
    b += w * w;
}}
<sum:s>
<sum:a>
<sum:b>
"""
_DISTANCES = """float s = 0.0f, q = 0.0f;
{loop} {{
    float v = x[base + j] - y[base + j] + 1e-6f, w = x[base + j] - z[base + j] + 1e-6f;
    s += v * v;
    q += w * w;
}}
<sum:s>
<sum:q>
"""

LOSSES: dict[str, Loss] = {
    "mse": Loss(
        "mean squared error",
        ("F.mse_loss({x}, {y}{r})",),
        ("(({x} - {y}) ** 2){R}", "torch.square({x} - {y}){R}", "({x} - {y}).pow(2){R}"),
        "nn.MSELoss({r})",
        "v = (v - w) * (v - w);",
    ),
    "l1": Loss(
        "absolute error",
        ("F.l1_loss({x}, {y}{r})",),
        ("torch.abs({x} - {y}){R}", "({x} - {y}).abs(){R}"),
        "nn.L1Loss({r})",
        "v = fabsf(v - w);",
    ),
    "smooth_l1": Loss(
        "smooth L1 loss",
        ("F.smooth_l1_loss({x}, {y}{r}, beta={a})",),
        (),
        "nn.SmoothL1Loss({r}, beta={a})",
        "v = fabsf(v - w);\n        v = v < {a} ? 0.5f * v * v / {a} : v - 0.5f * {a};",
        scalar="beta",
    ),
    "huber": Loss(
        "Huber loss",
        ("F.huber_loss({x}, {y}{r}, delta={a})",),
        (),
        "nn.HuberLoss({r}, delta={a})",
        "v = fabsf(v - w);\n        v = v < {a} ? 0.5f * v * v : {a} * (v - 0.5f * {a});",
        scalar="beta",
    ),
    "bce": Loss(
        "binary cross-entropy of a sigmoid",
        ("F.binary_cross_entropy(torch.sigmoid({x}), {y}{r})",),
        (),
        "",
        "v = 1.0f / (1.0f + expf(-v));\n"
        "        v = -w * fmaxf(logf(v), -100.0f) - (1.0f - w) * fmaxf(logf(1.0f - v), -100.0f);",
        inputs=_BINARY,
        chain=False,
    ),
    "bce_with_logits": Loss(
        "binary cross-entropy with logits",
        ("F.binary_cross_entropy_with_logits({x}, {y}{r})",),
        (),
        "nn.BCEWithLogitsLoss({r})",
        "v = fmaxf(v, 0.0f) - v * w + log1pf(expf(-fabsf(v)));",
        inputs=_BINARY,
    ),
    "hinge": Loss(
        "hinge loss",
        (),
        ("torch.clamp(1 - {x} * {y}, min=0){R}", "F.relu(1 - {x} * {y}){R}", "torch.relu(1.0 - {y} * {x}){R}"),
        "",
        "v = fmaxf(1.0f - v * w, 0.0f);",
        inputs=_SIGNS,
    ),
    "squared_hinge": Loss(
        "squared hinge loss",
        (),
        ("torch.clamp(1 - {x} * {y}, min=0).pow(2){R}", "(torch.relu(1 - {x} * {y}) ** 2){R}"),
        "",
        "v = fmaxf(1.0f - v * w, 0.0f);\n        v = v * v;",
        inputs=_SIGNS,
    ),
    "margin": Loss(
        "hinge loss with a margin",
        (),
        ("torch.clamp({a} - {x} * {y}, min=0){R}", "F.relu({a} - {x} * {y}){R}"),
        "",
        "v = fmaxf({a} - v * w, 0.0f);",
        inputs=_SIGNS,
        scalar="margin",
    ),
    "soft_margin": Loss(
        "soft margin loss",
        ("F.soft_margin_loss({x}, {y}{r})",),
        ("torch.log1p(torch.exp(-{y} * {x})){R}",),
        "nn.SoftMarginLoss({r})",
        "v = log1pf(expf(-v * w));",
        inputs=_SIGNS,
    ),
    "log_cosh": Loss("log-cosh loss", (), ("torch.log(torch.cosh({x} - {y})){R}",), "", "v = logf(coshf(v - w));"),
    "poisson_nll": Loss(
        "Poisson negative log-likelihood",
        ("F.poisson_nll_loss({x}, {y}{r})",),
        ("(torch.exp({x}) - {y} * {x}){R}",),
        "nn.PoissonNLLLoss({r})",
        "v = expf(v) - w * v;",
        inputs=_BINARY,
    ),
    "charbonnier": Loss(
        "Charbonnier loss",
        (),
        ("torch.sqrt(({x} - {y}) ** 2 + {a}){R}",),
        "",
        "v = sqrtf((v - w) * (v - w) + {a});",
        scalar="eps",
    ),
    "cross_entropy": Loss(
        "cross-entropy",
        ("F.cross_entropy({x}, {y}{r})", "F.nll_loss(F.log_softmax({x}, dim=1), {y}{r})"),
        (),
        "nn.CrossEntropyLoss({r})",
        body=EXP,
        result="logf(s) + m - {target}",
        kinds=("max", "sum"),
        inputs=_LABELS,
    ),
    "nll": Loss(
        "negative log-likelihood",
        ("F.nll_loss({x}, {y}{r})",),
        (),
        "nn.NLLLoss({r})",
        body="",
        result="-{target}",
        kinds=(),
        inputs=_LABELS,
    ),
    "kl_div": Loss(
        "Kullback-Leibler divergence",
        ("F.kl_div({x}, {y}{r})",),
        (),
        "nn.KLDivLoss({r})",
        "v = (w == 0.0f ? 0.0f : w * logf(w)) - w * v;",
        inputs=_BINARY,
    ),
    "cosine": Loss(
        "one minus cosine similarity",
        (),
        ("(1 - F.cosine_similarity({x}, {y}, dim=1)){R}", "(1 - F.cosine_similarity({x}, {y}, dim=-1)){R}"),
        "",
        body=_COSINE,
        result="1.0f - s / fmaxf(sqrtf(a * b), 1e-8f)",
        inputs=_VECTORS,
        chain=False,
    ),
    "triplet": Loss(
        "triplet margin loss",
        ("F.triplet_margin_loss({x}, {y}, {z}, margin={a}{r})",),
        (),
        "nn.TripletMarginLoss(margin={a}{r})",
        body=_DISTANCES,
        result="fmaxf(sqrtf(s) - sqrtf(q) + {a}, 0.0f)",
        inputs=_TRIPLET,
        scalar="margin",
        chain=False,
    ),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(LOSSES))
    loss = LOSSES[core]
    usual = "batchmean" if core == "kl_div" else "mean"
    reduction = rng.choices((usual, "sum", "none"), (6, 2, 1.5))[0]
    pre = draw_chain(rng, chain_length(rng, (5, 3, 1))) if loss.chain else ()
    pre = pre if state_after(pre).magnitude <= 6 else ()
    return Plan(NAME, core, chains(pre=pre), (f"reduction={reduction}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    loss = LOSSES[plan.core]
    reduction = plan.features[0].removeprefix("reduction=")
    script = Script(rng)
    by_row = not loss.statement
    shape = (
        draw_shape(script, 2, roles=("batch", "classes") if loss.inputs is _LABELS else None)
        if by_row
        else draw_shape(script, rng.choice((1, 2, 2, 3)))
    )
    inputs = [_input(script, role, make, shape) for role, make in loss.inputs]
    if reduction != "mean" and loss.inputs is _LABELS:
        script.dimensions[0].small = max(2, script.dimensions[0].small)
    value, pre = script.chain(inputs[0], plan.chain("pre"))
    scalar = _scalar(loss, script)
    value = _spell(loss, script, value, inputs, reduction, scalar)
    script.finish(value)
    how = {"mean": "averaged", "batchmean": "averaged over the batch", "sum": "summed", "none": "for each element"}[
        reduction
    ]
    script.title = sentence(describe(plan.chain("pre")), f"{loss.phrase}, {how}")
    names = "xyz"[: len(inputs)]
    tensors = [
        Tensor(name, name, "int64_t" if role == "labels" else "float")
        for name, (role, _) in zip(names, loss.inputs, strict=True)
    ]
    file = KernelFile(script, NAME, tensors)
    number = scalar.cuda if scalar else ""
    if by_row:
        return _row_kernel(loss, script, file, pre, reduction, number)
    return _total_kernel(loss, script, file, pre, reduction, number)


def _input(script: Script, role: str, make: str | None, shape: list[str]) -> Value:
    if role == "labels":
        return script.input(role, shape[:1], (make or "").replace("{classes}", shape[1]))
    return script.input(role, shape, make)


def _scalar(loss: Loss, script: Script) -> Scalar | None:
    if not loss.scalar:
        return None
    value = script.rng.choice((1e-3, 1e-4, 1e-6)) if loss.scalar == "eps" else rounded(script.rng, 0.2, 2.0)
    return script.scalar(loss.scalar, value)


def _spell(
    loss: Loss, script: Script, value: Value, inputs: list[Value], reduction: str, scalar: Scalar | None
) -> Value:
    rng = script.rng
    shown = reduction != "mean" or rng.random() < 0.2
    argument = f"reduction='{reduction}'" if shown else ""
    fields = {"y": inputs[1].text, "z": inputs[-1].text}
    if loss.explicit and (not loss.spellings or rng.random() < 0.4):
        text = rng.choice(loss.explicit).replace("{R}", {"mean": ".mean()", "sum": ".sum()", "none": ""}[reduction])
        return script.apply(text, value, loss.phrase, a=scalar.forward if scalar else "", **fields)
    if loss.module and rng.random() < 0.35:
        module = loss.module.replace("{r}", argument if "({r}" in loss.module or not argument else f", {argument}")
        module = module.replace("(, ", "(").format(a=scalar.init if scalar else "")
        attribute = script.attribute("loss", module, shared=False)
        others = ", ".join(item.text for item in inputs[1:])
        return script.apply(f"{attribute}({{x}}, {others})", value, loss.phrase)
    text = rng.choice(loss.spellings).replace("{r}", f", {argument}" if argument else "")
    return script.apply(text, value, loss.phrase, a=scalar.forward if scalar else "", **fields)


def _total_kernel(loss: Loss, script: Script, file: KernelFile, pre: list[Step], reduction: str, scalar: str) -> Draft:
    text = lines("float v = x[i];", pre, "float w = y[i];", loss.statement.format(a=scalar))
    if reduction == "none":
        code = file.per_element(text)
        host = "    auto out = torch::empty_like(x);\n    int n = x.numel();\n" + file.launch(ELEMENT_GRID, ["n"])
        return Draft(script, file.write(code, host), "plain")
    result = {"mean": "s / n", "batchmean": "s / rows", "sum": "s"}[reduction]
    integers = ["n", "rows"] if reduction == "batchmean" else ["n"]
    host = TOTAL_HOST + ("    int rows = x.size(0);\n" if reduction == "batchmean" else "")
    code = reduction_helper(BLOCK_SHUFFLE, "sum") + file.kernel(TOTAL.format(lines=text, result=result), integers)
    return Draft(script, file.write(code, host + file.launch("blocks, 256", integers)), "atomic")


def _row_kernel(loss: Loss, script: Script, file: KernelFile, pre: list[Step], reduction: str, scalar: str) -> Draft:
    scope = BLOCK_SHUFFLE
    load = file.load(pre, "x[base + j]")
    target = file.load(pre, "x[base + y[row]]")
    body = row_body(loss.body, scope.loop, load, scope) if loss.body else ""
    result = loss.result.format(target=target, a=scalar)
    integers = ["D", "rows"] if reduction == "mean" else ["D"]
    store = {
        "none": f"out[row] = {result};",
        "sum": f"atomicAdd(out, {result});",
        "mean": f"atomicAdd(out, ({result}) / rows);",
    }[reduction]
    code = "".join(reduction_helper(scope, kind) for kind in loss.kinds) + file.pre(pre)
    code += file.kernel(f"{scope.start}    int base = row * D;\n{body}    if ({scope.lead}) {store}\n", integers)
    host = "    int D = x.size(1), rows = x.size(0);\n"
    host += (
        "    auto out = torch::empty({rows}, x.options());\n"
        if reduction == "none"
        else "    auto out = torch::zeros({}, x.options());\n"
    )
    return Draft(script, file.write(code, host + file.launch(scope.grid, integers)), scope.style)
