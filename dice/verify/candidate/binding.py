"""Loading a built library: its bound functions become attributes of a module-like object.

The library was compiled against the shadow headers (`include/dice/pybind.h`), which define `dice_module_init`. That
function makes CPython callables of the bound functions, so a call costs about what pybind11's would; here we only open
the library, hand it the few Python callables it needs (`include/dice/python.h`, `Runtime`) and read launch counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import re
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from dice.verify.build.build import Built
from dice.verify.build.flags import FULL_MODULE
from dice.verify.candidate.ops import call_op
from dice.verify.execution import host_reads


class LoadError(ImportError):
    """The library does not load; the message names the undefined function."""


class _Switches:
    """What is on at present, also for libraries that are loaded meanwhile."""

    muted = 0  # 1: launches of candidates' kernels are counted and do nothing; 2: nor do copies, for want of data
    watching = False  # what memory libraries take passes dispatch modes
    reading = False  # `host_reads` answers for what libraries copy to the host


_replayed: Counter[str] = Counter()  # launches by graphs that were captured before
_libraries: list[ctypes.PyDLL] = []  # never closed: candidates keep function pointers, and so does CUDA


def load(built: Built, name: str = "extension") -> ModuleType:
    """Module with the functions that the library binds. `name`: that Python would import it by, or "" for any. Raises
    `LoadError`, or what the binding code raises."""
    _export_torch_symbols()
    library = _open(built.path)
    if built.headers == "full":
        module = _import_pybind_module(built.path, name)
    else:
        module = _initialise(library, built.path, name)
    _keep(library)
    return module


def loaded() -> list[str]:
    """Paths of the libraries loaded so far."""
    return [library._name for library in _libraries]


def load_operators(built: Built) -> None:
    """Open a library that is no Python module. Its `TORCH_LIBRARY` registers what it defines. Raises `LoadError`."""
    _export_torch_symbols()
    _keep(_open(built.path))


def _keep(library: ctypes.PyDLL) -> None:
    """Have a library count, and do what those loaded before it do at present."""
    _libraries.append(library)
    if _Switches.muted:
        _mute(_Switches.muted)
    if _Switches.watching:
        _watch_memory(True)
    if _Switches.reading:
        _set_reader(_READER)


def _initialise(library: ctypes.PyDLL, path: Path, name: str) -> ModuleType:
    try:
        init = library.dice_module_init
    except AttributeError:
        raise LoadError(f"dynamic module does not define module export function (PyInit_{name})") from None
    own_name = ctypes.c_char_p.in_dll(library, "dice_module_name").value or b""
    if name and own_name.decode() not in ("TORCH_EXTENSION_NAME", name):
        raise LoadError(f"dynamic module does not define module export function (PyInit_{name})")
    module = ModuleType(name or own_name.decode())
    module.__file__ = str(path)
    init.argtypes = [ctypes.py_object, ctypes.c_void_p]
    init.restype = ctypes.c_int
    init(module, ctypes.cast(_runtime(), ctypes.c_void_p))  # PyDLL raises the Python error that the library set
    return module


def _import_pybind_module(path: Path, name: str) -> ModuleType:
    """A module compiled against PyTorch's own headers is a Python extension like any other."""
    for inner in (FULL_MODULE, name):
        spec = importlib.util.spec_from_file_location(inner, path)
        if spec is None or spec.loader is None:
            continue
        with contextlib.suppress(ImportError):
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise LoadError(f"dynamic module does not define module export function (PyInit_{name})")


def launches() -> dict[str, int]:
    """How often each `__global__` function of the libraries loaded so far was launched, by its name in the source."""
    counts = Counter(_replayed)
    for library in _counters():
        counts.update(_launches_of(library))
    return dict(counts)


def reset_launches() -> None:
    """Start counting launches, and what goes to the host, from zero."""
    _replayed.clear()
    for library in _counters():
        library.dice_launches_reset()
        _host_bytes(library, reset=True)


def host_elements() -> int:
    """How many numbers, of two bytes or more, the libraries carried to the host by CUDA's own calls."""
    return sum(_host_bytes(library) for library in _counters()) // 2


def _host_bytes(library: ctypes.PyDLL, reset: bool = False) -> int:
    read = library.dice_host_bytes
    read.restype = ctypes.c_ulonglong
    return int(read(int(reset)))


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """In the block, `reads` answers for the little that libraries copy to the host; it takes them some microseconds."""
    _Switches.reading = True
    _set_reader(_READER)
    try:
        yield
    finally:
        _Switches.reading = False
        _set_reader(None)


@contextlib.contextmanager
def watched_memory() -> Iterator[None]:
    """In the block, dispatch modes see what memory libraries take for their tensors, which takes some microseconds."""
    _watch_memory(True)
    try:
        yield
    finally:
        _watch_memory(False)


def _watch_memory(on: bool) -> None:
    _Switches.watching = on
    for library in _libraries:
        watch = getattr(library, "dice_watch_memory", None)
        if watch is not None:
            watch(int(on))


@contextlib.contextmanager
def without_data() -> Iterator[None]:
    """In the block, tensors that libraries are given may have no memory: nothing is launched and nothing is copied."""
    reset_launches()
    _mute(2)
    try:
        with watched_memory():
            yield
    finally:
        _mute(0)


def _set_reader(reader: Any) -> None:
    for library in _counters():
        library.dice_set_reader(reader)


