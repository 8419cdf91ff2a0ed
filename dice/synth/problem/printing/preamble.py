"""The first lines of a printed file: its imports and its constants."""

from __future__ import annotations

import re

from dice.synth.problem.printing.page import Page
from dice.synth.tables.docstrings import remark

FUNCTIONAL = re.compile(r"(?<![\w.])F\.")


def imports(page: Page, body: str) -> str:
    """What `body` needs, and now and then what it does not."""
    rng = page.dice("imports")
    lines = ["import torch", rng.choices(("import torch.nn as nn", "from torch import nn"), (8, 2))[0]]
    if FUNCTIONAL.search(body) or rng.random() < 0.12:
        forms = ("import torch.nn.functional as F", "from torch.nn import functional as F")
        lines.append(rng.choices(forms, (9, 1))[0])
    if ": Tensor" in body or "-> Tensor" in body:
        lines.append("from torch import Tensor")
    if "math." in body or rng.random() < 0.03:
        lines.insert(rng.choice((0, len(lines))), "import math")
    if rng.random() < 0.03:
        lines.insert(0, f"from typing import {rng.choice(('Tuple', 'List', 'Optional, Tuple'))}")
    title = page.problem.title
    if rng.random() < 0.05:
        lines.insert(0, rng.choice((f"# {title}", f'"""{title[:1].upper()}{title[1:]}."""')))
    return "\n".join(lines)


def constants(page: Page) -> str:
    """Sizes, settings and numbers that have names of their own; empty where there are none."""
    problem, rng = page.problem, page.dice("constants")
    form = rng.choices(("lines", "together", "chained"), (7, 2, 1.5))[0]
    sizes: dict[str, int] = {}
    lines: list[str] = []
    text = problem.text
    for index, item in enumerate(problem.tensors.dimensions):
        is_computed, ratio_first = rng.random() < 0.08, rng.random() >= 0.5
        if item.name is None or f"@{index}@" not in text:
            continue
        value = item.large if page.large else item.small
        base = next((name for name, size in sizes.items() if 1 < size < value <= 4 * size and value % size == 0), "")
        if is_computed and base:
            ratio = value // sizes[base]
            lines.append(f"{item.name} = {f'{ratio} * {base}' if ratio_first else f'{base} * {ratio}'}")
        else:
            _add(lines, item.name, value, "lines" if form == "together" and not sizes else form)
        if not is_computed:
            sizes[item.name] = value
    constructor = problem.constructor
    lines += [f"{item.name} = {page.fill(item.value)}" for item in constructor.arguments if item.constant]
    lines += [f"{name} = {number}" for name, number in constructor.constants.items()]
    if not lines:
        return ""
    if rng.random() < 0.06 and "dim" not in problem.names.taken:
        lines.insert(rng.randrange(len(lines) + 1), "dim = 1")
    rate = rng.choice((0.0, 0.0, 0.0, 0.3))
    lines = [f"{line}  # {remark(rng, 'size')}" if rng.random() < rate else line for line in lines]
    if rng.random() < 0.15:
        lines.insert(0, f"# {remark(rng, 'constants')}")
    return "\n".join(lines)


def _add(lines: list[str], name: str, value: int, form: str) -> None:
    """One size: on a line of its own, or in the line before."""
    last = lines[-1] if lines else ""
    if form == "chained" and last.endswith(f"= {value}"):
        lines[-1] = f"{last.removesuffix(str(value))}{name} = {value}"
    elif form == "together" and last and last.count(",") < 6 and last.count("=") == 1:
        left, right = last.split(" = ")
        lines[-1] = f"{left}, {name} = {right}, {value}"
    else:
        lines.append(f"{name} = {value}")
