"""KernelBench's own code from a checkout of it, called unchanged, each call in a process of its own.

What its modules import for other purposes only may be missing and gets an empty stand-in. Only `load_inline` may be
replaced by our builder (`accelerate`): PyTorch's own takes over a minute for each candidate.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.util
import multiprocessing
import os
import signal
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

Row = dict[str, Any]
Work = Callable[[], Row]  # runs in the child
DIED, SLOW = "the process died", "took too long"
WHYS = ("compilation_error", "runtime_error", "cuda_error", "other_error", "correctness_issue")


def module(root: Path, name: str) -> types.ModuleType:
    """`kernelbench.NAME` of the checkout `root`. Importing `eval` starts CUDA."""
    if "kernelbench" not in sys.modules:
        package = types.ModuleType("kernelbench")
        package.__path__ = [str(root / "src" / "kernelbench")]
        helpers = types.ModuleType("kernelbench.utils")
        helpers.get_gpu_vendor = lambda device=None: "nvidia"  # type: ignore[attr-defined]
        sys.modules |= {"kernelbench": package, "kernelbench.utils": helpers}
        _stand_in("pydantic", BaseModel=_Record)
        _stand_in("requests")
    return importlib.import_module(f"kernelbench.{name}")


def analysis(root: Path) -> types.ModuleType:
    """Its script `benchmark_eval_analysis`, as a module."""
    module(root, "dataset")
    _stand_in("pydra", Config=object, REQUIRED=None, main=lambda base: lambda function: function)
    _stand_in("tabulate", tabulate=lambda rows, **more: "\n".join(map(str, rows)))
    spec = importlib.util.spec_from_file_location("kernelbench_analysis", root / "scripts/benchmark_eval_analysis.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def _stand_in(name: str, **names: Any) -> None:
    try:
        importlib.import_module(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(names)


class _Record:
    """Enough of pydantic's BaseModel for a result: fields with defaults, set by keyword."""

    def __init__(self, **fields: Any):
        for name, value in {**type(self).__dict__, **fields}.items():
            if not name.startswith("_"):
                setattr(self, name, value)


class Gate:
    """Lets so many processes through at once. A lock of the file system, so that a killed process gives its place
    back."""

    def __init__(self, folder: Path, places: int):
        self._paths = [folder / f"place{number}.lock" for number in range(places)]
        self._held: int | None = None

    def enter(self) -> None:
        while self._held is None:
            for path in self._paths:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(descriptor)
                else:
                    self._held = descriptor
                    return
            time.sleep(0.02)

    def leave(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


def accelerate(cache_dir: Path, gate: Gate | None = None) -> None:
    """Put our builder under `load_inline` in this process, outside `gate` while it builds."""
    from torch.utils import cpp_extension

    from dice.verify.build import build
    from dice.verify.candidate import binding

    def load_inline(name: str, cpp_sources: Any, cuda_sources: Any = None, functions: Any = None, **more: Any) -> Any:
        names = [functions] if isinstance(functions, str) else list(functions or ())
        sources = build.Sources(
            (cpp_sources,) if isinstance(cpp_sources, str) else tuple(cpp_sources),
            (cuda_sources,) if isinstance(cuda_sources, str) else tuple(cuda_sources or ()),
            tuple((item, item) for item in names),
            tuple(more.get("extra_cflags") or ()),
            tuple(more.get("extra_cuda_cflags") or ()),
        )
        if gate is not None:
            gate.leave()
        try:
            built = build.build(sources, backend="cuda", cache_dir=cache_dir)
        finally:
            if gate is not None:
                gate.enter()
        return binding.load(built, name)

    cpp_extension.load_inline = load_inline  # type: ignore[assignment]


def why(metadata: Row) -> str:
    """The end of what KernelBench says of a failure, "" for none."""
    return next((f"{name}: {metadata[name]}" for name in WHYS if name in metadata), "")[-600:]


def in_processes(
    works: Sequence[Work], workers: int, limit_s: float, until: float = float("inf")
) -> Iterator[tuple[int, Row]]:
    """What each returns, as it comes. One that raises, dies or takes longer than `limit_s` returns {"error": why}. What
    is not through by `until`, of the monotonic clock, is called off.

    The caller must not have touched the GPU, so that its children, which are forked, can.
    """
    context = multiprocessing.get_context("fork")
    waiting = list(enumerate(works))[::-1]
    running: dict[Any, tuple[int, Any, float]] = {}
    try:
        while (waiting or running) and time.monotonic() < until:
            while waiting and len(running) < workers:
                number, work = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_run, args=(theirs, work))
                process.start()
                theirs.close()
                running[ours] = (number, process, time.monotonic() + limit_s)
            for link in wait(list(running), timeout=0.5):
                number, process, _ = running.pop(link)
                try:
                    row = cast(Connection, link).recv()
                except EOFError:
                    row = {"error": DIED}
                _end(process)
                yield number, row
            for link, (number, process, deadline) in list(running.items()):
                if time.monotonic() > deadline:
                    del running[link]
                    _end(process)
                    yield number, {"error": SLOW}
    finally:
        for _, process, _ in running.values():
            _end(process)


def _run(link: Connection, work: Work) -> None:
    os.setsid()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    try:
        row = work()
    except Exception as error:  # nobody would see it here
        row = {"error": f"{type(error).__name__}: {error}"}
    link.send(row)


def _end(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
