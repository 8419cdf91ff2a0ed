"""What both children do alike: run a file as a module, seed, place on the device, call `forward`."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from dice.verify.execution import evidence, fake_cuda
from dice.verify.tensors import transport

KEPT_BYTES = 1 << 30  # of GPU memory, by PyTorch's allocator
LOOKED_FOR = 1_000_000  # steps on the search for an element that two outputs have in common
STRETCH = 1 << 26  # words of a fingerprint at a time: it takes some five times their memory


def exec_file(source: str, folder: Path, name: str, preamble: str = "") -> types.ModuleType:
    """Run `source` as the module `name`, from a file, so that tracebacks and `inspect` show its lines.

    `preamble` runs in the module before it.
    """
    path = folder / f"{name}.py"
    path.write_bytes(source.encode("utf-8", "surrogatepass"))
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    if preamble:
        exec(compile(preamble, "preamble", "exec"), module.__dict__)
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return module


def seed_everything(seed: int) -> None:
    """As `torch.manual_seed` does it, but for devices that nobody uses here: for each of them it keeps the stack of the
    call, with the lines of the source, which took a third of a small trial."""
    random.seed(seed)
    numpy.random.seed(seed % (1 << 32))
    torch.cuda.manual_seed_all(seed)
    torch.default_generator.manual_seed(seed)


class Device:
    """Where a backend's tensors live."""

    def __init__(self, backend: str):
        self.emulated = backend == "emulated"
        self.timing = False  # no memory goes back then: to ask the driver for it anew takes longer than a call

    def prepare(self, threads: int) -> None:
        """Set the process up once, before any code from outside runs in it."""
        torch.set_num_threads(max(1, threads))
        if self.emulated:
            fake_cuda.install()
            return
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False

    def open(self) -> None:
        """Make the context: apart from its first use, for it takes long and does not disturb what is timed. What fails
        here fails again at that first use, where it is told of."""
        if not self.emulated:
            with contextlib.suppress(RuntimeError):
                torch.zeros(1, device="cuda")

    def allow_tf32(self, on: bool) -> None:
        """Convolutions in TF32, which is PyTorch's default and KernelBench's, or in the dtype of their inputs."""
        if not self.emulated:
            torch.backends.cudnn.allow_tf32 = on

    def active(self) -> Any:
        """Context for code from outside: on the emulated backend, tensors claim to be on CUDA inside it."""
        return fake_cuda.active(self.emulated)

    def place(self, value: Any) -> Any:
        """Move a module or the tensors of a value to the device."""
        if self.emulated:
            return value
        if isinstance(value, torch.nn.Module):
            return value.cuda()
        return transport.map_tensors(lambda tensor: tensor.cuda(), value)

    def on_cpu(self, value: Any) -> list[int]:
        """Indices of the tensors that are not on the GPU, where there is one."""
        if self.emulated:
            return []
        return [index for index, tensor in enumerate(transport.tensors(value)) if not tensor.is_cuda]

    def synchronize(self) -> None:
        if self.emulated:
            fake_cuda.Work.finish()
        else:
            torch.cuda.synchronize()

    def is_broken(self) -> bool:
        """Whether an error on the GPU, such as a failed device assert, has made it useless to this process."""
        try:
            self.synchronize()
        except RuntimeError:
            return True
        return False

    def release(self) -> None:
        """Give memory that is no longer used back to the GPU, where others need it, once it is much."""
        if self.emulated or self.timing or torch.cuda.memory_reserved() < KEPT_BYTES:
            return
        gc.collect()
        torch.cuda.empty_cache()

    def trim(self) -> None:
        """The same, often and at no cost: of what is known to be free."""
        if self.emulated or self.timing:
            return
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() >= KEPT_BYTES:
            torch.cuda.empty_cache()


def forward(
    model: Any,
    inputs: Any,
    seed: int,
    device: Device,
    rng: Sequence[torch.Tensor] = (),
    census: evidence.Census | None = None,
    finish: bool = True,
) -> Any:
    """One `forward` without gradients. Seeded, or with generators as in `rng`. `finish`: the GPU has done all of
    its work when this returns; else it is enqueued, as the forward's caller finds it."""
    seed_everything(seed)
    for state, restore in zip(rng, (torch.set_rng_state, torch.cuda.set_rng_state), strict=False):
        restore(state)
    fake_cuda.HostCopies.elements = 0
    with torch.no_grad(), device.active(), evidence.watching(census):
        output = transport.plain(model(*inputs))  # within, so that a lazy container is watched, too
    if finish:
        device.synchronize()
    if census is not None:
        census.work.host += fake_cuda.HostCopies.elements
    return output


