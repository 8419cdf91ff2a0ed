"""Values put where an index says: scattered, added to rows, counted, gathered in batches."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from dice.synth.kernel.cuda import KernelFile, Tensor, lines
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain, rounded
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence
from dice.synth.problem.tensors import Value

NAME = "scatter"
_STATE = ChainState("any", 10.0, False)


@dataclass(frozen=True, slots=True)
class Scatter:
    """Shapes by letter: n rows, d columns, b positions of rows, l of columns, t tokens. `index`: shape of y; `limit`:
    the letter below which its numbers lie, or how an index without repeats is made. `lines` set `v` from the output's
    place `i`. `direct`: what a thread for each element of the source (`each`) does to a copy of x, or to zeros.
    """

    phrase: str
    x: str
    index: str
    limit: str
    spellings: tuple[str, ...]
    lines: tuple[str, ...]
    out: str = ""  # of the output's shape; empty: as x
    sizes: str = "D = x.size(1)"
    z: str = ""
    weight: str = ""  # shape of a parameter, the last tensor
    direct: str = ""
    each: str = "z"
    scalar: str = ""


_EACH = ("int r = i / D, c = i % D;", "float v = x[i];", "for (int j = 0; j < L; j++) {update}")
_ROWS = "D = x.size(1), L = y.size(0)"
_COLUMNS = "D = x.size(1), L = y.size(1)"


def _each(template: tuple[str, ...], update: str) -> tuple[str, ...]:
    return tuple(line.replace("{update}", update) for line in template)


SCATTERS: dict[str, Scatter] = {
    "scatter": Scatter(
        "scattering into columns",
        "nd",
        "nl",
        "torch.rand({n}, {d}).argsort(dim=1)[:, :{l}]",
        ("{x}.scatter(1, {y}, {z})", "torch.scatter({x}, 1, {y}, {z})", "{x}.scatter(dim=-1, index={y}, src={z})"),
        _each(_EACH, "if (y[r * L + j] == c) v = z[r * L + j];"),
        sizes=_COLUMNS,
        z="nl",
        direct="out[i / L * D + y[i]] = z[i];",
    ),
    "scatter_number": Scatter(
        "a number scattered into columns",
        "nd",
        "nl",
        "d",
        ("{x}.scatter(1, {y}, {a})", "torch.scatter({x}, 1, {y}, {a})", "{x}.scatter(-1, {y}, value={a})"),
        _each(_EACH, "if (y[r * L + j] == c) v = {a};"),
        sizes=_COLUMNS,
        scalar="value",
        direct="out[i / L * D + y[i]] = {a};",
        each="y",
    ),
    "scatter_add_columns": Scatter(
        "a scattered addition to columns",
        "nd",
        "nl",
        "d",
        ("{x}.scatter_add(1, {y}, {z})", "torch.scatter_add({x}, 1, {y}, {z})", "{x}.scatter_add(-1, {y}, {z})"),
        _each(_EACH, "if (y[r * L + j] == c) v += z[r * L + j];"),
        sizes=_COLUMNS,
        z="nl",
        direct="atomicAdd(&out[i / L * D + y[i]], z[i]);",
    ),
    "scatter_zeros": Scatter(
        "a scattered sum",
        "nl",
        "nl",
        "d",
        ("torch.zeros({x}.size(0), {d}, device={x}.device).scatter_add(1, {y}, {x})",)
        + ("{x}.new_zeros({x}.size(0), {d}).scatter_add_(1, {y}, {x})",),
        (
            "int r = i / D, c = i % D;",
            "float v = 0.0f;",
            "for (int j = 0; j < L; j++) if (y[r * L + j] == c) v += x[r * L + j];",
        ),
        "{x.size(0), D}",
        "L = x.size(1), D = {d}",
        direct="atomicAdd(&out[i / L * D + y[i]], x[i]);",
        each="x",
    ),
    "scatter_max": Scatter(
        "a scattered maximum",
        "nd",
        "nl",
        "d",
        ("{x}.scatter_reduce(1, {y}, {z}, reduce='amax')", "torch.scatter_reduce({x}, 1, {y}, {z}, 'amax')"),
        _each(_EACH, "if (y[r * L + j] == c) v = fmaxf(v, z[r * L + j]);"),
        sizes=_COLUMNS,
        z="nl",
    ),
    "scatter_min": Scatter(
        "a scattered minimum",
        "nd",
        "nl",
        "d",
        ("{x}.scatter_reduce(1, {y}, {z}, reduce='amin')", "torch.scatter_reduce({x}, -1, {y}, {z}, 'amin')"),
        _each(_EACH, "if (y[r * L + j] == c) v = fminf(v, z[r * L + j]);"),
        sizes=_COLUMNS,
        z="nl",
    ),
    "scatter_mean": Scatter(
        "a scattered mean",
        "nd",
        "nl",
        "d",
        ("{x}.scatter_reduce(1, {y}, {z}, reduce='mean')", "torch.scatter_reduce({x}, 1, {y}, {z}, reduce='mean')"),
        (
            "int r = i / D, c = i % D, count = 1;",
            "float v = x[i];",
            "for (int j = 0; j < L; j++) {",
            "    if (y[r * L + j] == c) {",
            "        v += z[r * L + j];",
            "        count++;",
            "    }",
            "}",
            "v /= count;",
        ),
        sizes=_COLUMNS,
        z="nl",
    ),
    "index_copy": Scatter(
        "rows replaced",
        "nd",
        "b",
        "torch.randperm({n})[:{b}]",
        ("{x}.index_copy(0, {y}, {z})", "torch.index_copy({x}, 0, {y}, {z})"),
        _each(_EACH, "if (y[j] == r) v = z[j * D + c];"),
        sizes=_ROWS,
        z="bd",
        direct="out[y[i / D] * D + i % D] = z[i];",
    ),
    "index_fill": Scatter(
        "rows filled",
        "nd",
        "b",
        "n",
        ("{x}.index_fill(0, {y}, {a})", "torch.index_fill({x}, 0, {y}, {a})"),
        _each(_EACH, "if (y[j] == r) v = {a};"),
        sizes=_ROWS,
        scalar="value",
    ),
    "index_fill_columns": Scatter(
        "columns filled",
        "nd",
        "b",
        "d",
        ("{x}.index_fill(1, {y}, {a})", "torch.index_fill({x}, -1, {y}, {a})"),
        _each(_EACH, "if (y[j] == c) v = {a};"),
        sizes=_ROWS,
        scalar="value",
    ),
    "index_add_scaled": Scatter(
        "scaled rows added",
        "nd",
        "b",
        "n",
        ("{x}.index_add(0, {y}, {z}, alpha={a})", "torch.index_add({x}, 0, {y}, {z}, alpha={a})"),
        _each(_EACH, "if (y[j] == r) v += {a} * z[j * D + c];"),
        sizes=_ROWS,
        z="bd",
        scalar="scale",
        direct="atomicAdd(&out[y[i / D] * D + i % D], {a} * z[i]);",
    ),
    "index_add_columns": Scatter(
        "columns added",
        "nd",
        "l",
        "d",
        ("{x}.index_add(1, {y}, {z})", "torch.index_add({x}, -1, {y}, {z})"),
        _each(_EACH, "if (y[j] == c) v += z[r * L + j];"),
        sizes=_ROWS,
        z="nl",
        direct="atomicAdd(&out[i / L * D + y[i % L]], z[i]);",
    ),
    "put_added": Scatter(
        "rows accumulated by an index",
        "nd",
        "b",
        "n",
        ("{x}.index_put(({y},), {z}, accumulate=True)", "torch.index_put({x}, ({y},), {z}, accumulate=True)"),
        _each(_EACH, "if (y[j] == r) v += z[j * D + c];"),
        sizes=_ROWS,
        z="bd",
        direct="atomicAdd(&out[y[i / D] * D + i % D], z[i]);",
    ),
    "segment_sum": Scatter(
        "sums by group",
        "bd",
        "b",
        "n",
        ("{x}.new_zeros({n}, {x}.size(1)).index_add(0, {y}, {x})",)
        + ("torch.zeros({n}, {x}.size(1), device={x}.device).index_add_(0, {y}, {x})",),
        (
            "int r = i / D, c = i % D;",
            "float v = 0.0f;",
            "for (int j = 0; j < L; j++) if (y[j] == r) v += x[j * D + c];",
        ),
        "{N, D}",
        "L = x.size(0), D = x.size(1), N = {n}",
        direct="atomicAdd(&out[y[i / D] * D + i % D], x[i]);",
        each="x",
    ),
    "histogram": Scatter(
        "weights counted by group",
        "b",
        "b",
        "n",
        ("{x}.new_zeros({n}).scatter_add(0, {y}, {x})", "{x}.new_zeros({n}).index_add(0, {y}, {x})"),
        ("float v = 0.0f;", "for (int j = 0; j < L; j++) if (y[j] == i) v += x[j];"),
        "{N}",
        "L = x.size(0), N = {n}",
        direct="atomicAdd(&out[y[i]], x[i]);",
        each="x",
    ),
    "one_hot": Scatter(
        "a one-hot encoding",
        "",
        "b",
        "n",
        ("F.one_hot({y}, {n}).float()", "F.one_hot({y}, num_classes={n}).to(torch.float32)")
        + ("torch.zeros({y}.size(0), {n}, device={y}.device).scatter_(1, {y}.unsqueeze(1), 1.0)",),
        ("float v = y[i / N] == i % N ? 1.0f : 0.0f;",),
        "{y.size(0), N}",
        "N = {n}",
    ),
    "smoothed_one_hot": Scatter(
        "a smoothed one-hot encoding",
        "",
        "bt",
        "n",
        ("F.one_hot({y}, {n}).float() * (1 - {a}) + {a} / {n}",)
        + ("F.one_hot({y}, num_classes={n}) * (1 - {a}) + {a} / {n}",),
        ("float v = (y[i / N] == i % N ? 1.0f - {a} : 0.0f) + {a} / N;",),
        "{y.size(0), y.size(1), N}",
        "N = {n}",
        scalar="smoothing",
    ),
    "batch_gather": Scatter(
        "tokens gathered for each sample",
        "btd",
        "bl",
        "t",
        ("torch.gather({x}, 1, {y}.unsqueeze(-1).expand(-1, -1, {x}.size(-1)))",)
        + ("{x}[torch.arange({x}.size(0)).unsqueeze(1), {y}]", "torch.take_along_dim({x}, {y}.unsqueeze(-1), dim=1)"),
        ("int b = i / D / L;", "float v = x[(b * T + y[i / D]) * D + i % D];"),
        "{x.size(0), L, D}",
        "T = x.size(1), D = x.size(2), L = y.size(1)",
    ),
    "weighted_bag": Scatter(
        "a weighted bag of embeddings",
        "bl",
        "bl",
        "n",
        ("F.embedding_bag({y}, {w}, mode='sum', per_sample_weights={x})", "({w}[{y}] * {x}.unsqueeze(-1)).sum(dim=1)")
        + ("(F.embedding({y}, {w}) * {x}[..., None]).sum(1)",),
        (
            "int r = i / D, c = i % D;",
            "float v = 0.0f;",
            "for (int j = 0; j < L; j++) v += x[r * L + j] * w[y[r * L + j] * D + c];",
        ),
        "{x.size(0), D}",
        "L = x.size(1), D = w.size(1)",
        weight="nd",
    ),
    "masked_embedding": Scatter(
        "embeddings without padding",
        "",
        "bl",
        "n",
        ("F.embedding({y}, {w}) * ({y} != 0).unsqueeze(-1)", "{w}[{y}] * ({y} > 0).float().unsqueeze(-1)"),
        ("float v = y[i / D] != 0 ? w[y[i / D] * D + i % D] : 0.0f;",),
        "{y.size(0), y.size(1), D}",
        "D = w.size(1)",
        weight="nd",
    ),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(SCATTERS))
    least = 0 if SCATTERS[core].direct or SCATTERS[core].weight else 1
    post = draw_chain(rng, max(least, chain_length(rng, (3, 4, 2))), _STATE)
    return Plan(NAME, core, chains(post=post), (f"index={len(SCATTERS[core].index)}",))


# letter -> role of the dimension, small and large sizes
SIZES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "n": ("rows", (16, 20, 32, 50), (1000, 4096)),
    "d": ("features", (16, 20, 33, 48), (128, 256, 512)),
    "b": ("batch", (3, 4, 8, 12), (64, 128)),
    "l": ("length", (2, 4, 7, 12), (16, 64, 100)),
    "t": ("sequence", (3, 5, 9, 16), (128, 256)),
}
_ARGUMENTS = {"n": ("num_embeddings", "vocab_size"), "d": ("embedding_dim", "embed_dim")}


def render(plan: Plan, rng: random.Random) -> Draft:
    scatter = SCATTERS[plan.core]
    builder = ProblemBuilder(rng, keep_inputs=True)
    text = rng.choice(scatter.spellings)
    fields, tensors = _inputs(scatter, builder, text)
    number = ""
    if scatter.scalar:
        drawn = rounded(rng, 0.05, 0.4) if scatter.scalar == "smoothing" else rounded(rng, 0.2, 2.0)
        scalar = builder.constructor.scalar(scatter.scalar, drawn)
        fields["a"], number = scalar.forward, scalar.cuda
    first = Value(fields.pop("x" if scatter.x else "y"))
    value = builder.forward.apply(text if scatter.x else text.replace("{y}", "{x}"), first, scatter.phrase, **fields)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(scatter.phrase, describe(plan.chain("post")))
    file = KernelFile(builder, NAME, tensors)
    sizes = scatter.sizes.replace("{n}", fields.get("n", "")).replace("{d}", fields.get("d", ""))
    host = f"    int {sizes};\n"
    if scatter.direct and not post and rng.random() < 0.75:
        step = scatter.direct.replace("{a}", number)
        integers = ["n", *_read(sizes, step)]
        body = f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) {step}\n"
        made = f"torch::zeros({scatter.out}, x.options())" if scatter.out else "x.clone()"
        host += f"    int n = {scatter.each}.numel();\n    auto out = {made};\n"
        host += file.launch("(n + 255) / 256, 256", integers)
        return Draft(builder, file.write(file.kernel(body, integers), host), "direct")
    body = "\n".join(scatter.lines).replace("{a}", number)
    like = "x" if scatter.x else "w" if scatter.weight else "y"
    kind = f"{like}.options()" + (".dtype(torch::kFloat)" if like == "y" else "")
    made = f"torch::empty({scatter.out}, {kind})" if scatter.out else "torch::empty_like(x)"
    code, launch, style = file.sweep(rng, lines(body.split("\n"), post), ["n", *_read(sizes, body)])
    host += f"    auto out = {made};\n    int n = out.numel();\n"
    return Draft(builder, file.write(code, host + launch), style)


def _read(sizes: str, text: str) -> list[str]:
    """Names of the sizes that the kernel's text reads."""
    names = [part.split(" = ")[0] for part in sizes.split(", ")]
    return [name for name in names if re.search(rf"\b{name}\b", text)]


