"""What many builds share: precompiled headers and the support object, each under the hash of all that decides it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dice.verify import emulator, toolchain
from dice.verify.build.cache import Cache, content_key
from dice.verify.build.compiler_process import PATIENCE, run_all
from dice.verify.sandbox.scratch import is_crowded_out
from dice.verify.toolchain import (
    CUDA_API_HEADERS,
    SHADOW_HEADERS,
    ToolchainError,
    host_compiler,
    host_compiler_version,
)

SIZES = "sizes"


HEADER_TIMEOUT_S = 300.0  # of the processor: PyTorch's own headers take half a minute and are precompiled once

log = logging.getLogger(__name__)


class SharedMissing(Exception):
    """Something that many builds share is not there yet, and this process may not make it. The message names it."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What many builds use, kept below `cache_dir`: precompiled headers, the support object.

    Only a trusted process `makes` what is missing: what hostile sources are compiled with must not come from a process
    that compiles them. So no part may depend on what sources choose: their flags, or their texts.
    """

    cache_dir: Path
    makes: bool = True

    def folder(self, what: str, make: Callable[[Path], list[str]], parts: list[str]) -> Path:
        """Folder filled by the command that `make` returns, once for each `parts` and toolchain. `what` it is goes
        into messages."""
        cache = Cache(self.cache_dir / "headers")
        key = content_key([*parts, host_compiler_version(), torch_version(), shadow_hash(), emulator_hash()])
        entry = cache.find(key)
        if entry is not None and (not self.makes or _is_whole(entry)):
            return entry
        if not self.makes:
            raise SharedMissing(what)
        log.info("building %s", what)
        if entry is not None:
            cache.discard(key)
        with cache.scratch() as scratch:
            folder = scratch / "result"
            folder.mkdir()
            (finished,) = run_all([make(folder)], scratch, PATIENCE * HEADER_TIMEOUT_S, HEADER_TIMEOUT_S)
            if finished.status != 0 and is_crowded_out(scratch):
                raise ToolchainError(f"There is no space left on the disk of {self.cache_dir} for what builds share.")
            if finished.status is None:
                raise ToolchainError(f"{what} was not built in time: the machine is too busy, or too slow.")
            if finished.status != 0:
                raise ToolchainError(
                    f"The C++ compiler cannot read the headers of extensions: {finished.log.strip()[:500]}"
                )
            (folder / SIZES).write_text(json.dumps(_sizes(folder)))
            return cache.publish(key, folder)


def _is_whole(folder: Path) -> bool:
    """Whether no file was cut short: what is wrong with a shared file would count against every kernel."""
    with contextlib.suppress(OSError, ValueError):
        return bool(json.loads((folder / SIZES).read_text()) == _sizes(folder))
    return False


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != SIZES}


def precompiled(prelude: str, flags: list[str], shared: Shared) -> Path:
    """A header that holds the prelude, beside its precompiled form `.gch`, which g++ prefers; made on first use."""

    def make(folder: Path) -> list[str]:
        header = write(folder / "prelude.h", prelude)
        return [host_compiler(), *flags, "-x", "c++-header", str(header), "-o", str(folder / "prelude.h.gch")]

    what = f"the precompiled {' '.join(prelude.split())} under {' '.join(flags)}"
    return shared.folder(what, make, [prelude, *flags]) / "prelude.h"


def support(flags: list[str], shared: Shared) -> Path:
    """Object file with the bodies of the shadow headers (`dice/support.cpp`), linked into every extension."""
    source = SHADOW_HEADERS / "dice" / "support.cpp"

    def make(folder: Path) -> list[str]:
        return [host_compiler(), *flags, "-O2", "-c", str(source), "-o", str(folder / "support.o")]

    return shared.folder("support.o", make, ["support", *flags]) / "support.o"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


@cache
def torch_version() -> str:
    import torch

    return torch.__version__


@cache
def shadow_hash() -> str:
    return _tree_hash(SHADOW_HEADERS) + _tree_hash(CUDA_API_HEADERS)


@cache
def emulator_hash() -> str:
    return _tree_hash(Path(emulator.__file__).parent)


@cache
def recipe_hash() -> str:
    """Hash of the code that decides what is compiled and how."""
    files = [*Path(__file__).parent.glob("*.py"), Path(toolchain.__file__)]
    return content_key([path.read_bytes() for path in sorted(files)])


def _tree_hash(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return content_key([part for path in files for part in (os.path.relpath(path, folder), path.read_bytes())])
