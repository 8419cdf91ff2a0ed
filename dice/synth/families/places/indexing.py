"""Look-ups by an index tensor: gather, selection, embeddings and bags of them, one-hot, and scattered additions."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.kernel.cuda import KernelFile, Tensor, lines, when
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence

NAME = "indexing"
_STATE = ChainState("any", 8.0, False)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Sizes by letter: n table rows, d columns, b and l index positions. x is the table, y the index.

    `x` empty: no input but the index. `weight`: the table is a parameter, of nn.Embedding where {m} stands for it.
    `limit`: the letter below which indices lie. `lines` set `v` from `i`; `atomic` adds to a copy of x instead.
    """

    phrase: str
    x: str
    index: str
    limit: str
    spellings: tuple[str, ...]
    out: str
    lines: tuple[str, ...]
    sizes: str
    integers: tuple[str, ...]
    weight: str = ""
    source: str = ""  # shape of a third tensor, z
    atomic: str = ""


_SIZES = "D = x.size(1)"
_BAG = ("int r = i / D, c = i % D;", "float v = {first};", "for (int j = 0; j < L; j++) {update}")
_EMBEDDED = "D = weight.size(1)"
_ADD = "atomicAdd(&out[y[i / D] * D + i % D], z[i]);"
LOOKUPS: dict[str, Lookup] = {
    "index_select": Lookup(
        "a selection of rows",
        "nd",
        "b",
        "n",
        ("torch.index_select({x}, 0, {y})", "{x}[{y}]", "{x}.index_select(0, {y})"),
        "{y.size(0), D}",
        ("float v = x[y[i / D] * D + i % D];",),
        _SIZES,
        ("D",),
    ),
    "index_columns": Lookup(
        "a selection of columns",
        "nd",
        "b",
        "d",
        ("torch.index_select({x}, 1, {y})", "{x}[:, {y}]"),
        "{x.size(0), L}",
        ("float v = x[i / L * D + y[i % L]];",),
        "D = x.size(1), L = y.size(0)",
        ("D", "L"),
    ),
    "gather_columns": Lookup(
        "a gather along the last dimension",
        "nd",
        "nl",
        "d",
        (
            "torch.gather({x}, 1, {y})",
            "{x}.gather(1, {y})",
            "{x}.gather(-1, {y})",
            "torch.take_along_dim({x}, {y}, dim=1)",
        ),
        "{x.size(0), L}",
        ("float v = x[i / L * D + y[i]];",),
        "D = x.size(1), L = y.size(1)",
        ("D", "L"),
    ),
    "gather_rows": Lookup(
        "a gather along the first dimension",
        "nd",
        "bd",
        "n",
        ("torch.gather({x}, 0, {y})", "{x}.gather(0, {y})"),
        "{y.size(0), D}",
        ("float v = x[y[i] * D + i % D];",),
        _SIZES,
        ("D",),
    ),
    "pick_one": Lookup(
        "one element of each row",
        "nd",
        "n",
        "d",
        ("{x}.gather(1, {y}.unsqueeze(1)).squeeze(1)", "{x}[torch.arange({x}.size(0)), {y}]"),
        "{x.size(0)}",
        ("float v = x[i * D + y[i]];",),
        _SIZES,
        ("D",),
    ),
    "take": Lookup(
        "elements by their flat index",
        "nd",
        "b",
        "n",
        ("torch.take({x}, {y})", "{x}.flatten()[{y}]", "{x}.view(-1)[{y}]"),
        "{y.size(0)}",
        ("float v = x[y[i]];",),
        "",
        (),
    ),
    "embedding": Lookup(
        "an embedding",
        "",
        "bl",
        "n",
        ("{m}({y})", "F.embedding({y}, {w})", "{w}[{y}]"),
        "{y.size(0), y.size(1), D}",
        ("float v = weight[y[i / D] * D + i % D];",),
        _EMBEDDED,
        ("D",),
        "embedding",
    ),
    "embedding_sum": Lookup(
        "the sum of a bag of embeddings",
        "",
        "bl",
        "n",
        ("{m}({y}).sum(dim=1)", "F.embedding_bag({y}, {w}, mode='sum')", "F.embedding({y}, {w}).sum(1)"),
        "{y.size(0), D}",
        tuple(line.format(first="0.0f", update="v += weight[y[r * L + j] * D + c];") for line in _BAG),
        "D = weight.size(1), L = y.size(1)",
        ("D", "L"),
        "embedding",
    ),
    "embedding_mean": Lookup(
        "the mean of a bag of embeddings",
        "",
        "bl",
        "n",
        ("{m}({y}).mean(dim=1)", "F.embedding_bag({y}, {w})", "F.embedding_bag({y}, {w}, mode='mean')"),
        "{y.size(0), D}",
        (*(line.format(first="0.0f", update="v += weight[y[r * L + j] * D + c];") for line in _BAG), "v = v / L;"),
        "D = weight.size(1), L = y.size(1)",
        ("D", "L"),
        "embedding",
    ),
    "embedding_max": Lookup(
        "the maximum of a bag of embeddings",
        "",
        "bl",
        "n",
        ("{m}({y}).amax(dim=1)", "{m}({y}).max(dim=1).values"),
        "{y.size(0), D}",
        tuple(line.format(first="-INFINITY", update="v = fmaxf(v, weight[y[r * L + j] * D + c]);") for line in _BAG),
        "D = weight.size(1), L = y.size(1)",
        ("D", "L"),
        "embedding",
    ),
    "embedding_add": Lookup(
        "an embedding added to the input",
        "bld",
        "bl",
        "n",
        ("{x} + {m}({y})", "{m}({y}) + {x}"),
        "{y.size(0), y.size(1), D}",
        ("float v = x[i] + weight[y[i / D] * D + i % D];",),
        _EMBEDDED,
        ("D",),
        "embedding",
    ),
    "position_add": Lookup(
        "a learned position added to an embedding",
        "",
        "bl",
        "n",
        ("{m}({y}) + {w2}",),
        "{y.size(0), y.size(1), D}",
        ("float v = weight[y[i / D] * D + i % D] + bias[i % (L * D)];",),
        "D = weight.size(1), L = y.size(1)",
        ("D", "L"),
        "embedding",
    ),
    "one_hot": Lookup(
        "a one-hot encoding times a matrix",
        "nd",
        "b",
        "n",
        ("F.one_hot({y}, {x}.size(0)).float() @ {x}", "F.one_hot({y}, num_classes={x}.shape[0]).to({x}.dtype) @ {x}"),
        "{y.size(0), D}",
        ("float v = x[y[i / D] * D + i % D];",),
        _SIZES,
        ("D",),
    ),
    "index_add": Lookup(
        "an addition to chosen rows",
        "nd",
        "b",
        "n",
        ("{x}.index_add(0, {y}, {z})", "torch.index_add({x}, 0, {y}, {z})"),
        "",
        (
            "int r = i / D, c = i % D;",
            "float v = x[i];",
            "for (int j = 0; j < L; j++)",
            "    if (y[j] == r) v += z[j * D + c];",
        ),
        "D = x.size(1), L = y.size(0)",
        ("D", "L"),
        "",
        "bd",
        _ADD,
    ),
    "scatter_add": Lookup(
        "a scattered addition",
        "nd",
        "bd",
        "n",
        ("{x}.scatter_add(0, {y}, {z})", "torch.scatter_add({x}, 0, {y}, {z})"),
        "",
        (
            "int r = i / D, c = i % D;",
            "float v = x[i];",
            "for (int j = 0; j < L; j++)",
            "    if (y[j * D + c] == r) v += z[j * D + c];",
        ),
        "D = x.size(1), L = y.size(0)",
        ("D", "L"),
        "",
        "bd",
        "atomicAdd(&out[y[i] * D + i % D], z[i]);",
    ),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(LOOKUPS))
    lookup = LOOKUPS[core]
    features = (f"index={len(lookup.index)}",)
    least = 0 if lookup.weight or lookup.atomic else 1  # a look-up alone computes nothing: a chain follows it
    post = draw_chain(rng, max(least, chain_length(rng, (2, 4, 3))), _STATE)
    return Plan(NAME, core, chains(post=post), features)


