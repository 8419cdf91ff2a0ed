"""What a child process may touch: namespaces, limits, environment, and the warden that ends it.

Three processes per child: the *warden* (trusted; watches memory and process count, and kills), the *init* (first
process of the child's PID namespace, so that its end ends everything inside), and the child itself.

Tiers, named in every verdict:
- `namespaces`: own PID, network, IPC and mount namespaces; a file system that holds only what is needed, read-only
  but for the child's own folders; no capabilities. A daemon or a fork bomb dies with its namespace.
- `process`: where the kernel refuses namespaces. Own session, limits, no capabilities; descendants are adopted by
  the warden and killed one by one.
In both, where the kernel has them: Landlock hides files and processes once more, and a filter of system calls refuses
the network, tracing, mounting and the like (the tier is then `namespaces+landlock+seccomp` or the like). What a host
really gives is tried out by `guarantees.py`. No tier filters the NVIDIA driver's ioctls.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dice.verify import landlock, seccomp, small_root
from dice.verify.scratch import stored_kb
from dice.verify.view import devices

MAX_PROCESSES = 256  # per child, threads not counted
MAX_OPEN_FILES = 4096
OWN_FAULT = 70  # exit code of a child whose own code let an exception out
WITHOUT = "DICE_SANDBOX_WITHOUT"  # mechanisms not to use, e.g. "namespaces,landlock": as on a kernel that lacks them
MECHANISMS = ("namespaces", "landlock", "seccomp")
_PRIVATE = ("/tmp", "/dev/shm")
_MACHINE_PROC = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi")
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
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
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


def tier(own_namespaces: bool) -> str:
    """The name of what a child runs under on this kernel."""
    parts = ["namespaces" if own_namespaces else "process"]
    parts += ["landlock"] if _uses("landlock") and landlock.version() else []
    parts += ["seccomp"] if _uses("seccomp") and seccomp.available() else []
    return "+".join(parts)


def _uses(mechanism: str) -> bool:
    return mechanism not in os.environ.get(WITHOUT, "").split(",")


def run_warden(control: socket.socket, limits: Limits, child: Callable[[], None]) -> None:
    """Run `child` jailed, report on `control` how it ended, and leave nothing of it behind. Never returns.

    Reports are JSON lines: `{"sandbox": tier}` at the start and `{"exit": code} | {"signal": number}` with `reason`
    (`memory`, `processes` or empty) at the end. The end of `control` on the other side kills the child.
    """
    parent = os.getppid()
    os.setsid()
    signal.signal(signal.SIGTERM, _end)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # not killed: what it guards would live on
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    own_namespaces = _uses("namespaces") and _enter_namespaces()
    tier_name = tier(own_namespaces)
    status_read, status_write = os.pipe()
    shared_kb = _memory_kb(os.getpid())
    warden = os.getpid()
    init = os.fork()
    if init == 0:
        os.close(status_read)
        control.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _run_init(status_write, own_namespaces, limits, child, warden)
    os.close(status_write)
    _send(control, {"sandbox": tier_name})
    try:
        if os.getppid() != parent:
            raise _Ended
        reason = _watch(control, status_read, init, limits, shared_kb)
    except _Ended:
        _kill_descendants(init)
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = os.read(status_read, 64) if reason == "" else b""
    _kill_descendants(init)
    code = int(status) if status else -signal.SIGKILL
    _send(control, {"signal": -code, "reason": reason} if code < 0 else {"exit": code, "reason": reason})
    os._exit(0)


class _Ended(BaseException):
    """The zygote is gone, and with it whoever wanted this child."""


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def die_with_parent(parent: int) -> None:
    """Be killed when `parent` ends, also when it just has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _run_init(status: int, own_namespaces: bool, limits: Limits, child: Callable[[], None], warden: int) -> None:
    die_with_parent(0 if own_namespaces else warden)  # a namespace has no number for what is outside
    if not limits.secret:
        _volunteer()
    if own_namespaces:
        if limits.loopback:
            _raise_loopback()
        _narrow_file_system(limits)
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
    uses_landlock, uses_seccomp = _uses("landlock"), _uses("seccomp")
    _set_limits(limits)
    _set_environment(limits)
    os.chdir(limits.scratch)
    _drop_privileges()
    if uses_landlock and (limits.visible or not own_namespaces):
        also = (*devices(), "/proc", *(_PRIVATE if own_namespaces else ()))
        network = limits.loopback and own_namespaces
        landlock.restrict(limits.visible or ("/",), (limits.scratch, *limits.writable, *also), network)
    if uses_seccomp:
        seccomp.install(network=limits.loopback and own_namespaces)
    if limits.secret:
        _prctl(_PR_SET_DUMPABLE, 0)
    try:
        child()
    except BaseException:  # noqa: B036 - nothing may unwind into the warden's stack
        traceback.print_exc()
    finally:  # even when there is nowhere to print to
        os._exit(OWN_FAULT)  # a child ends itself


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
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    number = _SYS_CAPSET.get(os.uname().machine)
    if number is not None:
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        _libc.syscall(number, header, (ctypes.c_uint32 * 6)())


