"""A CUDA source within a namespace of its own, so that several can be one translation unit.

Headers stay outside and before it, macros end with it, and functions that Python calls are forwarded from outside,
under names that no other source has. What the language would understand differently in a namespace, or what reaches
into what follows, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dice import cpp
from dice.verify import emulator
from dice.verify.emulator.functions import device_functions
from dice.verify.emulator.tokens import Tokens


class NotShared(Exception):
    """The source cannot share a build with others; the message ends a sentence that begins with "it"."""


@dataclass(frozen=True, slots=True)
class Prototype:
    """A host function as C++ declares it: `torch::Tensor NAME(torch::Tensor x, double eps = 1e-5)`."""

    returned: str
    name: str
    parameters: tuple[str, ...]

    def declared(self, name: str) -> str:
        return f"{self.returned} {name}({', '.join(self.parameters)});"

    def forwarded(self, name: str, to: str) -> str:
        """A function `name` that calls `to`, of the same parameters."""
        plain = [one.partition("=")[0].rstrip() for one in self.parameters]
        arguments = ", ".join(re.findall(r"\w+", one)[-1] for one in plain)
        return f"{self.returned} {name}({', '.join(plain)}) {{ return {to}({arguments}); }}"


_PROTOTYPE = re.compile(r"(?P<returned>[\w:<>,&*\s]+?[\s&*>])(?P<name>\w+)\s*\((?P<parameters>[^(){}]*)\)")
_PARAMETER = re.compile(r"[\w:<>,&*\s]+[\s&*>][A-Za-z_]\w*(\s*=[^=,]*)?")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b[^\n]*$", re.MULTILINE)
_OWNS_THE_MODULE = ("PYBIND11_MODULE", "TORCH_LIBRARY", "TORCH_LIBRARY_IMPL", "TORCH_LIBRARY_FRAGMENT")
_OTHERS = ("std", "at", "torch", "c10", "caffe2", "pybind11", "cub", "thrust", "nvcuda", "cooperative_groups", "cuda")


def prototypes(source: str) -> dict[str, Prototype]:
    """The functions that a C++ source declares, by name. Raises `NotShared` where it does anything else."""
    found: dict[str, Prototype] = {}
    for statement in _INCLUDE.sub("", cpp.blank(source)).split(";"):
        if not statement.strip():
            continue
        match = _PROTOTYPE.fullmatch(statement.strip())
        parameters = _at_commas(match["parameters"]) if match else []
        if match is None or not all(map(_PARAMETER.fullmatch, parameters)):
            raise NotShared("has C++ that does more than to declare functions")
        returned = " ".join(match["returned"].split())
        found[match["name"]] = Prototype(returned, match["name"], tuple(parameters))
    return found


def _at_commas(text: str) -> list[str]:
    """Parameters, each on one line; commas between angle brackets are no ends."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [" ".join(part.split()) for part in parts if part.strip()]


def within(space: str, source: str, functions: Sequence[Prototype], outside: Mapping[str, str]) -> str:
    """The source in the namespace `space`. `outside`: under which names its functions are called from outside.

    Raises `NotShared`."""
    tokens = Tokens(source)
    _require_movable(tokens, space)
    macros = list(dict.fromkeys(_macros(tokens)))
    headers, body, kept = [], [], 0
    for start, end in _includes(tokens):
        headers.append(source[start:end].strip())
        body.append(source[kept:start])
        kept = end
    text = "".join([*body, source[kept:]]).strip("\n")
    parts = [
        "\n".join(headers),
        f"namespace {space} {{",
        text,
        "\n".join(f"#undef {name}" for name in macros),
        f"}}  // namespace {space}",
        "\n".join(one.forwarded(outside[one.name], f"{space}::{one.name}") for one in functions),
    ]
    return "\n\n".join(part for part in parts if part)


def _require_movable(tokens: Tokens, space: str) -> None:
    if not tokens.is_balanced(0, len(tokens)):
        raise NotShared("has brackets without partners")
    for index, token in enumerate(tokens.list):
        following = tokens.text(index + 1)
        if token.text == "extern" and following.startswith('"'):
            raise NotShared('has functions that are extern "C"')
        if token.text in _OWNS_THE_MODULE:
            raise NotShared(f"writes the extension's module itself ({token.text})")
        if token.text == "namespace" and following in _OTHERS and tokens.text(index + 2) in ("{", "::"):
            raise NotShared(f"adds to the namespace {following}")
        if token.text == space:
            raise NotShared(f"calls something of its own {space}")
    for function in device_functions(tokens):
        if function.name in _cuda_functions():
            # In a namespace it would hide CUDA's functions of that name, and overloads would be chosen differently.
            raise NotShared(f"has a function of its own that is called {function.name}, as one of CUDA's is")


@cache
def _cuda_functions() -> frozenset[str]:
    listed = (Path(emulator.__file__).parent / "known_names.txt").read_text(encoding="ascii")
    return frozenset(listed.split()) | {"min", "max", "abs", "pow", "swap"}


def _includes(tokens: Tokens) -> Iterator[tuple[int, int]]:
    """Where the lines with headers begin and end. Raises `NotShared` where they depend on what comes before them."""
    depth = conditions = 0
    is_clean, seen = True, 0
    for start, end in tokens.directives:
        depth += sum((tokens.text(at) == "{") - (tokens.text(at) == "}") for at in range(seen, start))
        seen = end
        what = tokens.text(start + 1)
        conditions += what in ("if", "ifdef", "ifndef")
        conditions -= what == "endif"
        is_clean = is_clean and what not in ("define", "undef")
        if what != "include":
            continue
        if depth or conditions or not is_clean:
            raise NotShared("includes a header where that depends on what comes before it")
        source = tokens.source
        first = source.rfind("\n", 0, tokens[start].start) + 1
        last = source.find("\n", tokens[end - 1].end)
        yield first, len(source) if last < 0 else last + 1


def _macros(tokens: Tokens) -> Iterator[str]:
    """Names of the macros that have to end with the source. Raises `NotShared` for other directives that outlive it."""
    tested: set[str] = set()
    defined: set[str] = set()
    depth, seen = 0, 0
    for start, end in tokens.directives:
        depth += sum((tokens.text(at) == "{") - (tokens.text(at) == "}") for at in range(seen, start))
        seen = end
        what, name = tokens.text(start + 1), tokens.text(start + 2)
        if what in ("ifdef", "ifndef"):
            tested.add(name)
        elif what == "define":
            if name in tested and name not in defined:
                raise NotShared(f"defines the macro {name} unless a header has done so")
            defined.add(name)
            yield name
        elif what == "undef" and name not in defined:
            raise NotShared(f"takes the macro {name} away from a header")
        elif what in ("pragma", "line") and name != "unroll" and not depth:
            raise NotShared(f"has a #{what} {name} that holds for all that follows")
