"""Printing: a filled `ProblemBuilder` as the text of a file, in one of very many layouts."""

from __future__ import annotations

import re

from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.printing.inputs import input_functions
from dice.synth.problem.printing.model import model
from dice.synth.problem.printing.page import Page
from dice.synth.problem.printing.preamble import FUNCTIONAL, constants, imports

__all__ = ["printed"]


def printed(problem: ProblemBuilder, *, large: bool = False) -> str:
    """The file's text, with the large or the small shapes."""
    if large:
        problem.tensors.limit_large()
    page = Page.of(problem, large)
    rng = page.dice("layout")
    sections = [model(page), constants(page)]
    if rng.random() < 0.25:
        sections.reverse()
    body = page.gap.join(section for section in (*sections, input_functions(page)) if section)
    if rng.random() < 0.07:
        body = FUNCTIONAL.sub("torch.nn.functional.", body)
    if rng.random() < 0.04:
        body = re.sub(r"(?<![\w.])nn\.", "torch.nn.", body)
    return f"{imports(page, body)}{page.gap}{body}\n"
