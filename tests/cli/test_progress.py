"""Progress of long runs in a log, where nobody sees bars."""

from __future__ import annotations

import pytest

from dice.commands import progress


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 5.0, 25.0, 30.0, 50.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.bars() as show:
        for done in (10, 12, 15, 16, 20):
            show("judged (dice)", done, 30)
    assert capsys.readouterr().err.splitlines() == [
        "judged (dice): 15 of 30, 12/min, about 75 s left",
        "judged (dice): 20 of 30, 12/min, about 50 s left",
    ]


def test_what_is_over_soon_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bars() as show:
        show("judged (dice)", 1, 1)
    with progress.bars():
        pass
    assert capsys.readouterr().err == ""
