"""Styles of one expression: as a function or a method, by operator or by name, dimensions counted from either end."""

from __future__ import annotations

import ast
import random
import re

from dice.synth.wide.text import BARE, Text, Work, atom, called, is_tensor, statements, tensors, words

# What is `torch.f(x, ...)` and `x.f(...)` with equal arguments behind x.
BOTH = words("""
relu sigmoid tanh exp exp2 abs sqrt rsqrt square sin cos tan atan asinh acosh sinh cosh log log1p log2 expm1 neg
reciprocal erf sign floor ceil round trunc sum mean amax amin prod cumsum cumprod softmax log_softmax logsumexp clamp
clamp_min clamp_max pow add sub mul div matmul mm bmm mv transpose unsqueeze squeeze flatten std var maximum minimum
argmax argmin tril triu gather index_select masked_fill lerp addcmul addcdiv logcumsumexp diff heaviside atan2 hypot
""")
_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul"}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "mm": "@", "bmm": "@"}
_REDUCING = words("sum mean amax amin prod logsumexp")
_WITH_AXIS = _REDUCING | words("cumsum cumprod softmax log_softmax argmax argmin std var")
# The second argument of functions by its name.
_SECOND = {
    **dict.fromkeys(_WITH_AXIS - {"std", "var"}, "dim"),
    **{"clamp_min": "min", "clamp_max": "max", "leaky_relu": "negative_slope", "elu": "alpha", "celu": "alpha"},
    **{"pow": "exponent", "softshrink": "lambd", "hardshrink": "lambd", "add": "other", "mul": "other"},
    **{"flatten": "start_dim"},
}
_IN_PLACE = words("relu sigmoid tanh exp abs sqrt rsqrt square sin cos neg add sub mul div clamp")
_FRESH = _IN_PLACE | words("log1p expm1 erf pow")
_ELEMENTWISE = words("""
relu sigmoid tanh exp abs sqrt rsqrt square sin cos log1p expm1 erf atan asinh silu gelu mish softplus elu selu
hardswish softsign tanhshrink relu6 hardsigmoid logsigmoid
""")
_SAME_RANK = _ELEMENTWISE | words("softmax log_softmax cumsum cumprod clamp clamp_min clamp_max pow neg sign")


def _places(text: Text) -> list[tuple[ast.expr, set[str]]]:
    """Every expression of the functions that compute, with the names that hold tensors there."""
    return [
        (node, known)
        for function in text.working
        for known in [tensors(text, function)]
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.expr)
    ]


def _changed(work: Work, rng: random.Random, new: dict[ast.expr, str], text: Text, share: float = 0.7) -> Work | None:
    """The problem with a share of the proposed changes, none of which lies inside another."""
    chosen: list[tuple[int, int]] = []
    for node, written in new.items():
        start, end = text.span(node)
        apart = all(end <= low or high <= start for low, high in chosen)
        if written != text.text[start:end] and apart and (not chosen or rng.random() < share):
            text.replace(node, written)
            chosen.append((start, end))
    return Work(text.result(), work.kernel) if chosen else None


def methods(work: Work, rng: random.Random) -> Work | None:
    """`x.sum(dim=1)` for `torch.sum(x, dim=1)`."""
    text = Text(work.problem)
    new: dict[ast.expr, str] = {}
    for node, known in _places(text):
        name = called(node).removeprefix("torch.")
        if isinstance(node, ast.Call) and called(node) == f"torch.{name}" and name in BOTH and node.args:
            first = node.args[0]
            if is_tensor(first, known) and not isinstance(first, ast.Starred):
                new[node] = f"{atom(text.of(first), first)}.{name}({_rest(text, node, 1)})"
    return _changed(work, rng, new, text)


def functions(work: Work, rng: random.Random) -> Work | None:
    """`torch.sum(x, dim=1)` for `x.sum(dim=1)`."""
    text = Text(work.problem)
    new: dict[ast.expr, str] = {}
    for node, known in _places(text):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in BOTH:
            continue
        receiver = node.func.value
        is_module = isinstance(receiver, ast.Name) and receiver.id in BARE
        if not is_module and is_tensor(receiver, known):
            rest = _rest(text, node, 0)
            new[node] = f"torch.{node.func.attr}({text.of(receiver)}{', ' if rest else ''}{rest})"
    return _changed(work, rng, new, text)


def _rest(text: Text, node: ast.Call, start: int) -> str:
    """The arguments of a call from one on."""
    return ", ".join([*(text.of(item) for item in node.args[start:]), *(text.of(item) for item in node.keywords)])


