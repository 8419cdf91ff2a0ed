"""What a module does that no graph holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dice.kernel import Kernel
from dice.optimize.run import optimize_module
from dice.optimize.trace.tracer import Tracer
from dice.optimize.writers import Templates
from dice.problem import Problem
from dice.verify import Verifier

KEEPS = """
import torch
import torch.nn as nn


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(12, 4)
        self.last = torch.zeros(2, 4)
        self.seen = None

    def forward(self, x):
        self.seen = x * 2 if self.seen is None else self.seen
        {how}
        return torch.tanh(self.mix(torch.cat((x, self.last), 1)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = Cell()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.cell(x))


def get_inputs():
    return [torch.randn(2, 8)]


def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("how", "places"),
    [("self.last = self.last + x[:, :4]", {".cell.mix", ".out"}), ("last = self.last + x[:, :4]", {""})],
)
def test_who_keeps_a_tensor_for_the_next_call_is_followed_in_parts(how: str, places: set[str]) -> None:
    """A graph does not put another tensor in the place of an attribute. What is made once, a cache, is none."""
    with Tracer("emulated") as tracer:
        trace = tracer.trace(Problem(KEEPS.replace("{how}", how), name="keeps"))
    assert {path for unit in trace.units for path in unit.paths} == places
    assert ("keeps a tensor for its next call, as cell.last" in trace.reason) == (places != {""})


COUNTS = """
import torch
import torch.nn as nn


class Counts(nn.Module):
    def forward(self, x):
        count = int((x > 0).sum().item())
        return x * count if count > 3 else x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 4)
        self.inner = nn.Sequential(nn.ReLU(), Counts())

    def forward(self, x):
        return self.inner(self.mix(x))


def get_inputs():
    return [torch.randn(2, 8)]


def get_init_inputs():
    return []
"""


def test_parts_that_cannot_be_followed_are_named() -> None:
    with Tracer("emulated") as tracer:
        trace = tracer.trace(Problem(COUNTS, name="counts"))
    assert {path for unit in trace.units for path in unit.paths} == {".mix", ".inner[0]"}
    assert trace.reason.endswith("; left to PyTorch: inner.1 (Counts)"), trace.reason


MOVES = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 4)
        self.scale = torch.rand(4) + 0.5

    def forward(self, x):
        self.scale = self.scale.to(x.device)
        return torch.tanh(self.mix(x)) * self.scale


def get_inputs():
    return [torch.randn(2, 8)]


def get_init_inputs():
    return []
"""


@pytest.mark.usefixtures("lasting")
def test_a_tensor_that_is_no_buffer_is_moved_where_the_inputs_are(tmp_path: Path) -> None:
    """A module is moved without it, which emulation, where all is on the host, does not show by itself."""
    with Verifier(backend="emulated") as verifier:
        result = optimize_module(Problem(MOVES, name="moves"), verifier, [Templates()], tmp_path)
    assert result.kernel is not None and result.verdict is not None
    assert (result.verdict.provenance, result.report.share) == ("construction", 1.0)
    assert "self.scale.to(x.device)" in result.kernel.source


TABLES = """
import torch
import torch.nn as nn


class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = None

    def forward(self, x):
        if self.tables is None:
            places = torch.arange(x.shape[0], device=x.device).float()
            angles = torch.outer(places, torch.arange(1, 3, device=x.device).float())
            self.cosines, self.tables = angles.cos(), angles.sin()
        return torch.cat((x[:, :2] * self.cosines, x[:, 2:] * self.tables), 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 4)
        self.turn = Rotation()

    def forward(self, x):
        return self.turn(self.mix(x))


def get_inputs():
    return [torch.randn(3, 8)]


def get_init_inputs():
    return []
"""


def test_a_part_that_makes_something_once_is_followed_as_it_was_made() -> None:
    """Also where the whole cannot be followed, and has been called before its parts are."""
    whole = "return self.turn(self.mix(x))"
    by_value = TABLES.replace(whole, f"{whole} if x.sum() > -100 else x[:, :4]")
    with Tracer("emulated") as tracer:
        trace = tracer.trace(Problem(by_value, name="by_value"))
    (turn,) = [unit for unit in trace.units if unit.paths == (".turn",)]
    assert not [node for node in turn.graph.nodes if node.operator == "state"]


@pytest.mark.usefixtures("lasting")
@pytest.mark.parametrize("kept", ["self.tables = None", 'self.register_buffer("tables", None, persistent=False)'])
def test_what_a_module_makes_once_and_keeps_is_computed(kept: str, tmp_path: Path) -> None:
    problem = Problem(TABLES.replace("self.tables = None", kept), name="tables")
    with Verifier(backend="emulated") as verifier:
        result = optimize_module(problem, verifier, [Templates()], tmp_path)
    assert result.verdict is not None and result.verdict.correct
    assert result.verdict.replaced is not None and result.verdict.replaced.left == {}


STATE = """
from typing import NamedTuple
import torch
import torch.nn as nn


class State(NamedTuple):
    hidden: torch.Tensor
    count: torch.Tensor


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4))

    def forward(self, x, state):
        hidden = torch.tanh(self.mix(x)) + state.hidden
        return hidden.sum(-1), state._replace(hidden=hidden, count=state.count + 1)


def get_inputs():
    return [torch.randn(2, 8), State(torch.randn(2, 4), torch.zeros(2))]


def get_init_inputs():
    return []
