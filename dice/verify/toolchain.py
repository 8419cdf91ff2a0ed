"""The compilers of this machine and the fixed part of their command lines."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SHADOW_HEADERS = Path(__file__).parent / "include"
CUDA_API_HEADERS = Path(__file__).parent / "include_cuda"  # c10/cuda and ATen/cuda; CPU builds of PyTorch lack theirs
DEFAULT_ARCH = "sm_90"
ANSWER_TIMEOUT_S = 30.0  # for a compiler to say its version
NO_NVCC = "There is no nvcc on this machine: install the CUDA toolkit and set CUDA_HOME."

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


def host_compiler() -> str:
    """Path of the C++ compiler: $CXX, else g++. Raises `ToolchainError`."""
    return _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@cache  # a jailed process, which may not see it, knows it from the zygote
def _find_compiler(named: str, path: str) -> str:
    found = shutil.which(named or "g++", path=path)
    if found is None and named:
        raise ToolchainError(f"CXX names {named!r}, which is no program: set it to the path of a C++ compiler.")
    if found is None:
        raise ToolchainError("There is no C++ compiler on this machine: install g++ (GCC 10 or later).")
    return os.path.abspath(found)  # compilers run in folders of their own


def c_compiler() -> str | None:
    """Path of the C compiler that torch.compile finds: $CC, else the first of the usual names on the PATH."""
    named = os.environ.get("CC")
    found = (shutil.which(name) for name in ((named,) if named else ("clang", "gcc", "cc")))
    return next((os.path.abspath(path) for path in found if path), None)


def compiler_paths(compiler: str) -> list[str]:
    """What running a compiler takes, beside the system's folders: itself, which may be a link from elsewhere, and the
    folder that one outside /usr brings its parts in."""
    prefix = Path(compiler).resolve().parent.parent
    everybodys = (Path("/"), Path("/usr"), Path.home(), *Path.home().parents)
    return [compiler] if prefix in everybodys else [compiler, str(prefix)]


@cache
def host_compiler_version() -> str:
    return _first_line([host_compiler(), "--version"])


def find_nvcc() -> Path | None:
    """nvcc of $CUDA_HOME (else $CUDA_PATH), else on the PATH, else of /usr/local/cuda."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    in_home = shutil.which("nvcc", path=os.path.join(named, "bin")) if named else None
    found = in_home or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    return Path(os.path.abspath(found)) if found else None


@cache
def cuda_toolkit() -> CudaToolkit:
    """The CUDA toolkit of the nvcc that `find_nvcc` finds. Raises `ToolchainError`."""
    nvcc = find_nvcc()
    if nvcc is None:
        raise ToolchainError(NO_NVCC)
    return CudaToolkit(_toolkit_home(nvcc), nvcc, _last_line([str(nvcc), "--version"]))


def _toolkit_home(nvcc: Path) -> Path:
    """A wrapper script is no place to look for headers; `nvcc --dryrun` knows the toolkit's own folder."""
    done = ask([str(nvcc), "--dryrun", "-x", "cu", "-c", "/dev/null"])
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
    return ask(command).stdout.partition("\n")[0]


def _last_line(command: list[str]) -> str:
    lines = ask(command).stdout.strip().splitlines()
    return lines[-1] if lines else ""


def ask(command: list[str]) -> subprocess.CompletedProcess[str]:
    """What a compiler says of itself. Raises `ToolchainError` when it says nothing, or does not end."""
    try:
        done = run_limited(command, ANSWER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ToolchainError(f"{' '.join(command[:2])} did not answer within {ANSWER_TIMEOUT_S:g} s.") from None
    except OSError as error:
        raise ToolchainError(f"{command[0]} could not be started: {error.strerror}.") from None
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0][:300]
        raise ToolchainError(f"{' '.join(command[:2])} failed with exit code {done.returncode}: {said or 'no message'}")
    return done


def run_limited(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program of this machine, and end it with all that it started when the time is up: a compiler may be a
    script. Raises `subprocess.TimeoutExpired` and `OSError`."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, complaint = process.communicate(timeout=timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, complaint)
