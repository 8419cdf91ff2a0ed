"""What each protocol takes for the kernel of a reply is what it judges, exports and shares times of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made_runs import CORRECT, TASKS

from dice.evaluate import run as running
from dice.evaluate.interchange import write_kernels
from dice.evaluate.run import Judging, evaluate
from dice.evaluate.run_folder import Generation, Judgement, RunFolder
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict

PLAN, ANSWER = "plan = 1", "import torch\nclass ModelNew: pass\n"
REPLY = f"A plan:\n```python\n{PLAN}\n```\nand the file:\n```python\n{ANSWER}```"


class Watched:
    """A verifier that calls everything wrong, and keeps what it was given."""

    def __init__(self, given: list[str]):
        self.given = given

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None: ...

    def verify_many(self, pairs: Iterable[tuple[Problem, Kernel]], _: Any) -> Iterator[tuple[int, Verdict]]:
        for place, (_problem, kernel) in enumerate(pairs):
            self.given.append(kernel.source)
            yield place, Verdict("wrong", "compare")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.begin({"model": "made", "samples": 1}, list(TASKS[:3]))
    made.add_generation(Generation(TASKS[0].key, 0, REPLY, ANSWER))
    made.add_generation(Generation(TASKS[1].key, 0, ANSWER, ANSWER))  # written elsewhere, as a file
    made.add_generation(Generation(TASKS[2].key, 0, f"Here:\n{ANSWER}", ANSWER))  # no fence at all
    return made


def test_each_protocol_judges_its_own_kernel(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(Judging, "verifier", lambda *_: Watched(given))
    protocols = ("dice", "kernelbench", "kernelbench-v0", "dice-paper")
    evaluate(folder, (), lambda: pytest.fail("nothing is generated"), Judging(protocols, "emulated"))
    assert given[:6] == [ANSWER] * 6
    assert given[6:9] == given[9:] == [PLAN, ANSWER, ""]
    outcomes = [[one.verdict.outcome for one in folder.judgements(name)] for name in protocols]
    assert outcomes == [["wrong"] * 3] * 2 + [["wrong", "wrong", "no_kernel"]] * 2


def test_the_kernels_of_a_protocol_are_exported(folder: RunFolder, tmp_path: Path) -> None:
    for protocol, texts in (("dice", [ANSWER] * 3), ("dice-paper", [PLAN, ANSWER])):
        (out,) = write_kernels(folder, tmp_path / protocol, protocol)
        assert sorted(path.read_text() for path in out.iterdir()) == sorted(texts)


def test_times_are_shared_of_the_same_kernel_alone(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    for task in TASKS[:3]:
        folder.add_judgement("dice", Judgement(task.key, 0, CORRECT))
    monkeypatch.setattr("dice.verify.options.probe_cuda", lambda: {"device": CORRECT.device})
    shared = running._timings(folder, "dice-paper", Judging(("dice", "dice-paper")))
    assert list(shared) == [(TASKS[1].key, 0)]
