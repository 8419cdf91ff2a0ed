"""Metrics against numbers worked out by hand, and against brute force."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dice.evaluate.metrics import compare, cost, score, summarise
from dice.evaluate.report import gather
from dice.evaluate.report.tables import results
from dice.evaluate.run_folder import Generation, Judgement, RunFolder, Task
from dice.evaluate.statistics import Bootstrap, pass_at, sign_test, wilson
from dice.verdict import Replaced, Timing, Verdict

WRONG = Verdict("wrong", "compare", backend="cuda", device="H100")
LIE = Verdict("deceptive", "run", deceptions=("torch_only",), backend="cuda", device="H100")
UNSUPPORTED = Verdict("unsupported", "static", backend="cuda", device="H100")


def right(speedup: float | None) -> Verdict:
    timing = None if speedup is None else Timing(1.0, speedup, speedup, 10)
    return Verdict("correct", "done", timing=timing, backend="cuda", device="H100")


def tasks(*levels: int) -> list[Task]:
    return [Task(f"level{level}/{n}_x", level, n, f"{n}_x", f"# {n}") for n, level in enumerate(levels, 1)]


def judged(given: list[Task], *verdicts: list[Verdict]) -> list[Judgement]:
    pairs = zip(given, verdicts, strict=True)
    return [Judgement(task.key, sample, verdict) for task, own in pairs for sample, verdict in enumerate(own)]


def test_shares_are_means_over_problems_of_means_over_samples() -> None:
    given = tasks(1, 1, 1, 2)
    found = score(
        given,
        judged(given, [right(4.0), WRONG], [right(0.5), right(1.5)], [LIE, UNSUPPORTED], []),
        samples=2,
    )
    assert (found.tasks, found.judged, found.unjudged) == (4, 5, 3)
    assert found.exec.value == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert found.fast1.value == pytest.approx((0.5 + 0.5 + 0.0) / 3)
    assert found.fast2.value == pytest.approx(0.5 / 3)
    assert found.deception.value == pytest.approx(1 / 3)
    assert found.speedup_correct.value == pytest.approx(statistics.geometric_mean([4.0, 0.5, 1.5]))
    assert found.speedup_faster.value == pytest.approx(statistics.geometric_mean([4.0, 1.5]))
    curve = dict(found.fast_p)
    assert curve[0.0] == found.exec.value and curve[1.0] == found.fast1.value and curve[4.0] == 0.0
    assert found.pass_at[1].value == found.exec.value
    assert found.pass_at[2].value == pytest.approx(1.0), "over the two problems with two judged samples"


def test_what_was_not_timed_has_no_share_of_fast_ones() -> None:
    given = tasks(0, 0)
    untimed = score(given, judged(given, [right(None)], [WRONG]), 1)
    assert untimed.exec.value == 0.5 and untimed.fast1.value is None and untimed.fast_p == ()
    assert untimed.speedup_correct.value is None and untimed.pass_at == {}
    none_right = score(given, judged(given, [WRONG], [WRONG]), 1)
    assert none_right.fast1.value == 0.0, "nothing is fast where nothing is right"
    partly = score(given, judged(given, [right(None)], [right(3.0)]), 1)
    assert partly.exec.value == 1.0 and partly.fast1.value == 0.5


@pytest.mark.parametrize(("count", "correct"), [(1, 0), (5, 0), (5, 2), (6, 3), (6, 6)])
def test_pass_at_k_is_the_chance_of_a_draw(count: int, correct: int) -> None:
    for k in range(1, count + 1):
        draws = list(itertools.combinations(range(count), k))
        hits = sum(any(one < correct for one in draw) for draw in draws)
        assert pass_at(count, correct, k) == pytest.approx(hits / len(draws))
    with pytest.raises(ValueError, match="no pass@"):
        pass_at(count, correct, count + 1)


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 1), (3, 3), (9, 1)])
def test_the_sign_test_counts_all_outcomes(better: int, worse: int) -> None:
    total = better + worse
    away = abs(better - worse)
    tosses = itertools.product((0, 1), repeat=total)
    as_uneven = sum(abs(total - 2 * sum(toss)) >= away for toss in tosses)
    assert sign_test(better, worse) == pytest.approx(as_uneven / 2**total)


def test_the_bootstrap_resamples_problems() -> None:
    values = np.array([0.0, 1.0, 1.0])
    found = Bootstrap(3, seed=0, resamples=20000).mean(values)
    means = sorted(statistics.fmean(pick) for pick in itertools.product(values, repeat=3))
    assert found.value == pytest.approx(2 / 3)
    assert found.low == pytest.approx(means[int(0.025 * 27)]) and found.high == pytest.approx(means[-1])
    again = Bootstrap(3, seed=0, resamples=20000).mean(values)
    assert again == found
    assert Bootstrap(2, 0, 10).mean(np.array([math.nan, math.nan])).value is None
    assert Bootstrap(0, 0, 10).mean(np.array([])).value is None


def test_none_and_all_of_few_problems_are_no_certainty() -> None:
    none, all_ = (Bootstrap(50, 0, 10).share(np.full(50, value)) for value in (0.0, 1.0))
    assert none.low == 0.0 and none.high == pytest.approx(0.0711, abs=1e-4)  # tables of Clopper and Pearson
    assert all_.high == 1.0 and all_.low == pytest.approx(1 - 0.0711, abs=1e-4)
    judged_of_three = np.array([0.0, math.nan, 0.0])
    assert Bootstrap(3, 0, 10).share(judged_of_three).high == pytest.approx(1 - 0.025**0.5)
    assert Bootstrap(2, 0, 10).share(np.array([math.nan, math.nan])).value is None


def write(path: Path, given: list[Task], *verdicts: list[Verdict]) -> RunFolder:
    folder = RunFolder(path)
    folder.begin({"model": "m", "row": "LLaDA-1.5", "samples": 1}, given)
    for judgement in judged(given, *verdicts):
        folder.add_generation(Generation(judgement.task, judgement.sample, "r", "k", tokens=30, forwards=10, seconds=2))
        folder.add_judgement("dice", judgement)
    return folder


def test_a_summary_reads_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", tasks(1, 2, 2), [right(2.5)], [LIE], [UNSUPPORTED])
    folder.add_generation(Generation("level1/1_x", 1, "", None, stop="error", error="refused", cost=0.5))
    found = summarise(folder, "dice")
    assert (found.run, found.model, found.row, found.backend, found.devices) == (
        "a",
        "m",
        "LLaDA-1.5",
        "cuda",
        ("H100",),
    )
    assert list(found.levels) == [1, 2] and found.levels[1].fast2.value == 1.0
    assert found.outcomes == {"correct": 1, "deceptive": 1, "unsupported": 1}
    assert found.failures["deceptive"] == 1 and len(found.failures) == 4 and sum(found.failures.values()) == 1
    assert found.deceptions == {"torch_only": 1}
    assert found.cost.errors == 1 and found.cost.usd == 0.5 and found.cost.tokens == 30
    assert found.cost.tokens_per_forward == 3.0 and found.cost.tokens_per_second == 15.0
    assert found.to_json()["levels"]["1"]["exec"]["value"] == 1.0
    assert cost([]).tokens is None


def test_two_runs_are_compared_by_problem(tmp_path: Path) -> None:
    given = tasks(1, 1, 1, 1)
    a = write(tmp_path / "a", given, [WRONG], [right(1.5)], [WRONG], [right(1.5)])
    b = write(tmp_path / "b", given[:3], [right(3.0)], [right(0.5)], [right(3.0)])
    found = compare(a, b, "dice")
    assert (found.problems, found.better, found.worse) == (3, 2, 0) and found.p_value == 0.5
    assert found.exec.value == pytest.approx(2 / 3) and found.fast1.value == pytest.approx(1 / 3)
    assert found.fast2.value == pytest.approx(2 / 3)


def test_as_published_every_problem_counts(tmp_path: Path) -> None:
    """Under the paper's protocol what was not judged is not solved; under ours it is in no denominator."""
    given = tasks(1, 1, 1, 1)
    verdicts = judged(given, [right(3.0)], [WRONG], [UNSUPPORTED], [])
    folders = []
    for name, own in (("a", verdicts), ("b", judged(given, [right(3.0)], [right(3.0)], [right(0.5)], []))):
        folder = RunFolder(tmp_path / name)
        folder.begin({"model": name, "samples": 1}, given)
        for protocol in ("dice", "dice-paper", "kernelbench-v0"):
            for one in own:
                folder.add_judgement(protocol, one)
        folders.append(folder)
    ours = summarise(folders[0], "dice").total
    assert (ours.exec.value, ours.fast2.value, ours.unjudged) == (0.5, 0.5, 2)
    for protocol in ("dice-paper", "kernelbench-v0"):
        theirs = summarise(folders[0], protocol)
        assert (theirs.total.exec.value, theirs.levels[1].fast2.value, theirs.total.unjudged) == (0.25, 0.25, 2)
        assert dict(theirs.total.fast_p)[1.0] == 0.25
        found = compare(folders[0], folders[1], protocol)
        assert (found.problems, found.exec.value, found.better) == (4, 0.5, 2)
    assert compare(folders[0], folders[1], "dice").problems == 2


