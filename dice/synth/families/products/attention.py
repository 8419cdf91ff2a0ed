"""Attention, softmax(QK^T)V: of a sequence with itself or another, causal, windowed, with an added mask; one query."""

from __future__ import annotations

import random

from dice.synth.kernel.cuda import BLOCK_SHUFFLE, KernelFile, Tensor, reduction_helper
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain, statements
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence
from dice.synth.problem.tensors import Value

NAME = "attention"
CORES = {"self": 5.0, "cross": 3.0, "decode": 2.0}
_STATE = ChainState("any", 4.5, False)
_SCALES = ("sqrt", "sqrt", "none", "constant")

# In all of them: `row` is the query's number within its head, `s` its score against key j, after {mask}.
SCORES = """    extern __shared__ float p[];
    int row = blockIdx.x % TQ, head = blockIdx.x / TQ;
{offset}    q += row * D;
    float m = -INFINITY;
    for (int j = threadIdx.x; j < TK; j += 256) {{
        float s = 0.0f;
        for (int d = 0; d < D; d++) s += q[d] * k[j * D + d];
        s *= scale_by;
{mask}        p[j] = s;
        m = fmaxf(m, s);
    }}
    m = block_max(m);
    float total = 0.0f;
    for (int j = threadIdx.x; j < TK; j += 256) {{
        p[j] = expf(p[j] - m);
        total += p[j];
    }}
    total = block_sum(total);
    for (int d = threadIdx.x; d < D; d += 256) {{
        float v = 0.0f;
        for (int j = 0; j < TK; j++) v += p[j] * value[j * D + d];
        v = v / total;
{post}        out[blockIdx.x * D + d] = v;
    }}
"""
WARP = """    int lane = threadIdx.x % 32, index = blockIdx.x * 4 + threadIdx.x / 32;
    if (index >= n) return;
    int row = index % TQ, head = index / TQ;
{offset}    q += row * D;
    float m = -INFINITY, total = 0.0f, sum[4] = {{}};
    for (int j = 0; j < TK; j++) {{
        float s = 0.0f;
        for (int d = lane; d < D; d += 32) s += q[d] * k[j * D + d];
        for (int t = 16; t > 0; t /= 2) s += __shfl_xor_sync(0xffffffff, s, t);
        s *= scale_by;
{mask}        float high = fmaxf(m, s), keep = m == -INFINITY ? 0.0f : expf(m - high);
        float part = s == -INFINITY ? 0.0f : expf(s - high);
        total = total * keep + part;
        for (int t = 0; t < 4; t++)
            if (lane + t * 32 < D) sum[t] = sum[t] * keep + part * value[j * D + lane + t * 32];
        m = high;
    }}
    for (int t = 0; t < 4; t++) {{
        int d = lane + t * 32;
        if (d < D) {{
            float v = sum[t] / total;
{post}            out[index * D + d] = v;
        }}
    }}
"""
THREAD = """    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n) return;
    int row = index % TQ, head = index / TQ;
{offset}    q += row * D;
    float m = -INFINITY, total = 0.0f, sum[128];
    for (int d = 0; d < D; d++) sum[d] = 0.0f;
    for (int j = 0; j < TK; j++) {{
        float s = 0.0f;
        for (int d = 0; d < D; d++) s += q[d] * k[j * D + d];
        s *= scale_by;
{mask}        float high = fmaxf(m, s), keep = m == -INFINITY ? 0.0f : expf(m - high);
        float part = s == -INFINITY ? 0.0f : expf(s - high);
        total = total * keep + part;
        for (int d = 0; d < D; d++) sum[d] = sum[d] * keep + part * value[j * D + d];
        m = high;
    }}
    for (int d = 0; d < D; d++) {{
        float v = sum[d] / total;
{post}        out[index * D + d] = v;
    }}
"""
TILE = """    __shared__ float ks[16][128], vs[16][128];
    int row = blockIdx.x * 64 + threadIdx.x, head = blockIdx.y;
{offset}    float own[128], m = -INFINITY, total = 0.0f, sum[128];
    for (int d = 0; d < D; d++) {{
        own[d] = row < TQ ? q[row * D + d] : 0.0f;
        sum[d] = 0.0f;
    }}
    for (int first = 0; first < TK; first += 16) {{
        for (int t = threadIdx.x; t < 16 * D; t += 64) {{
            int j = first + t / D;
            ks[t / D][t % D] = j < TK ? k[j * D + t % D] : 0.0f;
            vs[t / D][t % D] = j < TK ? value[j * D + t % D] : 0.0f;
        }}
        __syncthreads();
        for (int j = first; j < min(first + 16, TK) && row < TQ; j++) {{
            float s = 0.0f;
            for (int d = 0; d < D; d++) s += own[d] * ks[j - first][d];
            s *= scale_by;
{mask}            float high = fmaxf(m, s), keep = m == -INFINITY ? 0.0f : expf(m - high);
            float part = s == -INFINITY ? 0.0f : expf(s - high);
            total = total * keep + part;
            for (int d = 0; d < D; d++) sum[d] = sum[d] * keep + part * vs[j - first][d];
            m = high;
        }}
        __syncthreads();
    }}
    if (row >= TQ) return;
    for (int d = 0; d < D; d++) {{
        float v = sum[d] / total;
{post}        out[(head * TQ + row) * D + d] = v;
    }}
"""
# style -> body, spaces before the mask's and the chain's lines, launch
STYLES: dict[str, tuple[str, int, int, str]] = {
    "scores_in_shared": (SCORES, 8, 8, "n, 256, TK * sizeof(float)"),
    "warp_online": (WARP, 8, 12, "(n + 3) / 4, 128"),
    "thread_online": (THREAD, 8, 8, "(n + 63) / 64, 64"),
    "tiled_online": (TILE, 12, 8, "dim3((TQ + 63) / 64, n / TQ), 64"),
}
# mask -> kernel's line, and the text that changes the scores {s}
MASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "none": ("", ()),
    "causal": (
        "if (j > row) s = -INFINITY;",
        (
            "{s}.masked_fill(torch.ones_like({s}).triu(1) > 0, float('-inf'))",
            "{s}.masked_fill(torch.ones_like({s}).tril() == 0, float('-inf'))",
            "torch.where(torch.ones_like({s}).tril() > 0, {s}, torch.full_like({s}, float('-inf')))",
        ),
    ),
    "window": (
        "if (j > row || j + WIDTH < row) s = -INFINITY;",
        ("{s}.masked_fill(torch.ones_like({s}).tril().triu(-WIDTH) == 0, float('-inf'))",),
    ),
    "added": ("s += mask[row * TK + j];", ("{s} + {y}",)),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choices(tuple(CORES), tuple(CORES.values()))[0]
    masks = ("none", "causal", "added", "window") if core == "self" else ("none", "added")
    mask = rng.choices(masks, (4, 4, 2, 1)[: len(masks)])[0]
    features = [f"mask={mask}", rng.choice(("heads=own", "heads=own", "heads=none")), f"scale={rng.choice(_SCALES)}"]
    return Plan(NAME, core, chains(post=draw_chain(rng, chain_length(rng, (4, 2, 1)), _STATE)), tuple(features))


