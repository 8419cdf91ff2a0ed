from __future__ import annotations

from pathlib import Path

import pytest

from dice.problem import Problem, ProblemError, load_problems
from dice.prompts import EXAMPLE_PROBLEM
from dice.verdict import OUTCOMES, Timing, Verdict


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_a_kernelbench_folder_loads_in_its_order(tmp_path: Path) -> None:
    for name in ("level1/10_b.py", "level1/2_a.py", "level2/1_c.py"):
        write(tmp_path, name, EXAMPLE_PROBLEM)
    problems = list(load_problems(tmp_path))
    assert [(p.level, p.name) for p in problems] == [(1, "2_a"), (1, "10_b"), (2, "1_c")]
    assert len({p.id for p in problems}) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (EXAMPLE_PROBLEM.replace("class Model(", "class Module("), "no class `Model`"),
        (EXAMPLE_PROBLEM.replace("get_inputs", "inputs"), "no function `get_inputs()`"),
        (EXAMPLE_PROBLEM.replace("get_init_inputs", "init"), "no function `get_init_inputs()`"),
        ("class Model(:", "not valid Python, line 1"),
        ("x = '\0'", "not valid Python"),
        pytest.param(f"x = {'-' * 100_000}1", "nested too deeply", id="deep"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ProblemError) as caught:
        Problem.from_file(write(tmp_path, "p.py", text))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    for path, words in (
        (tmp_path / "none.py", "no problem file"),
        (tmp_path, "a folder"),
        (tmp_path / "binary.py", "UTF-8"),
    ):
        with pytest.raises(ProblemError, match=words):
            Problem.from_file(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    problem = Problem.from_file(write(tmp_path, "p.py", "\ufeff" + EXAMPLE_PROBLEM))
    assert problem.source == EXAMPLE_PROBLEM


def test_newlines_are_kept_and_json_round_trips(tmp_path: Path) -> None:
    problem = Problem.from_file(write(tmp_path, "level3/7_p.py", EXAMPLE_PROBLEM.replace("\n", "\r\n")))
    assert "\r\n" in problem.source and problem.level == 3
    assert Problem.from_json(problem.to_json()) == problem


def test_verdicts_round_trip_and_classify() -> None:
    verdict = Verdict("correct", "done", trials=5, timing=Timing(1.0, 2.0, 2.0, 20), launches={"k": 5}, errors=("a",))
    assert Verdict.from_json(verdict.to_json()) == verdict and verdict.correct and verdict.failure_class is None
    for outcome in OUTCOMES:
        failed = Verdict(outcome, "run")  # type: ignore[arg-type]
        assert (failed.failure_class is None) == (outcome in ("correct", "unsupported", "infra_error"))
        assert failed.about_kernel == (outcome not in ("unsupported", "infra_error"))
