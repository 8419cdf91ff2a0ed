"""From the sources of a `load_inline` call to a shared library, for the CUDA and the emulated backend.

The fast way compiles against the shadow headers in `include/` (about 0.5 s with g++, 2 s with nvcc). When its errors
may come from something those headers lack, the same sources are compiled once more against PyTorch's own headers, so
no verdict depends on the shortcut. Results are kept by content: sources, flags, compilers, architecture, headers.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dice.verify import emulator
from dice.verify.cache import Cache, content_key
from dice.verify.compile_commands import Compiler, compiler_for, recipe_hash
from dice.verify.compiler_process import Finished, run_all
from dice.verify.diagnostics import error_lines, headers_to_blame, outside, read_errors
from dice.verify.toolchain import Backend, ToolchainError, gpu_arch, safe_flags
from dice.verify.units import CUDA_SOURCE, Unit, bindings_for, joined_unit, split_units

__all__ = [
    "Built",
    "CompileError",
    "CompileTimeout",
    "LinkError",
    "Sources",
    "ToolchainError",
    "Unsupported",
    "build",
    "prepare",
]

Headers = Literal["slim", "full"]
LIBRARY = "extension.so"


@dataclass(frozen=True, slots=True)
class Sources:
    """What a `load_inline` call hands over. `functions` are (name, docstring) pairs to write bindings for."""

    cpp: tuple[str, ...] = ()
    cuda: tuple[str, ...] = ()
    functions: tuple[tuple[str, str], ...] = ()
    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    implicit_headers: bool = True

    @property
    def has_pybind(self) -> bool:
        return any("PYBIND11_MODULE" in text for text in (*self.cpp, *self.cuda))


@dataclass(frozen=True, slots=True)
class Built:
    """A shared library ready for `binding.load`. `seconds` is the wall time of this call, cached or not."""

    path: Path
    headers: Headers
    seconds: float
    cached: bool
    backend: Backend = "emulated"
    log: str = field(default="", repr=False)


class CompileError(Exception):
    """The compiler refused the source. `lines` are its errors, mapped to the candidate's own lines."""

    def __init__(self, log: str, lines: Sequence[str] = (), message: str = ""):
        self.log = log
        self.lines = tuple(lines) or error_lines(log)
        super().__init__(message or "\n".join(("Error building extension:", *self.lines)))


class LinkError(CompileError):
    """The units compiled but do not fit together, for example because both define the same function."""


class CompileTimeout(CompileError):
    """The compiler did not end in time."""


class Unsupported(Exception):
    """Emulation cannot run this source; the message names the construct."""


def build(
    sources: Sources,
    *,
    backend: Backend,
    cache_dir: Path,
    arch: str | None = None,
    timeout_s: float = 120,
    name: str = "",
) -> Built:
    """Compile `sources`, or find the result of an earlier equal build. `name` never matters for the result.

    Raises `CompileError` (with `LinkError` and `CompileTimeout`), `Unsupported`, or `ToolchainError` when the machine,
    not the source, is the reason.
    """
    started = time.monotonic()
    cpp, cuda = "\n".join(sources.cpp), "\n".join(sources.cuda)
    if backend == "emulated":
        reason = emulator.find_unsupported(cuda) or emulator.find_unsupported(cpp)
        if reason:
            raise Unsupported(reason)
    compiler = compiler_for(
        backend, arch or gpu_arch(), Path(cache_dir), safe_flags(sources.cflags), safe_flags(sources.cuda_cflags)
    )
    cache = Cache(Path(cache_dir) / "extensions")
    key = content_key(
        [recipe_hash(), compiler.identity, cpp, cuda, repr(sources.functions), repr(sources.implicit_headers)]
    )
    entry = cache.find(key)
    if entry is not None:
        return _built(entry, started, cached=True, backend=backend)
    plan = _Plan(cpp, cuda, bindings_for(sources.functions), sources.implicit_headers, compiler, started + timeout_s)
    with cache.scratch() as scratch:
        headers, log = plan.compile(scratch)
        result = scratch / "result"
        result.mkdir()
        shutil.move(scratch / LIBRARY, result / LIBRARY)
        (result / "headers").write_text(headers)
        (result / "log").write_text(log)
        return _built(cache.publish(key, result), started, cached=False, backend=backend)


