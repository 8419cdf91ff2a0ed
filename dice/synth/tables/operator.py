"""`Operator`: one elementwise operator, as PyTorch users spell it and as the one CUDA statement that computes it.

Composition is the point: a chain of operators is the sequence of their statements on one `float v`, so every context
that holds a float (an element, a row's sum, a matmul's accumulator) can hold every operator.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

Kind = Literal["call", "method", "module", "formula"]
Sign = Literal[
    "any", "nonpos", "nonneg", "positive"
]  # known of a value whatever the input; positive: >= a constant > 0
_RANK: dict[Sign, int] = {"any": 0, "nonpos": 0, "nonneg": 1, "positive": 2}

# Values outside these magnitudes make float32 comparisons meaningless, so chains that reach them are not drawn.
MAX_MAGNITUDE = 300.0
# Beyond this, functions that saturate give one and the same value for nearly every input.
SATURATES = 20.0


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to write an operator in PyTorch; `text` has fields {x}, and {a}, {b} for its scalars."""

    kind: Kind
    text: str
    is_atom: bool  # needs no parentheses inside a larger expression
    uses: int  # how often {x} occurs
    wraps: bool  # {x} stands alone between parentheses or commas


@dataclass(frozen=True, slots=True)
class Operator:
    name: str
    phrase: str
    spellings: tuple[Spelling, ...]
    statement: str  # on `v`, with {a} and {b} for the scalars
    scalars: tuple[str, ...] = ()
    defaults: tuple[float, ...] = ()
    plain: tuple[Spelling, ...] = ()  # spellings that leave the scalars to PyTorch's defaults
    needs: Sign = "any"
    gives: Callable[[Sign], Sign] = field(default=lambda sign: "any")
    bound: Callable[[float], float] = field(default=lambda m: m)  # |v| <= m before  =>  |v| <= bound(m) after
    limit: float = MAX_MAGNITUDE  # largest |v| it is applied to
    jumps: bool = False  # discontinuous: only on values that carry no rounding error
    weight: float = 1.0

    def accepts(self, sign: Sign, magnitude: float, exact: bool) -> bool:
        """Can this operator follow a value of that sign and magnitude without leaving float32's comfort?"""
        if _RANK[sign] < _RANK[self.needs] or magnitude > self.limit or (self.jumps and not exact):
            return False
        return self.bound(magnitude) <= MAX_MAGNITUDE

    def cuda(self, variable: str, scalars: tuple[str, ...]) -> str:
        """The statement on `variable`."""
        text = self.statement.format(**dict(zip("ab", scalars, strict=False)))
        return text if variable == "v" else re.sub(r"\bv\b", variable, text)


def spelling(text: str) -> Spelling:
    """Classify one spelling by its form."""
    sample = ast.parse(re.sub(r"\{(\w)\}", r"\1", text), mode="eval").body
    is_atom = isinstance(sample, ast.Call | ast.Name)
    if text.startswith("nn."):
        kind: Kind = "module"
    elif text.startswith("{x}.") and is_atom:
        kind = "method"
    elif is_atom and text.count("{x}") == 1 and re.match(r"(torch|F)\.\w+\(\{x\}", text):
        kind = "call"
    else:
        kind = "formula"
    wraps = re.search(r"[(, ]\{x\}(?![,)])|(?<![(, ])\{x\}", text) is None and "(" in text
    return Spelling(kind, text, is_atom, max(1, text.count("{x}")), wraps and not re.search(r"[-+*/] \{x\}", text))


T = TypeVar("T")


def _always(value: T) -> Callable[[Any], T]:
    return lambda _: value


def same_magnitude(magnitude: float) -> float:
    return magnitude


def define(
    name: str,
    phrase: str,
    spellings: list[str],
    statement: str,
    *,
    scalars: tuple[str, ...] = (),
    defaults: tuple[float, ...] = (),
    plain: list[str] | None = None,
    needs: Sign = "any",
    gives: Sign | Callable[[Sign], Sign] = "any",
    bound: float | Callable[[float], float] | None = None,
    limit: float = MAX_MAGNITUDE,
    jumps: bool = False,
    weight: float = 1.0,
) -> Operator:
    """An entry of the tables: spellings as text; `gives` and `bound` as constants or functions; no bound: unchanged."""
    return Operator(
        name,
        phrase,
        tuple(spelling(text) for text in spellings),
        statement,
        scalars,
        defaults,
        tuple(spelling(text) for text in plain or ()),
        needs,
        gives if callable(gives) else _always(gives),
        bound if callable(bound) else same_magnitude if bound is None else _always(bound),
        limit,
        jumps,
        weight,
    )


def same_sign(sign: Sign) -> Sign:
    return sign


def nonneg_at_most(sign: Sign) -> Sign:
    return "nonneg" if sign == "positive" else sign


def made_positive(sign: Sign) -> Sign:
    return "positive" if _RANK[sign] else "any"


def negated(sign: Sign) -> Sign:
    return "any" if sign == "any" else "nonneg" if sign == "nonpos" else "nonpos"
