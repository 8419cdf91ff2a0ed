"""The problem's file, loaded: its constructor's arguments, its models, and draws of its inputs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from dice.problem import not_a_list
from dice.verify.execution import branches, inputs, running, steady
from dice.verify.execution.running import Device
from dice.verify.ipc.out_of_memory import note as note_shortage
from dice.verify.protocols import KERNELBENCH_SEED, protocol_named
from dice.verify.reference import scale, workload
from dice.verify.reference.trial import ReferenceFailed, blame
from dice.verify.tensors import transport, trees


class Subject:
    """One problem on one device. `folder` is scratch for its source. Raises `ReferenceFailed`, `scale.TooLarge`.

    `large_bytes`: inputs of so much are drawn on the GPU, and trials of so much stay there. `scale`: how the inputs
    shrank. `words`: texts that its code tells apart; `numbers`: that it compares with, and `periods` of which it takes
    remainders. `path`: its file. `looks_up`: places in tables, which are sorted for it; `leaves_out`: a label that it
    names itself, even if it is PyTorch's usual one. `ranges`: of whole numbers that the last draw drew one by one, by
    their place among `steady.leaves`.
    """

    def __init__(
        self,
        source: str,
        device: Device,
        folder: Path,
        *,
        protocol: str = "dice",
        shrink: float | None = None,
        limit_s: float = 60.0,
        large_bytes: int = 1 << 62,
    ):
        self.device, self.protocol, self.folder = device, protocol_named(protocol), folder
        self.large_bytes = large_bytes
        self.scale: dict[str, Any] = {}
        self.arguments: Any = ()
        if device.emulated:
            source, self.scale = scale.fit(source, folder, shrink, limit_s)
        with blame("the file"), device.active():
            self.module = running.exec_file(source, folder, "problem")
        self.words = steady.words(source)
        self.numbers, self.periods = branches.numbers(source), branches.periods(source)
        self.path = str(self.module.__file__)
        self.looks_up = any(word in source for word in ("searchsorted", "bucketize"))  # places in tables
        self.leaves_out = "ignore_index" in source
        self.ranges: dict[int, tuple[int, int]] = {}
        self.sizes = workload.sizes(self.module, device)

    def choose_arguments(self, seed: int) -> Any:
        """Call `get_init_inputs()`; what it returns is what all models are constructed with."""
        seed = seed if self.protocol.ours else KERNELBENCH_SEED
        with blame("get_init_inputs()"), self.device.active():
            running.seed_everything(seed)
            arguments = self.module.get_init_inputs()
        if isinstance(arguments, dict) and arguments:  # which would give the constructor its names
            raise ReferenceFailed(not_a_list("get_init_inputs", "dict"))
        self.arguments = self.cast(arguments)
        if not self.protocol.ours:
            self.arguments = self.device.place(self.arguments)
        return self.arguments

    def new_model(self, seed: int, arguments: Any = None) -> torch.nn.Module:
        """A model as its constructor makes it under `seed`, where that puts it. `arguments`: other ones."""
        seed = seed if self.protocol.ours else KERNELBENCH_SEED
        arguments = copy.deepcopy(self.arguments if arguments is None else arguments)
        with blame("Model(...)"), self.device.active():
            running.seed_everything(seed)
            model = self.module.Model(*arguments)
        if not isinstance(model, torch.nn.Module):
            raise ReferenceFailed(f"Model(...) returned a {type(model).__name__}, not a torch.nn.Module")
        if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
            raise ReferenceFailed("it has lazy modules, whose parameters have no shape yet; give their sizes")
        return model

    def cast(self, value: Any) -> Any:
        """Modules, and tensors at the top of a list, in the protocol's dtype."""
        if not self.protocol.cast:
            return value
        dtype = getattr(torch, self.protocol.cast)
        if isinstance(value, torch.nn.Module):
            return value.to(dtype=dtype)
        return [item.to(dtype=dtype) if isinstance(item, torch.Tensor) else item for item in value]

    def draw(self, seed: int) -> list[Any] | tuple[Any, ...]:
        """The values of `get_inputs()` under `seed`."""
        with blame("get_inputs()"), self.device.active(), steady.Draws() as draws:
            drawn = self._draw_on_gpu(seed) if self.sizes.inputs >= self.large_bytes else None
            if drawn is None:
                running.seed_everything(seed)
                drawn = self.module.get_inputs()
        if not isinstance(drawn, list | tuple):
            raise ReferenceFailed(not_a_list("get_inputs", type(drawn).__name__))
        self.ranges = draws.ranges(drawn)
        for tensor in transport.tensors(drawn):
            if what := inputs.unusable(tensor):
                raise ReferenceFailed(f"get_inputs() returned a tensor {what}")
        if what := transport.unreadable(drawn):
            raise ReferenceFailed(f"get_inputs() returned {what}")
        return drawn

    def _draw_on_gpu(self, seed: int) -> Any:
        """A draw by the GPU's generator, which takes a hundredth of the time; None where the code wants the CPU's."""
        if self.device.emulated:
            return None
        try:
            with torch.device("cuda"):
                running.seed_everything(seed)
                return self.module.get_inputs()
        except Exception as error:  # the problem's own code, which may want NumPy's numbers, say
            note_shortage(error)
            return None

    def kept(self, *values: Any) -> tuple[Any, ...]:
        """On the CPU, or on the device where they are much. Nobody else writes to them."""
        size = sum(tensor.nbytes for value in values for tensor in transport.tensors(value))
        if size < self.large_bytes:
            return tuple(trees.to_cpu(value) for value in values)
        return tuple(transport.map_tensors(torch.Tensor.detach, self.device.place(value)) for value in values)
