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
| `reflection` | it looks at frames, closures, other code's globals or the table of loaded modules |

Not covered: a kernel that is launched on a decoy while PyTorch computes the result, and dead code after a condition
that is never true. A label says nothing bad by itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from dice import syntax
from dice.kernel import Kernel
from dice.verify import library_calls

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
)
_SEVERAL_STREAMS = re.compile(
    r"StreamCreate|StreamFromPool|StreamPerThread|NonBlocking|\bStream\s*\(|ExternalStream|[gG]raph|Programmatic"
    r"|RNN|LSTM|GRU|[rR]nn|lstm|gru"  # cuDNN's recurrent layers have streams of their own
)
_FORWARD_NAMES = ("forward", "__call__", "apply", "setup_context")


@dataclass(frozen=True, slots=True)
class Report:
    """`unusable`: why there is nothing to run, or ""."""

    unusable: str = ""
    has_cuda: bool = False
    deceptions: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()  # remarkable, not deceptive by itself
    library_families: tuple[str, ...] = ()  # of `work.family`: what libraries compute that the text calls directly


def examine(kernel: Kernel) -> Report:
    """Read a kernel file."""
    if not kernel.source.strip():
        return Report("the file is empty.")
    try:
        tree = syntax.parse(kernel.source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        return Report(f"the file is not valid Python: {getattr(error, 'msg', error)}{where}.")
    if not kernel.defines_model_new:
        return Report("the file defines no class ModelNew.")
    functions, sources = kernel.global_functions, _code_texts(tree)
    labels = tuple(f"library:{name}" for name in library_calls.libraries(sources))
    labels += tuple(dict.fromkeys(filter(None, map(_remarkable, ast.walk(tree)))))
    deceptions = tuple(_deceptions(_File(tree), functions))
    return Report("", bool(functions), deceptions, functions, labels, library_calls.families(sources))


def may_overlap(source: str) -> bool:
    """Whether the kernel may keep the GPU busy from several streams at once, as far as its text shows."""
    return _SEVERAL_STREAMS.search(source) is not None


def _code_texts(tree: ast.Module) -> list[str]:
    """String literals that hold C++."""
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return [text for text in texts if "{" in text and ";" in text]


def _remarkable(node: ast.AST) -> str:
    """The label that one node earns, or ""."""
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
        node = node.value if isinstance(node, ast.Attribute) else [*node.args, node.func][0]
    return isinstance(node, ast.Name) and node.id in ("torch", "F", "nn", "builtins")


def _deceptions(file: _File, functions: tuple[str, ...]) -> Iterator[str]:
    reached = file.reachable_from_forward()
    if not functions:
        yield "torch_only"
    elif not any(file.uses_handle(node) for node in reached):
        held = file.model is not None and any(file.mentions_handle(node) for node in ast.walk(file.model))
        yield "not_in_forward" if held else "never_invoked"
    elif set(functions) <= EXAMPLE_NAMES and any(_is_heavy_call(node) for body in reached for node in ast.walk(body)):
        yield "example_mimicry"
    if functions and any(_falls_back(file, node) for body in reached for node in ast.walk(body)):
        yield "try_fallback"
    if file.model is not None and any(_last_name(base) == "Model" for base in file.model.bases):
        yield "inherits_reference"


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass
class _File:
    """Names of a module, which of them hold something built from CUDA source, and what `forward` can reach."""

    tree: ast.Module
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    values: dict[str, list[ast.expr]] = field(default_factory=dict)  # `_key` -> everything assigned to it
    handles: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, node)
        for node in ast.walk(self.tree):
            for target, value in _assignments(node):
                self.values.setdefault(target, []).append(value)
        self._find_handles()

    @property
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

    def _find_handles(self) -> None:
        """Flow-insensitive: a name is a handle when anything assigned to it builds, or mentions a handle."""
        grown = True
        while grown:
            before = len(self.handles)
            for name, values in self.values.items():
                if any(self._yields_handle(value) for value in values):
                    self.handles.add(name)
            for name, function in self.functions.items():
                returned = (node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value)
                if any(self._yields_handle(value) for value in returned):
                    self.handles.add(name)
            grown = len(self.handles) > before

    def _yields_handle(self, value: ast.expr) -> bool:
        """Whether a value is or holds a handle. What a handle returns when called is a tensor, not a handle."""
        if isinstance(value, ast.Call):
            wraps = _last_name(value.func) == "partial" or _key(value.func) in self.classes
            if wraps and any(self._yields_handle(argument) for argument in value.args):
                return True
            return self._builds(value) or _key(value.func) in self.handles & set(self.functions)
        if isinstance(value, ast.Name | ast.Attribute):
            return self.mentions_handle(value)
        parts: list[ast.expr | None] = []
        if isinstance(value, ast.List | ast.Tuple):
            parts += value.elts
        elif isinstance(value, ast.Dict):
            parts += value.values
        elif isinstance(value, ast.IfExp):
            parts += [value.body, value.orelse]
        elif isinstance(value, ast.BoolOp):
            parts += value.values
        return any(part is not None and self._yields_handle(part) for part in parts)

    def _builds(self, call: ast.Call) -> bool:
        return _last_name(call.func) in BUILDERS and not _is_data_load(call)

    def mentions_handle(self, node: ast.AST) -> bool:
        """Whether an expression builds an extension or names something that holds one."""
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and self._builds(part):
                return True
            if isinstance(part, ast.Name | ast.Attribute) and _key(part) in self.handles:
                return True
            if isinstance(part, ast.Attribute) and _is_torch_ops(part):
                return True
        return False

    def uses_handle(self, body: ast.AST) -> bool:
        """Whether code calls a handle, calls something of it, or hands it to a call."""
        calls = (node for node in ast.walk(body) if isinstance(node, ast.Call))
        return any(self.mentions_handle(call) for call in calls)

    def reachable_from_forward(self) -> list[ast.AST]:
        """Bodies that `ModelNew.forward` can reach, itself first. Over-approximates: a mention counts as a call."""
        model = self.model
        if model is None:
            return []
        bodies: list[ast.AST] = []
        pending: list[ast.AST] = [*self._methods(model, _FORWARD_NAMES)]
        while pending:
            body = pending.pop()
            if any(body is seen for seen in bodies):
                continue
            bodies.append(body)
            for part in ast.walk(body):
                if isinstance(part, ast.Name | ast.Attribute):
                    pending += self._behind(part, model)
        return bodies

    def _behind(self, part: ast.Name | ast.Attribute, model: ast.ClassDef) -> list[ast.AST]:
        """Code that running a mention of this name may run."""
        name = part.id if isinstance(part, ast.Name) else part.attr
        found: list[ast.AST] = []
        if name in self.functions and name not in _FORWARD_NAMES:
            found.append(self.functions[name])
        if isinstance(part, ast.Name) and name in self.classes:
            found += self._methods(self.classes[name], _FORWARD_NAMES)
        for value in self.values.get(_key(part), ()):
            if isinstance(value, ast.Lambda):
                found.append(value)
            for inner in ast.walk(value):
                if isinstance(inner, ast.Name) and inner.id in self.classes and inner.id != model.name:
                    found += self._methods(self.classes[inner.id], _FORWARD_NAMES)
                elif isinstance(inner, ast.Name | ast.Attribute) and _last_name(inner) in self.functions:
                    found.append(self.functions[_last_name(inner)])
        return found

    def _methods(self, owner: ast.ClassDef, names: tuple[str, ...]) -> list[ast.AST]:
        """Methods of a class with these names, inherited ones included."""
        found: list[ast.AST] = []
        missing = set(names)
        pending = [owner]
        seen: set[str] = set()
        while pending:
            current = pending.pop(0)
            seen.add(current.name)
            for node in current.body:
                if isinstance(node, ast.FunctionDef) and node.name in missing:
                    found.append(node)
                    missing.discard(node.name)
            bases = (_last_name(base) for base in current.bases)
            pending += [self.classes[base] for base in bases if base in self.classes and base not in seen]
        return found


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
    if isinstance(target, ast.Tuple | ast.List):
        values = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
        for part, item in zip(target.elts, values, strict=False):
            yield from _targets(part, item)
    elif isinstance(target, ast.Name | ast.Attribute):
        yield _key(target), value
    elif isinstance(target, ast.Subscript):
        yield from _targets(target.value, value)


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
