"""A system call filter: calls that no kernel file needs, and that attacks on the system do, fail for good.

Needs no privilege. CUDA, PyTorch and compilers run under it. See `man 2 seccomp`; the program is classic BPF.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*
_X32 = 0x40000000  # x86-64's second set of numbers
_AF_UNIX = 1
_CLONE3, _FROM_425 = 435, (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 443, 467)  # alike everywhere
_NONE = 0xFFFFFFFF  # a number that no call has
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_PRCTL = {"x86_64": 157, "aarch64": 167}
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4  # to outlive us, and to hide from who counts

# Reading other processes, loading code into the system's kernel, mounting, namespaces, keys, profiling hardware,
# handling other processes' page faults, opening files by handle, setting clocks, System V's shared memory, semaphores
# and queues, which outlive processes. Above 425: io_uring, the new mount
# calls, pidfd_getfd, quotactl_fd, open_tree_attr.
_DENIED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "modify_ldt": (154, _NONE),
}
# Memory that belongs to no process and no file system, so that none of our counts has it.
_DENIED_TO_CANDIDATES = {"memfd_create": (319, 279), "memfd_secret": (447, 447)}

_libc = ctypes.CDLL(None, use_errno=True)


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(_Instruction))]


@functools.cache
def available() -> bool:
    """Whether this kernel takes such filters on this machine: it says so without one being installed."""
    # A filter at address 0: EFAULT from a kernel that would have read it.
    refused = _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0) != 0
    return os.uname().machine in _AUDIT and refused and ctypes.get_errno() == errno.EFAULT


def install(network: bool = False, trusted: bool = False) -> bool:
    """From now on this process and all it starts is filtered. False when the kernel cannot do it.

    With `network`, sockets of every kind may be made: only for a process whose network leads nowhere. `trusted`: it may
    make memory to lend.
    """
    machine = os.uname().machine
    if machine not in _AUDIT:
        return False
    lines = _assemble(machine, network, trusted)
    program = _Program(len(lines), (_Instruction * len(lines))(*lines))
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return bool(_libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) == 0)


def _assemble(machine: str, network: bool = False, trusted: bool = False) -> list[_Instruction]:
    """The program, as (operation, operand, label if so, label if not); None is the next line."""
    column = list(_AUDIT).index(machine)
    table = _DENIED if trusted else _DENIED | _DENIED_TO_CANDIDATES
    denied = [numbers[column] for numbers in table.values()] + list(_FROM_425)
    lines: list[tuple[str, int, int, str | None, str | None]] = [
        ("", _LOAD, _ARCHITECTURE, None, None),
        ("", _EQUAL, _AUDIT[machine], None, "unknown"),
        ("", _LOAD, _NUMBER, None, None),
        ("", _AT_LEAST, _X32, "unknown", None),
        ("", _EQUAL, _CLONE[machine], "clone", None),
        ("", _EQUAL, _SOCKET[machine], "allowed" if network else "socket", None),
        ("", _EQUAL, _PRCTL[machine], "prctl", None),
        ("", _EQUAL, _CLONE3, "unknown", None),  # its flags are in memory, which no filter reads; libc then uses clone
        *(("", _EQUAL, number, "denied", None) for number in denied),
        ("allowed", _RETURN, _ALLOW, None, None),
        ("clone", _LOAD, _FIRST_ARGUMENT, None, None),
        ("", _ANY_BIT, _NEW_NAMESPACES, "denied", "allowed too"),
        ("prctl", _LOAD, _FIRST_ARGUMENT, None, None),
        ("", _EQUAL, _PR_SET_PDEATHSIG, "denied", None),
        ("", _EQUAL, _PR_SET_DUMPABLE, "denied", "allowed too"),
        ("socket", _LOAD, _FIRST_ARGUMENT, None, None),
        ("", _EQUAL, _AF_UNIX, "allowed too", "denied"),
        ("allowed too", _RETURN, _ALLOW, None, None),
        ("denied", _RETURN, _ERRNO | errno.EPERM, None, None),
        ("unknown", _RETURN, _ERRNO | errno.ENOSYS, None, None),
    ]
    places = {line[0]: place for place, line in enumerate(lines) if line[0]}

    def distance(here: int, label: str | None) -> int:
        return places[label] - here - 1 if label else 0

    return [
        _Instruction(code, distance(here, yes), distance(here, no), k)
        for here, (_, code, k, yes, no) in enumerate(lines)
    ]