def named_operators(work: Work, rng: random.Random) -> Work | None:
    """`torch.add(a, b)` or `a.add(b)` for `a + b`."""
    text = Text(work.problem)
    new: dict[ast.expr, str] = {}
    for node, known in _places(text):
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS and is_tensor(node.left, known):
            name, left, right = _OPERATORS[type(node.op)], text.of(node.left), text.of(node.right)
            if name == "matmul" and not is_tensor(node.right, known):
                continue
            form = rng.choice((f"torch.{name}({left}, {right})", f"{atom(left, node.left)}.{name}({right})"))
            new[node] = form
    return _changed(work, rng, new, text)


def operators(work: Work, rng: random.Random) -> Work | None:
    """`(a + b)` for `torch.add(a, b)`, `a @ b` for a product by name."""
    text = Text(work.problem)
    new: dict[ast.expr, str] = {}
    for node, known in _places(text):
        path = called(node)
        name = path.split(".")[-1]
        if not isinstance(node, ast.Call) or name not in _SIGNS or node.keywords:
            continue
        operands = list(node.args)
        if not path.startswith("torch."):
            if not isinstance(node.func, ast.Attribute) or not is_tensor(node.func.value, known):
                continue
            operands.insert(0, node.func.value)
        if len(operands) == 2:
            left, right = (atom(text.of(item), item) for item in operands)
            new[node] = f"({left} {_SIGNS[name]} {right})"
    return _changed(work, rng, new, text)


def powers(work: Work, rng: random.Random) -> Work | None:
    """`x * x`, `x.pow(2)`, `torch.square(x)` and `x ** 2` for one another."""
    text = Text(work.problem)
    new: dict[ast.expr, str] = {}
    for node, known in _places(text):
        base: ast.expr | None = None
        match node:
            case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=2)):
                base = node.left
            case ast.Call(func=ast.Attribute(value=receiver, attr="square"), args=given, keywords=[]):
                base = given[0] if given else receiver
            case ast.Call(func=ast.Attribute(value=receiver, attr="pow"), args=given, keywords=[]) if given:
                squares = text.of(given[-1]) in ("2", "2.0")
                base = None if not squares else given[0] if len(given) == 2 else receiver
        if base is None or not is_tensor(base, known):
            continue
        inner, plain = atom(text.of(base), base), text.of(base)
        forms = [f"{inner}.pow(2)", f"torch.square({plain})", f"({inner} ** 2)", f"torch.pow({plain}, 2)"]
        forms += [f"({inner} * {inner})", f"torch.mul({plain}, {plain})"] if isinstance(base, ast.Name) else []
        new[node] = rng.choice(forms)
    return _changed(work, rng, new, text)


def axis(work: Work, rng: random.Random) -> Work | None:
    """`axis=` and `keepdims=` as NumPy has them."""
    text = Text(work.problem)
    new: dict[ast.expr, str] = {}
    for node, _ in _places(text):
        path = called(node)
        if (
            isinstance(node, ast.Call)
            and path.split(".")[-1] in _WITH_AXIS
            and not path.startswith(("F.", "self.", "nn.", "torch.nn."))
        ):
            written = re.sub(r"\bdim=", "axis=", text.of(node), count=1)
            nested = sum(isinstance(item, ast.Call) for item in ast.walk(node)) > 1
            if any(item.arg == "dim" for item in node.keywords) and not nested:
                new[node] = written.replace("keepdim=", "keepdims=") if rng.random() < 0.5 else written
    return _changed(work, rng, new, text)


def keywords(work: Work, rng: random.Random) -> Work | None:
    """`torch.sum(x, dim=1)` for `torch.sum(x, 1)`, and `input=` before the first argument."""
    text = Text(work.problem)
    new: dict[ast.expr, str] = {}
    for node, known in _places(text):
        path = called(node)
        name = path.split(".")[-1]
        if (
            not isinstance(node, ast.Call)
            or not path.startswith(("torch.", "F."))
            or path.count(".") != 1
            or not node.args
        ):
            continue
        parts = [text.of(item) for item in node.args]
        if len(parts) == 2 and name in _SECOND and is_tensor(node.args[0], known):
            parts[1] = f"{_SECOND[name]}={parts[1]}"
        elif name not in _ELEMENTWISE or len(parts) > 1 or rng.random() < 0.5:
            continue
        if len(parts) == 1 or rng.random() < 0.2:
            parts[0] = f"input={parts[0]}"
        new[node] = f"{path}({', '.join([*parts, *(text.of(item) for item in node.keywords)])})"
    return _changed(work, rng, new, text)


