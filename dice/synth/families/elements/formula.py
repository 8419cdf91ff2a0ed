"""Formulas: statements of any form over one to three inputs and what was computed before, element by element; or the
mean or the sum of that. The kernel has a line for each statement, so that one text is read off the other."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Sequence

from dice.synth.kernel.cuda import BLOCK_SHUFFLE, TOTAL, TOTAL_HOST, KernelFile, Tensor, lines, reduction_helper
from dice.synth.kernel.lanes import spread
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, chains, cuda_number, draw_scalars, rounded
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import draw_rank, draw_shape
from dice.synth.problem.tensors import Value
from dice.synth.tables.formulas import MOST, PARTS, filled, rank
from dice.synth.tables.operators import OPERATORS

NAME = "formula"
INPUTS, VALUES = "xyz", "abcde"
DRAWN = 4.5  # magnitude of an input
Tree = tuple[str, float]  # as text, a part or an activation with its operands in brackets; and its magnitude
_VARIABLES = dict(zip(INPUTS, "vwu", strict=True))  # of the kernel
_ASSIGNED = re.compile(r"v = (.*);")
STYLES_APART = frozenset({"inlined", "named_parts"})  # which give a statement's parts to others: the kernel has its own
_SPELLED = ("call", "method", "formula")
# Activations of a value that has a name, in one expression.
ACTIVATIONS = {
    name: operator
    for name, operator in OPERATORS.items()
    if _ASSIGNED.fullmatch(operator.statement) and not operator.jumps
    if any(form.kind in _SPELLED for form in operator.spellings)
}


def sample(rng: random.Random) -> Plan:
    count = rng.choices((1, 2, 3), (5, 4, 2))[0]
    sizes, unused = dict.fromkeys(INPUTS[:count], DRAWN), list(INPUTS[:count])
    statements: list[str] = []
    total = rng.choices((2, 3, 4, 1), (5, 4, 2, 3))[0]
    for number in range(total):
        is_last = number == total - 1
        wanted = list(unused) if is_last else rng.sample(unused, min(len(unused), rng.choice((1, 1, 2))))
        text, size = _tree(rng, wanted, sizes)
        statements.append(text)
        unused = [name for name in unused if name not in wanted or (not is_last and rng.random() < 0.25)]
        sizes[VALUES[number]] = size
        unused.append(VALUES[number])
    used = sorted({name for text in statements for name in _names(text)})
    tail = rng.choices(("", "mean", "sum"), (10, 2, 1))[0]
    return Plan(NAME, f"of_{count}", chains(parts=tuple(used)), (f"tail={tail}", *statements))


def _tree(rng: random.Random, wanted: Sequence[str], sizes: dict[str, float]) -> Tree:
    """An expression with each of these names in it, and its magnitude."""
    leaves = list(wanted) + ([rng.choice(list(sizes))] if len(wanted) < 2 and rng.random() < 0.75 else [])
    trees = [_wrapped(rng, (name, sizes[name]), sizes, rng.choice((0, 1, 1, 2))) for name in leaves]
    while len(trees) > 1:
        trees = list(dict(trees).items())  # one of those that are the same
        if len(trees) == 1:
            break
        rng.shuffle(trees)
        joined = _joined(rng, trees, sizes)
        if joined is None:  # too large together
            trees[:2] = map(_bounded, trees[:2])
        else:
            trees = joined
    tree = _wrapped(rng, trees[0], sizes, rng.choice((0, 0, 1)))
    return tree if tree[0] not in sizes else _bounded(tree)


def _bounded(tree: Tree) -> Tree:
    return f"tanh({tree[0]})", 1.0


def _wrapped(rng: random.Random, tree: Tree, sizes: dict[str, float], times: int) -> Tree:
    """The tree under so many parts of one operand; activations go on names alone."""
    for _ in range(times):
        text, size = tree
        named = text in sizes
        choices = {
            name: part.weight
            for name, part in PARTS.items()
            if part.operands == "e" or (named and part.operands == "n")
        }
        if named:
            state = ChainState("any", size, text in INPUTS)
            fitting = [name for name, one in ACTIVATIONS.items() if state.accepts(one) and one.bound(size) <= MOST]
            choices |= dict.fromkeys(fitting, 12 / max(1, len(fitting)))
        choices = {name: weight for name, weight in choices.items() if not text.startswith(f"{name}(")}
        name = rng.choices(list(choices), list(choices.values()))[0]
        larger = PARTS[name].bound(size) if name in PARTS else ACTIVATIONS[name].bound(size)
        tree = (f"{name}({text})", larger) if larger <= MOST else tree
    return tree


def _joined(rng: random.Random, trees: list[Tree], sizes: dict[str, float]) -> list[Tree] | None:
    """The first two or three of the trees under one part; None where it would be too large."""
    inputs = [name for name in sizes if name in INPUTS]
    choices = {name: part for name, part in PARTS.items() if len(part.operands) > 1}
    for _ in range(8):
        name = rng.choices(list(choices), [part.weight for part in choices.values()])[0]
        part, rest = choices[name], list(trees)
        operands: list[Tree] = []
        for kind in part.operands:
            if kind == "i":
                chosen = rng.choice(inputs)
                operands.append((chosen, sizes[chosen]))
                continue
            fitting = [tree for tree in rest if kind == "e" or tree[0] in sizes]
            if not fitting:
                break
            operands.append(fitting[0])
            rest.remove(fitting[0])
        taken = len(trees) - len(rest)
        if len(operands) < len(part.operands) or taken < 2 or len({text for text, _ in operands}) < len(operands):
            continue
        size = part.bound(*(size for _, size in operands))
        if size <= MOST:
            return [*rest, (f"{name}({', '.join(text for text, _ in operands)})", size)]
    return None


def _names(text: str) -> set[str]:
    """The parts and activations of a tree."""
    return {node.func.id for node in ast.walk(ast.parse(text, mode="eval"))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip


def render(plan: Plan, rng: random.Random) -> Draft:
    statements = plan.features[1:]
    tail = plan.features[0].removeprefix("tail=")
    names = INPUTS[: int(plan.core.removeprefix("of_"))]
    builder = ProblemBuilder(rng, keep_inputs=True)
    shape = draw_shape(builder, draw_rank(rng), most=16384)
    shown = {name: builder.tensors.input(name, shape).text for name in names}
    meant = {name: _VARIABLES[name] for name in names}
    writer = _Writer(builder, shown, meant)
    body = [f"float {_VARIABLES[name]} = {name}[i];" for name in names]
    for number, statement in enumerate(statements):
        python, cuda = writer.texts(statement)
        is_last = number == len(statements) - 1
        if is_last and tail:
            python = rng.choice((f"torch.{tail}({python})", f"({python}).{tail}()"))
        if is_last:
            builder.finish(builder.forward.name(python) if rng.random() < 0.3 else _whole(python))
            body.append(f"v = {cuda};")
        else:
            shown[VALUES[number]] = builder.forward.name(python).text
            meant[VALUES[number]] = VALUES[number]
            body.append(f"float {VALUES[number]} = {cuda};")
    builder.title = f"a formula of {('one tensor', 'two tensors', 'three tensors')[len(names) - 1]}"
    builder.title += f", its {tail} taken" if tail else ""
    file = KernelFile(builder, NAME, [Tensor(name, name) for name in names])
    text = lines(body)
    if tail:
        result = "s / n" if tail == "mean" else "s"
        code = reduction_helper(BLOCK_SHUFFLE, "sum") + file.kernel(TOTAL.format(lines=text, result=result), ["n"])
        return Draft(builder, file.write(code, TOTAL_HOST + file.launch("blocks, 256", ["n"])), "atomic")
    code, launch, style = spread(file, rng, text)
    host = "    auto out = torch::empty_like(x);\n    int n = x.numel();\n"
    return Draft(builder, file.write(code, host + launch), style)


def _whole(text: str) -> Value:
    return Value(text, False, False)


class _Writer:
    """Trees as Python and as CUDA. `shown` and `meant`: what inputs and values are called there."""

    def __init__(self, builder: ProblemBuilder, shown: dict[str, str], meant: dict[str, str]):
        self._builder, self._rng = builder, builder.rng
        self._shown, self._meant = shown, meant
        self._by_function = builder.rng.choice((0.9, 0.6, 0.2))  # how often a function and not a method

    def texts(self, statement: str) -> tuple[str, str]:
        (python, _), (cuda, _) = self._both(ast.parse(statement, mode="eval").body)
        return python, cuda

    def _both(self, node: ast.expr) -> tuple[tuple[str, int], tuple[str, int]]:
        if isinstance(node, ast.Name):
            return (self._shown[node.id], 3), (self._meant[node.id], 3)
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        operands = [self._both(operand) for operand in node.args]
        python, cuda = [one for one, _ in operands], [other for _, other in operands]
        name = node.func.id
        if name not in PARTS:
            return self._activation(name, python[0][0], cuda[0][0])
        part = PARTS[name]
        number = self._number(part.role, part.most)
        return filled(self._spelling(part.spellings), python, number[0]), filled(part.cuda, cuda, number[1])

    def _activation(self, name: str, shown: str, meant: str) -> tuple[tuple[str, int], tuple[str, int]]:
        operator = ACTIVATIONS[name]
        forms = [form for form in operator.spellings if form.kind in _SPELLED]
        form = self._rng.choices(forms, [self._builder.style.taste[one.kind] for one in forms])[0]
        drawn = zip(operator.scalars, draw_scalars(self._rng, operator, ChainState()), strict=True)
        scalars = [self._builder.constructor.scalar(role, number) for role, number in drawn]
        text = form.text.format(x=shown, **dict(zip("ab", (one.forward for one in scalars), strict=False)))
        statement = operator.cuda("v", tuple(one.cuda for one in scalars))
        found = _ASSIGNED.fullmatch(statement)
        assert found
        expression = re.sub(r"\bv\b", meant, found[1])
        return (text, rank(form.text)), (expression, rank(expression))

    def _number(self, role: str, most: float) -> tuple[str, str]:
        """A number in Python and in CUDA; "" where the part has none."""
        if not role:
            return "", ""
        value = rounded(self._rng, 0.1, most)
        if self._rng.random() < 0.3 and most > 1:
            value = float(self._rng.choice((1, 2, 0.5)))
        if self._rng.random() < 0.5:
            return repr(value), cuda_number(value)
        scalar = self._builder.constructor.scalar(role, value)
        return scalar.forward, scalar.cuda

    def _spelling(self, forms: Sequence[str]) -> str:
        weights = [1.0 if not form.startswith(("{a0}.", "({m0}.")) else 1 / self._by_function - 1 for form in forms]
        return self._rng.choices(forms, weights)[0]
