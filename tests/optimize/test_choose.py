"""Which regions stay, told by times: of a verifier that knows what each composition takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from dice.files.journal import Journal
from dice.kernel import Kernel
from dice.optimize.printing import problem_of
from dice.optimize.regions import cut
from dice.optimize.templates.answer import kernel_of
from dice.optimize.trace.capture_graph import export_graph
from dice.optimize.training import _BackwardChooser
from dice.optimize.whole.choose import Chooser, Whole
from dice.optimize.whole.plan import Part, Plan
from dice.problem import Problem
from dice.verdict import Timing, Verdict
from dice.verify import Options
from dice.verify.execution.running import Device

SOURCE = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    pass\n"


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(F.relu(self.a(x)), -1).cumsum(-1)


class Timed:
    """Stands for a verifier with a GPU: a whole takes 10 ms less what its regions save."""

    options = Options()

    def __init__(self, saves: Mapping[str, float]):
        self.saves, self.asked = saves, 0

    def verify(self, problem: Problem, kernel: Kernel, **how: Any) -> Verdict:
        self.asked += 1
        if "cancellation" in how:
            how["cancellation"].check()  # what was called off is verified by nobody
        ms = 10.0 - sum(saved for title, saved in self.saves.items() if f": {title}." in kernel.source)
        return Verdict("correct", "done", timing=Timing(ms, 10.0, 10.0 / ms, 5))


@pytest.fixture
def choose(tmp_path: Path) -> Callable[..., tuple[set[str], Chooser, Timed]]:
    def run(saves: Mapping[str, float], **settings: Any) -> tuple[set[str], Chooser, Timed]:
        unit = export_graph(Layers(), (torch.randn(4, 8),), {}, Device("emulated"), own_file=__name__)
        regions = tuple(cut(unit.graph))
        printed = {region.key: problem_of(region) for region in regions}
        parts = {one.key: Part(kernel_of(one, printed[one.key]), printed[one.key].paths) for one in regions}
        titles = {region.key: region.title for region in regions}
        verifier: Any = Timed(saves)
        speedups = {region.key: settings.pop(region.title, 2.0) for region in regions}
        with Journal(tmp_path / "journal.jsonl") as journal:
            plan = Plan(Problem(SOURCE, name="net"), ((unit, regions),), parts)
            kind = settings.pop("kind", Chooser)
            chooser = kind(verifier, plan, journal, lambda what, done, total: None, speedups=speedups, **settings)
            keys = [region.key for region in regions]
            whole: Whole | None = chooser.choose(keys) if kind is Chooser else chooser.choose_or_none(keys)
        return {titles[key] for key in whole.keys} if whole else set(), chooser, verifier

    return run


Choose = Callable[..., tuple[set[str], Chooser, Timed]]
FASTER = {"linear, relu": 1.0, "softmax": 2.0, "cumsum": 0.5}


def test_what_saves_time_stays(choose: Choose) -> None:
    kept, _, _ = choose(FASTER)
    assert kept == set(FASTER)


class BackwardOfNothing(_BackwardChooser):
    """Its compositions are those of the regions themselves."""

    problem = Chooser.problem  # type: ignore[assignment]
    composed = Chooser.composed
    why_not_inlined = Chooser.why_not_inlined


def test_backwards_that_are_no_faster_leave_pytorchs(choose: Choose) -> None:
    kept, chooser, _ = choose(dict.fromkeys(FASTER, -1.0), kind=BackwardOfNothing)
    assert kept == set() and len(chooser.dropped) == 3


def test_a_region_without_which_the_whole_is_faster_goes(choose: Choose) -> None:
    kept, chooser, _ = choose(FASTER | {"softmax": -3.0})
    assert kept == {"linear, relu", "cumsum"}
    assert any("the whole is faster without it" in why for why in chooser.dropped.values())


def test_more_kernels_than_a_file_may_have_builds_are_tried_in_one(
    choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, timed = 2, Timed.verify

    def verify(self: Timed, problem: Problem, kernel: Kernel, **how: object) -> Verdict:
        builds = kernel.source.count("= load_inline(")
        return timed(self, problem, kernel) if builds <= most else Verdict("runtime_error", "load", "too many builds")

    monkeypatch.setattr(Timed, "verify", verify)
    monkeypatch.setattr("dice.optimize.whole.choose.MOST_BUILDS", most - 1)
    kept, _, _ = choose(FASTER | {"cumsum": -0.5})
    assert kept == {"linear, relu", "softmax"}


def test_what_a_file_has_no_room_for_is_left_out(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least valuable first: the order in which regions are given."""
    longest, timed = 10_000, Timed.verify

    def verify(self: Timed, problem: Problem, kernel: Kernel, **how: object) -> Verdict:
        is_read = len(kernel.source) <= longest
        return timed(self, problem, kernel) if is_read else Verdict("no_kernel", "static", "the file is too large.")

    monkeypatch.setattr(Timed, "verify", verify)
    monkeypatch.setattr("dice.optimize.whole.choose.MAX_SOURCE", longest)
    kept, chooser, _ = choose(FASTER)
    assert kept == {"linear, relu", "softmax"}
    assert list(chooser.dropped.values()) == ["with it the file would be larger than 9 KiB"]


