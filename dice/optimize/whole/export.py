"""A module with its kernels as an installable package: each region an operator of `torch.library`.

An operator has a fake implementation, so that `torch.compile` and `torch.export` see its shapes and go on. For training
it has a backward: by proven kernels, which are operators too, or PyTorch's own of what the region computes, done anew
from the region's inputs. Kernels are built when the package is first imported. The package's tests hold that it does
what the module did.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import dice
from dice import syntax
from dice.errors import UserError
from dice.files.atomic import write_text
from dice.optimize.graph import references
from dice.optimize.region import Region
from dice.optimize.whole.builds import kernels_name
from dice.optimize.whole.compose import Functions, compose
from dice.optimize.whole.gradients import (
    HELPERS,
    backward_name,
    parameters_of,
    renamed,
    saved_places,
    texts_behind,
)
from dice.optimize.whole.inline import Inlined
from dice.optimize.whole.plan import Gradient, Plan

Case = tuple[str, str]  # the function that draws inputs, and a floating type, "" for the module's own
OWN: Case = ("get_inputs", "")
_OPERATOR = """@torch.library.custom_op("{space}::{name}", mutates_args=())
def {name}({signature}) -> {returned}:
    return _{name}_kernel({arguments})


@{name}.register_fake
def _({arguments}):
    return {fake}"""
_AUTOGRAD = """def _{name}_save(ctx, inputs, output):
    outputs = output if isinstance(output, tuple) else (output,)
    ctx.save_for_backward(*inputs, *(outputs[place] for place in {saved}))


def _{name}_gradients(ctx, *gradients):
    inputs, results = ctx.saved_tensors[:{count}], ctx.saved_tensors[{count}:]
    return _gradients_of(_{name}_pytorch, {backward}, ctx.needs_input_grad, inputs, results, gradients)


