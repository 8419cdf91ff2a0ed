"""What is inside object files and device code: the names of kernels and variables, and the table that joins the two."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FUNCTION, _OBJECT = 2, 1
_LOCAL = 0
_STUB_MARK = re.compile(r"_ZZ(.+)E11dice_kernel")  # the static variable of a stub: its name holds the stub's own
_PLAIN_NAME = re.compile(r"\d+(\w+)")


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str
    kind: int
    binding: int
    section: str  # "" when undefined
    size: int


class NotElf(Exception):
    """The file is no 64-bit little-endian ELF file."""


SYMBOLS, DYNAMIC_SYMBOLS = 2, 11  # kinds of tables: SHT_SYMTAB, SHT_DYNSYM


def symbols(data: bytes, kind: int = SYMBOLS) -> Iterator[Symbol]:
    """Symbols of a 64-bit ELF file, of all its tables of a kind. Raises `NotElf`."""
    try:
        yield from _symbols(data, kind)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise NotElf from error


def _symbols(data: bytes, kind: int) -> Iterator[Symbol]:
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotElf
    table, size, count, names_index = struct.unpack_from("<Q10xHHH", data, 0x28)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + index * size) for index in range(count)]
    sections = [_text(data, headers[names_index][4], header[0]) for header in headers]
    for header in headers:
        if header[1] != kind:
            continue
        strings = headers[header[6]][4]
        for offset in range(header[4], header[4] + header[5], 24):
            name, info, _, place, _, length = struct.unpack_from("<IBBHQQ", data, offset)
            section = sections[place] if 0 < place < count else ""
            yield Symbol(_text(data, strings, name), info & 15, info >> 4, section, length)


def _text(data: bytes, table: int, offset: int) -> str:
    start = table + offset
    return data[start : data.index(b"\0", start)].decode("latin-1")


@dataclass(frozen=True, slots=True)
class HostCode:
    """What an object file of the host compiler defines."""

    stubs: frozenset[str]  # kernels, by symbol
    variables: frozenset[str]


def read_host(path: Path) -> HostCode:
    """Raises `NotElf`."""
    functions: set[str] = set()
    variables: set[str] = set()
    marks: set[str] = set()
    for symbol in symbols(path.read_bytes()):
        mark = _STUB_MARK.fullmatch(symbol.name)
        if mark:
            marks.add(mark.group(1))
        elif symbol.section and symbol.binding != _LOCAL:
            (functions if symbol.kind == _FUNCTION else variables).add(symbol.name)
    return HostCode(frozenset(_stub_name(mark, functions) for mark in marks), frozenset(variables))


def _stub_name(mangled: str, functions: set[str]) -> str:
    """A local variable's name says `4kern` of the function that is `_Z4kernPf`, or plainly `kern` in extern "C"."""
    plain = _PLAIN_NAME.fullmatch(mangled)
    if plain and f"_Z{mangled}" not in functions:
        return plain.group(1)
    return f"_Z{mangled}"


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What device code (a fatbin with one uncompressed cubin) defines. Variables: name -> (size, is constant)."""

    kernels: frozenset[str]
    variables: dict[str, tuple[int, bool]]


def read_device(path: Path) -> DeviceCode:
    """Raises `NotElf`."""
    data = path.read_bytes()
    start = data.find(b"\x7fELF")
    kernels: set[str] = set()
    variables: dict[str, tuple[int, bool]] = {}
    for symbol in symbols(data[max(start, 0) :]):
        if symbol.section.startswith(".nv.constant0."):
            kernels.add(symbol.section.removeprefix(".nv.constant0."))
        elif symbol.kind == _FUNCTION and symbol.binding != _LOCAL and symbol.section == f".text.{symbol.name}":
            kernels.add(symbol.name)
        elif symbol.kind == _OBJECT and symbol.section.startswith((".nv.constant", ".nv.global")):  # local, all of them
            variables[symbol.name] = (symbol.size, symbol.section.startswith(".nv.constant"))
    return DeviceCode(frozenset(kernels), variables)


def table(host: HostCode, device: DeviceCode, fatbin: Path) -> str:
    """Assembler text that holds the device code and says which stub and which variable it belongs to."""
    lines = [".section .rodata", ".balign 16", *_hidden("dice_fatbin"), f'.incbin "{fatbin.name}"']
    names, kernels, variables = [], [], []
    for index, name in enumerate(sorted(device.kernels)):
        names += [f"dice_kernel_name{index}:", f'.asciz "{name}"']
        kernels.append(f".quad {name}, dice_kernel_name{index}")
    for index, name in enumerate(sorted(set(device.variables) & host.variables)):
        size, is_constant = device.variables[name]
        names += [f"dice_variable_name{index}:", f'.asciz "{name}"']
        variables.append(f".quad {name}, dice_variable_name{index}, {size}, {int(is_constant)}")
    lines += [*names, '.section .data,"aw"', ".balign 16", *_hidden("dice_kernels"), *kernels, ".quad 0, 0"]
    lines += [*_hidden("dice_variables"), *variables, ".quad 0, 0, 0, 0"]
    return "\n".join([*lines, '.section .note.GNU-stack,"",%progbits', ""])


def _hidden(name: str) -> list[str]:
    return [f".globl {name}", f".hidden {name}", f"{name}:"]