def prepare(backend: Backend, cache_dir: Path, arch: str | None = None) -> None:
    """Do once what every build needs: find the compilers, hash the headers, precompile them. A process that is forked
    for each candidate calls this first; with `arch` given, no GPU is touched. Raises `ToolchainError`."""
    compiler = compiler_for(backend, arch or gpu_arch(), Path(cache_dir), (), ())
    units = split_units("int x;", "int y;", "")
    _ = compiler.identity, recipe_hash()  # cached for the builds to come
    with Cache(Path(cache_dir) / "extensions").scratch() as scratch:
        for index, unit in enumerate(units):
            compiler.command(unit, scratch / f"unit{index}", scratch / f"unit{index}.o", "slim")
        compiler.link([], scratch / LIBRARY, "slim")


def _built(entry: Path, started: float, *, cached: bool, backend: Backend) -> Built:
    headers: Headers = "full" if (entry / "headers").read_text() == "full" else "slim"
    seconds = time.monotonic() - started
    return Built(entry / LIBRARY, headers, seconds, cached, backend, (entry / "log").read_text())


@dataclass(frozen=True, slots=True)
class _Plan:
    """The attempts one build makes, cheapest first; each later one only when it could end differently."""

    cpp: str
    cuda: str
    bindings: str
    implicit_headers: bool
    compiler: Compiler
    deadline: float

    def compile(self, scratch: Path) -> tuple[Headers, str]:
        """Leave `LIBRARY` in `scratch`; returns which headers it took and the log."""
        try:
            return "slim", self._slim(scratch)
        except LinkError:
            raise
        except CompileError as error:
            if isinstance(error, CompileTimeout) or not headers_to_blame(error.log):
                self._explain(error)
                raise
            slim_error = error
        try:
            return "full", self._attempt(self._split(), scratch, "full")
        except CompileError as error:
            self._explain(error)
            # The shadow headers' message is the shorter one; PyTorch's own decides only that there is an error.
            raise error from slim_error

    def _slim(self, scratch: Path) -> str:
        # nvcc reads everything three times: there a second unit, through g++ and side by side, is cheaper than one.
        joins = self.implicit_headers and self.compiler.backend == "emulated"
        joined = joined_unit(self.cpp, self.cuda, self.bindings) if joins else None
        if joined is not None:
            try:
                return self._attempt([joined], scratch, "slim")
            except CompileTimeout:
                raise
            except CompileError as error:
                # The CUDA source stands first and alone, so its own errors are final; others may come from joining.
                errors = read_errors(error.log)
                if errors and not outside(errors, CUDA_SOURCE):
                    raise
        return self._attempt(self._split(), scratch, "slim")

    def _split(self) -> list[Unit]:
        return split_units(self.cpp, self.cuda, self.bindings, self.implicit_headers)

    def _attempt(self, units: list[Unit], scratch: Path, headers: Headers) -> str:
        commands, objects = [], []
        for index, unit in enumerate(units):
            objects.append(scratch / f"unit{index}.o")
            commands.append(self.compiler.command(unit, scratch / f"unit{index}", objects[-1], headers))
        log = self._run(commands, scratch, CompileError)
        return log + self._run([self.compiler.link(objects, scratch / LIBRARY, headers)], scratch, LinkError)

    def _run(self, commands: list[list[str]], scratch: Path, failure: type[CompileError]) -> str:
        left = self.deadline - time.monotonic()
        results = run_all(commands, scratch, max(left, 0.1))
        log = "\n".join(result.log for result in results if result.log.strip())
        if any(result.status is None for result in results):
            raise CompileTimeout(log, message="The compiler did not finish in time.")
        for result in results:
            _check_machine(result)
        if any(result.status != 0 for result in results):
            raise failure(log)
        return log

    def _explain(self, error: CompileError) -> None:
        """Raise `Unsupported` when the error is about CUDA that the emulator lacks."""
        if self.compiler.backend == "emulated":
            reason = emulator.explain_failure(error.log)
            if reason:
                raise Unsupported(reason) from error


def _check_machine(result: Finished) -> None:
    """A full disk is no property of the source."""
    if result.status != 0 and "No space left on device" in result.log:
        raise ToolchainError("There is no space left on the disk for compiling.")
