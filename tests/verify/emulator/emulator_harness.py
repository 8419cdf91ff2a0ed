"""Compile .cu texts for the emulator and call their extern "C" entries, in this process or in one that may die."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from dice.verify import emulator
from dice.verify.options import default_cache_dir
from tests.conftest import PATIENCE_S

CASES = Path(__file__).parent / "emulator_cases"
# The runtime is the one that built extensions load: two in one process would share symbols but not state.
CACHE = default_cache_dir()
# Keyed by content, so that all tests and all runs can share one folder.
LIBRARIES = Path(tempfile.gettempdir()) / f"dice-emulator-tests-{os.getuid()}"
ROOT = Path(__file__).parents[3]
EXTENDED_LAMBDA = "-D__CUDACC_EXTENDED_LAMBDA__=1"  # as a build with nvcc's flag has it


class CompileFailed(Exception):
    """g++ rejected a translated source; the text is its log."""


def compile_cuda(source: str, *flags: str, fast: bool = False) -> Path:
    """A shared library of the translated source, linked to the runtime."""
    runtime = emulator.runtime(CACHE)
    translated = emulator.translate(source, fast)
    headers = b"".join(path.read_bytes() for path in sorted(emulator.include_dir.rglob("*.*")))
    key = hashlib.sha256("\0".join([translated, str(runtime), *emulator.compile_flags(), *flags]).encode() + headers)
    LIBRARIES.mkdir(exist_ok=True)
    library = LIBRARIES / f"{key.hexdigest()[:24]}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=LIBRARIES) as folder:
        text = Path(folder) / "case.cpp"
        text.write_text(translated)
        output = Path(folder) / "case.so"
        command = ["g++", *emulator.compile_flags(), *flags, "-I", str(emulator.include_dir), "-shared"]
        done = subprocess.run([*command, str(text), "-o", str(output), str(runtime)], capture_output=True, text=True)
        if done.returncode != 0:
            raise CompileFailed(done.stderr)
        os.replace(output, library)
    return library


@cache
def case(name: str, *flags: str) -> Library:
    return Library(compile_cuda((CASES / name).read_text(), *flags))


@cache
def runtime_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(emulator.runtime(CACHE)), mode=ctypes.RTLD_GLOBAL)
    library.dice_launches_json.restype = ctypes.c_char_p
    library.dice_last_launch_error.restype = ctypes.c_char_p
    return library


class Library:
    """Entries of a compiled case; arrays go as pointers, Python numbers as int (or float as C float)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runtime = runtime_library()
        self._library = ctypes.CDLL(str(path))

    def call(self, entry: str, *arguments: Any) -> int:
        result: int = getattr(self._library, entry)(*map(_to_c, arguments))
        return result

    def launches(self) -> dict[str, int]:
        counts: dict[str, int] = json.loads(self.runtime.dice_launches_json())
        return counts


def _to_c(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int(value)


@dataclass(frozen=True)
class Death:
    """How a process that called an entry ended."""

    returncode: int
    fault: dict[str, str] | None
    stdout: str


def call_in_process(library: Path, entry: str, *arguments: int, order: int = 0, guarded: bool = False) -> Death:
    """Call `entry(int...)` in a fresh process whose fault line comes back through a pipe. `guarded`: as where tensors
    are in the emulator's heap."""
    reader, writer = os.pipe()
    script = (
        "import ctypes, sys\n"
        f"runtime = ctypes.CDLL({str(emulator.runtime(CACHE))!r}, mode=ctypes.RTLD_GLOBAL)\n"
        f"runtime.dice_set_fault_fd({writer}); runtime.dice_set_order({order})\n"
        f"{'runtime.dice_expect_device_pointers()' if guarded else ''}\n"
        f"print(ctypes.CDLL({str(library)!r}).{entry}({', '.join(map(str, arguments))}))\n"
    )
    with os.fdopen(reader) as pipe:
        done = subprocess.run(
            [sys.executable, "-c", script],
            pass_fds=[writer],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=ROOT,
        )
        os.close(writer)
        line = pipe.read()
    return Death(done.returncode, json.loads(line) if line else None, done.stdout)
