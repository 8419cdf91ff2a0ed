"""A region as a `Problem`: one canonical KernelBench task for each distinct piece of work.

Names, order and layout follow from the region's content alone: parameters that a layer holds are that layer's
(`self.linear = nn.Linear(64, 128)`), other tensors of the module are parameters or buffers by name, sizes are numbers,
and every line is used. The synthetic corpus prints its regions with the same functions, so that what a model is asked
has the form that it was taught.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dice.optimize.graph import Graph, Node, Ref, Spec, references
from dice.optimize.operators import kind_of, words
from dice.optimize.python_text import expression, term
from dice.optimize.region import Region
from dice.problem import Problem

BROADCASTING = words("add sub mul div maximum minimum pow eq ne lt le gt ge atan2")
LARGEST_INDEX = 10  # of whole numbers that are no index: drawn below this
_POSITIVE = words(
    "log log2 log10 log1p sqrt rsqrt logsumexp_",
)


@dataclass(frozen=True, slots=True)
class Printed:
    """`paths`: how each state of the region is reached in the problem's model, `linear.weight`, in its order.
    `constants`: numbers that its layers have, such as `norm.eps`, as Python text."""

    problem: Problem
    paths: tuple[str, ...]
    constants: Mapping[str, str] = field(default_factory=dict)


def problem_of(region: Region) -> Printed:
    """The region as a problem of its own."""
    return _Page(region.graph).printed(f"region_{region.key}")


def function_of(region: Region, name: str, parameters: Sequence[str]) -> str:
    """The region as a function of its inputs and states, in PyTorch: what its kernel does."""
    page = _Page(region.graph)
    page.layers.clear()  # there is no module that could have some
    sources = [node.name for node in (*page.inputs, *page.states)]
    names = dict(zip(sources, parameters, strict=True))
    body = "\n".join(f"    {line}" for line in page.forward(names, renamed=True))
    return f"def {name}({', '.join(parameters)}):\n{body}"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of `torch.nn` that stands for one operator: its attribute, the text that makes it, and its tensors."""

    attribute: str
    text: str
    tensors: Mapping[str, str]  # state -> name in the layer


