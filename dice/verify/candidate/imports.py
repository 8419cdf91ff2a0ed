"""What a library takes from outside of itself, and the list of what one may take that runs beside data.

A program by construction (`ipc/program.py`) says all that is computed; a library that opened files, started threads,
loaded others or asked the time could compute what no program says. So a library is loaded only where each function and
object that its dynamic linker would look for is on the list: what our own headers use, CUDA's runtime, and the part of
the C and C++ libraries that computes, formats and takes memory.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

_DYNAMIC_SYMBOLS, _SYMBOL_BYTES = 11, 24
MOST_SYMBOLS = 100_000

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
    r"mem(cpy|move|set|cmp|chr|pcpy)|str(len|cmp|ncmp|chr|rchr|str|cpy|ncpy|cat|dup|nlen|tol|toul|toll|tod|tof|spn|cspn)"
    r"|__(mem|str|v?s?n?f?printf)\w*_chk|v?s?n?f?printf|fflush|f?putc|f?puts|putchar|fwrite|std(out|err)"
    r"|malloc|calloc|realloc|free|(posix_mem|aligned_)align|aligned_alloc|abort|assert|__assert_fail|abs|labs|div|ldiv"
    r"|qsort|bsearch|rand(_r)?|srand|to(upper|lower)|is(alpha|digit|space|alnum|upper|lower|punct)|__ctype_\w+"
    r"|pthread_mutex_(un)?lock|pthread_once|__pthread_key_create|getpagesize"
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
_OURS = r"aoti_torch_\w+|dice_\w+|threadIdx|blockIdx|blockDim|gridDim|_ZN8dice_emu\w+|_ZN4dice\w+|_ZTIN4dice\w+"
_CXX = r"_Zn[wa]m\w*|_Zd[la]Pv\w*|_ZT[ISVTv]\w*|_ZN?K?S\w+|_ZNK?S\w+|_ZN9__gnu_cxx\w+|_ZGVNS\w+|_ZGVNKS\w+"
_ALLOWED = re.compile("|".join((_PYTHON, _C, _MATHS, _CUDA, _OURS, _CXX)))
# What of the C++ library does more: threads, files, clocks, random devices, plug-ins of the locale.
_BARRED = re.compile(
    r"_Z\w*(6thread|10filesystem|fstream|filebuf|6chrono|13random_device|18condition_variable|7promise|6future|5async|6jthread)\w*"
    r"|cudaIpc\w+|cuda(Import|External)\w*|cudaGetDriverEntryPoint\w*|cudaLibrary\w+|cudaModule\w+"
)


class Foreign(Exception):
    """A library takes from outside what is not on the list; the message names it."""


def check(path: Path) -> None:
    """Raises `Foreign`, also where the file cannot be read as a library."""
    try:
        names = list(undefined(path.read_bytes()))
    except (struct.error, IndexError, ValueError, OSError) as error:
        raise Foreign(f"its library cannot be read: {error}") from None
    for name in names:
        if _BARRED.fullmatch(name) or not _ALLOWED.fullmatch(name):
            raise Foreign(f"its host code calls {name[:80]}, which is not on the list of what it may call beside data")


def undefined(data: bytes) -> Iterator[str]:
    """The names that an ELF library (64 bits, little-endian) leaves to its dynamic linker."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("it is no library for this machine")
    table, size, count = struct.unpack_from("<Q", data, 40)[0], *struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * number) for number in range(count)]
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind != _DYNAMIC_SYMBOLS:
            continue
        if length > MOST_SYMBOLS * _SYMBOL_BYTES:
            raise ValueError("it has too many symbols")
        names = sections[link][4]
        for place in range(offset, offset + length, _SYMBOL_BYTES):
            name, _, _, section = struct.unpack_from("<IBBH", data, place)
            if section == 0 and name:
                yield data[names + name : data.index(b"\0", names + name)].decode("ascii", "replace")
