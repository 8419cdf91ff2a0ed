"""What can be said of a pair without a compiler: that its texts are whole, and that they belong together."""

from __future__ import annotations

import ast
import re

from dice.kernel import SplitError
from dice.problem import ProblemError
from dice.synth.pair import Pair

_CLOSES = {")": "(", "]": "[", "}": "{"}
_LEFT_OVER = re.compile(r"@\d+@|<(?:sum|max|min|prod|pick):|\{\w+\}(?=\s*[-+*/;)])")


def fault(pair: Pair) -> str:
    """Why this pair cannot be right, as a short phrase; empty when nothing speaks against it."""
    try:
        pair.problem.check()
        pair.check_problem.check()
    except ProblemError:
        return "the problem is not valid"
    try:
        core = pair.kernel.split().core
    except SplitError:
        return "the kernel is not valid Python"
    if not pair.kernel.defines_model_new or not pair.kernel.bound_functions:
        return "the kernel lacks a part"
    if not _is_balanced(core):
        return "the CUDA source has unbalanced brackets"
    if _LEFT_OVER.search(core) or _LEFT_OVER.search(pair.problem.source):
        return "a template was left unfilled"
    return ""


def is_same(one: object, two: object) -> bool:
    """Whether two syntax trees differ in the places of their nodes at most."""
    if type(one) is not type(two):
        return False
    if isinstance(one, ast.AST):
        return all(is_same(getattr(one, name, None), getattr(two, name, None)) for name in one._fields)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(is_same, one, two))
    return one == two


def _is_balanced(text: str) -> bool:
    open_ones: list[str] = []
    for letter in text:
        if letter in "([{":
            open_ones.append(letter)
        elif letter in _CLOSES and (not open_ones or open_ones.pop() != _CLOSES[letter]):
            return False
    return not open_ones
