"""The trusted process beside every child: it starts the child jailed, measures what it takes, and ends it.

Three processes per child: the *warden*; the *init*, the first process of the child's PID namespace, so that its end
ends everything inside; and the child itself. The warden adopts whatever the child leaves behind, and kills it at the
end. What a child may take is counted in a control group of its own where there is one (`cgroups.py`), which nothing
escapes and which also ends what grows faster than we look; else by what /proc says (`usage.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence

from dice.verify.sandbox import cgroups
from dice.verify.sandbox.jail import (
    MAX_DESCRIPTORS,
    MAX_PROCESSES,
    MAX_TASKS,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    Limits,
    Passage,
    enter_namespaces,
    prctl,
    run_init,
    tier,
    uses,
)
from dice.verify.sandbox.scratch import stored_kb
from dice.verify.sandbox.usage import Meter, descendants, memory_kb, nameless_kb

SLACK_MB = 64  # what the kernel holds for a child beside its memory and files, before it is ended for that
FIRST_LOOK_S, LAST_LOOK_S = 0.02, 0.2  # between two looks at what a child takes, in its first moments and later
KILLING_S = 10.0


def run_warden(
    control: socket.socket,
    limits: Limits,
    child: Callable[[], None],
    parent: int,
    groups: cgroups.Parent | None = None,
) -> None:
    """Run `child` jailed, report on `control` how it ended, and leave nothing of it behind. Never returns.

    `parent` is who forked this process, as told before the fork: with its end, which may come before we could ask who
    our parent is, nobody wants the child any more.

    Reports are JSON lines: `{"sandbox": tier}` at the start, with the open folder that the child writes to where it is
    on a file system of its own, and `{"exit": code} | {"signal": number}` at the end, with `reason` (`memory`,
    `processes`, `files`, `cancelled` or empty). The end of `control` on the other side kills the child.
    """
    os.setsid()
    signal.signal(signal.SIGTERM, _end)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)  # not killed: what it guards would live on
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    own_namespaces = uses("namespaces") and enter_namespaces()
    status_read, status_write = os.pipe()
    gate, inner_gate = socket.socketpair()
    inherited_kb = memory_kb(os.getpid())
    group = _make_group(groups, limits)
    warden = os.getpid()
    init, group = _fork(group)
    if init == 0:
        for ours in (control, gate):
            ours.close()
        os.close(status_read)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        run_init(status_write, own_namespaces, limits, child, warden, Passage(inner_gate))
    os.close(status_write)
    inner_gate.close()
    reason, code = "", -int(signal.SIGKILL)
    try:
        if os.getppid() != parent:
            raise _Ended
        sandbox: dict[str, object] = {"sandbox": tier(own_namespaces, group is not None)}
        folders = let_in(gate, lambda folders: _send(control, sandbox, folders[:1]))
        reason = _watch(control, status_read, limits, group or Meter(warden, inherited_kb, limits.memory_mb), folders)
    except _Ended:
        _clear(init, group)
        os._exit(1)
    except BaseException:  # noqa: B036 - whatever fails in here, the child must not outlive it
        traceback.print_exc()
        _clear(init, group)
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    status = os.read(status_read, 64) if reason == "" else b""
    code = int(status) if status else code
    if code == -signal.SIGKILL and not reason and group is not None:
        reason = group.was_short()  # the kernel was quicker than we
    _clear(init, group)
    _send(control, {"signal": -code, "reason": reason} if code < 0 else {"exit": code, "reason": reason})
    os._exit(0)


class _Ended(BaseException):
    """The zygote is gone, and with it whoever wanted this child."""


def _end(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Ended


def _make_group(groups: cgroups.Parent | None, limits: Limits) -> cgroups.Group | None:
    """For what runs code of others. Compilers have limits of their own, and start too often to be slowed down."""
    if groups is None or not (limits.own_files or limits.secret) or not uses("cgroups"):
        return None
    hard_mb = limits.memory_mb + 2 * limits.tmp_mb + SLACK_MB + (limits.files_mb if limits.own_files else 0)
    with contextlib.suppress(OSError):
        return cgroups.Group(groups, hard_mb, MAX_TASKS)
    return None


def _fork(group: cgroups.Group | None) -> tuple[int, cgroups.Group | None]:
    """Fork into the group; without it, where the machine does not let us."""
    if group is not None:
        try:
            return group.fork(), group
        except OSError:
            group.remove()
    return os.fork(), None


def let_in(gate: socket.socket, report: Callable[[Sequence[int]], None]) -> Sequence[int]:
    """Hear from the init that the jail is made, `report` it, and let it start the child, whose messages nobody then
    hears before that report. Open folders on file systems of the child's own: the one it writes to first."""
    said, folders, _, _ = socket.recv_fds(gate, 1, 3)
    report(folders)
    if said:
        gate.send(b"go")
    gate.close()
    return folders


def _watch(
    control: socket.socket, status: int, limits: Limits, account: cgroups.Group | Meter, folders: Sequence[int]
) -> str:
    """Wait for the child's end and return ""; return why it must be killed otherwise."""
    pause, warden = FIRST_LOOK_S, os.getpid()
    while True:
        readable, _, _ = select.select([control.fileno(), status], [], [], pause)
        if status in readable:
            return ""
        if control.fileno() in readable:
            return "cancelled"
        reason = _over_in_group(account, limits, folders) if isinstance(account, cgroups.Group) else _over(account)
        if reason:
            return reason
        if limits.files_mb and not folders and _stored_kb(limits, warden) > limits.files_mb << 10:
            return "files"
        pause = min(LAST_LOOK_S, pause * 1.5)


def _over_in_group(group: cgroups.Group, limits: Limits, folders: Sequence[int]) -> str:
    """Files on a file system in memory are in the kernel's account too, but have a limit of their own: its size."""
    if group.was_short():
        return group.was_short()
    if group.processes() > MAX_PROCESSES or group.tasks() >= MAX_TASKS:
        return "processes"
    return "memory" if group.memory_bytes() - sum(map(_bytes_in, folders)) > limits.memory_mb << 20 else ""


def _over(meter: Meter) -> str:
    usage = meter.read()
    if usage.processes > MAX_PROCESSES or usage.tasks > MAX_TASKS or usage.descriptors > MAX_DESCRIPTORS:
        return "processes"
    return "memory" if usage.memory_kb > meter.most_kb else ""


def _bytes_in(folder: int) -> int:
    system = os.fstatvfs(folder)
    return (system.f_blocks - system.f_bfree) * system.f_frsize


def _stored_kb(limits: Limits, warden: int) -> int:
    """In the child's folders, with and without a name."""
    return stored_kb((limits.scratch, *limits.writable)) + nameless_kb(descendants(warden), limits.scratch)


def _clear(init: int, group: cgroups.Group | None) -> None:
    """Kill until nothing is left: the init (and so its namespace), then whatever the warden has adopted."""
    deadline = time.monotonic() + KILLING_S
    if group is not None:
        group.kill()
    while time.monotonic() < deadline and _some_left(init):
        time.sleep(0.002)
    if group is not None:
        group.remove()


def _some_left(init: int) -> bool:
    for pid in (init, *descendants(os.getpid())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _send(control: socket.socket, message: dict[str, object], folders: Sequence[int] = ()) -> None:
    line = json.dumps(message).encode() + b"\n"
    with contextlib.suppress(OSError):
        if folders:
            socket.send_fds(control, [line], folders)
        else:
            control.sendall(line)
