"""Command lines of the two backends: a unit to an object file, object files to a library."""

from __future__ import annotations

import contextlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from dice.verify import emulator
from dice.verify.cache import Cache, content_key
from dice.verify.compiler_process import run_all
from dice.verify.scratch import is_crowded_out
from dice.verify.toolchain import (
    CUDA_API_HEADERS,
    HIDDEN_SYMBOLS,
    NVCC_DEFINES,
    SHADOW_HEADERS,
    Backend,
    ToolchainError,
    cuda_toolkit,
    host_compiler,
    host_compiler_version,
    torch_folder,
    torch_includes,
)
from dice.verify.units import Unit, strip_comments

# The functions that nvcc's generated code launches kernels with, in CUDA 12 and in CUDA 13, and what they need.
_LAUNCHES = ("cudaLaunchKernel", "__cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cudaLaunchKernelExC")
_KERNELS = ("__cudaRegisterFunction", "__cudaGetKernel")
# May copy to the host.
_COPIES = tuple(f"cudaMemcpy{kind}{how}" for kind in ("", "2D", "FromSymbol") for how in ("", "Async"))
WRAPPED = (*_LAUNCHES, *_KERNELS, *_COPIES)

# What a module compiled against PyTorch's own headers and pybind11 is called inside; its file says which it is.
FULL_MODULE = "dice_extension"
SIZES = "sizes"
HEADER_TIMEOUT_S = 300.0  # PyTorch's own headers take half a minute and are precompiled once


class SharedMissing(Exception):
    """Something that many builds share is not there yet, and this process may not make it. The message names it."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What many builds use, kept below `cache_dir`: precompiled headers, the support object.

    Only a trusted process `makes` what is missing: what hostile sources are compiled with must not come from a process
    that compiles them. So no part may depend on what sources choose: their flags, or their texts.
    """

    cache_dir: Path
    makes: bool = True

    def folder(self, what: str, make: Callable[[Path], list[str]], parts: list[str]) -> Path:
        """Folder filled by the command that `make` returns, once for each `parts` and toolchain. `what` it is goes
        into messages."""
        cache = Cache(self.cache_dir / "headers")
        key = content_key([*parts, host_compiler_version(), torch_version(), shadow_hash(), emulator_hash()])
        entry = cache.find(key)
        if entry is not None and (not self.makes or _is_whole(entry)):
            return entry
        if not self.makes:
            raise SharedMissing(what)
        if entry is not None:
            cache.discard(key)
        with cache.scratch() as scratch:
            folder = scratch / "result"
            folder.mkdir()
            (finished,) = run_all([make(folder)], scratch, HEADER_TIMEOUT_S)
            if finished.status != 0 and is_crowded_out(scratch):
                raise ToolchainError(f"There is no space left on the disk of {self.cache_dir} for what builds share.")
            if finished.status != 0:
                raise ToolchainError(
                    f"The C++ compiler cannot read the headers of extensions: {finished.log.strip()[:500]}"
                )
            (folder / SIZES).write_text(json.dumps(_sizes(folder)))
            return cache.publish(key, folder)


