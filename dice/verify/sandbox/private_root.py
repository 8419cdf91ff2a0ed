"""A root directory with nothing in it but what was asked for: bind mounts on an empty file system in memory.

For a process in a mount namespace of its own. Symbolic links on the way to a path are made again.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC = 1, 2, 4, 8, 4096, 16384
_MOUNT_POINT = "/proc"  # always there, and nobody asks for what it covers: the new root gets a /proc of its own
_MAX_LINKS = 40
EVERYBODYS = ("/tmp", "/dev/shm")  # folders that all may write to, as on any system
_libc = ctypes.CDLL(None, use_errno=True)


def enter(visible: Iterable[str], writable: Iterable[str], private: Mapping[str, int], most_files: int) -> bool:
    """Make `visible` and `writable` paths the whole file system, with `private` folders in memory, of so many MiB and
    `most_files` files each. False when the kernel refuses; then nothing is hidden.

    The caller makes the mounts read-only afterwards, except `writable` and `private`.
    """
    if not _mount("tmpfs", _MOUNT_POINT, "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=755"):
        return False
    for path, size_mb in private.items():  # first: what is shown may lie in them
        os.makedirs(_MOUNT_POINT + path, exist_ok=True)
        options = f"size={size_mb}m,nr_inodes={most_files},mode={'1777' if path in EVERYBODYS else '700'}"
        if not _mount("tmpfs", _MOUNT_POINT + path, "tmpfs", _MS_NOSUID | _MS_NODEV, options):
            raise OSError(f"no file system in memory of {size_mb} MiB could be made at {path}")
    for path in (*sorted(visible, key=len), *writable):  # a folder before what lies in it
        _show(path)
    os.makedirs(_MOUNT_POINT + "/tmp", exist_ok=True)
    os.makedirs(_MOUNT_POINT + "/proc", exist_ok=True)
    _mount("proc", _MOUNT_POINT + "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    os.chroot(_MOUNT_POINT)
    os.chdir("/")
    return True


def _show(path: str) -> None:
    real = _follow(path)
    inside = _MOUNT_POINT + real
    if not os.path.exists(real) or os.path.exists(inside):
        return  # below something that is shown already
    if os.path.isdir(real):
        os.makedirs(inside)
    else:
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        os.close(os.open(inside, os.O_CREAT | os.O_WRONLY, 0o644))
    _mount(real, inside, None, _MS_BIND | _MS_REC)


def _follow(path: str) -> str:
    """`path` without symbolic links, each of which appears in the new root too."""
    for _ in range(_MAX_LINKS):
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts) + 1):
            place = "/" + "/".join(parts[:depth])
            if os.path.islink(place):
                break
        else:
            return path
        target = os.readlink(place)
        inside = _MOUNT_POINT + place
        if not os.path.lexists(inside):
            os.makedirs(os.path.dirname(inside), exist_ok=True)
            os.symlink(target, inside)
        joined = os.path.join(os.path.dirname(place), target, *parts[depth:])
        path = os.path.normpath(joined)
    return path


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> bool:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    extra = options.encode() if options is not None else None
    return bool(_libc.mount(*encoded, ctypes.c_ulong(flags), extra) == 0)
