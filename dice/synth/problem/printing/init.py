"""`__init__` of a printed problem."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dice.synth.problem.constructor import Argument
from dice.synth.problem.printing.page import MAX_LINE, Page
from dice.synth.problem.rewrites import wrapped
from dice.synth.tables.docstrings import documented, remark


def init_method(page: Page, class_name: str, *, documents_arguments: bool) -> list[str]:
    """The lines of `__init__`, an empty one behind them."""
    constructor, rng = page.problem.constructor, page.dice("init")
    lines = _head(page, rng)
    if rng.random() < (0.2 if constructor.arguments and documents_arguments else 0.06):
        lines += documented(rng, "init", "", argument_docs(page, constructor.arguments), "", page.docs, "        ")
    inner = [f"super({class_name}, self).__init__()" if rng.random() < 0.45 else "super().__init__()"]
    assigned = [*constructor.shared_lines, *constructor.lines]
    inner += _check(constructor.arguments, rng)
    if page.stored:
        known = "\n".join(assigned)
        stored = [(item.name, f"self.{item.name} = ") for item in constructor.arguments]
        inner += [f"{start}{name}" for name, start in stored if start not in known]
    inner += assigned
    if len(inner) == 1 and rng.random() < 0.04:
        inner.append("pass")
    rate = rng.choice((0.0, 0.6))
    inner = [part for line in inner for part in (wrapped(line) if _is_long(page, line, rate, rng) else [line])]
    return [*lines, *(f"        {line}" for line in inner), ""]


def _head(page: Page, rng: random.Random) -> list[str]:
    hint = " -> None" if page.hints and rng.random() < 0.4 else ""
    signature = page.init_signature()
    line = f"    def __init__({signature}){hint}:"
    if len(line) > MAX_LINE and rng.random() < 0.4 and "(" not in signature:
        return ["    def __init__(", *(f"        {part}," for part in signature.split(", ")), f"    ){hint}:"]
    return [line]


def _check(arguments: Sequence[Argument], rng: random.Random) -> list[str]:
    """Seldom an assertion about one of the arguments."""
    sizes = [item for item in arguments if item.hint == "int" and "@" in item.value]
    floats = [item for item in arguments if item.hint == "float" and item.value[:1].isdigit()]
    checks = [f"{item.name} > 0" for item in sizes] + [f"0 <= {item.name} <= 1000" for item in floats]
    if not checks or rng.random() >= 0.03:
        return []
    check = rng.choice(checks)
    return [f"assert {check}{rng.choice(('', f', {repr(check)}', ', f' + repr('must hold: ' + check)))}"]


def _is_long(page: Page, line: str, rate: float, rng: random.Random) -> bool:
    return (len(page.fill(line)) > MAX_LINE or "Sequential(" in line) and rng.random() < rate


def argument_docs(page: Page, arguments: Sequence[Argument]) -> list[tuple[str, str, str]]:
    """Name, type and words of each argument."""
    rng = page.dice("arguments")
    docs = []
    for item in arguments:
        words = remark(rng, "argument").format(name=item.name.replace("_", " "))
        has_default = page.problem.constructor.has_default(item) and rng.random() < 0.5
        default = f" Defaults to {item.default}." if has_default else ""
        docs.append((item.name, f"{item.hint}, optional" if default else item.hint, words + default))
    return docs
