"""Recurrent layers over long sequences: what the input comes to at all times is one product, and what comes of the
state before is a kernel that is launched once for each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dice.optimize.graph import Node, Spec
from dice.optimize.templates.contractions.products import linear
from dice.optimize.templates.emitter import CannotWrite, Emitter, computed
from dice.optimize.templates.pointwise import rule
from dice.optimize.templates.shapes import rearranged, viewed
from dice.optimize.templates.text import THREADS, Constants, KernelText, Store, blocks, function, indented, stored
from dice.optimize.templates.values import Keywords, NeedsMemory, Scanned, Value

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclass(eq=False)
class Recurrent(Scanned):
    """A layer's states after each step [T, S, B, H]; S is 2 for an LSTM, whose cells are the second, else 1.

    `source`: what the input comes to, of all gates, [T, B, G * H]. `starts`: the states before the first step, each of
    B * H elements. `weight` [G * H, H] and `bias`: what the state before is multiplied with.
    """

    starts: tuple[Value, ...] = ()
    weight: Value = None  # type: ignore[assignment]
    bias: Value | None = None

    @property
    def sources(self) -> Sequence[Value]:
        bias = [] if self.bias is None else [self.bias]
        return [self.source, *self.starts, self.weight, *bias]


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(node: Node, given: list[Any], options: Keywords) -> Any:
    x, starts, weights, has_biases, layers, _, _, bidirectional, batch_first = given
    w_in, w_own, b_in, b_own = (*weights, None, None)[:4]
    if layers != 1 or bidirectional or batch_first or len(weights) != (4 if has_biases else 2) or len(x.shape) != 3:
        raise CannotWrite("several recurrent layers in one call have no rule")
    if x.dtype not in ("float32", "float64"):
        raise CannotWrite("a recurrent layer in half precision has no rule")
    steps, rows, _ = x.shape
    width = w_own.shape[1]
    entering = linear(replace(node, output=Spec((steps, rows, w_in.shape[0]), x.dtype)), x, w_in, b_in)
    known = tuple(starts) if isinstance(starts, list | tuple) else (starts,)
    shape = (steps, len(known), rows, width)
    states = Recurrent(
        shape, x.dtype, entering, 0, node.base, tuple(viewed(one, (rows, width)) for one in known), w_own, b_own
    )
    seen = rearranged(states, (steps, rows, width), lambda dims: (dims[0], "0", *dims[1:]))

    def end(which: int) -> Value:
        return rearranged(states, (1, rows, width), lambda dims: (str(steps - 1), str(which), *dims[1:]))

    return (seen, *map(end, range(len(known))))


def one_step(name: str, of: Recurrent, store: Store) -> KernelText:
    """A warp for each element of the state: its lanes share the sums over the state before, of all gates."""
    for one in (of.source, of.weight):
        if not one.memory:
            raise NeedsMemory(one)
    e, constants = Emitter(), Constants(name)
    steps, _, rows, width = of.shape
    ctype, gates = computed(of.dtype), range(GATES[of.kind])
    block = constants.name("BLOCK", THREADS)
    e.declare("j", 0, width)
    e.declare("row", 0, rows)
    e.declare("t", 0, steps)

    def at_gate(gate: int) -> str:
        return e.index(f"j + {gate * width}", len(gates) * width) if gate else "j"

    def before(which: int, column: str) -> str:
        """A state's element after the step before."""
        start = of.starts[which].load(e, e.at((rows, width), ("row", column)))

        def earlier() -> str:
            place = e.at(of.shape, (e.index("t - 1", steps), str(which), "row", column))
            return f"{store.name}[{e.flat(place)}]"

        return e.guarded(ctype, "t > 0", start, earlier)

    with e.block() as inner:
        e.declare("k", count=width)
        state = before(0, "k")
        for gate in gates:
            weight = of.weight.load(e, e.at(of.weight.shape, (at_gate(gate), "k")))
            e.line(f"sum{gate} += {state} * {weight};")
    with e.block(pinned=True) as tail:
        entering, own = [], []
        for gate in gates:
            entering.append(of.source.load(e, e.at(of.source.shape, ("t", "row", at_gate(gate)))))
            bias = f" + {of.bias.load(e, e.at(of.bias.shape, (at_gate(gate),)))}" if of.bias is not None else ""
            own.append(f"(sum{gate}{bias})")
        found = _STATES[of.kind](ctype, entering, own, lambda which: before(which, "j"))
        for which, text in enumerate(found):
            e.line(f"{ctype} own_{which} = {text};")
            e.line(stored(store, f"own_{which}", e.flat(e.at(of.shape, ("t", str(which), "row", "j")))))
    body = [
        "int lane = threadIdx.x % 32, j = blockIdx.x;",
        f"int row = blockIdx.y * ({block} / 32) + threadIdx.x / 32;",
        f"if (row >= {rows}) return;",
        *e.frames[0].lines,
        f"{ctype} {', '.join(f'sum{gate} = 0' for gate in gates)};",
        f"for (int k = lane; k < {width}; k += 32) {{",
        *indented(inner.lines),
        "}",
        "for (int i = 16; i > 0; i /= 2) {",
        *(f"    sum{gate} += __shfl_down_sync(0xffffffff, sum{gate}, i);" for gate in gates),
        "}",
        "if (lane == 0) {",
        *indented(tail.lines),
        "}",
    ]
    launch = f"dim3({width}, {blocks(rows, f'({block} / 32)')}), {block}"
    return function(name, e, [store], body, launch, {}, constants, steps=steps)


# What the new states are: of what the input comes to, and the state before, of each gate, and the states before.
Before = Callable[[int], str]


def _sigmoid(ctype: str, text: str) -> str:
    return f"1 / (1 + {'expf' if ctype == 'float' else 'exp'}(-({text})))"


def _tanh(ctype: str, text: str) -> str:
    return f"{'tanhf' if ctype == 'float' else 'tanh'}({text})"


def _lstm(ctype: str, entering: Sequence[str], own: Sequence[str], before: Before) -> list[str]:
    """Gates in PyTorch's order: input, forget, cell, output. The cell comes first, since the state is made of it."""
    enter, forget, cell, leave = (f"{x} + {y}" for x, y in zip(entering, own, strict=True))
    kept = f"{_sigmoid(ctype, forget)} * {before(1)} + {_sigmoid(ctype, enter)} * {_tanh(ctype, cell)}"
    return [f"{_sigmoid(ctype, leave)} * {_tanh(ctype, kept)}", kept]


def _gru(ctype: str, entering: Sequence[str], own: Sequence[str], before: Before) -> list[str]:
    """Gates in PyTorch's order: reset, update, new."""
    reset, update = (f"{x} + {y}" for x, y in zip(entering[:2], own[:2], strict=True))
    new = _tanh(ctype, f"{entering[2]} + {_sigmoid(ctype, reset)} * {own[2]}")
    return [f"{new} + {_sigmoid(ctype, update)} * ({before(0)} - {new})"]


def _plain(ctype: str, entering: Sequence[str], own: Sequence[str], before: Before) -> list[str]:
    return [_tanh(ctype, f"{entering[0]} + {own[0]}")]


def _relu(ctype: str, entering: Sequence[str], own: Sequence[str], before: Before) -> list[str]:
    return [f"larger({entering[0]} + {own[0]}, {ctype}(0))"]


_STATES = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _plain, "rnn_relu": _relu}