def _is_whole(folder: Path) -> bool:
    """Whether no file was cut short: what is wrong with a shared file would count against every kernel."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads((folder / SIZES).read_text()) == _sizes(folder))
    return False


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != SIZES}


class Compiler(ABC):
    """How one backend compiles, for one architecture and one set of user flags."""

    backend: Backend

    @property
    @abstractmethod
    def identity(self) -> str:
        """Everything but the sources that decides the result."""

    @abstractmethod
    def command(self, unit: Unit, source: Path, output: Path, headers: str) -> list[str]:
        """Writes the unit beside `source` and returns the command that compiles it to `output`."""

    @abstractmethod
    def link(self, objects: list[Path], output: Path, headers: str) -> list[str]: ...


def compiler_for(
    backend: Backend,
    arch: str,
    shared: Shared,
    cflags: tuple[str, ...],
    cuda_cflags: tuple[str, ...],
    sanitize: bool = False,
) -> Compiler:
    """`sanitize`: what it builds can be looked at by the sanitizers, and says which lines its code comes from."""
    if backend == "cuda":
        return CudaCompiler(shared, arch, cflags, (*cuda_cflags, *["-lineinfo"] * sanitize))
    return EmulatedCompiler(shared, cflags, cuda_cflags, sanitize)


# ---- CUDA ------------------------------------------------------------------------------------------------------------


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
        folders = ours if headers == "slim" else (*torch_includes(), SHADOW_HEADERS)
        includes = _include_flags(*folders, cuda_toolkit().home / "include")
        if unit.language == "cpp":
            flags = [
                "-fPIC",
                "-w",
                *_hidden(headers),
                *_module_name(headers),
                *_standard(self.cflags, unit, headers),
                *self.cflags,
                *includes,
            ]
            shared = None if self.cflags else self.shared
            return host_command(unit.prelude, unit.body, flags, source, output, shared)
        path = _write(
            source.with_suffix(".cu"),
            _used_ops(unit) + unit.prelude + unit.body + '#line 1 "launches"\n#include <dice/launches.h>\n',
        )
        number = self.arch.removeprefix("sm_")
        host = ",".join(("-fPIC", "-w", *_hidden(headers)))
        return [
            str(cuda_toolkit().nvcc),
            "-ccbin",
            host_compiler(),
            "-w",
            f"-gencode=arch=compute_{number},code=sm_{number}",
            *NVCC_DEFINES,
            *_module_name(headers),
            "--expt-relaxed-constexpr",
            *_leave_out(unit),
            f"-Xcompiler={host}",
            *_standard(self.cuda_cflags, unit, headers),
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
        flags = [*self._host_flags(unit), *user]
        shared = None if user or not unit.prelude else self.shared
        return host_command("#include <dice/split.h>\n" + unit.prelude, unit.body, flags, source, output, shared)

    def _host_flags(self, unit: Unit) -> list[str]:
        includes = _include_flags(SHADOW_HEADERS, CUDA_API_HEADERS, cuda_toolkit().home / "include")
        standard = _standard((*self.cflags, *self.cuda_cflags), unit, "slim")
        return ["-fPIC", "-w", *HIDDEN_SYMBOLS, *NVCC_DEFINES, *standard, *includes]

    def split_device(self, unit: Unit, source: Path, output: Path) -> list[str]:
        """Command for the device's half of a unit, to a fatbin."""
        lists = _used_ops(unit) if unit.prelude else ""
        path = _write(source.with_suffix(".cu"), lists + unit.prelude + unit.body)
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
            *_leave_out(unit),
            *_standard(self.cuda_cflags, unit, "slim"),
            *self.cuda_cflags,
            *_include_flags(SHADOW_HEADERS, CUDA_API_HEADERS),
            str(path),
            "-o",
            str(output),
        ]

    def split_link(self, objects: list[Path], output: Path) -> list[str]:
        """Command that joins the halves; `objects` include the table of `device_code`."""
        source = SHADOW_HEADERS / "dice" / "split.cpp"

        def make(folder: Path) -> list[str]:
            flags = ["-fPIC", "-w", "-std=c++17", *HIDDEN_SYMBOLS]
            includes = _include_flags(SHADOW_HEADERS, cuda_toolkit().home / "include")
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
        below = _torch_libraries(cuda=True) if headers == "full" else [self._support()]
        cuda = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lcudart"]
        return [host_compiler(), "-shared", *map(str, objects), *wraps, *below, *cuda, "-o", str(output)]

    def _support(self) -> str:
        flags = ["-fPIC", "-w", "-std=c++17", *HIDDEN_SYMBOLS, *_include_flags(SHADOW_HEADERS)]
        return str(support(flags, self.shared))