def _answer_read(to: int, size: int) -> None:
    """A library has copied a few bytes to the host."""
    came = ctypes.string_at(to, size)
    answer = host_reads.answer(came)
    if answer is not came:
        ctypes.memmove(to, answer, size)


_READER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)(_answer_read)


def add_launches(counts: Mapping[str, int]) -> None:
    """Count launches that no library sees: those of a graph that is replayed."""
    _replayed.update(counts)


def is_muted() -> bool:
    """Whether candidates' kernels do nothing just now."""
    return _Switches.muted != 0


def set_muted(on: bool) -> None:
    """While on, launches of candidates' kernels are counted and do nothing; also in libraries loaded meanwhile."""
    _mute(int(on))


def _mute(how: int) -> None:
    _Switches.muted = how
    for library in _counters():
        library.dice_set_muted(how)


def _counters() -> list[ctypes.PyDLL]:
    """The libraries that count. All emulated ones share the counters of one runtime, so it is asked only once."""
    counters: dict[int, ctypes.PyDLL] = {}
    for library in _libraries:
        read = getattr(library, "dice_launches_json", None)
        if read is not None:
            counters[ctypes.cast(read, ctypes.c_void_p).value or 0] = library
    return list(counters.values())


def _launches_of(library: ctypes.PyDLL) -> dict[str, int]:
    read = library.dice_launches_json
    read.restype = ctypes.c_char_p
    text: bytes = read() or b"{}"
    counts: Counter[str] = Counter()
    for symbol, count in json.loads(text).items():
        counts[function_name(symbol)] += count
    return dict(counts)


def _open(path: Path) -> ctypes.PyDLL:
    try:
        return ctypes.PyDLL(str(path))
    except OSError as error:
        raise LoadError(_explain(str(error))) from None


def _explain(message: str) -> str:
    match = re.search(r"undefined symbol: (\S+)", message)
    return f"undefined symbol: {demangle(match.group(1))}" if match else message.split(": ", 1)[-1]


def demangle(symbol: str) -> str:
    """Readable form of a C++ symbol; the symbol itself when it is none."""
    status = ctypes.c_int(0)
    runtime = _cxx_runtime()
    pointer = runtime.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not pointer:
        return symbol
    try:
        return ctypes.string_at(pointer).decode("utf-8", "replace")
    finally:
        _free(pointer)


def function_name(symbol: str) -> str:
    """Plain name of a kernel: `void ns::scale<float>(float*)` and its mangled form are both `scale`."""
    text = demangle(symbol)
    text = re.sub(r"\(anonymous namespace\)::", "", text)
    depth = 0
    kept = []
    for char in text:
        depth += char == "<"
        if depth == 0:
            kept.append(char)
        depth -= char == ">"
    head = "".join(kept).split("(", 1)[0].strip()
    return head.split()[-1].split("::")[-1] if head else symbol


@cache
def _cxx_runtime() -> ctypes.CDLL:
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    library.__cxa_demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    return library


def _free(pointer: int) -> None:
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(pointer)


@cache
def _export_torch_symbols() -> None:
    """Make PyTorch's C functions visible to libraries that were linked without naming PyTorch's own."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libc10.so", "libtorch_cpu.so", "libc10_cuda.so", "libtorch_cuda.so"):
        if (folder / name).exists():
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)


@cache
def _runtime() -> Any:
    """The table behind `dice::Runtime`: borrowed pointers to objects that live as long as the process."""
    steals = _wrap_steals()
    _KEPT[:] = [
        torch._C._aoti.unsafe_alloc_void_ptr_from_tensor,
        torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr,
        steals,
        call_op,
        _value_to_int,
        _int_to_value,
        torch.OutOfMemoryError,
        torch.Tensor,
    ]
    return (ctypes.c_void_p * len(_KEPT))(*(None if item is False else id(item) for item in _KEPT))


def _wrap_steals() -> bool:
    """Whether this PyTorch's `alloc_tensor_by_stealing_from_void_ptr` frees the handle, as its name says: if it did
    not, each returned tensor would live for ever; if it did and we freed it too, the process would crash."""
    tensor = torch.empty(0)
    alive = weakref.ref(tensor)
    capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)
    torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)
    del tensor
    return alive() is None


_KEPT: list[Any] = []

_DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}
_DEVICE_TYPES = {"cpu": 0, "cuda": 1, "meta": 14}
_FORMATS = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}
_LAYOUTS = {torch.strided: 0, torch.sparse_coo: 1}
_TABLES: dict[str, dict[Any, int]] = {"dtype": _DTYPES, "memory_format": _FORMATS, "layout": _LAYOUTS}


def _value_to_int(kind: str, value: Any) -> int | None:
    """Number that stands for a torch.dtype, device, layout or memory_format in C++; None when `value` is not one."""
    if kind != "device":
        try:
            return _TABLES[kind].get(value)
        except TypeError:  # not hashable, so none of PyTorch's values
            return None
    if not isinstance(value, torch.device | str):
        return None
    device = torch.device(value)
    return _DEVICE_TYPES[device.type] * 256 + (-1 if device.index is None else device.index) + 1


def _int_to_value(kind: str, number: int) -> Any:
    if kind != "device":
        return next(value for value, key in _TABLES[kind].items() if key == number)
    kinds = {number: name for name, number in _DEVICE_TYPES.items()}
    index = number % 256 - 1
    return torch.device(kinds[number // 256]) if index < 0 else torch.device(kinds[number // 256], index)