def test_as_published_every_sample_counts() -> None:
    given = tasks(1, 1)
    verdicts = judged(given, [right(3.0)], [WRONG, right(1.0)])
    assert score(given, verdicts, 2, every=True).exec.value == 0.5
    assert score(given, verdicts, 2).exec.value == 0.75
    assert score(given, verdicts, 2, every=True).pass_at[2].value == 1.0


def test_all_operators_stand_beside_any_part_and_take_its_place_where_asked(tmp_path: Path) -> None:
    whole, part = Replaced(3, 3, 1.0, False, "program"), Replaced(3, 1, 0.2, False, "program", {"contraction": 2})
    given = tasks(0, 0, 0)
    verdicts = [[replace(right(3.0), replaced=whole)], [replace(right(2.0), replaced=part)], [WRONG]]
    found = score(given, judged(given, *verdicts), 1)
    assert (found.exec.value, found.exec_all.value) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert (found.fast1.value, found.fast1_all.value) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    found = score(given, judged(given, *verdicts), 1, replaced="all")
    assert found.exec.value == found.exec_all.value == found.fast1.value == pytest.approx(1 / 3)
    assert found.speedup_correct.value == pytest.approx(3.0)
    folder = RunFolder(tmp_path / "run")
    folder.begin({"model": "x", "samples": 1}, given)
    for one in judged(given, *verdicts):
        folder.add_judgement("dice", one)
    assert summarise(folder, "dice", replaced="all").total.exec.value == pytest.approx(1 / 3)
    rows = results(gather([folder.path]))
    place = [name for name, _ in rows.columns].index("Exec, all operators")
    assert rows.rows[0][place] == "33.3"


def test_old_verdicts_that_do_not_say_how_much_was_replaced_have_no_share_of_all_operators() -> None:
    given = tasks(0)
    found = score(given, judged(given, [right(3.0)]), 1)
    assert found.exec.value == 1.0 and found.exec_all.value is None and found.fast1_all.value is None


@pytest.mark.parametrize(("right", "count"), [(57, 96), (80, 96), (1, 7), (0, 10), (10, 10)])
def test_wilsons_limits_are_as_far_away_as_their_own_spread_allows(right: int, count: int) -> None:
    found = wilson(right, count)
    assert found.value == right / count and found.low is not None and found.high is not None
    assert 0 <= found.low < found.high <= 1
    for limit in {found.low, found.high} - {0.0, 1.0}:
        assert (found.value - limit) ** 2 == pytest.approx(1.959964**2 * limit * (1 - limit) / count, abs=1e-7)


def test_wilsons_limit_for_none_of_ten_is_the_published_one() -> None:
    assert wilson(0, 10).high == pytest.approx(0.2775, abs=5e-5) and wilson(0, 0).value is None
