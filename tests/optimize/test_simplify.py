"""What a graph does not need to say, and what is no work."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.optimize.printing import problem_of
from dice.optimize.regions import cut
from dice.optimize.trace.capture_graph import export_graph
from dice.optimize.unit import Unit
from dice.verify.execution.running import Device


def unit_of(module: nn.Module, *inputs: torch.Tensor) -> Unit:
    return export_graph(module, inputs, {}, Device("emulated"), own_file=__name__)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 8), nn.Dropout(0.0)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.layer(x.view(-1, 8).view(6, -1))
        z = F.dropout(z, 0.5, training=False).expand(-1, 8)
        return (self.drop(z) + y.to(z.dtype)).to(torch.float32)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.layer(x.view(6, 8)) + y


def test_what_leaves_its_input_as_it_is_is_no_operator() -> None:
    """The same work has the same text, whatever size and training it was written for."""
    inputs = torch.randn(2, 3, 8), torch.randn(6, 8)
    (written,), (plain,) = (cut(unit_of(module, *inputs).graph) for module in (Residual(), Plain()))
    assert problem_of(written).problem.source == problem_of(plain).problem.source
    assert written.key == plain.key and "x.view(6, 8)" in problem_of(plain).problem.source


def test_a_dropout_that_is_on_stays() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(torch.relu(x), 0.5, training=True)

    assert "dropout" in [node.base for node in unit_of(Noisy(), torch.randn(4, 8)).graph.nodes]


def test_a_conversion_and_a_copy_stay() -> None:
    class Converting(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.to(torch.float64), x.to(torch.float32, copy=True)

    nodes = unit_of(Converting(), torch.randn(4, 8)).graph.nodes
    assert [node.base for node in nodes if not node.is_source] == ["to", "to"]


def test_what_is_multiplied_by_one_stays_only_where_it_is_returned() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(x * 1.0), x / 1

    nodes = unit_of(Scaled(), torch.randn(4, 8)).graph.nodes
    assert [node.base for node in nodes] == ["input", "relu", "div"]


def test_what_is_returned_may_be_what_was_given() -> None:
    class Idle(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return F.dropout(x, 0.5, training=False), torch.relu(x).reshape(4, 8)

    unit = unit_of(Idle(), torch.randn(4, 8))
    assert [node.base for node in unit.graph.nodes] == ["input", "relu"]


def test_a_product_without_elements_is_no_region() -> None:
    assert cut(unit_of(nn.Linear(8, 4), torch.randn(0, 8)).graph) == []
    assert len(cut(unit_of(nn.Linear(8, 4), torch.randn(1, 8)).graph)) == 1


def test_a_region_without_inputs_has_a_forward_that_python_people_write() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("places", torch.arange(6).reshape(1, 6))
            self.embed = nn.Embedding(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.embed(self.places)[0]

    first, *_ = cut(unit_of(Table(), torch.randn(3, 6)).graph)
    source = problem_of(first).problem.source
    assert "def forward(self):" in source and "torch.randint(0, 6, (1, 6))" in source


def test_a_view_like_another_tensor_has_sizes_of_its_own() -> None:
    """What is made of numbers stays that: it reads nothing of the other tensor."""

    class Identity(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return 2 * torch.eye(4).expand_as(x), x.reshape(-1).view_as(x) - torch.arange(16.0).reshape_as(x[0])

    x = torch.randn(3, 4, 4)
    unit = unit_of(Identity(), x)
    assert not {"expand_as", "view_as", "reshape_as"} & {node.base for node in unit.graph.nodes}
    for region in cut(unit.graph):
        assert problem_of(region).problem.source.count("torch.randn(") <= 1


def test_a_view_of_what_attention_gives_may_copy() -> None:
    """PyTorch's attention gives heads behind one another in memory, so that the copy before the view is none."""

    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.scaled_dot_product_attention(x, x * 2, x)
            return torch.relu(y.transpose(1, 2).contiguous().view(2, 5, 12))

    x = torch.randn(2, 3, 5, 4)
    for region in cut(unit_of(Attention(), x).graph):
        names: dict[str, Any] = {}
        exec(problem_of(region).problem.source, names)
        names["Model"](*names["get_init_inputs"]())(*names["get_inputs"]())
