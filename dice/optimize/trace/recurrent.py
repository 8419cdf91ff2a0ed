"""Recurrent cells, and layers of them over short sequences, as products and elementwise work. PyTorch's own code for
them depends on the device, and is one call where cuDNN or oneDNN has one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
Tensor = torch.Tensor
MOST_STEPS = 24  # of cells in all: a longer sequence is better left to one call
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


def _layer(step: Step) -> Callable[..., Any]:
    def layer(
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
        directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
        x = x.transpose(0, 1) if batch_first else x
        is_known = len(weights) == each * layers * directions  # else there are projections
        if x.shape[0] * layers * directions > MOST_STEPS or not is_known or (train and dropout and layers > 1):
            raise NotImplementedError("a long sequence, projections or random numbers")
        ends: list[State] = []
        for number in range(layers):
            sides = []
            for side in range(directions):
                place = number * directions + side
                own: list[Any] = [*weights[place * each : (place + 1) * each], None, None]
                state = tuple(one[place] for one in starts)
                seen, state = _along(step, F.linear(x, own[0], own[2]), state, own[1], own[3], side == 1)
                sides.append(seen)
                ends.append(state)
            x = torch.cat(sides, -1) if directions > 1 else sides[0]
        last = tuple(torch.stack(one) for one in zip(*ends, strict=True))
        return (x.transpose(0, 1) if batch_first else x, *last)

    return layer


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
LAYERS: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: _layer(_lstm_step),
    aten.gru.input: _layer(_gru_step),
    aten.rnn_tanh.input: _layer(_tanh_step),
    aten.rnn_relu.input: _layer(_relu_step),
}
