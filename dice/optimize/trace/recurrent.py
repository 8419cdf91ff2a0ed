"""Recurrent cells, and layers of them over short sequences, as products and elementwise work; layers over long ones as
calls of one layer in one direction each, for which there is a rule. PyTorch's own code for them depends on the device,
and is one call where cuDNN or oneDNN has one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
Tensor = torch.Tensor
MOST_STEPS = 24  # of cells in all: a longer sequence has a kernel that goes along it
State = tuple[Tensor, ...]
Step = Callable[[Tensor, State, Tensor, "Tensor | None"], State]  # what the input comes to, state, weight and bias


def _lstm_step(given: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    """Gates in PyTorch's order: input, forget, cell, output."""
    enter, forget, cell, leave = (given + F.linear(state[0], weight, bias)).chunk(4, -1)
    kept = forget.sigmoid() * state[1] + enter.sigmoid() * cell.tanh()
    return leave.sigmoid() * kept.tanh(), kept


def _gru_step(given: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    """Gates in PyTorch's order: reset, update, new."""
    reset, update, new = given.chunk(3, -1)
    own_reset, own_update, own_new = F.linear(state[0], weight, bias).chunk(3, -1)
    fresh = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return (fresh + (update + own_update).sigmoid() * (state[0] - fresh),)


def _tanh_step(given: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    return ((given + F.linear(state[0], weight, bias)).tanh(),)


def _relu_step(given: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
    return ((given + F.linear(state[0], weight, bias)).relu(),)


def _cell(step: Step) -> Callable[..., Any]:
    def cell(
        x: Tensor,
        state: Any,
        w_in: Tensor,
        w_own: Tensor,
        b_in: Tensor | None = None,
        b_own: Tensor | None = None,
    ) -> Any:
        known = tuple(state) if isinstance(state, list | tuple) else (state,)
        found = step(F.linear(x, w_in, b_in), known, w_own, b_own)
        return found if len(found) > 1 else found[0]

    return cell


Along = Callable[[Tensor, State, Sequence[Any], bool], "tuple[Tensor, State]"]


def _layers(along: Along, most_steps: int, *, projects: bool = False) -> Callable[..., Any]:
    """Layers whose sequences `along` follows: of an input, the states before it, a layer's weights and biases, and
    whether it goes backwards, it gives the states after each step and those at the end. `projects`: it also knows
    layers with a matrix more, which makes each step's output, and hidden state, of what there is else."""

    def layers_of(
        x: Tensor,
        states: Any,
        weights: Sequence[Tensor],
        has_biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        """Results of all steps, and the states at the end, each of all layers and directions."""
        starts = tuple(states) if isinstance(states, list | tuple) else (states,)
        directions, plain = 2 if bidirectional else 1, 4 if has_biases else 2
        each = len(weights) // (layers * directions)
        x = x.transpose(0, 1) if batch_first else x
        is_known = each == plain or (projects and each == plain + 1)
        if x.shape[0] * layers * directions > most_steps or not is_known or (train and dropout and layers > 1):
            raise NotImplementedError("a long sequence, projections or random numbers")
        ends: list[State] = []
        for number in range(layers):
            sides = []
            for side in range(directions):
                place = number * directions + side
                own = weights[place * each : (place + 1) * each]
                seen, state = along(x, tuple(one[place] for one in starts), own, side == 1)
                sides.append(seen)
                ends.append(state)
            x = torch.cat(sides, -1) if directions > 1 else sides[0]
        last = tuple(torch.stack(one) for one in zip(*ends, strict=True))
        return (x.transpose(0, 1) if batch_first else x, *last)

    return layers_of


def _by_cells(step: Step) -> Callable[..., Any]:
    def projected(projection: Tensor) -> Step:
        def made(given: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
            hidden, *rest = step(given, state, weight, bias)
            return F.linear(hidden, projection), *rest

        return made

    def along(x: Tensor, state: State, own: Sequence[Any], backwards: bool) -> tuple[Tensor, State]:
        used = projected(own[-1]) if len(own) % 2 else step
        w_in, w_own, b_in, b_own = (*own[: len(own) // 2 * 2], None, None)[:4]
        return _along(used, F.linear(x, w_in, b_in), state, w_own, b_own, backwards)

    return _layers(along, MOST_STEPS, projects=True)


def _by_calls(layer: Any) -> Callable[..., Any]:
    """The same by one call of PyTorch's for each layer and direction."""

    def along(x: Tensor, state: State, own: Sequence[Any], backwards: bool) -> tuple[Tensor, State]:
        x = x.flip(0) if backwards else x
        starts = [one.unsqueeze(0) for one in state]
        given = starts if len(starts) > 1 else starts[0]
        seen, *ends = layer(x, given, list(own), len(own) == 4, 1, 0.0, False, False, False)
        return seen.flip(0) if backwards else seen, tuple(one.squeeze(0) for one in ends)

    return _layers(along, sys.maxsize)


def _along(step: Step, given: Tensor, state: State, weight: Any, bias: Any, backwards: bool) -> tuple[Tensor, State]:
    seen: list[Tensor] = []
    times = range(given.shape[0])
    for time in reversed(times) if backwards else times:
        state = step(given[time], state, weight, bias)
        seen.append(state[0])
    return torch.stack(seen[::-1] if backwards else seen), state


CELLS: dict[Any, Callable[..., Any]] = {
    aten.lstm_cell.default: _cell(_lstm_step),
    aten.gru_cell.default: _cell(_gru_step),
    aten.rnn_tanh_cell.default: _cell(_tanh_step),
    aten.rnn_relu_cell.default: _cell(_relu_step),
}
_STEPS = {
    aten.lstm.input: _lstm_step,
    aten.gru.input: _gru_step,
    aten.rnn_tanh.input: _tanh_step,
    aten.rnn_relu.input: _relu_step,
}
LAYERS: dict[Any, Callable[..., Any]] = {layer: _by_cells(step) for layer, step in _STEPS.items()}
LONG_LAYERS: dict[Any, Callable[..., Any]] = {layer: _by_calls(layer) for layer in _STEPS}