{name}.register_autograd(_{name}_gradients, setup_context=_{name}_save)"""
_PROJECT = """[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "0.1.0"
description = "{title}"
requires-python = ">=3.10"
dependencies = ["torch>=2.11"]

[tool.setuptools]
packages = ["{package}"]
"""
_INIT = """from torch.utils.cpp_extension import CUDA_HOME

if CUDA_HOME is None:
    raise ImportError(
        "{package} builds its CUDA kernels when it is first imported, and finds no nvcc: install CUDA's toolkit,"
        " or set CUDA_HOME to where it is."
    )

from .module import Model, ModelNew  # noqa: E402 - it builds

__all__ = ["Model", "ModelNew"]
"""
_README = """# {package}

{title}, written by `dice optimize` {version}.

    pip install .
    python -c "from {package} import ModelNew"    # builds the kernels, once: nvcc is needed
    pytest                                        # a GPU is needed

`ModelNew` has the constructor and the parameters of `Model`. Each region is an operator of PyTorch,
`torch.ops.{package}.region_N`, which `torch.compile` and `torch.export` take as it is. {training}
"""
_TESTS = '''"""The package does what the module did: run with pytest, on a GPU."""

import copy

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("the kernels need a GPU", allow_module_level=True)

from {package} import Model, ModelNew  # noqa: E402 - it builds

{drawing}

CASES = [{cases}]  # what draws inputs, and the floating type that they and the module are in


@pytest.fixture(params=CASES)
def case(request):
    """The module, the one with kernels, and inputs for both."""
    draw, dtype = request.param
    torch.manual_seed(0)
    theirs = Model(*get_init_inputs()).cuda()
    ours = ModelNew(*get_init_inputs()).cuda()
    ours.load_state_dict(theirs.state_dict())
    return theirs.to(dtype), ours.to(dtype), _on_gpu(draw(), dtype)


def _on_gpu(value, dtype):
    def move(one):
        if not isinstance(one, torch.Tensor):
            return one
        return one.cuda().to(dtype) if one.is_floating_point() else one.cuda()

    return torch.utils._pytree.tree_map(move, value)


def _close(found, expected):
    for one, other in zip(*map(torch.utils._pytree.tree_leaves, (found, expected))):
        bound = 1e-3 if one.dtype in (torch.float32, torch.float64) else 2e-2
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)


def test_same_results(case):
    theirs, ours, inputs = case
    with torch.no_grad():
        _close(ours(*inputs), theirs(*inputs))


def test_same_results_compiled(case):
    _, ours, inputs = case
    with torch.no_grad():
        expected = copy.deepcopy(ours)(*inputs)
        _close(torch.compile(ours, fullgraph=True)(*inputs), expected)
'''
_GRADIENT_TEST = '''

def test_same_gradients_as_in_float64(case):
    """Through the operators, and by PyTorch's autograd of the module in float64."""
    theirs, ours, inputs = case
    theirs = theirs.double()
    for model, given in ((theirs, _on_gpu(inputs, torch.float64)), (ours, inputs)):
        leaves = torch.utils._pytree.tree_leaves(model(*given))
        sum(one.double().square().sum() for one in leaves if one.is_floating_point()).backward()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters()):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            bound = 1e-3 if one.dtype in (torch.float32, torch.float64) else 5e-2
            scale = other.grad.abs().max().item() + 1e-6
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=bound, atol=bound * scale)
'''


def export(plan: Plan, folder: Path, *, cases: Sequence[Case] = (OWN,)) -> None:
    """Write the package. `cases`: inputs for which it has kernels, which its tests run. Raises `UserError` for a folder
    that holds something else, or a plan without kernels."""
    if not plan.parts:
        raise UserError("There is nothing to export: no kernel made it into the module.")
    require_free(folder)
    package = kernels_name(plan.problem).lower()
    title = f"{plan.problem.name} with {len(plan.replaced)} CUDA kernels"
    said = "Gradients flow through them." if plan.training else "Where gradients are wanted, it does what `Model` does."
    write_text(folder / "pyproject.toml", _PROJECT.format(package=package, title=title))
    write_text(
        folder / "README.md",
        _README.format(package=package, title=title, version=_version(), training=said),
    )
    write_text(folder / package / "__init__.py", _INIT.format(package=package))
    write_text(folder / package / "module.py", module_text(plan, package))
    shown = ", ".join(f"({function}, {f'torch.{dtype}' if dtype else None})" for function, dtype in cases)
    tests = _TESTS.format(package=package, drawing=_drawing(plan.problem.source), cases=shown)
    write_text(folder / "tests" / f"test_{package}.py", tests + (_GRADIENT_TEST if plan.training else ""))


def _version() -> str:
    return dice.__version__


def require_free(folder: Path) -> None:
    """Raises `UserError` for a folder that holds anything but a package of before."""
    is_package = (folder / "pyproject.toml").exists()
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not is_package)):
        raise UserError(f"{folder} holds something else; give an empty folder for the package.")


def module_text(plan: Plan, space: str) -> str:
    """The module's file, in which each region is an operator of the namespace `space`."""
    return compose(plan, _Operators(space, plan.training)).source


@dataclass(frozen=True, slots=True)
class _Operators:
    """Regions as operators of a namespace: their kernels behind them, their shapes, and, for training, gradients."""

    space: str
    training: bool

    def forward(self, region: Region, piece: Inlined, gradient: Gradient | None, functions: Functions) -> Inlined:
        made = self.behind(region, piece)
        if not self.training:
            return made
        autograd = _AUTOGRAD.format(
            name=piece.function,
            saved=saved_places(gradient),
            count=len(parameters_of(piece)),
            backward=backward_name(piece, gradient),
        )
        text = "\n\n\n".join([made.text, *texts_behind(region, piece, gradient, functions), autograd])
        return replace(made, text=text)

    def behind(self, region: Region, piece: Inlined) -> Inlined:
        """One that gradients do not flow through."""
        name, parameters = piece.function, parameters_of(piece)
        specs = [region.graph[one].spec for one in references(region.graph.output)]
        made = [f"{parameters[0]}.new_empty({spec.shape}, dtype=torch.{spec.dtype})" for spec in specs]
        several = len(specs) > 1
        operator = _OPERATOR.format(
            space=self.space,
            name=name,
            signature=", ".join(f"{one}: torch.Tensor" for one in parameters),
            returned=f"Tuple[{', '.join(['torch.Tensor'] * len(specs))}]" if several else "torch.Tensor",
            arguments=", ".join(parameters),
            fake=f"({', '.join(made)})" if several else made[0],
        )
        imports = (*piece.imports, "from typing import Tuple") if several else piece.imports
        return Inlined(name, "\n\n\n".join([renamed(piece, f"_{name}_kernel"), operator]), imports)

    def helpers(self) -> Sequence[str]:
        return (HELPERS,) if self.training else ()


def _drawing(source: str) -> str:
    """What the problem's file needs to draw inputs: its functions, and the imports and constants at its top."""
    tree = syntax.parse(source)
    kept: list[str] = []
    for node in tree.body:
        is_drawing = isinstance(node, ast.FunctionDef)
        if is_drawing or isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign):
            kept.append(ast.get_source_segment(source, node) or "")
    return "\n".join(kept)


__all__: Sequence[str] = ("export", "module_text")
