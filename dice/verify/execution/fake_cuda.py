"""Python-level make-believe for the emulated backend: tensors that live on the CPU and say they are on `cuda:0`.

Kernel files ask for `.cuda()`, `device="cuda"` or `x.is_cuda`; under `FakeCuda` each works on CPU tensors. Not
covered: a tensor that a file forgot to move to the GPU counts as moved, so that mistake shows on the cuda backend only.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dice.verify.execution import host_reads

DEVICE = torch.device("cuda", 0)
_CPU = torch.device("cpu")
# An H100's, and its name: a file that asks which device it has takes the path that it would take there.
_NAME = "NVIDIA H100 80GB HBM3"
_MEMORY_BYTES = 81107 << 20


def _nothing_left() -> None:
    pass


class Work:
    """What kernel files enqueue on streams of their own, which the emulator does when somebody waits for it."""

    finish: Callable[[], object] = staticmethod(_nothing_left)
    waited: Callable[[], object] = staticmethod(_nothing_left)  # told when Python waits for such work


class NotEmulated(RuntimeError):
    """A kernel file asks in Python for what only a GPU has."""


class _NoGraph:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotEmulated("CUDA graphs are not emulated; a GPU can run this kernel file.")


class HostCopies:
    """How many elements of tensors were carried to the host since it was last set to 0."""

    elements = 0


class FakeCuda(TorchFunctionMode):
    """While active, every request for a CUDA device is answered with the CPU, and every tensor claims to be on CUDA."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.device:  # a name, which stays what it is until something is asked to live there
            return func(*args, **(kwargs or {}))
        if goes_to_host(func, args, kwargs or {}):
            HostCopies.elements += args[0].numel()
            if func in (torch.Tensor.cpu, torch.Tensor.to):
                return host_reads.answer(_host_copy(func, *args, **(kwargs or {})))
        if func in (torch.Tensor.tolist, torch.Tensor.numpy):
            return host_reads.answer(func(*args, **(kwargs or {})))
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **(kwargs or {}))
        args = tuple(_to_cpu(value) for value in args)
        kwargs = {key: _to_cpu(value, key) for key, value in (kwargs or {}).items() if key != "pin_memory"}
        return func(*args, **kwargs)


def install() -> None:
    """Replace the parts of `torch.cuda` that kernel files call. For a process of its own: there is no way back."""
    cuda: Any = torch.cuda
    Streams.default = Streams.current = _Stream()
    replacements: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _no_op(),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _no_op(),
        "synchronize": _synchronize,
        "empty_cache": _no_op(),
        "current_stream": lambda device=None: Streams.current,
        "default_stream": lambda device=None: Streams.default,
        "set_stream": Streams.set,
        "stream": lambda stream=None: stream or contextlib.nullcontext(),
        "device": lambda device=None: contextlib.nullcontext(),
        "Stream": _Stream,
        "Event": _Event,
        "get_device_name": lambda device=None: _NAME,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: _PROPERTIES,
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "reset_peak_memory_stats": _no_op(),
        "mem_get_info": lambda device=None: (_MEMORY_BYTES - (1 << 29), _MEMORY_BYTES),
        "manual_seed": _no_op(),  # torch.manual_seed calls these too
        "manual_seed_all": _no_op(),
        "CUDAGraph": _NoGraph,
        "is_bf16_supported": lambda including_emulation=True: True,
    }
    for name, value in replacements.items():
        setattr(cuda, name, value)
    # A build for GPUs would hand the weights of recurrent modules, which say that they are on CUDA, to cuDNN.
    torch.backends.cudnn.is_acceptable = lambda tensor: False


@contextlib.contextmanager
def active(on: bool) -> Iterator[None]:
    """`FakeCuda` for the length of a block when `on`."""
    with FakeCuda() if on else contextlib.nullcontext():
        yield


class Streams:
    """Which stream is the current one: what is in order on one need not be so on another."""

    default: _Stream
    current: _Stream

    @classmethod
    def switched(cls) -> bool:
        return cls.current is not cls.default

    @classmethod
    def set(cls, stream: _Stream | None) -> None:
        cls.current = stream or cls.current


