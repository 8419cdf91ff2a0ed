"""The rules the repository keeps about itself: who imports whom, sizes, words."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dice import syntax
from tests.conftest import WITHOUT_PROCESSES

pytestmark = pytest.mark.xdist_group("repository")  # one process reads the files
ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dice"
NOUNS: tuple[str, ...] = ("errors", "launch", "terminal", "files", "syntax", "cpp", "problem", "kernel")
NOUNS += ("kernel_form", "scaffold", "verdict", "prompts")
ALLOWED = {  # room -> rooms it may import, besides its own; imports run downwards only
    **{noun: set(NOUNS) for noun in NOUNS},
    "verify": set(NOUNS),
    "endpoint": set(NOUNS),
    "model": set(NOUNS),
    "decode": {*NOUNS, "model"},
    "data": {*NOUNS, "endpoint", "verify", "model", "decode"},
    "synth": {*NOUNS, "verify", "data"},
    "train": {*NOUNS, "verify", "model", "decode", "data"},
    "evaluate": {*NOUNS, "endpoint", "verify", "model", "decode", "data"},
    "bench": {*NOUNS, "verify", "model", "decode", "train"},
    "recipes": {*NOUNS, "model", "decode", "data", "train"},
    "generation": {*NOUNS, "verify", "model", "decode"},
    "loading": {*NOUNS, "verify"},
    "optimize": {*NOUNS, "endpoint", "verify", "model", "decode", "synth", "generation"},
    "cluster": {*NOUNS, "verify", "model", "decode", "train"},
    "serve": {*NOUNS, "verify", "model", "decode", "generation", "optimize"},
    "commands": {
        *NOUNS,
        "cluster",
        "evaluate",
        "endpoint",
        "verify",
        "model",
        "decode",
        "data",
        "synth",
        "train",
        "bench",
        "recipes",
        "generation",
        "optimize",
        "serve",
    },
    "cli": {*NOUNS, "commands"},
    "__main__": {*NOUNS, "cli"},
    "__init__": {"verify", "generation", "loading", "optimize"},
}


@functools.cache
def tree(path: Path) -> ast.Module:
    """Of a file that several tests read."""
    return syntax.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """First component below `dice` of everything that `path` imports, also inside functions."""
    rooms = set()
    for node in ast.walk(tree(path)):
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


# Places of dice/verify from the lowest to the highest: each imports only what stands before it. What a process may
# import says whom it trusts: `candidate` runs a stranger's file, so nothing but its own entry imports it.
VERIFY_FLOORS = (
    *("protocols", "roofline", "toolchain", "ipc", "sandbox", "emulator", "options", "build", "text", "tensors"),
    *("execution", "reference", "candidate", "supervisor", "verdict_cache", "stream", "verifier", "emulated_first"),
    *("__init__", "audit", "probes"),
)
WITHOUT_TORCH = ("ipc", "sandbox", "text", "supervisor", "options", "protocols", "verdict_cache", "stream", "verifier")


def verify_imports(path: Path) -> set[str]:
    """Places of dice/verify that `path` imports, also inside functions."""
    places = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[:2] == ["dice", "verify"]:
            below = node.module.split(".")[2:3]
            places |= set(below or (alias.name for alias in node.names))
    return places & set(VERIFY_FLOORS)


def verify_files() -> list[Path]:
    return [path for path in sorted((PACKAGE / "verify").rglob("*.py")) if "hostile" not in path.parts]


@pytest.mark.parametrize("path", verify_files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_places_of_the_verifier_import_downwards(path: Path) -> None:
    place = path.relative_to(PACKAGE / "verify").parts[0].removesuffix(".py")
    below = set(VERIFY_FLOORS[: VERIFY_FLOORS.index(place) + 1]) - ({"candidate"} - {place})
    assert verify_imports(path) <= below


# Rooms of dice/synth from the lowest to the highest; the files at its top (None) import them all.
SYNTH_FLOORS = ("tables", "problem", "kernel", "families", "wide", None)


def synth_floor(parts: Sequence[str]) -> int:
    """Of a file or module below dice/synth."""
    return SYNTH_FLOORS.index(parts[0] if parts and parts[0] in SYNTH_FLOORS else None)


@pytest.mark.parametrize("path", sorted((PACKAGE / "synth").rglob("*.py")), ids=lambda path: str(path.name))
def test_rooms_of_the_synthetic_corpus_import_downwards(path: Path) -> None:
    own = synth_floor(path.relative_to(PACKAGE / "synth").parts)
    nodes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom)]
    modules = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    below = [module.split(".")[2:] for module in modules if module.startswith("dice.synth")]
    assert all(synth_floor(parts) <= own for parts in below)


@pytest.mark.parametrize("place", ["data", "evaluate", "synth", "optimize", "cluster", "serve"])
def test_rooms_have_no_circle(place: str) -> None:
    """No file or folder of a place imports, over others, itself."""
    folder = PACKAGE / place
    imported: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        nodes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom)]
        below = {tuple(node.module.split(".")) for node in nodes if node.module} if room != "__init__" else set()
        rooms = {parts[2] for parts in below if parts[:2] == ("dice", place) and len(parts) > 2}
        imported.setdefault(room, set()).update(rooms - {room})
    while free := [room for room, rooms in imported.items() if not rooms & set(imported)]:
        for room in free:
            del imported[room]
    assert not imported


def test_supervising_needs_no_torch() -> None:
    """Neither PyTorch nor the code that runs candidates is in the process that decides."""
    files = [
        path
        for path in verify_files()
        if path.relative_to(PACKAGE / "verify").parts[0].removesuffix(".py") in WITHOUT_TORCH
    ]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    probe = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    probe += "sys.exit(bool({'torch', 'dice.verify.candidate', 'dice.verify.reference'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_the_cluster_imports_ray() -> None:
    """Without it, everything else works."""
    others = [path for path in PACKAGE.rglob("*.py") if "cluster" not in path.parts and imports_ray(path)]
    assert not others
    assert imports_ray(PACKAGE / "cluster" / "hosts.py")


def imports_ray(path: Path) -> bool:
    nodes = list(ast.walk(tree(path)))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] == "ray" for name in names)


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).exists()]


LONGEST_CLASS, LONGEST_FUNCTION, LONGEST_FILE, MOST_FILES = 250, 60, 500, 20  # lines, and Python files of a folder
CATALOGUES = {"modules"}  # folders of files that are all alike
REASON = "Long because "  # begins the sentence with which the docstring of a longer file says why it is one


def parsed() -> Iterator[tuple[Path, str, ast.Module]]:
    """Our own Python files; hostile files, cases and parts of problems are texts for others to read."""
    texts = {"hostile", "cheats", "honest", "wrong", "cases", "modules"}
    for path in tracked("*.py"):
        if not texts & set(path.relative_to(ROOT).parts):
            yield path, path.read_text(), tree(path)


def test_classes_and_functions_can_be_read_at_a_sitting() -> None:
    limits = {ast.ClassDef: LONGEST_CLASS, ast.FunctionDef: LONGEST_FUNCTION, ast.AsyncFunctionDef: LONGEST_FUNCTION}
    long = [
        f"{path}:{node.lineno} {node.name}"
        for path, _, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, tuple(limits)) and (node.end_lineno or 0) - node.lineno >= limits[type(node)]
    ]
    assert not long


def test_a_long_file_says_why() -> None:
    long = [
        str(path)
        for path, source, tree in parsed()
        if len(source.splitlines()) > LONGEST_FILE and REASON not in (ast.get_docstring(tree) or "")
    ]
    assert not long


def test_a_folder_can_be_surveyed() -> None:
    files = [path for path in tracked("dice/*.py") if "hostile" not in path.parts and path.name != "__init__.py"]
    folders = Counter(path.parent for path in files if path.parent.name not in CATALOGUES)
    assert not {str(folder): count for folder, count in folders.items() if count > MOST_FILES}


def test_the_help_needs_no_torch() -> None:
    call = "try: dice.cli.main(['--help'])\nexcept SystemExit: pass"
    probe = f"import sys, dice.cli\n{call}\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_large_files_stay_out() -> None:
    assert sum(path.stat().st_size for path in tracked("dice/nano/*")) <= 20 * 2**20
    assert not [path for path in tracked() if path.stat().st_size > 20 * 2**20]


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports those that lie in no package by their names, and leaves out the second of two."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_attributes_are_first_set_in_init() -> None:
    """So that a class's state can be read in one place."""
    late = []
    for path, _, tree in parsed():
        if path.is_relative_to(PACKAGE):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    late += [f"{path.relative_to(ROOT)}:{line} {node.name}.{name}" for name, line in set_late(node)]
    assert not late


def set_late(node: ast.ClassDef) -> list[tuple[str, int]]:
    """Attributes of `self` that a method sets, and neither the class nor its constructor does."""
    functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
    makers = [item for item in functions if item.name in ("__init__", "__post_init__", "__new__")]
    declared = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
    declared += [target for item in node.body if isinstance(item, ast.Assign) for target in item.targets]
    known = {target.id for target in declared if isinstance(target, ast.Name)}
    known |= {name for maker in makers for name, _ in attributes_set(maker)}
    others = [item for item in functions if item not in makers]
    return [(name, line) for other in others for name, line in attributes_set(other) if name not in known]


def attributes_set(function: ast.FunctionDef) -> list[tuple[str, int]]:
    return [
        (node.attr, node.lineno)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    ]


def test_what_the_quick_check_runs_is_there() -> None:
    """A file that was moved would be left out of `make check` without a word."""
    assert not [place for place in WITHOUT_PROCESSES if not (ROOT / "tests" / place).exists()]
