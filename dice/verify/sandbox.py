"""What a child process may touch: namespaces, limits, environment, and the warden that ends it.

Three processes per child: the *warden* (trusted; watches memory and process count, and kills), the *init* (first
process of the child's PID namespace, so that its end ends everything inside), and the child itself.

Tiers, named in every verdict:
- `namespaces`: own PID, network, IPC and mount namespaces, read-only file system outside the scratch and cache
  folders, no capabilities. A daemon or a fork bomb dies with its namespace.
- `process`: where the kernel refuses namespaces. Own session, limits, no capabilities; descendants are adopted by
  the warden and killed one by one. The network and other processes of the same user stay visible.
Neither tier filters the NVIDIA driver's ioctls.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_PROCESSES = 256  # per child, threads not counted
MAX_OPEN_FILES = 4096
ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CXX",
    "CC",
)

_CLONE = {"mnt": 0x00020000, "ipc": 0x08000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """`writable`: the folders a child may write to. `memory_mb`: host memory of the child and all it starts."""

    memory_mb: int
    scratch: str
    writable: tuple[str, ...] = ()
    secret: bool = False  # the child holds what candidates must not see: its memory is not readable by its peers


def describe() -> tuple[str, str]:
    """The tier that this host gives, and what that means, found out by a process that tries."""
    pid = os.fork()
    if pid == 0:
        own_namespaces = False
        with contextlib.suppress(OSError):
            own_namespaces = _enter_namespaces()
        os._exit(0 if own_namespaces else 1)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
        return "namespaces", "no network, own processes, read-only file system, limits"
    return "process", "own session and limits; this host refuses namespaces, so the network stays visible"


def run_warden(control: socket.socket, limits: Limits, child: Callable[[], None]) -> None:
    """Run `child` jailed, report on `control` how it ended, and leave nothing of it behind. Never returns.

    Reports are JSON lines: `{"sandbox": tier}` at the start and `{"exit": code} | {"signal": number}` with `reason`
    (`memory`, `processes` or empty) at the end. The end of `control` on the other side kills the child.
    """
    os.setsid()
    die_with_parent()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    own_namespaces = _enter_namespaces()
    status_read, status_write = os.pipe()
    shared_kb = _memory_kb(os.getpid())
    init = os.fork()
    if init == 0:
        os.close(status_read)
        control.close()
        _run_init(status_write, own_namespaces, limits, child)
    os.close(status_write)
    _send(control, {"sandbox": "namespaces" if own_namespaces else "process"})
    reason = _watch(control, status_read, init, limits, shared_kb)
    status = os.read(status_read, 64) if reason == "" else b""
    _kill_descendants(init)
    code = int(status) if status else -signal.SIGKILL
    _send(control, {"signal": -code, "reason": reason} if code < 0 else {"exit": code, "reason": reason})
    os._exit(0)


def die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run_init(status: int, own_namespaces: bool, limits: Limits, child: Callable[[], None]) -> None:
    die_with_parent()
    if own_namespaces:
        _narrow_file_system(limits)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _run_child(limits, child)
    while True:
        ended, wait_status = os.wait()
        if ended == pid:
            os.write(status, str(os.waitstatus_to_exitcode(wait_status)).encode())
            os._exit(0)


def _run_child(limits: Limits, child: Callable[[], None]) -> None:
    os.setsid()
    die_with_parent()
    _set_limits(limits)
    _set_environment(limits.scratch)
    os.chdir(limits.scratch)
    _drop_privileges()
    if limits.secret:
        _prctl(_PR_SET_DUMPABLE, 0)
    try:
        child()
    except BaseException:  # noqa: B036 - nothing may unwind into the warden's stack
        traceback.print_exc()
    os._exit(70)  # a child ends itself; getting here is our fault


def _set_limits(limits: Limits) -> None:
    size = limits.memory_mb << 20
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, size),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def _set_environment(scratch: str) -> None:
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    os.environ.clear()
    os.environ.update(kept | {"HOME": scratch, "TMPDIR": scratch, "TORCH_EXTENSIONS_DIR": scratch})


def _drop_privileges() -> None:
    """Give up every capability for good. A root child keeps the files it owns and loses the rest of root."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    number = _SYS_CAPSET.get(os.uname().machine)
    if number is not None:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        _libc.syscall(number, header, (ctypes.c_uint32 * 6)())


def _enter_namespaces() -> bool:
    wanted = _CLONE["pid"] | _CLONE["net"] | _CLONE["ipc"]
    if _libc.unshare(wanted) == 0:
        return True
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(wanted | _CLONE["user"]) != 0:
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError:
        return False
    return True


def _narrow_file_system(limits: Limits) -> None:
    """Own /proc, and all read-only but the writable folders. Each step is best effort: a container may refuse."""
    if _libc.unshare(_CLONE["mnt"]) != 0:  # here and not in the warden, which needs the outer /proc
        return
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    folders = [folder for folder in (limits.scratch, *limits.writable) if os.path.isdir(folder)]
    for folder in folders:
        _mount(folder, folder, None, _MS_BIND | _MS_REC)
    if _set_read_only("/", True):
        for folder in folders:
            _set_read_only(folder, False)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> bool:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    return bool(_libc.mount(*encoded, ctypes.c_ulong(flags), None) == 0)


def _set_read_only(path: str, on: bool) -> bool:
    attributes = (ctypes.c_uint64 * 4)(*((_MOUNT_ATTR_RDONLY, 0) if on else (0, _MOUNT_ATTR_RDONLY)), 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    result = _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, size)
    return bool(result == 0)


def _watch(control: socket.socket, status: int, init: int, limits: Limits, shared_kb: int) -> str:
    """Wait for the child's end and return ""; return why it must be killed otherwise."""
    pause = 0.02
    while True:
        readable, _, _ = select.select([control.fileno(), status], [], [], pause)
        if status in readable:
            return ""
        if control.fileno() in readable:
            return "cancelled"
        pids = [init, *descendants(init)]
        if len(pids) > MAX_PROCESSES:
            return "processes"
        if sum(max(0, _memory_kb(pid) - shared_kb) for pid in pids) > limits.memory_mb << 10:
            return "memory"
        pause = min(0.2, pause * 1.5)


def _kill_descendants(init: int) -> None:
    """Kill until nothing is left: the init (and so its namespace), then whatever the warden has adopted."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for pid in (init, *descendants(os.getpid())):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def descendants(pid: int) -> list[int]:
    """Processes below `pid`, as /proc lists them now."""
    found: list[int] = []
    pending = [pid]
    while pending:
        children = list(_children(pending.pop()))
        found += children
        pending += children
        if len(found) > 20 * MAX_PROCESSES:
            break
    return found


def _children(pid: int) -> Iterable[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for task in tasks:
        with contextlib.suppress(OSError):
            yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())


def _memory_kb(pid: int) -> int:
    """Private and shared memory a process has written to, in KiB; file mappings do not count."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _send(control: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


def _prctl(option: int, value: int) -> None:
    _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)
