"""What makes a first run slow is said, once, by every command that verifies, and by no library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from dice.verify.build import build
from dice.verify.emulator import guard
from dice.verify.options import default_cache_dir
from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.xdist_group("cli")
SAID = (
    "dice: building the headers and libraries that all kernels share, once for this machine and PyTorch: up to a minute"
)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache that lacks one of the shared libraries: building that one alone is a first run in little time."""
    whole, cache = default_cache_dir(), tmp_path / "cache"
    build.prepare("emulated", whole)
    guard.build(whole)
    cache.mkdir()
    (cache / "headers").symlink_to(whole / "headers")
    for folder in whole.glob("emulator-*"):
        if not (folder / "libdice_allocator.so").exists():
            (cache / folder.name).symlink_to(folder)
    return cache


def test_a_first_run_says_what_is_built_and_the_second_is_silent(cache: Path, tmp_path: Path) -> None:
    problem, kernel = tmp_path / "problem.py", tmp_path / "kernel.py"
    problem.write_text(EXAMPLE_PROBLEM)
    kernel.write_text(EXAMPLE_KERNEL)
    command = [sys.executable, "-m", "dice", "verify", str(problem), str(kernel), "--backend", "emulated", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DICE_CACHE": str(cache)}
    first, second = (
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        for _ in range(2)
    )
    assert first.returncode == 0 and first.stderr.splitlines() == [SAID], first.stderr
    answer = json.loads(first.stdout)
    assert answer["verdict"]["outcome"] == "correct" and answer["source"] == EXAMPLE_KERNEL
    assert answer["verdict"]["launches"] == {"add_kernel": 5}
    assert second.returncode == 0 and second.stderr == ""


def test_a_library_is_silent(cache: Path) -> None:
    code = (
        "import dice\nfrom dice.kernel import Kernel\nfrom dice.problem import Problem\n"
        "from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM\n"
        "verdict = dice.verify(Problem(EXAMPLE_PROBLEM), Kernel(EXAMPLE_KERNEL), backend='emulated')\n"
        "assert verdict.correct, verdict.message"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DICE_CACHE": str(cache)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
