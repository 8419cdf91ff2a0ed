"""The rules the repository keeps about itself: lint, types, who imports whom, sizes, words."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from dice import syntax

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dice"
NOUNS = ("errors", "launch", "terminal", "files", "syntax", "cpp", "journal", "problem", "kernel", "verdict", "prompts")
ALLOWED = {  # room -> rooms it may import, besides its own; imports run downwards only
    **{noun: set(NOUNS) for noun in NOUNS},
    "verify": set(NOUNS),
    "endpoint": set(NOUNS),
    "model": set(NOUNS),
    "decode": {*NOUNS, "model"},
    "data": {*NOUNS, "endpoint", "verify", "model", "decode"},
    "train": {*NOUNS, "verify", "model", "decode", "data"},
    "evaluate": {*NOUNS, "endpoint", "verify", "model", "decode", "data"},
    "recipes": {*NOUNS, "model", "decode", "data", "train"},
    "commands": {
        *NOUNS,
        "evaluate",
        "endpoint",
        "verify",
        "model",
        "decode",
        "data",
        "train",
        "recipes",
        "cli",
        "cli_data",
    },
    "cli": {*NOUNS, "cli_data", "commands"},
    "cli_data": {*NOUNS, "commands"},
    "__main__": {*NOUNS, "cli"},
    "__init__": set(),
}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)])
def test_lint_and_types(command: tuple[str, ...]) -> None:
    result = run(*command)
    assert result.returncode == 0, result.stdout + result.stderr


def imports(path: Path) -> set[str]:
    """First component below `dice` of everything that `path` imports, also inside functions."""
    rooms = set()
    for node in ast.walk(syntax.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [
                f"{node.module}.{alias.name}" if node.module == "dice" else node.module or "" for alias in node.names
            ]
        rooms |= {name.split(".")[1] for name in names if name.startswith("dice.")}
    return rooms - {"__version__"}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_run_downwards(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert imports(path) <= ALLOWED[room] | {room}


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).exists()]


def test_files_are_small() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in tracked("*.py", "*.h", "*.cpp", "*.cuh")}
    assert not {str(path): length for path, length in lengths.items() if length > 500}


def test_the_help_needs_no_torch() -> None:
    call = "try: dice.cli.main(['--help'])\nexcept SystemExit: pass"
    probe = f"import sys, dice.cli\n{call}\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_large_files_stay_out() -> None:
    assert sum(path.stat().st_size for path in tracked("dice/nano/*")) <= 20 * 2**20
    assert not [path for path in tracked() if path.stat().st_size > 20 * 2**20]
