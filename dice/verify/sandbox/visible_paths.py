"""What all candidates see of the machine's files: Python, PyTorch, system libraries, the GPU's devices, the emulator.

Not the user's files, not other jobs', not the rest of the cache. To this comes what one job alone sees: its inputs and
what was built for it.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterator
from pathlib import Path

from dice.verify import toolchain

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/sys"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_GPU_DEVICES = ("nvidia*", "nvidia-caps/*")


def candidate_view(cache_dir: Path) -> tuple[str, ...]:
    """Paths for `Limits.visible`. What jobs share must be in the cache already."""
    package = Path(__file__).resolve().parents[2]
    paths = [*_SYSTEM, *devices(), sys.prefix, sys.base_prefix, str(package)]
    paths += [str(toolchain.torch_folder().parent), *map(str, _python_paths(package.parent))]
    paths += [folder for name in ("LD_LIBRARY_PATH",) for folder in os.environ.get(name, "").split(os.pathsep)]
    paths += [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    paths += map(str, cache_dir.glob("emulator-*"))
    if compiler := toolchain.c_compiler():  # for torch.compile of the reference
        paths += toolchain.compiler_paths(compiler)
    return tuple(dict.fromkeys(path for path in paths if path.startswith("/") and os.path.exists(path)))


def devices() -> tuple[str, ...]:
    """Devices that programs write to."""
    gpu = [str(path) for pattern in _GPU_DEVICES for path in Path("/dev").glob(pattern) if not path.is_dir()]
    return tuple(path for path in (*DEVICES, *gpu) if os.path.exists(path))


def _python_paths(project: Path) -> Iterator[Path]:
    """Where a fresh interpreter finds modules, but for the project's own folder: people keep other things there."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for entry in (*filter(None, given), *site.getsitepackages(), site.getusersitepackages()):
        path = Path(entry).resolve()
        if path not in (project, Path.cwd().resolve(), Path.home(), Path("/")):
            yield path
