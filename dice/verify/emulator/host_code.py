"""What host code may not do with what is the device's: call its functions, take their addresses, or use its variables.

nvcc refuses the calls. Of a variable of the device's the host's code has a copy of its own, which no kernel sees (nvcc
warns of that), and the address of a function is one that no kernel can call. Here both sides have one memory, and all
of that would work, so each becomes an error of the compiler's at the place where it stands. What could be anything else
(an overload, a member, a macro's argument, a variable that is passed by reference) is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dice.verify.emulator.device_code import Body, Scope, error, is_for_both
from dice.verify.emulator.functions import Function, functions_around, statement_start
from dice.verify.emulator.tokens import Edits, Tokens

_BEFORE_VALUE = frozenset({"=", "(", ",", "{", "return", "?", ":"})
_AFTER_VALUE = frozenset({";", ")", ",", "}", ":"})
_OF_NO_USE = "so no kernel sees it (cudaMemcpyToSymbol and cudaMemcpyFromSymbol copy the device's)"


def check(tokens: Tokens, edits: Edits, functions: Sequence[Function], scope: Scope) -> None:
    around = functions_around(tokens, functions)
    called = _functions_of_device(tokens, functions, scope)
    variables = {
        variable.name
        for variable in scope.device
        if not variable.head & {"const", "constexpr", "__managed__"} and variable.path
    }
    for body in scope.host_bodies if called or variables else ():
        host = Function("", False, statement_start(tokens, body.start - 1), body.start, body.stop)
        for index in Body(tokens, host, scope, {}).names():
            if around[index] is None and (sentence := _misuse(tokens, index, called, variables)):
                edits.insert(tokens[index].start, error(sentence))


def _functions_of_device(tokens: Tokens, functions: Sequence[Function], scope: Scope) -> set[str]:
    """Names that are certainly those of functions of the device alone."""
    names: set[str] = set()
    for function in functions:
        before = statement_start(tokens, function.start - 1)
        head = {tokens.text(i) for i in range(before, function.opening)}
        plain = function.opening not in scope.class_of and tokens.text(function.start) != "("
        if "__device__" in head and plain and not head & scope.macros and not is_for_both(tokens, function):
            names.add(function.name)
    return names - scope.also_of_host - {"operator"}


def _misuse(tokens: Tokens, index: int, functions: set[str], variables: set[str]) -> str:
    """What is wrong with the name that stands there, or ""."""
    name, after = tokens.text(index), tokens.text(index + 1)
    if name in functions:
        if after in ("(", "<"):
            return f"calling a __device__ function('{name}') from a __host__ function is not allowed"
        if _is_value(tokens, index):
            return f"taking the address of a __device__ function('{name}') in a __host__ function is not allowed"
    elif name in variables and not _may_be_reference(tokens, index):
        return f"a __device__ variable('{name}') is another one in a __host__ function, {_OF_NO_USE}"
    return ""


def _is_value(tokens: Tokens, index: int) -> bool:
    """Whether the function is used as a value, and not as the argument of a template, where kernels are given it."""
    begins = index - 1 if tokens.text(index - 1) == "&" else index
    around = (tokens.text(i) for i in range(statement_start(tokens, index), index))
    return (
        tokens.text(begins - 1) in _BEFORE_VALUE
        and tokens.text(index + 1) in _AFTER_VALUE
        and not any(text in ("<", "<<<") for text in around)
    )


def _may_be_reference(tokens: Tokens, index: int) -> bool:
    """Whether it is all of an argument of a function, which may take it by reference as a symbol; or part of what is
    given to one of the runtime's functions for symbols."""
    brackets = list(_brackets_around(tokens, index))
    if any("Symbol" in tokens.text(opening - 1) for opening in brackets):
        return True
    alone = tokens.text(index - 1) in ("(", ",") and tokens.text(index + 1) in (")", ",")
    return alone and bool(brackets) and tokens[brackets[0] - 1].kind == "word"


def _brackets_around(tokens: Tokens, index: int) -> Iterator[int]:
    """The parentheses, from the inmost, that are open there in its statement."""
    while index > 0 and tokens.text(index - 1) not in (";", "{", "}"):
        index -= 1
        if tokens.text(index) in (")", "]") and index in tokens.partner:
            index = tokens.partner[index]
        elif tokens.text(index) == "(":
            yield index
