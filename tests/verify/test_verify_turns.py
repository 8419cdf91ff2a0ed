"""Checks share the GPU; a timing has it alone and is not starved."""

from __future__ import annotations

import threading
import time

from dice.verify.turns import Turns

WAIT_S = 5


def test_timing_waits_for_checks_and_holds_off_new_ones() -> None:
    turns = Turns()
    events: list[str] = []
    first, second = turns.together(), turns.together()
    first.__enter__()
    second.__enter__()  # two checks at once

    def measure() -> None:
        with turns.alone():
            events.append("timing")

    def check() -> None:
        with turns.together():
            events.append("check")

    timing = threading.Thread(target=measure)
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


def test_who_has_the_device_alone_waits_for_all_contexts_and_two_such_do_not_wait_for_each_other() -> None:
    turns = Turns(most=2)
    events: list[str] = []
    small = turns.context(whole=False)
    small.__enter__()

    def work(name: str, whole: bool) -> None:
        with turns.context(whole):
            events.append(f"{name} begins")
            time.sleep(0.05)
            events.append(f"{name} ends")

    names = [("large", True), ("larger", True)]
    threads = [threading.Thread(target=work, args=one, daemon=True) for one in names]
    for thread in threads:
        thread.start()
    threads[0].join(0.2)
    assert events == []
    small.__exit__(None, None, None)
    threads.append(threading.Thread(target=work, args=("next", False), daemon=True))
    threads[-1].start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(events) == 6
    for begins, ends in zip(events[::2], events[1::2], strict=True):
        assert begins.split()[0] == ends.split()[0], "one at a time"
