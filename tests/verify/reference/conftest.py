"""References of small problems, in the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dice.verify.execution.running import Device
from dice.verify.reference.reference import Reference
from dice.verify.reference.subject import Subject


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Reference]:
    def build(source: str, protocol: str = "dice") -> Reference:
        reference = Reference(Subject(source, Device("emulated"), tmp_path, protocol=protocol))
        reference.construct(1)
        reference.construct_fresh(2)
        return reference

    return build
