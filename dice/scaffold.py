"""What a model need not guess of a kernel file, because the module says it: everything but the CUDA source.

A reply's CUDA source is kept, with its host function. The declaration for C++, the build, the constructor, the
signature of `forward` and the call follow from the module's own text and from the host function's parameters. So a file
cannot fail for a dropped input, a misspelt name, a lost attribute path or Python that does not parse.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dice import cpp, syntax
from dice.kernel import Kernel
from dice.kernel_form import kernel_file
from dice.problem import Problem

_SOURCE = re.compile(r'"""(?P<text>(?:(?!""").)*?\b__global__\b(?:(?!""").)*)"""', re.DOTALL)
_HOST = re.compile(
    r"^(?P<type>(?:std::(?:vector|tuple)<[\w:, ]{1,200}>|(?:torch|at)::Tensor))\s+(?P<name>\w{1,100})\s*"
    r"\((?P<parameters>[^(){};]{0,2000})\)\s*\{",
    re.MULTILINE,
)
_NUMBERS = ("int", "int64_t", "long", "float", "double", "bool", "size_t")
_LAYERS = ("Linear", "Conv", "LayerNorm", "GroupNorm", "BatchNorm", "RMSNorm", "Embedding", "PReLU")
_DROPPED = ("Model", "get_inputs", "get_init_inputs")
_SPELLED = {"w": "weight", "b": "bias", "mean": "running_mean", "var": "running_var", "slope": "negative_slope"}


@dataclass(frozen=True, slots=True)
class Host:
    """The function that Python calls: `parameters` are (name, whether it is a tensor)."""

    declaration: str
    name: str
    parameters: tuple[tuple[str, bool], ...]


def completed(problem: Problem, reply: str) -> Kernel | None:
    """The kernel file around the reply's CUDA source; None where there is none, or where its host function takes what
    the module does not have."""
    found = _SOURCE.search(reply)
    module = _Module.of(problem)
    if found is None or module is None or "\\" in found["text"].replace("\\n", ""):
        return None
    host = _host(found["text"])
    arguments = module.arguments(host.parameters, _own_call(reply, host.name)) if host else None
    if host is None or arguments is None:
        return None
    text = kernel_file(
        cuda=found["text"].strip("\n"),
        declaration=host.declaration,
        name=host.name,
        function=host.name,
        constructor="".join(f"{line}\n" for line in module.constructor),
        arguments=module.signature,
        body=f"        return ops.{host.name}({', '.join(arguments)})",
        before="".join(f"{line}\n" for line in module.head) + "\n",
    )
    return Kernel(text, name=problem.name)


def _host(source: str) -> Host | None:
    """The last host function that gives tensors: those before it are its helpers."""
    found = list(_HOST.finditer(cpp.blank(source)))
    if not found:
        return None
    last = found[-1]
    parameters = []
    for text in last["parameters"].split(",") if last["parameters"].strip() else ():
        name = re.search(r"(\w+)\s*(?:=.*)?$", text.strip())
        kind = re.sub(r"\b(const|c10|torch|at|std)\b|::|&", "", text).split()
        if name is None or not kind or not (kind[0] == "Tensor" or kind[0] in _NUMBERS):
            return None
        parameters.append((name[1], kind[0] == "Tensor"))
    declaration = " ".join(f"{last['type']} {last['name']}({last['parameters']})".split())
    return Host(declaration, last["name"], tuple(parameters))


def _own_call(reply: str, name: str) -> list[str]:
    """The arguments of the reply's own call of its function, where they can be read; else none."""
    for found in re.finditer(rf"\.{name}\(([^\n]{{0,500}})\)", reply):
        try:
            call = ast.parse(f"f({found[1]})", mode="eval").body
        except (SyntaxError, ValueError):
            continue
        if isinstance(call, ast.Call) and not call.keywords:
            return [ast.unparse(one) for one in call.args]
    return []


