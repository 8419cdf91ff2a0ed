"""GPUs that fail: probed, quarantined, and never a verdict on a kernel."""

from __future__ import annotations

import threading
import time

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Verifier
from dice.verify.supervisor.devices import Devices
from dice.verify.supervisor.health import TRIES, DeviceLost, Health
from tests.conftest import CASES, PATIENCE_S

RELU = Problem.from_file(CASES / "problems" / "relu.py")
RIGHT = Kernel.from_file(CASES / "right_relu.py")


@pytest.mark.usefixtures("lasting_zygote")
def test_gpu_that_fails_its_probes_is_quarantined_and_another_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs that pass for GPUs: a candidate that crashes has its device looked at, and that says no."""
    asked: list[str] = []

    def probe(gpu: str) -> bool:
        asked.append(gpu)
        return gpu != "0"

    with Verifier(backend="emulated") as verifier:
        monkeypatch.setattr(verifier, "devices", Devices("emulated", ["0", "1"], 1, probe))
        crash = Kernel.from_file(CASES / "crash.py")
        verdict = verifier.verify(RELU, crash)
        assert verdict.outcome == "runtime_error"  # found on the second device, for what the first says counts nothing
        first, second = verifier.devices.devices
        assert first.health.quarantined and not second.health.quarantined
        assert asked == ["0"] * TRIES + ["1"]
        assert verifier.verify(RELU, RIGHT).correct
        monkeypatch.setattr(second.health, "_probe", lambda: False)
        last = verifier.verify(RELU, crash)
        assert last.outcome == "infra_error" and "GPU" in last.message and not last.about_kernel
        assert verifier.verify(RELU, RIGHT).outcome == "infra_error"  # with no device left, too


def test_one_failed_probe_does_not_quarantine_and_many_questions_cost_few_probes() -> None:
    answers = iter([False, True])
    health = Health("0", lambda: next(answers))
    health.check()
    assert not health.quarantined
    asked = []
    health = Health("0", lambda: asked.append(time.sleep(0.2)) is None)
    crowd = [threading.Thread(target=health.check) for _ in range(20)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert 1 <= len(asked) <= 3


def test_everybody_who_waits_for_a_lost_gpu_is_told() -> None:
    health = Health("0", lambda: bool(time.sleep(0.1)))
    told: list[str] = []

    def ask() -> None:
        try:
            health.check()
        except DeviceLost as lost:
            told.append(str(lost))

    crowd = [threading.Thread(target=ask) for _ in range(5)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join(PATIENCE_S)
    assert told == ["the GPU 0 does not work any more"] * 5