class _Page:
    def __init__(self, graph: Graph):
        self.graph, self.nodes = graph, graph.by_name()
        self.users: dict[str, list[Node]] = {node.name: [] for node in graph.nodes}
        for node in graph.nodes:
            for use in node.uses:
                self.users[use].append(node)
        self.inputs = [node for node in graph.nodes if node.operator == "input"]
        self.states = [node for node in graph.nodes if node.operator == "state"]
        self.layers = self._layers()

    def printed(self, name: str) -> Printed:
        paths = {
            state: f"{layer.attribute}.{tensor}"
            for layer in self.layers.values()
            for state, tensor in layer.tensors.items()
        }
        for node in self.states:
            paths.setdefault(node.name, node.name)
        body = self.forward({node.name: f"self.{paths[node.name]}" for node in self.states})
        init = self._init(paths)
        lines = ["import torch", "import torch.nn as nn"]
        if any("F." in line for line in body):
            lines.append("import torch.nn.functional as F")
        lines += ["", "", "class Model(nn.Module):"]
        if init:
            lines += [
                "    def __init__(self):",
                "        super().__init__()",
                *(f"        {line}" for line in init),
                "",
            ]
        lines += [f"    def forward({', '.join(('self', *(node.name for node in self.inputs)))}):"]
        lines += [f"        {line}" for line in body]
        made = ", ".join(self._drawn(node) for node in self.inputs)
        lines += [
            "",
            "",
            "def get_inputs():",
            f"    return [{made}]",
            "",
            "",
            "def get_init_inputs():",
            "    return []",
            "",
        ]
        constants = {key: text for layer in self.layers.values() for key, text in _numbers_of(layer)}
        problem = Problem("\n".join(lines), name=name)
        return Printed(problem, tuple(paths[node.name] for node in self.states), constants)

    # ---- forward -------------------------------------------------------------------------------------------------

    def forward(self, names: dict[str, str], renamed: bool = False) -> list[str]:
        """One statement a value; a value that is used once, in the next line, still has its own. `names`: what sources
        are called; `renamed`: the inputs, too."""
        if not renamed:
            names |= {node.name: node.name for node in self.inputs}
        first = (
            self.inputs[0].name if self.inputs else next((names[node.name] for node in self.states), "torch.empty(0)")
        )
        device = f"{first}.device"
        held = {layer_of: layer for layer_of, layer in self.layers.items()}
        body = []
        last = self.graph.output.name if isinstance(self.graph.output, Ref) else ""
        for node in self.graph.nodes:
            if node.is_source and node.operator != "constant":
                continue
            if self._is_broadcast_anyway(node):
                names[node.name] = names[next(references(list(node.arguments)))]
                continue
            if node.name in held:
                first = next(references(list(node.arguments)))
                if node.base == "embedding":
                    first = node.arguments[1].name
                text = f"self.{held[node.name].attribute}({names[first]})"
            else:
                text = expression(node, names, device)
            names[node.name] = node.name
            body.append(
                f"return {text}" if node.name == last and node is self.graph.nodes[-1] else f"{node.name} = {text}"
            )
        if not body or not body[-1].startswith("return "):
            body.append(f"return {term(self.graph.output, names)}")
        return body

    def _is_broadcast_anyway(self, node: Node) -> bool:
        """Whether PyTorch would widen the tensor by itself, in all that reads it."""
        if node.base not in ("expand", "expand_as") or node.name in references(self.graph.output):
            return False
        return all(
            user.base in BROADCASTING
            and any(one != node.name and self.nodes[one].output == node.output for one in user.uses)
            for user in self.users[node.name]
        )

    # ---- the constructor -----------------------------------------------------------------------------------------

    def _init(self, paths: Mapping[str, str]) -> list[str]:
        lines = [f"self.{layer.attribute} = {layer.text}" for layer in self.layers.values()]
        in_layer = {state for layer in self.layers.values() for state in layer.tensors}
        for node in self.states:
            if node.name in in_layer:
                continue
            value = self._drawn(node)
            if node.spec.dtype.startswith(("float", "bfloat")) and not self._is_statistic(node):
                lines.append(f"self.{paths[node.name]} = nn.Parameter({value})")
            else:
                lines.append(f'self.register_buffer("{paths[node.name]}", {value})')
        return lines

    def _is_statistic(self, node: Node) -> bool:
        return any(
            user.base == "batch_norm" and node.name in references(list(user.arguments[3:5]))
            for user in self.users[node.name]
        )

    def _layers(self) -> dict[str, Layer]:
        """Operators whose tensors nobody else reads, and which a layer of PyTorch's does."""
        layers: dict[str, Layer] = {}
        counts: dict[str, int] = {}
        for node in self.graph.nodes:
            make = _LAYERS.get(node.base)
            found = make(node, self.nodes) if make and not node.is_source else None
            if found is None:
                continue
            stem, text, tensors = found
            if any(self.nodes[state].operator != "state" or len(self.users[state]) != 1 for state in tensors):
                continue
            counts[stem] = counts.get(stem, 0) + 1
            attribute = stem if counts[stem] == 1 else f"{stem}{counts[stem]}"
            layers[node.name] = Layer(attribute, text, tensors)
        return layers

    # ---- values --------------------------------------------------------------------------------------------------

    def _drawn(self, node: Node) -> str:
        """An expression that draws a tensor like this one, of values that its users can take."""
        spec = node.spec
        shape = ", ".join(map(str, spec.shape)) or "()"
        if spec.dtype == "bool":
            return f"torch.rand({shape}) > 0.5"
        if not spec.dtype.startswith(("float", "bfloat")):
            size = f"({shape},)" if len(spec.shape) == 1 else f"({shape})"
            dtype = "" if spec.dtype == "int64" else f", dtype=torch.{spec.dtype}"
            least = int(any(_divides(user, name) for user, name in self._readers(node)))
            return f"torch.randint({least}, {max(self._bound(node), least + 1)}, {size}{dtype})"
        dtype = "" if spec.dtype == "float32" else f".to(torch.{spec.dtype})"
        if self._must_be_positive(node):
            return f"(torch.rand({shape}) + 0.5){dtype}"
        if width := self._recurrent_width(node):
            # As PyTorch draws them: with larger ones a long sequence is chaos, where each rounding grows.
            drawn = f"(torch.rand({shape}) * 2 - 1) * {width**-0.5:.3g}"
            return f"({drawn}){dtype}" if dtype else drawn
        if self._is_argument(node, 0, "binary_cross_entropy"):  # a probability: PyTorch refuses others
            return f"torch.sigmoid(torch.randn({shape})){dtype}"
        if self._is_argument(node, 1, "binary_cross_entropy", "binary_cross_entropy_with_logits"):
            return f"torch.rand({shape}){dtype}"
        return f"torch.randn({shape}){dtype}"

    def _recurrent_width(self, node: Node) -> int:
        """Of the states of the recurrent layer that the tensor is a weight or bias of; else 0."""
        for user, name in self._readers(node):
            if kind_of(user) == "recurrent" and Ref(name) in user.arguments[2]:
                return int(user.output[0].shape[-1])  # type: ignore[index, union-attr]
        return 0

    def _is_argument(self, node: Node, place: int, *operators: str) -> bool:
        """Whether the tensor is what one of these operators takes at that place."""
        return any(user.base in operators and user.arguments[place] == Ref(name) for user, name in self._readers(node))

    def _readers(self, node: Node, as_index: bool = False) -> list[tuple[Node, str]]:
        """Who reads the tensor, through views, and under which name. `as_index`: also through what makes other whole
        numbers of its own, such as 0 of labels that count for nothing."""
        found, waiting = [], [node.name]
        while waiting:
            name = waiting.pop()
            for user in self.users[name]:
                if name not in references(list(user.arguments[:1])) and kind_of(user) == "view":
                    continue  # `expand_as` asks for its shape alone
                is_whole = isinstance(user.output, Spec) and user.output.dtype == "int64"
                if kind_of(user) == "view" or user.base in ("to", "_to_copy", "type_as"):
                    waiting.append(user.name)
                    continue
                found.append((user, name))
                if as_index and is_whole and (kind_of(user) == "pointwise" or user.base in ("amax", "amin")):
                    waiting.append(user.name)
        return found

    def _bound(self, node: Node) -> int:
        """What whole numbers of the tensor stay below: the size of what they are indices into."""
        bounds = []
        for user, name in self._readers(node, as_index=True):
            given = user.arguments
            specs = [self.nodes[one.name].output if isinstance(one, Ref) else None for one in given]
            first = specs[0] if specs else None
            if user.base == "embedding" and isinstance(first, Spec):
                bounds.append(first.shape[0])
            elif user.base in ("gather", "index_select") and isinstance(first, Spec):
                bounds.append(first.shape[given[1]])
            elif user.base == "index" and isinstance(first, Spec):
                places = [at for at, one in enumerate(given[1]) if isinstance(one, Ref) and one.name == name]
                bounds += [first.shape[at] for at in places]
            elif user.base in ("cross_entropy_loss", "nll_loss", "nll_loss_nd") and isinstance(first, Spec):
                bounds.append(first.shape[1])
            elif user.base == "one_hot":
                bounds.append(given[1])
        return min(bounds, default=LARGEST_INDEX)

    def _must_be_positive(self, node: Node) -> bool:
        for user, name in self._readers(node):
            if user.base in _POSITIVE:
                return True
            if user.base == "pow" and isinstance(user.arguments[1], float) and not user.arguments[1].is_integer():
                return True
            if user.base == "batch_norm" and isinstance(user.arguments[4], Ref) and user.arguments[4].name == name:
                return True
            of_loss = user.base == "kl_div" and user.arguments[1] == Ref(name)
            if of_loss or _divides(user, name):
                return True
        return False


