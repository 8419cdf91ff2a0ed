"""Guarded CPU tensors: every allocation ends at an inaccessible page, is filled with 0xFF, and has a name.

For the worker process that runs a candidate. Tensors made before `enable` stay where they are; tensors made while it
is on stay guarded after `disable`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dice.verify.emulator.toolchain import build_library, runtime

if TYPE_CHECKING:
    import torch

_cache_dir: Path | None = None


def build(cache_dir: Path) -> None:
    """Compile what `enable` loads (seconds, once per PyTorch version). Raises `ToolchainError`."""
    runtime(cache_dir)
    _build_allocator(cache_dir)


def enable(cache_dir: Path) -> None:
    """Give every CPU tensor created from now on guard pages and poison. Raises `ToolchainError`."""
    global _cache_dir
    _cache_dir = Path(cache_dir)
    _allocator(_cache_dir).dice_allocator_install()
    _runtime(_cache_dir).dice_expect_device_pointers()


def disable() -> None:
    """Return to PyTorch's own allocator."""
    if _cache_dir is not None:
        _allocator(_cache_dir).dice_allocator_remove()


def label(tensor: torch.Tensor, name: str) -> bool:
    """Name a tensor's memory for fault messages, e.g. "input 0"; False when that memory is not guarded."""
    if _cache_dir is None:
        return False
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    text = f"{name}, {str(tensor.dtype).removeprefix('torch.')} {shape}"
    return bool(_runtime(_cache_dir).dice_heap_label(tensor.data_ptr(), text.encode("ascii", "replace")[:119]))


def check() -> list[str]:
    """What was written just outside guarded memory since the last check, one sentence each; live tensors included."""
    if _cache_dir is None:
        return []
    text: bytes = _runtime(_cache_dir).dice_heap_check()
    return text.decode().splitlines()


@cache
def _runtime(cache_dir: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(runtime(cache_dir)), mode=ctypes.RTLD_GLOBAL)
    library.dice_heap_label.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.dice_heap_label.restype = ctypes.c_bool
    library.dice_heap_check.restype = ctypes.c_char_p
    return library


@cache
def _allocator(cache_dir: Path) -> ctypes.CDLL:
    _runtime(cache_dir)  # first: the allocator finds the heap's functions in it
    return ctypes.CDLL(str(_build_allocator(cache_dir)))


def _build_allocator(cache_dir: Path) -> Path:
    import torch

    home = Path(torch.__file__).parent
    flags = [
        "-std=c++20",
        "-O1",
        "-fPIC",
        "-shared",
        "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f'-DDICE_TORCH_VERSION="{torch.__version__}"',
        f"-I{home / 'include'}",
        f"-L{home / 'lib'}",
        "-lc10",
    ]
    source = Path(__file__).parent / "torch_allocator" / "allocator.cpp"
    return build_library("libdice_allocator.so", [source], [], flags, cache_dir)