class _Stream:
    cuda_stream = 0
    device = DEVICE

    def __init__(self, *args: object, **kwargs: object):
        self._outer: list[_Stream] = []

    def __enter__(self) -> _Stream:
        self._outer.append(Streams.current)
        Streams.current = self
        return self

    def __exit__(self, *error: object) -> None:
        Streams.current = self._outer.pop()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def record_event(self, event: _Event | None = None) -> _Event:
        return event or _Event()


class _Event:
    def __init__(self, *args: object, **kwargs: object):
        pass

    def record(self, stream: object = None) -> None:
        pass

    def wait(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: object) -> float:
        return 0.0


class _CudaDeviceProperties(types.SimpleNamespace):
    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


_PROPERTIES = _CudaDeviceProperties(
    name=_NAME,
    major=9,
    minor=0,
    total_memory=_MEMORY_BYTES,
    multi_processor_count=132,
    warp_size=32,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    shared_memory_per_multiprocessor=228 << 10,
    regs_per_multiprocessor=65536,
    L2_cache_size=50 << 20,
    is_integrated=0,
    is_multi_gpu_board=0,
    clock_rate=1980000,
    memory_clock_rate=2619000,
    memory_bus_width=5120,
    gcnArchName=_NAME,
    uuid="6f1c2b7e-3d54-4a80-9e21-c05b8f7a4d13",
    pci_bus_id=0x1B,
    pci_device_id=0,
    pci_domain_id=0,
)


def _synchronize(device: object = None) -> None:
    Work.waited()
    Work.finish()


def _no_op() -> Callable[..., None]:
    """A new function each time: torch.compile's tables want every name of `torch.cuda` to be an object of its own."""
    return lambda *args, **kwargs: None


def _to_cpu(value: Any, name: str = "device") -> Any:
    if isinstance(value, torch.device):
        return _CPU if value.type == "cuda" else value
    if isinstance(value, str) and name == "device" and (value == "cuda" or value.startswith("cuda:")):
        return _CPU
    return value


def _host_copy(move: Callable[..., Any], tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`.cpu()` of a CUDA tensor is a copy, as `.to("cpu")` is: host code may read it, and writing to it never changes
    the original."""
    moved: torch.Tensor = move(tensor, *args, **kwargs)
    return moved.clone() if moved is tensor else moved


def is_host(value: Any) -> bool:
    return isinstance(value, str | torch.device) and str(value) == "cpu"


_TO_HOST = (
    torch.Tensor.cpu,
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.__array__,
    torch.Tensor.__dlpack__,
)


def goes_to_host(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of a tensor's method carries its values to the host."""
    moves = func is torch.Tensor.to and any(map(is_host, (*args[1:2], kwargs.get("device"))))
    return moves or func in _TO_HOST


def _own_device(tensor: torch.Tensor) -> torch.device:
    return tensor.device if tensor.is_meta or hasattr(tensor, _STAYS_ON_HOST) else DEVICE  # meta: no data to move


def _packed(*args: Any, **kwargs: Any) -> Any:
    """Sequences of several lengths: PyTorch keeps the sizes of their batches on the host, and asks whether it does."""
    data, sizes = _PACK(*args, **kwargs)
    setattr(sizes, _STAYS_ON_HOST, True)
    return data, sizes


_PACK: Any = torch._VF._pack_padded_sequence
_STAYS_ON_HOST = "stays_on_host"
_ANSWERS: dict[Any, Callable[..., Any]] = {
    _PACK: _packed,
    torch.Tensor.cuda: lambda tensor, *args, **kwargs: tensor,
    torch.Tensor.pin_memory: lambda tensor, *args, **kwargs: tensor,
    torch.Tensor.record_stream: _no_op(),
    torch.Tensor.is_cuda.__get__: lambda tensor: True,  # type: ignore[attr-defined]
    torch.Tensor.is_cpu.__get__: lambda tensor: False,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: _own_device,
    torch.Tensor.get_device: lambda tensor: 0,
}
