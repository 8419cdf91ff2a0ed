from __future__ import annotations

import ast
import random
import re

import pytest

from dice import synth
from dice.problem import Problem
from dice.synth.blank_lines import relaid

TEXT = '''import torch

SIZE = 4


class Model:
    """Text with

    a blank line."""

    def __init__(self):
        self.text = """kept

        as it is"""

    # belongs to forward
    @torch.no_grad()
    def forward(self, x):
        y = torch.cat([
            x,

            x,
        ])

        return y
def get_inputs():
    return [torch.rand(SIZE)]
'''


@pytest.mark.parametrize("seed", range(12))
def test_only_blank_lines_change(seed: int) -> None:
    text = relaid(TEXT, random.Random(seed))
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(TEXT))
    assert [line for line in text.split("\n") if line] == [line for line in TEXT.split("\n") if line]
    assert "@torch.no_grad()\n    def forward" in text and "# belongs to forward\n    @" in text


def test_files_differ_in_the_lines_they_leave() -> None:
    gaps = {len(re.search("\n(\n*)def get_inputs", relaid(TEXT, random.Random(seed))).group(1)) for seed in range(40)}
    assert gaps == {1, 2, 3}


@pytest.mark.slow  # many drawn problems
def test_generated_problems_stay_problems() -> None:
    for index in range(200):
        source = synth.generate(7, index).problem.source
        Problem(relaid(source, random.Random(index))).check()
