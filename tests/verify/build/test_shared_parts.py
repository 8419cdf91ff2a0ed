"""What many builds share is made before, by trusted code: no choice of a source's author may ask for another part."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from dice.verify import Verifier, toolchain
from dice.verify.build import build
from dice.verify.build.commands import compiler_for
from dice.verify.build.cuda import CudaCompiler
from dice.verify.build.service import BuildService
from dice.verify.build.shared import Shared, SharedMissing
from dice.verify.build.sources import Sources, safe_flags
from dice.verify.build.units import Unit, bindings_for, joined_unit, split_units
from dice.verify.options import default_cache_dir

CPP = "torch::Tensor same(torch::Tensor x);"
CUDA = "torch::Tensor same(torch::Tensor x) { return x; }\n"
FUNCTIONS = (("same", "same"),)
FLAGS = (
    *((), ("-O3",), ("-O0",), ("-DNDEBUG",), ("-DFOO=1",), ("-D", "BAR=2"), ("-U__CUDA_NO_HALF_OPERATORS__",)),
    *(("-std=c++17",), ("-std=c++20",), ("-std=gnu++17",), ("-std", "c++20"), ("-O3", "-std=c++17"), ("-lineinfo",)),
    *(("--use_fast_math",), ("-D_GLIBCXX_USE_CXX11_ABI=0",), ("-D_GLIBCXX_USE_CXX11_ABI=1",), ("-D_GLIBCXX_DEBUG",)),
    *(("-DTORCH_EXTENSION_NAME=x",), ("-maxrregcount=64",), ("--expt-relaxed-constexpr", "-DA", "-DB=x.y")),
)
TEXTS = (CUDA, CUDA + "int order(int a) { return 1; } // <=> consteval\n")


def units(text: str) -> Iterator[Unit]:
    bindings = bindings_for(FUNCTIONS)
    for cpp in (CPP, CPP + "\n#define X 1\n", ""):
        for implicit in (True, False):
            yield from split_units(cpp, text, bindings, implicit)
        joined = joined_unit(cpp, text, bindings)
        if joined is not None:
            yield joined


@pytest.mark.parametrize("backend", ["emulated", "cuda"])
@pytest.mark.parametrize("headers", ["quick", "slim", pytest.param("full", marks=pytest.mark.slow)])
def test_no_choice_of_flags_languages_and_headers_asks_for_a_part_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: toolchain.Backend, headers: str
) -> None:
    """All commands that a builder may come to run; nothing is compiled, for what is looked for decides."""
    if backend == "cuda" and shutil.which("nvcc") is None:
        pytest.skip("needs nvcc; none was found")
    made: set[tuple[str, ...]] = set()

    def folder(self: Shared, what: str, make: object, parts: list[str]) -> Path:
        if self.makes:
            made.add(tuple(parts))
        elif tuple(parts) not in made:
            raise SharedMissing(what)
        return tmp_path

    monkeypatch.setattr(Shared, "folder", folder)
    for prepared in ("slim", "full") if headers == "full" else ("slim",):
        build.prepare(backend, default_cache_dir(), "sm_90", prepared)
    assert made
    shared = Shared(default_cache_dir(), makes=False)
    pairs = [pair for flags in FLAGS for pair in ((flags, ()), ((), flags), (flags, flags))]
    for (cflags, cuda_cflags), sanitize in itertools.product(pairs, (False, True)):
        flags = safe_flags(cflags), safe_flags(cuda_cflags)
        compiler = compiler_for(backend, "sm_90", shared, *flags, sanitize)
        compiler.link([], tmp_path / "x.so", headers)
        if isinstance(compiler, CudaCompiler):
            compiler.split_link([], tmp_path / "x.so")
        for unit in itertools.chain.from_iterable(map(units, TEXTS)):
            compiler.command(unit, tmp_path / "x", tmp_path / "x.o", headers)
            if isinstance(compiler, CudaCompiler) and unit.language == "cuda":
                compiler.split_host(unit, tmp_path / "x", tmp_path / "x.o")


@pytest.mark.parametrize(
    "flags",
    [("-O3", "-std=c++17", "-DFOO=1"), ("-DNDEBUG", "-std=c++20"), ("-D_GLIBCXX_USE_CXX11_ABI=1",)],
)
@pytest.mark.parametrize(
    "where", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("cflags", "cuda_cflags")), "both"]
)
def test_honest_flags_build(emulated: Verifier, flags: tuple[str, ...], where: str) -> None:
    given = {name: flags for name in ("cflags", "cuda_cflags") if where in (name, "both")}
    sources = Sources((CPP,), (f"{CUDA}// {uuid.uuid4()}\n",), FUNCTIONS, **given)  # type: ignore[arg-type]
    answer = emulated._builds.build(emulated._get_zygote(), sources, "ext", 60)
    assert answer.kind == "built" and answer.built is not None, answer.message
    assert answer.built.headers == "slim"


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [("-O3", "-std=c++17"), ("-DNDEBUG",), ("-std=c++20",)],
)
def test_honest_flags_build_for_a_gpu(flags: tuple[str, ...], emulated: Verifier) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc; none was found")
    service = BuildService("cuda", default_cache_dir())
    sources = Sources((CPP,), (f"{CUDA}// {uuid.uuid4()}\n",), FUNCTIONS, flags, flags)
    answer = service.build(emulated._get_zygote(), sources, "ext", 120)
    assert answer.kind == "built", answer.message


def test_another_string_layout_is_the_kernels_own_affair(emulated: Verifier) -> None:
    """As with PyTorch itself: a library for the old layout of strings builds, and lacks what it wants of PyTorch."""
    source = CUDA + "void said(const std::string& s) { TORCH_CHECK(s.size() < 9, s); }\n"
    sources = Sources((CPP,), (f"{source}// {uuid.uuid4()}\n",), FUNCTIONS, (), ("-D_GLIBCXX_USE_CXX11_ABI=0",))
    answer = emulated._builds.build(emulated._get_zygote(), sources, "ext", 60)
    assert answer.kind in ("built", "compile_error", "link_error"), answer.message


def link(source: str, target: str) -> None:
    """The same file under another name, where that can be: headers that are precompiled are hundreds of megabytes."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@pytest.mark.slow
def test_a_lost_part_is_made_again(emulated: Verifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody empties the cache while builds go on. A builder does not say which part is lost: all are looked after,
    but for PyTorch's own headers here, which take a minute to precompile."""
    service = BuildService("emulated", tmp_path)
    zygote = emulated._get_zygote()
    make = service._make_shared
    monkeypatch.setattr(service, "_make_shared", lambda zygote, headers: make(zygote, "slim"))

    def fresh() -> Sources:
        return Sources((CPP,), (f"{CUDA}// {uuid.uuid4()}\n",), FUNCTIONS)

    full = default_cache_dir() / "headers"
    if full.exists():  # the others take twenty seconds
        with contextlib.suppress(shutil.Error):  # other tests make such folders, and remove them, meanwhile
            ignore = shutil.ignore_patterns("tmp-*")
            shutil.copytree(full, tmp_path / "headers", ignore=ignore, copy_function=link, dirs_exist_ok=True)
    assert service.build(zygote, fresh(), "ext", 60).kind == "built"
    for entry in (tmp_path / "headers").iterdir():
        if (entry / "support.o").exists():
            shutil.rmtree(entry)
    assert service.build(zygote, fresh(), "ext", 60).kind == "built"
