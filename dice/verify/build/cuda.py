"""Command lines of the CUDA backend: nvcc for device code, the host compiler for all else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dice.verdict import Backend
from dice.verify.build.compiler import Compiler
from dice.verify.build.flags import (
    _lists,
    hidden,
    host_command,
    include_flags,
    leave_out,
    module_name,
    quickly,
    standard,
    torch_libraries,
)
from dice.verify.build.shared import Shared, shadow_hash, support, torch_version, write
from dice.verify.build.units import Unit
from dice.verify.toolchain import (
    CUDA_API_HEADERS,
    HIDDEN_SYMBOLS,
    NVCC_DEFINES,
    SHADOW_HEADERS,
    ToolchainError,
    cuda_toolkit,
    host_compiler,
    host_compiler_version,
    torch_includes,
)

# The functions that nvcc's generated code launches kernels with, in CUDA 12 and in CUDA 13, and what they need.
_LAUNCHES = ("cudaLaunchKernel", "__cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaLaunchKernelExC")


_KERNELS = ("__cudaRegisterFunction", "__cudaGetKernel")


# May copy to the host.
_COPIES = tuple(f"cudaMemcpy{kind}{how}" for kind in ("", "2D", "FromSymbol") for how in ("", "Async"))


_FILLS = ("cudaMemset", "cudaMemsetAsync", "cudaMemset2D", "cudaMemset2DAsync")
# Answered without a device while tensors have no data.
_QUESTIONS = (
    *("cudaGetLastError", "cudaPeekAtLastError", "cudaDeviceSynchronize", "cudaStreamSynchronize"),
    *("cudaGetDevice", "cudaSetDevice", "cudaFuncSetAttribute", "cudaFuncSetCacheConfig", "cudaFuncGetAttributes"),
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
)
# CUB and Thrust would else look for a profiler to report to, by functions that no library may call beside data.
_NO_PROFILER = "-DCCCL_DISABLE_NVTX"
WRAPPED = (*_LAUNCHES, *_KERNELS, *_COPIES, *_FILLS, *_QUESTIONS)


@dataclass(frozen=True, slots=True)
class CudaCompiler(Compiler):
    shared: Shared
    arch: str
    cflags: tuple[str, ...]
    cuda_cflags: tuple[str, ...]
    backend: Backend = "cuda"

    @property
    def identity(self) -> str:
        versions = cuda_toolkit().version, host_compiler_version(), torch_version()
        return repr((self.backend, self.arch, self.cflags, self.cuda_cflags, versions, shadow_hash()))

    def command(self, unit: Unit, source: Path, output: Path, headers: str) -> list[str]:
        ours = (SHADOW_HEADERS, CUDA_API_HEADERS)
        # `dice/launches.h` is ours in either case; every other name must be PyTorch's own in a full build.
        folders = (*torch_includes(), SHADOW_HEADERS) if headers == "full" else ours
        includes = include_flags(*folders, cuda_toolkit().home / "include")
        if unit.language == "cpp":
            flags = [
                "-fPIC",
                "-w",
                *hidden(headers),
                *module_name(headers),
                *quickly(headers),
                *standard(self.cflags, headers),
                *self.cflags,
                *includes,
            ]
            shared = None if self.cflags else self.shared
            return host_command(unit.prelude, unit.body, flags, source, output, shared)
        path = write(
            source.with_suffix(".cu"),
            _lists(unit, headers) + unit.prelude + unit.body + '#line 1 "launches"\n#include <dice/launches.h>\n',
        )
        number = self.arch.removeprefix("sm_")
        host = ",".join(("-fPIC", "-w", *hidden(headers)))
        return [
            str(cuda_toolkit().nvcc),
            "-ccbin",
            host_compiler(),
            "-w",
            f"-gencode=arch=compute_{number},code=sm_{number}",
            *NVCC_DEFINES,
            _NO_PROFILER,
            *module_name(headers),
            "--expt-relaxed-constexpr",
            *quickly(headers),
            *leave_out(unit, headers),
            f"-Xcompiler={host}",
            *standard(self.cuda_cflags, headers),
            *self.cuda_cflags,
            *includes,
            "-c",
            str(path),
            "-o",
            str(output),
        ]

    def split_host(self, unit: Unit, source: Path, output: Path) -> list[str]:
        """Command for the host's half of a unit, whose body is `split_source.host_text`."""
        user = [flag for flag in (*self.cflags, *self.cuda_cflags) if flag.startswith(("-D", "-std"))]
        flags = [*self._host_flags(), *user]
        shared = None if user or not unit.prelude else self.shared
        return host_command("#include <dice/split.h>\n" + unit.prelude, unit.body, flags, source, output, shared)

    def _host_flags(self) -> list[str]:
        includes = include_flags(SHADOW_HEADERS, CUDA_API_HEADERS, cuda_toolkit().home / "include")
        chosen = standard((*self.cflags, *self.cuda_cflags), "quick")
        return ["-fPIC", "-w", *HIDDEN_SYMBOLS, *NVCC_DEFINES, *quickly("quick"), *chosen, *includes]

    def split_device(self, unit: Unit, source: Path, output: Path) -> list[str]:
        """Command for the device's half of a unit, to a fatbin."""
        lists = _lists(unit, "quick") if unit.prelude else ""
        path = write(source.with_suffix(".cu"), lists + unit.prelude + unit.body)
        number = self.arch.removeprefix("sm_")
        return [
            str(cuda_toolkit().nvcc),
            "-fatbin",
            "-no-compress",
            "-ccbin",
            host_compiler(),
            "-w",
            f"-gencode=arch=compute_{number},code=sm_{number}",
            *NVCC_DEFINES,
            "--expt-relaxed-constexpr",
            *quickly("quick"),
            *leave_out(unit, "quick"),
            *standard(self.cuda_cflags, "quick"),
            *self.cuda_cflags,
            *include_flags(SHADOW_HEADERS, CUDA_API_HEADERS),
            str(path),
            "-o",
            str(output),
        ]

    def split_link(self, objects: list[Path], output: Path) -> list[str]:
        """Command that joins the halves; `objects` include the table of `object_files`."""
        source = SHADOW_HEADERS / "dice" / "split.cpp"

        def make(folder: Path) -> list[str]:
            flags = ["-fPIC", "-w", "-std=c++17", *HIDDEN_SYMBOLS]
            includes = include_flags(SHADOW_HEADERS, cuda_toolkit().home / "include")
            return [host_compiler(), *flags, *includes, "-O2", "-c", str(source), "-o", str(folder / "split.o")]

        part = self.shared.folder("split.o", make, ["split", cuda_toolkit().version]) / "split.o"
        return self.link([*objects, part], output, "slim")

    def link(self, objects: list[Path], output: Path, headers: str) -> list[str]:
        folder = next(
            (path for path in (cuda_toolkit().home / "lib64", cuda_toolkit().home / "lib") if path.is_dir()), None
        )
        if folder is None:
            raise ToolchainError("The CUDA toolkit has no lib64 folder: reinstall it.")
        wraps = [f"-Wl,--wrap={name}" for name in WRAPPED]
        below = torch_libraries(cuda=True) if headers == "full" else [self._support()]
        cuda = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lcudart"]
        return [host_compiler(), "-shared", *map(str, objects), *wraps, *below, *cuda, "-o", str(output)]

    def _support(self) -> str:
        flags = ["-fPIC", "-w", "-std=c++17", *HIDDEN_SYMBOLS, *include_flags(SHADOW_HEADERS)]
        return str(support(flags, self.shared))