def test_a_region_that_is_slow_by_itself_is_not_tried(choose: Choose) -> None:
    kept, chooser, verifier = choose(FASTER, softmax=0.4)
    assert kept == {"linear, relu", "cumsum"} and "slower than PyTorch (0.40x)" in chooser.dropped.values()


def test_nothing_is_replaced_where_nothing_is_faster(choose: Choose) -> None:
    kept, chooser, _ = choose(dict.fromkeys(FASTER, -1.0))
    assert not kept
    assert any("no faster than PyTorch" in why for why in chooser.dropped.values())


def test_all_that_is_right_stays_where_that_is_wanted(choose: Choose) -> None:
    kept, _, verifier = choose(dict.fromkeys(FASTER, -1.0), keep="right", softmax=0.4)
    assert kept == set(FASTER) and verifier.asked == 1


def test_what_was_measured_is_not_measured_again(choose: Choose) -> None:
    _, _, first = choose(FASTER | {"softmax": -3.0})
    kept, _, second = choose(FASTER | {"softmax": -3.0})
    assert kept == {"linear, relu", "cumsum"} and first.asked and not second.asked


class Moves(Timed):
    """Says that a whole with `linear, relu` alone is deceptive, and that any with `softmax` is wrong."""

    def verify(self, problem: Problem, kernel: Kernel, **how: object) -> Verdict:
        said = super().verify(problem, kernel)
        found = {title for title in self.saves if f": {title}." in kernel.source}
        if "softmax" in found:
            return replace(said, outcome="wrong", timing=None)
        return replace(said, outcome="deceptive", timing=None) if found == {"linear, relu"} else said


def test_a_region_that_is_too_little_alone_stays_behind_others(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(choose.__globals__, "Timed", Moves)  # type: ignore[attr-defined]
    kept, chooser, _ = choose(FASTER)
    assert kept == {"linear, relu", "cumsum"} and len(chooser.dropped) == 1


class RightOnce(Timed):
    """Without `softmax` a whole is faster, and wrong in all trials but one."""

    def verify(self, problem: Problem, kernel: Kernel, **how: Any) -> Verdict:
        said = super().verify(problem, kernel)
        if "softmax" in {title for title in self.saves if f": {title}." in kernel.source} or how["options"].trials == 1:
            return said
        return replace(said, outcome="wrong", timing=None)


class RightBriefly(Timed):
    """Stands for an emulating verifier that finds in full what it had missed before: a whole is right without a
    build of its own, and in full none is."""

    def verify(self, problem: Problem, kernel: Kernel, **how: Any) -> Verdict:
        said = replace(super().verify(problem, kernel), timing=None)
        return said if how["options"].timing_s < self.options.timing_s else replace(said, outcome="wrong")


def test_where_nothing_is_right_in_full_that_is_said(choose: Choose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(choose.__globals__, "Timed", RightBriefly)  # type: ignore[attr-defined]
    kept, chooser, _ = choose(FASTER)
    assert kept == set(FASTER)


def test_what_is_wrong_when_it_is_verified_in_full_is_not_chosen(
    choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(choose.__globals__, "Timed", RightOnce)  # type: ignore[attr-defined]
    kept, _, _ = choose(FASTER | {"softmax": -0.5})
    assert kept == set(FASTER)
