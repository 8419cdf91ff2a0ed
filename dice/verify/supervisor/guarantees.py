"""What the sandbox really gives on this host: children under a candidate's limits try to get out.

A tier's name says which mechanisms were asked for; a container or an old kernel may grant less. So the guarantees are
tried: a bait is laid out for each (a listening socket, another job's file, a sleeping process), and a child, jailed as
candidates are, goes for it. `broken` is quick and its answer stands in every verdict (`Verdict.lacking`); `examine`
tries the limits too, for `dice doctor`. Neither changes anything on the machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dice.verify.build.cache import Cache
from dice.verify.ipc.channel import Channel
from dice.verify.ipc.encoding import claim, is_a, read
from dice.verify.sandbox.cancel import Starter
from dice.verify.sandbox.jail import (
    ENVIRONMENT,
    MAX_OPEN_FILES,
    MAX_PROCESSES,
    MAX_TASKS,
    PR_SET_PDEATHSIG,
    WITHOUT,
    Limits,
    prctl,
)
from dice.verify.sandbox.process import ChildEnded, DeadlineExceeded, MachineryError, wait_for
from dice.verify.sandbox.roles import GUARANTEES
from dice.verify.sandbox.scratch import Scratch
from dice.verify.supervisor.job_files import job_files

PATIENCE_S = 30.0
OVERDUE_S = 20.0  # a limit that has not ended a child by then does not hold
_OWN_VARIABLES: tuple[str, ...] = ("HOME", "TMPDIR", "TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "PYTHONPATH")
_OWN_VARIABLES += (
    "KINETO_LOG_LEVEL",
    "CUDA_MODULE_LOADING",
    "LC_CTYPE",
    "PWD",
    WITHOUT,
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
)
_IPC_PRIVATE, _IPC_CREAT, _IPC_RMID = 0, 0o1000, 0
_PTRACE_SEIZE, _CLONE_NEWUSER, _MS_BIND = 0x4206, 0x10000000, 4096
REFUSED = 3  # exit code of a child to which the system gave no more
_libc = ctypes.CDLL(None, use_errno=True)

# What the whole system obeys. Opened, and nothing is written.
MACHINE = ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger", "/proc/pressure/memory")

PROMISES = {
    "network": "connects to nothing, not even on this machine",
    "local sockets": "reaches no service of this machine through a socket without a file",
    "files": "reads no file of the user, of the system's administration, of another job",
    "writes": "writes nowhere but in its own folder",
    "processes": "sees and signals no other process",
    "memory of others": "reads no other process's memory",
    "shared memory": "attaches no memory that others share",
    "privileges": "holds no capability and gains none",
    "system calls": "cannot mount, trace, load programs into the system, or make namespaces",
    "environment": "inherits no variable but an allowlist",
    "terminal": "has no terminal",
    "resource limits": "has limits on open files and file sizes, and dumps no core",
    "memory limit": "is ended when it, with all it starts, uses too much memory, shared memory included",
    "process limit": "is ended when it starts too many processes",
    "thread limit": "is ended when it starts too many threads",
    "disk limit": "cannot fill the disk, be it with files that have no name",
    "no leftovers": "leaves no process behind, whatever it starts",
}
LIMITS = ("memory limit", "process limit", "thread limit", "disk limit", "no leftovers")


@dataclass(frozen=True, slots=True)
class Guarantee:
    """`promise`: what a candidate does not do. `found`: how it did all the same, where it is not held."""

    name: str
    promise: str
    held: bool
    found: str = ""


@dataclass(frozen=True, slots=True)
class Isolation:
    """`tier`: the mechanisms in use, as `sandbox.tier` names them."""

    tier: str
    guarantees: tuple[Guarantee, ...]

    @property
    def lacking(self) -> tuple[str, ...]:
        return tuple(guarantee.name for guarantee in self.guarantees if not guarantee.held)


@dataclass(frozen=True, slots=True)
class Bait:
    """What a child is to go for: a port and a socket's name (`mark`), a process, shared memory, files to read, folders
    to write in."""

    mark: str
    port: int
    pid: int
    segment: int
    files: tuple[str, ...]
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Escape:
    """To the child: go for all of it. Answered by `Tried`."""

    bait: Bait


@dataclass(frozen=True, slots=True)
class Offend:
    """To the child: break one limit. Its end is the answer."""

    limit: str


@dataclass(frozen=True, slots=True)
class Tried:
    """By guarantee, how it was broken."""

    broken: dict[str, str]


def broken(starter: Starter, cache_dir: Path, limits: Limits) -> tuple[str, ...]:
    """The guarantees that do not hold for a child under `limits`, where trying is quick. Raises `MachineryError`."""
    return tuple(sorted(_escape(starter, cache_dir, limits)[1]))


def examine(starter: Starter, cache_dir: Path, limits: Limits) -> Isolation:
    """All guarantees, the limits included, which takes some seconds. Raises `MachineryError`."""
    tier, found = _escape(starter, cache_dir, limits)
    for name in LIMITS:
        if failure := _try_limit(starter, name, limits):
            found[name] = failure
    tried = [Guarantee(name, promise, name not in found, found.get(name, "")) for name, promise in PROMISES.items()]
    return Isolation(tier, tuple(tried))


def _escape(starter: Starter, cache_dir: Path, limits: Limits) -> tuple[str, dict[str, str]]:
    """The tier, and how each broken guarantee showed."""
    with job_files(cache_dir) as files, _bait(cache_dir) as bait:
        own = replace(limits, scratch=str(files.outputs), visible=(*limits.visible, str(files.builds)))
        with starter.spawn(GUARANTEES, own) as child:
            child.send(Escape(bait))
            try:
                answer = wait_for(child, (), time.monotonic() + PATIENCE_S)
            except (ChildEnded, DeadlineExceeded) as error:
                said = child.log.decode(errors="replace").strip()[-300:]
                raise MachineryError(f"the sandbox could not be tried ({error}): {said}") from None
            found = dict(claim(answer, Tried).broken)
            written = [folder for folder in bait.folders if _take_away(Path(folder) / bait.mark)]
            # In the real folder, and not in one of its own that has the same name.
            if written and "writes" not in found:
                found["writes"] = f"it could write in {', '.join(written)}"
            return child.sandbox, found


def _try_limit(starter: Starter, name: str, limits: Limits) -> str:
    """Why the limit does not hold, or ""."""
    reasons = {
        "memory limit": "memory",
        "process limit": "processes",
        "thread limit": "processes",
        "disk limit": "files",
    }
    with Scratch() as scratch:
        folder = scratch.root / "outputs"
        small = replace(limits, scratch=str(folder), memory_mb=192, files_mb=16)
        with starter.spawn(GUARANTEES, small) as child:
            child.send(Offend(name))
            try:
                while True:
                    wait_for(child, (), time.monotonic() + OVERDUE_S)
            except DeadlineExceeded:
                return "it went on and on" if name in reasons else "a process it had started lived on"
            except ChildEnded as end:
                ended = end.ended
        if name in reasons and ended.reason != reasons[name] and ended.code != REFUSED:
            return f"it was ended otherwise: {ended.describe()}"
        return ""  # and all that it had started: its channel is closed in every process that had it


def _take_away(path: Path) -> bool:
    """Remove a file; whether it was there."""
    with contextlib.suppress(OSError):
        path.unlink()
        return True
    return False


@contextlib.contextmanager
def _bait(cache_dir: Path) -> Iterator[Bait]:
    mark = f"dice-bait-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        local = stack.enter_context(socket.socket(socket.AF_UNIX))
        local.bind(f"\0{mark}")
        local.listen()
        other = stack.enter_context(Scratch())
        (other.root / "inputs" / "bait").write_text(mark)
        elsewhere = stack.enter_context(job_files(cache_dir))
        built = stack.enter_context(Cache(cache_dir / "extensions").scratch())
        kept = [
            cache_dir / f"{mark}.kept",
            built / "unit0.cpp",
            built / "extension.so",
            elsewhere.builds / "extension.so",
        ]
        for path in kept:
            path.write_text(mark)
        stack.callback(kept[0].unlink, missing_ok=True)
        command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)", mark]
        sleeper = stack.enter_context(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        stack.callback(sleeper.kill)
        segment = int(_libc.shmget(_IPC_PRIVATE, 4096, _IPC_CREAT | 0o600))
        stack.callback(_libc.shmctl, segment, _IPC_RMID, None)
        files = (*map(str, (other.root / "inputs" / "bait", *kept)), "/etc/shadow", "/etc/hostname")
        folders = (
            *map(str, (other.root, cache_dir, built, elsewhere.builds, Path(__file__).parent)),
            *(sys.prefix, str(Path.home()), "/", "/usr", "/etc", "/var/tmp", "/tmp", "/dev/shm"),
        )
        yield Bait(mark, server.getsockname()[1], sleeper.pid, segment, files, folders)


# ---- the child ----------------------------------------------------------------------------------------------------


def main(link: socket.socket) -> None:
    channel = Channel(link)
    told = channel.receive()
    if is_a(told, Offend):
        OFFENCES[read(told, Offend).limit]()
        return
    bait = read(told, Escape).bait
    attempts = {name: attempt(bait) for name, attempt in ATTEMPTS.items()}
    channel.send(Tried({name: found for name, found in attempts.items() if found}))
    channel.receive()  # the supervisor ends this process


def _network(bait: Bait) -> str:
    try:
        socket.create_connection(("127.0.0.1", bait.port), timeout=2).close()
    except OSError:
        return ""
    return "it connected to a port of this machine"


def _local_sockets(bait: Bait) -> str:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
        link.connect(f"\0{bait.mark}")
        return "it connected to an abstract socket"
    return ""


def _files(bait: Bait) -> str:
    readable = [path for path in bait.files if _can_read(path)]
    return "it read " + ", ".join(readable) if readable else ""


def _can_read(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.read(1)
        return True
    return False


def _writes(bait: Bait) -> str:
    """Leaves files, in whatever folders it can: the supervisor looks which of them are there for others, too."""
    for folder in bait.folders:
        with contextlib.suppress(OSError):
            (Path(folder) / bait.mark).touch()
    for path in MACHINE:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY))
            return f"it could write to {path}"
    return ""


def _processes(bait: Bait) -> str:
    with contextlib.suppress(OSError):
        os.kill(bait.pid, 0)
        return "it could signal another process"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if bait.mark.encode() in path.read_bytes():
                return "it saw another process's command line"
    return ""


def _memory_of_others(bait: Bait) -> str:
    pid = bait.pid
    if _libc.ptrace(_PTRACE_SEIZE, pid, None, None) == 0:
        return "it traced another process"
    with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "rb"):
        return "it opened another process's memory"
    return ""


def _shared_memory(bait: Bait) -> str:
    _libc.shmat.restype = ctypes.c_void_p
    address = _libc.shmat(bait.segment, None, 0)
    return "it attached a segment of shared memory" if address != ctypes.c_void_p(-1).value else ""


def _privileges(_: Bait) -> str:
    with open("/proc/self/status") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    if int(status["CapEff"], 16) or int(status["CapPrm"], 16):
        return "it holds capabilities"
    return "" if status["NoNewPrivs"] == "1" else "it may gain privileges from a program"


def _system_calls(_: Bait) -> str:
    """In a fork: what succeeds would change this process."""
    pid = os.fork()
    if pid == 0:
        done = _libc.unshare(_CLONE_NEWUSER) == 0, _libc.mount(b"/", b"/", None, ctypes.c_ulong(_MS_BIND), None) == 0
        os._exit(1 if any(done) else 0)
    return "" if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 else "it made a namespace, or mounted"


def _environment(_: Bait) -> str:
    with open("/proc/self/environ", "rb") as file:
        inherited = {item.partition(b"=")[0].decode(errors="replace") for item in file.read().split(b"\0") if item}
    known = {*ENVIRONMENT, *_OWN_VARIABLES}
    odd = sorted((inherited | set(os.environ)) - known)
    return f"it saw {', '.join(odd)[:200]}" if odd else ""


def _terminal(_: Bait) -> str:
    with contextlib.suppress(OSError), open("/dev/tty", "rb"):
        return "it opened the terminal"
    return ""


def _resource_limits(_: Bait) -> str:
    files, size, core = (
        resource.getrlimit(what)[1] for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
    )
    return "" if 0 < files <= MAX_OPEN_FILES and size != resource.RLIM_INFINITY and core == 0 else "they were not set"


ATTEMPTS: dict[str, Callable[[Bait], str]] = {
    "network": _network,
    "local sockets": _local_sockets,
    "files": _files,
    "writes": _writes,
    "processes": _processes,
    "memory of others": _memory_of_others,
    "shared memory": _shared_memory,
    "privileges": _privileges,
    "system calls": _system_calls,
    "environment": _environment,
    "terminal": _terminal,
    "resource limits": _resource_limits,
}


def _use_memory() -> None:
    """Memory that a process fills and leaves to another: it is in nobody's resident set then."""
    kept = []
    while True:
        kept.append(mmap.mmap(-1, 16 << 20))
        if os.fork() == 0:
            kept[-1].write(b"x" * (16 << 20))
            os._exit(0)
        os.wait()


