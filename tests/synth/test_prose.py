from __future__ import annotations

import ast
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dice import synth
from dice.problem import Problem
from dice.synth.corpus import build
from dice.synth.prose import VAGUE, without_prose

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
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    docs = [ast.get_docstring(node) for node in nodes]
    assert all(doc is None or doc in VAGUE for doc in docs)


def test_every_synthetic_problem_survives() -> None:
    for index in range(300):
        pair = synth.generate(5, index)
        assert "def forward" in without_prose(pair.problem.source, random.Random(index))


def test_a_corpus_can_hold_each_pair_with_and_without_prose(tmp_path: Path) -> None:
    build(tmp_path, 12, 3, heldout=4, control=0, verify=False, prose_free=True)
    rows = pq.read_table(tmp_path / "train").to_pylist()
    assert len(rows) == 24 and pq.read_table(tmp_path / "heldout.parquet").num_rows == 4
    for written, bare in zip(rows[::2], rows[1::2], strict=True):
        assert written["response"] == bare["response"] and bare["problem"].strip() in bare["prompt"]
        assert "#" not in bare["problem"] and Problem(bare["problem"]).check()
