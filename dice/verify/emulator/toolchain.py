"""Where the headers are, which flags g++ gets, and the runtime library, built once for each of its contents."""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dice.verify.toolchain import ToolchainError, host_compiler, host_compiler_version, run_limited

log = logging.getLogger(__name__)
RUNTIME_TIMEOUT_S = 300.0
_HERE = Path(__file__).parent
include_dir: Path = _HERE / "include"

# What CUDA leaves less open than C++: wrapped integers, no type-based aliasing (kernels cast float* to
# float4*), fused multiply-add. Unique symbols would let two candidates share a template's static variables.
_SEMANTICS = (
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-gnu-unique",
    "-fno-semantic-interposition",
    "-fcheck-new",  # `new` gives a null pointer where a kernel finds its heap full
    # A float4 at an odd offset faults on a GPU; a CPU would load it piece by piece and say nothing.
    "-fsanitize=alignment",
    "-fsanitize-undefined-trap-on-error",
)

# What kernels take memory by, and give it back, which are the runtime's then (runtime/device_heap.cpp).
_HEAP = tuple(
    f"-Wl,--wrap={name}" for name in ("malloc", "free", "_Znwm", "_Znam", "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm")
)

# g++ reports every load and store to functions of ours (runtime/tsan.cpp); no sanitizer library is linked. Volatile
# accesses by name: warps in lockstep use them. Line tables, so that a finding names lines.
_RACES = (
    "-fsanitize=thread",
    "--param=tsan-distinguish-volatile=1",
    "--param=tsan-instrument-func-entry-exit=0",
    "-g1",
)
_RACES_LINK = ("-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset")


def compile_flags(sanitize: bool = False) -> list[str]:
    """Flags for a translated source; the caller adds the include path, `-shared`, and the runtime library.

    With `sanitize` the runtime can look for races in it (`dice_sanitize`), and it runs many times slower.
    """
    races = (*_RACES, *_RACES_LINK) if sanitize else ()
    general = ("-std=c++17", "-O1", "-fPIC", "-w", *_SEMANTICS, *_filling_flags(), *_machine_flags())
    return [*general, *races, "-Wl,-Bsymbolic", *_HEAP]


def runtime(cache_dir: Path) -> Path:
    """Path of libdice_emu.so below `cache_dir`, compiled on first use. Raises `ToolchainError`."""
    sources = sorted((_HERE / "runtime").glob("*.cpp"))
    headers = sorted((_HERE / "runtime").glob("*.h")) + sorted((include_dir / "dice_emu").glob("*.h"))
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=default", "-Wl,-z,nodelete"]
    return build_library("libdice_emu.so", sources, headers, flags, cache_dir)


def build_library(
    name: str, sources: Sequence[Path], headers: Sequence[Path], flags: Sequence[str], cache_dir: Path
) -> Path:
    """Compile `sources` into `cache_dir/<content hash>/name`; safe under concurrency and kill -9."""
    compiler = host_compiler()
    digest = hashlib.sha256("\0".join([host_compiler_version(), *flags]).encode())
    for path in (*sources, *headers):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    target = Path(cache_dir) / f"emulator-{digest.hexdigest()[:20]}" / name
    if target.exists():
        return target
    log.info("building %s", name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        output = Path(folder) / name
        command = [compiler, *map(str, sources), *flags, "-o", str(output)]
        try:
            done = run_limited(command, RUNTIME_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ToolchainError(f"{compiler} did not build {name} within {RUNTIME_TIMEOUT_S:g} s.") from None
        except OSError as error:
            raise ToolchainError(f"{compiler} could not be started: {error.strerror}.") from None
        if done.returncode != 0:
            raise ToolchainError(f"{compiler} could not build {name}: {done.stderr.strip()[-2000:]}")
        os.replace(output, target)
    return target


@cache
def _filling_flags() -> tuple[str, ...]:
    """What is declared and not set is the same in every run, and no plausible number: for a kernel's sum, and among the
    pointers of a structure that a launch fills in part. GCC has that since version 12."""
    versions: list[str] = re.findall(r"\b(\d+)\.\d+\.\d+", host_compiler_version())
    return ("-ftrivial-auto-var-init=pattern",) if versions and int(versions[-1]) >= 12 else ()


@cache
def _machine_flags() -> tuple[str, ...]:
    """Hardware fused multiply-add and half conversions where every machine of the last decade has them."""
    if platform.machine() != "x86_64":
        return ()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return ("-march=x86-64-v3",) if {"avx2", "fma", "f16c", "bmi2", "movbe"} <= set(line.split()) else ()
