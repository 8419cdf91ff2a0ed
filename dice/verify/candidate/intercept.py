"""Takes the place of `torch.utils.cpp_extension.load_inline` and `load` in the candidate's process.

The candidate's file runs unchanged: it calls what it believes is PyTorch's, with all of PyTorch's arguments, and gets
an object with its bound functions. The name it chose decides nothing about where things are built.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import torch.utils.cpp_extension as cpp_extension

from dice.verify.build.sources import Built, Sources
from dice.verify.candidate import binding, capture, source_files

Build = Callable[[Sources, str], Built]  # raises what `dice.verify.build.build.build` raises
USUAL_HOME = "/usr/local/cuda"
_CUDA_SUFFIXES = (".cu", ".cuh")


def install(build: Build) -> None:
    """Replace `load_inline` and `load`. `build` makes a library of sources and the extension's name, elsewhere."""
    loader = Loader(build)
    cpp_extension.load_inline = loader.load_inline
    cpp_extension.load = loader.load
    for name in ("CUDAExtension", "CppExtension", "BuildExtension"):
        setattr(cpp_extension, name, _no_setuptools)
    # Where there is no nvcc, a kernel file that asks for one first would leave its kernels out.
    cpp_extension.CUDA_HOME = cpp_extension.CUDA_HOME or USUAL_HOME


def _no_setuptools(*_: object, **__: object) -> None:
    raise RuntimeError(
        "setuptools builds (CUDAExtension, setup()) are not run here; use torch.utils.cpp_extension.load_inline."
    )


class Loader:
    """`load_inline` and `load` with PyTorch's arguments, whose libraries `build` makes."""

    def __init__(self, build: Build):
        self.build = build

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
        """As PyTorch's. Link flags are accepted and ignored; headers in the folders become part of the text."""
        if sycl_sources:
            raise RuntimeError("sycl_sources cannot be compiled here: this is a CUDA build.")
        folders = [Path(folder) for folder in extra_include_paths or ()]
        cpp, cuda = (
            tuple(source_files.with_headers(text, folders) if folders else text for text in _texts(sources))
            for sources in (cpp_sources, cuda_sources)
        )
        sources = Sources(
            cpp,
            cuda,
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
        """As PyTorch's: `sources` are files. All files of one language are compiled as one text, with the headers that
        lie beside them."""
        if is_standalone:
            raise RuntimeError("is_standalone=True builds a program, which is not run here.")
        paths = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        folders = list(extra_include_paths or ())
        texts = [(str(path).endswith(_CUDA_SUFFIXES), source_files.read(Path(path), folders)) for path in paths]
        parts = Sources(
            source_files.apart([text for is_cuda, text in texts if not is_cuda]),
            source_files.apart([text for is_cuda, text in texts if is_cuda]),
            (),
            tuple(extra_cflags or ()),
            tuple(extra_cuda_cflags or ()),
            implicit_headers=False,
        )
        return self._load(name, parts, is_python_module)

    def _load(self, name: str, sources: Sources, is_python_module: bool) -> ModuleType | str:
        built = self.build(sources, name)
        if is_python_module:
            return capture.watch_calls(binding.load(built, name), built)
        binding.load_operators(built)
        return str(built.path)


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
