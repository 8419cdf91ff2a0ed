"""What a composed file has for gradients: a region's function in PyTorch, its backward, and what joins them.

The backward calls the proven kernels, and PyTorch for what has none. Where the gradients are to be differentiated
themselves, PyTorch's autograd has the region to itself: kernels have no second derivative, and a wrong one is silent.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from dice.optimize.backward.derived import GIVEN, GRADIENT, RESULT
from dice.optimize.graph import Ref, references
from dice.optimize.printing import function_of
from dice.optimize.region import Region
from dice.optimize.whole.body import Body, Statement, needed_for
from dice.optimize.whole.inline import Inlined
from dice.optimize.whole.plan import Gradient

HELPERS = '''def _gradients_of(function, kernels, needed, inputs, results, gradients):
    """Gradients of a region's inputs that need one, None for the others: by kernels, where it has some (`kernels`).

    PyTorch does the region anew from its inputs and differentiates that where it has none, or where the gradients are
    to be differentiated themselves.
    """
    again = torch.is_grad_enabled()
    if kernels is not None and not again:
        return kernels(needed, *(one.contiguous() for one in (*inputs, *results, *gradients)))
    leaves = [
        one.view_as(one) if again else one.detach().requires_grad_(wanted) for one, wanted in zip(inputs, needed)
    ]
    with torch.enable_grad():
        outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = [(one, other) for one, other in zip(outputs, gradients) if one.requires_grad and other is not None]
    wanted = [one for one, asked in zip(leaves, needed) if asked]
    ends, given = [one for one, _ in pairs], [other for _, other in pairs]
    found = iter(torch.autograd.grad(ends, wanted, given, allow_unused=True, create_graph=again))
    return tuple(next(found) if asked else None for asked in needed)'''
FUNCTION = '''class _WithGradients(torch.autograd.Function):
    """A region by its kernel, through which gradients flow."""

    @staticmethod
    def forward(ctx, kernel, backward, function, saved, *inputs):
        results = kernel(*inputs)
        results = tuple(results) if isinstance(results, (list, tuple)) else results
        several = results if isinstance(results, tuple) else (results,)
        ctx.kernels, ctx.function, ctx.count = backward, function, len(inputs)
        ctx.save_for_backward(*inputs, *(several[place] for place in saved))
        return results

    @staticmethod
    def backward(ctx, *gradients):
        inputs, results = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        needed = ctx.needs_input_grad[4:]
        found = _gradients_of(ctx.function, ctx.kernels, needed, inputs, results, gradients)
        return (None, None, None, None, *found)'''
_WRAPPER = """def {name}({parameters}):
    if not torch.is_grad_enabled():
        return _{name}_kernel({parameters})
    return _WithGradients.apply(_{name}_kernel, {backward}, _{name}_pytorch, {saved}, {parameters})"""


def renamed(piece: Inlined, name: str) -> str:
    """The region's text with its function under another name."""
    return piece.text.replace(f"\ndef {piece.function}(", f"\ndef {name}(")


def parameters_of(piece: Inlined) -> list[str]:
    """Of the region's function."""
    line = next(line for line in piece.text.split("\n") if line.startswith(f"def {piece.function}("))
    inside = line[line.index("(") + 1 : line.rindex(")")]
    return [one.strip() for one in inside.split(",") if one.strip()]


def backward_name(piece: Inlined, gradient: Gradient | None) -> str:
    return f"_{piece.function}_backward" if gradient else "None"


def saved_places(gradient: Gradient | None) -> tuple[int, ...]:
    return gradient.backward.results if gradient else ()


def with_gradients(region: Region, piece: Inlined, gradient: Gradient | None, functions: Mapping[str, str]) -> Inlined:
    """A region's function as one through which gradients flow. `functions`: of its backward's regions, by their
    keys."""
    name, parameters = piece.function, parameters_of(piece)
    wrapper = _WRAPPER.format(
        name=name,
        parameters=", ".join(parameters),
        backward=backward_name(piece, gradient),
        saved=saved_places(gradient),
    )
    parts = [renamed(piece, f"_{name}_kernel"), *texts_behind(region, piece, gradient, functions), wrapper]
    return Inlined(name, "\n\n\n".join(parts), piece.imports)


def texts_behind(
    region: Region, piece: Inlined, gradient: Gradient | None, functions: Mapping[str, str]
) -> Iterator[str]:
    """The region's function in PyTorch, and its backward where that has kernels."""
    yield function_of(region, f"_{piece.function}_pytorch", parameters_of(piece))
    if gradient:
        yield backward_text(backward_name(piece, gradient), len(parameters_of(piece)), region, gradient, functions)


def backward_text(name: str, count: int, region: Region, gradient: Gradient, functions: Mapping[str, str]) -> str:
    """A function of which gradients are needed, of the region's inputs, its saved results and the gradients of all its
    results. What only serves gradients that nobody needs is not computed."""
    backward = gradient.backward
    graph = backward.graph
    given = [f"{GIVEN}_{place}" for place in range(count)] + [f"{RESULT}_{place}" for place in backward.results]
    given += [f"{GRADIENT}_{place}" for place in range(len(region.outputs))]
    names = {node.name: node.arguments[0] for node in graph.nodes if node.operator == "input"}
    body = Body(graph, gradient.replaced, functions, names, f"{GIVEN}_0.device")
    body.compute(references(graph.output))
    needs, present = needed_for(graph), {place for place, one in enumerate(graph.output) if one is not None}
    lines = list(_guarded(body.statements, needs, present))
    shown = [
        f"{body.name_of(one.name)} if needed[{place}] else None" if isinstance(one, Ref) else "None"
        for place, one in enumerate(graph.output)
    ]
    lines += ["return (", *(f"    {one}," for one in shown), ")"]
    text = textwrap.indent("\n".join(lines), "    ")
    return f"def {name}(needed, {', '.join(given)}):\n{text}"


def _guarded(statements: Sequence[Statement], needs: Mapping[str, frozenset[int]], present: set[int]) -> Iterator[str]:
    """Statements below the condition under which one of their values is needed, said once for neighbours."""
    before: frozenset[int] | None = None
    for statement in statements:
        places = frozenset().union(*(needs[value] for value in statement.values))
        if places == present:
            before = None
            yield statement.text
            continue
        if places != before:
            yield f"if {' or '.join(f'needed[{place}]' for place in sorted(places))}:"
        before = places
        yield f"    {statement.text}"