# ---- emulation -------------------------------------------------------------------------------------------------------


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
        body = emulator.translate(unit.body) if unit.language == "cuda" else unit.body
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
        """The user's definitions and language standard; optimisation is the emulator's own affair."""
        flags = self.cuda_cflags if unit.language == "cuda" else self.cflags
        return [flag for flag in flags if flag.startswith(("-D", "-U__CUDA_NO", "-std"))]

    def _flags(self, unit: Unit, headers: str) -> list[str]:
        user = self._user_flags(unit)
        base = [flag for flag in emulator.compile_flags() if not flag.startswith(("-Wl", "-std"))]
        standard = _standard(tuple(user), unit, headers)
        cuda = [*NVCC_DEFINES, "-DDICE_EMULATED_CUDA"] if unit.language == "cuda" else []
        if headers == "slim":
            includes = _include_flags(SHADOW_HEADERS, CUDA_API_HEADERS, emulator.include_dir)
        else:
            full = ["-DDICE_FULL_HEADERS", *_module_name(headers)]
            includes = full + _include_flags(CUDA_API_HEADERS, *torch_includes(), emulator.include_dir, SHADOW_HEADERS)
        return [*base, *standard, *_hidden(headers), "-DDICE_EMULATED", *cuda, *user, *includes]

    def link(self, objects: list[Path], output: Path, headers: str) -> list[str]:
        link_flags = [flag for flag in emulator.compile_flags(self.sanitize) if flag.startswith("-Wl")]
        below = _torch_libraries(cuda=False) if headers == "full" else [self._support()]
        return [
            host_compiler(),
            "-shared",
            *link_flags,
            *map(str, objects),
            str(self._runtime()),
            *below,
            "-o",
            str(output),
        ]

    def _support(self) -> str:
        ours = replace(self, cflags=(), cuda_cflags=())
        return str(support(ours._flags(Unit("cpp", "", ""), "slim"), self.shared))

    def _runtime(self) -> Path:
        return emulator.runtime(self.shared.cache_dir)


# ---- shared ----------------------------------------------------------------------------------------------------------


def host_command(
    prelude: str, body: str, flags: list[str], source: Path, output: Path, shared: Shared | None
) -> list[str]:
    """Compile with g++. The prelude comes from a precompiled header in `shared`; None: it is compiled each time,
    because the user's own flags may change what it says."""
    if shared is None or not prelude:
        path = _write(source.with_suffix(".cpp"), prelude + body)
        return [host_compiler(), *flags, "-c", str(path), "-o", str(output)]
    path = _write(source.with_suffix(".cpp"), body)
    header = _precompiled(prelude, flags, shared)
    return [host_compiler(), *flags, "-include", str(header), "-c", str(path), "-o", str(output)]


def _precompiled(prelude: str, flags: list[str], shared: Shared) -> Path:
    """A header that holds the prelude, beside its precompiled form `.gch`, which g++ prefers; made on first use."""

    def make(folder: Path) -> list[str]:
        header = _write(folder / "prelude.h", prelude)
        return [host_compiler(), *flags, "-x", "c++-header", str(header), "-o", str(folder / "prelude.h.gch")]

    what = f"the precompiled {' '.join(prelude.split())} under {' '.join(flags)}"
    return shared.folder(what, make, [prelude, *flags]) / "prelude.h"


def support(flags: list[str], shared: Shared) -> Path:
    """Object file with the bodies of the shadow headers (`dice/support.cpp`), linked into every extension."""
    source = SHADOW_HEADERS / "dice" / "support.cpp"

    def make(folder: Path) -> list[str]:
        return [host_compiler(), *flags, "-O2", "-c", str(source), "-o", str(folder / "support.o")]

    return shared.folder("support.o", make, ["support", *flags]) / "support.o"


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


def _include_flags(*folders: Path) -> list[str]:
    return [f"-I{folder}" for folder in folders]


def _hidden(headers: str) -> tuple[str, ...]:
    return HIDDEN_SYMBOLS if headers == "slim" else ()


def _module_name(headers: str) -> list[str]:
    return [f"-DTORCH_EXTENSION_NAME={FULL_MODULE}"] if headers == "full" else []


@cache
def default_standard() -> str:
    """The language standard that this version of PyTorch compiles extensions with: the newest its builder names."""
    text = (torch_folder() / "utils" / "cpp_extension.py").read_text(encoding="utf-8")
    return f"-std=c++{max(re.findall(r'-std=c[+][+]([0-9]{2})', text), default='17')}"


def _standard(flags: tuple[str, ...], unit: Unit, headers: str) -> list[str]:
    """PyTorch's standard; against the shadow headers C++17 for sources with nothing newer in them, since nvcc is a
    quarter faster in it."""
    if any(flag.startswith("-std") for flag in flags):
        return []
    return [default_standard() if headers == "full" or _CXX20.search(unit.body) else "-std=c++17"]


