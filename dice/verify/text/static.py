"""What a kernel file's text says about it. Nothing is executed. Labels annotate; run-time evidence decides.

| kind | meaning |
|---|---|
| `torch_only` | no `__global__` function at all: PyTorch computes everything (paper 4.2 type 1, A.7.1) |
| `example_mimicry` | the kernel is the prompt's element-wise add; heavy operators in `forward` are PyTorch's (type 1) |
| `never_invoked` | CUDA source is there, but `ModelNew` neither holds nor calls what was built from it (type 2) |
| `not_in_forward` | `ModelNew` holds the built module, but nothing reachable from `forward` calls it (type 3) |
| `try_fallback` | the custom call sits in a `try` whose handler computes or returns instead of raising |
| `inherits_reference` | `ModelNew` derives from the reference's `Model` |

| label | meaning |
|---|---|
| `library:cublas` and the like | its C++ calls that library (`library_calls.py`) |
| `dynamic_code` | names or code that are put together at run time: `eval`, `exec`, `getattr(module, expression)` |
| `reflection` | it looks at frames, closures, other code's globals, PyTorch's modes, the table of loaded modules |
| | or memory by its address |

A file is read in time that grows as its length does: each node of the tree is looked at a fixed number of times.

Not covered: a kernel that is launched on a decoy while PyTorch computes the result, and dead code after a condition
that is never true. A label says nothing bad by itself.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice

from dice import syntax
from dice.kernel import Kernel, binds_model_new, cuda_texts, functions_of
from dice.verify.text import library_calls, numbers

KINDS = ("torch_only", "example_mimicry", "never_invoked", "not_in_forward", "try_fallback", "inherits_reference")
BUILDERS = frozenset({"load_inline", "load", "CUDAExtension", "_compile_kernel", "RawKernel"})
HEAVY = frozenset(
    ("matmul", "mm", "bmm", "addmm", "baddbmm", "linear", "einsum", "scaled_dot_product_attention")
    + ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
    + ("softmax", "log_softmax", "layer_norm", "batch_norm", "group_norm", "instance_norm", "cumsum", "cumprod")
    + ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "cross_entropy")
)
EXAMPLE_NAMES = frozenset({"elementwise_add_kernel", "add_kernel", "elementwise_add"})
_RUNS_TEXT = frozenset({"eval", "exec", "__import__", ".import_module", "import_module"})
_REFLECTION = frozenset(
    ("__globals__", "__closure__", "__code__", "__subclasses__", "__builtins__", "f_locals", "f_globals", "f_back")
    + ("tb_frame", "gi_frame", "_getframe", "get_objects", "get_referrers", "get_referents", "currentframe")
    + ("_python_dispatch", "_disable_current_modes", "_DisableTorchDispatch", "_pop_torch_dispatch_stack")
    + ("_unset_dispatch_mode", "_set_dispatch_mode", "_pop_mode", "_pop_mode_temporarily", "from_address")
)
_SEVERAL_STREAMS = re.compile(
    r"StreamCreate|StreamFromPool|StreamPerThread|NonBlocking|\bStream\s*\(|ExternalStream|[gG]raph|Programmatic"
    r"|RNN|LSTM|GRU|[rR]nn|lstm|gru"  # cuDNN's recurrent layers have streams of their own
)
_FORWARD_NAMES = ("forward", "__call__", "apply", "setup_context")
_MOST_BASES = 16  # classes that one is looked for a method in


@dataclass(frozen=True, slots=True)
class StaticReport:
    """`unusable`: why there is nothing to run, or ""."""

    unusable: str = ""
    has_cuda: bool = False
    deceptions: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # remarkable, not deceptive by itself
    library_families: tuple[str, ...] = ()  # of `work.family`: what libraries compute that the text calls directly
    asks_for_build: bool = False  # whether it calls `load_inline` or the like, whatever it hands over
    numbers: tuple[float, ...] = ()  # that its C++ names


def examine(kernel: Kernel) -> StaticReport:
    """Read a kernel file."""
    if not kernel.source.strip():
        return StaticReport("the file is empty.")
    if len(kernel.source) > syntax.MAX_SOURCE:
        return StaticReport(f"the file is larger than {syntax.MAX_SOURCE >> 10} KiB.")
    try:
        tree = syntax.parse(kernel.source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        return StaticReport(f"the file is not valid Python: {getattr(error, 'msg', error)}{where}.")
    if not binds_model_new(tree):
        return StaticReport("the file defines no class ModelNew.")
    functions, sources = functions_of(cuda_texts(tree)), _code_texts(tree)
    labels = tuple(f"library:{name}" for name in library_calls.libraries(sources))
    labels += tuple(dict.fromkeys(filter(None, map(_remarkable, ast.walk(tree)))))
    file = _File(tree)
    deceptions, families = tuple(_deceptions(file, functions)), library_calls.families(sources)
    named = numbers.numbers(sources)
    return StaticReport("", bool(functions), deceptions, functions, labels, families, file.asks_for_build, named)


def may_overlap(source: str) -> bool:
    """Whether the kernel may keep the GPU busy from several streams at once, as far as its text shows."""
    return _SEVERAL_STREAMS.search(source) is not None


def _code_texts(tree: ast.Module) -> list[str]:
    """String literals that hold C++."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [text for text in texts if "{" in text and ";" in text]


def _remarkable(node: ast.AST) -> str:
    """The label that one node earns, or ""."""
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names} | set((node.module or "").split("."))
        return "reflection" if names & _REFLECTION or (node.module == "sys" and "modules" in names) else ""
    if isinstance(node, ast.Attribute):
        of_sys = isinstance(node.value, ast.Name) and node.value.id == "sys"
        return "reflection" if node.attr in _REFLECTION or (of_sys and node.attr == "modules") else ""
    if not isinstance(node, ast.Call):
        return ""
    called = _key(node.func)  # a method `.eval()` or `re.compile()` is none of Python's own
    if called in _RUNS_TEXT:
        return "dynamic_code"
    computed = called == "getattr" and len(node.args) > 1 and not isinstance(node.args[1], ast.Constant)
    return "dynamic_code" if computed and _is_library(node.args[0]) else ""