@dataclass(frozen=True, slots=True)
class _Module:
    """A module's text, apart. `head`: what its constructor needs. `inputs`: forward's parameters. `paths`: what `self`
    has, as the module's own text names it, `self.conv.weight`, `self.eps`: "tensor", "number", or "" for a layer.
    `names`: what the file defines."""

    head: tuple[str, ...]
    names: frozenset[str]
    constructor: tuple[str, ...]
    signature: str
    inputs: tuple[str, ...]
    paths: Mapping[str, str]

    @classmethod
    def of(cls, problem: Problem) -> _Module | None:
        try:
            tree = syntax.parse(problem.source)
        except (SyntaxError, ValueError):
            return None
        model = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"), None)
        methods = {node.name: node for node in model.body if isinstance(node, ast.FunctionDef)} if model else {}
        forward = methods.get("forward")
        if forward is None or forward.args.vararg or forward.args.kwarg or set(methods) - {"forward", "__init__"}:
            return None
        init = methods.get("__init__")
        kept = [node for node in tree.body if getattr(node, "name", "") not in _DROPPED]
        head = [ast.unparse(node) for node in kept if not _is_text(node) and not isinstance(node, ast.If)]
        text = ast.unparse(init).replace("super(Model, self)", "super()") if init else ""
        constructor = (*(f"    {line}" for line in text.split("\n")), "") if text else ()
        stored = (one for node in kept for one in ast.walk(node) if isinstance(one, ast.Name))
        return cls(
            tuple(head),
            frozenset(one.id for one in stored if isinstance(one.ctx, ast.Store)),
            constructor,
            ast.unparse(forward.args).partition(", ")[2],
            tuple(one.arg for one in (*forward.args.args[1:], *forward.args.kwonlyargs)),
            dict(_paths(init, forward)),
        )

    def arguments(self, parameters: Sequence[tuple[str, bool]], own: Sequence[str]) -> list[str] | None:
        """What the host function is given for each of its parameters: what the reply's own call gives, where that is
        there and of the parameter's kind; else what has its name; else what is left of its kind, if nothing else is.
        None where something is not to be had, or an input would be dropped."""
        given: list[str | None] = [None] * len(parameters)
        if len(own) == len(parameters):
            given = [
                one if self._fits(one, is_tensor) and own.count(one) == 1 else None
                for one, (_, is_tensor) in zip(own, parameters, strict=True)
            ]
        for place, (name, is_tensor) in enumerate(parameters):
            if given[place] is None:
                given[place] = self._named(name, is_tensor, given)
        for is_tensor, kind in ((True, "tensor"), (False, "number")):
            lacking = [place for place, one in enumerate(given) if one is None and parameters[place][1] == is_tensor]
            left = [one for one in self.inputs if one not in given] if is_tensor else []
            left += [path for path, known in self.paths.items() if known == kind and path not in given]
            if len(left) == len(lacking):
                for place, one in zip(lacking, left, strict=True):
                    given[place] = one
        if None in given or not set(self.inputs) <= set(given):
            return None
        return [one for one in given if one is not None]

    def _named(self, name: str, is_tensor: bool, taken: Sequence[str | None]) -> str | None:
        if name in self.inputs and name not in taken:
            return name
        kind = "tensor" if is_tensor else "number"
        for wanted in (name, _SPELLED.get(name, name)):
            fitting = [path for path, known in self.paths.items() if known == kind and _ends_in(path, wanted)]
            if len(fitting) == 1 and fitting[0] not in taken:
                return fitting[0]
        return None

    def _fits(self, argument: str, is_tensor: bool) -> bool:
        """Whether all that an argument names is there, and it is no number for a tensor, or the other way round."""
        if argument in self.inputs:
            return is_tensor
        if argument in self.paths:
            return self.paths[argument] == ("tensor" if is_tensor else "number")
        names = {one.id for one in ast.walk(ast.parse(argument)) if isinstance(one, ast.Name)} - {"self"}
        reached = re.findall(r"\bself(?:\.\w+)+", argument)
        if not names <= self.names | set(self.inputs) or is_tensor and not reached:
            return False
        return all(any(f"{one}.".startswith(f"{path}.") for path in self.paths) for one in reached)


def _ends_in(path: str, name: str) -> bool:
    """`self.conv.weight` is meant by weight and by conv_weight."""
    parts = path.split(".")[1:]
    return any("_".join(parts[at:]) == name for at in range(len(parts)))


def _paths(init: ast.FunctionDef | None, forward: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """What the module's text says that `self` has, with the tensors of PyTorch's layers."""
    for node in ast.walk(init) if init else ():
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=value):
                yield from _made(f"self.{name}", value)
            case ast.Call(func=ast.Attribute(value=ast.Name("self"), attr="register_buffer"), args=[name, *_]):
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield f"self.{name.value}", "tensor"
    for one in ast.walk(forward):
        if isinstance(one, ast.Attribute) and ast.unparse(one).endswith((".weight", ".bias")):
            yield ast.unparse(one), "tensor"


def _made(path: str, value: ast.expr) -> Iterator[tuple[str, str]]:
    """What an attribute is, by what it is set to."""
    called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
    kind = called.rsplit(".")[-1]
    if not called:
        yield path, "number"
        return
    yield path, "tensor" if kind == "Parameter" or called.startswith("torch.") else ""
    if not called.startswith(("nn.", "torch.nn.")) or not kind.startswith(_LAYERS):
        return
    yield f"{path}.weight", "tensor"
    assert isinstance(value, ast.Call)
    lacks = any(one.arg == "bias" and ast.unparse(one.value) == "False" for one in value.keywords)
    if not lacks and kind.startswith(("Linear", "Conv", "LayerNorm", "GroupNorm", "BatchNorm")):
        yield f"{path}.bias", "tensor"
    if kind.startswith("BatchNorm"):
        yield from ((f"{path}.{name}", "tensor") for name in ("running_mean", "running_var"))
    if "Norm" in kind:
        yield f"{path}.eps", "number"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
