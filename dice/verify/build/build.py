"""From the sources of a `load_inline` call to a shared library, for the CUDA and the emulated backend.

The fast way compiles against the shadow headers in `include/` (about 0.5 s with g++, 2 s with nvcc), first by
shortcuts: as C++17, both languages in one unit, only what the text seems to use. What fails so is compiled as
`load_inline` does it: two units, under PyTorch's own language standard. When the errors may come from something that
the shadow headers lack, the same is done against PyTorch's own headers. So no shortcut ever refuses a source; one that
only an older standard accepts may pass. Results are kept by content: sources, flags, compilers, architecture, headers.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

from dice.verdict import Backend
from dice.verify import emulator
from dice.verify.build import object_files, split_build
from dice.verify.build.cache import Cache, content_key
from dice.verify.build.commands import compiler_for
from dice.verify.build.compiler import Compiler
from dice.verify.build.compiler_process import MAX_MEMORY_BYTES, PATIENCE, Finished, run_all
from dice.verify.build.cuda import CudaCompiler
from dice.verify.build.diagnostics import error_lines, headers_to_blame
from dice.verify.build.libraries import found, look_up, publish
from dice.verify.build.shared import Shared, recipe_hash
from dice.verify.build.sources import (
    LIBRARY,
    MAX_SOURCE_BYTES,
    Built,
    CompileError,
    CompileTimeout,
    Foreign,
    Headers,
    LinkError,
    Sources,
    Unsupported,
    safe_flags,
)
from dice.verify.build.units import Unit, bindings_for, joined_unit, split_units
from dice.verify.sandbox.scratch import is_crowded_out
from dice.verify.toolchain import ToolchainError, gpu_arch

__all__ = [
    "Built",
    "CompileError",
    "CompileTimeout",
    "LinkError",
    "Sources",
    "ToolchainError",
    "Unsupported",
    "build",
    "compile_into",
    "identity",
    "prepare",
]


def build(
    sources: Sources,
    *,
    backend: Backend,
    cache_dir: Path,
    arch: str | None = None,
    timeout_s: float = 120,
    name: str = "",
    sanitize: bool = False,
) -> Built:
    """Compile `sources`, or find the result of an earlier equal build. `name` never matters for the result.

    `sanitize`: for the race detector, or with the line numbers that compute-sanitizer wants.

    Raises `CompileError` (with `LinkError` and `CompileTimeout`), `Unsupported`, or `ToolchainError` when the machine,
    not the source, is the reason.
    """
    started = time.monotonic()
    arch = arch or gpu_arch()
    cache = Cache(Path(cache_dir) / "extensions")
    key = sources.key(identity(backend, Path(cache_dir), arch), sanitize)
    known = look_up(cache, key, backend)
    if known is not None:
        return known
    with cache.scratch() as scratch:
        compiled = compile_into(scratch, sources, backend, Shared(Path(cache_dir)), arch, timeout_s, sanitize)
        return found(publish(cache, key, scratch, *compiled), started, cached=False, backend=backend)


def identity(backend: Backend, cache_dir: Path, arch: str) -> str:
    """Everything but the sources that decides what a build gives: compilers, headers, architecture, this code."""
    return content_key([recipe_hash(), compiler_for(backend, arch, Shared(cache_dir), (), ()).identity])


def compile_into(
    scratch: Path,
    sources: Sources,
    backend: Backend,
    shared: Shared,
    arch: str,
    timeout_s: float,
    sanitize: bool = False,
) -> tuple[Headers, str, Foreign]:
    """Leave the library of `sources` as `LIBRARY` in `scratch`; which headers it took, the log, and why it may not run
    where there is data (`object_files.foreign`).

    Raises as `build` does, and `SharedMissing`.
    """
    deadline = time.monotonic() + PATIENCE * timeout_s
    if sources.size > MAX_SOURCE_BYTES:
        raise CompileError("", [f"error: the sources are larger than {MAX_SOURCE_BYTES >> 20} MB"])
    cpp, cuda = "\n".join(sources.cpp), "\n".join(sources.cuda)
    if backend == "emulated":
        reason = emulator.find_unsupported(cuda) or emulator.find_unsupported(cpp)
        if reason:
            raise Unsupported(reason)
    flags = safe_flags(sources.cflags), safe_flags(sources.cuda_cflags)
    compiler = compiler_for(backend, arch, shared, *flags, sanitize)
    plan = _Plan(cpp, cuda, bindings_for(sources.functions), sources.implicit_headers, compiler, deadline, timeout_s)
    headers, log = plan.compile(scratch)
    if headers == "full":
        variable = object_files.variable(scratch.glob("*.o"), whole=True)
        return headers, log, Foreign("its host code needs PyTorch's own headers", variable=variable)
    return headers, log, object_files.foreign(scratch.glob("*.o"), scratch / LIBRARY, sources)


def prepare(backend: Backend, cache_dir: Path, arch: str | None = None, headers: str = "slim") -> str:
    """Do once what every build with `headers` needs: find the compilers, precompile the headers. Returns `identity`.

    With `arch` given, no GPU is touched. Raises `ToolchainError`.
    """
    arch = arch or gpu_arch()
    compiler = compiler_for(backend, arch, Shared(Path(cache_dir)), (), ())
    with Cache(Path(cache_dir) / "extensions").scratch() as scratch:
        for way in ("quick", "slim") if headers == "slim" else (headers,):
            for index, unit in enumerate(split_units("int x;", "int x;", "")):
                compiler.command(unit, scratch / f"unit{index}", scratch / f"unit{index}.o", way)
                if isinstance(compiler, CudaCompiler) and way == "quick" and unit.language == "cuda":
                    compiler.split_host(unit, scratch / "host", scratch / "host.o")
        compiler.link([], scratch / LIBRARY, headers)
        if isinstance(compiler, CudaCompiler):
            compiler.split_link([], scratch / LIBRARY)
    return identity(backend, Path(cache_dir), arch)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The attempts one build makes, cheapest first; each later one only when it could end differently."""

    cpp: str
    cuda: str
    bindings: str
    implicit_headers: bool
    compiler: Compiler
    deadline: float
    cpu_s: float

    def compile(self, scratch: Path) -> tuple[Headers, str]:
        """Leave `LIBRARY` in `scratch`; returns which headers it took and the log."""
        quickly = self._quick(scratch)
        if quickly is not None:
            return quickly
        try:
            return "slim", self._attempt(self._split(), scratch, "slim")
        except LinkError:
            raise
        except CompileError as error:
            if isinstance(error, CompileTimeout) or not headers_to_blame(error.log, f"{self.cpp}\n{self.cuda}"):
                self._explain(error)
                raise
            slim_error = error
        try:
            return "full", self._attempt(self._split(), scratch, "full")
        except CompileError as error:
            self._explain(error)
            # The shadow headers' message is the shorter one; PyTorch's own decides only that there is an error.
            raise error from slim_error

    def _quick(self, scratch: Path) -> tuple[Headers, str] | None:
        """By shortcuts; None when they fail, which says nothing about the source."""
        try:
            if isinstance(self.compiler, CudaCompiler):
                log = split_build.attempt(self.cpp, self.cuda, self.bindings, self.compiler, scratch, self._run_some)
                if log is not None:
                    return "split", log
            return "slim", self._attempt(self._joined() or self._split(), scratch, "quick")
        except CompileTimeout:
            raise
        except (CompileError, split_build.NotCompiled):
            return None

    def _joined(self) -> list[Unit]:
        """Both languages in one unit, where that is quicker and may mean the same; else empty."""
        # nvcc reads everything three times: there a second unit, through g++ and side by side, is cheaper than one.
        if not self.implicit_headers or self.compiler.backend != "emulated":
            return []
        joined = joined_unit(self.cpp, self.cuda, self.bindings)
        return [] if joined is None else [joined]

    def _split(self) -> list[Unit]:
        return split_units(self.cpp, self.cuda, self.bindings, self.implicit_headers)

    def _attempt(self, units: list[Unit], scratch: Path, headers: str) -> str:
        commands, objects = [], []
        for index, unit in enumerate(units):
            objects.append(scratch / f"unit{index}.o")
            commands.append(self.compiler.command(unit, scratch / f"unit{index}", objects[-1], headers))
        log = self._run(commands, scratch, CompileError)
        return log + self._run([self.compiler.link(objects, scratch / LIBRARY, headers)], scratch, LinkError)

    def _run_some(self, commands: list[list[str]], scratch: Path) -> list[Finished]:
        results = run_all(commands, scratch, max(self.deadline - time.monotonic(), 0.1), self.cpu_s)
        if any(_was_killed(result) for result in results):  # a source may make its compiler say so, but not end so
            results = run_all(commands, scratch, max(self.deadline - time.monotonic(), 0.1), self.cpu_s)
        if any(result.status is None for result in results):
            raise CompileTimeout("", message="The compiler did not finish in time.")
        for result in results:
            _check_machine(result, scratch)
        return results

    def _run(self, commands: list[list[str]], scratch: Path, failure: type[CompileError]) -> str:
        results = self._run_some(commands, scratch)
        log = "\n".join(result.log for result in results if result.log.strip())
        if any(result.status != 0 for result in results):
            lines = tuple(error_lines(log))
            if _OUT_OF_MEMORY.search(log):
                lines = (*lines, f"error: the compiler ran out of memory: it had {MAX_MEMORY_BYTES >> 20} MiB")
            raise failure(log, lines)
        return log

    def _explain(self, error: CompileError) -> None:
        """Raise `Unsupported` when the error is about CUDA that the emulator lacks."""
        if self.compiler.backend == "emulated":
            reason = emulator.explain_failure(error.log)
            if reason:
                raise Unsupported(reason) from error


# As g++, its assembler and nvcc's parts say it.
_OUT_OF_MEMORY = re.compile(r"out of memory allocating|memory exhausted|std::bad_alloc|[Cc]annot allocate memory")


def _was_killed(result: Finished) -> bool:
    """Whether somebody killed the compiler: the system, when memory is short. Trying once more tells it from sources
    that only have the compiler print this."""
    return result.status != 0 and ("Killed signal terminated program" in result.log or "signal 9" in result.log)


def _check_machine(result: Finished, scratch: Path) -> None:
    """A full disk is no property of the source. A log that says so, is: sources may have the compiler say anything."""
    if result.status != 0 and is_crowded_out(scratch):
        raise ToolchainError("There is no space left on the disk for compiling.")