def _is_library(node: ast.expr) -> bool:
    """Whether an expression is PyTorch, a part of it, or a look-up in one."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else (node.args or [node.func])[0]
    return isinstance(node, ast.Name) and node.id in ("torch", "F", "nn", "builtins")


def _deceptions(file: _File, functions: tuple[str, ...]) -> Iterator[str]:
    if not functions:
        yield "torch_only"
    elif not any(isinstance(node, ast.Call) and file.mentions_handle(node) for node in file.reached):
        yield "not_in_forward" if file.model is not None and file.mentions_handle(file.model) else "never_invoked"
    elif set(functions) <= EXAMPLE_NAMES and any(map(_is_heavy_call, file.reached)):
        yield "example_mimicry"
    if functions and any(_falls_back(file, node) for node in file.reached):
        yield "try_fallback"
    if file.model is not None and any(_last_name(base) == "Model" for base in file.model.bases):
        yield "inherits_reference"


class _File:
    """Names of a module, which of them hold something built from CUDA source, and what `forward` can reach."""

    def __init__(self, tree: ast.Module) -> None:
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.values: dict[str, list[ast.expr]] = {}  # `_key` -> everything assigned to it
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, node)
            for target, value in _assignments(node):
                self.values.setdefault(target, []).append(value)
        self._methods_of: dict[str, list[ast.AST]] = {}
        self._members_of: dict[str, tuple[dict[str, ast.AST], list[str]]] = {}
        self._nodes, self._ends = _in_order(tree)
        self._places = {id(node): place for place, node in enumerate(self._nodes)}
        handles = self._handles(tree)
        self.asks_for_build = any(isinstance(node, ast.Call) and self._builds(node) for node in self._nodes)
        self._mentions = _sums(self._is_handle(node, handles) for node in self._nodes)
        self._uses = _sums(isinstance(node, ast.Call) and self.mentions_handle(node) for node in self._nodes)

    @cached_property
    def model(self) -> ast.ClassDef | None:
        """The class behind `ModelNew`, through aliases such as `ModelNew = Fast`."""
        name = "ModelNew"
        for _ in range(5):
            if name in self.classes:
                return self.classes[name]
            alias = next((value for value in self.values.get(name, ()) if isinstance(value, ast.Name)), None)
            if alias is None:
                return None
            name = alias.id
        return None

    # ---- what holds something that was built

    def _handles(self, tree: ast.Module) -> set[str]:
        """Flow-insensitive: a name is a handle when anything assigned to it builds, or mentions a handle.

        A function's name is one when a `return` in it yields a handle. Every such conclusion is drawn once: `follows`
        says what becomes known with a name, a value or a function, the latter two by their identity.
        """
        follows: defaultdict[str | int, list[str | int]] = defaultdict(list)
        known: list[str | int] = []

        def note(value: ast.expr) -> None:
            if id(value) not in noted:
                noted.add(id(value))
                for cause in self._causes(value):
                    if cause:
                        follows[cause].append(id(value))
                    else:
                        known.append(id(value))

        noted: set[int] = set()
        for name, values in self.values.items():
            for value in values:
                note(value)
                follows[id(value)].append(name)
        for name, function in self.functions.items():
            follows[id(function)].append(name)
        for inner, outer in _enclosing_functions(tree):
            if isinstance(inner, ast.Return):
                if inner.value is not None:
                    note(inner.value)
                    follows[id(inner.value)].append(id(outer))
            else:
                follows[id(inner)].append(id(outer))
        found: set[str | int] = set()
        while known:
            one = known.pop()
            if one not in found:
                found.add(one)
                known += follows[one]
        return {name for name in found if isinstance(name, str)}

    def _causes(self, value: ast.expr) -> Iterator[str]:
        """Names of which each, once it is a handle, makes the value one or a holder of one; "" when it is anyway.

        What a handle returns when called is a tensor, not a handle.
        """
        pending: list[ast.expr | None] = [value]
        while pending:
            part = pending.pop()
            if isinstance(part, ast.Call):
                if self._builds(part):
                    yield ""
                if _key(part.func) in self.functions:
                    yield _key(part.func)
                if _last_name(part.func) == "partial" or _key(part.func) in self.classes:
                    pending += part.args
            elif isinstance(part, ast.Name | ast.Attribute):
                for node in ast.walk(part):
                    if self._is_handle(node, ()):
                        yield ""
                    elif isinstance(node, ast.Name | ast.Attribute):
                        yield _key(node)
            elif isinstance(part, ast.List | ast.Tuple):
                pending += part.elts
            elif isinstance(part, ast.Dict | ast.BoolOp):
                pending += part.values
            elif isinstance(part, ast.IfExp):
                pending += [part.body, part.orelse]

    def _builds(self, call: ast.Call) -> bool:
        return _last_name(call.func) in BUILDERS and not _is_data_load(call)

    def _is_handle(self, node: ast.AST, handles: Iterable[str]) -> bool:
        """Whether this very node builds an extension or names something that holds one."""
        if isinstance(node, ast.Call):
            return self._builds(node)
        if not isinstance(node, ast.Name | ast.Attribute):
            return False
        return _key(node) in handles or (isinstance(node, ast.Attribute) and _is_torch_ops(node))

    def mentions_handle(self, node: ast.AST) -> bool:
        """Whether a piece of code builds an extension or names something that holds one."""
        return self._counts(self._mentions, node)

    def uses_handle(self, body: ast.AST) -> bool:
        """Whether code calls a handle, calls something of it, or hands it to a call."""
        return self._counts(self._uses, body)

    def _counts(self, sums: list[int], node: ast.AST) -> bool:
        place = self._places[id(node)]
        return sums[self._ends[place]] > sums[place]

    # ---- what runs

    @cached_property
    def reached(self) -> list[ast.AST]:
        """Nodes that `ModelNew.forward` can reach, those of its own body included. Over-approximates: a mention counts
        as a call."""
        model = self.model
        if model is None:
            return []
        found: list[ast.AST] = []
        seen: set[int] = set()  # places of nodes
        mentioned: set[str] = set()
        valued: set[int] = set()  # values that were looked into
        pending: list[ast.AST] = [*self._methods(model)]
        while pending:
            place = self._places[id(pending.pop())]
            end = self._ends[place]
            while place < end:
                if place in seen:
                    place = self._ends[place]
                    continue
                seen.add(place)
                part = self._nodes[place]
                found.append(part)
                if isinstance(part, ast.Name | ast.Attribute) and _key(part) not in mentioned:
                    mentioned.add(_key(part))
                    pending += self._behind(part, model, valued)
                place += 1
        return found

    def _behind(self, part: ast.Name | ast.Attribute, model: ast.ClassDef, valued: set[int]) -> list[ast.AST]:
        """Code that running a mention of this name may run. What is in `valued` was said already."""
        name = part.id if isinstance(part, ast.Name) else part.attr
        found: list[ast.AST] = []
        if name in self.functions and name not in _FORWARD_NAMES:
            found.append(self.functions[name])
        if isinstance(part, ast.Name) and name in self.classes:
            found += self._methods(self.classes[name])
        for value in self.values.get(_key(part), ()):
            if id(value) in valued:
                continue
            valued.add(id(value))
            if isinstance(value, ast.Lambda):
                found.append(value)
            for inner in ast.walk(value):
                if isinstance(inner, ast.Name) and inner.id in self.classes and inner.id != model.name:
                    found += self._methods(self.classes[inner.id])
                elif isinstance(inner, ast.Name | ast.Attribute) and _last_name(inner) in self.functions:
                    found.append(self.functions[_last_name(inner)])
        return found

    def _methods(self, owner: ast.ClassDef) -> list[ast.AST]:
        """Methods of a class that run when it is called or applied, inherited ones included."""
        if owner.name in self._methods_of:
            return self._methods_of[owner.name]
        found: dict[str, ast.AST] = {}
        pending = [owner]
        seen: set[str] = set()
        while pending and len(seen) < _MOST_BASES:
            current = pending.pop(0)
            if current.name in seen:
                continue
            seen.add(current.name)
            own, bases = self._members(current)
            for name, method in own.items():
                found.setdefault(name, method)
            pending += [self.classes[base] for base in bases if base not in seen]
        self._methods_of[owner.name] = list(found.values())
        return self._methods_of[owner.name]

    def _members(self, owner: ast.ClassDef) -> tuple[dict[str, ast.AST], list[str]]:
        """Its methods among `_FORWARD_NAMES`, the first of each name, and the classes of this file it derives from."""
        if owner.name not in self._members_of:
            own: dict[str, ast.AST] = {}
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and node.name in _FORWARD_NAMES:
                    own.setdefault(node.name, node)
            bases = (base for base in dict.fromkeys(map(_last_name, owner.bases)) if base in self.classes)
            self._members_of[owner.name] = own, list(islice(bases, _MOST_BASES))
        return self._members_of[owner.name]


def _in_order(tree: ast.AST) -> tuple[list[ast.AST], list[int]]:
    """All nodes, each followed by those below it, and for each the place just past the last of them."""
    nodes: list[ast.AST] = []
    ends: list[int] = []
    pending: list[ast.AST | int] = [tree]
    while pending:
        one = pending.pop()
        if isinstance(one, int):
            ends[one] = len(nodes)
        else:
            pending.append(len(nodes))
            nodes.append(one)
            ends.append(0)
            pending += ast.iter_child_nodes(one)
    return nodes, ends


def _sums(counted: Iterable[bool]) -> list[int]:
    """For each place, how many before it were counted."""
    return list(accumulate(counted, initial=0))


def _enclosing_functions(tree: ast.Module) -> Iterator[tuple[ast.Return | ast.FunctionDef, ast.FunctionDef]]:
    """Each `return` and each function, with the innermost function that it stands in."""
    pending: list[tuple[ast.AST, ast.FunctionDef | None]] = [(tree, None)]
    while pending:
        node, outer = pending.pop()
        if isinstance(node, ast.Return | ast.FunctionDef) and outer is not None:
            yield node, outer
        if isinstance(node, ast.FunctionDef):
            outer = node
        pending += ((child, outer) for child in ast.iter_child_nodes(node))


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """(key, value) pairs that a node binds: assignments, imports as names, defaults, `setattr(self, "x", value)`."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        yield from _targets(node.target, node.value)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _targets(node.optional_vars, node.context_expr)
    elif isinstance(node, ast.Call) and _last_name(node.func) == "setattr" and len(node.args) == 3:
        name = node.args[1]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield f"self.{name.value}", node.args[2]
    elif isinstance(node, ast.ClassDef):
        for statement in node.body:
            bound = _assignments(statement) if isinstance(statement, ast.Assign) else ()
            yield from ((f"self.{name}", value) for name, value in bound)


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    pending = [(target, value)]
    while pending:
        target, value = pending.pop()
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
            pending += reversed(list(zip(target.elts, values, strict=False)))
        elif isinstance(target, ast.Name | ast.Attribute):
            yield _key(target), value
        elif isinstance(target, ast.Subscript):
            pending.append((target.value, value))


