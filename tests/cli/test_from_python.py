"""`from dice import generate, load, verify`: what a program, or a notebook, does in a line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dice
from dice import load, verify
from dice.errors import UserError
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from dice.verify import Options
from dice.verify.build.sources import CompileError
from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.xdist_group("cli")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "add_kernel.py"
    path.write_text(EXAMPLE_KERNEL)
    return path


def test_import_loads_nothing_and_finds_each_name_when_it_is_asked_for() -> None:
    light = "import sys, dice; sys.exit(bool({'torch', 'numpy', 'dice.verify'} & set(sys.modules)))"
    assert python(light).returncode == 0
    both = "import dice, dice.verify; from dice import generate, load, verify; assert callable(dice.verify)\n"
    assert python(both + "assert dice.verify.Options and callable(generate) and callable(load)").returncode == 0
    missing = python("from dice import nothing")
    assert "cannot import name 'nothing' from 'dice'" in missing.stderr


@pytest.mark.slow  # `make check` reads our own types
def test_types_are_seen_from_outside(tmp_path: Path) -> None:
    user = tmp_path / "user.py"
    user.write_text(
        "from pathlib import Path\nfrom dice import generate, load, verify\n"
        "reveal_type(verify('problem.py', Path('kernel.py')).outcome)\nreveal_type(load('kernel.py'))\n"
        "reveal_type(generate('problem.py', samples=2)[0].verdict)\ngenerate('problem.py', sample=2)\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(user)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    for words in ("Literal['correct']", "types.ModuleType", "dice.verdict.Verdict", 'keyword argument "sample"'):
        assert words in done.stdout, done.stdout


def test_a_loaded_kernel_computes(kernel: Path) -> None:
    module = load(kernel, backend="emulated")
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    assert torch.equal(module.ModelNew()(a, b), a + b)
    assert module.__file__ == str(kernel) and module.ModelNew.__module__ in sys.modules
    assert not a.is_cuda and not torch.cuda.is_initialized()


def test_a_model_may_build_when_it_is_made_and_others_keep_pytorchs_function(kernel: Path) -> None:
    late = EXAMPLE_KERNEL.replace(
        "from torch.utils.cpp_extension import load_inline", "import torch.utils.cpp_extension"
    )
    late = late.replace("add = load_inline(", "build = lambda: torch.utils.cpp_extension.load_inline(")
    kernel.write_text(late.replace("self.add = add", "self.add = build()"))
    done = python(
        "import torch, dice, torch.utils.cpp_extension as extension\n"
        "extension.load_inline = lambda *arguments: 'as PyTorch does it'\n"
        f"model = dice.load({str(kernel)!r}, backend='emulated').ModelNew()\n"
        "assert torch.equal(model(torch.ones(8), torch.ones(8)), torch.full((8,), 2.0))\n"
        "assert extension.load_inline('name', 'source') == 'as PyTorch does it'\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_model_that_insists_on_a_gpu_is_told_that_it_has_one(kernel: Path) -> None:
    insists = "assert a.is_cuda and a.device.type == 'cuda'\n        return self.add"
    kernel.write_text(EXAMPLE_KERNEL.replace("return self.add", insists))
    ones = torch.ones(8)
    assert load(kernel, backend="emulated").ModelNew()(ones, ones).device.type == "cpu"


def test_what_cannot_be_loaded_says_why(kernel: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no kernel file"):
        load(tmp_path / "none.py")
    kernel.write_text(EXAMPLE_KERNEL.replace("a[i] + b[i]", "a[i] + absent"))
    before = set(sys.modules)
    with pytest.raises(CompileError, match="absent"):
        load(kernel, backend="emulated")
    assert not [name for name in set(sys.modules) - before if name.startswith("add_kernel")]


@pytest.mark.usefixtures("lasting_zygote")
def test_files_are_verified_by_their_paths(kernel: Path, tmp_path: Path) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text(EXAMPLE_PROBLEM)
    verdict = verify(problem, str(kernel), backend="emulated", options=Options(trials=2))
    assert verdict.correct and verdict.trials == 2
    with pytest.raises(UserError, match="There is no problem file"):
        dice.verify(tmp_path / "none.py", kernel, backend="emulated")


@pytest.mark.slow  # the README has these lines, and its code runs in each suite
def test_generate_gives_kernels_with_their_verdicts() -> None:
    first, *others = dice.generate(ROOT / "examples" / "softmax.py", samples=2, backend="emulated")
    assert first.verdict.correct and first.kernel is not None and len(others) == 1
    assert first.kernel.source in first.draft.text or "__global__" in first.draft.text
    assert first.rank <= others[0].rank