_CXX20 = re.compile(
    r"\brequires\b|\bconcept\b|<=>|\bconst(eval|init)\b|\bco_(await|yield|return)\b|\busing\s+enum\b"
    r"|\]\s*<\s*(typename|class)\b|\[\[\s*(un)?likely|[{,]\s*\.\w+\s*=|[(,]\s*(const\s+)?auto\s*[&*]*\s*\w+\s*[,)]"
    r"|\bstd::(span|bit_cast|numbers|ranges|ssize|source_location|format|remove_cvref|type_identity|midpoint|popcount"
    r"|count[lr]_|has_single_bit|bit_|barrier|latch|jthread|atomic_ref)|\b(starts_with|ends_with|contains)\b"
)


def _torch_libraries(cuda: bool) -> list[str]:
    folder = torch_folder() / "lib"
    names = ["c10", "torch_cpu", "torch", "torch_python"] + (["c10_cuda", "torch_cuda"] if cuda else [])
    present = [name for name in names if (folder / f"lib{name}.so").exists()]
    return [f"-L{folder}", f"-Wl,-rpath,{folder}", *(f"-l{name}" for name in present)]


# Words of std:: that the small set of standard headers in dice/base.h covers.
_COVERED = frozenset(
    """
    vector string tuple pair make_tuple make_pair get tie optional nullopt make_optional move forward swap array
    unique_ptr shared_ptr make_unique make_shared numeric_limits size_t int64_t int32_t uint32_t uint64_t uint8_t int8_t
    runtime_error invalid_argument exception logic_error out_of_range to_string sqrt exp log pow abs fabs floor ceil
    fmax fmin tanh cos sin isnan isinf max min is_same is_same_v enable_if enable_if_t conditional conditional_t
    is_floating_point is_integral initializer_list memcpy memset nullptr_t string_view declval decay_t
    """.split()  # noqa: SIM905
)


def _leave_out(unit: Unit) -> list[str]:
    """Leave out expensive parts of the headers when the source uses nothing of them: nvcc reads all thrice."""
    text = strip_comments(unit.body)
    used = set(re.findall(r"\bstd\s*::\s*(\w+)", text))
    plain = re.search(r"\busing\s+namespace\s+std\b|\busing\s+std::|<<\s*std::", text)
    std = ["-DDICE_FEW_STD_HEADERS"] if used <= _COVERED and not plain else []
    half = ["-DDICE_NO_CUDA_HALF"] if not re.search(r"half|bf16|bfloat|fp16|float16", text, re.I) else []
    return std + half


def _used_ops(unit: Unit) -> str:
    """Definitions of the operator lists of `dice/op_names.h`, with only the names that occur in the source."""
    words = set(re.findall(r"\w+", unit.body)) | _OPS_OF_HEADERS
    return "".join(
        f"#define {table}(_) " + " ".join(f"_({name})" for name in names if name in words) + "\n"
        for table, names in _op_tables().items()
    )


_OPS_OF_HEADERS = frozenset({"add_", "sub_", "mul_", "div_", "select"})


@cache
def _op_tables() -> dict[str, list[str]]:
    text = (SHADOW_HEADERS / "dice" / "op_names.h").read_text()
    tables = re.findall(r"#define (DICE_\w+_OPS)\(_\)((?:.*\\\n)*.*)", text)
    return {table: re.findall(r"_\((\w+)\)", names) for table, names in tables}


@cache
def torch_version() -> str:
    import torch

    return torch.__version__


@cache
def shadow_hash() -> str:
    return _tree_hash(SHADOW_HEADERS) + _tree_hash(CUDA_API_HEADERS)


@cache
def emulator_hash() -> str:
    return _tree_hash(Path(emulator.__file__).parent)


@cache
def recipe_hash() -> str:
    """Hash of the code that decides what is compiled and how."""
    folder = Path(__file__).parent
    names = [
        "build",
        "compile_commands",
        "device_code",
        "diagnostics",
        "sources",
        "split_build",
        "split_source",
        "toolchain",
        "units",
    ]
    return content_key([(folder / f"{name}.py").read_bytes() for name in names])


def _tree_hash(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return content_key([part for path in files for part in (os.path.relpath(path, folder), path.read_bytes())])
