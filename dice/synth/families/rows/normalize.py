"""Normalisations beyond the layers of torch.nn's usual ones: over channels at each place, over neighbouring channels,
over a whole tensor."""

from __future__ import annotations

import random

from dice.synth.kernel.cuda import (
    BLOCK_SHUFFLE,
    BLOCK_TREE,
    ELEMENT_GRID,
    TOTAL,
    KernelFile,
    Tensor,
    lines,
    reduction_helper,
)
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, state_after
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, draw_rank, draw_shape, sentence
from dice.synth.problem.tensors import Value
from dice.synth.tables.phrasing import SCALAR_NAMES

NAME = "normalize"
CORES = {
    "local_response": 2.0,
    "channel_norm": 3.0,
    "channel_rms": 2.0,
    "whole_l2": 2.0,
    "whole_l2_bare": 1.5,
    "whole_l1": 1.0,
    "whole_rms": 1.0,
}
_STATE = ChainState("any", 6.0, False)
PHRASES = {
    "local_response": "local response normalization",
    "channel_norm": "layer norm over the channels",
    "channel_rms": "RMS norm over the channels",
    "whole_l2": "division by the Frobenius norm",
    "whole_l2_bare": "division by the Frobenius norm, unguarded",
    "whole_l1": "division by the sum of magnitudes",
    "whole_rms": "division by the root mean square of all elements",
}
# Over a whole tensor: spellings, what each element adds to the sum, the divisor in CUDA.
WHOLE: dict[str, tuple[tuple[str, ...], str, str]] = {
    "whole_l2": (
        ("{x} / (torch.norm({x}) + 1e-6)", "{x} / ({x}.norm() + 1e-6)", "{x} / (torch.norm({x}, p='fro') + 1e-6)"),
        "{v} * {v}",
        "(sqrtf(s) + 1e-6f)",
    ),
    "whole_l2_bare": (
        (
            "{x} / torch.norm({x})",
            "{x} / {x}.norm()",
            "{x} / torch.norm({x}, p='fro')",
            "{x} / {x}.pow(2).sum().sqrt()",
        ),
        "{v} * {v}",
        "sqrtf(s)",
    ),
    "whole_l1": (
        ("{x} / (torch.sum(torch.abs({x})) + 1e-6)", "{x} / ({x}.abs().sum() + 1e-6)"),
        "fabsf({v})",
        "(s + 1e-6f)",
    ),
    "whole_rms": (
        ("{x} / torch.sqrt(torch.mean({x} ** 2) + 1e-6)", "{x} / ({x}.pow(2).mean() + 1e-6).sqrt()"),
        "{v} * {v}",
        "sqrtf(s / n + 1e-6f)",
    ),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(CORES), tuple(CORES.values()))[0]
    pre = draw_chain(rng, chain_length(rng, (4, 3, 1)))
    pre = pre if state_after(pre).magnitude <= 15 and not core.endswith("bare") else ()
    post = draw_chain(rng, chain_length(rng, (3, 4, 2)), _STATE)
    features = (f"affine={rng.choice(('none', 'weight', 'full'))}",) if core.startswith("channel") else ("affine=none",)
    return Plan(NAME, core, chains(pre=pre, post=post), features)


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng)
    roles = rng.choice((("batch", "channels", "height", "width"), ("batch", "channels", "length")))
    whole = plan.core in WHOLE
    shape = draw_shape(builder, draw_rank(rng), most=8192) if whole else draw_shape(builder, len(roles), roles=roles)
    value, pre = builder.operators.chain(builder.tensors.input("x", shape), plan.chain("pre"))
    builder.title = sentence(describe(plan.chain("pre")), PHRASES[plan.core], describe(plan.chain("post")))
    write = _whole if whole else _local if plan.core == "local_response" else _channels
    return write(plan, builder, value, pre, shape)


def _finish(plan: Plan, builder: ProblemBuilder, value: Value) -> list[Step]:
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    return post


def _whole(plan: Plan, builder: ProblemBuilder, value: Value, pre: list[Step], shape: list[str]) -> Draft:
    """One kernel for the sum, of which each block adds its part, and one for the elements."""
    spellings, term, divisor = WHOLE[plan.core]
    value = builder.forward.apply(builder.rng.choice(spellings), value, PHRASES[plan.core])
    post = _finish(plan, builder, value)
    file = KernelFile(builder, NAME, [Tensor("x", "x")])
    sums, own = (
        KernelFile(builder, "sum", file.tensors),
        KernelFile(builder, NAME, [*file.tensors, Tensor("sum", "sum")]),
    )
    scope = builder.rng.choice((BLOCK_SHUFFLE, BLOCK_TREE))
    load = file.load(pre, "x[i]")
    total = TOTAL.format(lines=lines(f"float v = {load};", f"v = {term.format(v='v')};"), result="s").replace(
        "(out", "(sum"
    )
    text = lines("float s = sum[0];", f"float v = {load} / {divisor};", post)
    code = reduction_helper(scope, "sum") + file.pre(pre) + sums.kernel(total, ["n"])
    code = code.replace("float* out", "float* sum") + "\n\n" + own.per_element(text)
    host = "    auto out = torch::empty_like(x);\n    auto sum = torch::zeros({1}, x.options());\n"
    host += "    int n = x.numel();\n    int blocks = std::min((n + 255) / 256, 1024);\n"
    host += sums.launch("blocks, 256", ["n"]).replace("out.", "sum.") + own.launch(ELEMENT_GRID, ["n"])
    return Draft(builder, file.write(code, host), f"two_kernels_{scope.style}")


