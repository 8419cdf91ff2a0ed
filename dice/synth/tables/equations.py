"""Sums of products by Einstein's notation: what is multiplied, what stays and what is summed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Equation:
    """`text`: operands and the result. `spellings`: other ways to write it, of {x}, {y} and {z}. `weight`: which
    operand, if any, is a parameter. `module`: a layer that is the whole, of sizes by their letters."""

    phrase: str
    text: str
    spellings: tuple[str, ...] = ()
    weight: str = ""
    module: str = ""

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(self.text.partition("->")[0].split(","))

    @property
    def result(self) -> str:
        return self.text.partition("->")[2]

    @property
    def summed(self) -> str:
        """Letters that the result has not, in the order of the operands."""
        return "".join(dict.fromkeys(letter for one in self.operands for letter in one if letter not in self.result))


# letter -> role of the dimension, small and large sizes
SIZES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "b": ("batch", (1, 2, 3, 4, 8), (8, 16, 32)),
    "h": ("heads", (1, 2, 4), (8, 12, 16)),
    "t": ("sequence", (3, 5, 8, 12), (128, 256)),
    "s": ("length", (4, 6, 9, 16), (128, 256)),
    "d": ("features", (4, 8, 15, 16, 32), (64, 128)),
    "k": ("head_size", (4, 8, 12, 16), (32, 64)),
    "i": ("in_features", (5, 8, 16, 20), (64, 128, 256)),
    "j": ("k", (4, 7, 16, 24), (64, 128, 256)),
    "o": ("out_features", (3, 8, 10, 16), (32, 64, 128)),
    "c": ("channels", (2, 3, 8, 16), (32, 64)),
    "u": ("height", (4, 5, 8), (32, 56)),
    "v": ("width", (4, 6, 9), (32, 56)),
    "e": ("classes", (2, 3, 4), (4, 8, 16)),
    "g": ("depth", (2, 3, 4), (4, 8)),
}
EQUATIONS: dict[str, Equation] = {
    "token_scores": Equation(
        "scores of all tokens with all others",
        "btd,bsd->bts",
        ("{x} @ {y}.transpose(1, 2)", "torch.bmm({x}, {y}.transpose(1, 2))", "torch.matmul({x}, {y}.mT)"),
    ),
    "head_scores": Equation(
        "scores for each head", "bhtk,bhsk->bhts", ("{x} @ {y}.transpose(-2, -1)", "torch.matmul({x}, {y}.mT)")
    ),
    "head_scores_by_token": Equation(
        "scores for each head, heads behind tokens",
        "bthk,bshk->bhts",
        ("{x}.transpose(1, 2) @ {y}.permute(0, 2, 3, 1)", "torch.matmul({x}.transpose(1, 2), {y}.permute(0, 2, 3, 1))"),
    ),
    "head_values": Equation(
        "values weighted for each head",
        "bhts,bshk->bthk",
        ("({x} @ {y}.transpose(1, 2)).transpose(1, 2)",),
    ),
    "project_heads": Equation(
        "a projection for each head",
        "btd,hdk->bhtk",
        ("{x}.unsqueeze(1) @ {y}", "torch.matmul({x}[:, None], {y})"),
        "y",
    ),
    "merge_heads": Equation("heads merged into features", "bhtk,hkd->btd", ("({x} @ {y}).sum(dim=1)",), "y"),
    "bilinear": Equation(
        "a bilinear form for each output",
        "bi,oij,bj->bo",
        ("F.bilinear({x}, {z}, {y})", "torch.einsum('bi,oij,bj->bo', {x}, {y}, {z})"),
        "y",
        "nn.Bilinear({i}, {j}, {o}, bias=False)",
    ),
    "quadratic": Equation(
        "a bilinear form",
        "bi,ij,bj->b",
        ("(({x} @ {y}) * {z}).sum(dim=-1)", "torch.sum(torch.matmul({x}, {y}) * {z}, dim=1)"),
        "y",
    ),
    "outer_products": Equation(
        "outer products of a batch",
        "bi,bj->bij",
        ("{x}.unsqueeze(2) * {y}.unsqueeze(1)", "{x}[:, :, None] * {y}[:, None, :]")
        + ("torch.bmm({x}.unsqueeze(2), {y}.unsqueeze(1))",),
    ),
    "weighted_tokens": Equation(
        "a weighted sum of tokens",
        "bt,btd->bd",
        ("({x}.unsqueeze(-1) * {y}).sum(dim=1)", "torch.bmm({x}.unsqueeze(1), {y}).squeeze(1)"),
    ),
    "channel_mix": Equation(
        "channels mixed at each position",
        "bcuv,oc->bouv",
        ("F.conv2d({x}, {y}[:, :, None, None])", "({x}.permute(0, 2, 3, 1) @ {y}.t()).permute(0, 3, 1, 2)"),
        "y",
    ),
    "token_mix": Equation("tokens mixed", "btd,st->bsd", ("{y} @ {x}", "torch.matmul({y}, {x})"), "y"),
    "scaled_columns": Equation("columns scaled for each matrix", "bij,bj->bij", ("{x} * {y}.unsqueeze(1)",)),
    "inner_products": Equation(
        "inner products of a batch", "bhk,bhk->bh", ("({x} * {y}).sum(dim=-1)", "torch.sum({x} * {y}, -1)")
    ),
    "matrix_vectors": Equation(
        "matrices times vectors",
        "bij,bj->bi",
        ("torch.bmm({x}, {y}.unsqueeze(2)).squeeze(2)", "({x} @ {y}.unsqueeze(-1)).squeeze(-1)"),
    ),
    "vector_matrices": Equation(
        "vectors times matrices", "bi,bij->bj", ("torch.bmm({x}.unsqueeze(1), {y}).squeeze(1)",)
    ),
    "column_products": Equation("products column by column", "id,jd->ijd", ("{x}.unsqueeze(1) * {y}.unsqueeze(0)",)),
    "tensor_product": Equation(
        "a contraction over two dimensions",
        "bij,jio->bo",
        ("torch.tensordot({x}, {y}, dims=([1, 2], [1, 0]))",),
        "y",
    ),
    "traces": Equation("traces of products", "bij,bji->b", ("({x} * {y}.transpose(1, 2)).sum(dim=(1, 2))",)),
    "channel_gram": Equation(
        "inner products of channels",
        "bct,bot->bco",
        ("{x} @ {y}.transpose(1, 2)", "torch.bmm({x}, {y}.permute(0, 2, 1))"),
    ),
    "grouped_linear": Equation(
        "a linear map for each group", "bgi,goi->bgo", ("({x}.unsqueeze(2) * {y}).sum(dim=-1)",), "y"
    ),
    "expert_mix": Equation(
        "outputs of experts by their weights",
        "be,bed->bd",
        ("({x}.unsqueeze(-1) * {y}).sum(dim=1)", "torch.bmm({x}.unsqueeze(1), {y}).squeeze(1)"),
    ),
    "experts": Equation("all experts on all tokens", "btd,edo->beto", ("{x}.unsqueeze(1) @ {y}",), "y"),
    "attended_space": Equation(
        "features summed over space by a map",
        "bcuv,buv->bc",
        ("({x} * {y}.unsqueeze(1)).sum(dim=(2, 3))", "({x} * {y}[:, None]).sum((-2, -1))"),
    ),
    "low_rank": Equation("a product with a factor between", "bi,ej,ei->bj", ("({x} @ {z}.t()) @ {y}",), "y"),
}
