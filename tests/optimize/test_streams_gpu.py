"""Kernels by rule run on PyTorch's current stream: beside other work of the GPU, and in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dice.cli import main
from dice.loading import load

pytestmark = pytest.mark.gpu

CYCLES = 100_000_000  # some fifty milliseconds of a GPU
BLOCK = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)

    def forward(self, x):
        return torch.softmax(torch.relu(self.norm(self.conv(x))).flatten(2), dim=-1)
"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, ModuleType]:
    """A module's file, and the one with its kernels."""
    folder: Path = tmp_path_factory.mktemp("streams")
    path, optimized = folder / "block.py", folder / "optimized.py"
    ends = "def get_inputs():\n    return [torch.rand(8, 3, 66, 66)]\n\n\ndef get_init_inputs():\n    return []\n"
    path.write_text(f"import torch\nimport torch.nn as nn\n{BLOCK}\n\n{ends}")
    assert main(["optimize", str(path), "-o", str(optimized), "--run", str(folder / "run"), "--keep", "right"]) == 0
    original = ModuleType("block")
    exec(path.read_text(), original.__dict__)
    return original, load(optimized)


@contextmanager
def both(pair: tuple[ModuleType, ModuleType]) -> Iterator[tuple[Callable[..., torch.Tensor], torch.nn.Module]]:
    model = pair[0].Model().cuda()
    optimized = pair[1].ModelNew().cuda()
    optimized.load_state_dict(model.state_dict())
    with torch.no_grad():
        yield model, optimized


def test_what_a_stream_has_still_to_write_is_waited_for(pair: tuple[ModuleType, ModuleType]) -> None:
    with both(pair) as (model, optimized):
        x, later = torch.zeros(8, 3, 66, 66, device="cuda"), torch.rand(8, 3, 66, 66, device="cuda")
        expected = model(later)
        optimized(x)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
            x.copy_(later)
            output = optimized(x)
        stream.synchronize()
        torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-5)


def test_a_cuda_graph_holds_the_kernels(pair: tuple[ModuleType, ModuleType]) -> None:
    with both(pair) as (model, optimized):
        x = torch.rand(8, 3, 66, 66, device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            optimized(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = optimized(x)
        for _ in range(3):
            x.copy_(torch.rand_like(x))
            graph.replay()
            torch.testing.assert_close(output, model(x), rtol=1e-3, atol=1e-5)