def _start_threads() -> None:
    _start_many(lambda: threading.Thread(target=time.sleep, args=(60,)).start(), 2 * MAX_TASKS)


def _start_processes() -> None:
    # A fork of this process costs far more. Each is adopted by somebody else at once.
    command = ["/bin/sh", "-c", "sleep 60 & sleep 60 &"]
    _start_many(lambda: os.posix_spawn("/bin/sh", command, {}), MAX_PROCESSES + 64)


def _start_many(start: Callable[[], object], count: int) -> None:
    try:
        for _ in range(count):
            start()
    except (OSError, RuntimeError):
        os._exit(REFUSED)
    time.sleep(60)


def _fill_disk() -> None:
    """With files that have no name any more."""
    try:
        for number in range(64):
            descriptor = os.open(f"fill{number}", os.O_CREAT | os.O_WRONLY)
            os.unlink(f"fill{number}")
            os.write(descriptor, b"x" * (1 << 20))
    except OSError:
        os._exit(REFUSED)
    time.sleep(60)


def _leave_a_process() -> None:
    prctl(PR_SET_PDEATHSIG, 0)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    os.wait()
    os._exit(0)


OFFENCES: dict[str, Callable[[], None]] = dict(
    zip(LIMITS, (_use_memory, _start_processes, _start_threads, _fill_disk, _leave_a_process), strict=True)
)
