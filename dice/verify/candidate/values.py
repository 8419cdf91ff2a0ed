"""What a candidate reads and writes: inputs and outputs, in files or in memory that the reference's process lends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dice.verify.candidate.failures import WrongReturn
from dice.verify.execution.running import Device
from dice.verify.ipc.messages import MapMemory
from dice.verify.tensors import shared_memory, transport

KEPT_BYTES = 64 << 20  # of inputs, from one trial to the next


class Values:
    """The folders of one candidate, and the memory mapped for its trials."""

    def __init__(self, inputs: Path, outputs: Path, device: Device):
        self.inputs, self.outputs, self.device = inputs, outputs, device
        # Of inputs and outputs, by the inputs' name.
        self._mapped: dict[str, tuple[shared_memory.Memory, shared_memory.Memory]] = {}
        # Inputs of the trial before, and where they are: one that had its tensors where this one has them, see `guard`.
        self._placed: dict[bool, list[tuple[torch.Tensor, int]]] = {}
        # Makes objects in inputs those of the candidate's classes.
        self.own: Callable[[Any], Any] = lambda value: value

    def map_memory(self, command: MapMemory, descriptors: list[int]) -> str:
        """Take the memory that the next inputs are in, instead of files; why that failed, or ""."""
        try:
            lent = [
                shared_memory.borrow(descriptor, size, not self.device.emulated)
                for descriptor, size in zip(descriptors, command.sizes, strict=True)
            ]
        except (shared_memory.CannotLend, OSError) as error:
            return str(error)
        self._mapped[command.inputs] = lent[0], lent[1]
        return ""

    def release(self) -> None:
        while self._mapped:
            for memory in self._mapped.popitem()[1]:
                memory.close()

    def read(self, name: str) -> Any:
        """Inputs on the device, nobody else's."""
        return self.own(self._read(name))

    def _read(self, name: str) -> Any:
        return self.device.place(transport.read(self.inputs, name, memory=self._inputs_of(name)))

    def read_in_place(self, name: str, at_front: bool = False) -> Any:
        """The same, where those of the trial before are, if they are alike: who remembers answers by the address of an
        input gives one that is over. On a GPU its allocator does so, too. And as tensors that nobody has written to:
        who remembers them by PyTorch's count of writes does, too."""
        value = self._read(name)
        new = transport.tensors(value)
        before = self._placed.pop(at_front, [])
        if sum(tensor.nbytes for tensor in new) > KEPT_BYTES:
            return self.own(value)
        if len(before) == len(new) and all(map(_fits, before, new)):
            places = iter(tensor for tensor, _ in before)
            value = transport.map_tensors(lambda tensor: next(places).copy_(tensor).data, value)
        self._placed[at_front] = [(tensor, tensor.data_ptr()) for tensor in transport.tensors(value)]
        return self.own(value)

    def shown(self, name: str) -> Any:
        """Inputs on the device, for our own eyes."""
        return self.device.place(transport.show(self.inputs, name, self._inputs_of(name)))

    def generator_states(self, name: str, given: bool) -> Any:
        """The reference's, before the forward on these inputs; nothing where they are not given."""
        return transport.read(self.inputs, f"{name} rng") if given else ()

    def write(self, output: Any, inputs: str, name: str) -> None:
        """The output for these inputs. Raises `WrongReturn`."""
        mapped = self._mapped.get(inputs)
        try:
            transport.write(output, self.outputs, name, mapped[1] if mapped else None)
        except transport.WireError as error:
            raise WrongReturn(f"forward returned {error}.") from None

    def _inputs_of(self, name: str) -> shared_memory.Memory | None:
        return self._mapped[name][0] if name in self._mapped else None


def _fits(before: tuple[torch.Tensor, int], new: torch.Tensor) -> bool:
    """Whether a tensor of the trial before is what it was when it was handed out, and as the new one is."""
    old, address = before
    alike = (old.shape, old.stride(), old.dtype) == (new.shape, new.stride(), new.dtype)
    return alike and old.data_ptr() == address and type(old) is torch.Tensor and not old.requires_grad
