"""What a module put together from regions does with the statistics that its batch normalisations keep."""

from __future__ import annotations

import copy
import inspect
import re

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.optimize.graph import references
from dice.optimize.printing import function_of
from dice.optimize.regions import cut
from dice.optimize.trace.capture_graph import export_graph
from dice.optimize.whole.body import Body
from dice.optimize.whole.compose import looked_up_once, reached
from dice.verify.execution.running import Device


class Normed(nn.Module):
    """Normalised three times, each time with a momentum of its own or by the same layer."""

    def __init__(self, shared: bool):
        super().__init__()
        first = nn.BatchNorm1d(4)
        self.norms = nn.ModuleList([first, first if shared else nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=0.3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            x = F.relu(norm(x)) + torch.sin(x)
        return x


class Looked(Normed):
    """Reads a statistic after it was kept."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.norms[0].get_buffer("running_mean")


class Batch(Normed):
    """Returns its input, which has a name of its own."""

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(batch), batch


class Centred(nn.Module):
    """Overwrites what it has read, itself and by a view, and reads it again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = torch.softmax((x - self.centre) / 0.1, -1)
        first = self.centre[0]
        self.centre = self.centre * 0.9 + x.mean(0, keepdim=True) * 0.1
        return near.sum(-1) + torch.exp(first).sum() + torch.sin(self.centre).sum()


class ReadAround(nn.Module):
    """Reads a statistic before and after it is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = x - self.norm.get_buffer("running_mean")
        return self.norm(x) * before + self.norm.get_buffer("running_mean")


class ReadBefore(nn.Module):
    """Reads a statistic before it is kept, in a region of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.softmax(self.mix(x) - self.norm.get_buffer("running_mean"), -1)
        return self.norm(x), before


class OfThatName(nn.Module):
    """Has buffers and a parameter that are called as what a region computes besides."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("batch_mean", torch.full((4,), 3.0))
        self.register_buffer("batch_var", torch.full((4,), 0.5))
        self.var_mean = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.norm(x) * self.var_mean - self.batch_mean) / self.batch_var


class OfTwoTypes(nn.Module):
    """Keeps in float32 what it normalises in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(x.bfloat16())).float()


def lines_of(module: nn.Module, x: torch.Tensor) -> tuple[list[str], list[str]]:
    """Functions of the regions in PyTorch, and the statements between them."""
    graph = export_graph(module, (x,), {}, Device("emulated"), own_file=__name__).graph
    regions = cut(graph)
    names = {node.name: node.arguments[0] for node in graph.nodes if node.operator == "input"}
    names |= {node.name: reached(node.arguments[0]) for node in graph.nodes if node.operator == "state"}
    functions, texts = {}, []
    for region in regions:
        functions[region.key] = f"region_{region.key}"
        given = [f"given_{place}" for place in range(len(region.inputs) + len(region.states))]
        texts.append(function_of(region, functions[region.key], given))
    body = Body(graph, regions, functions, names, "x.device")
    body.effects()
    body.compute(references(graph.output))
    body.finish()
    lines = [*(statement.text for statement in body.statements), f"return {body.returned()}"]
    return texts, looked_up_once(graph.nodes, lines, f"{', '.join(inspect.signature(module.forward).parameters)} torch")


@pytest.mark.parametrize(
    ("module", "together"),
    [(Normed(False), True), (Normed(True), False), (Looked(False), True), (Batch(False), True)],
    ids=["each its own", "one layer twice", "read afterwards", "an input returned"],
)  # fmt: skip
def test_statistics_are_kept_as_pytorch_keeps_them(module: nn.Module, together: bool) -> None:
    """Those that nobody reads are brought up to date all at once, others where they stand."""
    lines, theirs, ours = compare(module)
    assert any("torch._foreach_lerp_" in line for line in lines) == together
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_what_is_overwritten_is_read_before() -> None:
    _, theirs, ours = compare(Centred())
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("kind", [ReadAround, ReadBefore, OfThatName, OfTwoTypes])
def test_statistics_are_told_from_what_reads_them_and_what_is_called_so(kind: type[nn.Module]) -> None:
    _, theirs, ours = compare(kind())
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


class Named(nn.Module):
    """Has a layer within a layer, and one that is called as what `forward` is given."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({"norm": nn.BatchNorm1d(4), "gate": nn.Linear(4, 4)})])
        self.batch, self.torch = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.blocks[0].scale = nn.Parameter(torch.full((4,), 0.5))  # type: ignore[assignment]
        self.blocks[0].shift = nn.Parameter(torch.ones(4))  # type: ignore[assignment]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        block = self.blocks[0]
        x = self.torch(self.batch(torch.sigmoid(block["gate"](block["norm"](batch)))))  # type: ignore[index]
        return x * block.scale + block.shift  # type: ignore[operator]


def test_a_part_is_looked_up_once() -> None:
    """And is called by no name that means something else."""
    lines, theirs, ours = compare(Named())
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    names = [line for line in lines if re.fullmatch(r"\w+ = self[\w.\[\]']+", line)]
    assert set(names) == {
        "blocks_0_norm = self.blocks[0]['norm']",
        "blocks_0_gate = self.blocks[0]['gate']",
        "blocks_0 = self.blocks[0]",
    }
    text = "\n".join(lines)
    assert text.count("self.blocks") == 3 and "self.batch.weight" in text and "self.torch.weight" in text


def compare(module: nn.Module) -> tuple[list[str], nn.Module, nn.Module]:
    """The statements of a module's `forward`, which gave what it gives three times in a row, and both modules."""
    theirs, ours = copy.deepcopy(module).train(), copy.deepcopy(module).train()
    functions, lines = lines_of(copy.deepcopy(module).train(), torch.randn(6, 4))
    space: dict[str, object] = {"torch": torch, "F": F}
    (given,) = inspect.signature(module.forward).parameters
    text = "\n".join([f"def forward(self, {given}):", *(f"    {line}" for line in lines)])
    exec("\n".join([*functions, text]), space)
    for _ in range(3):
        x = torch.randn(6, 4)
        with torch.no_grad():
            torch.testing.assert_close(space["forward"](ours, x), theirs(x))  # type: ignore[operator]
    return lines, theirs, ours
