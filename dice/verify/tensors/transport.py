"""Values that cross a process border: raw bytes plus a JSON description. Nothing is ever unpickled.

A value is a tree of tensors, lists, tuples (also with names), dicts with plain keys, objects of dataclasses, Python
scalars, dtypes and None. It lives in two files: `NAME.json`, the tree, and `NAME.bin`, the bytes of its tensors one
after the other; or those are in lent memory. The reader trusts neither: sizes, types and offsets are checked before a
tensor is made, and links are not followed. Who reads tuples with names and objects has other classes of them.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import dataclasses
import functools
import json
import keyword
import math
import mmap
import os
import stat
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch

from dice.files import JsonObject
from dice.verify.ipc.out_of_memory import is_shortage
from dice.verify.sandbox.scratch import READING
from dice.verify.tensors.shared_memory import Memory

ALIGN = 512  # as PyTorch aligns tensors on a GPU
MAX_JSON_BYTES = 8 << 20
POURED_ELEMENTS = 1 << 24  # at a time
MAX_DEPTH = 20
LONGEST_NAME = 64  # of a class


def _is_plain(dtype: torch.dtype) -> bool:
    """Whether elements of a type have values that can be compared: PyTorch also has types that only name bits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that PyTorch calls experimental
        try:
            torch.ones(1, dtype=dtype).to(torch.complex128 if dtype.is_complex else torch.float64)
        except (RuntimeError, TypeError):
            return False
    return True


_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith(("torch.q", "torch.bits")) and _is_plain(value)
}
Folder = Path | Mapping[str, int]  # a folder, or open files by name: of a folder that only somebody else sees


_libc = ctypes.CDLL(None)


class WireError(ValueError):
    """A value cannot be written, or what was read is not a value; the message says why."""


def write(value: object, folder: Path, name: str, memory: Memory | None = None) -> None:
    """Write a value to `folder`, its bytes to `memory` where some is given. Raises `WireError` for types that have no
    place in it, and for more bytes than the memory has."""
    if memory is not None:
        tree = _encode(value, _Lent(memory), 0)
        memory.settle()
    else:
        with open(folder / f"{name}.bin", "wb") as data:
            tree = _encode(value, _File(data), 0)
    (folder / f"{name}.json").write_text(json.dumps(tree))


