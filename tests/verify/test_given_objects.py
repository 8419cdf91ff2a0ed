"""What a model is given: a kernel file gets what the problem's functions give, as objects of its own classes."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Verifier
from dice.verify.tensors import transport
from dice.verify.tensors.arguments import meant, told

CLASSES = """
import collections
import enum
from dataclasses import dataclass, field

import torch
import torch.nn as nn


class Act(enum.Enum):
    RELU = 1
    TANH = 2


class Flags(enum.IntFlag):
    ADD = enum.auto()
    NORM = enum.auto()


@dataclass(frozen=True)
class Scale:
    by: float = 2.0

    def twice(self):
        return self.by * 2


@dataclass
class Config:
    dim: int = 16
    act: Act = Act.TANH
    scale: Scale = field(default_factory=Scale)

    def __post_init__(self):
        self.half = self.dim // 2

    @property
    def quarter(self):
        return self.dim // 4


class Plain:
    __slots__ = ("width",)

    def __init__(self, width):
        self.width = width


Pair = collections.namedtuple("Pair", "low high")


def gate(x):
    return x * torch.sigmoid(x)
"""

PROBLEM = (
    CLASSES
    + """

class Model(nn.Module):
    def __init__(self, config, layer, act):
        super().__init__()
        assert config.half == 8 and config.quarter == 4 and config.act is Act.TANH
        self.lin = layer(config.dim, config.half)
        self.factor = config.scale.twice()
        self.act = act()

    def forward(self, x):
        return self.act(self.lin(x)) * self.factor


def get_inputs():
    return [torch.randn(6, 16)]


def get_init_inputs():
    import functools
    return [Config(), functools.partial(nn.Linear, bias=False), nn.ReLU]
"""
)

KERNEL = """
from torch.utils.cpp_extension import load_inline

ops = load_inline(name="scaled", cpp_sources="torch::Tensor scaled(torch::Tensor x, double by);", cuda_sources=r'''
__global__ void scaled_kernel(const float* x, float* out, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f) * by;
}
torch::Tensor scaled(torch::Tensor x, double by) {
    auto out = torch::empty_like(x);
    scaled_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), by, x.numel());
    return out;
}
''', functions=["scaled"])


class ModelNew(nn.Module):
    def __init__(self, config, layer, act):
        super().__init__()
        assert config.half == 8 and isinstance(act(), nn.ReLU)
        self.lin = layer(config.dim, config.half)
        self.factor = config.scale.twice()

    def forward(self, x):
        return ops.scaled(self.lin(x), self.factor)
"""


def test_a_kernel_file_gets_objects_of_its_own_classes() -> None:
    """With what their methods and properties say; a file that lacks them gets their attributes alone."""
    with Verifier(backend="emulated") as verifier:
        right = verifier.verify(Problem(PROBLEM, name="configured"), Kernel(CLASSES + KERNEL))
        assert right.correct and right.provenance == "construction", right.message
        bare = KERNEL.replace("config.scale.twice()", "2 * config.scale.by")
        lacking = verifier.verify(
            Problem(PROBLEM, name="configured"), Kernel("import torch.nn as nn\nimport torch\n" + bare)
        )
        assert lacking.correct, lacking.message
        lost = PROBLEM.replace("nn.ReLU]", "lambda: nn.ReLU()]")
        verdict = verifier.verify(Problem(lost, name="nameless"), Kernel(CLASSES + KERNEL))
        assert verdict.outcome == "unsupported" and "<lambda>" in verdict.message
        own = PROBLEM.replace("nn.ReLU]", "Act]").replace("self.act = act()", "self.act = nn.ReLU()")
        verdict = verifier.verify(Problem(own, name="own"), Kernel("import torch.nn as nn\nimport torch\n" + bare))
        assert "gives Act, which the kernel file does not define" in verdict.message


@pytest.fixture
def files() -> Iterator[tuple[types.ModuleType, types.ModuleType]]:
    """The problem's and the kernel's, of the same source."""
    made = []
    for name in ("problem_of_arguments", "kernel_of_arguments"):
        sys.modules[name] = types.ModuleType(name)
        exec(compile(CLASSES, name, "exec"), sys.modules[name].__dict__)
        made.append(sys.modules[name])
    yield made[0], made[1]
    for module in made:
        del sys.modules[module.__name__]


def test_what_is_told_is_meant(files: tuple[Any, Any], tmp_path: Path) -> None:
    problem, kernel = files
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    given = [
        problem.Config(8), problem.Plain(5), problem.Pair(1, [2.5]), problem.gate, problem.Act.RELU, problem.Act,
        {"f": torch.tanh, "g": torch.nn.functional.silu, "h": len}, functools.partial(problem.gate, x=1),
        range(2, 9, 3),
        slice(None, 4), {3, 1}, frozenset("ab"), torch.Size((2, 3)), torch.device("cpu"), np.arange(3.0), np.int64(4),
        net, torch.nn.Parameter(torch.ones(2)), problem.Flags.ADD | problem.Flags.NORM,
        torch.float16, types.SimpleNamespace(a=1), (None, "text", 1 + 2j),
    ]  # fmt: skip
    transport.write(told(given, problem), tmp_path, "given")
    found = meant(transport.read(tmp_path, "given"), kernel)
    config, plain, pair, gate, act, kind, functions, partial, *rest = found
    assert type(config) is kernel.Config and config.half == 4 and config.scale == kernel.Scale()
    assert type(plain) is kernel.Plain and plain.width == 5 and pair == kernel.Pair(1, [2.5])
    assert type(pair) is kernel.Pair and gate is kernel.gate and act is kernel.Act.RELU and kind is kernel.Act
    assert functions == {"f": torch.tanh, "g": torch.nn.functional.silu, "h": len}
    assert partial.func is kernel.gate and partial.keywords == {"x": 1}
    assert rest[:6] == [
        range(2, 9, 3),
        slice(None, 4),
        {1, 3},
        frozenset("ab"),
        torch.Size((2, 3)),
        torch.device("cpu"),
    ]
    array, number, module, parameter, flags, *plain_values = rest[6:]
    assert flags == kernel.Flags.ADD | kernel.Flags.NORM and type(flags) is kernel.Flags
    assert array.dtype == np.float64 and array.tolist() == [0, 1, 2] and type(number) is np.int64 and number == 4
    assert type(parameter) is torch.nn.Parameter and plain_values == given[-3:]
    assert isinstance(module, torch.nn.Sequential) and module.training
    x = torch.randn(4, 3)
    assert torch.equal(module.eval()(x), net.eval()(x)) and len(list(module.parameters())) == 4


def test_what_has_no_end_or_no_name_is_refused(files: tuple[Any, Any]) -> None:
    problem, _ = files
    loop: list[Any] = []
    loop.append(loop)
    for value in (loop, lambda: 1):
        with pytest.raises(transport.WireError):
            told([value], problem)
    assert transport.unreadable(told([object()], problem))


BATCHES = """
import torch
import torch.nn as nn
from dataclasses import dataclass
from typing import NamedTuple


