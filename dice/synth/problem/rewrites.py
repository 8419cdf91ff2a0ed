"""Rewritings that leave a computation as it is: naming parts of an expression, moving statements into a method, copying
an input first. All work on the statements of `forward`, one a line.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Collection, Sequence

from dice.synth.tables.names import composed
from dice.synth.tables.phrasing import TEMPORARIES

# Statements whose parts stay where they are: they are nested, or change what they read.
_UNMOVED = re.compile(r"^[\s#]|:$|inplace=True|_\(|\blambda\b")
IN_PLACE_LAYER = re.compile(
    r"(self\.\w+) = (nn\.(?:ReLU|ReLU6|ELU|SELU|CELU|SiLU|Mish|Hardswish|Hardsigmoid|LeakyReLU|Hardtanh))\((.*)\)"
)
# Functions that have a form that works in place: `torch.relu_(x)`, `x.add_(y)`, `F.relu(x, inplace=True)`.
_TORCH_IN_PLACE = "relu|sigmoid|tanh|exp|abs|neg|sqrt|rsqrt|square|sin|cos|selu"
_METHODS_IN_PLACE = f"{_TORCH_IN_PLACE}|add|sub|mul|div|clamp|pow|neg"
_WITH_FLAG = "relu|relu6|elu|selu|celu|silu|hardswish|hardsigmoid|leaky_relu|hardtanh|mish"
_METHODS = ("_features", "_norm", "_scores", "_project", "_prepare", "_mix", "embed", "_first", "_stage", "_body")


def unused(rng: random.Random, pool: Sequence[str], taken: Collection[str], rate: float = 0.2) -> str:
    """A name that means nothing else: of the pool, or composed."""
    free = [name for name in pool if name not in taken]
    if free and rng.random() >= rate:
        return rng.choice(free)
    while (name := composed(rng)) in taken:
        pass
    return name


def hoisted(rng: random.Random, body: list[str], taken: Collection[str]) -> list[str]:
    """One part of a longer expression under a name of its own."""
    places: list[tuple[int, ast.expr]] = []
    for row, line in enumerate(body):
        if _UNMOVED.search(line):
            continue
        statement = ast.parse(line).body[0]
        whole = statement.value if isinstance(statement, ast.Assign | ast.Return) else None
        for node in ast.walk(whole) if whole else ():
            if (
                isinstance(node, ast.Call | ast.BinOp)
                and node is not whole
                and any(isinstance(item, ast.Name) for item in ast.walk(node))
                and _is_pure(node)
            ):
                places.append((row, node))
    if not places:
        return body
    row, part = rng.choice(places)
    line, start, end = body[row], part.col_offset, part.end_col_offset or 0
    name = unused(rng, TEMPORARIES, {*taken, *re.findall(r"\w+", "\n".join(body))})
    text = line[start:end]
    if line[start - 1 : start] == "(" and line[end : end + 1] == ")" and not re.match(r"[\w\])]", line[start - 2]):
        start, end = start - 1, end + 1  # parentheses that only grouped
    rest = f"{line[:start]}{name}{line[end:]}"
    if isinstance(part, ast.Call):  # one that occurs several times is computed once
        rest = re.sub(rf"(?<![\w.]){re.escape(text)}", name, rest)
    return [*body[:row], f"{name} = {text}", rest, *body[row + 1 :]]


def _is_pure(node: ast.AST) -> bool:
    """Whether the expression means a tensor wherever it stands: no sizes, no numbers, no parts of a comparison."""
    text = ast.unparse(node)
    return not re.search(r"\bmath\.|\.size\(|\.shape|\.dim\(|\.numel\(|float\(|\bfor\b|\bif\b|\brange\(", text)


def divided(
    rng: random.Random, body: list[str], inputs: Sequence[str], taken: Collection[str]
) -> tuple[list[str], list[str], str]:
    """The first statements as a method: its lines without indentation, what is left of the body, and its name.

    No method where not exactly one value passes from the first part to the second.
    """
    if len(body) < 2 or any(line.startswith(" ") or line.endswith(":") for line in body):
        return [], body, ""
    uses = [_names(line) for line in body]
    cuts = []
    for cut in range(1, len(body)):
        made = set().union(*(stored for _, stored in uses[:cut]))
        later: set[str] = set()
        known: set[str] = set()
        for read, stored in uses[cut:]:
            later |= read - known
            known |= stored
        passed = made & later
        if len(passed) == 1 and not body[cut - 1].startswith("#"):
            cuts.append((cut, passed.pop()))
    if not cuts:
        return [], body, ""
    cut, name = rng.choice(cuts)
    read = set().union(*(used for used, _ in uses[:cut]))
    given = ", ".join(item for item in inputs if item in read)
    method = unused(rng, _METHODS, taken, 0.4)
    last = body[cut - 1]
    plain = last.startswith(f"{name} = ") and "  #" not in last and rng.random() < 0.7
    inner = (
        [*body[: cut - 1], f"return {last.removeprefix(f'{name} = ')}"] if plain else [*body[:cut], f"return {name}"]
    )
    lines = [f"def {method}(self, {given}):", *(f"    {line}" for line in inner)]
    return lines, [f"{name} = self.{method}({given})", *body[cut:]], method


def _names(line: str) -> tuple[set[str], set[str]]:
    """What a statement reads, and what it gives a value to."""
    tree = ast.parse(line)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    stored = {node.id for node in found if isinstance(node.ctx, ast.Store)}
    changed = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }
    return {node.id for node in found if isinstance(node.ctx, ast.Load)} | changed, stored


def opened(
    rng: random.Random, body: list[str], name: str, rank: int, is_float: bool, taken: Collection[str]
) -> list[str]:
    """The body behind a statement that changes nothing: a copy of the input, or sizes that are never used."""
    copies = [f"{name} = {name}.clone()", f"{name} = {name}.contiguous()"]
    copies += [f"{name} = {name}.float()", f"{name} = {name}.to(torch.float32)"] if is_float else []
    sizes = [
        unused(rng, pool, taken) for pool in (("bsz", "n_rows", "nb"), ("chans", "cc"), ("hh", "d1"), ("ww", "d2"))
    ]
    unpacked = f"{', '.join(sizes[:rank])} = {name}.{rng.choice(('shape', 'size()'))}"
    others = [f"{sizes[0]} = {name}.size(0)", f"{sizes[0]} = {name}.shape[0]"]
    others += [unpacked] if 1 < rank <= 4 and len(set(sizes)) == 4 else []
    first = rng.choice((*copies, *copies, *others))
    text = "\n".join(body)
    if first not in copies or rng.random() < 0.5 or "'" in text or '"' in text or f"{name}=" in text:
        return [first, *body]
    other = unused(rng, TEMPORARIES, taken)
    first = rng.choice((first.replace(name, other, 1), first.replace(name, other, 1), f"{other} = {name}"))
    if first.endswith(f"= {name}") and re.search(r"[-+*/]= |inplace=True|_\(", text):
        first = f"{other} = {name}.clone()"
    return [first, *(re.sub(rf"(?<![\w.]){name}\b", other, line) for line in body)]


def wrapped(line: str) -> list[str]:
    """`self.net = nn.Sequential(a, b)` with each argument on a line of its own."""
    head, opening, rest = line.partition("(")
    if not opening or not rest.endswith(")") or "'" in rest or '"' in rest:
        return [line]
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(rest[:-1]):
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        if depth < 0:
            return [line]
        if letter == "," and depth == 0:
            parts.append(rest[start:place].strip())
            start = place + 1
    parts.append(rest[start:-1].strip())
    if len(parts) < 2:
        return [line]
    return [f"{head}(", *(f"    {part}," for part in parts if part), ")"]


def in_place(line: str) -> str:
    """`x = x * 2` as `x *= 2`, `x = torch.relu(x)` as `x = torch.relu_(x)`, where that means the same."""
    text = re.sub(r"^(\w+) = \1 ([-+*/]) ((?:[\w.]+)(?:\([^()]*\))?)$", r"\1 \2= \3", line)
    text = re.sub(rf"^(\w+) = torch\.({_TORCH_IN_PLACE})\(\1\)$", r"\1 = torch.\2_(\1)", text)
    text = re.sub(rf"^(\w+) = \1\.({_METHODS_IN_PLACE})\(([^()]*)\)$", r"\1 = \1.\2_(\3)", text)
    return re.sub(rf"^(\w+) = F\.({_WITH_FLAG})\(\1([^()]*)\)$", r"\1 = F.\2(\1\3, inplace=True)", text)
