"""From a census to a level and a place within it, in the paper's order: single operations, fusions, whole models.

| level | what it is |
|---|---|
| `single` | one operator |
| `fusion` | several operators, at most two of them matrix products or convolutions |
| `model` | three or more products or convolutions, a recurrent or transformer layer, or layers in modules of its own |

Within a level, `score` (0 to 1) grows with the operators, their kind, the parameters and the control flow of `forward`.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from dataclasses import asdict, dataclass, field

from dice import syntax
from dice.verify.audit.torch_calls import FREE, Census

LEVELS = ("single", "fusion", "model")
NETWORKS = ("RNN", "LSTM", "GRU", "Transformer")  # a class of torch.nn that begins like one of these is a network
PRODUCTS = ("Linear", "Conv", "LazyConv", "LazyLinear", "Bilinear", "Embedding", "MultiheadAttention")
_PRODUCT_FUNCTIONS = """
linear matmul rmatmul mm bmm addmm addbmm baddbmm addmv mv einsum tensordot inner outer bilinear chain_matmul multi_dot
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d scaled_dot_product_attention
"""
PRODUCT_FUNCTIONS = frozenset(_PRODUCT_FUNCTIONS.split())
_HARD_PARTS = """
norm softmax pool loss cum sort topk scan scatter gather unique median fold interpolate upsample fft linalg cdist
entropy attention quantile kth
"""
HARD_PARTS = tuple(_HARD_PARTS.split())
MANY_PRODUCTS = 3  # matrix products and convolutions from which on a problem is a model
OWN_LAYERS = 2  # layers in modules that the problem defines itself from which on it is a model
NOT_FORWARD = ("__init__", "get_inputs", "get_init_inputs")


@dataclass(frozen=True, slots=True)
class Difficulty:
    """`why` is one sentence. `by`: `run` (a forward was watched), `text` (the source was read), or a teacher's name."""

    level: str
    score: float
    operators: dict[str, int] = field(default_factory=dict)
    parameters: int = 0
    why: str = ""
    by: str = "run"

    @property
    def order(self) -> tuple[int, float]:
        """Sorts easy before hard."""
        return LEVELS.index(self.level), self.score

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def judge(census: Census, source: str, by: str = "run") -> Difficulty:
    """The difficulty of a problem with this census and source."""
    calls = sum(census.operators.values())
    products = sum(count for name, count in census.operators.items() if is_product(name))
    level, why = _level(census, calls, products)
    return Difficulty(level, _score(census, branches(source)), census.operators, census.parameters, why, by)


def _level(census: Census, calls: int, products: int) -> tuple[str, str]:
    network = next((name for name in census.operators if name.startswith(NETWORKS)), "")
    if network:
        return "model", f"{network} is a network by itself."
    if products >= MANY_PRODUCTS:
        return "model", f"{products} matrix products or convolutions among {calls} operators."
    if census.modules and census.layers >= OWN_LAYERS:
        names = ", ".join(list(census.modules)[:3])
        return "model", f"{census.layers} layers in modules of its own ({names})."
    if calls > 1:
        return "fusion", f"{calls} operators, {products} of them matrix products or convolutions."
    return "single", f"One operator, {next(iter(census.operators))}." if calls else "No operator that computes."


def is_product(name: str) -> bool:
    return name in PRODUCT_FUNCTIONS or name.startswith(PRODUCTS)


def _score(census: Census, control: int) -> float:
    """0 to 1. The first call of an operator counts whole, further ones by their logarithm."""
    effort = sum(_weight(name) * (1 + math.log2(calls)) for name, calls in census.operators.items())
    effort += 0.5 * math.log10(1 + census.parameters) + control
    return round(effort / (effort + 12), 4)


def _weight(name: str) -> float:
    if is_product(name) or name.startswith(NETWORKS):
        return 3.0
    return 2.0 if any(part in name.lower() for part in HARD_PARTS) else 1.0


def branches(source: str) -> int:
    """Loops and conditions outside of constructors and `get_inputs`."""
    kinds = (ast.For, ast.While, ast.If, ast.IfExp, ast.comprehension)
    return sum(isinstance(node, kinds) for body in _working_functions(source) for node in ast.walk(body))


def _working_functions(source: str) -> list[ast.FunctionDef]:
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError):
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return [function for function in functions if function.name not in NOT_FORWARD]


def read(source: str) -> Census:
    """The census of a problem that cannot be run, from its text: each call counts once, and so does each layer that a
    constructor makes."""
    operators: Counter[str] = Counter()
    own: set[str] = set()
    layers = 0
    try:
        tree = syntax.parse(source)
    except (SyntaxError, ValueError):
        return Census()
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} - {"Model"}
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            owner, name = _called(call)
            if name in classes:
                own.add(name)
            elif function.name == "__init__" and owner in ("nn", "torch.nn") and name != "Parameter":
                if not name.endswith(("List", "Dict", "Sequential", "Identity", "Flatten")):
                    operators[name] += 1
                if name.startswith((*PRODUCTS, *NETWORKS)) or "Norm" in name:
                    layers += 1
            elif function.name not in NOT_FORWARD and owner in _FUNCTIONS and name not in FREE:
                operators[name] += 1
    for function in _working_functions(source):
        formulas = [node for node in ast.walk(function) if isinstance(node, ast.BinOp) and _about_tensors(node)]
        operators.update(type(node.op).__name__.lower() for node in formulas)
    return Census(dict(operators), dict.fromkeys(sorted(own), 1), layers)


_FUNCTIONS = ("torch", "F", "nn.functional", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft")


def _called(call: ast.Call) -> tuple[str, str]:
    """`("F", "relu")` of `F.relu(x)`; `("", "relu")` of `relu(x)`."""
    names: list[str] = []
    node = call.func
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(names[1:])), names[0]


def _about_tensors(node: ast.BinOp) -> bool:
    """Whether an arithmetic expression is likely about tensors: no sizes, no literals alone."""
    parts = list(ast.walk(node))
    words = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return bool(names) and "len" not in names and not words & {"shape", "size"}
