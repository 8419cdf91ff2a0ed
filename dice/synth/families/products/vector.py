"""Products with vectors and diagonals: matrix-vector, vector-matrix, row-wise and full dot products, outer products."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dice.synth.families.products.matmul import sampler, size
from dice.synth.kernel.cuda import (
    BLOCK_SHUFFLE,
    BLOCK_TREE,
    THREAD,
    WARP,
    KernelFile,
    Tensor,
    lines,
    reduction_helper,
    when,
)
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chain_length, chains, draw_chain, statements
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence

NAME = "vector"
_STATE = ChainState("any", 18.0, False)


@dataclass(frozen=True, slots=True)
class Form:
    """Operands by letter (b, m, n, k) and the element of the product at output `row` and position `j` of the sum.

    `sizes`: host declarations of the integers; `wide`: neighbouring rows lie side by side, so a thread takes one each.
    """

    phrase: str
    a: str
    b: str
    out: str
    spellings: tuple[str, ...]
    element: str
    sizes: str
    integers: tuple[str, ...] = ()
    wide: bool = False


SUMS: dict[str, Form] = {
    "matvec": Form(
        "a matrix-vector product",
        "mk",
        "k",
        "m",
        (
            "torch.mv({x}, {y})",
            "{x} @ {y}",
            "torch.matmul({x}, {y})",
            "({x} * {y}).sum(dim=1)",
            "{x}.mv({y})",
            "torch.einsum('ij,j->i', {x}, {y})",
            "{x}.matmul({y})",
        ),
        "a[row * D + j] * b[j]",
        "D = a.size(1), rows = a.size(0)",
    ),
    "matvec_column": Form(
        "a matrix times a column",
        "mk",
        "k1",
        "m1",
        ("torch.matmul({x}, {y})", "{x} @ {y}", "torch.mm({x}, {y})", "torch.einsum('ij,jk->ik', {x}, {y})"),
        "a[row * D + j] * b[j]",
        "D = a.size(1), rows = a.size(0)",
    ),
    "batched_matvec": Form(
        "matrix-vector products over a batch",
        "bmk",
        "bk",
        "bm",
        (
            "torch.bmm({x}, {y}.unsqueeze(2)).squeeze(2)",
            "torch.einsum('bmk,bk->bm', {x}, {y})",
            "({x} @ {y}.unsqueeze(-1)).squeeze(-1)",
            "({x} * {y}.unsqueeze(1)).sum(dim=-1)",
        ),
        "a[row * D + j] * b[row / M * D + j]",
        "D = a.size(2), M = a.size(1), rows = a.size(0) * M",
        ("M",),
    ),
    "vecmat": Form(
        "a vector-matrix product",
        "k",
        "kn",
        "n",
        (
            "{x} @ {y}",
            "torch.matmul({x}, {y})",
            "{y}.T @ {x}",
            "torch.mv({y}.t(), {x})",
            "torch.einsum('k,kn->n', {x}, {y})",
            "torch.einsum('i,ij->j', {x}, {y})",
        ),
        "a[j] * b[j * rows + row]",
        "D = a.size(0), rows = b.size(1)",
        (),
        True,
    ),
    "row_dot": Form(
        "the dot product of each pair of rows",
        "mk",
        "mk",
        "m",
        (
            "({x} * {y}).sum(dim=-1)",
            "torch.sum({x} * {y}, dim=1)",
            "torch.einsum('ij,ij->i', {x}, {y})",
            "({x} * {y}).sum(-1)",
            "torch.bmm({x}.unsqueeze(1), {y}.unsqueeze(2)).flatten()",
        ),
        "a[row * D + j] * b[row * D + j]",
        "D = a.size(1), rows = a.size(0)",
    ),
    "row_dot_keepdim": Form(
        "the dot product of each pair of rows",
        "bmk",
        "bmk",
        "bm1",
        ("({x} * {y}).sum(dim=-1, keepdim=True)", "torch.sum({x} * {y}, dim=2, keepdim=True)"),
        "a[row * D + j] * b[row * D + j]",
        "D = a.size(2), M = a.size(1), rows = a.size(0) * M",
        ("M",),
    ),
    "column_dot": Form(
        "the dot product of each pair of columns",
        "kn",
        "kn",
        "n",
        ("({x} * {y}).sum(dim=0)", "torch.sum({x} * {y}, dim=0)", "torch.einsum('ij,ij->j', {x}, {y})"),
        "a[j * rows + row] * b[j * rows + row]",
        "D = a.size(0), rows = a.size(1)",
        (),
        True,
    ),
    "dot": Form(
        "a dot product",
        "k",
        "k",
        "",
        (
            "torch.dot({x}, {y})",
            "{x} @ {y}",
            "({x} * {y}).sum()",
            "torch.sum({x} * {y})",
            "torch.inner({x}, {y})",
            "{x}.dot({y})",
        ),
        "a[j] * b[j]",
        "D = a.size(0), rows = 1",
    ),
    "frobenius_inner": Form(
        "the Frobenius inner product",
        "mk",
        "mk",
        "",
        ("({x} * {y}).sum()", "torch.sum({x} * {y})", "torch.trace({x}.T @ {y})", "torch.einsum('ij,ij->', {x}, {y})"),
        "a[j] * b[j]",
        "D = a.numel(), rows = 1",
    ),
    "sum_of_product": Form(
        "the row sums of a product",
        "mk",
        "nk",
        "m",
        ("({x} @ {y}.T).sum(dim=1)", "torch.sum(torch.matmul({x}, {y}.t()), dim=1)", "torch.mm({x}, {y}.T).sum(-1)"),
        "a[row * D + j] * total(b, j, D, N)",
        "D = a.size(1), N = b.size(0), rows = a.size(0)",
        ("N",),
    ),
}
TOTAL_COLUMN = """__device__ float total(const float* b, int j, int D, int N) {
    float v = 0.0f;
    for (int k = 0; k < N; k++) v += b[k * D + j];
    return v;
}

