"""Modules to optimise, and processes that outlive a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from dice.verify.sandbox.process import Zygote

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """One draw in many has a sum near zero that is off by more than is allowed."""
    torch.manual_seed(1)


@pytest.fixture
def lasting(lasting_zygote: None, zygotes: Callable[[Iterable[str]], Zygote], monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifiers and tracers share processes with those of other tests."""
    monkeypatch.setattr("dice.optimize.trace.tracer.Zygote", zygotes)


@pytest.fixture
def write_module(tmp_path: Path) -> Callable[..., Path]:
    """Writes a problem's file: its classes, its inputs as text, and what its constructor takes."""

    def write(classes: str, inputs: str, given: str = "[]", name: str = "module") -> Path:
        path = tmp_path / f"{name}.py"
        ends = f"def get_inputs():\n    return {inputs}\n\n\ndef get_init_inputs():\n    return {given}\n"
        path.write_text(f"{HEAD}{classes.strip()}\n\n\n{ends}")
        return path

    return write
