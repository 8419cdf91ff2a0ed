"""References of small problems, in the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dice.verify.execution.running import Device
from dice.verify.ipc.messages import Step
from dice.verify.reference.reference import Reference
from dice.verify.reference.subject import Subject
from dice.verify.reference.trial import Trial

SECRET = 1234
GIVEN = Step("trial 0", "given")
Make = Callable[..., Reference]


def draw(reference: Reference, step: Step = GIVEN, loadable: bool = True) -> Trial:
    trial = reference.trial(SECRET, step, loadable)
    assert trial is not None
    return trial


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def build(source: str, protocol: str = "dice") -> Reference:
        reference = Reference(Subject(source, Device("emulated"), tmp_path, protocol=protocol))
        reference.construct(1)
        reference.construct_fresh(2)
        return reference

    return build
