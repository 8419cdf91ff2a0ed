"""`load`: a kernel file as a Python module, its CUDA built in about a second where stock `load_inline` takes forty."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.utils.cpp_extension as cpp_extension

from dice.kernel import Kernel
from dice.verdict import Backend
from dice.verify import emulator, resolve_backend
from dice.verify.build import build
from dice.verify.build.sources import Built, Sources
from dice.verify.candidate.intercept import Loader
from dice.verify.execution import fake_cuda
from dice.verify.options import default_cache_dir

_LOADER = "__dice_loader__"  # the name under which a loaded file's module holds who builds for it


def load(file: str | Path, *, backend: str = "auto") -> ModuleType:
    """Run a kernel file, a Python file whose `ModelNew` calls `load_inline`, and return its module.

        ModelNew = dice.load("kernel.py").ModelNew

    The file runs in this process with all your rights. Nothing is confined and nothing is checked: load only what you
    would import, and give the files of others to `dice.verify`.

    Its calls of `load_inline` and `load` are built as the verifier builds them and kept in the cache, so that a second
    load takes no time; everybody else's calls are still PyTorch's. With the `backend` "cuda" kernels run on the GPU;
    "emulated" runs them on the CPU, slowly, for a machine without one: give the model CPU tensors, which say inside it
    that they are on the GPU. There, as on a GPU, a kernel that leaves its memory may end the process. "auto" takes the
    GPU where there is one.

    Raises `UserError` for a file that cannot be read, `BackendUnavailable` where this machine cannot run kernels, what
    the build raises (`dice.verify.build.sources.CompileError` has the compiler's lines), and what the file raises.
    """
    path = Path(file).absolute()
    kernel = Kernel.from_file(path)
    chosen = resolve_backend(backend)
    if chosen == "emulated":
        ctypes.CDLL(str(emulator.runtime(default_cache_dir())), mode=ctypes.RTLD_GLOBAL)  # kernels look for it there
    _divert()
    module = ModuleType(f"{path.stem}_{kernel.id}")
    module.__file__ = str(path)
    setattr(module, _LOADER, Loader(functools.partial(_build, chosen)))
    sys.modules[module.__name__] = module  # where pickle and dataclasses look for it
    try:
        with fake_cuda.active(chosen == "emulated"):
            exec(compile(kernel.source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    if chosen == "emulated" and isinstance(model := getattr(module, "ModelNew", None), type):
        _pretend_cuda(model)
    return module


def _build(backend: Backend, sources: Sources, name: str) -> Built:
    return build.build(sources, backend=backend, cache_dir=default_cache_dir(), name=name)


@functools.cache
def _divert() -> None:
    """Have PyTorch's `load_inline` and `load` ask for whom they build, also when a model calls them long after its file
    was loaded: for a file of ours its module's loader builds, for everybody else PyTorch."""
    for name in ("load_inline", "load"):
        setattr(cpp_extension, name, _diverted(name, getattr(cpp_extension, name)))


def _diverted(name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def build_for_caller(*args: Any, **kwargs: Any) -> Any:
        loader = sys._getframe(1).f_globals.get(_LOADER)
        return stock(*args, **kwargs) if loader is None else getattr(loader, name)(*args, **kwargs)

    return build_for_caller


def _pretend_cuda(model: type) -> None:
    """Inside the model, CPU tensors say that they are on the GPU, which its code may insist on."""
    for name in ("__init__", "forward"):
        function = getattr(model, name, None)
        if function is not None:
            setattr(model, name, _pretending(function))


def _pretending(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with fake_cuda.active(True):
            return function(*args, **kwargs)

    return run
