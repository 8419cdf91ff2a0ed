"""How near vectors are to one another: each to its partner, or each to every other one."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.kernel.cuda import KernelFile, Tensor, lines, reduction_helper
from dice.synth.kernel.rows import draw_scope, row_body
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, rounded
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence

NAME = "similarity"


@dataclass(frozen=True, slots=True)
class Measure:
    """`sums`: variables that collect over the features, and what each adds, or the maximum "m", of v and w.

    `pairs`: spellings for each row with its partner; `every`: for all rows with all others.
    """

    phrase: str
    sums: tuple[tuple[str, str], ...]
    result: str
    pairs: tuple[str, ...] = ()
    every: tuple[str, ...] = ()
    module: str = ""
    magnitude: float = 30.0
    scalar: str = ""


_DIFFERENCE = "(v - w) * (v - w)"
_COSINE = (("s", "v * w"), ("a", "v * v"), ("b", "w * w"))
MEASURES: dict[str, Measure] = {
    "cosine": Measure(
        "cosine similarity",
        _COSINE,
        "s / fmaxf(sqrtf(a * b), 1e-8f)",
        (
            "F.cosine_similarity({x}, {y}, dim=-1)",
            "torch.cosine_similarity({x}, {y}, dim=-1)",
            "(F.normalize({x}, dim=-1) * F.normalize({y}, dim=-1)).sum(dim=-1)",
            "({x} * {y}).sum(-1) / ({x}.norm(dim=-1) * {y}.norm(dim=-1))",
        ),
        (
            "F.cosine_similarity({x}.unsqueeze(-2), {y}.unsqueeze(-3), dim=-1)",
            "F.normalize({x}, dim=-1) @ F.normalize({y}, dim=-1).transpose(-2, -1)",
            "torch.matmul(F.normalize({x}, p=2, dim=-1), F.normalize({y}, p=2, dim=-1).mT)",
        ),
        "nn.CosineSimilarity(dim=-1)",
        1.0,
    ),
    "euclidean": Measure(
        "the Euclidean distance",
        (("s", _DIFFERENCE),),
        "sqrtf(s)",
        ("torch.norm({x} - {y}, dim=-1)", "({x} - {y}).pow(2).sum(-1).sqrt()", "torch.linalg.norm({x} - {y}, dim=-1)"),
        (
            "torch.cdist({x}, {y})",
            "torch.cdist({x}, {y}, p=2)",
            "torch.norm({x}.unsqueeze(-2) - {y}.unsqueeze(-3), dim=-1)",
        ),
    ),
    "pairwise": Measure(
        "the pairwise distance",
        (("s", "(v - w + 1e-6f) * (v - w + 1e-6f)"),),
        "sqrtf(s)",
        ("F.pairwise_distance({x}, {y})", "F.pairwise_distance({x}, {y}, p=2.0)", "torch.pairwise_distance({x}, {y})"),
        module="nn.PairwiseDistance(p=2)",
    ),
    "pairwise1": Measure(
        "the pairwise distance of first order",
        (("s", "fabsf(v - w + 1e-6f)"),),
        "s",
        ("F.pairwise_distance({x}, {y}, p=1.0)", "F.pairwise_distance({x}, {y}, p=1)"),
        module="nn.PairwiseDistance(p=1)",
        magnitude=60.0,
    ),
    "manhattan": Measure(
        "the Manhattan distance",
        (("s", "fabsf(v - w)"),),
        "s",
        ("torch.abs({x} - {y}).sum(dim=-1)", "({x} - {y}).abs().sum(-1)", "torch.norm({x} - {y}, p=1, dim=-1)"),
        ("torch.cdist({x}, {y}, p=1)", "({x}.unsqueeze(-2) - {y}.unsqueeze(-3)).abs().sum(dim=-1)"),
        magnitude=60.0,
    ),
    "chebyshev": Measure(
        "the Chebyshev distance",
        (("m", "fabsf(v - w)"),),
        "m",
        ("torch.abs({x} - {y}).amax(dim=-1)", "({x} - {y}).abs().max(dim=-1).values"),
        ("torch.cdist({x}, {y}, p=float('inf'))", "({x}.unsqueeze(-2) - {y}.unsqueeze(-3)).abs().amax(-1)"),
        magnitude=10.0,
    ),
    "squared": Measure(
        "the squared distance",
        (("s", _DIFFERENCE),),
        "s",
        ("(({x} - {y}) ** 2).sum(dim=-1)", "torch.sum(torch.square({x} - {y}), dim=-1)"),
        ("(({x}.unsqueeze(-2) - {y}.unsqueeze(-3)) ** 2).sum(dim=-1)", "torch.cdist({x}, {y}) ** 2"),
        magnitude=60.0,
    ),
    "radial": Measure(
        "a radial basis function",
        (("s", _DIFFERENCE),),
        "expf(-{a} * s)",
        ("torch.exp(-{a} * (({x} - {y}) ** 2).sum(dim=-1))", "torch.exp(-{a} * ({x} - {y}).pow(2).sum(-1))"),
        (
            "torch.exp(-{a} * torch.cdist({x}, {y}) ** 2)",
            "torch.exp(-{a} * ({x}.unsqueeze(-2) - {y}.unsqueeze(-3)).pow(2).sum(-1))",
        ),
        magnitude=1.0,
        scalar="scale",
    ),
    "student": Measure(
        "a Student-t similarity",
        (("s", _DIFFERENCE),),
        "1.0f / (1.0f + s / {a})",
        ("1.0 / (1.0 + (({x} - {y}) ** 2).sum(dim=-1) / {a})",),
        ("1 / (1 + torch.cdist({x}, {y}).pow(2) / {a})", "(1 + torch.cdist({x}, {y}) ** 2 / {a}).reciprocal()"),
        magnitude=1.0,
        scalar="scale",
    ),
    "tanimoto": Measure(
        "the Tanimoto similarity",
        _COSINE,
        "s / (a + b - s)",
        ("({x} * {y}).sum(-1) / (({x} ** 2).sum(-1) + ({y} ** 2).sum(-1) - ({x} * {y}).sum(-1))",),
        magnitude=1.0,
    ),
}
# 16 x 16 pairs for each block: each thread has a pair, and loads an element of both tiles for all of them.
TILE = """    __shared__ float xs[16][17], ys[16][17];
    int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x, batch = blockIdx.z;
    int other = blockIdx.x * 16 + threadIdx.y;
    float {declared};
    for (int k = 0; k < D; k += 16) {{
        int j = k + threadIdx.x;
        xs[threadIdx.y][threadIdx.x] = r < M && j < D ? x[(batch * M + r) * D + j] : 0.0f;
        ys[threadIdx.y][threadIdx.x] = other < N && j < D ? y[(batch * N + other) * D + j] : 0.0f;
        __syncthreads();
        for (int t = 0; t < 16; t++) {{
            float v = xs[threadIdx.y][t], w = ys[threadIdx.x][t];
{update}        }}
        __syncthreads();
    }}
    if (r < M && c < N) {{
{store}    }}
"""


def sample(rng: random.Random) -> Plan:
    every = rng.random() < 0.5
    names = [name for name, measure in MEASURES.items() if (measure.every if every else measure.pairs)]
    core = rng.choice(names)
    post = draw_chain(rng, chain_length(rng, (4, 4, 2)), ChainState("any", MEASURES[core].magnitude, False))
    features = ("every" if every else "pairs", f"rank={rng.choices((2, 3), (3, 2))[0]}")
    return Plan(NAME, core, chains(post=post), features)


def render(plan: Plan, rng: random.Random) -> Draft:
    measure, every = MEASURES[plan.core], plan.has("every")
    builder = ProblemBuilder(rng, keep_inputs=True)
    batch = builder.tensors.dimension("batch", rng.choice((1, 2, 3, 4)), rng.choice((8, 16, 32)))
    m, n = (
        builder.tensors.dimension(role, rng.choice((3, 5, 8, 17, 32)), rng.choice((256, 512, 1024))) for role in "mn"
    )
    d = builder.tensors.dimension("features", rng.choice((4, 16, 31, 64)), rng.choice((64, 128, 256)))
    leading = [batch] if plan.has("rank=3") else []
    x = builder.tensors.input("x1", [*leading, m, d], "torch.randn({shape})")
    y = builder.tensors.input("x2", [*leading, n if every else m, d], "torch.randn({shape})")
    fields, number = {"y": y.text}, ""
    if measure.scalar:
        scalar = builder.constructor.scalar(measure.scalar, rounded(rng, 0.02, 0.1 if plan.core == "radial" else 3.0))
        fields["a"], number = scalar.forward, scalar.cuda
    if measure.module and not every and rng.random() < 0.35:
        layer = builder.attributes.add("loss", measure.module, shared=False)
        value = builder.forward.apply(f"{layer}({{x}}, {y.text})", x, measure.phrase)
    else:
        text = rng.choice(measure.every if every else measure.pairs)
        value = builder.forward.apply(text, x, measure.phrase, **fields)
    state = ChainState("any", measure.magnitude, False)
    value, post = builder.operators.chain(value, plan.chain("post"), state=state)
    builder.finish(value)
    whole = f"{measure.phrase} of {'all pairs' if every else 'rows in pairs'}"
    builder.title = sentence(whole, describe(plan.chain("post")))
    file = KernelFile(builder, NAME, [Tensor("x", "x"), Tensor("y", "y")])
    result = measure.result.format(a=number)
    return _every(measure, result, file, post) if every else _pairs(measure, result, file, post)


def _updates(measure: Measure) -> list[str]:
    return [f"m = fmaxf(m, {text});" if name == "m" else f"{name} += {text};" for name, text in measure.sums]


def _every(measure: Measure, result: str, file: KernelFile, post: list[Step]) -> Draft:
    builder = file.builder
    integers = ["M", "N", "D"]
    host = "    int M = x.size(-2), N = y.size(-2), D = x.size(-1), batches = x.numel() / (M * D);\n"
    host += (
        "    auto sizes = x.sizes().vec();\n    sizes.back() = N;\n    auto out = torch::empty(sizes, x.options());\n"
    )
    declared = ", ".join(f"{name} = 0.0f" for name, _ in measure.sums)
    if builder.rng.random() < 0.75:
        store = lines(f"float v = {result};", post, "out[(batch * M + r) * N + c] = v;")
        body = TILE.format(declared=declared, update=lines(_updates(measure), indent=12), store=store)
        host += "    dim3 grid((N + 15) / 16, (M + 15) / 16, batches);\n"
        text = file.write(file.kernel(body, integers), host + file.launch("grid, dim3(16, 16)", integers))
        return Draft(builder, text, "tiled16")
    loop = "for (int j = 0; j < D; j++) {\n            float v = x[left + j], w = y[right + j];\n"
    loop += lines(_updates(measure), indent=12) + "        }"
    body = lines(
        "int left = i / N * D, right = (i / N / M * N + i % N) * D;",
        f"float {declared};",
        loop,
        f"float v = {result};",
        post,
    )
    code, launch, style = file.sweep(builder.rng, body, ["n", *integers])
    host = host.replace(", batches = x.numel() / (M * D)", "") + "    int n = out.numel();\n"
    return Draft(builder, file.write(code, host + launch), style)


def _pairs(measure: Measure, result: str, file: KernelFile, post: list[Step]) -> Draft:
    scope = draw_scope(file.builder.rng, True)
    body = f"float {', '.join(f'{name} = 0.0f' for name, _ in measure.sums)};\n{{loop}} {{{{\n"
    body += "    float v = x[base + j], w = y[base + j];\n" + lines(_updates(measure), indent=4) + "}}\n"
    body += "".join(f"<{'max' if name == 'm' else 'sum'}:{name}>\n" for name, _ in measure.sums)
    integers = ["D", *scope.integers]
    store = lines(f"float v = {result};", post, "out[row] = v;")
    text = f"{scope.start}    int base = row * D;\n{row_body(body, scope.loop, '', scope)}"
    text += f"    if ({scope.lead}) {{\n{store}    }}\n"
    kinds = {"max" if name == "m" else "sum" for name, _ in measure.sums}
    code = "".join(reduction_helper(scope, kind) for kind in sorted(kinds)) + file.kernel(text, integers)
    host = "    int D = x.size(-1), rows = x.numel() / D;\n    auto sizes = x.sizes().vec();\n    sizes.pop_back();\n"
    host += "    auto out = torch::empty(sizes, x.options());\n"
    return Draft(file.builder, file.write(code, host + file.launch(scope.grid, integers)), scope.style)
