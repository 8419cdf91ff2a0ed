"""What a problem's file may change for the whole process that serves it and others."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """PyTorch's settings at one moment."""

    dtype: torch.dtype
    precision: str
    deterministic: bool
    threads: int

    @classmethod
    def now(cls) -> ProcessSettings:
        return cls(
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
        )

    def apply(self) -> None:
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.precision)
        if torch.are_deterministic_algorithms_enabled() != self.deterministic:
            # Only then: it imports inductor, which wants to write to a folder that is read-only here.
            torch.use_deterministic_algorithms(self.deterministic)
        torch.set_num_threads(self.threads)
        torch.set_grad_enabled(True)
