"""What the oracle and the candidate do alike: run a file as a module, seed, place on the device, call `forward`."""

from __future__ import annotations

import gc
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy
import torch

from dice.verify import fake_cuda, wire


def exec_file(source: str, folder: Path, name: str) -> types.ModuleType:
    """Run `source` as the module `name`, from a file, so that tracebacks and `inspect` show its lines."""
    path = folder / f"{name}.py"
    path.write_bytes(source.encode("utf-8", "surrogatepass"))
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    return module


def seed_everything(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


class Device:
    """Where a backend's tensors live."""

    def __init__(self, backend: str):
        self.emulated = backend == "emulated"

    def prepare(self, threads: int) -> None:
        """Set the process up once, before any code from outside runs in it."""
        torch.set_num_threads(max(1, threads))
        if self.emulated:
            fake_cuda.install()
            return
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False

    def active(self) -> Any:
        """Context for code from outside: on the emulated backend, tensors claim to be on CUDA inside it."""
        return fake_cuda.active(self.emulated)

    def place(self, value: Any) -> Any:
        """Move a module or the tensors of a value to the device."""
        if self.emulated:
            return value
        if isinstance(value, torch.nn.Module):
            return value.cuda()
        return wire.map_tensors(lambda tensor: tensor.cuda(), value)

    def synchronize(self) -> None:
        if not self.emulated:
            torch.cuda.synchronize()

    def release(self) -> None:
        gc.collect()
        if not self.emulated:
            torch.cuda.empty_cache()


def forward(model: Any, inputs: Any, seed: int, device: Device) -> Any:
    """One seeded `forward` without gradients, finished when this returns."""
    seed_everything(seed)
    with torch.no_grad(), device.active():
        output = model(*inputs)
    device.synchronize()
    return output