def ranks(text: Text, *, any_value: bool = False) -> dict[str, int]:
    """Ranks of the inputs where `get_inputs` shows them: of those alone that `forward` never gives another value, or,
    with `any_value`, of all as they are passed."""
    function = text.function("get_inputs")
    returned = function.body[-1]
    stored = {
        item.id for item in ast.walk(text.forward) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    }
    if not isinstance(returned, ast.Return) or not isinstance(returned.value, ast.List):
        return {}
    made = {
        node.targets[0].id: node.value
        for node in function.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    found: dict[str, int] = {}
    for name, item in zip(text.inputs, returned.value.elts, strict=False):
        value = made.get(item.id) if isinstance(item, ast.Name) else item
        reassigned = name in stored and not any_value
        if reassigned or not isinstance(value, ast.Call) or called(value) not in ("torch.randn", "torch.rand"):
            continue
        sizes = value.args
        if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
            sizes = sizes[0].elts
        plain = sizes and not any(isinstance(size, ast.Starred) for size in sizes)
        literal = all(isinstance(size, ast.Constant | ast.Name) for size in sizes)
        if plain and literal and not (len(sizes) == 1 and isinstance(sizes[0], ast.Name) and "shape" in sizes[0].id):
            found[name] = len(sizes)
    return found


def other_end(work: Work, rng: random.Random) -> Work | None:
    """`dim=-1` for `dim=1` of a matrix, and back: dimensions counted from the other end, where the rank is known."""
    text = Text(work.problem)
    known, new = ranks(text, any_value=True), dict[ast.expr, str]()
    for statement in text.forward.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and called(node).split(".")[-1] in _WITH_AXIS:
                rank = _rank(_operand(node), known)
                dim = next((item.value for item in node.keywords if item.arg in ("dim", "axis")), None)
                number = text.of(dim) if dim is not None else ""
                if dim is not None and rank and re.fullmatch(r"-?\d", number) and -rank <= int(number) < rank:
                    new[dim] = str(int(number) - rank if int(number) >= 0 else int(number) + rank)
        stored = [
            item.id for item in ast.walk(statement) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
        ]
        plain = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
        rank = _rank(statement.value, known) if plain and isinstance(statement, ast.Assign) else 0
        for name in stored:
            known[name] = rank
    return _changed(work, rng, new, text)


def _operand(node: ast.Call) -> ast.expr | None:
    """What a function or a method is applied to."""
    if called(node).startswith(("torch.", "F.")):
        return node.args[0] if node.args else None
    return node.func.value if isinstance(node.func, ast.Attribute) else None


def _rank(node: ast.expr | None, known: dict[str, int]) -> int:
    """The rank of an expression that is elementwise in values of known rank; else 0."""
    match node:
        case ast.Name():
            return known.get(node.id, 0)
        case ast.Call() if called(node).split(".")[-1] in _SAME_RANK and not called(node).startswith("self."):
            return _rank(_operand(node), known)
        case ast.UnaryOp():
            return _rank(node.operand, known)
        case ast.BinOp(left=ast.Constant(), right=inner) | ast.BinOp(left=inner, right=ast.Constant()):
            return _rank(inner, known)
        case ast.BinOp(left=left, right=right) if not isinstance(node.op, ast.MatMult):
            ranks_of = _rank(left, known), _rank(right, known)
            return max(ranks_of) if all(ranks_of) else 0
    return 0


def unsqueezed(work: Work, rng: random.Random) -> Work | None:
    """`torch.sum(x, dim=1).unsqueeze(1)` for `keepdim=True`."""
    text = Text(work.problem)
    new: dict[ast.expr, str] = {}
    for node, _ in _places(text):
        if (
            not isinstance(node, ast.Call)
            or called(node).split(".")[-1] not in _REDUCING
            or called(node).startswith("self")
        ):
            continue
        settings = {item.arg: text.of(item.value) for item in node.keywords}
        dim = settings.get("dim", "")
        if re.fullmatch(r"-?\d|self\.\w+", dim) and settings.get("keepdim") == "True" and len(settings) == 2:
            if dim.startswith("self") and f"{dim} = (" in work.problem:
                continue
            if dim.startswith("self") and not re.search(rf"\b{dim[5:]} ?(: int)? ?= ?-?\d\b", work.problem):
                continue
            head = text.of(node.func)
            rest = "".join(f"{text.of(item)}, " for item in node.args)
            new[node] = f"{head}({rest}dim={dim}).unsqueeze({dim})"
    return _changed(work, rng, new, text)


def flattened(work: Work, rng: random.Random) -> Work | None:
    """An elementwise function of the flat tensor, its result viewed as before."""
    text = Text(work.problem)
    new: dict[ast.expr, str] = {}
    for node, known in _places(text):
        path = called(node)
        name = path.split(".")[-1]
        if isinstance(node, ast.Call) and path in (f"torch.{name}", f"F.{name}") and name in _ELEMENTWISE and node.args:
            first = node.args[0]
            if (
                isinstance(first, ast.Name)
                and is_tensor(first, known)
                and not any(item.arg == "inplace" for item in node.keywords)
            ):
                flat = rng.choice((f"{first.id}.flatten()", f"{first.id}.reshape(-1)"))
                back = rng.choice((f".view_as({first.id})", f".reshape({first.id}.shape)", f".view({first.id}.size())"))
                rest = _rest(text, node, 1)
                new[node] = f"{path}({flat}{', ' if rest else ''}{rest}){back}"
    return _changed(work, rng, new, text, share=0.0)


_SHAPES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\.size\((-?\d)\)", (r".shape[\1]",)),
    (r"\.shape\[(-?\d)\]", (r".size(\1)", r".size(dim=\1)")),
    (r"\.transpose\(-2, -1\)", (".mT", ".transpose(-1, -2)", ".swapaxes(-2, -1)")),
    (r"\.transpose\((-?\d), (-?\d)\)", (r".transpose(\2, \1)", r".swapaxes(\1, \2)", r".transpose(dim0=\1, dim1=\2)")),
    (r"\.t\(\)", (".T", ".transpose(0, 1)")),
    (r"\.mT\b", (".transpose(-2, -1)",)),
    (r"\.unsqueeze\(0\)", ("[None]",)),
    (r"\.unsqueeze\(1\)", ("[:, None]",)),
    (r"\.unsqueeze\(-1\)", ("[..., None]",)),
    (r"\.view\(", (".reshape(",)),
    (r"\.permute\(0, 2, 1\)", (".transpose(1, 2)",)),
    (r"\.flatten\(1\)", (".flatten(start_dim=1)",)),
    (r"\.chunk\(2, dim=(-?\d)\)", (r".chunk(2, \1)", r".tensor_split(2, dim=\1)")),
)


