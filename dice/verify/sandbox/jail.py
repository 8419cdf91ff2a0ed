"""The jail of a child process: namespaces, limits, environment, what it may see and call.

Named in every verdict, as far as the host has them:
- `namespaces`: own PID, network, IPC and mount namespaces; a file system that holds only what is needed, read-only
  but for the child's own folders, which are in memory and of a fixed size; no capabilities. A daemon or a fork bomb
  dies with its namespace. Where the kernel refuses them it is `process` instead: own session, limits, no capabilities;
  descendants are adopted by the warden and killed one by one.
- `landlock` hides files and processes once more.
- `seccomp`, a filter of system calls, refuses the network, tracing, mounting and the like.
- `cgroups`: the kernel counts and limits memory and threads.
What a host really gives is tried out by `guarantees.py`. Nothing here filters the NVIDIA driver's ioctls.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import struct
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dice.verify.sandbox import landlock, private_root, seccomp
from dice.verify.sandbox.scratch import MAX_FILES
from dice.verify.sandbox.visible_paths import devices

MAX_PROCESSES = 256  # per child, threads not counted
MAX_TASKS = 1024  # per child, processes and threads
MAX_OPEN_FILES = 4096  # of a process of ours
MAX_OPEN_FILES_OF_CANDIDATE = 512  # far fewer than the supervisor has: it could send no more files else
MAX_DESCRIPTORS = 8192  # per child, of all its processes: a socket holds up to a fifth of a megabyte that nobody counts
OWN_FAULT = 70  # exit code of a child whose own code let an exception out
WITHOUT = "DICE_SANDBOX_WITHOUT"  # mechanisms not to use, e.g. "namespaces,landlock": as on a kernel that lacks them
MECHANISMS = ("namespaces", "landlock", "seccomp", "cgroups")
_MACHINE_PROC = (
    *("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi"),
    *("/proc/pressure", "/proc/mtrr", "/proc/driver/nvidia"),
)
_HIDDEN_PROC = (  # what only root may read: root without capabilities still may
    *("/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/kmsg", "/proc/kallsyms", "/proc/slabinfo"),
    *("/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/timer_list", "/proc/vmallocinfo"),
    *("/proc/sched_debug", "/proc/latency_stats", "/proc/pagetypeinfo", "/proc/iomem", "/proc/ioports"),
)
ENVIRONMENT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CXX",
    "CC",
)

_CLONE = {"mnt": 0x00020000, "ipc": 0x08000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 36, 4, 38
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Limits:
    """`writable`: the folders a child may write to. `memory_mb`: host memory of the child and all it starts.
    `visible`: where not empty, the only other paths that the child can see at all."""

    memory_mb: int
    scratch: str
    writable: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    tmp_mb: int = 0  # size of a /tmp and a /dev/shm of its own; 0: it has none beside `visible`
    files_mb: int = 0  # what its writable folders may hold in all; 0: only the size of each file is limited
    gpu: str = ""  # the only GPU that the child may use, as CUDA_VISIBLE_DEVICES has it; "": as the parent
    one_queue: bool = False  # one hardware queue for all its streams: a context in a third of the time, no overlap
    loopback: bool = False  # it may connect to itself over a network of its own, where there are namespaces
    secret: bool = False  # the child holds what candidates must not see: its memory is not readable by its peers
    own_files: bool = False  # its scratch is a file system of its own, in memory, where there are namespaces


class Passage:
    """The init's end of its talk with the warden."""

    def __init__(self, gate: socket.socket):
        self._gate = gate

    def wait(self, folders: Sequence[int]) -> None:
        """Hand over open folders, and return when the child may start: it is counted from then on."""
        if folders:
            socket.send_fds(self._gate, [b"."], folders)
        else:
            self._gate.send(b".")
        if not self._gate.recv(16):
            os._exit(1)
        self._gate.close()
        for folder in folders:
            os.close(folder)


def tier(own_namespaces: bool, own_group: bool) -> str:
    """The name of what a child runs under on this kernel."""
    parts = ["namespaces" if own_namespaces else "process"]
    parts += ["landlock"] if uses("landlock") and landlock.version() else []
    parts += ["seccomp"] if uses("seccomp") and seccomp.available() else []
    parts += ["cgroups"] if own_group else []
    return "+".join(parts)


def uses(mechanism: str) -> bool:
    return mechanism not in os.environ.get(WITHOUT, "").split(",")


def die_with_parent(parent: int) -> None:
    """Be killed when `parent` ends, also when it just has."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def run_init(
    status: int, own_namespaces: bool, limits: Limits, child: Callable[[], None], warden: int, passage: Passage
) -> None:
    """The first process of a jail, which makes it and waits for the child's end. Never returns."""
    die_with_parent(0 if own_namespaces else warden)  # a namespace has no number for what is outside
    if not limits.secret:
        _volunteer()
    own_folders: list[int] = []
    if own_namespaces:
        if limits.loopback:
            _raise_loopback()
        own_folders = _narrow_file_system(limits)
    passage.wait(own_folders)
    own = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _run_child(limits, child, own_namespaces, own)
    while True:
        ended, wait_status = os.wait()
        if ended == pid:
            os.write(status, str(os.waitstatus_to_exitcode(wait_status)).encode())
            os._exit(0)