def generator_states(device: Device) -> tuple[torch.Tensor, ...]:
    """The states of PyTorch's generators: the CPU's, and the GPU's where there is one."""
    return (torch.get_rng_state(),) if device.emulated else (torch.get_rng_state(), torch.cuda.get_rng_state())


def aliased(output: Any, inputs: Any) -> list[int]:
    """Indices of the input tensors whose memory an output tensor lies in."""
    written = [_memory(tensor) for tensor in transport.tensors(output)]
    found = []
    for index, tensor in enumerate(transport.tensors(inputs)):
        begin, end = _memory(tensor)
        if any(first < end and begin < last for first, last in written):
            found.append(index)
    return found


STATE = -1  # in place of an output tensor, the model's parameters and buffers


def overlapping(output: Any, model: Any = None) -> tuple[int, ...]:
    """Pairs of output tensors that have memory in common, one pair after the other: to write to one of them changes the
    other. Views that lie side by side in one buffer have none, however they are interleaved. A tensor whose own
    elements have, as one that was expanded, is a pair with itself, and one in memory of the `model`'s with `STATE`."""
    tensors = [tensor for tensor in transport.tensors(output) if tensor.layout == torch.strided]
    if len(tensors) != len(transport.tensors(output)):
        return ()
    buffers = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    pairs = (pair for pair in itertools.combinations(range(len(tensors)), 2) if len({buffers[i] for i in pair}) == 1)
    found = [pair for pair in pairs if _overlap(*(tensors[index] for index in pair))]
    found += [(index, index) for index, tensor in enumerate(tensors) if _repeats_itself(tensor)]
    state = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    kept = {one.untyped_storage().data_ptr() for one in state if one.numel()}
    found += [(STATE, index) for index, buffer in enumerate(buffers) if buffer in kept and tensors[index].numel()]
    return tuple(index for pair in found for index in pair)


def _repeats_itself(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    try:
        return numpy.shares_memory(_Places(one), _Places(other), max_work=LOOKED_FOR)  # type: ignore[arg-type]
    except numpy.exceptions.TooHardError:  # of strides that fit into one another badly: they get the benefit of it
        return False


class _Places:
    """Where a tensor's elements are, on whatever device, for numpy: which only calculates, and reads none of them."""

    def __init__(self, tensor: torch.Tensor):
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
        }


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    """First and last address of a tensor's storage, whoever's view it is."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def fingerprints(model: Any, buffers: bool = False) -> dict[str, int]:
    """A checksum of each parameter's bytes; `buffers`: and of each buffer's."""
    if not isinstance(model, torch.nn.Module):
        return {}
    kept = (*model.named_parameters(), *(model.named_buffers() if buffers else ()))
    return _fingerprints_of(dict(kept))


def written(model: Any, before: dict[str, int]) -> list[str]:
    """What changed of that since `before`."""
    now = {**dict(model.named_buffers()), **dict(model.named_parameters())} if before else {}
    found = _fingerprints_of({name: now[name] for name in before if name in now})
    return [name for name, value in before.items() if found.get(name) != value]


def _fingerprints_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """By name. Those of a device are read at once: each look waits for a GPU that others use, too."""
    by_place: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        by_place.setdefault(tensor.device, {})[name] = _fingerprint(tensor)
    found: dict[str, int] = {}
    for own in by_place.values():
        found |= zip(own, torch.stack([*own.values()]).tolist(), strict=True)
    return found


def _fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """A number, int64, where the tensor is."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    if tensor.layout != torch.strided or tensor.is_complex() or not tensor.numel():
        return total
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = flat.view(torch.int32) if flat.numel() % 4 == 0 else flat
    for start in range(0, words.numel(), STRETCH):
        part = words[start : start + STRETCH]
        places = torch.arange(part.numel(), device=part.device, dtype=torch.int32)
        # Odd weights: no change of one word is lost.
        total = 3 * total + (part * (places * 2 + 1)).sum(dtype=torch.int64)
    return total