def read(folder: Folder, name: str, max_bytes: int | None = None, memory: Memory | None = None) -> Any:
    """Read a value back as CPU tensors, or as tensors of its own where `memory` is. Raises `WireError` when the files
    are not one, or hold over `max_bytes`. A lack of memory passes as it is."""
    try:
        tree = json.loads(_read_capped(folder, f"{name}.json", MAX_JSON_BYTES))
        if memory is not None:
            value = _decode(tree, _Lent(memory), 0)
            memory.settle()
            return value
        with _open(folder, f"{name}.bin") as data:
            file = _File(data)
            if max_bytes is not None and file.size > max_bytes:
                raise WireError(f"{file.size} bytes of tensors where at most {max_bytes} were expected")
            return _decode(tree, file, 0)
    except WireError:
        raise
    except (ArithmeticError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        # Whatever a hostile description makes Python or PyTorch say: an integer of 5000 digits, a shape that overflows.
        if memory is not None and is_shortage(error):  # no larger than what was lent
            raise
        raise WireError(f"unreadable value {name}: {error}") from None


def show(folder: Path, name: str, memory: Memory | None = None) -> Any:
    """As `read`, but the tensors are not copies: the memory itself, or the file, of which only what is written to
    becomes the process's own. For what a trusted process wrote and leaves as it is. Raises `WireError`."""
    tree = json.loads(_read_capped(folder, f"{name}.json", MAX_JSON_BYTES))
    if memory is not None:
        return _decode(tree, _Lent(memory, shown=True), 0)
    with _open(folder, f"{name}.bin") as data:
        size = os.fstat(data.fileno()).st_size
        if not size:
            return _decode(tree, _File(data), 0)
        mapped = mmap.mmap(data.fileno(), size, access=mmap.ACCESS_COPY)
    return _decode(tree, _Lent(Memory(size, -1, torch.frombuffer(mapped, dtype=torch.uint8)), shown=True), 0)


def pour(shown: torch.Tensor, target: torch.Tensor) -> None:
    """Copy a tensor that was shown, and is not written to, to another of its shape, piece by piece, letting go of its
    memory on the way: the pages of a file on a tmpfs count as those of a process that has read them."""
    if not shown.is_contiguous() or not target.is_contiguous():
        target.copy_(shown)
        return
    pairs = zip(*(torch.split(one.view(-1), POURED_ELEMENTS) for one in (shown, target)), strict=True)
    for piece, place in pairs:
        place.copy_(piece)
        start = -(-piece.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (piece.data_ptr() + piece.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if size > 0:
            _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def signature(value: object) -> JsonObject:
    """A value's tree with the types and shapes of its tensors, and without their bytes. Raises `WireError`."""
    return _encode(value, _Nowhere(torch.device("cpu")), 0)


def outline(tree: Any, device: torch.device) -> Any:
    """The value that a signature describes, its tensors on a device that holds no bytes. Raises `WireError`."""
    return _decode(tree, _Nowhere(device), 0)


def type_name(tensor: torch.Tensor) -> str:
    """A tensor's dtype, as it is called in descriptions: `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def room(value: object) -> int:
    """Bytes of memory that `write` needs for a value."""
    return sum(-(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN for tensor in tensors(value))


def tensors(value: object) -> list[torch.Tensor]:
    """All tensors of a value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in parts(value) or () for tensor in tensors(item)]


def map_tensors(function: Any, value: Any) -> Any:
    """The same tree with `function` applied to every tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    items = parts(value)
    return value if items is None else like(value, [map_tensors(function, item) for item in items])


def plain(value: Any) -> Any:
    """The same tree of plain lists, tuples and dicts: whatever a container of another class does when it is looked into
    has been done then."""
    value = opened(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    items = parts(value)
    return value if items is None else (list if isinstance(value, list) else tuple)(map(plain, items))


def parts(value: Any) -> list[Any] | None:
    """What a list, tuple, dict or object of a dataclass holds, in order; None for what is none of them.

    Of a dict that is the order of its keys, since two that are equal may have been filled in different ones.
    """
    value = opened(value)
    if isinstance(value, dict):
        return [value[key] for key in sorted(value, key=str)]
    return list(value) if isinstance(value, list | tuple) else None


def like(value: Any, items: list[Any]) -> Any:
    """The same container as `value` with other `items` in the place of its `parts`."""
    fields = opened(value)
    if isinstance(fields, dict):
        named = dict(zip(sorted(fields, key=str), items, strict=True))
        if fields is value:
            return {key: named[key] for key in fields}
        other = copy.copy(value)
        for name, item in named.items():
            object.__setattr__(other, name, item)  # also where it is frozen
        return other
    if isinstance(value, list):
        return items
    return value._make(items) if hasattr(value, "_fields") else tuple(items)


def opened(value: Any) -> Any:
    """An object of a dataclass, or what became of one, as a dict of its fields, and anything else as it is."""
    if isinstance(value, types.SimpleNamespace):
        return vars(value)
    names = fields_of(value)
    return value if names is None else {name: getattr(value, name, None) for name in names}


def fields_of(value: Any) -> list[str] | None:
    """The names of the fields of an object of a dataclass; None for anything else."""
    if isinstance(value, type | dict) or not dataclasses.is_dataclass(value):
        return None
    return [field.name for field in dataclasses.fields(value)]


@functools.lru_cache(maxsize=64)
def named_tuple(fields: tuple[str, ...], name: str = "") -> Any:
    """A class for a tuple with these names."""
    return collections.namedtuple(_identifier(name) or "Inputs", fields)  # noqa: PYI024 - ValueError for no names


@functools.lru_cache(maxsize=64)
def _namespace(name: str) -> Any:
    """A class for what was an object of a class of that name."""
    return type(name, (types.SimpleNamespace,), {}) if _identifier(name) else types.SimpleNamespace


def _identifier(name: str) -> str:
    return name if name.isidentifier() and not keyword.iskeyword(name) and len(name) <= LONGEST_NAME else ""


class _Bytes(Protocol):
    """Where the bytes of tensors are. A dense tensor is `put` whole; `fill` fills one from an offset."""

    size: int

    def put(self, tensor: torch.Tensor) -> int: ...

    def fill(self, tensor: torch.Tensor, offset: int) -> None: ...

    def elements(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Not a copy, where that is what is wanted."""

    @property
    def device(self) -> torch.device: ...


class _Nowhere:
    """No bytes at all."""

    size = 1 << 62

    def __init__(self, device: torch.device):
        self.device = device

    def put(self, tensor: torch.Tensor) -> int:
        return 0

    def fill(self, tensor: torch.Tensor, offset: int) -> None:
        pass

    def elements(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor | None:
        return None


class _File:
    device = torch.device("cpu")

    def __init__(self, data: BinaryIO):
        self._data = data
        self.size = os.fstat(data.fileno()).st_size

    def put(self, tensor: torch.Tensor) -> int:
        self._data.write(b"\0" * (-self._data.tell() % ALIGN))
        offset = self._data.tell()
        if tensor.numel():
            self._data.write(_memory(tensor.cpu()))
        return offset

    def fill(self, tensor: torch.Tensor, offset: int) -> None:
        self._data.seek(offset)
        view = _memory(tensor)
        if self._data.readinto(view) != len(view):  # type: ignore[attr-defined]
            raise WireError("a file cut short")

    def elements(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor | None:
        return None


class _Lent:
    def __init__(self, memory: Memory, shown: bool = False):
        self._memory, self.size, self._shown = memory, memory.size, shown
        self.device = memory.bytes.device
        self._end = 0

    def put(self, tensor: torch.Tensor) -> int:
        offset = -(-self._end // ALIGN) * ALIGN
        self._end = offset + tensor.numel() * tensor.element_size()
        if self._end > self.size:
            raise WireError(f"at least {self._end} bytes of tensors where at most {self.size} were expected")
        self._memory.view(offset, tensor.numel(), tensor.dtype).copy_(_flat(tensor))
        return offset

    def fill(self, tensor: torch.Tensor, offset: int) -> None:
        _flat(tensor).copy_(self._memory.view(offset, tensor.numel(), tensor.dtype))

    def elements(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor | None:
        return self._memory.view(offset, count, dtype) if self._shown else None


def _encode(value: object, data: _Bytes, depth: int) -> dict[str, object]:
    if depth > MAX_DEPTH:
        raise WireError("a value nested too deeply")
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, data)
    fields = opened(value)
    if isinstance(fields, dict):
        items = [[_key(key), _encode(item, data, depth + 1)] for key, item in fields.items()]
        of = {"kind": "dict"} if fields is value else {"kind": "object", "name": type(value).__name__}
        return {**of, "items": items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        tree: JsonObject = {"kind": kind, "items": [_encode(item, data, depth + 1) for item in value]}
        names = {"name": type(value).__name__, "fields": list(value._fields)} if hasattr(value, "_fields") else {}
        return tree | names
    if value is None or isinstance(value, bool | int | float | str):
        return {"kind": "scalar", "value": value}
    if isinstance(value, complex):
        return {"kind": "complex", "value": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {"kind": "dtype", "value": str(value).removeprefix("torch.")}
    raise WireError(unreadable(value))


def _key(key: object) -> bool | int | float | str | None:
    """A key of a dict as it travels: a plain one, or the text of another."""
    return key if key is None or isinstance(key, bool | int | float | str) else str(key)


def unreadable(value: Any) -> str:
    """What a value holds that cannot be written, in words, or ""."""
    if isinstance(value, torch.Tensor):
        if value.is_nested or value.layout != torch.strided:
            return f"a tensor of layout {'nested' if value.is_nested else value.layout}"
        return "" if type_name(value) in _DTYPES else f"a tensor of dtype {value.dtype}"
    items = parts(value)
    if items is not None:
        return next(filter(None, map(unreadable, items)), "")
    if value is None or isinstance(value, bool | int | float | str | complex | torch.dtype):
        return ""
    return f"a {type(value).__name__}, which is neither a tensor, a container of tensors nor a plain value"


def _encode_tensor(tensor: torch.Tensor, data: _Bytes) -> dict[str, object]:
    if what := unreadable(tensor):
        raise WireError(what)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    spec: JsonObject = {"kind": "tensor", "dtype": type_name(tensor), "shape": list(tensor.shape)}
    if not tensor.is_contiguous() and _fills_memory(tensor.shape, tensor.stride()):
        spec["stride"] = list(tensor.stride())
    else:
        tensor = tensor.contiguous()
    spec["offset"] = data.put(tensor)
    return spec


def _fills_memory(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill one stretch of memory without holes or overlap (those of a permuted tensor do)."""
    expected = 1
    for step, extent in sorted(zip(stride, shape, strict=True)):
        if extent > 1 and step != expected:
            return False
        expected *= extent
    return True


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a dense tensor, not a copy."""
    flat: Any = _flat(tensor).view(torch.uint8).numpy()
    return memoryview(flat)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a dense tensor in the order of its memory, not a copy."""
    return tensor.as_strided((tensor.numel(),), (1,))


def _decode(tree: Any, data: _Bytes, depth: int) -> Any:
    if not isinstance(tree, dict) or depth > MAX_DEPTH:
        raise WireError("a malformed description")
    kind, items, value = tree.get("kind"), tree.get("items"), tree.get("value")
    if kind == "tensor":
        return _decode_tensor(tree, data)
    if kind in ("list", "tuple") and isinstance(items, list):
        decoded, fields = [_decode(item, data, depth + 1) for item in items], tree.get("fields")
        if kind == "tuple" and isinstance(fields, list) and len(fields) == len(items):
            return named_tuple(tuple(map(str, fields)), str(tree.get("name")))._make(decoded)
        return decoded if kind == "list" else tuple(decoded)
    if kind in ("dict", "object") and isinstance(items, list):
        if not all(isinstance(item, list) and len(item) == 2 for item in items):
            raise WireError("a malformed description")
        named = {_key(key): _decode(item, data, depth + 1) for key, item in items}
        if kind == "dict":
            return named
        return _namespace(str(tree.get("name")))(**{str(key): item for key, item in named.items()})
    if kind == "scalar" and (value is None or isinstance(value, bool | int | float | str)):
        return value
    if kind == "complex" and isinstance(value, list) and len(value) == 2:
        return complex(float(value[0]), float(value[1]))
    if kind == "dtype" and value in _DTYPES:
        return _DTYPES[value]
    raise WireError("a malformed description")


def _decode_tensor(spec: JsonObject, data: _Bytes) -> torch.Tensor:
    shape, stride, offset = spec.get("shape"), spec.get("stride"), spec.get("offset")
    dtype = _DTYPES.get(str(spec.get("dtype")))
    if dtype is None or not _is_counts(shape) or type(offset) is not int or offset < 0:
        raise WireError("a malformed tensor")
    assert isinstance(shape, list)
    count = math.prod(shape)
    if offset + count * dtype.itemsize > data.size:
        raise WireError("a tensor larger than its file")
    if stride is not None:
        _check_stride(shape, stride)
    flat = data.elements(offset, count, dtype) if count else None
    if flat is not None:
        return flat.view(shape) if stride is None else flat.as_strided(shape, stride)
    if stride is None:
        tensor = torch.empty(shape, dtype=dtype, device=data.device)
    else:
        tensor = torch.empty_strided(shape, stride, dtype=dtype, device=data.device)
    if count:
        data.fill(tensor, offset)
    return tensor


def _is_counts(values: object) -> bool:
    return isinstance(values, list) and len(values) <= 64 and all(type(v) is int and 0 <= v < 1 << 48 for v in values)


def _check_stride(shape: list[int], stride: object) -> None:
    if not _is_counts(stride) or not isinstance(stride, list) or len(stride) != len(shape):
        raise WireError("a malformed stride")
    if not _fills_memory(shape, stride):
        raise WireError("a stride with holes")


def _open(folder: Folder, name: str) -> BinaryIO:
    descriptor = os.open(folder / name, READING) if isinstance(folder, Path) else os.dup(folder[name])
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise WireError("not a regular file")
    os.lseek(descriptor, 0, os.SEEK_SET)  # it may have been read before
    return os.fdopen(descriptor, "rb")


def _read_capped(folder: Folder, name: str, limit: int) -> str:
    with _open(folder, name) as file:
        text = file.read(limit + 1)
    if len(text) > limit:
        raise WireError(f"a description of over {limit} bytes")
    return text.decode("utf-8")
