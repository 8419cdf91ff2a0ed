"""The warm parent of every child: it imported PyTorch once and never touched CUDA, so a fork is ready in milliseconds.

`python -m dice.verify.zygote FD` serves requests on a socket: one JSON packet `{role, limits}` with three descriptors
(control, channel, log) per child. The channel is the child's alone; the control socket is its warden's.
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
from typing import Any

from dice.verify.sandbox import Limits, run_warden

MAX_PACKET = 1 << 16
WARM = (
    "torch",
    "torch.nn.functional",
    "torch.utils.cpp_extension",
    "torch.utils._python_dispatch",
    "torch.overrides",
    "numpy",
    "dice.verify.oracle",
    "dice.verify.candidate",
)


def serve(link: socket.socket) -> None:
    """Fork one child per request until the other side closes. Each child's end is reported by its own warden."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # wardens are reaped by the kernel
    while True:
        packet, descriptors, _, _ = socket.recv_fds(link, MAX_PACKET, 3)
        if not packet:
            return
        if os.fork() == 0:
            link.close()
            _become_child(json.loads(packet), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _become_child(request: dict[str, Any], descriptors: list[int]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    control, channel, log = descriptors
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    limits = Limits(**(request["limits"] | {"writable": tuple(request["limits"]["writable"])}))

    def child() -> None:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        module = importlib.import_module(f"dice.verify.{request['role']}")
        module.main(socket.socket(fileno=channel))

    run_warden(socket.socket(fileno=control), limits, child)


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # forks then share these pages for good
    with contextlib.suppress(OSError):
        link.send(b"ready")
        serve(link)


if __name__ == "__main__":
    main()
