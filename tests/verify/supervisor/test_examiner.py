"""Texts are read in a process of their own: what ends it costs that text its verdict, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dice.kernel import Kernel
from dice.problem import Problem
from dice.prompts import EXAMPLE_KERNEL, EXAMPLE_PROBLEM
from dice.verify import Verifier
from dice.verify.sandbox.process import Zygote
from dice.verify.supervisor.examiner import Examinations
from dice.verify.supervisor.record import VerdictReached
from dice.verify.text import source_map, static

EXAMPLE = Kernel(EXAMPLE_KERNEL)
SLOW = Kernel('f"' + "{a}" * 80_000 + '"')  # CPython 3.11 takes ten seconds for it
LARGE = Kernel("a\n" * 120_000)


@pytest.fixture
def zygote(zygotes: Callable[[], Zygote]) -> Zygote:
    return zygotes()


@pytest.fixture
def examinations() -> Iterator[Examinations]:
    examinations = Examinations()
    yield examinations
    examinations.close()


@pytest.mark.parametrize(
    "text",
    [EXAMPLE_KERNEL, "", "def (", "\0", "x = '\ud800'", "x = '\\ud800 and more of it'", "a\n" * 200_000]
    + ["é = '\\N{BULLET}'; \ufb01 = 1\nclass ModelNew: pass", "x = " + "1 if 1 else " * 340 + "1\n" + EXAMPLE_KERNEL],
)  # fmt: skip
def test_the_process_says_what_the_text_says(zygote: Zygote, examinations: Examinations, text: str) -> None:
    report, literals = examinations.examine(zygote, Kernel(text))
    assert report == static.examine(Kernel(text))
    assert literals == (() if report.unusable else tuple(source_map.literals(text)))


def test_one_process_reads_many_texts(zygote: Zygote, examinations: Examinations) -> None:
    examinations.examine(zygote, EXAMPLE)
    child = examinations._child
    for _ in range(20):
        assert examinations.examine(zygote, EXAMPLE)[0].has_cuda
    assert examinations._child is child


def test_a_text_that_takes_too_long_is_a_timeout(zygote: Zygote) -> None:
    hasty = Examinations(cpu_s=0.5)
    hasty.examine(zygote, EXAMPLE)
    with pytest.raises(VerdictReached) as stop:
        hasty.examine(zygote, SLOW)
    assert (stop.value.outcome, stop.value.stage) == ("timeout", "static")
    assert hasty.examine(zygote, EXAMPLE)[0].has_cuda
    hasty.close()


def test_a_text_that_ends_the_process_is_no_kernel(zygote: Zygote) -> None:
    narrow = Examinations(memory_mb=60)
    narrow.examine(zygote, EXAMPLE)
    with pytest.raises(VerdictReached) as stop:
        narrow.examine(zygote, LARGE)
    assert (stop.value.outcome, stop.value.stage) == ("no_kernel", "extract")
    assert narrow.examine(zygote, EXAMPLE)[0].has_cuda
    narrow.close()


def test_a_process_that_others_ended_is_replaced(zygote: Zygote, examinations: Examinations) -> None:
    examinations.examine(zygote, EXAMPLE)
    assert examinations._child is not None
    examinations._child.kill()
    assert examinations.examine(zygote, EXAMPLE)[0].has_cuda


def test_a_deep_text_costs_nobody_else_a_verdict(emulated: Verifier) -> None:
    problem = Problem(EXAMPLE_PROBLEM)
    texts = ["x = " + "1 if 1 else " * 2000 + "1\n" + EXAMPLE_KERNEL, EXAMPLE_KERNEL, "a\n" * 200_000]
    verdicts = dict(emulated.verify_many([(problem, Kernel(text)) for text in texts], 2))
    assert [verdicts[number].outcome for number in range(3)] == ["no_kernel", "correct", "no_kernel"]
    assert "nested too deeply" in verdicts[0].message and "256 KiB" in verdicts[2].message
