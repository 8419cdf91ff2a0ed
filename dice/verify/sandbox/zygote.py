"""The warm parent of every child: it imported PyTorch once and never touched CUDA, so a fork is ready in milliseconds.

`python -m dice.verify.sandbox.zygote FD [MODULE...]` serves requests on a socket: one JSON packet `{module, limits}`
with three descriptors (control, channel, log) per child. The channel is the child's alone; the control socket is its
warden's.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time

from dice.files import JsonObject
from dice.verify.ipc.channel import FAREWELL
from dice.verify.sandbox import cgroups, huge_pages, roles
from dice.verify.sandbox.jail import OWN_FAULT, PR_SET_CHILD_SUBREAPER, Limits, prctl
from dice.verify.sandbox.scratch import sweep
from dice.verify.sandbox.usage import children, descendants
from dice.verify.sandbox.warden import run_warden

MAX_PACKET = 1 << 16
DYING_S = 5.0  # a killed process that is not gone by then hangs in the kernel
WARM = (
    "torch",
    "torch.nn.functional",
    "torch.utils.cpp_extension",
    "torch.utils._python_dispatch",
    "torch.overrides",
    "numpy",
    *(role.module for role in roles.WARM),
)


def serve(link: socket.socket, groups: cgroups.Parent | None) -> bool:
    """Fork one child per request until the other side says farewell, or is gone without. Whether it did. Each child's
    end is reported by its own warden."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # wardens are reaped by the kernel
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wardens: set[int] = set()
    own = os.getpid()
    while True:
        packet, descriptors, _, _ = socket.recv_fds(link, MAX_PACKET, 3)
        _kill_orphans(wardens)
        if not packet or packet == FAREWELL:
            _end_all(wardens, groups)
            return packet == FAREWELL
        if (warden := os.fork()) == 0:
            try:
                link.close()
                _become_child(json.loads(packet), descriptors, own, groups)
            finally:  # a warden, an init and a child end themselves; none may go on as a second zygote
                os._exit(OWN_FAULT)
        wardens.add(warden)
        for descriptor in descriptors:
            os.close(descriptor)


def _become_child(request: JsonObject, descriptors: list[int], zygote: int, groups: cgroups.Parent | None) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    control, channel, log = descriptors
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    told = request["limits"]
    limits = Limits(**(told | {name: tuple(told[name]) for name in ("writable", "visible")}))

    def child() -> None:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        importlib.import_module(request["module"]).main(socket.socket(fileno=channel))

    run_warden(socket.socket(fileno=control), limits, child, zygote, groups)


def _kill_orphans(wardens: set[int]) -> None:
    """Kill our children that are no wardens: what a warden guarded, who was killed, comes to us."""
    known = children(os.getpid())
    wardens.intersection_update(known)
    for pid in wardens.symmetric_difference(known):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _end_all(wardens: set[int], groups: cgroups.Parent | None) -> None:
    """Nobody wants the children any more: their wardens end them."""
    deadline = time.monotonic() + DYING_S
    for warden in wardens.intersection(children(os.getpid())):
        with contextlib.suppress(OSError):
            os.kill(warden, signal.SIGTERM)
    while left := descendants(os.getpid()):
        _kill_orphans(wardens)
        for pid in left if time.monotonic() > deadline else ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > 2 * DYING_S + deadline:
            break  # it hangs in the kernel
        time.sleep(0.005)
    if groups is not None:
        groups.remove()


def _clean_up(supervisor: int) -> None:
    """The supervisor was killed: its folders are removed, once it holds none."""
    deadline = time.monotonic() + DYING_S
    while os.getppid() == supervisor and time.monotonic() < deadline:
        time.sleep(0.01)  # its end of the link closes before its locks do
    sweep()


def main() -> None:
    supervisor = os.getppid()
    link = socket.socket(fileno=int(sys.argv[1]))
    # Importing torch.utils.cpp_extension asks whether a GPU is there. Asking the driver's management library instead of
    # CUDA keeps CUDA uninitialised here; a process forked after CUDA was initialised cannot use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    for name in (*WARM, *sys.argv[2:]):
        module = importlib.import_module(name)
        if hasattr(module, "warm_up"):  # does once what every such child does, so that forks share what that loads
            module.warm_up()
    gc.collect()
    gc.freeze()  # forks then share these pages for good
    huge_pages.collapse()
    groups = cgroups.open_parent()
    farewell = False
    with contextlib.suppress(OSError):
        link.send(b"ready")
        farewell = serve(link, groups)
    if not farewell:
        _clean_up(supervisor)


if __name__ == "__main__":
    main()