def _divides(user: Node, name: str) -> bool:
    divisions = ("div", "true_divide", "floor_divide", "remainder", "fmod")
    return user.base in divisions and user.arguments[1] == Ref(name)


def _numbers_of(layer: Layer) -> Iterator[tuple[str, str]]:
    """The numbers that a layer of PyTorch's was made with, by the path that a kernel file may reach them by."""
    with torch.device("meta"):
        made = eval(layer.text, {"nn": torch.nn})  # our own text, of numbers alone
    for name, value in vars(made).items():
        numbers = value if isinstance(value, tuple) else (value,)
        if not name.startswith("_") and all(isinstance(one, int | float) for one in numbers) and name != "training":
            yield f"{layer.attribute}.{name}", repr(value)


# ---- layers: (node, nodes) -> attribute, text, state -> tensor -------------------------------------------------------

Found = tuple[str, str, dict[str, str]]
Nodes = Mapping[str, Node]


def _tensors(weight: object, bias: object) -> dict[str, str]:
    found = {weight.name: "weight"} if isinstance(weight, Ref) else {}
    return found | ({bias.name: "bias"} if isinstance(bias, Ref) else {})


def _argument(node: Node, index: int, default: object = None) -> object:
    return node.arguments[index] if len(node.arguments) > index else default


def _linear(node: Node, nodes: Nodes) -> Found | None:
    weight, bias = _argument(node, 1), _argument(node, 2)
    if not isinstance(weight, Ref) or not _is_float32(node):
        return None
    rows, columns = nodes[weight.name].spec.shape
    more = "" if bias is not None else ", bias=False"
    return "linear", f"nn.Linear({columns}, {rows}{more})", _tensors(weight, bias)


