"""Whole small networks with one of their parts in a kernel of its own, called once or several times."""

from __future__ import annotations

import random
import re

from dice.synth.families.rows.softmax import ROW_MAPS
from dice.synth.kernel.cuda import KernelFile, Tensor, lines, reduction_helper, when
from dice.synth.kernel.rows import draw_scope, row_body
from dice.synth.problem.builder import ProblemBuilder
from dice.synth.problem.chain import ChainState, Step, chain_length, chains, draw_chain, draw_scalars, statements
from dice.synth.problem.plan import Draft, Plan
from dice.synth.problem.shapes import describe, sentence
from dice.synth.problem.tensors import Value
from dice.synth.tables.architectures import ARCHITECTURES
from dice.synth.tables.networks import NETWORKS, PARTS, Network, Part
from dice.synth.tables.operators import OPERATORS
from dice.synth.tables.phrasing import SCALAR_NAMES

NAME = "network"
_STATE = ChainState("any", 8.0, False)
_MARKED = re.compile(r"<(?P<operands>[^<>]+)>")
# size -> role, small sizes, large sizes
SIZES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "b": ("batch", (1, 2, 4, 8), (16, 32, 64, 128)),
    "t": ("sequence", (4, 7, 8, 12, 16), (128, 256, 512)),
    "d": ("in_features", (8, 16, 20, 32, 48), (256, 512, 768, 1024)),
    "h": ("hidden", (12, 16, 32, 40, 64), (512, 1024, 2048)),
    "h2": ("hidden", (8, 16, 24, 48), (256, 512)),
    "o": ("classes", (4, 5, 10, 16), (10, 100, 1000)),
    "c": ("in_channels", (2, 3, 4, 8), (3, 16, 32, 64)),
    "k": ("out_channels", (4, 6, 8, 16), (32, 64, 128)),
    "s": ("height", (6, 8, 10, 12), (32, 56, 64)),
}


ALL = NETWORKS | ARCHITECTURES
_LAYERS = (
    "relu",
    "relu",
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "mish",
    "hardswish",
    "selu",
    "softsign",
)  # without numbers
_USUAL = ("relu", "relu", "relu", "gelu", "silu", "leaky_relu", "tanh")


def sample(rng: random.Random) -> Plan:
    core = rng.choice(tuple(ALL))
    name = rng.choice(ALL[core].parts)
    part = PARTS[name]
    state = ROW_MAPS[part.along].after if part.along else _STATE
    least = 1 if name in ("activation", "residual", "cross") else 0
    chain = draw_chain(rng, max(least, chain_length(rng, (3, 5, 3, 1))), state)
    chain = (rng.choice(_USUAL),) if name in ("activation", "residual") and rng.random() < 0.35 else chain
    chain = (rng.choice(_LAYERS),) if name == "module" else () if name == "residual_relu" else chain
    return Plan(NAME, core, chains(chain=chain), (f"part={name}",))


def render(plan: Plan, rng: random.Random) -> Draft:
    network = ALL[plan.core]
    part = PARTS[plan.features[0].removeprefix("part=")]
    builder = ProblemBuilder(rng, keep_inputs=True, literal_numbers=True)  # the chain is written several times
    builder.forward.flow = rng.choice(("fresh", "nested"))
    acting = _module(plan.chain("chain")[0]) if plan.has("part=module") else ""
    names, kept = _declare(builder, network, acting)
    state = ROW_MAPS[part.along].after if part.along else _STATE
    numbers = _numbers(rng, plan.chain("chain"), state)
    steps = [Step(OPERATORS[name], ()) for name in plan.chain("chain") if network.replaced]
    before = []
    for line in network.lines:
        before.append(_MARKED.sub(lambda match: _called(match["operands"]), line).format(**kept))
        written = line.format(**names)
        marked = _MARKED.search(written)
        start, margin = len(builder.forward.lines), line[: len(line) - len(line.lstrip())]
        if marked:
            value = _value(builder, part, [item.strip() for item in marked["operands"].split("|")])
            value, steps = builder.operators.chain(value, plan.chain("chain"), state=state, numbers=numbers)
            written = written[: marked.start()] + value.text + written[marked.end() :]
        builder.forward.lines[start:] = [f"{margin}{item}" for item in builder.forward.lines[start:]] + [written]
    if network.replaced:
        before = [line.format(**kept, Act=acting.removesuffix("()")) for line in network.replaced]
    builder.constructor.settle()
    builder.title = sentence(network.phrase, describe(plan.chain("chain")))
    return _kernel(builder, network, part, steps, before)


def _module(name: str) -> str:
    """The operator as a layer with PyTorch's defaults."""
    return next(form.text for form in OPERATORS[name].spellings if form.kind == "module")


