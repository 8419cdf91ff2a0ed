"""A module with its kernels as an installable package: each region an operator of `torch.library`.

An operator has a fake implementation, so that `torch.compile` and `torch.export` see its shapes and go on, and, for
training, a backward: PyTorch's own of what the region computes, done anew from the region's inputs. Kernels are built
when the package is first imported. The package's tests hold that it does what the module did.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import dice
from dice import syntax
from dice.errors import UserError
from dice.files.atomic import write_text
from dice.optimize.graph import references
from dice.optimize.printing import function_of
from dice.optimize.region import Region
from dice.optimize.whole.compose import Plan, compose, parts_of
from dice.optimize.whole.inline import Inlined

Case = tuple[str, str]  # the function that draws inputs, and a floating type, "" for the module's own
OWN: Case = ("get_inputs", "")
_OPERATOR = """@torch.library.custom_op("{space}::{name}", mutates_args=())
def {name}({signature}) -> {returned}:
    return _{name}_kernel({arguments})


@{name}.register_fake
def _({arguments}):
    return {fake}"""
_AUTOGRAD = """{reference}


def _{name}_save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _{name}_backward(ctx, *gradients):
    return gradients_of(_{name}_pytorch, ctx.needs_input_grad, ctx.saved_tensors, gradients)


{name}.register_autograd(_{name}_backward, setup_context=_{name}_save)"""
_GRADIENTS = '''def gradients_of(function, needed, inputs, gradients):
    """Gradients of the inputs that need one, None for the others. The region is computed anew from its inputs."""
    leaves = [one.detach().requires_grad_(wanted) for one, wanted in zip(inputs, needed)]
    with torch.enable_grad():
        results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    pairs = [(one, other) for one, other in zip(results, gradients) if one.requires_grad and other is not None]
    wanted = [one for one in leaves if one.requires_grad]
    outputs, given = [one for one, _ in pairs], [other for _, other in pairs]
    found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True))
    return tuple(next(found) if one.requires_grad else None for one in leaves)
'''
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
_INIT = """from .module import Model, ModelNew

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

from {package} import Model, ModelNew

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


def export(plan: Plan, folder: Path, *, cases: Sequence[Case] = (OWN,), training: bool = False) -> None:
    """Write the package. `cases`: inputs for which it has kernels, which its tests run. Raises `UserError` for a folder
    that holds something else, or a plan without kernels."""
    if not plan.parts:
        raise UserError("There is nothing to export: no kernel made it into the module.")
    require_free(folder)
    stem = re.sub(r"\W", "_", plan.problem.name).strip("_").lower() or "module"
    package = f"{stem}_kernels" if not stem[0].isdigit() else f"module_{stem}_kernels"
    title = f"{plan.problem.name} with {len(parts_of(plan))} CUDA kernels"
    said = "Gradients flow through them." if training else "Where gradients are wanted, it does what `Model` does."
    write_text(folder / "pyproject.toml", _PROJECT.format(package=package, title=title))
    write_text(
        folder / "README.md",
        _README.format(package=package, title=title, version=_version(), training=said),
    )
    write_text(folder / package / "__init__.py", _INIT)
    write_text(folder / package / "module.py", module_text(plan, package, training))
    shown = ", ".join(f"({function}, {f'torch.{dtype}' if dtype else None})" for function, dtype in cases)
    tests = _TESTS.format(package=package, drawing=_drawing(plan.problem.source), cases=shown)
    write_text(folder / "tests" / f"test_{package}.py", tests + (_GRADIENT_TEST if training else ""))


def _version() -> str:
    return dice.__version__


def require_free(folder: Path) -> None:
    """Raises `UserError` for a folder that holds anything but a package of before."""
    is_package = (folder / "pyproject.toml").exists()
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not is_package)):
        raise UserError(f"{folder} holds something else; give an empty folder for the package.")


def module_text(plan: Plan, space: str, training: bool) -> str:
    """The module's file, in which each region is an operator of the namespace `space`."""

    def wrap(region: Region, piece: Inlined) -> Inlined:
        return _operator(region, piece, space, training)

    text = compose(plan, wrap, training).source
    if not training:
        return text
    marker = "\n\n\n# Region 1: "
    return text.replace(marker, f"\n\n\n{_GRADIENTS.rstrip()}{marker}", 1)


def _operator(region: Region, piece: Inlined, space: str, training: bool) -> Inlined:
    """A region's function as an operator: its kernel behind it, its shapes, and its gradients."""
    name = piece.function
    found = re.search(rf"^def {name}\((.*)\):$", piece.text, re.MULTILINE)
    assert found is not None
    parameters = [one.strip() for one in found[1].split(",") if one.strip()]
    text = piece.text[: found.start()] + f"def _{name}_kernel({found[1]}):" + piece.text[found.end() :]
    specs = [region.graph[one].spec for one in references(region.graph.output)]
    made = [f"{parameters[0]}.new_empty({spec.shape}, dtype=torch.{spec.dtype})" for spec in specs]
    several = len(specs) > 1
    operator = _OPERATOR.format(
        space=space,
        name=name,
        signature=", ".join(f"{one}: torch.Tensor" for one in parameters),
        returned=f"Tuple[{', '.join(['torch.Tensor'] * len(specs))}]" if several else "torch.Tensor",
        arguments=", ".join(parameters),
        fake=f"({', '.join(made)})" if several else made[0],
    )
    parts = [text, operator]
    if training:
        parts.append(_AUTOGRAD.format(name=name, reference=function_of(region, f"_{name}_pytorch", parameters)))
    imports = (*piece.imports, "from typing import Tuple") if several else piece.imports
    return Inlined(name, "\n\n\n".join(parts), imports)


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