def render(plan: Plan, rng: random.Random) -> Draft:
    builder = ProblemBuilder(rng, keep_inputs=True)
    mask, heads, scale = (item.partition("=")[2] for item in plan.features)
    batch = [builder.tensors.dimension("batch", rng.choice((1, 2, 3)), rng.choice((2, 4, 8)))]
    if heads == "own":
        batch.append(builder.tensors.dimension("heads", rng.choice((1, 2, 4)), rng.choice((8, 12, 16))))
    queries = builder.tensors.dimension("sequence", rng.choice((4, 7, 12, 16, 20, 33)), rng.choice((256, 512, 1024)))
    keys = queries
    if plan.core == "cross":
        keys = builder.tensors.dimension("sequence", rng.choice((5, 8, 17, 24, 32)), rng.choice((256, 512, 1000)))
    if plan.core == "decode":
        queries, keys = (
            "1",
            builder.tensors.dimension("sequence", rng.choice((16, 31, 64, 100)), rng.choice((1024, 2048))),
        )
    width = builder.tensors.dimension("head_size", rng.choice((4, 8, 16, 20, 32, 64)), rng.choice((32, 64, 128)))
    q = builder.tensors.input("query", [*batch, queries, width], "torch.randn({shape})")
    k = builder.tensors.input("key", [*batch, keys, width], "torch.randn({shape})")
    v = builder.tensors.input("value", [*batch, keys, width], "torch.randn({shape})")
    added = builder.tensors.input("mask", [queries, keys], "torch.randn({shape})") if mask == "added" else None
    reach = str(rng.choice((2, 3, 4, 8)))
    value, factor = _spell(builder, (q, k, v, added), mask, scale, reach)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    words = {"none": "", "causal": "causal ", "window": "sliding-window ", "added": "masked "}[mask]
    kind = {"self": "self-attention", "cross": "cross-attention", "decode": "attention of one query"}[plan.core]
    builder.title = sentence(f"{words}{kind}", describe(plan.chain("post")))

    tensors = [Tensor("q", "q"), Tensor("k", "k"), Tensor("value", "value")]
    tensors += [Tensor("mask", "mask")] if added else []
    file = KernelFile(builder, NAME, tensors)
    style = rng.choice(tuple(STYLES))
    body, mask_depth, post_depth, launch = STYLES[style]
    line = MASKS[mask][0].replace("WIDTH", reach)
    text = body.format(
        mask=f"{' ' * mask_depth}{line}\n" if line else "",
        post=statements(post, post_depth),
        offset="    q += head * TQ * D;\n    k += head * TK * D;\n    value += head * TK * D;\n",
    )
    text = text.replace("scale_by", factor) if factor else text.replace(f"{' ' * mask_depth}s *= scale_by;\n", "")
    integers = ["n", "TQ", "TK", "D"]
    helpers = "".join(reduction_helper(BLOCK_SHUFFLE, kind) for kind in ("max", "sum")) if body is SCORES else ""
    host = "    int TQ = q.size(-2), TK = k.size(-2), D = q.size(-1), n = q.numel() / D;\n"
    host += "    auto out = torch::empty_like(q);\n"
    return Draft(
        builder, file.write(helpers + file.kernel(text, integers), host + file.launch(launch, integers)), style
    )


