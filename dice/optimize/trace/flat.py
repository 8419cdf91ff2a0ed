"""What PyTorch's tracer `make_fx` gives, in the form of an exported program, which is what the reader reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

INPUT, PARAMETER, BUFFER, CONSTANT = "USER_INPUT", "PARAMETER", "BUFFER", "CONSTANT_TENSOR"


def flat_program(
    traced: Any, sources: Sequence[tuple[str, str]], tree: Any, constants: Mapping[str, Any] | None = None
) -> Any:
    """What the reader asks of an exported program. `sources`: kind and name of each placeholder, in order; `tree`: how
    the results are arranged in what is returned."""
    placeholders = [node for node in traced.graph.nodes if node.op == "placeholder"]
    specs: list[Any] = []
    for node, (kind, name) in zip(placeholders, sources, strict=True):
        arg = SimpleNamespace(name=node.name)
        target = None if kind == INPUT else name
        specs.append(SimpleNamespace(arg=arg, kind=SimpleNamespace(name=kind), target=target))
    (returned,) = [node for node in traced.graph.nodes if node.op == "output"]
    results = returned.args[0] if isinstance(returned.args[0], list | tuple) else [returned.args[0]]
    returned.args = (list(results),)
    outputs = [SimpleNamespace(kind=SimpleNamespace(name="USER_OUTPUT")) for _ in results]
    return SimpleNamespace(
        graph_module=traced,
        graph_signature=SimpleNamespace(input_specs=specs, output_specs=outputs),
        constants=constants or {},
        call_spec=SimpleNamespace(out_spec=tree),
    )
