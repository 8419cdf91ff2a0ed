"""Compilers that hang, fail or are none; devices and memory that sources reach for; a cache with no room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from dice.verify import Verifier, toolchain
from dice.verify.build import service
from dice.verify.build.service import BuildService, _read, builder_memory_mb
from dice.verify.build.sources import Sources
from dice.verify.sandbox.process import MachineryError, Zygote
from tests.conftest import PATIENCE_S, ROOT

CPP = "torch::Tensor same(torch::Tensor x);"
CUDA = "torch::Tensor same(torch::Tensor x) { return x; }\n"
FUNCTIONS = (("same", "same"),)


def program(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "text, words", [("sleep 1000\n", "did not answer within"), ("echo no licence >&2; exit 3\n", "no licence")]
)
def test_a_compiler_that_hangs_or_fails_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr(toolchain, "ANSWER_TIMEOUT_S", 0.5)
    with pytest.raises(toolchain.ToolchainError, match=words):
        toolchain.ask([str(program(tmp_path / "cxx", text)), "--version"])


@pytest.mark.parametrize("wanted", ["{folder}", "{folder}/none", "g++ -O2", "{folder}/plain"])
def test_a_compiler_that_is_none_is_one_sentence(tmp_path: Path, wanted: str) -> None:
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "problem.py").write_text(EXAMPLE_PROBLEM)
    (tmp_path / "kernel.py").write_text(EXAMPLE_KERNEL)
    command = [sys.executable, "-m", "dice", "verify", "problem.py", "kernel.py", "--backend", "emulated"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CXX": wanted.format(folder=tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 3 and "is no program" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_hanging_compiler_ends_verify_and_not_doctor(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(EXAMPLE_PROBLEM)
    (tmp_path / "kernel.py").write_text(EXAMPLE_KERNEL)
    compiler = program(tmp_path / "a compiler", "sleep 1000\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CXX": str(compiler)}
    impatient = "import sys; from dice.verify import toolchain; toolchain.ANSWER_TIMEOUT_S = 2.0"
    impatient += "; from dice.cli import main; sys.exit(main())"
    line = [sys.executable, "-c", impatient, "verify", "problem.py", "kernel.py", "--backend", "emulated"]
    done = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 3 and "did not answer within 2 s" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/dev/zero",
        "/dev/urandom",
        "/dev/random",
        "/dev/full",
        "/dev/stdin",
        "/proc/self/mem",
        "/proc/kcore",
    ],
)
def test_no_device_feeds_a_compiler(emulated: Verifier, path: str) -> None:
    source = f'#include "{path}"\n{CUDA}// {uuid.uuid4()}\n'
    answer = emulated._builds.build(emulated._get_zygote(), Sources((CPP,), (source,), FUNCTIONS), "ext", 30)
    assert answer.kind in ("compile_error", "built"), answer.kind
    assert "out of memory" not in answer.message


def test_a_compiler_out_of_memory_says_how_much_it_had(emulated: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = "template <int n> struct A { char c[n]; };\n" + "static const unsigned char big[3u << 30] = {1};\n"
    source = f"{huge}const void* get() {{ return big; }}\n{CUDA}// {uuid.uuid4()}\n"
    answer = emulated._builds.build(emulated._get_zygote(), Sources((CPP,), (source,), FUNCTIONS), "ext", 30)
    assert answer.kind in ("compile_error", "timeout", "link_error")
    if "memory" in answer.message:
        assert "it had" in answer.message and "MiB" in answer.message


def test_builders_share_the_machine() -> None:
    machine_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    assert builder_memory_mb(1) == max(service.LEAST_MEMORY_MB, min(service.BUILDER_MEMORY_MB, machine_mb))
    assert builder_memory_mb(10_000) == service.LEAST_MEMORY_MB


@pytest.mark.parametrize(
    "said", [{}, {"kind": 7}, {"kind": ["built"]}, {"kind": "built"}, {"kind": "built", "headers": "other"}]
)
def test_an_answer_that_is_none_says_nothing_about_a_kernel(said: dict[str, object]) -> None:
    with pytest.raises(MachineryError):
        _read(said)


def test_an_answers_words_are_cleaned_and_cut() -> None:
    said = {
        "kind": "compile_error",
        "message": "\x1b[2J" + "x" * 10**6,
        "lines": ["\u202ea", 7, None] * 99,
        "log": None,
    }
    read = _read(said)
    assert read.message.startswith("?[2J") and len(read.message) <= 16 << 10
    assert read.lines[0] == "?a" and len(read.lines) <= 40 and read.log == ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("needs root, to mount a small file system")
    options = ["-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.mark.slow
def test_a_full_disk_while_headers_are_made_is_one_sentence(small_disk: Path) -> None:
    zygote = Zygote()
    try:
        with pytest.raises(MachineryError) as caught:
            BuildService("emulated", small_disk).build(zygote, Sources((CPP,), (CUDA,), FUNCTIONS), "ext", 60)
    finally:
        zygote.close()
    message = str(caught.value)
    assert "Traceback" not in message and "no space left" in message.lower() and len(message) < 700, message


NVCC = """
case "$1" in
  --dryrun) echo "#$ TOP={home}" >&2 ;;
  *) echo "Cuda compilation tools, release {release}, V{release}.0" ;;
esac
"""
LOOK_UPS = """
import json
from dice.verify import options, toolchain
from dice.verify.supervisor import sanitizer
kit = toolchain.cuda_toolkit()
print(json.dumps([str(kit.nvcc), str(kit.home), kit.version, options.toolchain("cuda"), str(sanitizer.require())]))
"""


def toolkit(home: Path, release: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program(home / "bin" / "compute-sanitizer", "")
    return program(home / "bin" / "nvcc", NVCC.format(home=home, release=release))


@pytest.mark.parametrize("named", ["", "home", "home without nvcc", "home with a plain file"])
def test_builds_and_reports_name_the_same_nvcc(tmp_path: Path, named: str) -> None:
    """$CUDA_HOME, then the PATH, then the usual place."""
    on_path = toolkit(tmp_path / "on path", "98.1")
    environment = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    environment |= {"PYTHONPATH": str(ROOT), "PATH": f"{on_path.parent}:{os.environ['PATH']}"}
    wanted, release = on_path, "98.1"
    if named:
        environment["CUDA_HOME"] = str(tmp_path / named)
    if named == "home":
        wanted, release = toolkit(tmp_path / named, "99.7"), "99.7"
    if named == "home with a plain file":
        (tmp_path / named / "bin").mkdir(parents=True)
        (tmp_path / named / "bin" / "nvcc").write_text("no program")
    line = [sys.executable, "-c", LOOK_UPS]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    nvcc, home, version, said, sanitizer = json.loads(done.stdout)
    assert (Path(nvcc), Path(home)) == (wanted, wanted.parent.parent)
    assert release in version and said == f"nvcc {release}"
    assert Path(sanitizer) == wanted.parent / "compute-sanitizer"