"""


@pytest.mark.usefixtures("lasting")
def test_tuples_with_names_go_in_and_out_and_results_go_where_they_are_asked_for(tmp_path: Path) -> None:
    """A spectral norm in training writes its vectors by `out`."""
    with Verifier(backend="emulated") as verifier:
        result = optimize_module(Problem(STATE, name="state"), verifier, [Templates()], tmp_path)
    assert result.verdict is not None and result.verdict.correct
    assert result.verdict.provenance == "construction" and result.kernel is not None
    assert ".copy_(" in result.kernel.source and "State(" in result.kernel.source


BATCH = """
from dataclasses import dataclass
import torch
import torch.nn as nn


@dataclass
class Batch:
    x: torch.Tensor
    mask: torch.Tensor

    def __post_init__(self):
        assert len(self.x) == len(self.mask)


@dataclass(frozen=True)
class Out:
    hidden: torch.Tensor
    pooled: torch.Tensor
    extra: object = None

    def __post_init__(self):
        assert self.hidden.shape[-1] == 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 4)

    def forward(self, batch, scale: float = 2.0):
        hidden = torch.tanh(self.mix(batch.x)) * batch.mask[:, None] * scale
        return Out(hidden, hidden.sum(0)), {"last": Out(hidden[-1], batch.mask)}


def get_inputs():
    return [Batch(torch.randn(6, 8), torch.ones(6))]


def get_init_inputs():
    return []
"""


@pytest.mark.usefixtures("lasting")
def test_objects_of_dataclasses_go_in_and_out(tmp_path: Path) -> None:
    """Also into the verifier, which varies a mask that is one of their fields."""
    with Verifier(backend="emulated") as verifier:
        result = optimize_module(Problem(BATCH, name="batch"), verifier, [Templates()], tmp_path)
        assert result.verdict is not None and result.verdict.correct
        assert result.verdict.provenance == "construction" and result.kernel is not None
        assert "Out(" in result.kernel.source and "batch.mask" in result.kernel.source
        lazy = re.sub(r"(region_\d+\(.*)batch\.mask", r"\1torch.ones_like(batch.mask)", result.kernel.source)
        assert lazy != result.kernel.source
        assert verifier.verify(Problem(BATCH, name="batch"), Kernel(lazy)).outcome == "wrong"


MAPPED = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 4)
        self.weight = nn.Parameter(torch.randn(4, 4) * 0.3)

    def one(self, x):
        hidden = self.mix(x)
        return torch.softmax(hidden @ hidden.T, -1) @ hidden

    def forward(self, x, y):
        score = lambda a, b: torch.dot(a, self.weight @ b) * 0.7
        return torch.vmap(self.one)(x), torch.func.vmap(torch.vmap(score, (None, 0)), (0, None))(y, y)


def get_inputs():
    return [torch.randn(3, 5, 8), torch.randn(6, 4)]


def get_init_inputs():
    return []
"""


@pytest.mark.usefixtures("lasting")
def test_what_vmap_maps_becomes_operators_on_batches(tmp_path: Path) -> None:
    """A number among its operators is a number again, and no tensor that `forward` would have to make."""
    with Verifier(backend="emulated") as verifier:
        result = optimize_module(Problem(MAPPED, name="mapped"), verifier, [Templates()], tmp_path)
    assert result.verdict is not None and result.verdict.correct and result.kernel is not None
    assert "* 0.7f" in result.kernel.source and len(re.findall(r"= region_\d+\(", result.kernel.source)) == 4


DATA = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(7))
        self.scale = nn.Parameter(torch.rand(7) + 0.5)

    def forward(self, x):
        mean = x.mean(0)
        self.mean.data.mul_(0.9).add_(0.1 * mean.data)
        return torch.tanh(x - mean.data) * self.scale.data


def get_inputs():
    return [torch.randn(33, 7)]


def get_init_inputs():
    return []
"""


@pytest.mark.usefixtures("lasting")
def test_what_data_gives_is_followed_and_is_no_constant(tmp_path: Path) -> None:
    with Verifier(backend="emulated") as verifier:
        result = optimize_module(Problem(DATA, name="data"), verifier, [Templates()], tmp_path)
    assert result.verdict is not None and result.verdict.correct and result.kernel is not None
    assert re.search(r"= region_1\(x, self\.scale", result.kernel.source) and "self.mean" in result.kernel.source


NUMBERS = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, step: int = 3, mode: str = "mean"):
        with torch.no_grad(), torch.autocast(device_type=x.device.type, enabled=False):
            y = torch.exp(-x.float()) * step
        if mode == "mean":
            y = y.mean(-1)
        elif mode == "last":
            y = y[:, -1]
        return y, step, {"next": step + 1, "half": 0.5 * step}


def get_inputs():
    return [torch.randn(6, 8), 3, "last"]


def get_init_inputs():
    return []
"""


@pytest.mark.usefixtures("lasting")
def test_numbers_come_out_as_numbers_and_other_modes_are_left_to_pytorch(tmp_path: Path) -> None:
    """The verifier gives other steps, for which the kernels run as well, and another mode, for which they need not."""
    with Verifier(backend="emulated") as verifier:
        result = optimize_module(Problem(NUMBERS, name="numbers"), verifier, [Templates()], tmp_path)
        assert result.verdict is not None and result.verdict.correct and result.kernel is not None
        assert '"next": (step + 1)' in result.kernel.source or "'next': (step + 1)" in result.kernel.source
        ignores = result.kernel.source.replace("(step + 1)", "4")
        assert verifier.verify(Problem(NUMBERS, name="numbers"), Kernel(ignores)).outcome == "wrong"
        ignores = result.kernel.source.replace("mode == 'last' and", "").replace('mode == "last" and', "")
        assert ignores != result.kernel.source
        assert verifier.verify(Problem(NUMBERS, name="numbers"), Kernel(ignores)).outcome == "wrong"
