"""Which ends of a job are worth a second try with the GPU's memory to itself."""

from __future__ import annotations

import pytest

from dice.verify import endings
from dice.verify.record import Stop

BROKEN = "the problem's own reference failed: "


@pytest.mark.parametrize(
    ("stop", "short"),
    [
        (Stop("out_of_memory", "run", "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB."), True),
        (Stop("unsupported", "run", f"{BROKEN}{endings.NO_MEMORY}"), True),
        (Stop("unsupported", "run", f"{BROKEN}forward raised OutOfMemoryError: CUDA out of memory."), True),
        (Stop("out_of_memory", "run", f"it used over 8192 {endings.HOST_MEMORY}"), False),
        (Stop("unsupported", "run", f"{BROKEN}forward raised ValueError: no"), False),
        (Stop("runtime_error", "run", "RuntimeError: OutOfMemoryError, says the candidate"), False),
    ],
)
def test_only_memory_of_the_gpu_can_have_been_taken_by_others(stop: Stop, short: bool) -> None:
    assert endings.is_short_of_memory(stop) == short
