"""The compilers of this machine and the fixed part of their command lines."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dice.verify.sources import Backend as Backend

SHADOW_HEADERS = Path(__file__).parent / "include"
CUDA_API_HEADERS = Path(__file__).parent / "include_cuda"  # c10/cuda and ATen/cuda; CPU builds of PyTorch lack theirs
DEFAULT_ARCH = "sm_90"

# What torch.utils.cpp_extension gives nvcc: without them a kernel could use half operators that the user's build lacks.
NVCC_DEFINES = (
    "-D__CUDA_NO_HALF_OPERATORS__",
    "-D__CUDA_NO_HALF_CONVERSIONS__",
    "-D__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-D__CUDA_NO_HALF2_OPERATORS__",
)
# Our at:: and c10:: must never be resolved to those of PyTorch's libraries, nor to those of another candidate.
HIDDEN_SYMBOLS = ("-fvisibility=hidden", "-fvisibility-inlines-hidden", "-fno-gnu-unique")


class ToolchainError(Exception):
    """This machine cannot compile; the message is one sentence that says what to install."""


@dataclass(frozen=True, slots=True)
class CudaToolkit:
    home: Path
    nvcc: Path
    version: str  # first and last line of `nvcc --version`


@cache
def host_compiler() -> str:
    """Path of the C++ compiler: $CXX, else g++. Raises `ToolchainError`."""
    found = shutil.which(os.environ.get("CXX") or "g++")
    if found is None:
        raise ToolchainError("There is no C++ compiler on this machine: install g++ (GCC 9 or later).")
    return found


@cache
def host_compiler_version() -> str:
    return _first_line([host_compiler(), "--version"])


@cache
def cuda_toolkit() -> CudaToolkit:
    """The CUDA toolkit: $CUDA_HOME, else that of `nvcc` on the PATH, else /usr/local/cuda. Raises `ToolchainError`."""
    on_path = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [Path(home) / "bin" / "nvcc" for home in homes if home]
    if on_path is not None:
        candidates.insert(1, Path(on_path))
    for nvcc in candidates:
        # A wrapper script is no place to look for headers; `nvcc --dryrun` knows the toolkit's own folder.
        if os.access(nvcc, os.X_OK):
            return CudaToolkit(_toolkit_home(nvcc), nvcc, _last_line([str(nvcc), "--version"]))
    raise ToolchainError("There is no nvcc on this machine: install the CUDA toolkit and set CUDA_HOME.")


def _toolkit_home(nvcc: Path) -> Path:
    done = subprocess.run(
        [str(nvcc), "--dryrun", "-x", "cu", "-c", "/dev/null"], capture_output=True, text=True, check=False
    )
    match = re.search(r"^#\$ TOP=(.+)$", done.stderr, re.M)
    return Path(match.group(1)).resolve() if match else nvcc.resolve().parent.parent


@cache
def gpu_arch() -> str:
    """Architecture of the first GPU, as nvcc's `sm_90`; `DEFAULT_ARCH` when there is none."""
    import torch  # here, for the supervisor uses this file and does without

    if not torch.cuda.is_available():
        return DEFAULT_ARCH
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


@cache
def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ToolchainError("PyTorch is not installed.")
    return Path(spec.origin).parent


@cache
def torch_includes() -> tuple[Path, ...]:
    """Include folders of PyTorch's own headers and of Python's."""
    include = torch_folder() / "include"
    return include, include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_path("include"))


def compile_environment(scratch: Path) -> dict[str, str]:
    """The few variables a compiler needs. Nothing secret of ours can end up in a message of the preprocessor."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL") if name in os.environ}
    return kept | {"TMPDIR": str(scratch), "HOME": str(scratch)}


def _first_line(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.partition("\n")[0]


def _last_line(command: list[str]) -> str:
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines()
    return lines[-1] if lines else ""
