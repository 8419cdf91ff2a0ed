"""Landlock: a process gives up, for good and for all it starts, the files it does not need. Needs no privilege.

Linux 5.13 and later, where the security module is enabled. See `man 7 landlock`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1, 2, 4, 8, 1 << 14
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = [("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """Landlock's interface version here; 0 when the kernel has none."""
    found = int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION))
    return max(found, 0)


def restrict(readable: Iterable[str], writable: Iterable[str], network: bool = False) -> bool:
    """From now on this process may read and execute only below `readable` and `writable`, and write only below
    `writable`; it may open no TCP connection (unless `network`) and signal no process outside. Paths that do not exist
    are skipped.

    False when the kernel cannot do it; then nothing has changed.
    """
    abi = version()
    if abi == 0:
        return False
    # Bits 0-12 came first, 13 (renaming across folders) and 14 (truncation) later; device control stays allowed.
    handled = (1 << 13) - 1 | (1 << 13 if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    rules = _Ruleset(handled, 3 if abi >= 4 and not network else 0, 3 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = int(_libc.syscall(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), 0))
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _allow(ruleset, path, _READING & handled)
        for path in writable:
            _allow(ruleset, path, handled)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        return bool(_libc.syscall(_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                access &= _ON_FILES
            rule = _Beneath(access, descriptor)
            _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
        finally:
            os.close(descriptor)
