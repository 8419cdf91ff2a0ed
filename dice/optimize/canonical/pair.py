"""`canonical_pair`: a drawn pair in the form in which `dice generate` and `dice optimize` ask for kernels.

Its problem is what `printing.py` prints of the module's one region, to the letter. Its kernel keeps the CUDA source;
`ModelNew` gets the printed constructor, the printed inputs in their order, and the paths that states have there.
Modules of several regions, and kernels that leave a part to PyTorch, have no such form.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from torch.nn.modules import utils

from dice.kernel import Kernel
from dice.optimize.canonical.follow import Followed, follow
from dice.optimize.graph import Ref
from dice.optimize.printing import Printed, problem_of
from dice.optimize.region import Region
from dice.optimize.regions import cut
from dice.optimize.trace.functional import NotTraced
from dice.problem import Problem
from dice.synth.pair import CANONICAL, Pair

_CLASS = "class ModelNew(nn.Module):\n"
_IMPORTS = {  # lines of a kernel's file that its new class may need no more
    "F": "import torch.nn.functional as F\n",
    "math": "import math\n",
    **{name: f"from torch.nn.modules.utils import {name}\n" for name in ("_single", "_pair", "_triple")},
}


def canonical_pair(pair: Pair) -> Pair | str:
    """The pair in canonical form, in both of its sizes; or why it has none."""
    try:
        problem, kernel = _written(pair.problem, pair.kernel)
        if pair.check_source is None:
            return replace(pair, problem=problem, kernel=kernel, written=(CANONICAL,))
        small, small_kernel = _written(pair.check_problem, pair.kernel)
    except (NotTraced, _OtherForm) as reason:
        return str(reason)
    return replace(
        pair,
        problem=problem,
        kernel=kernel,
        written=(CANONICAL,),
        check_source=small.source,
        check_kernel_source=small_kernel.source,
    )


def _written(problem: Problem, kernel: Kernel) -> tuple[Problem, Kernel]:
    parts = _parts(kernel.source)  # first: following takes a hundred times as long
    followed = follow(problem.source)
    regions = cut(followed.graph)
    if len(regions) != 1 or regions[0].updates or followed.graph.output != Ref(*regions[0].outputs[:1]):
        raise _OtherForm("it is not one region")
    printed = problem_of(regions[0])
    text = _Follower(followed, regions[0], printed).kernel(*parts)
    return replace(printed.problem, name=problem.name), replace(kernel, source=text)


def _parts(source: str) -> tuple[str, list[str], ast.expr]:
    """What a kernel's file has before its class, and what its `forward` takes and returns."""
    head, _, old = source.partition(_CLASS)
    (model,) = (one for one in ast.parse(_CLASS + old).body if isinstance(one, ast.ClassDef))
    forward = next(one for one in model.body if isinstance(one, ast.FunctionDef) and one.name == "forward")
    match forward.body:
        case [ast.Return(value=ast.expr() as value)]:
            return head, [one.arg for one in forward.args.args[1:]], value
    raise _OtherForm("PyTorch does a part of the work")


class _OtherForm(Exception):
    """There is no such form of the pair. The message is one of few: they are counted."""


@dataclass
class _Follower(ast.NodeTransformer):
    """Rewrites what a kernel's `forward` passes on. `inputs`, `states`: texts there -> texts in the printed problem."""

    followed: Followed
    region: Region
    printed: Printed

    def __post_init__(self) -> None:
        whole = self.followed.graph.by_name()
        own = [node.name for node in self.region.graph.nodes if node.operator == "input"]
        access = [whole[name].arguments[0] for name in self.region.inputs if whole[name].operator == "input"]
        if not len(own) == len(access) == len(self.followed.inputs):
            raise _OtherForm("an input that nothing reads, or one that is computed")
        self.renamed: dict[str, str] = {}  # inputs as the kernel's file calls them -> as the printed problem does
        self.inputs: dict[str, str] = dict(zip(access, own, strict=True))
        paths = [f"self{whole[name].arguments[0]}" for name in self.region.states]
        self.states: dict[str, str] = {
            path: f"self.{place}" for path, place in zip(paths, self.printed.paths, strict=True)
        }
        self.layers = {  # the old path of a layer -> the new one
            old.rpartition(".")[0]: new.rpartition(".")[0] for old, new in self.states.items() if new.count(".") > 1
        }

    def kernel(self, head: str, taken: list[str], value: ast.expr) -> str:
        """The whole file, from what its old one has before the class, and its `forward` takes and returns."""
        if len(taken) != len(self.followed.inputs):
            raise _OtherForm("an input that nothing reads, or one that is computed")
        self.renamed = {own: self.inputs[name] for own, name in zip(taken, self.followed.inputs, strict=True)}
        body = ast.unparse(self.visit(value))
        lines = self.printed.problem.source.split("\n")
        begin = lines.index("class Model(nn.Module):") + 1
        end = next(at for at, line in enumerate(lines) if line.startswith("    def forward(self"))
        constructor = "".join(f"{line}\n" for line in lines[begin:end])
        text = f"{constructor}    def forward(self, {', '.join(self.inputs.values())}):\n        return {body}\n"
        for name, line in _IMPORTS.items():
            if not re.search(rf"\b{name}\b", text):
                head = head.replace(line, "")
        return head + _CLASS + text

    # ---- expressions ---------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self.renamed.get(node.id, node.id), node.ctx)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        arguments = [new for one in node.args for new in self._argument(one)]
        return ast.Call(self.visit(node.func), arguments, [self.visit(one) for one in node.keywords])

    def _argument(self, node: ast.expr) -> list[ast.expr]:
        """`*_pair(self.pool.stride)` of a layer that the printed problem has not becomes its numbers."""
        new = self.visit(node)
        if not isinstance(new, ast.Starred) or "self" in ast.unparse(new):
            return [new]
        return [_number(value) for value in eval(ast.unparse(new.value), vars(utils))]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._path(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return self._path(node)

    def _path(self, node: ast.Attribute | ast.Subscript) -> ast.expr:
        """A state under its new path, a number of a layer under its own, or as the number that it is."""
        text = ast.unparse(node)
        if text in self.states:
            return ast.parse(self.states[text], mode="eval").body
        if not re.match(r"self\b", text) or any(text.startswith(f"{path}.") for path in self.states):
            result = self.generic_visit(node)
            assert isinstance(result, ast.expr)
            return result
        value = self._value(text)
        owner, _, name = text.rpartition(".")
        path = f"{self.layers.get(owner, owner)}.{name}".removeprefix("self.")
        if owner in self.layers and self.printed.constants.get(path) == repr(value):
            return ast.parse(f"self.{path}", mode="eval").body
        return _number(value)

    def _value(self, text: str) -> object:
        try:
            return eval(text, {"self": self.followed.module})
        except (AttributeError, LookupError, NameError) as error:
            raise _OtherForm("the kernel passes on what the module has not") from error


def _number(value: object) -> ast.expr:
    match value:
        case bool() | int() | float():
            return ast.parse(repr(value), mode="eval").body
        case tuple() | list():
            return ast.Tuple([_number(one) for one in value], ast.Load())
    raise _OtherForm(f"a {type(value).__name__} is passed on")
