"""Emulation is asked first, and another backend what that cannot tell; the emulated one stands for it here."""

from __future__ import annotations

from pathlib import Path

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from dice.verify import Options, emulated_first
from dice.verify.emulated_first import EmulatedFirst
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.sandbox.process import Cancelled

PROBLEM = Problem(EXAMPLE_PROBLEM, "example")
RIGHT = Kernel(EXAMPLE_KERNEL, "right")


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(trials=2, timing=False, cache_dir=tmp_path)


def asked_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels that the second verifier is asked about, as they come."""
    asked: list[str] = []
    plain = EmulatedFirst.__mro__[1]._verify

    def noted(self, problem, kernel, *others):  # type: ignore[no-untyped-def]
        if isinstance(self, EmulatedFirst):
            asked.append(kernel.name)
        return plain(self, problem, kernel, *others)

    monkeypatch.setattr(EmulatedFirst.__mro__[1], "_verify", noted)
    return asked


def test_what_emulation_tells_is_asked_of_nobody_else(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_again(monkeypatch)
    broken = Kernel("class ModelNew: pass")
    with EmulatedFirst(backend="emulated", options=options) as verifier:
        verdicts = dict(verifier.verify_many([(PROBLEM, RIGHT), (PROBLEM, broken)]))
        assert [verdicts[0].outcome, verdicts[1].outcome] == ["correct", "deceptive"] and asked == []
        timed = verifier.verify(PROBLEM, RIGHT, Options(trials=2, cache_dir=options.cache_dir))
    assert timed.correct and asked == ["right"]


def test_what_takes_long_is_asked_of_the_other(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated_first, "QUICK_S", 1e-6)  # no kernel is through by then
    asked = asked_again(monkeypatch)
    with EmulatedFirst(backend="emulated", options=options) as verifier:
        assert verifier.verify(PROBLEM, RIGHT).correct
    assert asked == ["right"]


def test_calling_off_ends_the_first_as_well(options: Options) -> None:
    off = Cancellation()
    with EmulatedFirst(backend="emulated", options=options) as verifier:
        stages: list[str] = []

        def told(stage: str) -> None:
            stages.append(stage)
            if stage == "reference":
                off.cancel()

        with pytest.raises(Cancelled):
            verifier.verify(PROBLEM, RIGHT, on_stage=told, cancellation=off)
    assert "compare" not in stages
