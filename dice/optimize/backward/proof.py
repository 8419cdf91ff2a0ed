"""Whether a derived backward is right: in float64, against autograd and against finite differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.autograd import gradcheck

from dice.optimize.backward.derive import NotDerived
from dice.optimize.backward.derived import GIVEN, GRADIENT, RESULT, Backward
from dice.optimize.backward.execute import Executor
from dice.optimize.graph import Graph, Ref

CLOSE = 1e-8  # of two ways to compute one gradient in float64, relative to its largest element
MOST_DIFFERENCES = 1 << 24  # elements: finite differences of more are lost in rounding


def draw(source: str, paths: Sequence[str], seed: int) -> list[torch.Tensor]:
    """Values for a region's inputs and states, as its printed problem has them. `source`: that problem's text, which is
    ours."""
    torch.manual_seed(seed)
    space: dict[str, Any] = {"__name__": "problem"}
    exec(compile(source, "<region>", "exec"), space)
    model, inputs = space["Model"](), space["get_inputs"]()
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    return [one.detach() for one in (*inputs, *(state[path] for path in paths))]


def prove(
    graph: Graph, sources: Sequence[str], backward: Backward, values: Sequence[torch.Tensor], device: torch.device
) -> None:
    """`values`: of the sources. Raises `NotDerived` where the backward does not give what autograd gives."""
    run = Executor(device, wide=True)
    wide = [one.to(device).double() if one.is_floating_point() else one.to(device) for one in values]
    wanted = [isinstance(one, Ref) for one in backward.graph.output]
    leaves = [one.requires_grad_() if grad else one for one, grad in zip(wide, wanted, strict=True)]
    results = _tuple(run.run(graph, dict(zip(sources, leaves, strict=True))))
    given = {place: torch.randn_like(results[place]).contiguous() for place in backward.gradients}
    asked = [one for one, grad in zip(leaves, wanted, strict=True) if grad]
    outputs = [results[place] for place in given]
    expected = torch.autograd.grad(outputs, asked, list(given.values()), allow_unused=True)
    found = [one for one in _run(run, backward, leaves, results, given) if one is not None]
    for one, other in zip(found, expected, strict=True):
        scale = other.abs().max().item() if other is not None and other.numel() else 0.0
        if other is None or one.shape != other.shape or not torch.allclose(one, other, CLOSE, CLOSE * scale + 1e-12):
            raise NotDerived("what was derived is not what autograd gives in float64")
    if sum(one.numel() for one in (*asked, *outputs)) <= MOST_DIFFERENCES:
        _differences(run, graph, sources, backward, leaves)


def _differences(
    run: Executor, graph: Graph, sources: Sequence[str], backward: Backward, leaves: Sequence[torch.Tensor]
) -> None:
    class Derived(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: torch.Tensor) -> Any:
            results = _tuple(run.run(graph, dict(zip(sources, given, strict=True))))
            ctx.save_for_backward(*given, *results)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            given, results = ctx.saved_tensors[: len(leaves)], ctx.saved_tensors[len(leaves) :]
            return tuple(_run(run, backward, given, results, dict(enumerate(gradients))))

    def read(*given: torch.Tensor) -> Any:
        results = Derived.apply(*given)
        return tuple(results[place] for place in backward.gradients)

    try:
        gradcheck(read, tuple(leaves), fast_mode=True, check_undefined_grad=False)
    except (RuntimeError, ValueError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise NotDerived(f"what was derived is not the slope of what it computes in float64: {first[:200]}") from None


def _run(
    run: Executor,
    backward: Backward,
    given: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    gradients: Mapping[int, torch.Tensor],
) -> list[Any]:
    known = {f"{GIVEN}_{place}": one for place, one in enumerate(given)}
    known |= {f"{RESULT}_{place}": results[place] for place in backward.results}
    known |= {f"{GRADIENT}_{place}": gradients[place] for place in backward.gradients}
    known = {name: one.contiguous() for name, one in known.items()}  # as it is told that they are
    named = {node.name: known[node.arguments[0]] for node in backward.graph.nodes if node.operator == "input"}
    with torch.no_grad():
        return list(run.run(backward.graph, named))


def _tuple(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)
