"""What `-use_fast_math` makes of functions in device code: `expf(x)`, and `exp(x)` of a float, are `__expf(x)` there.

The compiler knows which `exp` is a float's, so the names become those of `dice_emu::fast` (`dice_emu/fast_math.h`).
Left alone are names that a file declares itself, what stands in its macros, and division.
"""

from __future__ import annotations

from collections.abc import Sequence

from dice.verify.emulator.functions import Function
from dice.verify.emulator.insertions import code
from dice.verify.emulator.tokens import Edits, Tokens

FLAGS = frozenset({"-use_fast_math", "--use_fast_math"})
_NAMES = frozenset({"sin", "cos", "tan", "exp", "log", "log2", "log10", "pow", "exp10", "sincos"})
_CALLED = _NAMES | {f"{name}f" for name in _NAMES}
_BEFORE_CALL = frozenset({"return", "case", "else", "do", "co_return"})


def translate(tokens: Tokens, edits: Edits, functions: Sequence[Function]) -> None:
    declared = {function.name for function in functions} | {name for name, _ in tokens.macros}
    names = _CALLED - declared
    places = {index for function in functions for index in code(tokens, function) if tokens.text(index) in names}
    for index in sorted(places):
        first = _first_of_name(tokens, index)
        if tokens.text(index + 1) == "(" and first is not None:
            edits.replace(tokens[first].start, tokens[index].end, f"::dice_emu::fast::{tokens.text(index)}")


def _first_of_name(tokens: Tokens, index: int) -> int | None:
    """Where the function's name begins, with `::` or `std::`; None where it is something else's, or a declaration."""
    first = index
    if tokens.text(index - 1) == "::":
        first = index - 2 if tokens.text(index - 2) == "std" else index - 1
        if first == index - 2 and tokens.text(first - 1) == "::":
            first -= 1
    before = tokens.text(first - 1)
    is_name = first > 0 and tokens[first - 1].kind == "word" and before not in _BEFORE_CALL
    return None if is_name or before in (".", "->") else first
