"""A region's kernel file: the answer to the problem that `printing.py` makes of it."""

from __future__ import annotations

from dice.kernel import Kernel
from dice.kernel_form import kernel_file
from dice.optimize.printing import Printed
from dice.optimize.region import Region
from dice.optimize.templates.write import cuda_source


def kernel_of(region: Region, printed: Printed, tensor_cores: bool = False) -> Kernel:
    """The kernel file, by rule; `tensor_cores`: with large products on those. Raises `CannotWrite`."""
    name = f"region_{region.key[:6]}"
    cuda, declaration, taken = cuda_source(region.graph, name, tensor_cores)
    states = [node.name for node in region.graph.nodes if node.operator == "state"]
    reached = {state: f"self.{path}" for state, path in zip(states, printed.paths, strict=True)}
    inputs = [node.name for node in region.graph.nodes if node.operator == "input"]
    call = f"ops.{name}_cuda({', '.join(reached.get(one, one) for one in taken)})"
    several = isinstance(region.graph.output, tuple)
    text = kernel_file(
        cuda=cuda,
        declaration=declaration,
        name=name,
        function=f"{name}_cuda",
        constructor=_constructor(printed),
        arguments=", ".join(inputs),
        body=f"        return {f'tuple({call})' if several else call}",
    )
    return Kernel(text, name=f"region_{region.key}")


def _constructor(printed: Printed) -> str:
    """The problem's own, so that the parameters have its names."""
    lines = printed.problem.source.split("\n")
    if "    def __init__(self):" not in lines:
        return ""
    start = lines.index("    def __init__(self):")
    end = lines.index("", start)
    return "\n".join(lines[start : end + 1]) + "\n"
