from __future__ import annotations

import ast
import random

import pytest

from dice.data import synth
from dice.data.prose import VAGUE, without_prose

TEXT = '''"""Module."""
import torch  # the library


class Model:
    """ReLU, then tanh."""

    def forward(self, x):
        """
        Applies ReLU.
        """
        # first
        return torch.tanh(torch.relu(x))  # "# not a comment"


def only():
    """Nothing else."""


s = "# kept"
'''


@pytest.mark.parametrize("seed", range(6))
def test_prose_goes_and_the_program_stays(seed: int) -> None:
    text = without_prose(TEXT, random.Random(seed))
    assert "ReLU" not in text and "first" not in text and "the library" not in text
    assert '"# kept"' in text and "torch.tanh(torch.relu(x))" in text
    docs = [ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert all(doc is None or doc in VAGUE for doc in docs)


def test_every_synthetic_problem_survives() -> None:
    for index in range(300):
        pair = synth.generate(5, index)
        assert "def forward" in without_prose(pair.problem.source, random.Random(index))
