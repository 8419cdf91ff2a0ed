"""The forms of a matrix product: transposed, batched, broadcast, triangular, symmetric, with itself."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Form:
    """A product of operands with these dimensions: m, n, k, and b, h for batches.

    `spelled`: how `a` and `b` enter the product, as templates; {A} and {B} are the operands, transposed where needed.
    `around`: what is done with the product, {P}. `keep_a`, `keep_b`, `keep`: conditions under which an element counts.
    """

    phrase: str
    a: str
    b: str = ""  # empty: the product of `a` with itself
    out: str = "mn"
    around: str = "{P}"
    spelled: tuple[str, str] = ("{A}", "{B}")
    keep_a: str = ""
    keep_b: str = ""
    keep: str = ""
    element: str = ""  # of a, instead of the plain one
    square: str = ""  # letters that are one size

    @property
    def layout(self) -> str:
        """n: as the product takes it; t: the last two dimensions exchanged."""
        return ("t" if self.a.endswith("km") else "n") + ("t" if (self.b or "kn").endswith("nk") else "n")

    @property
    def batches(self) -> str:
        """Letters of the dimensions that each block's third index runs over."""
        return "".join(letter for letter in self.out if letter in "bh")

    @property
    def flat(self) -> bool:
        """One matrix for a whole batch on the left: the batch is only more rows."""
        return len(self.a) > 2 and len(self.b) == 2 and self.a.endswith("mk")


def _layouts(phrase: str, batch: str = "") -> dict[str, Form]:
    sides = {"nn": ("mk", "kn"), "nt": ("mk", "nk"), "tn": ("km", "kn"), "tt": ("km", "nk")}
    return {name: Form(phrase, batch + a, batch + b, batch + "mn") for name, (a, b) in sides.items()}


_SQUARE_A = Form("", "mk", "kn", square="mk")
FORMS: dict[str, dict[str, Form]] = {
    "matmul": _layouts("a matrix product"),
    "bmm": _layouts("a batched matrix product", "b"),
    "bmm4": _layouts("matrix products over batch and heads", "bh"),
    "flat3": {
        "nn": Form("a three-dimensional tensor times a matrix", "bmk", "kn", "bmn"),
        "nt": Form("a three-dimensional tensor times a transposed matrix", "bmk", "nk", "bmn"),
    },
    "flat4": {
        "nn": Form("a four-dimensional tensor times a matrix", "bhmk", "kn", "bhmn"),
        "nt": Form("a four-dimensional tensor times a transposed matrix", "bhmk", "nk", "bhmn"),
    },
    "shared_left": {
        "nn": Form("one matrix times a batch of matrices", "mk", "bkn", "bmn"),
        "nt": Form("one matrix times a batch of transposed matrices", "mk", "bnk", "bmn"),
        "tn": Form("one transposed matrix times a batch of matrices", "km", "bkn", "bmn"),
    },
    "gram": {
        "nt": Form("a matrix times its own transpose", "mk", square="mn"),
        "tn": Form("a transposed matrix times itself", "km", square="mn"),
        "nn": Form("the square of a matrix", "mk", square="mkn"),
    },
    "batched_gram": {
        "nt": Form("each matrix times its own transpose", "bmk", out="bmn", square="mn"),
        "tn": Form("each transposed matrix times itself", "bkm", out="bmn", square="mn"),
    },
    "product_transposed": {
        "nn": Form("the transpose of a product", "mk", "kn", "nm", "{P}.T"),
        "nt": Form("the transpose of a product", "mk", "nk", "nm", "{P}.t()"),
    },
    "tril_left": {
        "nn": replace(
            _SQUARE_A,
            phrase="a lower triangular matrix times a matrix",
            spelled=("torch.tril({A})", "{B}"),
            keep_a="{k} <= row",
        ),
        "nt": Form(
            "a lower triangular matrix times a transposed matrix",
            "mk",
            "nk",
            spelled=("torch.tril({A})", "{B}"),
            keep_a="{k} <= row",
            square="mk",
        ),
    },
    "triu_left": {
        "nn": replace(
            _SQUARE_A,
            phrase="an upper triangular matrix times a matrix",
            spelled=("torch.triu({A})", "{B}"),
            keep_a="{k} >= row",
        ),
    },
    "tril_right": {
        "nn": Form(
            "a matrix times a lower triangular matrix",
            "mk",
            "kn",
            spelled=("{A}", "torch.tril({B})"),
            keep_b="{k} >= col",
            square="kn",
        ),
    },
    "triu_right": {
        "nn": Form(
            "a matrix times an upper triangular matrix",
            "mk",
            "kn",
            spelled=("{A}", "torch.triu({B})"),
            keep_b="{k} <= col",
            square="kn",
        ),
    },
    "tril_both": {
        "nn": Form(
            "the product of two lower triangular matrices",
            "mk",
            "kn",
            spelled=("torch.tril({A})", "torch.tril({B})"),
            keep_a="{k} <= row",
            keep_b="{k} >= col",
            square="mkn",
        ),
    },
    "triu_both": {
        "nn": Form(
            "the product of two upper triangular matrices",
            "mk",
            "kn",
            spelled=("torch.triu({A})", "torch.triu({B})"),
            keep_a="{k} >= row",
            keep_b="{k} <= col",
            square="mkn",
        ),
    },
    "tril_result": {
        "nn": Form("the lower triangle of a product", "mk", "kn", around="torch.tril({P})", keep="col <= row"),
        "nt": Form("the lower triangle of a product", "mk", "nk", around="torch.tril({P})", keep="col <= row"),
    },
    "triu_result": {
        "nn": Form("the upper triangle of a product", "mk", "kn", around="torch.triu({P})", keep="col >= row"),
        "nt": Form("the upper triangle of a product", "mk", "nk", around="torch.triu({P})", keep="col >= row"),
    },
    "symmetric": {
        "nn": replace(
            _SQUARE_A,
            phrase="a symmetric part times a matrix",
            spelled=("(0.5 * ({A} + {A}.T))", "{B}"),
            element="0.5f * (a[row * K + {k}] + a[{k} * K + row])",
        ),
        "nt": Form(
            "the sum of a matrix and its transpose, times a transposed matrix",
            "mk",
            "nk",
            spelled=("({A} + {A}.T)", "{B}"),
            element="(a[row * K + {k}] + a[{k} * K + row])",
            square="mk",
        ),
    },
}
