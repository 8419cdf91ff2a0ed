"""`Text`: a Python file that is rewritten piece by piece, so that everything else stays as its author left it.

Edits are collected against the syntax tree of the text as it was, and applied at once by `result`.
"""

from __future__ import annotations

import ast
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dice.synth.tables.names import composed

Function = ast.FunctionDef


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HARNESS = ("__init__", "get_inputs", "get_init_inputs")  # functions in which nothing is computed
BARE = frozenset({"torch", "F", "nn", "math", "self", "ops", "np", "super"})  # names that are no tensors


@dataclass(frozen=True, slots=True)
class Work:
    """A problem and its kernel on their way from style to style."""

    problem: str
    kernel: str


Style = Callable[[Work, random.Random], Work | None]  # None: the style has no place in this pair


# What nn.Module calls its own: a method or an attribute of that name would break it.
_OF_MODULES = words("""
T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval
extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia
named_buffers named_children named_modules named_parameters parameters register_buffer register_module
register_parameter requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty train training type
xpu zero_grad _apply _buffers _call_impl _compiled_call_impl _get_backward_hooks _get_name _modules _parameters
_named_members _register_state_dict_hook _replicate_for_data_parallel _save_to_state_dict _slow_forward _version
_load_from_state_dict _wrapped_call_impl
""")


class Text:
    """One file, its syntax tree, and the edits that wait for `result`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = _parsed(text)
        self._starts = [0]
        for line in text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._edits: list[tuple[int, int, int, str]] = []

    # ---- reading -------------------------------------------------------------------------------------------------

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where the node's text begins and ends."""
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        end_line, end_column = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return self._starts[line - 1] + column, self._starts[end_line - 1] + end_column

    @property
    def classes(self) -> list[ast.ClassDef]:
        return [node for node in self.tree.body if isinstance(node, ast.ClassDef)]

    @property
    def model(self) -> ast.ClassDef:
        """The class `Model`, or `ModelNew` of a kernel's file."""
        return next(node for node in self.classes if node.name in ("Model", "ModelNew"))

    def method(self, name: str) -> Function | None:
        found = (node for node in self.model.body if isinstance(node, Function) and node.name == name)
        return next(found, None)

    def function(self, name: str) -> Function:
        """A function of the file."""
        return next(node for node in self.tree.body if isinstance(node, Function) and node.name == name)

    @property
    def forward(self) -> Function:
        found = self.method("forward")
        assert found is not None
        return found

    @property
    def inputs(self) -> list[str]:
        """Names of the arguments of `forward`."""
        return [item.arg for item in self.forward.args.args[1:]]

    @property
    def working(self) -> list[Function]:
        """The functions that compute: `forward`, methods beside it and functions of the file."""
        bodies = [self.tree.body, *(node.body for node in self.classes)]
        found = [node for body in bodies for node in body if isinstance(node, Function)]
        return [node for node in found if node.name not in HARNESS]

    @property
    def taken(self) -> set[str]:
        """Every name and attribute of the file, and what modules have besides."""
        return set(_taken(self.text))

    def uses(self, name: str, within: ast.AST | None = None) -> list[ast.Attribute]:
        """Every `self.<name>` that is read."""
        return [
            node
            for node in ast.walk(within or self.model)
            if isinstance(node, ast.Attribute)
            and node.attr == name
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
            and isinstance(node.ctx, ast.Load)
        ]

    def made(self) -> dict[str, ast.Assign]:
        """`self.name = ...` at the first level of the constructor: the statements by name, of names set only once."""
        init = self.method("__init__")
        found: dict[str, ast.Assign] = {}
        for node in ast.walk(init) if init else ():
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and is_own(node.targets[0]):
                name = node.targets[0].attr  # type: ignore[attr-defined]
                if init and node in init.body and name not in found:
                    found[name] = node
        return found

    # ---- writing -------------------------------------------------------------------------------------------------

    def replace(self, node: ast.AST, new: str) -> None:
        self._edit(*self.span(node), new)

    def rename(self, name: str, new: str) -> None:
        """Another path for `self.<name>`, wherever it is read: `self.<new>`."""
        for node in self.uses(name):
            self.replace(node, f"self.{new}")

    def above(self, statement: ast.stmt, *lines: str) -> None:
        """Lines before a statement and its decorators, indented like it."""
        first = min([statement.lineno, *(node.lineno for node in getattr(statement, "decorator_list", ()))])
        self._insert(self._starts[first - 1], statement.col_offset, lines)

    def below(self, statement: ast.stmt, *lines: str) -> None:
        self._insert(self._starts[statement.end_lineno or 0], statement.col_offset, lines)

    def instead(self, statement: ast.stmt, *lines: str) -> None:
        """Lines in place of a statement and of what is written behind it."""
        margin = " " * statement.col_offset
        new = "".join(f"{margin}{line}\n" if line else "\n" for line in lines)
        self._edit(self._starts[statement.lineno - 1], self._starts[statement.end_lineno or 0], new)

    def constant(self, *lines: str) -> None:
        """Lines of the file above its first class or function."""
        first = next(node for node in self.tree.body if isinstance(node, Function | ast.ClassDef))
        self.above(first, *lines, "", "")

    def member(self, *lines: str) -> None:
        """Lines of the class, in front of `forward`."""
        self.above(self.forward, *lines, "")

    def signature(self, function: Function, more: str) -> None:
        """One more argument at the end of a function's signature."""
        arguments = function.args
        items = [*arguments.args, *arguments.defaults]
        _, end = max(self.span(item) for item in items)
        annotations = [item.annotation for item in arguments.args if item.annotation]
        end = max([end, *(self.span(item)[1] for item in annotations)])
        self._edit(end, end, f", {more}")

    def require(self, line: str) -> None:
        """An import, unless the file has it."""
        if line not in self.text.split("\n"):
            last = [node for node in self.tree.body if isinstance(node, ast.Import | ast.ImportFrom)][-1]
            self.below(last, line)

    def result(self) -> str:
        """The file with all edits. Raises `SyntaxError` when it is no Python any more."""
        text = self.text
        for start, end, _, new in sorted(self._edits, reverse=True):
            text = text[:start] + new + text[end:]
        _parsed(text)
        return text

    def _insert(self, place: int, margin: int, lines: Sequence[str]) -> None:
        new = "".join(f"{' ' * margin}{line}\n" if line else "\n" for line in lines)
        self._edit(place, place, new)

    def _edit(self, start: int, end: int, new: str) -> None:
        self._edits.append((start, end, len(self._edits), new))


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module:
    """The syntax tree, which nobody changes: one style after the other looks at the same texts."""
    return ast.parse(text)


