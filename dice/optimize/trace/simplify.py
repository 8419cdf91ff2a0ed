"""A graph without what computes nothing, and with sizes as numbers.

A dropout that is off, a view of the shape and a conversion to the type that is there already are in every network that
was written for training, or for any size and type. A region that has them is asked for in a text that says more than it
does, equal work has different texts, and a model that writes kernels is led astray.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dice.optimize.graph import Named, Node, Ref, Spec, Term, references, substituted, with_references
from dice.optimize.operators import words

_DROPOUTS = words("dropout alpha_dropout feature_dropout feature_alpha_dropout")  # of a tensor, p, and whether it is on
_RESHAPED = words("view reshape expand _unsafe_view")  # of a tensor, and sizes of which some may be -1
_TURNING = words("transpose permute t movedim swapaxes swapdims numpy_T mT adjoint")
_MOVES = ("aten.to.dtype", "aten.to.device", "aten.to.dtype_layout")
_LIKE = {"expand_as": "expand", "view_as": "view", "reshape_as": "reshape"}  # of a tensor, and one of the sizes


def simplified(nodes: Iterable[Node], output: Term) -> tuple[list[Node], Term]:
    """The same values: what is one of its sources is called by that one's name."""
    same: dict[str, Ref] = {}
    returned = set(references(output))
    kept: dict[str, Node] = {}

    def named(ref: Ref) -> Ref:
        return same.get(ref.name, ref)

    for one in nodes:
        node = _of_any_strides(_with_sizes(with_references(one, named)), kept)
        if _is_its_source(node, kept) or (node.name not in returned and _is_times_one(node, kept)):
            same[node.name] = node.arguments[0]
        else:
            kept[node.name] = node
    return list(kept.values()), substituted(output, named)


def _is_its_source(node: Node, known: Mapping[str, Node]) -> bool:
    given = node.arguments
    if node.effect or not node.operator.startswith("aten.") or not given or not isinstance(given[0], Ref):
        return False
    if node.base in _DROPOUTS and len(given) == 3:
        return not given[2] or given[1] == 0
    is_idle = node.base in _RESHAPED or (node.operator in _MOVES and _stays([*given[1:], *node.options.values()]))
    return is_idle and known[given[0].name].output == node.output


def _stays(values: list[Term]) -> bool:
    """Whether a conversion with these arguments is no copy, and not to the host."""
    return True not in values and Named("device", "cpu") not in values


def _is_times_one(node: Node, known: Mapping[str, Node]) -> bool:
    """Whether it has the values of its source, as a tensor of its own: nobody may be given one for the other."""
    if node.base not in ("mul", "div") or len(node.arguments) != 2 or node.options:
        return False
    source, number = node.arguments
    is_one = isinstance(number, int | float) and not isinstance(number, bool) and number == 1
    return is_one and isinstance(source, Ref) and known[source.name].output == node.output


def _of_any_strides(node: Node, known: Mapping[str, Node]) -> Node:
    """A view of what was turned, as one that may copy: PyTorch's own result lay so that it need not, as attention's
    does, and a kernel's may lie otherwise."""
    source = node.arguments[0] if node.arguments else None
    if node.operator != "aten.view.default" or not isinstance(source, Ref) or known[source.name].base not in _TURNING:
        return node
    return replace(node, operator="aten.reshape.default")


def _with_sizes(node: Node) -> Node:
    """A view with its sizes as numbers: it then reads nothing of another tensor."""
    if not isinstance(node.output, Spec) or not node.operator.startswith("aten."):
        return node
    shape = list(node.output.shape)
    if node.base in _LIKE:
        return replace(node, operator=f"aten.{_LIKE[node.base]}.default", arguments=(node.arguments[0], shape))
    sizes = node.arguments[1] if len(node.arguments) > 1 else None
    if node.base not in _RESHAPED or not isinstance(sizes, list) or -1 not in sizes:
        return node
    return replace(node, arguments=(node.arguments[0], shape, *node.arguments[2:]))
