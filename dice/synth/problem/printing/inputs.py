"""`get_inputs` and `get_init_inputs` of a printed file."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from dice.synth.problem.printing.page import MAX_LINE, Page, names
from dice.synth.problem.tensors import Input, as_tuple
from dice.synth.tables.docstrings import remark

# Ways to make an ordinary input besides `torch.randn` and `torch.rand`.
_OTHER_SAMPLERS = (
    "torch.randn({shape}) * 0.5",
    "0.5 * torch.randn({shape})",
    "torch.rand({shape}) * 2 - 1",
    "torch.rand({shape}) - 0.5",
    "torch.empty({shape}).uniform_(-1, 1)",
    "torch.empty({shape}).normal_()",
)
_SAMPLER = re.compile(r"torch\.(randn|rand)\(\{shape\}\)")


def input_functions(page: Page) -> str:
    """Both functions, and a constant for the shape of the inputs where they share one."""
    rng, inputs = page.dice("functions"), page.problem.tensors.inputs
    have_one_shape = len({tuple(item.shape) for item in inputs}) == 1
    taken = {item.name for item in page.problem.constructor.arguments if item.constant}
    constant, shape = _shared_shape(rng, inputs[0].shape, taken) if have_one_shape else ([], "")
    calls = [item.make.format(shape=shape) if shape else _call(rng, item) for item in inputs]
    hint = rng.choice((" -> list", " -> list[torch.Tensor]")) if page.hints and rng.random() < 0.15 else ""
    lines = [*constant, f"def get_inputs(){hint}:"]
    if rng.random() < 0.08:
        lines.append(f"    # {remark(rng, 'inputs')}")
    inline = f"    return [{', '.join(calls)}]"
    if len(inline) <= MAX_LINE and rng.random() < 0.6:
        lines.append(inline)
    else:
        lines += [f"    {item.name} = {call}" for item, call in zip(inputs, calls, strict=True)]
        lines.append(f"    return [{names(inputs)}]")
    gap = [""] * (len(page.gap) - 1)
    lines += [*gap, f"def get_init_inputs(){' -> list' if hint else ''}:", *_init_inputs(page, rng)]
    return page.fill("\n".join(lines))


def _shared_shape(rng: random.Random, shape: Sequence[str], taken: set[str]) -> tuple[list[str], str]:
    """Lines of a constant for the shape of all inputs, and its use; empty where each is written out. `taken`: names of
    other constants, which a second one of that name would change."""
    form = rng.choices(("", "whole", "rest"), (90, 6, 4))[0]
    if not form or len(shape) < 2:
        return [], ""
    chosen = "input_shape" if form == "rest" else rng.choice(("shape", "input_shape", "x_shape"))
    name = next(one for one in (chosen, "input_shape", "x_shape", "shape_of_inputs") if one not in taken)
    if form == "rest":
        return [f"{name} = {as_tuple(shape[1:])}", ""], f"{shape[0]}, *{name}"
    return [f"{name} = {as_tuple(shape)}", ""], f"*{name}"


def _call(rng: random.Random, item: Input) -> str:
    """The expression that makes an input."""
    shape = ", ".join(item.shape)
    form = rng.choices(("plain", "tuple", "list", "size", "dtype"), (70, 5, 1.5, 2, 3))[0]
    if form != "plain" and item.shape and _SAMPLER.match(item.make):
        wrapped = f"[{shape}]" if form == "list" else as_tuple(item.shape)
        shape = {"size": f"size={wrapped}", "dtype": f"{shape}, dtype=torch.float32"}.get(form, wrapped)
    make = item.make
    if make == "torch.randn({shape})" and form in ("plain", "tuple") and rng.random() < 0.05:
        make = rng.choice(_OTHER_SAMPLERS)
    return make.format(shape=shape)


def _init_inputs(page: Page, rng: random.Random) -> list[str]:
    """The body of `get_init_inputs`: what the signature already says may be left out at the end."""
    given = list(page.problem.constructor.arguments)
    while given and given[-1].default == given[-1].value and not given[-1].constant and rng.random() < 0.6:
        given.pop()
    values = [item.name if item.constant else item.value for item in given]
    form = rng.choices(("plain", "names", "lines"), (84, 8, 8))[0]
    if values and form == "lines" and len(values) > 1:
        settings = [f"        {value},  # {item.name}" for value, item in zip(values, given, strict=True)]
        return ["    return [", *settings, "    ]"]
    suffix = f"  # {names(given)}" if values and form == "names" else ""
    suffix = f"  # {remark(rng, 'init')}" if not values and rng.random() < 0.25 else suffix
    return [f"    return [{', '.join(values)}]{suffix}"]
