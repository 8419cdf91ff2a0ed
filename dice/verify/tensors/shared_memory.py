"""Memory that the reference's process lends a candidate: large values then cross no file, and never leave the GPU.

The reference's process makes a piece of memory and keeps it; its file descriptor passes over the sockets, and the
candidate maps the same memory. On a GPU that is CUDA's virtual memory management (`cuMemCreate` with a POSIX file
descriptor), which unlike CUDA's older handles works across namespaces; on a CPU, a `memfd`. What is lent, the borrower
may change at any time: both sides copy out what they rely on. The reference's process maps nothing that a candidate
made.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any

import torch

_PINNED, _DESCRIPTOR, _DEVICE, _READ_WRITE = 1, 1, 1, 3  # of the driver's enums


class CannotLend(RuntimeError):
    """The driver does not do this here; the message says what it refused."""


class Memory:
    """`size` bytes, as a flat tensor `bytes`. `descriptor` is for the other process."""

    def __init__(self, size: int, descriptor: int, data: torch.Tensor):
        self.size, self.descriptor, self.bytes = size, descriptor, data

    def view(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` elements from byte `offset` on, not a copy. Raises `ValueError` where they are not within."""
        end = offset + count * dtype.itemsize
        if offset < 0 or end > self.size:
            raise ValueError(f"bytes {offset} to {end} of {self.size}")
        return self.bytes[offset:end].view(dtype)

    def settle(self) -> None:
        """Wait until copies from and to it are done: the other process knows nothing of our streams."""

    def close(self) -> None:
        os.close(self.descriptor)
        self.bytes = torch.empty(0, dtype=torch.uint8)


class _HostMemory(Memory):
    def __init__(self, size: int, descriptor: int):
        self._map = mmap.mmap(descriptor, size)
        super().__init__(size, descriptor, torch.frombuffer(self._map, dtype=torch.uint8))


class _DeviceMemory(Memory):
    """A mapping of `handle`, which the mapping keeps alive."""

    def __init__(self, size: int, descriptor: int, handle: ctypes.c_ulonglong):
        driver, self._whole = _driver(), _whole(size)
        self._address = ctypes.c_ulonglong()
        driver(
            "cuMemAddressReserve", ctypes.byref(self._address), _size(self._whole), _size(0), _address(0), _address(0)
        )
        driver("cuMemMap", self._address, _size(self._whole), _size(0), handle, _address(0))
        access = _Access(_Location(_DEVICE, torch.cuda.current_device()), _READ_WRITE)
        driver("cuMemSetAccess", self._address, _size(self._whole), ctypes.byref(access), _size(1))
        driver("cuMemRelease", handle)
        super().__init__(size, descriptor, torch.as_tensor(_Array(self._address.value, size), device="cuda"))

    def settle(self) -> None:
        torch.cuda.synchronize()

    def close(self) -> None:
        super().close()
        self.settle()
        driver = _driver()
        driver("cuMemUnmap", self._address, _size(self._whole))
        driver("cuMemAddressFree", self._address, _size(self._whole))


def lend(size: int, on_gpu: bool) -> Memory:
    """New memory. Raises `CannotLend`, also where there is not so much."""
    size = max(size, 1)
    if not on_gpu:
        descriptor = os.memfd_create("lent", os.MFD_CLOEXEC)
        os.truncate(descriptor, size)
        return _HostMemory(size, descriptor)
    torch.zeros(1, device="cuda")  # CUDA is initialised, and its context current
    driver, handle, descriptor_ = _driver(), ctypes.c_ulonglong(), ctypes.c_int(-1)
    wanted = _properties()
    driver("cuMemCreate", ctypes.byref(handle), _size(_whole(size)), ctypes.byref(wanted), _address(0))
    driver("cuMemExportToShareableHandle", ctypes.byref(descriptor_), handle, ctypes.c_int(_DESCRIPTOR), _address(0))
    return _DeviceMemory(size, descriptor_.value, handle)


def borrow(descriptor: int, size: int, on_gpu: bool) -> Memory:
    """The memory behind a descriptor. Raises `CannotLend`."""
    if not on_gpu:
        return _HostMemory(size, descriptor)
    torch.zeros(1, device="cuda")  # CUDA is initialised, and its context current
    handle = ctypes.c_ulonglong()
    given = ctypes.c_void_p(descriptor)
    _driver()("cuMemImportFromShareableHandle", ctypes.byref(handle), given, ctypes.c_int(_DESCRIPTOR))
    return _DeviceMemory(size, descriptor, handle)


# -- the driver --------------------------------------------------------------------------------------------------------

_size, _address = ctypes.c_size_t, ctypes.c_ulonglong


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Array:
    """Device memory as PyTorch takes it from others."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _properties() -> _Properties:
    return _Properties(_PINNED, _DESCRIPTOR, _Location(_DEVICE, torch.cuda.current_device()))


@functools.cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(library, name)(*arguments)
        if code:
            said = ctypes.c_char_p()
            library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(said))
            raise CannotLend(f"{name}: {(said.value or b'?').decode()} ({code})")

    return call


def _whole(size: int) -> int:
    """Rounded up to what the driver maps."""
    step = _granularity()
    return -(-size // step) * step


@functools.cache
def _granularity() -> int:
    found, wanted = ctypes.c_size_t(), _properties()
    _driver()("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(wanted), ctypes.c_int(0))
    return found.value
