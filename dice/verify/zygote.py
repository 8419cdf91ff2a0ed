"""The warm parent of every child: it imported PyTorch once and never touched CUDA, so a fork is ready in milliseconds.

`python -m dice.verify.zygote FD [MODULE...]` serves requests on a socket: one JSON packet `{role, limits}` with three
descriptors (control, channel, log) per child. The channel is the child's alone; the control socket is its warden's.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dice.prompts import EXAMPLE_PROBLEM
from dice.verify import cgroups
from dice.verify.channel import FAREWELL
from dice.verify.sandbox import OWN_FAULT, PR_SET_CHILD_SUBREAPER, Limits, prctl
from dice.verify.scratch import sweep
from dice.verify.usage import children, descendants
from dice.verify.warden import run_warden

MAX_PACKET = 1 << 16
DYING_S = 5.0  # a killed process that is not gone by then hangs in the kernel
WARM = (
    "torch",
    "torch.nn.functional",
    "torch.utils.cpp_extension",
    "torch.utils._python_dispatch",
    "torch.overrides",
    "numpy",
    "dice.verify.oracle",
    "dice.verify.candidate",
    "dice.verify.builder",
)


def serve(link: socket.socket, groups: cgroups.Parent | None) -> bool:
    """Fork one child per request until the other side says farewell, or is gone without. Whether it did. Each child's
    end is reported by its own warden."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # wardens are reaped by the kernel
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wardens: set[int] = set()
    while True:
        packet, descriptors, _, _ = socket.recv_fds(link, MAX_PACKET, 3)
        _kill_orphans(wardens)
        if not packet or packet == FAREWELL:
            _end_all(wardens, groups)
            return packet == FAREWELL
        if (warden := os.fork()) == 0:
            try:
                link.close()
                _become_child(json.loads(packet), descriptors, groups)
            finally:  # a warden, an init and a child end themselves; none may go on as a second zygote
                os._exit(OWN_FAULT)
        wardens.add(warden)
        for descriptor in descriptors:
            os.close(descriptor)


def _become_child(request: dict[str, Any], descriptors: list[int], groups: cgroups.Parent | None) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    control, channel, log = descriptors
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    told = request["limits"]
    limits = Limits(**(told | {name: tuple(told[name]) for name in ("writable", "visible")}))

    def child() -> None:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        role = request["role"]
        module = importlib.import_module(role if role.startswith("dice.") else f"dice.verify.{role}")
        module.main(socket.socket(fileno=channel))

    run_warden(socket.socket(fileno=control), limits, child, groups)


def _exercise() -> None:
    """Do once what every child does: PyTorch loads large parts of itself at first use, and forks then share them."""
    import torch

    from dice.verify import compile_commands as commands
    from dice.verify import emulator, execution, scale, toolchain

    torch.set_num_threads(1)  # a fork must not lose worker threads
    execution.seed_everything(0)
    model = torch.nn.Linear(2, 2)
    model.load_state_dict(copy.deepcopy(model).state_dict())
    with torch.no_grad():
        copy.deepcopy(model).double()(torch.rand(3, 2).double()).sum()
    with tempfile.TemporaryDirectory() as folder:
        scale.fit(EXAMPLE_PROBLEM, Path(folder), None, 1.0)
    emulator.compile_flags()  # reads /proc
    for known in (toolchain.host_compiler_version, commands.shadow_hash, commands.emulator_hash, commands.recipe_hash):
        with contextlib.suppress(toolchain.ToolchainError):  # said again, to the user, when something is to be built
            known()


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
        importlib.import_module(name)
    _exercise()
    groups = cgroups.open_parent()
    gc.collect()
    gc.freeze()  # forks then share these pages for good
    farewell = False
    with contextlib.suppress(OSError):
        link.send(b"ready")
        farewell = serve(link, groups)
    if not farewell:
        _clean_up(supervisor)


if __name__ == "__main__":
    main()