def _key(node: ast.expr) -> str:
    """`name` for a variable, `self.attribute`, and `.attribute` for one of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, ast.Attribute):
        return ""
    of_self = isinstance(node.value, ast.Name) and node.value.id == "self"
    return f"self.{node.attr}" if of_self else f".{node.attr}"


def _last_name(node: ast.expr) -> str:
    return _key(node).rpartition(".")[2]


def _is_data_load(call: ast.Call) -> bool:
    """`torch.load`, `json.load`: not a build."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return owner is not None and _last_name(call.func) == "load" and _last_name(owner) != "cpp_extension"


def _is_torch_ops(node: ast.Attribute) -> bool:
    """`torch.ops.something`, where a library registered by the CUDA source would be found."""
    return node.attr == "ops" and isinstance(node.value, ast.Name) and node.value.id == "torch"


def _is_heavy_call(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.MatMult)
    return isinstance(node, ast.Call) and _last_name(node.func) in HEAVY


def _falls_back(file: _File, node: ast.AST) -> bool:
    if not isinstance(node, ast.Try) or not any(file.uses_handle(statement) for statement in node.body):
        return False
    return any(not _raises(handler) for handler in node.handlers)


def _raises(handler: ast.ExceptHandler) -> bool:
    return bool(handler.body) and isinstance(handler.body[-1], ast.Raise)