def _inputs(scatter: Scatter, builder: ProblemBuilder, text: str) -> tuple[dict[str, str], list[Tensor]]:
    """What fills the fields of a spelling, and the kernel's tensors."""
    rng, fixed = builder.rng, len(scatter.limit) > 1
    used = "".join((scatter.x, scatter.index, scatter.z, scatter.weight, "" if fixed else scatter.limit))
    marks = {
        letter: builder.tensors.dimension(role, rng.choice(small), rng.choice(large))
        for letter, (role, small, large) in SIZES.items()
        if letter in used
    }

    def shape(letters: str) -> list[str]:
        return [marks[letter] for letter in letters]

    fields, tensors = {}, []
    if scatter.x:
        fields["x"] = builder.tensors.input("x", shape(scatter.x), "torch.randn({shape})").text
        tensors.append(Tensor("x", "x"))
    make = scatter.limit.format(**marks) if fixed else f"torch.randint(0, {marks[scatter.limit]}, ({{shape}},))"
    fields["y"] = builder.tensors.input("index", shape(scatter.index), make).text
    tensors.append(Tensor("y", "y", "int64_t"))
    if scatter.z:
        fields["z"] = builder.tensors.input("z", shape(scatter.z), "torch.randn({shape})").text
        tensors.append(Tensor("z", "z"))
    if scatter.weight:
        sizes = [builder.constructor.argument(_ARGUMENTS[letter], marks[letter], "int") for letter in scatter.weight]
        fields["w"] = builder.attributes.parameter("weight", ", ".join(sizes))
        tensors.append(Tensor("w", fields["w"]))
        return fields, tensors
    for letter in "nd":
        if f"{{{letter}}}" in text:  # a number, the same in both sizes and in the kernel
            dimension = builder.tensors.size(marks[letter])
            dimension.large = dimension.small
            fields[letter] = str(dimension.small)
    return fields, tensors