def _volunteer() -> None:
    """When the whole machine runs out of memory, the system is to end a candidate before anything else of ours."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


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


def _raise_loopback() -> None:
    """Switch on the only interface of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link, contextlib.suppress(OSError):
        fcntl.ioctl(link, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _narrow_file_system(limits: Limits) -> None:
    """Own /proc, and all read-only but the writable folders. Each step is best effort: a container may refuse."""
    if _libc.unshare(_CLONE["mnt"]) != 0:  # here and not in the warden, which needs the outer /proc
        return
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    folders = [folder for folder in (limits.scratch, *limits.writable) if os.path.isdir(folder)]
    private = _PRIVATE if limits.tmp_mb else ()
    if limits.visible and small_root.enter(limits.visible, folders, private, limits.tmp_mb):
        if _set_read_only("/", True):
            for folder in private:  # but not what is shown in them: Python itself may be installed there
                _set_read_only(folder, False, recursive=False)
            for folder in folders:
                _set_read_only(folder, False)
        _open_proc()
        return
    for folder in folders:
        _mount(folder, folder, None, _MS_BIND | _MS_REC)
    if _set_read_only("/", True):
        for folder in folders:
            _set_read_only(folder, False)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _open_proc()


def _open_proc() -> None:
    """Writable, for CUDA names its threads there, but for what belongs to the whole machine: root without
    capabilities still owns that."""
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
        if limits.files_mb and stored_kb((limits.scratch, *limits.writable)) > limits.files_mb << 10:
            return "files"
        if _exceeds(pids, shared_kb, limits.memory_mb << 10):
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


def _exceeds(pids: Sequence[int], shared_kb: int, most_kb: int) -> bool:
    """Whether the processes together hold more memory; each already had `shared_kb` when it was forked.

    What a fork still shares with its parent counts in both at first: many small children of a large process would
    pass for a large one. Only where that sum is too much, the exact one is taken, which the kernel has to walk for.
    """
    if sum(max(0, _memory_kb(pid) - shared_kb) for pid in pids) <= most_kb:
        return False
    return sum(map(_share_kb, pids)) - shared_kb > most_kb


def _memory_kb(pid: int) -> int:
    """Private and shared memory a process has written to, in KiB; file mappings do not count."""
    return _kb(f"/proc/{pid}/status", ("RssAnon:", "RssShmem:")) or 0


def _share_kb(pid: int) -> int:
    """The same with each page divided by the processes that hold it, where the kernel says so."""
    kb = _kb(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:"))
    return _memory_kb(pid) if kb is None else kb


def _kb(path: str, names: tuple[str, ...]) -> int | None:
    """Sum of the named lines; None where there are none, as for a process that is gone."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) for line in lines if line.startswith(names)]
    return sum(found) if found else None


def _send(control: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


def _prctl(option: int, value: int) -> None:
    _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0)