@dataclass
class Batch:
    x: torch.Tensor
    mask: torch.Tensor

    def __post_init__(self):
        self.rows = self.x.shape[0]

    @property
    def lengths(self):
        return self.mask.sum(1, keepdim=True)


class Pair(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor

    def middle(self):
        return (self.low + self.high) / 2
"""

WITH_METHODS = (
    BATCHES
    + """

class Model(nn.Module):
    def forward(self, batch, pair):
        return batch.x * batch.mask / batch.lengths + pair.middle() * batch.rows


def get_inputs():
    low = torch.randn(6, 16)
    return [Batch(torch.randn(6, 16), (torch.rand(6, 16) > 0.3).float() + 0.1), Pair(low, low + torch.rand(6, 16))]


def get_init_inputs():
    return []
"""
)

ADDS = """
from torch.utils.cpp_extension import load_inline

ops = load_inline(name="scaled", cpp_sources="torch::Tensor fused(torch::Tensor x, torch::Tensor m, torch::Tensor n, torch::Tensor y, double rows);", cuda_sources=r'''
__global__ void fused_kernel(const float* x, const float* m, const float* n, const float* y, float* out, float rows, int width, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = x[i] * m[i] / n[i / width] + y[i] * rows;
}
torch::Tensor fused(torch::Tensor x, torch::Tensor m, torch::Tensor n, torch::Tensor y, double rows) {
    auto out = torch::empty_like(x);
    fused_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), m.data_ptr<float>(), n.data_ptr<float>(), y.data_ptr<float>(),
        out.data_ptr<float>(), rows, x.size(1), x.numel());
    return out;
}
''', functions=["fused"])


class ModelNew(nn.Module):
    def forward(self, batch, pair):
        return ops.fused(batch.x, batch.mask, batch.lengths, pair.middle(), float(batch.rows))
"""  # noqa: E501


def test_inputs_have_the_methods_of_the_kernel_files_classes() -> None:
    """By construction, too; a class of another form, or none, leaves their fields."""
    problem = Problem(WITH_METHODS, name="methods")
    fields = ADDS.replace("batch.lengths", "batch.mask.sum(1, keepdim=True)").replace("batch.rows", "len(batch.x)")
    fields = fields.replace("pair.middle()", "(pair[0] + pair.high) / 2")
    other = BATCHES.replace("mask: torch.Tensor", "mask: torch.Tensor\n    more: int = 0")
    with Verifier(backend="emulated") as verifier:
        for source in (BATCHES + ADDS, "import torch\nimport torch.nn as nn\n" + fields, other + fields):
            verdict = verifier.verify(problem, Kernel(source))
            assert verdict.correct and verdict.provenance == "construction", verdict.message
        assert not verifier.verify(problem, Kernel(other + ADDS)).correct
        lazy = ADDS.replace("pair.middle()", "pair.low")
        assert verifier.verify(problem, Kernel(BATCHES + lazy)).outcome == "wrong"