def shapes(work: Work, rng: random.Random) -> Work | None:
    """Views and sizes by their other names: `.shape[0]`, `.mT`, `[:, None]`, `reshape`."""
    text = Text(work.problem)
    lines = work.problem.split("\n")
    rows = {row for function in text.working for row in range(function.body[0].lineno - 1, function.end_lineno or 0)}
    changed = False
    for pattern, forms in _SHAPES:
        for row in sorted(rows):
            if re.search(pattern, lines[row]) and '"""' not in lines[row] and rng.random() < 0.7:
                lines[row] = re.sub(pattern, rng.choice(forms), lines[row])
                changed = True
    return Work("\n".join(lines), work.kernel) if changed else None


def in_place(work: Work, rng: random.Random) -> Work | None:
    """`x = torch.relu(x)` as `x.relu_()`, where the statement before made that very tensor."""
    text = Text(work.problem)
    before: ast.stmt | None = None
    for statement in statements(text.forward):
        value = statement.value
        is_next = before is not None and text.forward.body.index(statement) == text.forward.body.index(before) + 1
        if (
            isinstance(statement, ast.Assign)
            and is_next
            and isinstance(value, ast.Call)
            and isinstance(before, ast.Assign)
        ):
            name = text.of(statement.targets[0])
            function = called(value).split(".")[-1]
            operand = (
                value.args[0]
                if called(value).startswith("torch.") and value.args
                else getattr(value.func, "value", None)
            )
            makes = _makes(before.value, tensors(text, text.forward)) and text.of(before.targets[0]) == name
            if makes and function in _IN_PLACE and isinstance(operand, ast.Name) and operand.id == name:
                rest = _rest(text, value, 1 if called(value).startswith("torch.") else 0)
                text.instead(
                    statement, rng.choice((f"{name}.{function}_({rest})", f"{name} = {name}.{function}_({rest})"))
                )
                return Work(text.result(), work.kernel)
        before = statement
    return None


def _makes(node: ast.expr, known: set[str]) -> bool:
    """Whether the expression gives a tensor that nothing else holds."""
    arithmetic = isinstance(node, ast.BinOp) and is_tensor(node, known)
    return arithmetic or (called(node) in {f"torch.{name}" for name in _FRESH} and is_tensor(node, known))