def _local(plan: Plan, builder: ProblemBuilder, value: Value, pre: list[Step], shape: list[str]) -> Draft:
    rng = builder.rng
    size = rng.choice((2, 3, 5))
    alpha, beta, k = rng.choice((1e-4, 1e-3, 0.1, 0.5)), rng.choice((0.75, 0.5, 1.0)), rng.choice((1.0, 2.0))
    arguments = f"{size}, alpha={alpha}, beta={beta}, k={k}"
    if rng.random() < 0.5:
        attribute = builder.attributes.add("norm", f"nn.LocalResponseNorm({arguments})", shared=False)
        value = builder.forward.apply(f"{attribute}({{x}})", value, "normalize")
    else:
        value = builder.forward.apply(f"F.local_response_norm({{x}}, {arguments})", value, "normalize")
    post = _finish(plan, builder, value)
    file = KernelFile(builder, NAME, [Tensor("x", "x")])
    text = lines(
        "int c = i / inner % C;",
        "float s = 0.0f;",
        f"for (int j = max(c - {size // 2}, 0); j < min(c + {size - size // 2}, C); j++) {{",
        f"    float d = {file.load(pre, 'x[i + (j - c) * inner]')};",
        "    s += d * d;",
        "}",
        f"float v = {file.load(pre, 'x[i]')} / powf({k}f + {alpha!r}f * s / {size}, {beta}f);",
        post,
    )
    code, launch, style = file.sweep(rng, text, ["n", "C", "inner"])
    host = "    auto out = torch::empty_like(x);\n    int n = x.numel(), C = x.size(1), inner = x.stride(1);\n"
    return Draft(builder, file.write(file.pre(pre) + code, host + launch), style)


def _channels(plan: Plan, builder: ProblemBuilder, value: Value, pre: list[Step], shape: list[str]) -> Draft:
    """One thread a place: it walks over the channels, which lie `inner` apart."""
    rng = builder.rng
    rms, spread = plan.core == "channel_rms", ", 1" * (len(shape) - 2)
    weight = bias = ""
    if not plan.has("affine=none"):
        size = builder.constructor.argument(SCALAR_NAMES["size"], shape[1], "int")
        weight = builder.attributes.add(
            "weight", f"nn.Parameter(torch.{rng.choice(('ones', 'rand'))}({size}{spread}))", shared=True
        )
        if plan.has("affine=full"):
            bias = builder.attributes.add(
                "bias", f"nn.Parameter(torch.{rng.choice(('zeros', 'randn'))}({size}{spread}))", shared=True
            )
    eps = builder.constructor.scalar("eps", rng.choice((1e-5, 1e-6, 1e-3)))
    value = builder.forward.bind(value)
    if rms:
        text = rng.choice(
            (
                f"{{x}} * torch.rsqrt({{x}}.pow(2).mean(dim=1, keepdim=True) + {eps.forward})",
                f"{{x}} / torch.sqrt(torch.mean({{x}} ** 2, dim=1, keepdim=True) + {eps.forward})",
            )
        )
        if "/" in text and rng.random() < 0.5:
            name = builder.names.fresh(("rms", "scale", "root"))
            builder.forward.lines.append(f"{name} = {text.removeprefix('{x} / ').format(x=value.text)}")
            text = f"{{x}} / {name}"
    else:
        centred = "{x}.mean(dim=1, keepdim=True)"
        spread_text = "{x}.var(dim=1, keepdim=True, unbiased=False)"
        text = f"({{x}} - {centred}) / torch.sqrt({spread_text} + {eps.forward})"
    value = builder.forward.apply(text, value, "normalize")
    value = builder.forward.apply(f"{{x}} * {weight}", value, "scale") if weight else value
    value = builder.forward.apply(f"{{x}} + {bias}", value, "shift") if bias else value
    post = _finish(plan, builder, value)
    tensors = [Tensor("x", "x"), *(Tensor(name, text) for name, text in (("weight", weight), ("bias", bias)) if text)]
    file = KernelFile(builder, NAME, tensors)
    load = file.load(pre, "x[base + j * inner]")
    start = "    int p = blockIdx.x * blockDim.x + threadIdx.x;\n    if (p >= places) return;\n"
    start += "    int base = p / inner * C * inner + p % inner;\n    float m = 0.0f, q = 0.0f;\n"
    mean = "" if rms else f"    for (int j = 0; j < C; j++) m += {load};\n    m /= C;\n"
    body = f"{start}{mean}    for (int j = 0; j < C; j++) {{\n"
    body += lines(f"float d = {load}{'' if rms else ' - m'};", "q += d * d;")
    body += f"    }}\n    q = rsqrtf(q / C + {eps.cuda});\n    for (int j = 0; j < C; j++) {{\n"
    affine = [*(["v *= weight[j];"] if weight else []), *(["v += bias[j];"] if bias else [])]
    own = f"{load} * q" if rms else f"({load} - m) * q"
    body += lines(f"float v = {own};", affine, post, "out[base + j * inner] = v;") + "    }\n"
    threads = rng.choice((64, 128, 256))
    integers = ["places", "C", "inner"]
    code = file.pre(pre) + file.kernel(body, integers)
    host = "    auto out = torch::empty_like(x);\n    int C = x.size(1), inner = x.stride(1), places = x.numel() / C;\n"
    launch = file.launch(f"(places + {threads - 1}) / {threads}, {threads}", integers)
    return Draft(builder, file.write(code, host + launch), f"thread_per_place{threads}")
