"""Where the functions with device code are in a source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dice.verify.emulator.tokens import Overgrown, Tokens

MOST_NESTED = 16  # functions with device code around a token, on the average


@dataclass(frozen=True, slots=True)
class Function:
    """A function with device code: token indices of its first token and of its body's braces."""

    name: str
    is_kernel: bool
    start: int
    opening: int
    closing: int


def device_functions(tokens: Tokens) -> Iterator[Function]:
    """Definitions of `__global__` and `__device__` functions, in order."""
    markers = {"__global__": True, "__device__": False} | _marker_macros(tokens)
    kernels_before = list(accumulate((markers.get(token.text, False) for token in tokens.list), initial=0))
    heads = _heads(tokens)
    end_of_last = -1
    for index, token in enumerate(tokens.list):
        if token.text not in markers or index < end_of_last or tokens.text(index - 1) == "define":
            continue
        limit = tokens.directive_end.get(index, len(tokens))
        function = _function_after(tokens, heads, index + 1, markers[token.text], limit)
        if function is None:
            continue
        if function.is_kernel or kernels_before[function.opening] == kernels_before[index]:
            end_of_last = function.opening
            yield function


def check_nesting(tokens: Tokens, functions: Sequence[Function]) -> None:
    """Raises `Overgrown` where looking into every function's body is more than looking at the source a few times."""
    if sum(function.closing - function.start for function in functions) > MOST_NESTED * len(tokens):
        raise Overgrown


def functions_around(tokens: Tokens, functions: Sequence[Function]) -> list[Function | None]:
    """For each token the first of the functions, which are in order, whose body it is in."""
    around: list[Function | None] = [None] * len(tokens)
    done = 0
    for function in functions:
        first = max(done, function.opening + 1)
        if first < function.closing:
            around[first : function.closing] = [function] * (function.closing - first)
            done = function.closing
    return around


def _marker_macros(tokens: Tokens) -> dict[str, bool]:
    """Object-like macros whose text marks functions, as in `#define KERNEL __global__ void`."""
    macros: dict[str, bool] = {}
    for name, places in tokens.macros:
        body = [tokens.text(i) for i in places]
        if "{" in body or "(" in body[:1]:
            continue
        if "__global__" in body:
            macros[name] = True
        elif "__device__" in body:
            macros[name] = False
    return macros


_NOT_A_PARAMETER_LIST = {"__launch_bounds__", "C10_LAUNCH_BOUNDS_1", "C10_LAUNCH_BOUNDS_2", "__attribute__", "alignas",
    "__align__", "__maxnreg__", "decltype", "__cluster_dims__", "noexcept", "__declspec"}  # fmt: skip


def _heads(tokens: Tokens) -> list[tuple[int, int]]:
    """For each token, were it the first of a declaration: where that declaration's body begins or it turns out to have
    none, and the parenthesis that opens its parameters. The number of tokens for what is not there."""
    nowhere = len(tokens)
    heads = [(nowhere, nowhere)] * (nowhere + 1)
    for index in range(nowhere - 1, -1, -1):
        text = tokens.text(index)
        if text in (";", "=", "}", "[", "{"):
            heads[index] = index, nowhere
        elif text != "(":
            heads[index] = heads[index + 1]
        elif index in tokens.partner:
            end, parameters = heads[tokens.partner[index] + 1]
            heads[index] = end, parameters if tokens.text(index - 1) in _NOT_A_PARAMETER_LIST else index
    return heads


def _function_after(
    tokens: Tokens, heads: list[tuple[int, int]], index: int, is_kernel: bool, limit: int
) -> Function | None:
    """The function definition that begins here, or None for a declaration, a variable or a lambda."""
    opening, parameters = heads[index]
    if opening >= limit or tokens.text(opening) != "{" or parameters >= opening:
        return None
    closing = tokens.partner.get(opening)
    return (
        None
        if closing is None
        else Function(_declared_name(tokens, parameters - 1), is_kernel, index, opening, closing)
    )


def parameter_list(tokens: Tokens, function: Function) -> int | None:
    """Index of the parenthesis that opens the function's parameters."""
    index = function.start
    while index < function.opening:
        if tokens.text(index) == "(" and index in tokens.partner:
            if tokens.text(index - 1) not in _NOT_A_PARAMETER_LIST:
                return index
            index = tokens.partner[index]
        index += 1
    return None


_LONGEST_HEAD = 400  # tokens that are looked at before a name


def statement_start(tokens: Tokens, index: int) -> int:
    """First token of the statement, or of what stands in a bracket, that the token is in."""
    for _ in range(_LONGEST_HEAD):
        before = tokens.text(index - 1)
        if index <= 0 or before in (";", "{", "}", "(", "[") or index - 1 in tokens.directive_end:
            break
        index = tokens.partner[index - 1] if before in (")", "]") and index - 1 in tokens.partner else index - 1
    return index


_BOUNDS = ("__launch_bounds__", "C10_LAUNCH_BOUNDS_1", "C10_LAUNCH_BOUNDS_2")


def launch_bounds(tokens: Tokens, function: Function) -> str:
    """The most threads that a block of the kernel may have, as an expression; 0 where it says nothing."""
    opening = parameter_list(tokens, function) or function.start
    for index in range(statement_start(tokens, function.start - 1), opening):
        if tokens.text(index) in _BOUNDS and index + 1 in tokens.partner:
            last = tokens.partner[index + 1]
            comma = (i for i in range(index + 2, last) if tokens.text(i) == "," and tokens.is_balanced(index + 2, i))
            most = [tokens.text(i) for i in range(index + 2, next(comma, last))]
            return f"static_cast<unsigned>({' '.join(most)})" if most and "<" not in most else "0"
    return "0"


def _declared_name(tokens: Tokens, index: int) -> str:
    if tokens.text(index) in (">", ">>"):  # an explicit specialisation: void k<float>(...)
        start = tokens.template_start(index)
        index = start - 1 if start is not None else index
    return tokens.text(index) if tokens[index].kind == "word" else "operator"