@functools.lru_cache(maxsize=16)
def _taken(text: str) -> frozenset[str]:
    found = set(_OF_MODULES)
    for node in ast.walk(_parsed(text)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
    return frozenset(found)


def is_own(node: ast.AST) -> bool:
    """Whether this is `self.<name>`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def called(node: ast.AST) -> str:
    """What a call calls, `torch.relu` or `self.act`; of a method of some value its name alone; else empty."""
    if not isinstance(node, ast.Call):
        return ""
    path = []
    function: ast.expr = node.func
    while isinstance(function, ast.Attribute):
        path.append(function.attr)
        function = function.value
    if isinstance(function, ast.Name) and (function.id in BARE or not path):
        return ".".join([function.id, *reversed(path)])
    return path[0] if path else ""


def atom(text: str, node: ast.AST) -> str:
    """The text, in parentheses where an operator or a method would not take it as one thing."""
    whole = ast.Name | ast.Attribute | ast.Call | ast.Subscript
    return text if isinstance(node, whole) else f"({text})"


def statements(function: Function) -> Iterator[ast.Assign | ast.Return]:
    """Assignments to one name, and returns, at the first level of a function."""
    for node in function.body:
        named = isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        if isinstance(node, ast.Assign | ast.Return) and (
            named or isinstance(node, ast.Return) and node.value is not None
        ):
            yield node


def fresh(rng: random.Random, pool: Sequence[str], taken: set[str]) -> str:
    """A name of the pool that means nothing yet, or a composed one."""
    free = [name for name in pool if name not in taken]
    if free and rng.random() < 0.85:
        return rng.choice(free)
    while (name := composed(rng)) in taken:
        pass
    return name


# Methods and functions whose result is no single tensor, or no tensor at all.
_NO_TENSOR = words("""
size dim numel item tolist shape stride chunk split unbind tensor_split sort topk max min median mode aminmax var_mean
std_mean unique nonzero svd is_floating_point element_size lstm gru rnn data_ptr ndimension get_device finfo
""")


def tensors(text: Text, function: Function) -> set[str]:
    """Names of a function that surely hold one tensor wherever they are read."""
    numbers = {
        item.arg
        for item in function.args.args
        if item.annotation is not None and "ensor" not in ast.unparse(item.annotation)
    }
    known = {item.arg for item in function.args.args} - {"self"} - numbers
    if function.name == "forward" and function in text.model.body:
        known = {name for name, made in zip(text.inputs, given(text), strict=False) if name in known and made}
    elif function.name != "forward":
        known -= {item.arg for item in function.args.args} - _passed(text)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and is_tensor(node.value, known):
                    known.add(target.id)
                else:
                    known -= {item.id for item in ast.walk(target) if isinstance(item, ast.Name)}
        elif isinstance(node, ast.For):
            known -= {item.id for item in ast.walk(node.target) if isinstance(item, ast.Name)}
    return known


def _passed(text: Text) -> set[str]:
    """Inputs of `forward` that are tensors: helpers of the generator call theirs alike."""
    return {name for name, made in zip(text.inputs, given(text), strict=False) if made}


def given(text: Text) -> list[bool]:
    """Which of the things that `get_inputs` returns are tensors."""
    function = text.function("get_inputs")
    last = function.body[-1]
    if not isinstance(last, ast.Return) or not isinstance(last.value, ast.List | ast.Tuple):
        return []
    made = {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    values = [made.get(item.id, item) if isinstance(item, ast.Name) else item for item in last.value.elts]
    return [any(isinstance(node, ast.Call) for node in ast.walk(value)) for value in values]


def is_tensor(node: ast.AST, known: set[str]) -> bool:
    """Whether the expression surely is one tensor, where the names in `known` are."""
    match node:
        case ast.Name():
            return node.id in known
        case ast.BinOp():
            return is_tensor(node.left, known) or is_tensor(node.right, known)
        case ast.UnaryOp():
            return not isinstance(node.op, ast.Not) and is_tensor(node.operand, known)
        case ast.Subscript():
            return is_tensor(node.value, known)
        case ast.Attribute():
            return node.attr in ("T", "mT") and is_tensor(node.value, known)
        case ast.Call():
            return _gives_tensor(node, known)
    return False


def _gives_tensor(node: ast.Call, known: set[str]) -> bool:
    path = called(node)
    if not path or path.split(".")[-1] in _NO_TENSOR:
        return False
    if path.startswith(("torch.", "F.")):
        return True
    if path.startswith("self."):
        return any(is_tensor(item, known) for item in node.args)
    return isinstance(node.func, ast.Attribute) and is_tensor(node.func.value, known)
