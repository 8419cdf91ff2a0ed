"""A CUDA source built in two halves, each read once: the host's by the host compiler, the device's by nvcc.

nvcc itself reads everything three times, and the host compiler's precompiled headers are of no use to it. This takes
about a quarter of its time. Whatever does not go this way is left to nvcc.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from dice.verify import emulator
from dice.verify.build import split_source
from dice.verify.build.compiler_process import Finished
from dice.verify.build.cuda import CudaCompiler
from dice.verify.build.object_files import DeviceCode, HostCode, NotElf, read_device, read_host, table
from dice.verify.build.sources import LIBRARY
from dice.verify.build.units import CUDA_PRELUDE, CUDA_SOURCE, Unit, joined_unit, located, split_units

Run = Callable[[list[list[str]], Path], list[Finished]]

# What PyTorch's headers bring along that device code relies on.
_DEVICE_PRELUDE = "#include <cfloat>\n#include <climits>\n#include <cmath>\n#include <cstdint>\n"
_SYMBOL_FUNCTIONS = re.compile(r"cuda(Memcpy(To|From)|Get)Symbol")


def attempt(cpp: str, cuda: str, bindings: str, compiler: CudaCompiler, scratch: Path, run: Run) -> str | None:
    """Leave `LIBRARY` in `scratch` and return the log; None when nvcc must compile the source as a whole.

    Raises `NotCompiled`, and what `run` raises when the time is up.
    """
    try:
        return _Split(cpp, cuda, bindings, compiler, scratch, run).build()
    except (split_source.NotSplit, emulator.Unsupported, NotElf):
        return None


class NotCompiled(Exception):
    """A half does not compile. The whole source would hardly do so in the same language standard."""


class _Split:
    def __init__(self, cpp: str, cuda: str, bindings: str, compiler: CudaCompiler, scratch: Path, run: Run):
        self.cuda, self.compiler, self.scratch, self.run = cuda, compiler, scratch, run
        host = split_source.host_text(cuda)
        joined = joined_unit(cpp, host, bindings)
        self.units = [joined] if joined is not None else split_units(cpp, host, bindings)
        self.host_object, self.cpp_object, self.fatbin = (
            scratch / "host.o",
            scratch / "cpp.o",
            scratch / "device.fatbin",
        )

    def build(self) -> str:
        host = [self.compiler.split_host(self.units[0], self.scratch / "host", self.host_object)]
        if len(self.units) > 1:
            host.append(self.compiler.command(self.units[1], self.scratch / "cpp", self.cpp_object, "quick"))
        text = split_source.device_text(self.cuda)
        if text is None:
            self._run([*host, self._whole_device()])
        elif split_source.has_templates(text):
            self._run(host)
            self._device_or_whole(text + self._instantiations())
        else:
            self._run_both(host, text)
        return self._link()

    def _run(self, commands: list[list[str]]) -> None:
        if any(finished.status != 0 for finished in self.run(commands, self.scratch)):
            raise NotCompiled

    def _run_both(self, host: list[list[str]], text: str) -> None:
        *results, device = self.run([*host, self._device(text)], self.scratch)
        if any(result.status != 0 for result in results):
            raise NotCompiled
        if device.status != 0:
            self._run([self._whole_device()])

    def _device_or_whole(self, text: str) -> None:
        (finished,) = self.run([self._device(text)], self.scratch)
        if finished.status != 0 or not self._complete():
            self._run([self._whole_device()])

    def _device(self, text: str) -> list[str]:
        unit = Unit("cuda", "", _DEVICE_PRELUDE + located(text, CUDA_SOURCE))
        return self.compiler.split_device(unit, self.scratch / "device", self.fatbin)

    def _whole_device(self) -> list[str]:
        text = split_source.whole_device_text(self.cuda)
        unit = Unit("cuda", CUDA_PRELUDE, located(text, CUDA_SOURCE))
        return self.compiler.split_device(unit, self.scratch / "device", self.fatbin)

    def _instantiations(self) -> str:
        """Explicit instantiations of the kernel templates that the host's half uses."""
        lines = []
        for symbol in sorted(read_host(self.host_object).stubs):
            name = _demangle(symbol)
            if name.startswith("void ") and "<" in name.split("(", 1)[0]:
                lines.append(f"template __global__ {name};")
        return "\n".join(["", '#line 1 "instantiations"', *lines, ""])

    def _complete(self) -> bool:
        return read_host(self.host_object).stubs == read_device(self.fatbin).kernels

    def _link(self) -> str:
        host, device = read_host(self.host_object), read_device(self.fatbin)
        _check(host, device, self.cuda)
        assembler = self.scratch / "table.s"
        assembler.write_text(table(host, device, self.fatbin))
        objects = [self.host_object, assembler] + ([self.cpp_object] if len(self.units) > 1 else [])
        self._run([self.compiler.split_link(objects, self.scratch / LIBRARY)])
        return ""


def _check(host: HostCode, device: DeviceCode, cuda: str) -> None:
    """Each kernel that one half knows, the other must know by the same name."""
    if host.stubs != device.kernels:
        raise split_source.NotSplit
    if _SYMBOL_FUNCTIONS.search(cuda) and not set(device.variables) <= host.variables:
        raise split_source.NotSplit


def _demangle(symbol: str) -> str:
    runtime = _cxx_runtime()
    status = ctypes.c_int(0)
    pointer = runtime.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not pointer:
        return symbol
    text = ctypes.string_at(pointer).decode()
    _libc().free(ctypes.c_void_p(pointer))
    return text


@cache
def _cxx_runtime() -> ctypes.CDLL:
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    return library


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
