"""Command lines of the emulated backend: the host compiler alone, on translated sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dice.verdict import Backend
from dice.verify import emulator
from dice.verify.build.compiler import Compiler
from dice.verify.build.flags import hidden, host_command, include_flags, module_name, quickly, standard, torch_libraries
from dice.verify.build.shared import Shared, emulator_hash, shadow_hash, support, torch_version
from dice.verify.build.units import Unit
from dice.verify.toolchain import (
    CUDA_API_HEADERS,
    NVCC_DEFINES,
    SHADOW_HEADERS,
    host_compiler,
    host_compiler_version,
    torch_includes,
)

EXTENDED_LAMBDA = ("extended-lambda", "expt-extended-lambda")  # nvcc's flag, and its name of old


@dataclass(frozen=True, slots=True)
class EmulatedCompiler(Compiler):
    shared: Shared
    cflags: tuple[str, ...]
    cuda_cflags: tuple[str, ...]
    sanitize: bool = False
    backend: Backend = "emulated"

    @property
    def identity(self) -> str:
        flags = self.cflags, self.cuda_cflags, tuple(emulator.compile_flags())
        return repr(
            (
                self.backend,
                flags,
                host_compiler_version(),
                torch_version(),
                shadow_hash(),
                emulator_hash(),
                str(self._runtime()),
            )
        )

    def command(self, unit: Unit, source: Path, output: Path, headers: str) -> list[str]:
        flags = self._flags(unit, headers)
        fast = not emulator.FAST_MATH.isdisjoint(self.cuda_cflags)
        body = emulator.translate(unit.body, fast) if unit.language == "cuda" else unit.body
        prelude = unit.prelude
        if headers == "full":
            prelude = "#include <dice/full_emulated.h>\n" + prelude
        elif unit.language == "cuda":
            prelude = "#include <cuda_runtime.h>\n" + prelude  # nvcc includes it unasked
        # Without implicit headers the source includes its own, which a header in front must not replace.
        shared = self.shared if unit.prelude and not self._user_flags(unit) else None
        if self.sanitize and unit.language == "cuda":  # no header is precompiled for this
            return host_command(prelude, body, [*flags, *self._races()], source, output, None)
        return host_command(prelude, body, flags, source, output, shared)

    def _races(self) -> list[str]:
        return [flag for flag in emulator.compile_flags(sanitize=True) if flag not in emulator.compile_flags()]

    def _user_flags(self, unit: Unit) -> list[str]:
        """The user's definitions and language standard, and that lambdas may be the device's; optimisation is the
        emulator's own affair. What is compiled with any of these takes no precompiled header."""
        flags = self.cuda_cflags if unit.language == "cuda" else self.cflags
        found = [flag for flag in flags if flag.startswith(("-D", "-U__CUDA_NO", "-std"))]
        if unit.language == "cuda" and any(flag.lstrip("-") in EXTENDED_LAMBDA for flag in flags):
            found.append("-D__CUDACC_EXTENDED_LAMBDA__=1")
        return found

    def _flags(self, unit: Unit, headers: str) -> list[str]:
        user = self._user_flags(unit)
        base = [flag for flag in emulator.compile_flags() if not flag.startswith(("-Wl", "-std"))]
        chosen = standard(tuple(user), headers)
        cuda = [*NVCC_DEFINES, "-DDICE_EMULATED_CUDA"] if unit.language == "cuda" else []
        if headers == "full":
            full = ["-DDICE_FULL_HEADERS", *module_name(headers)]
            includes = full + include_flags(CUDA_API_HEADERS, *torch_includes(), emulator.include_dir, SHADOW_HEADERS)
        else:
            includes = include_flags(SHADOW_HEADERS, CUDA_API_HEADERS, emulator.include_dir)
        return [*base, *chosen, *hidden(headers), "-DDICE_EMULATED", *quickly(headers), *cuda, *user, *includes]

    def link(self, objects: list[Path], output: Path, headers: str) -> list[str]:
        link_flags = [flag for flag in emulator.compile_flags(self.sanitize) if flag.startswith("-Wl")]
        below = torch_libraries(cuda=False) if headers == "full" else [self._support()]
        # Behind what takes memory by it: a linker may leave out what nobody has asked for yet.
        libraries = [*below, str(self._runtime())]
        return [
            host_compiler(),
            "-shared",
            *link_flags,
            *map(str, objects),
            *libraries,
            "-o",
            str(output),
        ]

    def _support(self) -> str:
        ours = replace(self, cflags=(), cuda_cflags=())
        return str(support(ours._flags(Unit("cpp", "", ""), "quick"), self.shared))

    def _runtime(self) -> Path:
        return emulator.runtime(self.shared.cache_dir)