def _run_child(limits: Limits, child: Callable[[], None], own_namespaces: bool, init: int) -> None:
    os.setsid()
    die_with_parent(init)
    uses_landlock, uses_seccomp = uses("landlock"), uses("seccomp")
    _set_limits(limits)
    _set_environment(limits)
    os.chdir(limits.scratch)
    _drop_privileges()
    if uses_landlock and (limits.visible or not own_namespaces):
        seen = [path for path in devices() if not limits.visible or path in limits.visible]
        # CUDA names its threads in /proc. Outside a namespace that is the machine's, of which root without capabilities
        # still owns what the whole system obeys.
        also = (*seen, *(("/proc", *private_root.EVERYBODYS) if own_namespaces else ("/proc/self",)))
        network = limits.loopback and own_namespaces
        readable = (*(limits.visible or ("/",)), "/proc")
        landlock.restrict(readable, (limits.scratch, *limits.writable, *also), network)
    if limits.secret:
        prctl(_PR_SET_DUMPABLE, 0)
    if uses_seccomp:
        seccomp.install(network=limits.loopback and own_namespaces, trusted=limits.secret)
    try:
        child()
    except BaseException:  # noqa: B036 - nothing may unwind into the warden's stack
        traceback.print_exc()
    finally:  # even when there is nowhere to print to
        os._exit(OWN_FAULT)  # a child ends itself


def _set_limits(limits: Limits) -> None:
    size = limits.memory_mb << 20
    files = MAX_OPEN_FILES
    if limits.own_files:  # half of what the supervisor has, at most
        files = min(MAX_OPEN_FILES_OF_CANDIDATE, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, size),
        (resource.RLIMIT_NOFILE, files),
        *([(resource.RLIMIT_NPROC, MAX_TASKS)] if _in_own_user_namespace() else []),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


def _in_own_user_namespace() -> bool:
    """Whether this process is in a user namespace of its jail, which holds one user: the number of a user's threads is
    counted in it alone. Outside one, all of that user's count, of whom we know nothing."""
    with contextlib.suppress(OSError):
        return Path("/proc/self/uid_map").read_text().split()[2:] == ["1"]
    return False


def _set_environment(limits: Limits) -> None:
    scratch = limits.scratch
    kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    os.environ.clear()
    os.environ.update(kept | {"HOME": scratch, "TMPDIR": scratch, "TORCH_EXTENSIONS_DIR": scratch})
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch
    os.environ["KINETO_LOG_LEVEL"] = "99"  # PyTorch's profiler would write of itself to where a last word is looked for
    tempfile.tempdir = None  # found out before the fork, from another environment
    os.environ["CUDA_MODULE_LOADING"] = "LAZY"
    if limits.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = limits.gpu
    if limits.one_queue:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"


def _drop_privileges() -> None:
    """Give up every capability for good. A root child keeps the files it owns and loses the rest of root."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    number = _SYS_CAPSET.get(os.uname().machine)
    if number is not None:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        _libc.syscall(number, header, (ctypes.c_uint32 * 6)())


def _volunteer() -> None:
    """When the whole machine runs out of memory, the system is to end a candidate before anything else of ours."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def enter_namespaces() -> bool:
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


def _raise_loopback() -> None:
    """Switch on the only interface of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link, contextlib.suppress(OSError):
        fcntl.ioctl(link, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _narrow_file_system(limits: Limits) -> list[int]:
    """Own /proc, and all read-only but the writable folders. Each step is best effort: a container may refuse.

    Returns the folders that are on file systems of the child's own, opened, its scratch first; none where it has none.
    """
    if _libc.unshare(_CLONE["mnt"]) != 0:  # here and not in the warden, which needs the outer /proc
        return []
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    folders = [folder for folder in (limits.scratch, *limits.writable) if os.path.isdir(folder)]
    own = {limits.scratch: limits.files_mb} if limits.own_files else {}
    private = dict.fromkeys(private_root.EVERYBODYS, limits.tmp_mb) if limits.tmp_mb else {}
    shown = [folder for folder in folders if folder not in own]
    if limits.visible and private_root.enter(limits.visible, shown, private | own, MAX_FILES):
        opened = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for folder in (*own, *private) if own]
        if _set_read_only("/", True):
            for folder in (*private, *own):  # but not what is shown in them: Python itself may be installed there
                _set_read_only(folder, False, recursive=False)
            for folder in shown:
                _set_read_only(folder, False)
        _open_proc()
        return opened
    for folder in folders:
        _mount(folder, folder, None, _MS_BIND | _MS_REC)
    if _set_read_only("/", True):
        for folder in folders:
            _set_read_only(folder, False)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _open_proc()
    return []


def _open_proc() -> None:
    """Writable, for CUDA names its threads there, but for what belongs to the whole machine: root without
    capabilities still owns that."""
    for path in _HIDDEN_PROC:
        if os.path.exists(path):
            _mount("/dev/null", path, None, _MS_BIND)
    machine = [path for path in _MACHINE_PROC if os.path.exists(path)]
    for path in machine:
        _mount(path, path, None, _MS_BIND | _MS_REC)
    _set_read_only("/proc", False)
    for path in machine:
        _set_read_only(path, True)


def _mount(source: str | None, target: str, kind: str | None, flags: int) -> bool:
    encoded = [text.encode() if text is not None else None for text in (source, target, kind)]
    return bool(_libc.mount(*encoded, ctypes.c_ulong(flags), None) == 0)


def _set_read_only(path: str, on: bool, recursive: bool = True) -> bool:
    attributes = (ctypes.c_uint64 * 4)(*((_MOUNT_ATTR_RDONLY, 0) if on else (0, _MOUNT_ATTR_RDONLY)), 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE if recursive else 0, attributes, size
    )
    return bool(result == 0)


def prctl(option: int, value: int) -> None:
    _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)
