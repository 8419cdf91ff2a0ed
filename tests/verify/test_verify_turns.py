"""Checks share the GPU; a timing has it alone and is not starved."""

from __future__ import annotations

import threading

from dice.verify.turns import Turns

WAIT_S = 5


def test_timing_waits_for_checks_and_holds_off_new_ones() -> None:
    turns = Turns()
    events: list[str] = []
    first, second = turns.together(), turns.together()
    first.__enter__()
    second.__enter__()  # two checks at once

    def time() -> None:
        with turns.alone():
            events.append("timing")

    def check() -> None:
        with turns.together():
            events.append("check")

    timing = threading.Thread(target=time)
    timing.start()
    while not turns._waiting:
        pass
    late = threading.Thread(target=check)
    late.start()
    first.__exit__(None, None, None)
    late.join(0.1)
    assert events == []  # one check still runs: neither the timing nor the later check has begun
    second.__exit__(None, None, None)
    timing.join(WAIT_S)
    late.join(WAIT_S)
    assert events == ["timing", "check"]
