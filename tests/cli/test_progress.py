"""Progress of long runs in a log, where nobody sees bars."""

from __future__ import annotations

import pytest

from dice.commands import progress


def lines_of(monkeypatch: pytest.MonkeyPatch, events: list[tuple[float, int]], total: int) -> None:
    """Show each (seconds, done)."""
    clock = iter([second for second, _ in events])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.bars() as show:
        for _, done in events:
            show("judged (dice)", done, total)


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    events = [(0.0, 10), (5.0, 12), (25.0, 15), (30.0, 16), (50.0, 20)]
    lines_of(monkeypatch, events, 30)
    assert capsys.readouterr().err.splitlines() == [
        "judged (dice): 15 of 30, 9/min, about 100 s left",
        "judged (dice): 20 of 30, 12/min, about 50 s left",
    ]


def test_the_time_left_is_told_from_what_comes_slowly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten that do not even compile are through at once; then one comes every two minutes."""
    events = [(float(second), second) for second in range(11)]
    events += [(10.0 + 120 * more, 10 + more) for more in range(1, 7)]
    lines_of(monkeypatch, events, 40)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "judged (dice): 16 of 40, 30/h, about 48 min left"


def test_no_time_left_is_told_before_enough_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines_of(monkeypatch, [(0.0, 0), (30.0, 1), (60.0, 2)], 400)
    assert capsys.readouterr().err.splitlines() == ["judged (dice): 1 of 400", "judged (dice): 2 of 400"]


def test_what_is_over_soon_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bars() as show:
        show("judged (dice)", 1, 1)
    with progress.bars():
        pass
    assert capsys.readouterr().err == ""


def test_a_batch_that_follows_another_is_counted_from_its_own_beginning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = [(0.0, 0), (20.0, 40), (30.0, 1), (40.0, 11)]
    lines_of(monkeypatch, events, 41)
    assert capsys.readouterr().err.splitlines()[-1] == "judged (dice): 11 of 41, 60/min, about 30 s left"