def render(plan: Plan, rng: random.Random) -> Draft:
    lookup = LOOKUPS[plan.core]
    builder = ProblemBuilder(rng, keep_inputs=True)
    marks = {
        "n": builder.tensors.dimension("rows", rng.choice((5, 8, 16, 30, 50, 100)), rng.choice((1000, 4096, 8192))),
        "d": builder.tensors.dimension("features", rng.choice((4, 8, 15, 16, 32, 64)), rng.choice((128, 256, 512))),
        "b": builder.tensors.dimension("batch", rng.choice((1, 3, 4, 8, 16, 20)), rng.choice((32, 64, 128))),
        "l": builder.tensors.dimension("sequence", rng.choice((2, 4, 7, 10, 16)), rng.choice((64, 128, 256))),
    }
    x = builder.tensors.input("x", [marks[letter] for letter in lookup.x], "torch.randn({shape})") if lookup.x else None
    make = f"torch.randint(0, {marks[lookup.limit]}, ({{shape}},))"
    y = builder.tensors.input("index", [marks[letter] for letter in lookup.index], make)
    fields = {"y": y.text}
    tensors = [*when(x, Tensor("x", "x")), Tensor("y", "y", "int64_t")]
    if lookup.source:
        z = builder.tensors.input("z", [marks[letter] for letter in lookup.source], "torch.randn({shape})")
        fields["z"] = z.text
        tensors.append(Tensor("z", "z"))
    text = rng.choice(lookup.spellings)
    if lookup.weight:
        attribute, spelled = _table(builder, text, marks)
        fields |= spelled
        tensors.append(Tensor("weight", attribute))
    if "{w2}" in text:
        length, width = builder.constructor.argument(("max_len", "positions"), marks["l"], "int"), fields.pop("size")
        fields["w2"] = builder.attributes.add("parameter", f"nn.Parameter(torch.randn({length}, {width}))", shared=True)
        tensors.append(Tensor("bias", fields["w2"]))
    fields.pop("size", None)
    text = text.replace("{m}", fields.pop("m", "")).replace("{w}", fields.pop("w", ""))
    value = builder.forward.apply(text if x else text.replace("{y}", "{x}"), x or y, lookup.phrase, **fields)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(lookup.phrase, describe(plan.chain("post")))

    file = KernelFile(builder, NAME, tensors)
    sizes = f"    int {lookup.sizes};\n" if lookup.sizes else ""
    if lookup.atomic and not post and rng.random() < 0.75:
        code = file.kernel(
            f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) {lookup.atomic}\n", ["n", "D"]
        )
        host = "    int D = x.size(1), n = z.numel();\n    auto out = x.clone();\n"
        return Draft(builder, file.write(code, host + file.launch("(n + 255) / 256, 256", ["n", "D"])), "atomic")
    code, launch, style = file.sweep(rng, lines(lookup.lines, post), ["n", *lookup.integers])
    made = f"torch::empty({lookup.out}, {'x' if x else 'weight'}.options())" if lookup.out else "torch::empty_like(x)"
    return Draft(builder, file.write(code, f"{sizes}    auto out = {made};\n    int n = out.numel();\n{launch}"), style)


def _table(builder: ProblemBuilder, text: str, marks: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The table of embeddings: how ModelNew spells it, and what fills {m} (the layer) or {w} (its weight)."""
    count = builder.constructor.argument(
        ("num_embeddings", "vocab_size", "num_tokens", "table_size"), marks["n"], "int"
    )
    width = builder.constructor.argument(("embedding_dim", "embed_dim", "d_model", "dim"), marks["d"], "int")
    if "{m}" in text or builder.rng.random() < 0.4:
        layer = builder.attributes.add("embedding", f"nn.Embedding({count}, {width})", shared=True)
        return f"{layer}.weight", {"m": layer, "w": f"{layer}.weight", "size": width}
    weight = builder.attributes.add("weight", f"nn.Parameter(torch.randn({count}, {width}))", shared=True)
    return weight, {"w": weight, "size": width}
