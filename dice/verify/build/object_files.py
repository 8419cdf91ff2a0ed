"""What is inside object files and device code: the names of kernels and variables, the table that joins the two, and
what a library takes from outside of itself.

A program by construction (`ipc/program.py`) says all that is computed; a library that opened files, started threads,
loaded others or asked the time could compute what no program says. So a library is loaded beside data only where each
function and object that its sources leave to the linker is on a list: what our own headers use, CUDA's runtime, and the
part of the C and C++ libraries that computes, formats and takes memory.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dice.verify.build.sources import Foreign, Sources, inner_word

_FUNCTION, _OBJECT, _THREAD_LOCAL = 2, 1, 6
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


# ---- what a library takes from outside ------------------------------------------------------------------------------

# Of the stable part of CPython's interface: what `include/dice/python.h` declares.
_PYTHON = (
    r"_Py_NoneStruct|Py_(Inc|Dec)Ref|PyExc_\w+|PyErr_(Occurred|Clear|SetString|SetObject)|PyGILState_\w+"
    r"|PyObject_(Str|IsTrue|IsInstance|CallFunctionObjArgs|GetAttrString|SetAttrString|Type)|PyBool_FromLong"
    r"|PyLong_\w+|PyNumber_(Index|Long|Float|Check)|PyFloat_\w+|PyUnicode_(FromStringAndSize|AsUTF8AndSize)"
    r"|PyTuple_(New|SetItem|GetItem|Size)|PyList_(New|SetItem)|PySequence_(Size|GetItem)"
    r"|PyDict_(New|SetItemString|GetItemString|Size)|PyCapsule_(New|GetPointer)|PyCMethod_New|PyType_GetFlags"
    r"|PyEval_(SaveThread|RestoreThread)"
)
_C = (
    r"mem(cpy|move|set|cmp|chr|pcpy)|str(len|cmp|ncmp|chr|rchr|str|cpy|ncpy|cat|dup|nlen|tol|toul|toll|tod|tof|spn|cspn|error)"
    r"|__(isoc(99|23)_)?(strto(l|ul|ll|ull|d|f|ld)|wcsto\w+)(_l|_internal)?|__(new|free|use)locale|__(mem|str|v?s?n?f?printf)\w*_chk|v?s?n?f?printf|fflush|f?putc|f?puts|putchar|fwrite|std(out|err)"
    r"|malloc|calloc|realloc|free|atexit|(posix_mem|aligned_)align|aligned_alloc|abort|assert|__assert_fail|abs|labs|div|ldiv"
    r"|qsort|bsearch|rand(_r)?|srand|to(upper|lower)|is(alpha|digit|space|alnum|upper|lower|punct)|__ctype_\w+"
    r"|pthread_mutex_(un)?lock|pthread_once|__once_proxy|exit|__pthread_key_create|getpagesize"
    r"|__errno_location|__stack_chk_fail|__libc_single_threaded|__tls_get_addr|__gmon_start__|_ITM_\w+"
    r"|__cxa_\w+|__gxx_personality_v0|_Unwind_\w+|__dynamic_cast|__(u?div|u?mod|mul|popcount|clz|ctz|fix|float)\w*[sdt]i\w*"
)
_MATHS = (
    r"(a?(sin|cos|tan)h?|atan2|exp|exp2|expm1|exp10|log|log2|log10|log1p|pow|sqrt|cbrt|hypot|erf|erfc|[lt]gamma|fma|fmod"
    r"|fmin|fmax|fabs|fdim|ceil|floor|round|l?lround|l?lrint|rint|nearbyint|trunc|modf|frexp|ldexp|scalbn|ilogb|logb"
    r"|remainder|remquo|copysign|nan|nextafter|j[01n]|y[01n]|sincos)[fl]?(_finite)?|__\w+_finite|__fpclassify[fl]?"
    r"|__is(nan|inf)[fl]?|__signbit[fl]?"
)
_CUDA = r"cuda[A-Z]\w+|__cuda\w+|cublas\w+|curand\w+|cufft\w+"
_OURS = (
    r"aoti_torch_\w+|dice_\w+|threadIdx|blockIdx|blockDim|gridDim|warpSize|__tsan_\w+|_ZN8dice_emu\w+|_ZN4dice\w+"
    r"|_ZTIN4dice\w+|__wrap_(malloc|free|_Z[nd]\w+)"
)
_CXX = r"_Zn[wa]m\w*|_Zd[la]Pv\w*|_ZT[ISVTv]\w*|_ZN?K?S\w+|_ZNK?S\w+|_ZN9__gnu_cxx\w+|_ZGVNS\w+|_ZGVNKS\w+"
_LINKER = r"_GLOBAL_OFFSET_TABLE_|__dso_handle|_DYNAMIC|__(pre)?init_array_\w+|DW\.ref\.\w+"
_SUPPORT = r"_ZN?K?\w*(2at|3c10|5torch|6caffe2|4dice|10dice_split|13dice_launches)\w*|__(real|wrap)_(__)?cuda\w+"
_PYTORCH = re.compile(r"_Z\w*?(2at|3c10|5torch|6caffe2)(?![a-z])")
_NO_NAMES = (3, 4)  # kinds of symbols that stand for sections and files
_ALLOWED = re.compile("|".join((_PYTHON, _C, _MATHS, _CUDA, _OURS, _CXX, _LINKER, _SUPPORT)))
# What of the C++ library does more: threads, files, clocks, random devices, plug-ins of the locale.
_BARRED = re.compile(
    r"_Z\w*(6thread|10filesystem|fstream|filebuf|6chrono|13random_device|18condition_variable|7promise|6future|5async|6jthread)\w*"
    r"|cudaIpc\w+|cuda(Import|External)\w*|cudaGetDriverEntryPoint\w*|cudaLibrary\w+|cudaModule\w+"
)


def foreign(objects: Iterable[Path], library: Path, sources: Sources) -> Foreign:
    """Why a library may not run where there is data.

    `objects`: what its sources were compiled to. What the linker added to them is ours, or the C++ library's.
    """
    word, objects = inner_word(sources), list(objects)
    kept = variable(objects)
    if word:
        why = f"its source has the word {word}, by which it could reach for the inside of its headers"
        return Foreign(why, word, kept)
    try:
        wanted: set[str] = set()
        defined: set[str] = set()
        for path in objects:
            for symbol in symbols(path.read_bytes()):
                if symbol.kind not in _NO_NAMES and symbol.name:
                    (defined if symbol.section else wanted).add(symbol.name)
        left = {one.name for one in symbols(library.read_bytes(), DYNAMIC_SYMBOLS) if not one.section}
    except (NotElf, OSError) as error:
        return Foreign(f"its library cannot be read: {error}", variable=kept)
    names = [name for name in wanted - defined if _BARRED.fullmatch(name) or not _ALLOWED.fullmatch(name)]
    names += [name for name in left if _PYTORCH.match(name)]  # our headers leave nothing of it to the dynamic linker
    said = ", ".join(name[:80] for name in sorted(names)[:8])
    why = f"its host code calls {said}: not on the list of what may be called beside data" if names else ""
    return Foreign(why, variable=kept)


# ---- what it keeps from call to call --------------------------------------------------------------------------------

_KEPT_IN = (".data", ".bss", ".tdata", ".tbss")
_READ_ONLY = ".data.rel.ro"
_KEPT_BY_US = re.compile(
    r"DW\.ref\..*|_ZStL8__ioinit|_Z(GV)?Z*N4dice\w+|\w*\ddice_\w+|dice_\w+|_ZN2at12_GLOBAL__N_17watchedE"
    r"|\w*__(nv|cuda|fat)\w*"
)
_KEPT_BY_LIBRARIES = re.compile(r"_Z(GV)?Z*N?K?(2at|3c10|5torch|6caffe2|8pybind11|St|S[absiod])\w*|_ZTV\w+")


def variable(objects: Iterable[Path], whole: bool = False) -> str:
    """The symbol of a variable that the sources keep from one call to the next, or that of its guard; "" for none.
    `whole`: they were compiled with PyTorch's own headers, which keep many."""
    with contextlib.suppress(NotElf, OSError):
        for path in objects:
            for one in symbols(path.read_bytes()):
                is_kept = one.kind in (_OBJECT, _THREAD_LOCAL) and one.section.startswith(_KEPT_IN)
                if not is_kept or one.section.startswith(_READ_ONLY) or _KEPT_BY_US.fullmatch(one.name):
                    continue
                if not whole or not _KEPT_BY_LIBRARIES.fullmatch(one.name):
                    return one.name
    return ""
