"""The problem that is audited: its model and first inputs, and how further inputs are drawn and run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dice.problem import not_a_list
from dice.verify.execution import running
from dice.verify.execution.running import Device
from dice.verify.reference.reference import Reference
from dice.verify.reference.subject import Subject
from dice.verify.reference.trial import ReferenceFailed, blame, derive, unchanged
from dice.verify.tensors import transport


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Floats of eight bits, for which PyTorch has few operators, as float32."""
    tensor = tensor.detach()
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 2 else tensor


class AuditSubject:
    """One problem on one device. `drawn`: its first inputs, there. Raises `ReferenceFailed`."""

    def __init__(self, source: str, device: Device, folder: Path, seed: int):
        self.device, self.seed = device, seed
        self.reference = Reference(Subject(source, device, folder, limit_s=float("inf")))
        self.reference.construct(derive(seed, "parameters"))
        self.model = self.reference.model
        self.drawn: Any = ()

    def draw(self, name: str) -> Any:
        """Inputs under a seed that follows from `name`, on the device."""
        running.seed_everything(derive(self.seed, f"inputs {name}"))
        with blame("get_inputs()"), self.device.active():
            drawn = self.reference.subject.module.get_inputs()
        if not isinstance(drawn, list | tuple):
            raise ReferenceFailed(not_a_list("get_inputs", type(drawn).__name__))
        return self.device.place(drawn)

    def forward(self, drawn: Any, seed: int = 0) -> Any:
        """The output for copies of these inputs; buffers of the model stay as they are."""
        copies = transport.map_tensors(torch.Tensor.clone, drawn)
        with blame("forward"), unchanged(self.model):
            output = running.forward(self.model, copies, seed, self.device)
        return transport.map_tensors(readable, output)
