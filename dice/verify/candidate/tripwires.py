"""Reports what a kernel file has no reason to do, at the moment it does it.

A Python audit hook: it cannot be taken out again, and what it reports is sent before the deed is done, so nothing
that follows can unsay it. It sees Python code of the file (text that it runs with `exec` included) and nothing native.

| notice | deed |
|---|---|
| `frames` | walks the call stack or tracebacks to other code's variables |
| `heap` | lists the process's objects through `gc` |
| `verifier` | imports the verifier |
| `code` | replaces the code of a function |
| `recorder` | stops the profiler that counts what PyTorch computes (`profiler_census.py` tells) |
| `files` | looks at other processes, or at other folders where verifications keep files |
| `memory` | has its forward read or write memory by its address, through ctypes |
| `native` (a remark) | calls C through ctypes |
| `fork` | has its forward make a process, in which nothing that counts operators can look |
| `process` (a remark) | starts a program, or forks elsewhere |
| `network` (a remark) | makes a socket |
| `thread` (a remark) | starts a thread |

All but the remarks are tampering.
"""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable
from typing import Any

_EVENTS = {
    "sys._getframe": "frames",
    "sys._current_frames": "frames",
    "sys._current_exceptions": "frames",
    "sys.settrace": "frames",
    "sys.setprofile": "frames",
    "gc.get_objects": "heap",
    "gc.get_referrers": "heap",
    "gc.get_referents": "heap",
    "ctypes.dlopen": "native",
    "ctypes.cdata": "memory",
    "ctypes.cdata/buffer": "native",
    "ctypes.addressof": "native",
    "ctypes.call_function": "native",
    "ctypes.string_at": "memory",
    "ctypes.wstring_at": "memory",
    "os.fork": "fork",
    "os.forkpty": "fork",
    "os.exec": "process",
    "os.posix_spawn": "process",
    "os.system": "process",
    "subprocess.Popen": "process",
    "socket.__new__": "network",
    "_thread.start_new_thread": "thread",
}
_ELSEWHERE = {"fork": "process", "memory": "native"}  # what these are while no outputs are made
_FRAME_ATTRIBUTES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})
_CODE_ATTRIBUTES = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
_PATH_EVENTS = frozenset({"open", "os.listdir", "os.scandir", "glob.glob", "os.walk", "shutil.copyfile"})
_HELPERS = (  # of the standard library: what they do, they do for their caller
    *("/inspect.py", "/traceback.py", "/subprocess.py", "/threading.py", "/socket.py", "/ctypes/__init__.py"),
    *("/pathlib.py", "/os.py", "/glob.py", "/importlib/__init__.py", "/shutil.py", "/tempfile.py", "<frozen os>"),
    *("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"),
)
_MAX_DEPTH = 12


def arm(
    report: Callable[[str], None],
    own_file: str,
    own_folder: str,
    secret_folders: tuple[str, ...],
    in_forward: Callable[[], bool],
) -> None:
    """From now on, `report` the notices that the code of `own_file` earns, each once.

    `secret_folders`: where paths are nobody's business but below `own_folder`. `in_forward`: whether the outputs are
    being made.
    """
    seen: set[str] = set()
    busy: set[int] = set()
    get_frame, own_thread, text, is_instance = sys._getframe, _thread.get_ident, str, isinstance
    resolve, decode = os.path.realpath, os.fsdecode  # as they are now, before the file can replace them

    def kind_of(event: str, args: tuple[Any, ...]) -> str:
        known = _EVENTS.get(event)
        if known is not None:
            return known if in_forward() else _ELSEWHERE.get(known, known)
        if event == "object.__getattr__":
            return "frames" if args[1] in _FRAME_ATTRIBUTES else ""
        if event == "object.__setattr__":
            return "code" if args[1] in _CODE_ATTRIBUTES else ""
        if event == "import":
            return "verifier" if text(args[0]).partition(".")[0] == "dice" else ""
        if event in _PATH_EVENTS and args and is_instance(args[0], str | bytes):
            path = decode(args[0])
            # Both as it is said and as it is meant: "//proc", "../..", a link to either.
            for one in (path, resolve(path) if "\0" not in path else path):
                if not one.startswith(own_folder) and one.startswith(secret_folders):
                    return "files"
        return ""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        kind = kind_of(event, args)
        if not kind or kind in seen or own_thread() in busy:
            return
        busy.add(own_thread())  # looking at frames is an event too
        try:
            look(kind)
        finally:
            busy.discard(own_thread())

    def look(kind: str) -> None:
        frame = get_frame(2)
        for _ in range(_MAX_DEPTH):
            if frame is None:
                return
            file = frame.f_code.co_filename
            if file == own_file or file == "<string>":
                seen.add(kind)
                report(kind)
                return
            if not file.endswith(_HELPERS) and "/multiprocessing/" not in file:
                return
            frame = frame.f_back  # type: ignore[assignment]

    sys.addaudithook(hook)