def _spell(
    builder: ProblemBuilder, values: tuple[Value, Value, Value, Value | None], mask: str, scale: str, reach: str
) -> tuple[Value, str]:
    """The attention's value, and the factor of the scores in CUDA (empty: none)."""
    rng = builder.rng
    q, k, v, added = values
    constant = rng.choice((0.125, 0.25, 0.5, 0.1))
    cuda = {"sqrt": "rsqrtf((float)D)", "none": "", "constant": f"{constant!r}f"}[scale]
    if mask != "window" and rng.random() < 0.35:
        options = [added.text if rng.random() < 0.3 else f"attn_mask={added.text}"] if added else []
        options += ["is_causal=True"] if mask == "causal" else []
        options += {"sqrt": [], "none": ["scale=1.0"], "constant": [f"scale={constant}"]}[scale]
        text = ", ".join(["{x}", k.text, v.text, *options])
        return builder.forward.apply(f"F.scaled_dot_product_attention({text})", q, "attention"), cuda
    turned = rng.choice(("{k}.transpose(-2, -1)", "{k}.transpose(-1, -2)", "{k}.mT")).format(k=k.text)
    product = rng.choice((f"{{x}} @ {turned}", f"torch.matmul({{x}}, {turned})"))
    divided = {
        "sqrt": ("({p}) / math.sqrt({q}.size(-1))", "({p}) * ({q}.shape[-1] ** -0.5)", "({p}) / ({q}.size(-1) ** 0.5)"),
        "none": ("{p}",),
        "constant": (f"({{p}}) * {constant}",),
    }[scale]
    builder.forward.flow = "fresh"
    scores = builder.forward.apply(rng.choice(divided).format(p=product, q=q.text), q, "scores")
    forms = MASKS[mask][1]
    if forms:
        scores = builder.forward.bind(scores)
        text = rng.choice(forms).replace("WIDTH", reach).replace("{s}", "{x}")
        scores = builder.forward.apply(text, scores, "mask", **({"y": added.text} if added else {}))
    builder.forward.flow = rng.choice(("fresh", "nested"))
    soft = rng.choice(("torch.softmax({x}, dim=-1)", "F.softmax({x}, dim=-1)", "{x}.softmax(dim=-1)"))
    weights = builder.forward.apply(soft, scores, "weights")
    return builder.forward.apply(
        rng.choice((f"torch.matmul({{x}}, {v.text})", f"{{x}} @ {v.text}")), weights, "output"
    ), cuda
