"""Checks share the GPU; a timing has it alone and is not starved."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from dice.verify.supervisor import gpu_lock
from dice.verify.supervisor.gpu_lock import PASSES, GpuLock, Turn

WAIT_S = 5


def test_timing_waits_for_checks_and_holds_off_new_ones() -> None:
    turns = GpuLock(gathered=1)
    events: list[str] = []
    first, second = turns.shared(), turns.shared()
    first.__enter__()
    second.__enter__()  # two checks at once

    def measure() -> None:
        with turns.exclusive():
            events.append("timing")

    def check() -> None:
        with turns.shared():
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


@pytest.mark.parametrize("patience_s", [0.0, 1000.0])
def test_while_timing_waits_for_a_slow_step_quick_ones_go_on_and_slow_ones_for_a_while(patience_s: float) -> None:
    turns = GpuLock(patience_s=patience_s, gathered=1)
    events: list[str] = []

    def enter(name: str, turn: contextlib.AbstractContextManager[None]) -> threading.Thread:
        def hold() -> None:
            with turn:
                events.append(name)

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        return thread

    slow = turns.shared(slow=True)
    slow.__enter__()
    timing = enter("timing", turns.exclusive())
    while not turns._waiting:
        pass
    other = enter("slow", turns.shared(slow=True))
    if patience_s:
        other.join(WAIT_S)
    enter("quick", turns.shared()).join(WAIT_S)
    assert events == ["slow", "quick"][not patience_s :]
    slow.__exit__(None, None, None)
    timing.join(WAIT_S)
    other.join(WAIT_S)
    assert events == (["slow", "quick", "timing"] if patience_s else ["quick", "timing", "slow"])
    assert (turns._shared, turns._slow, turns._waiting) == (0, 0, 0)


class Rooms:
    """Threads that wait for room, hold it until told, and note when they got it."""

    def __init__(self, lock: GpuLock):
        self.gpu_lock, self.entered = lock, list[str]()
        self._leave: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}

    def ask(self, name: str, size: int) -> None:
        self._leave[name] = threading.Event()
        self._threads[name] = threading.Thread(target=self._hold, args=(name, size), daemon=True)
        self._threads[name].start()
        settled = time.monotonic() + 0.05
        while time.monotonic() < settled and name not in self.entered:
            time.sleep(0.001)

    def leave(self, name: str) -> None:
        self._leave[name].set()
        self._threads[name].join(WAIT_S)
        assert not self._threads[name].is_alive()
        time.sleep(0.05)

    def _hold(self, name: str, size: int) -> None:
        with self.gpu_lock.reserve_memory(size):
            self.entered.append(name)
            self._leave[name].wait(WAIT_S)


def test_jobs_share_the_memory_and_one_that_needs_all_of_it_gets_it() -> None:
    rooms = Rooms(GpuLock(memory=100))
    rooms.ask("some", 60)
    rooms.ask("all", 1 << 40)
    rooms.ask("more", 50)
    assert rooms.entered == ["some"]
    rooms.leave("some")
    assert rooms.entered == ["some", "all"]
    rooms.leave("all")
    assert rooms.entered == ["some", "all", "more"]
    rooms.leave("more")
    assert rooms.gpu_lock._taken == 0 and rooms.gpu_lock._queue == []


def test_small_jobs_pass_a_large_one_that_does_not_fit_yet_but_not_for_ever() -> None:
    rooms = Rooms(GpuLock(memory=100))
    rooms.ask("first", 60)
    rooms.ask("large", 50)
    for number in range(PASSES + 3):
        rooms.ask(f"small {number}", 1)
    passed = [f"small {number}" for number in range(PASSES)]
    assert rooms.entered == ["first", *passed]
    rooms.leave("first")
    assert rooms.entered[len(passed) + 1] == "large" and len(rooms.entered) == PASSES + 5
    for name in list(rooms.entered):
        rooms.leave(name)


def test_who_gives_up_waiting_holds_up_nobody() -> None:
    turns = GpuLock(memory=10)

    class Interrupted(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    with turns.reserve_memory(10, aside=interrupt):  # which need not wait
        turns._changed.wait_for = interrupt  # type: ignore[method-assign, assignment]
        with contextlib.suppress(Interrupted), turns.reserve_memory(5):
            raise AssertionError
        assert turns._queue == []
    assert turns._taken == 0


def test_timings_gather_while_checks_go_on_and_then_follow_each_other() -> None:
    turns = GpuLock(gathered=2)
    events: list[str] = []

    def enter(name: str, turn: contextlib.AbstractContextManager[None]) -> threading.Thread:
        def hold() -> None:
            with turn:
                events.append(name)

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        return thread

    check = turns.shared()
    check.__enter__()
    first = enter("timing", turns.exclusive())
    while not turns._waiting:
        pass
    enter("check", turns.shared()).join(WAIT_S)
    assert events == ["check"]  # one timing alone waits for others
    second = enter("timing", turns.exclusive())
    while turns._waiting < 2:
        pass
    late = enter("late check", turns.shared())
    late.join(0.1)
    assert events == ["check"]
    check.__exit__(None, None, None)
    for thread in (first, second, late):
        thread.join(WAIT_S)
    assert events == ["check", "timing", "timing", "late check"]


def test_a_timing_does_not_wait_for_ever_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock, "GATHER_S", 0.0)
    turns = GpuLock(gathered=2)
    check = turns.shared()
    check.__enter__()
    timing, late = turns.exclusive(), turns.shared()
    waiting = threading.Thread(target=timing.__enter__, daemon=True)
    waiting.start()
    while not turns._waiting:
        pass
    blocked = threading.Thread(target=late.__enter__, daemon=True)
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()
    check.__exit__(None, None, None)
    waiting.join(WAIT_S)
    assert not waiting.is_alive() and blocked.is_alive()
    timing.__exit__(None, None, None)
    blocked.join(WAIT_S)
    assert not blocked.is_alive()


def test_a_turn_goes_on_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock, "LONG_S", 0.0)
    lock, events = GpuLock(gathered=1), list[str]()

    def measure() -> None:
        with lock.exclusive():
            events.append("timing")

    timing = threading.Thread(target=measure, daemon=True)
    with Turn(lock, False, contextlib.nullcontext) as turn:
        turn.step()
        events.append("first step")
        turn.step()
        assert lock._shared == 1  # it was not given back: nobody asks for it
        timing.start()
        while not lock._waiting:
            pass
        turn.step()
        events.append("third step")
        turn.end()
        assert lock._shared == 0
    timing.join(WAIT_S)
    assert events == ["first step", "timing", "third step"]
