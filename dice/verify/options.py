"""What a verification may be asked, and which backend this machine can run."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dice.errors import MachineError
from dice.files import JsonObject
from dice.launch import code_command, environment
from dice.verdict import Backend
from dice.verify.toolchain import NO_NVCC, ToolchainError, ask, find_nvcc, host_compiler

Protocol = Literal["dice", "kernelbench", "kernelbench-fp16", "kernelbench-bf16", "kernelbench-v0", "dice-paper"]

Provenance = Literal["any", "construction", "evidence"]

PROBE_TIMEOUT_S = 120
_PROBE = """
import json, torch
ready = torch.cuda.is_available()
name = torch.cuda.get_device_name(0) if ready else ""
count = torch.cuda.device_count() if ready else 0
memory = torch.cuda.get_device_properties(0).total_memory if ready else 0
facts = {"cuda": ready, "device": name, "count": count, "memory": memory, "built_for": torch.version.cuda}
print(json.dumps(facts))
"""


class BackendUnavailable(MachineError):
    """This machine cannot run the backend that was asked for; the message is one sentence."""


def default_cache_dir() -> Path:
    """`$DICE_CACHE`, else `dice` below `$XDG_CACHE_HOME`, else `~/.cache/dice`."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.path.realpath(os.environ.get("DICE_CACHE") or Path(root) / "dice"))


@dataclass(frozen=True, slots=True)
class Options:
    """How one candidate is verified. Times in seconds, memory in MiB; limits hold per candidate."""

    trials: int = 5
    seed: int | None = None  # None: secret and random, the only choice a hostile candidate cannot prepare for
    timing: bool = True  # on the cuda backend
    timing_s: float = 3.0  # at most this long for one candidate; shorter leaves the speed-up's interval wider
    compile_timeout_s: float = 120.0  # of the processor; on the clock, some times as long
    run_timeout_s: float = 60.0  # everything the candidate does, compiling excepted
    memory_mb: int = 8192  # host memory
    large_bytes: int = 64 << 20  # inputs and outputs of a trial from this size on cross no file, and stay on a GPU
    protocol: Protocol = "dice"
    provenance: Provenance = "any"  # how it is known who computed; "any": by construction where that can be had
    compile_baseline: bool = False  # also time the reference under torch.compile (inductor), once for each problem
    profile: bool = False  # cuda: also say which kernels the GPU's time goes to
    sanitize: bool = False  # also look for races and the like: much slower, and what they find decides
    scale: float | None = None  # emulated: keep this fraction of batch-like dimensions, in (0, 1)
    cache_dir: Path = field(default_factory=default_cache_dir)

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1, not {self.trials}")
        if self.scale is not None and not 0 < self.scale <= 1:
            raise ValueError(f"scale must be in (0, 1], not {self.scale}")
        limits = (self.compile_timeout_s, self.run_timeout_s, self.memory_mb, self.timing_s)
        if not all(limit > 0 for limit in limits):  # a NaN is not
            raise ValueError("time and memory limits must be positive")
        # Children work in folders of their own, and what is removed in the end has no `..` in its path.
        object.__setattr__(self, "cache_dir", Path(os.path.realpath(self.cache_dir)))


def resolve_backend(backend: str) -> Backend:
    """The backend to use. Raises `BackendUnavailable` when this machine cannot run it, `ValueError` for no backend."""
    if backend == "auto":
        return "cuda" if why_no_cuda() == "" else resolve_backend("emulated")
    if backend == "cuda":
        reason = why_no_cuda()
        if reason:
            raise BackendUnavailable(f"The cuda backend cannot run here: {reason}.")
        return "cuda"
    if backend == "emulated":
        trouble = compiler_trouble("emulated")
        if trouble:
            raise BackendUnavailable(f"The emulated backend needs a C++ compiler. {trouble}")
        return "emulated"
    raise ValueError(f"backend must be auto, cuda or emulated, not {backend!r}")


def why_no_cuda() -> str:
    """Why kernels cannot run on a GPU here, as the end of a sentence; empty when they can."""
    if find_nvcc() is None:
        return "nvcc was not found"
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return "there is no NVIDIA GPU"
    found = probe_cuda()
    if found["cuda"]:
        return ""
    return "PyTorch sees no NVIDIA GPU" if found["built_for"] else "this PyTorch was built without CUDA"


def host_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def probe_cuda() -> JsonObject:
    """What PyTorch says of the GPU, asked in a process of its own so that this one never initialises CUDA."""
    try:
        done = subprocess.run(
            code_command(_PROBE),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=True,
        )
        answer: JsonObject = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return {"cuda": False, "device": "", "count": 0, "memory": 0, "built_for": None}
    return answer


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that PyTorch sees, by the names that CUDA_VISIBLE_DEVICES has for them."""
    count = int(probe_cuda()["count"])
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return tuple(named[:count] or map(str, range(count)))


def find_host_compiler() -> str | None:
    """The C++ compiler: $CXX, else g++."""
    try:
        return host_compiler()
    except ToolchainError:
        return None


def _compiler(backend: Backend) -> str:
    """The compiler behind the backend's verdicts. Raises `ToolchainError`."""
    if backend == "emulated":
        return host_compiler()
    nvcc = find_nvcc()
    if nvcc is None:
        raise ToolchainError(NO_NVCC)
    return str(nvcc)


def compiler_trouble(backend: Backend) -> str:
    """Why the backend's compiler cannot be used, in a sentence; empty when it says its version."""
    try:
        _answer(_compiler(backend), "--version")
    except ToolchainError as error:
        return str(error)
    return ""


@functools.cache
def toolchain(backend: Backend) -> str:
    """Name and version of the compiler behind a verdict, e.g. `nvcc 13.0`."""
    try:
        compiler = _compiler(backend)
    except ToolchainError:
        return ""
    flag = "--version" if backend == "cuda" else "-dumpfullversion"
    if compiler_trouble(backend):  # do not ask again what did not answer
        return Path(compiler).name
    try:
        text = _answer(compiler, flag)
    except ToolchainError:
        text = ""
    version = text.partition("release ")[2].partition(",")[0] if backend == "cuda" else text.strip()
    return f"{Path(compiler).name} {version}".strip()


def _answer(compiler: str, flag: str) -> str:
    """What it prints. Raises `ToolchainError`; one that did not answer in time is not waited for twice."""
    told = _asked(compiler, flag)
    if isinstance(told, ToolchainError):
        raise told
    return told


@functools.cache
def _asked(compiler: str, flag: str) -> str | ToolchainError:
    try:
        return ask([compiler, flag]).stdout
    except ToolchainError as error:
        return error