def _declare(builder: ProblemBuilder, network: Network, acting: str) -> tuple[dict[str, str], dict[str, str]]:
    """Sizes, inputs and layers. How the problem's text calls each, and how ModelNew does."""
    rng = builder.rng
    builder.names.taken |= {"x", "y", "z", "n", "q", "k", "v", "code", "logits", "scores", "weights"}  # of the lines
    builder.names.taken |= {"a", "b", "c", "skip", "layer", "layers", "size", "current", "out"}
    used = [size for *_, sizes in network.inputs for size in sizes] + [*network.sizes, *network.listed]
    letters = dict.fromkeys(used)
    marks = {
        letter: builder.tensors.dimension(SIZES[letter][0], *map(rng.choice, SIZES[letter][1:])) for letter in letters
    }
    fixed = bool(network.sizes) and rng.random() < 0.2  # all sizes are numbers in the constructor
    arguments = {
        letter: _number(builder, marks[letter])
        if fixed
        else builder.constructor.argument(SCALAR_NAMES[SIZES[letter][0]], marks[letter], "int")
        for letter in network.sizes
    }
    if network.listed:
        text = f"[{', '.join(marks[letter] for letter in network.listed)}]"
        arguments["listed"] = builder.constructor.argument(("layer_sizes", "sizes", "dims", "widths"), text, "list")
    names, kept = {}, {}
    for name, role, sizes in network.inputs:
        if name == "x":
            builder.names.taken.discard(name)
        value = builder.tensors.input(role, [marks[size] for size in sizes], "torch.randn({shape})")
        names[name if name == "x" else f"{name}0"] = value.text
        kept[name if name == "x" else f"{name}0"] = name
    builder.constructor.shared_lines += [line.format(act=acting, **arguments) for line in network.setup]
    plain = rng.random() < 0.5  # layers are called as they are here
    for name, role, text in network.layers:
        text = text.format(act=acting, **arguments)
        attribute = builder.attributes.add(role, text, shared=True, name=name if plain else "")
        names[name] = kept[name] = attribute
    return names, kept


def _number(builder: ProblemBuilder, mark: str) -> str:
    """A size that is the same in the small and in the large problem."""
    dimension = builder.tensors.size(mark)
    dimension.large = dimension.small
    return str(dimension.small)


def _numbers(rng: random.Random, names: tuple[str, ...], state: ChainState) -> list[tuple[float, ...]]:
    """The scalars of a chain, drawn once for all its places."""
    drawn = []
    for name in names:
        drawn.append(draw_scalars(rng, OPERATORS[name], state))
        state = state.after(OPERATORS[name])
    return drawn


def _called(operands: str) -> str:
    return f"ops.{NAME}_cuda({', '.join(item.strip() for item in operands.split('|'))})"


def _value(builder: ProblemBuilder, part: Part, operands: list[str]) -> Value:
    """The marked part in PyTorch, before its chain."""
    rng = builder.rng
    first = Value(operands[0], True, operands[0].isidentifier())
    if part.along:
        row_map = ROW_MAPS[part.along]
        return builder.forward.apply(rng.choice(row_map.spellings).replace("{d}", "-1"), first, row_map.phrase)
    if part.operands == 1:
        return first
    texts = [
        text if text.isidentifier() or part.text.count(f"{{{slot}}}") < 2 else builder.forward.name(text).text
        for slot, text in zip("xyz", operands, strict=False)
    ]
    first = Value(texts[0], True, texts[0].isidentifier())
    return builder.forward.apply(part.text, first, part.phrase, **dict(zip("yz", texts[1:], strict=False)))


def _kernel(builder: ProblemBuilder, network: Network, part: Part, steps: list[Step], before: list[str]) -> Draft:
    rng = builder.rng
    inputs = [name for name, *_ in network.inputs]
    names = ["x", "y", "z"][: part.operands]
    file = KernelFile(builder, NAME, [Tensor(name, name) for name in names])
    result = before[-1].removeprefix("return ")
    if part.along:
        row_map, scope = ROW_MAPS[part.along], draw_scope(rng, True)
        integers = ["D", *scope.integers]
        body = f"{scope.start}    int base = row * D;\n{row_body(row_map.body, scope.loop, 'x[base + j]', scope)}"
        body += f"    {scope.loop} {{\n        float v = {row_map.result.format(load='x[base + j]')};\n"
        body += f"{statements(steps, 8)}        out[base + j] = v;\n    }}\n"
        code = "".join(reduction_helper(scope, kind) for kind in row_map.kinds) + file.kernel(body, integers)
        host = "    auto out = torch::empty_like(x);\n    int D = x.size(-1), rows = x.numel() / D;\n"
        text = file.write(
            code, host + file.launch(scope.grid, integers), inputs=inputs, before=before[:-1], result=result
        )
        return Draft(builder, text, scope.style)
    places = ("i", part.second, "i")
    loads = [f"float {into} = {name}[{at}];" for into, name, at in zip("vwu", names, places, strict=False)]
    shared = "inner" in part.second
    code, launch, style = file.sweep(rng, lines(loads, part.statement, steps), ["n", *when(shared, "inner")])
    host = (
        f"    auto out = torch::empty_like(x);\n    int n = x.numel(){', inner = n / y.numel()' if shared else ''};\n"
    )
    return Draft(builder, file.write(code, host + launch, inputs=inputs, before=before[:-1], result=result), style)