"""
ELEMENTS: dict[str, Form] = {
    "outer": Form(
        "an outer product",
        "m",
        "n",
        "mn",
        (
            "torch.outer({x}, {y})",
            "{x}.unsqueeze(1) * {y}.unsqueeze(0)",
            "{x}[:, None] * {y}[None, :]",
            "torch.einsum('i,j->ij', {x}, {y})",
            "torch.ger({x}, {y})",
            "{x}.view(-1, 1) @ {y}.view(1, -1)",
        ),
        "a[i / N] * b[i % N]",
        "N = b.size(0)",
        ("N",),
    ),
    "outer_sum": Form(
        "an outer sum",
        "m",
        "n",
        "mn",
        ("{x}.unsqueeze(1) + {y}.unsqueeze(0)", "{x}[:, None] + {y}[None, :]"),
        "a[i / N] + b[i % N]",
        "N = b.size(0)",
        ("N",),
    ),
    "batched_outer": Form(
        "an outer product for each row",
        "bm",
        "bn",
        "bmn",
        (
            "torch.einsum('bi,bj->bij', {x}, {y})",
            "{x}.unsqueeze(2) * {y}.unsqueeze(1)",
            "torch.bmm({x}.unsqueeze(2), {y}.unsqueeze(1))",
            "{x}[:, :, None] * {y}[:, None, :]",
        ),
        "a[i / N] * b[i / N / M * N + i % N]",
        "M = a.size(1), N = b.size(1)",
        ("M", "N"),
    ),
    "diagonal_left": Form(
        "a diagonal matrix times a matrix",
        "m",
        "mn",
        "mn",
        (
            "torch.diag({x}) @ {y}",
            "torch.matmul(torch.diag({x}), {y})",
            "{x}.unsqueeze(1) * {y}",
            "{x}[:, None] * {y}",
            "torch.mm({x}.diag(), {y})",
            "torch.einsum('i,ij->ij', {x}, {y})",
        ),
        "a[i / N] * b[i]",
        "N = b.size(1)",
        ("N",),
    ),
    "diagonal_right": Form(
        "a matrix times a diagonal matrix",
        "mn",
        "n",
        "mn",
        (
            "{x} @ torch.diag({y})",
            "torch.matmul({x}, torch.diag({y}))",
            "torch.mm({x}, torch.diag({y}))",
            "{x} @ {y}.diag()",
            "torch.einsum('ij,j->ij', {x}, {y})",
        ),
        "a[i] * b[i % N]",
        "N = a.size(1)",
        ("N",),
    ),
    "kron_vectors": Form(
        "the Kronecker product of two vectors",
        "m",
        "n",
        "*",
        ("torch.kron({x}, {y})",),
        "a[i / N] * b[i % N]",
        "N = b.size(0)",
        ("N",),
    ),
}


def sample(rng: random.Random) -> Plan:
    core = rng.choices((*SUMS, *ELEMENTS), [3.0 if name == "matvec" else 1.0 for name in (*SUMS, *ELEMENTS)])[0]
    post = draw_chain(rng, chain_length(rng, (2, 4, 3, 1)), _STATE)
    form = SUMS.get(core) or ELEMENTS[core]
    return Plan(NAME, core, chains(post=post), (f"ranks={len(form.a)}{len(form.b)}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    form = SUMS.get(plan.core) or ELEMENTS[plan.core]
    builder = ProblemBuilder(rng)
    builder.tensors.sampler = sampler(builder, plan)
    marks = {"1": "1"}
    for letter in dict.fromkeys(form.a + form.b):
        if letter == "b":
            marks[letter] = builder.tensors.dimension("batch", rng.choice((1, 2, 3, 4, 8)), rng.choice((16, 64, 128)))
        elif letter != "1":
            marks[letter] = size(builder, letter)
    builder.tensors.results.append([marks[letter] for letter in form.out if letter in marks])
    if "k" in marks and rng.random() < 0.4:
        builder.tensors.size(marks["k"]).small = rng.choice((200, 256, 500, 777, 1024))
    a = builder.tensors.input("a", [marks[letter] for letter in form.a])
    b = builder.tensors.input("vector" if len(form.b) == 1 else "b", [marks[letter] for letter in form.b])
    value = builder.forward.apply(rng.choice(form.spellings), a, form.phrase, y=b.text)
    value, post = builder.operators.chain(value, plan.chain("post"), state=_STATE)
    builder.finish(value)
    builder.title = sentence(form.phrase, describe(plan.chain("post")))
    file = KernelFile(builder, plan.core, [Tensor("a", "a"), Tensor("b", "b")])
    shape = _shape(form)
    if plan.core in ELEMENTS:
        code, launch, style = file.sweep(rng, lines(f"float v = {form.element};", post), ["n", *form.integers])
        host = f"    int {form.sizes};\n    auto out = torch::empty({shape}, a.options());\n    int n = out.numel();\n"
        return Draft(builder, file.write(code, host + launch), style)
    scope = THREAD if form.wide else rng.choices((BLOCK_SHUFFLE, WARP, BLOCK_TREE, THREAD), (5, 3, 1, 1))[0]
    integers = ["D", *form.integers, *when("rows" in scope.start or "rows" in form.element, "rows")]
    helper = reduction_helper(scope, "sum") + (TOTAL_COLUMN if "total(" in form.element else "")
    store = statements(post, 8) + "        out[row] = v;\n"
    store = f"    if ({scope.lead}) {{\n{store}    }}\n" if scope.lead else store.replace("        ", "    ")
    body = f"{scope.start}    float v = 0.0f;\n    {scope.loop} v += {form.element};\n{scope.reduce('sum', 'v')}{store}"
    host = f"    int {form.sizes};\n    auto out = torch::empty({shape}, a.options());\n"
    return Draft(
        builder, file.write(helper + file.kernel(body, integers), host + file.launch(scope.grid, integers)), scope.style
    )


def _shape(form: Form) -> str:
    """The output's shape in host code."""
    if form.out == "*":
        return "{a.numel() * b.numel()}"
    if set(form.out) <= set(form.a) | {"1"}:
        sizes = {letter: f"a.size({place})" for place, letter in enumerate(form.a)}
    else:
        sizes = {letter: f"b.size({place})" for place, letter in enumerate(form.b)}
        sizes |= {letter: f"a.size({place})" for place, letter in enumerate(form.a)}
    return "{" + ", ".join(sizes.get(letter, letter) for letter in form.out) + "}"
