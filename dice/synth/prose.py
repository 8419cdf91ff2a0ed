"""The same program in other words: a problem's text with its docstrings and comments taken away or made vague.

A model that is trained on problems whose prose names every operator learns to read the prose. Strangers' problems say
little, or something else, so half of the training texts must say nothing and leave only the code to read.
"""

from __future__ import annotations

import ast
import io
import random
import tokenize

from dice.synth.syntax import is_same

VAGUE = (
    "Simple model.", "Model.", "A small module.", "Reference implementation.", "Model to be optimised.",
    "A chain of operations.", "Example architecture.", "A computation.", "Baseline.", "One layer.",
)  # fmt: skip


def without_prose(source: str, rng: random.Random) -> str:
    """`source` without comments, each docstring dropped or replaced by one that says nothing about the operators.

    The program stays the same: the syntax trees without docstrings are compared. Raises `ValueError` if they differ.
    """
    lines = source.split("\n")
    tree = ast.parse(source)
    for node in reversed(_documented(tree)):
        first, last = node.body[0].lineno - 1, node.body[0].end_lineno or 0
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        replacement = [f'{indent}"""{rng.choice(VAGUE)}"""'] if rng.random() < 0.4 or len(node.body) == 1 else []
        lines[first:last] = replacement
    text = _without_comments("\n".join(lines))
    if not is_same(without_docstrings(text), without_docstrings(source)):
        raise ValueError("dropping the prose changed the program")
    return text


def _documented(tree: ast.Module) -> list[ast.Module | ast.ClassDef | ast.FunctionDef]:
    """Everything with a docstring, in file order."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    found = [node for node in nodes if ast.get_docstring(node, clean=False) is not None]
    return sorted(found, key=lambda node: node.body[0].lineno)


def _without_comments(source: str) -> str:
    lines = source.split("\n")
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token in reversed([token for token in tokens if token.type == tokenize.COMMENT]):
        row, column = token.start
        kept = lines[row - 1][:column].rstrip()
        lines[row - 1 : row] = [kept] if kept else []
    return "\n".join(lines)


def without_docstrings(source: str) -> ast.Module:
    """The syntax tree of `source`, less its docstrings."""
    tree = ast.parse(source)
    for node in _documented(tree):
        node.body = node.body[1:] or [ast.Pass()]
    return tree
