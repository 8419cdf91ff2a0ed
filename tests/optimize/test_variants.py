"""One module for several inputs and types: which those are, and the one file that has kernels for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dice.cli import main
from dice.errors import UserError
from dice.kernel import Kernel
from dice.loading import load
from dice.optimize import variants
from dice.optimize.variants import variants_of
from dice.optimize.whole.plan import Plan
from dice.problem import Problem
from dice.verdict import Verdict

WriteModule = Callable[..., Path]
CLASSES = """
class Model(nn.Module):
    def __init__(self, width):
        super(Model, self).__init__()
        self.layer = nn.Linear(width, 4)

    def forward(self, x, mask=None):
        y = F.relu(self.layer(x))
        return y if mask is None else y * mask


def get_inputs_masked():
    return [torch.randn(2, 3, 8), torch.rand(2, 3, 4)]
"""


def test_inputs_by_name_and_each_in_each_type(write_module: WriteModule) -> None:
    problem = Problem.from_file(write_module(CLASSES, "[torch.randn(5, 8)]", "[8]"))
    first, *others = variants_of(problem, ["float16", "float16"])
    assert first.problem == problem
    assert [one.name for one in others] == [
        "get_inputs_masked",
        "get_inputs in float16",
        "get_inputs_masked in float16",
    ]
    drawn = [_drawn(one.problem.source) for one in (first, *others)]
    assert [[tuple(tensor.shape) for tensor in inputs] for _, inputs in drawn] == 2 * [[(5, 8)], [(2, 3, 8), (2, 3, 4)]]
    types = [torch.float32, torch.float32, torch.float16, torch.float16]
    assert [inputs[0].dtype for _, inputs in drawn] == types
    assert [next(model.parameters()).dtype for model, _ in drawn] == types


def _drawn(source: str) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    space: dict[str, Any] = {}
    exec(source, space)
    return space["Model"](*space["get_init_inputs"]()), space["get_inputs"]()


def test_what_cannot_be_a_variant_is_one_sentence(write_module: WriteModule) -> None:
    problem = Problem.from_file(write_module(CLASSES, "[torch.randn(5, 8)]", "[8]"))
    with pytest.raises(UserError, match="--dtypes knows float64, .* and not int8"):
        variants_of(problem, ["int8"])
    asking = Problem(problem.source.replace("get_inputs_masked()", "get_inputs_masked(rows)"), "module")
    with pytest.raises(UserError, match=r"get_inputs_masked\(\) draws inputs and takes no arguments"):
        variants_of(asking)


@pytest.mark.slow  # three variants are three runs of everything, and a fourth verification of each
@pytest.mark.usefixtures("lasting")
def test_one_file_has_kernels_for_each_and_does_all_else_as_before(
    write_module: WriteModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_module(CLASSES, "[torch.randn(5, 8)]", "[8]", name="net")
    output, package = tmp_path / "fast.py", tmp_path / "package"
    arguments = ["-o", output, "--run", tmp_path / "run", "--export", package, "--dtypes", "float16"]
    assert main(["optimize", str(path), *map(str, arguments), "--backend", "emulated", "--no-library", "--json"]) == 0
    variants = json.loads(capsys.readouterr().out)["variants"]
    assert [one["verdict"]["outcome"] for one in variants] == ["correct"] * 4
    text = (package / "tests" / "test_net_kernels.py").read_text()
    for case in ("get_inputs, None", "get_inputs_masked, None", "get_inputs_masked, torch.float16"):
        assert f"({case})" in text
    for file in (output, package / "net_kernels" / "module.py"):
        _called_for_each(path, file)


def _called_for_each(path: Path, file: Path) -> None:
    """Its kernels run for each shape and type that they were written for, and for no other; the results are right."""
    space: dict[str, Any] = {}
    exec(path.read_text(), space)
    module = load(file, backend="emulated")
    called: list[str] = []
    for name in [one for one in vars(module) if one.startswith("region_") and callable(vars(module)[one])]:
        setattr(module, name, _noting(called, name, getattr(module, name)))
    theirs, ours = space["Model"](8), module.ModelNew(8)
    ours.load_state_dict(theirs.state_dict())
    seen = set()
    for dtype, known in ((torch.float32, True), (torch.float16, True), (torch.float64, False)):
        theirs, ours = theirs.to(dtype), ours.to(dtype)
        for shapes, made_for in (([(5, 8)], True), ([(2, 3, 8), (2, 3, 4)], True), ([(7, 8)], False)):
            inputs = [torch.randn(shape, dtype=dtype) for shape in shapes]
            called.clear()
            with torch.no_grad():
                torch.testing.assert_close(ours(*inputs), theirs(*inputs), rtol=1e-2, atol=1e-2)
            assert bool(called) is (known and made_for), (dtype, shapes)
            seen.update(called)
    assert len(seen) == 4


def _noting(called: list[str], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*tensors: torch.Tensor) -> Any:
        called.append(name)
        return function(*tensors)

    return noting


@pytest.mark.parametrize(
    ("trained", "right", "said", "flows"),
    [
        ([True, True], {"kernels"}, "gradients flow through the kernels on all of these inputs", True),
        (
            [True, True],
            {"autograd"},
            "gradients are PyTorch's on all of these inputs, for with backward kernels they are wrong on get_inputs",
            True,
        ),
        ([True, True], set(), "gradients do not flow through the kernels, for they are wrong on get_inputs", False),
        (
            [True, False],
            {"kernels"},
            "gradients do not flow through the kernels, for they are wrong on get_inputs_masked",
            False,
        ),
        ([False, False], set(), "", False),
    ],
)
def test_what_becomes_of_gradients_on_several_inputs_is_said(
    trained: list[bool],
    right: set[str],
    said: str,
    flows: bool,
    write_module: WriteModule,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They flow through the kernels only where they are right on all of them."""
    problem = Problem.from_file(write_module(CLASSES, "[torch.randn(5, 8)]", "[8]"))

    class Verifier:
        def verify(self, problem: Problem, kernel: Kernel) -> Verdict:
            how = "kernels" if "backward" in kernel.source else "autograd"
            return Verdict("correct" if how in right else "wrong", "compare")

    def compose(plan: Plan) -> Kernel:
        return Kernel(f"# {'backward' if plan.gradients else ''}\n")

    monkeypatch.setattr(variants, "compose", compose)
    each = variants_of(problem)
    kept: Any = [(one, SimpleNamespace(plan=Plan(problem, (), {}, training=is_right)))
                 for one, is_right in zip(each, trained, strict=True)]  # fmt: skip
    some: Any = {"region": None}
    plan = Plan(problem, (), {}, training=all(trained), gradients=some)
    verifier: Any = Verifier()
    plan, _, told = variants._trained(plan, compose(plan), kept, verifier)
    assert told.startswith(said) and bool(told) == bool(said)
    assert plan.training is flows


@pytest.mark.slow  # a run for each type: each region, its backward, and the whole with gradients
@pytest.mark.usefixtures("lasting")
def test_gradients_flow_through_kernels_in_another_type(
    write_module: WriteModule, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_module(CLASSES, "[torch.randn(5, 8)]", "[8]")
    target = ["-o", str(tmp_path / "fast.py"), "--run", str(tmp_path / "run"), "--no-library"]
    arguments = ["--training", "--dtypes", "float16", "--backend", "emulated", "--json"]
    assert main(["optimize", str(path), *target, *arguments]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["gradients"].startswith("gradients flow through the kernels on all")
    assert len(report["variants"]) == 4
    for row in report["variants"]:
        assert row["verdict_on_gradients"]["outcome"] == "correct" and row["training"]
    made = load(tmp_path / "fast.py", backend="emulated")
    theirs, ours = made.Model(8).half(), made.ModelNew(8).half()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(5, 8).half()
    for model in (theirs, ours):
        model(x).float().square().sum().backward()
    torch.testing.assert_close(ours.layer.weight.grad, theirs.layer.weight.grad, rtol=2e-2, atol=2e-2)
