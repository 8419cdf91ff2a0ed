"""Recurrent layers by rule: over long sequences a kernel goes along them, a layer and a direction at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dice.optimize.printing import problem_of
from dice.optimize.regions import cut
from dice.optimize.trace.recurrent import LAYERS, LONG_LAYERS, aten
from tests.optimize.test_rules import check, graph_of

STEPS, ROWS, ENTERS, WIDTH = 40, 3, 5, 36
GATES = {torch.lstm: 4, torch.gru: 3, torch.rnn_tanh: 1, torch.rnn_relu: 1}
Results = tuple[torch.Tensor, ...]


def weights(gates: int, layers: int, directions: int, biases: bool, dtype: torch.dtype) -> list[torch.Tensor]:
    found = []
    for layer in range(layers):
        enters = WIDTH * directions if layer else ENTERS
        for _ in range(directions):
            shapes: list[Any] = [(gates * WIDTH, enters), (gates * WIDTH, WIDTH)]
            shapes += [(gates * WIDTH,), (gates * WIDTH,)] if biases else []
            found += [(torch.rand(shape, dtype=dtype) * 2 - 1) * WIDTH**-0.5 for shape in shapes]
    return found


def layers_of(
    kind: Callable[..., Any], layers: int, *, two_ways: bool = False, biases: bool = True, first: bool = False
) -> Callable[..., Results]:
    """A function of the input, the states before it and the weights."""

    def run(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, *own: torch.Tensor) -> Results:
        state = (h, c) if kind is torch.lstm else h
        return tuple(kind(x, state, list(own), biases, layers, 0.0, False, two_ways, first))

    return run


@pytest.mark.parametrize("kind", GATES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "layers, two_ways, biases, first, dtype",
    [
        (1, False, True, False, torch.float32),
        (2, True, False, False, torch.float32),
        (1, True, True, True, torch.float64),
    ],
)
def test_layers_over_a_long_sequence(
    tmp_path: Path, kind: Callable[..., Any], layers: int, two_ways: bool, biases: bool, first: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    directions = 2 if two_ways else 1
    x = torch.randn((ROWS, STEPS, ENTERS) if first else (STEPS, ROWS, ENTERS), dtype=dtype)
    h, c = (torch.randn(layers * directions, ROWS, WIDTH, dtype=dtype) for _ in range(2))
    own = weights(GATES[kind], layers, directions, biases, dtype)
    function = layers_of(kind, layers, two_ways=two_ways, biases=biases, first=first)
    cuda = check(tmp_path, function, x, h, c, *own)
    assert cuda.count(f"t < {STEPS}; t++") == layers * directions


def test_a_layer_is_a_region_with_weights_that_keep_calm() -> None:
    """As large as PyTorch draws them: else what a region's problem computes is decided by roundings."""
    x, h = torch.randn(STEPS, ROWS, ENTERS), torch.zeros(1, ROWS, WIDTH)
    graph = graph_of(layers_of(torch.gru, 1), x, h, h, *weights(3, 1, 1, True, torch.float32))
    (region,) = cut(graph)
    assert region.kind == "recurrent"
    source = problem_of(region).problem.source
    assert "torch.gru(" in source
    space: dict[str, Any] = {}
    exec(source, space)
    drawn = space["Model"](*space["get_init_inputs"]()), space["get_inputs"]()
    assert max(float(one.abs().max()) for one in drawn[1] if one.shape[0] == 3 * WIDTH) <= WIDTH**-0.5 + 1e-3


def test_what_has_no_rule_stays_whole() -> None:
    """A layer in half precision is one call of PyTorch's still."""
    x, h = torch.randn(STEPS, ROWS, ENTERS).bfloat16(), torch.zeros(2, ROWS, WIDTH).bfloat16()
    graph = graph_of(layers_of(torch.gru, 2), x, h, h, *weights(3, 2, 1, True, torch.bfloat16))
    assert [node.base for node in graph.nodes if node.operator.startswith("aten.gru")] == ["gru"]
    assert cut(graph) == []


@pytest.mark.parametrize("biases", [True, False])
def test_an_lstm_that_projects_its_output_is_taken_apart(biases: bool) -> None:
    """Over a short sequence, in two layers and both ways."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(6, 10, num_layers=2, bidirectional=True, bias=biases, batch_first=True, proj_size=4)
    x, h, c = torch.randn(3, 5, 6), torch.randn(4, 3, 4), torch.randn(4, 3, 10)
    own = [weight for weights in layer.all_weights for weight in weights]
    given = (x, (h, c), own, biases, 2, 0.0, False, True, True)
    for found, expected in zip(LAYERS[aten.lstm.input](*given), aten.lstm.input(*given), strict=True):
        torch.testing.assert_close(found, expected)
    with pytest.raises(NotImplementedError):
        LONG_LAYERS[aten.lstm.input](*given)
