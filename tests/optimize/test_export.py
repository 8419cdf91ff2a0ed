"""What gradients flow through: the composed file, and the package, whose operators PyTorch's compilers take."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dice.cli import main
from dice.loading import load

CLASSES = """
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 2 * width)
        self.bn = nn.BatchNorm1d(2 * width)

    def forward(self, x):
        y = self.bn(self.layer(x))
        return {"scores": F.softmax(y, dim=-1), "sums": y.sum(-1)}
"""


@pytest.mark.usefixtures("lasting")
def test_a_package_with_gradients(
    write_module: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_module(CLASSES, "[torch.randn(6, 8)]", "[8]", name="net")
    folder = tmp_path / "package"
    arguments = ["-o", tmp_path / "fast.py", "--run", tmp_path / "run", "--export", folder, "--training"]
    assert main(["optimize", str(path), *map(str, arguments), "--backend", "emulated", "--no-library"]) == 0
    told = capsys.readouterr().out
    assert "3 of 4 replaced regions have kernels for their backward" in told and "correct (construction)" in told
    for file in folder.rglob("*.py"):
        ast.parse(file.read_text())
    _says_what_it_needs(folder, monkeypatch)
    assert 'name = "net_kernels"' in (folder / "pyproject.toml").read_text()
    module = load(folder / "net_kernels" / "module.py", backend="emulated")
    theirs, ours = module.Model(8), module.ModelNew(8)
    ours.load_state_dict(theirs.state_dict())
    _same_gradients(theirs, ours)
    _taken_by_compilers(ours)
    composed = load(tmp_path / "fast.py", backend="emulated")
    theirs, ours = composed.Model(8), composed.ModelNew(8)
    ours.load_state_dict(theirs.state_dict())
    _same_gradients(theirs, ours)


def _says_what_it_needs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a GPU its tests are left out; without nvcc its import ends in a sentence."""
    if not torch.cuda.is_available():
        with pytest.raises(pytest.skip.Exception, match="need a GPU"):
            exec((folder / "tests" / "test_net_kernels.py").read_text(), {})
    with monkeypatch.context() as patch:
        patch.setattr("torch.utils.cpp_extension.CUDA_HOME", None)
        with pytest.raises(ImportError, match="net_kernels builds its CUDA kernels .* finds no nvcc"):
            exec((folder / "net_kernels" / "__init__.py").read_text(), {})


def _same_gradients(theirs: torch.nn.Module, ours: torch.nn.Module) -> None:
    """Those of the module in float64, which nothing of ours computes."""
    x = torch.randn(6, 8)
    wide = theirs.double()
    for model, given in ((wide, x.double()), (ours, x)):
        found = model(given)
        (found["scores"].double().square().sum() + found["sums"].double().square().sum()).backward()
    for one, other in zip(ours.parameters(), wide.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-3, atol=1e-3)
    assert not ours.bn.running_mean.requires_grad
    torch.testing.assert_close(ours.bn.running_var.double(), wide.bn.running_var, rtol=1e-4, atol=1e-4)


def _taken_by_compilers(model: torch.nn.Module) -> None:
    x = torch.randn(6, 8)
    layer = model.layer
    torch.library.opcheck(torch.ops.net_kernels.region_1.default, (x, layer.weight, layer.bias))
    with torch.no_grad():
        expected = copy.deepcopy(model)(x)
        compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x)["sums"], expected["sums"])
        program = torch.export.export(model, (x,))
    leaves = [copy.deepcopy(model), copy.deepcopy(model)]
    for one, run in zip(
        leaves, (leaves[0], torch.compile(leaves[1], fullgraph=True, backend="aot_eager")), strict=True
    ):
        run(x)["scores"].square().sum().backward()
        assert one.layer.weight.grad is not None
    torch.testing.assert_close(leaves[1].layer.weight.grad, leaves[0].layer.weight.grad)
    targets = [str(node.target) for node in program.graph.nodes]
    assert any(target.startswith("net_kernels.region") for target in targets)


def test_a_folder_with_other_things_is_refused(
    write_module: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_module(CLASSES, "[torch.randn(6, 8)]", "[8]", name="net")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    target = ["-o", str(tmp_path / "fast.py"), "--run", str(tmp_path / "run")]
    assert main(["optimize", str(path), *target, "--export", str(tmp_path / "full")]) == 2
    assert "holds something else" in capsys.readouterr().err
