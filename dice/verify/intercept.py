"""Takes the place of `torch.utils.cpp_extension.load_inline` and `load` in the candidate's process.

The candidate's file runs unchanged: it calls what it believes is PyTorch's, with all of PyTorch's arguments, and gets
an object with its bound functions. The name it chose decides nothing about where things are built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.utils.cpp_extension as cpp_extension

from dice.verify import binding
from dice.verify.build import Built, CompileError, Sources, build
from dice.verify.toolchain import Backend

OnEvent = Callable[[str, dict[str, Any]], None]
COMPILE_TIMEOUT_S = 300.0
_CUDA_SUFFIXES = (".cu", ".cuh")


def install(backend: Backend, cache_dir: Path, on_event: OnEvent, timeout_s: float = COMPILE_TIMEOUT_S) -> None:
    """Replace `load_inline` and `load`. `on_event` hears "build_start", "build_end" and "load_end", each with values,
    so that the supervisor can limit compiling apart from running."""
    loader = _Loader(backend, Path(cache_dir), on_event, timeout_s)
    cpp_extension.load_inline = loader.load_inline
    cpp_extension.load = loader.load
    for name in ("CUDAExtension", "CppExtension", "BuildExtension"):
        setattr(cpp_extension, name, _no_setuptools)


def _no_setuptools(*_: object, **__: object) -> None:
    raise RuntimeError(
        "setuptools builds (CUDAExtension, setup()) are not run here; use torch.utils.cpp_extension.load_inline."
    )


class _Loader:
    def __init__(self, backend: Backend, cache_dir: Path, on_event: OnEvent, timeout_s: float):
        self.backend = backend
        self.cache_dir = cache_dir
        self.on_event = on_event
        self.timeout_s = timeout_s

    def load_inline(
        self,
        name: str,
        cpp_sources: str | Sequence[str],
        cuda_sources: str | Sequence[str] | None = None,
        sycl_sources: str | Sequence[str] | None = None,
        functions: str | Sequence[str] | Mapping[str, str] | None = None,
        extra_cflags: Sequence[str] | None = None,
        extra_cuda_cflags: Sequence[str] | None = None,
        extra_sycl_cflags: Sequence[str] | None = None,
        extra_ldflags: Sequence[str] | None = None,
        extra_include_paths: Sequence[str] | None = None,
        build_directory: str | None = None,
        verbose: bool = False,
        with_cuda: bool | None = None,
        with_sycl: bool | None = None,
        is_python_module: bool = True,
        with_pytorch_error_handling: bool = True,
        keep_intermediates: bool = True,
        use_pch: bool = False,
        no_implicit_headers: bool = False,
    ) -> ModuleType | str:
        """As PyTorch's. Paths and link flags are accepted and ignored."""
        if sycl_sources:
            raise RuntimeError("sycl_sources cannot be compiled here: this is a CUDA build.")
        sources = Sources(
            _texts(cpp_sources),
            _texts(cuda_sources),
            _pairs(functions),
            tuple(extra_cflags or ()),
            tuple(extra_cuda_cflags or ()),
            not no_implicit_headers,
        )
        return self._load(name, sources, is_python_module)

    def load(
        self,
        name: str,
        sources: str | Sequence[str],
        extra_cflags: Sequence[str] | None = None,
        extra_cuda_cflags: Sequence[str] | None = None,
        extra_sycl_cflags: Sequence[str] | None = None,
        extra_ldflags: Sequence[str] | None = None,
        extra_include_paths: Sequence[str] | None = None,
        build_directory: str | None = None,
        verbose: bool = False,
        with_cuda: bool | None = None,
        with_sycl: bool | None = None,
        is_python_module: bool = True,
        is_standalone: bool = False,
        keep_intermediates: bool = True,
    ) -> ModuleType | str:
        """As PyTorch's: `sources` are files. All files of one language are compiled as one text."""
        if is_standalone:
            raise RuntimeError("is_standalone=True builds a program, which is not run here.")
        paths = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        texts = [(str(path).endswith(_CUDA_SUFFIXES), Path(path).read_text(encoding="utf-8")) for path in paths]
        parts = Sources(
            tuple(text for is_cuda, text in texts if not is_cuda),
            tuple(text for is_cuda, text in texts if is_cuda),
            (),
            tuple(extra_cflags or ()),
            tuple(extra_cuda_cflags or ()),
            implicit_headers=False,
        )
        return self._load(name, parts, is_python_module)

    def _load(self, name: str, sources: Sources, is_python_module: bool) -> ModuleType | str:
        if not name.isidentifier():
            raise CompileError("", [f"error: the extension's name {name!r} is no identifier"])
        self.on_event("build_start", {"name": name})
        built: Built | None = None
        try:
            built = build(sources, backend=self.backend, cache_dir=self.cache_dir, timeout_s=self.timeout_s, name=name)
        finally:
            self.on_event("build_end", _facts(built))
        if not is_python_module:
            return str(built.path)
        module = binding.load(built, name)
        self.on_event("load_end", {"name": name})
        return module


def _facts(built: Built | None) -> dict[str, Any]:
    if built is None:
        return {"ok": False}
    return {"ok": True, "headers": built.headers, "seconds": built.seconds, "cached": built.cached}


def _texts(sources: str | Iterable[str] | None) -> tuple[str, ...]:
    return (sources,) if isinstance(sources, str) else tuple(sources or ())


def _pairs(functions: str | Sequence[str] | Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if functions is None:
        return ()
    if isinstance(functions, str):
        functions = [functions]
    if isinstance(functions, Mapping):
        return tuple(functions.items())
    if not isinstance(functions, list):
        raise ValueError(f"Expected 'functions' to be a list or dict, but was {type(functions)}")
    return tuple((name, name) for name in functions)