def _is_float32(node: Node) -> bool:
    return node.spec.dtype == "float32"


def _pairs(value: object, rank: int) -> str:
    if isinstance(value, str):  # padding="same"
        return repr(value)
    given = list(value) if isinstance(value, list | tuple) else [value]
    values = given * rank if len(given) == 1 else given
    return str(values[0]) if len(set(values)) == 1 else str(tuple(values))


def _conv(node: Node, nodes: Nodes) -> Found | None:
    weight, bias = _argument(node, 1), _argument(node, 2)
    if not isinstance(weight, Ref) or not _is_float32(node):
        return None
    rank = int(node.base.rstrip("d")[-1])
    shape = nodes[weight.name].spec.shape
    turned = "transpose" in node.base
    names = (
        ("stride", "padding", "output_padding", "groups", "dilation")
        if turned
        else ("stride", "padding", "dilation", "groups")
    )
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "output_padding": 0}
    given = {name: _argument(node, 3 + index, defaults[name]) for index, name in enumerate(names)}
    groups = given["groups"]
    assert isinstance(groups, int)
    given["padding"] = _as_numbers(given["padding"], shape[2:], given["dilation"])
    channels = (shape[0], shape[1] * groups) if turned else (shape[1] * groups, shape[0])
    shown = [str(channels[0]), str(channels[1]), _pairs(list(shape[2:]), rank)]
    for name, value in given.items():
        text = str(value) if name == "groups" else _pairs(value, rank)
        if text != str(defaults[name]):
            shown.append(f"{name}={text}")
    shown += [] if bias is not None else ["bias=False"]
    kind = f"nn.Conv{'Transpose' if turned else ''}{rank}d"
    return "conv_transpose" if turned else "conv", f"{kind}({', '.join(shown)})", _tensors(weight, bias)


def _as_numbers(padding: object, kernel: Sequence[int], dilation: object) -> object:
    """`"same"` and `"valid"` as the numbers that they come to, where both sides get as many."""
    if not isinstance(padding, str):
        return padding
    given: list[int] = list(dilation) if isinstance(dilation, list | tuple) else [1]
    spread = given * len(kernel) if len(given) == 1 else given
    total = [0 if padding == "valid" else by * (size - 1) for size, by in zip(kernel, spread, strict=True)]
    return padding if any(one % 2 for one in total) else [one // 2 for one in total]


def _layer_norm(node: Node, nodes: Nodes) -> Found | None:
    shape, weight, bias = _argument(node, 1), _argument(node, 2), _argument(node, 3)
    if not isinstance(weight, Ref) or not isinstance(bias, Ref) or not _is_float32(node):
        return None
    assert isinstance(shape, list)
    eps = _argument(node, 4, 1e-5)
    more = "" if eps == 1e-5 else f", eps={eps!r}"
    return "norm", f"nn.LayerNorm({shape[0] if len(shape) == 1 else tuple(shape)}{more})", _tensors(weight, bias)


def _group_norm(node: Node, nodes: Nodes) -> Found | None:
    groups, weight, bias = _argument(node, 1), _argument(node, 2), _argument(node, 3)
    if not isinstance(weight, Ref) or not isinstance(bias, Ref) or not _is_float32(node):
        return None
    eps = _argument(node, 4, 1e-5)
    more = "" if eps == 1e-5 else f", eps={eps!r}"
    channels = nodes[weight.name].spec.shape[0]
    return "norm", f"nn.GroupNorm({groups}, {channels}{more})", _tensors(weight, bias)


def _embedding(node: Node, nodes: Nodes) -> Found | None:
    weight = _argument(node, 0)
    if not isinstance(weight, Ref) or not _is_float32(node) or not isinstance(_argument(node, 1), Ref):
        return None
    rows, width = nodes[weight.name].spec.shape
    return "embedding", f"nn.Embedding({rows}, {width})", _tensors(weight, None)


def _prelu(node: Node, nodes: Nodes) -> Found | None:
    weight = _argument(node, 1)
    if not isinstance(weight, Ref) or not _is_float32(node) or len(nodes[weight.name].spec.shape) != 1:
        return None
    count = nodes[weight.name].spec.shape[0]
    return "prelu", f"nn.PReLU({count if count > 1 else ''})", _tensors(weight, None)


_LAYERS = {
    "linear": _linear,
    "prelu": _prelu,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "embedding": _embedding,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _conv),
}

__all__: Sequence[str] = ("Printed", "problem_of")
