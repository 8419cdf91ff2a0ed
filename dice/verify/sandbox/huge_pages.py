"""Huge pages for a process that is forked often.

A fork copies the page tables of all memory that the parent has written to, and the end of the fork takes them down
again: 50,000 pages of a process that imported PyTorch, three times for each jailed child. In huge pages the same memory
has 512 times fewer. Who writes to it later still copies no more than a small page.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

SIZE = 2 << 20  # bytes of a huge page
_MADV_COLLAPSE = 25  # Linux 6.1; it does not depend on whether the machine uses huge pages by itself
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def collapse() -> int:
    """Put this process's own memory into huge pages; how many bytes are. 0 where the kernel does not do that."""
    return SIZE * sum(int(_libc.madvise(start, SIZE, _MADV_COLLAPSE)) == 0 for start in _aligned())


def _aligned() -> Iterator[int]:
    """Where a huge page fits into memory that belongs to no file."""
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps]
    for addresses, mode, _, _, _, *path in lines:
        if mode.startswith("rw") and path in ([], ["[heap]"]):
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield from range(-(-start // SIZE) * SIZE, end - SIZE + 1, SIZE)
