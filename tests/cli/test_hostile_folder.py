"""A working directory full of modules by the names of others': none of them is ever imported by a trusted process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dice.launch import code_command, environment, python_command, safe_environment
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from tests.conftest import PATIENCE_S, ROOT

pytestmark = pytest.mark.xdist_group("cli")

NAMES = (
    *("numpy", "torch", "json", "random", "statistics", "pickle", "tempfile", "socket", "subprocess", "selectors"),
    *("rich", "tyro", "hashlib", "dataclasses", "pathlib", "typing", "ast", "sqlite3", "resource", "struct", "launch"),
    *("httpx", "pybind11", "triton", "setuptools", "ninja", "peft", "transformers", "runpy", "sysconfig", "traceback"),
)
SITE = ("sitecustomize", "usercustomize")  # what Python imports before any line of ours
Check = Callable[[list[str], Path, str | None], None]
SCRIPT = "import sys\nfrom dice.__main__ import main\nsys.exit(main())\n"  # as pip writes it for `dice`


def fill(folder: Path, names: tuple[str, ...]) -> Path:
    """A folder with a problem, a right kernel, and hostile modules."""
    folder.mkdir(exist_ok=True)
    escaped = folder / "ESCAPED"
    for name in names:
        (folder / f"{name}.py").write_text(f"open({str(escaped)!r}, 'a').write({name!r} + chr(10))\n")
    (folder / "problem.py").write_text(EXAMPLE_PROBLEM)
    (folder / "kernel.py").write_text(EXAMPLE_KERNEL)
    return folder


def installed(folder: Path) -> Path:
    """A place that modules are found in which holds `dice` alone, as site-packages would."""
    folder.mkdir(exist_ok=True)
    (folder / "dice").symlink_to(ROOT / "dice")
    return folder


def run(command: list[str], folder: Path, python_path: str | None) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    variables |= {"OMP_NUM_THREADS": "1"} | ({} if python_path is None else {"PYTHONPATH": python_path})
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def imported(folder: Path) -> list[str]:
    escaped = folder / "ESCAPED"
    return escaped.read_text().split() if escaped.exists() else []


def check_verify(command: list[str], folder: Path, python_path: str | None) -> None:
    arguments = ["verify", "problem.py", "kernel.py", "--backend", "emulated", "--json"]
    done = run([*command, *arguments], folder, python_path)
    assert imported(folder) == []
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["verdict"]["outcome"] == "correct"


def check_inspect(command: list[str], folder: Path, python_path: str | None) -> None:
    """A command with a zygote and processes below it, but without builds."""
    done = run([*command, "data", "inspect", "problem.py", "--json"], folder, python_path)
    assert imported(folder) == []
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize(
    "starts, entry, check",
    [
        pytest.param("script", ".:{dice}:{here}", check_inspect, id="script"),
        pytest.param("script", ".:{dice}:{here}", check_verify, id="script verifies", marks=pytest.mark.slow),
        pytest.param("module", "{dice}", check_verify, id="module verifies", marks=pytest.mark.slow),
    ],
)
def test_commands_with_processes_among_hostile_modules(tmp_path: Path, starts: str, entry: str, check: Check) -> None:
    """To verify takes the twenty seconds in which what builds share is made, anew for each place of the package."""
    script = tmp_path / "bin" / "dice"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    place = installed(tmp_path / "place")
    folder = fill(tmp_path / "here", NAMES + (SITE if entry == "{dice}" else ()))
    command = [sys.executable, str(script)] if starts == "script" else [sys.executable, "-m", "dice"]
    check(command, folder, entry.format(dice=place, here=folder))


@pytest.mark.parametrize(
    "check",
    [check_inspect, *(pytest.param(one, marks=pytest.mark.slow) for one in (None, check_verify))],
    ids=["inspect", "doctor", "verify"],
)
def test_a_checkout_with_hostile_modules_beside_the_package(tmp_path: Path, check: Check | None) -> None:
    shutil.copytree(ROOT / "dice", tmp_path / "here" / "dice", ignore=shutil.ignore_patterns("__pycache__"))
    folder = fill(tmp_path / "here", NAMES + SITE)
    if check is None:
        run([sys.executable, "-m", "dice", "doctor"], folder, None)
        assert imported(folder) == []
    else:
        check([sys.executable, "-m", "dice"], folder, "")


SYNTH = ["data", "synth", "--pairs", "600", "--heldout", "1", "--control", "0", "--no-verify", "--workers", "2"]


DOCTOR = ["doctor", "--json"]


@pytest.mark.parametrize("arguments", [DOCTOR, pytest.param([*SYNTH, "--out", "corpus"], marks=pytest.mark.slow)])
def test_other_commands_among_hostile_modules(tmp_path: Path, arguments: list[str]) -> None:
    folder = fill(tmp_path / "here", NAMES + SITE)
    done = run([sys.executable, "-m", "dice", *arguments], folder, str(installed(tmp_path / "place")))
    assert imported(folder) == []
    assert done.returncode == 0, done.stdout + done.stderr
    if arguments == DOCTOR:
        answer = json.loads(done.stdout)
        assert "emulated" in answer["backends"]
        found = {finding["name"] for finding in answer["findings"]}
        assert found >= {"C++ compiler", "GPU", "sandbox", "nano checkpoint"}


@pytest.mark.parametrize(
    "given, kept",
    [
        (None, None),
        ("", None),
        (".", None),
        (":", None),
        ("{here}", None),
        ("{here}/../here", None),
        ("./.", None),
        ("{other}:", "{other}"),
        (":{other}:relative:{here}/", "{other}"),
        ("{other}/b:{other}", "{other}/b:{other}"),
    ],
)
@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_LIBRARY_PATH"])
def test_no_working_directory_among_the_folders_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: str | None, kept: str | None
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    monkeypatch.chdir(here)
    told = {} if given is None else {name: given.format(here=here, other=other)}
    wanted = None if kept is None else kept.format(other=other)
    assert safe_environment({"PATH": "/bin", **told}).get(name) == wanted


def test_children_import_what_the_user_has_and_nothing_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of an absolute folder of PYTHONPATH is found, as PyTorch may be; those of the working directory not."""
    folder = fill(tmp_path / "here", (*NAMES, *SITE, "dice"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "theirs.py").write_text("print('found')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f":{folder}:{other}:.")
    code = "import theirs, numpy, json, sys\nassert '' not in sys.path"
    for command in (code_command(code), code_command("import torch"), python_command("dice", "--version")):
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
        assert imported(folder) == []


def test_a_folder_that_is_the_installation_stays(tmp_path: Path) -> None:
    """Somebody may work in site-packages: what is installed there is found all the same."""
    import numpy

    packages = Path(numpy.__file__).parents[1]
    done = run(python_command("dice", "verify", "--help"), packages, None)
    assert done.returncode == 0, done.stderr
