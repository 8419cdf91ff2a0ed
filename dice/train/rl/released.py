"""The infilling prompt of the released code, word for word, read from a checkout of it that the user names.

Nothing of that text is part of this project. The checkout is read as text, and never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

from dice.errors import UserError
from dice.files.bounded import read_text
from dice.kernel import KernelParts
from dice.problem import Problem
from dice.syntax import parse

FILE = Path("training", "RL", "sample", "sdar_rl_rollout_kernel.py")
NAME = "KERNEL_INFILLING_SYSTEM_PROMPT"
_FIELD = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_TURN = re.compile(r"<\|im_start\|>user\n(.*)<\|im_end\|>", re.DOTALL)


def released_infill(checkout: Path) -> Callable[[Problem, KernelParts], str]:
    """The prompt as a function of problem and given parts. `checkout`: of github.com/deadlykitten4/DICE, or the file
    of it that holds the prompt.

    Chat markup around the text is left to the model's own template. Raises `UserError` where the text is not found.
    """
    file = checkout if checkout.is_file() else checkout / FILE
    try:
        values = _constants(parse(read_text(file)))
    except FileNotFoundError:
        raise UserError(f"{checkout} is no checkout of the released code: it has no {FILE}.") from None
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{file} cannot be read as Python ({error}).") from None
    turn = _TURN.search(values.get(NAME, ""))
    if turn is None or set(_FIELD.findall(turn[1])) != {"pytorch_code", "prefix", "suffix"}:
        raise UserError(f"{file} holds no infilling prompt called {NAME} with a problem, a prefix and a suffix.")
    template = turn[1]

    def prompt(problem: Problem, parts: KernelParts) -> str:
        fields = {"pytorch_code": problem.source, "prefix": parts.prefix, "suffix": parts.suffix}
        return _FIELD.sub(lambda field: fields[field[1]], template)

    return prompt


def _constants(tree: ast.Module) -> dict[str, str]:
    """Texts that are assigned to a name at the top of a file."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
