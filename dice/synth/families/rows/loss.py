"""Losses: elementwise ones reduced over everything, and those that work row by row."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from dice.synth.kernel.cuda import (
    BLOCK_SHUFFLE,
    BLOCK_TREE,
    THREAD,
    TOTAL,
    TOTAL_HOST,
    WARP,
    KernelFile,
    Tensor,
    lines,
    reduction_helper,
)
from dice.synth.kernel.losses import LOSSES, ROW_LABELS, Loss
from dice.synth.kernel.rows import row_body
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import Step, chain_length, chains, draw_chain, rounded, state_after
from dice.synth.problem.constructor import Scalar
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_shape, sentence
from dice.synth.problem.tensors import Value

NAME = "loss"
_LEFT_OUT = re.compile(r"(, )?(beta|delta|margin)=\{a\}")


def sample(rng: random.Random) -> Plan:
    return drawn(rng, NAME, LOSSES)


def drawn(rng: random.Random, family: str, table: Mapping[str, Loss]) -> Plan:
    """A plan of the family whose losses are in `table`."""
    core = rng.choice(tuple(table))
    loss = table[core]
    usual = "batchmean" if core.startswith("kl_div") else "mean"
    reduction = rng.choices((usual, "sum", "none"), (6, 2, 1.5))[0]
    pre = draw_chain(rng, chain_length(rng, (5, 3, 1))) if loss.chain else ()
    pre = pre if state_after(pre).magnitude <= 6 else ()
    return Plan(family, core, chains(pre=pre), (f"reduction={reduction}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    return written(plan, rng, LOSSES)


def written(plan: Plan, rng: random.Random, table: Mapping[str, Loss]) -> Draft:
    """The pair of such a plan."""
    loss = table[plan.core]
    reduction = plan.features[0].removeprefix("reduction=")
    builder = ProblemBuilder(rng)
    by_row = not loss.statement
    shape = (
        draw_shape(builder, 2, roles=("batch", "classes") if loss.inputs is ROW_LABELS else None)
        if by_row
        else draw_shape(builder, rng.choice((1, 2, 2, 3)))
    )
    inputs = [_input(builder, role, make, shape) for role, make in loss.inputs]
    if reduction != "mean" and loss.inputs is ROW_LABELS:
        builder.tensors.dimensions[0].small = max(2, builder.tensors.dimensions[0].small)
    value, pre = builder.operators.chain(inputs[0], plan.chain("pre"))
    scalar = _scalar(loss, builder)
    value = _spell(loss, builder, value, inputs, reduction, scalar)
    builder.finish(value)
    how = {"mean": "averaged", "batchmean": "averaged over the batch", "sum": "summed", "none": "for each element"}[
        reduction
    ]
    builder.title = sentence(describe(plan.chain("pre")), f"{loss.phrase}, {how}")
    names = "xyz"[: len(inputs)]
    tensors = [
        Tensor(name, name, "int64_t" if role == "labels" else "float")
        for name, (role, _) in zip(names, loss.inputs, strict=True)
    ]
    file = KernelFile(builder, plan.family, tensors)
    number = scalar.cuda if scalar else ""
    if by_row:
        return _row_kernel(loss, builder, file, pre, reduction, number)
    return _total_kernel(loss, builder, file, pre, reduction, number)


def _input(builder: ProblemBuilder, role: str, make: str | None, shape: list[str]) -> Value:
    if role == "labels":
        return builder.tensors.input(role, shape[:1], (make or "").replace("{classes}", shape[1]))
    return builder.tensors.input(role, shape, make)


def _scalar(loss: Loss, builder: ProblemBuilder) -> Scalar | None:
    if not loss.scalar:
        return None
    low, high = {"smoothing": (0.05, 0.4), "quantile": (0.1, 0.9)}.get(loss.scalar, (0.2, 2.0))
    if loss.scalar in ("beta", "margin") and loss.spellings and builder.rng.random() < 0.35:
        return Scalar(loss.default, loss.default, f"{loss.default}f")
    value = builder.rng.choice((1e-3, 1e-4, 1e-6)) if loss.scalar == "eps" else rounded(builder.rng, low, high)
    return builder.constructor.scalar(loss.scalar, value)


def _spell(
    loss: Loss, builder: ProblemBuilder, value: Value, inputs: list[Value], reduction: str, scalar: Scalar | None
) -> Value:
    rng = builder.rng
    shown = reduction != "mean" or rng.random() < 0.2
    argument = f"reduction='{reduction}'" if shown else ""
    fields = {"y": inputs[1].text, "z": inputs[-1].text}
    if loss.explicit and (not loss.spellings or rng.random() < 0.4):
        text = rng.choice(loss.explicit)
        if reduction != "none" and rng.random() < 0.5:
            text = f"torch.{reduction}({text.replace('{R}', '')})"
        text = text.replace("{R}", {"mean": ".mean()", "sum": ".sum()", "none": ""}[reduction])
        return builder.forward.apply(text, value, loss.phrase, a=scalar.forward if scalar else "", **fields)
    omitted = scalar is not None and scalar.forward == loss.default and rng.random() < 0.7
    if loss.module and rng.random() < 0.35:
        module = _LEFT_OUT.sub("", loss.module) if omitted else loss.module
        module = module.replace("{r}", argument if "({r}" in loss.module or not argument else f", {argument}")
        module = module.replace("(, ", "(").format(a=scalar.init if scalar else "")
        attribute = builder.attributes.add("loss", module, shared=False)
        others = ", ".join(item.text for item in inputs[1:])
        return builder.forward.apply(f"{attribute}({{x}}, {others})", value, loss.phrase)
    text = rng.choice(loss.spellings)
    text = (_LEFT_OUT.sub("", text) if omitted else text).replace("{r}", f", {argument}" if argument else "")
    return builder.forward.apply(text, value, loss.phrase, a=scalar.forward if scalar else "", **fields)


def _total_kernel(
    loss: Loss, builder: ProblemBuilder, file: KernelFile, pre: list[Step], reduction: str, scalar: str
) -> Draft:
    third = "float u = z[i];" if len(loss.inputs) == 3 else ""
    text = lines("float v = x[i];", pre, "float w = y[i];", third, loss.statement.format(a=scalar))
    if reduction == "none":
        code, launch, style = file.sweep(builder.rng, text)
        host = "    auto out = torch::empty_like(x);\n    int n = x.numel();\n"
        return Draft(builder, file.write(code, host + launch), style)
    result = {"mean": "s / n", "batchmean": "s / rows", "sum": "s"}[reduction]
    integers = ["n", "rows"] if reduction == "batchmean" else ["n"]
    host = TOTAL_HOST + ("    int rows = x.size(0);\n" if reduction == "batchmean" else "")
    code = reduction_helper(BLOCK_SHUFFLE, "sum") + file.kernel(TOTAL.format(lines=text, result=result), integers)
    return Draft(builder, file.write(code, host + file.launch("blocks, 256", integers)), "atomic")


def _row_kernel(
    loss: Loss, builder: ProblemBuilder, file: KernelFile, pre: list[Step], reduction: str, scalar: str
) -> Draft:
    scope = builder.rng.choices((BLOCK_SHUFFLE, BLOCK_TREE, WARP, THREAD), (6, 1, 2, 0.5))[0]
    load = file.load(pre, "x[base + j]")
    target = file.load(pre, "x[base + y[row]]")
    body = row_body(loss.body.replace("{a}", scalar), scope.loop, load, scope) if loss.body else ""
    result = loss.result.format(target=target, a=scalar)
    integers = ["D", "rows"] if reduction == "mean" or "rows" in scope.start else ["D"]
    store = {
        "none": f"out[row] = {result};",
        "sum": f"atomicAdd(out, {result});",
        "mean": f"atomicAdd(out, ({result}) / rows);",
    }[reduction]
    code = "".join(reduction_helper(scope, kind) for kind in loss.kinds) + file.pre(pre)
    store = f"if ({scope.lead}) {store}" if scope.lead else store
    code += file.kernel(f"{scope.start}    int base = row * D;\n{body}    {store}\n", integers)
    host = "    int D = x.size(1), rows = x.size(0);\n"
    host += (
        "    auto out = torch::empty({rows}, x.options());\n"
        if reduction == "none"
        else "    auto out = torch::zeros({}, x.options());\n"
    )
    return Draft(builder, file.write(code, host + file.launch(scope.grid, integers)), scope.style)
