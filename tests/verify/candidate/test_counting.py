"""What a file does once it was called often, or some time has gone by, shows while it is captured."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.nn as nn

from dice.verify.candidate import counting
from dice.verify.candidate.capture import NotCaptured
from tests.verify.candidate.test_capture import X, captured


class Lazy(nn.Module):
    """Does something else once it was called often, as the counter that `count` moves has it."""

    def __init__(self, count: Callable[[Lazy], int]) -> None:
        super().__init__()
        self.count, self.calls, self.known = count, 0, {"calls": 0}
        self.seen: list[int] = []
        self.found: dict[int, int] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.count(self) <= 300 else x


def in_attribute(self: Lazy) -> int:
    self.calls += 1
    return self.calls


def in_dictionary(self: Lazy) -> int:
    self.known["calls"] += 1
    return self.known["calls"]


def in_list(self: Lazy) -> int:
    MANY[0] += 1
    return MANY[0]


def in_class(self: Lazy) -> int:
    Lazy.made = getattr(Lazy, "made", 0) + 1  # type: ignore[attr-defined]
    return int(Lazy.made)  # type: ignore[attr-defined]


def in_module(self: Lazy) -> int:
    global made
    made += 1
    return made


def closing() -> Callable[[Lazy], int]:
    calls = 0

    def count(self: Lazy) -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


MANY, made = [0], 0
in_closure = closing()


def in_function(self: Lazy) -> int:
    in_function.calls = getattr(in_function, "calls", 0) + 1  # type: ignore[attr-defined]
    return int(in_function.calls)  # type: ignore[attr-defined]


def by_length(self: Lazy) -> int:
    self.seen.append(self.calls)
    return len(self.seen)


def by_entries(self: Lazy) -> int:
    self.found[len(self.found)] = self.calls
    return len(self.found)


COUNTS = [in_attribute, in_dictionary, in_list, in_class, in_module, in_closure, in_function, by_length, by_entries]


@pytest.mark.parametrize("count", COUNTS, ids=lambda count: count.__name__)
def test_counters_of_calls_are_moved_on(count: Callable[[Lazy], int]) -> None:
    with pytest.raises(NotCaptured, match="called often"):
        captured(Lazy(count), X)


@pytest.mark.parametrize("count", COUNTS, ids=lambda count: count.__name__)
def test_who_counts_and_does_not_mind_is_a_program(count: Callable[[Lazy], int]) -> None:
    class Counting(Lazy):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count(self)
            return x * 2

    assert torch.equal(captured(Counting(count), X)(X), X * 2)


def test_what_is_done_later_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("time", "monotonic", "perf_counter"):
        for clock_name in (name, f"{name}_ns"):
            monkeypatch.setattr(time, clock_name, getattr(time, clock_name))  # to be put back
    counting.install_clocks()
    begun = time.perf_counter_ns()

    class Tired(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if time.perf_counter_ns() - begun < 3e12 else x

    class Punctual(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if time.time() > 0 and time.monotonic() > 0 else x

    with pytest.raises(NotCaptured, match="or later"):
        captured(Tired(), X)
    assert torch.equal(captured(Punctual(), X)(X), X * 2)
    assert time.perf_counter_ns() - begun < 3e12  # and it is now again
