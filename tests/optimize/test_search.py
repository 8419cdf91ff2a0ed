"""What a search costs: time that is over, and samples that say what was said before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn as nn

from dice.files.journal import Journal
from dice.generation import Draft
from dice.optimize.printing import Printed, problem_of
from dice.optimize.region import Region
from dice.optimize.regions import cut
from dice.optimize.search import Policy, Search
from dice.optimize.trace.capture_graph import export_graph
from dice.optimize.writers import Checkpoint, Templates, Written
from dice.verdict import Verdict
from dice.verify import Options
from dice.verify.execution.running import Device


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.relu(x).cumsum(-1), x.sum(0)


@pytest.fixture(scope="module")
def regions() -> list[tuple[Region, Printed]]:
    unit = export_graph(Model(), (torch.randn(4, 8),), {}, Device("emulated"), own_file=__name__)
    return [(region, problem_of(region)) for region in cut(unit.graph)]


class Slow:
    """A verifier with whose first verdict the time is over."""

    backend, options = "emulated", Options()

    def __init__(self) -> None:
        self.asked, self.ended = 0, False
        self.search: Search | None = None

    def verify_many(self, pairs: Sequence[Any], **how: object) -> Iterator[tuple[int, Verdict]]:
        try:
            for index, _ in enumerate(pairs):
                self.asked += 1
                assert self.search is not None
                self.search.began -= 2 * self.search.policy.seconds
                yield index, Verdict("correct", "done")
        finally:
            self.ended = True


def test_time_that_is_over_ends_the_checking_too(regions: list[tuple[Region, Printed]], tmp_path: Path) -> None:
    assert len(regions) > 1
    verifier: Any = Slow()
    with Journal(tmp_path / "journal.jsonl") as journal:
        search = Search(verifier, "CPU", Policy(seconds=3600.0), None, journal)
        verifier.search = search
        search.run(regions, [Templates()], lambda what, done, total: None)
    assert verifier.asked == 1 and verifier.ended
    assert sum(search.best(region.key) is not None for region, _ in regions) == 1
    assert search.why_not(regions[-1][0].key) == "the time for kernels was over"


class Noting:
    """A verifier that notes under which options it was asked."""

    backend = "emulated"

    def __init__(self) -> None:
        self.options, self.asked = Options(compile_baseline=True), list[Options]()

    def verify_many(self, pairs: Sequence[Any], *, options: Options, **how: object) -> Iterator[tuple[int, Verdict]]:
        for index, _ in enumerate(pairs):
            self.asked.append(options)
            yield index, Verdict("correct", "done")


def test_regions_are_not_compiled_for_a_baseline_that_only_the_whole_has(
    regions: list[tuple[Region, Printed]], tmp_path: Path
) -> None:
    verifier: Any = Noting()
    with Journal(tmp_path / "journal.jsonl") as journal:
        Search(verifier, "CPU", Policy(), None, journal).run(regions, [Templates()], lambda what, done, total: None)
    assert verifier.asked and not any(options.compile_baseline for options in verifier.asked)
    assert all(options.trials == Options().trials and options.timing for options in verifier.asked)


class Repeating:
    """A model that needs some warmth to write another text."""

    model = SimpleNamespace(config=SimpleNamespace(prompt="one-shot"))
    decoding = SimpleNamespace(temperature=0.0)

    def __init__(self, enough: float):
        self.enough, self.asked = enough, list[tuple[float, int]]()

    def write(self, prompt: str, temperature: float, seed: int, watch: object) -> Draft:
        self.asked.append((temperature, seed))
        text = f"```python\nclass ModelNew:\n    x = {1 if temperature < self.enough else 2}\n```"
        return Draft(text, None, 0.0)  # type: ignore[arg-type]


def test_a_text_that_was_written_before_is_drawn_again_warmer(regions: list[tuple[Region, Printed]]) -> None:
    why = ""
    for enough, texts in ((1.0, ["x = 1", "x = 2"]), (9.0, ["x = 1", None])):
        model: Any = Repeating(enough)
        writer, before = Checkpoint("model", model), list[Written]()
        for _ in texts:
            answer = writer.write(*regions[0], before)
            assert answer is not None
            why = answer.why
            before.append(Written(answer.kernel, Verdict("wrong", "compare")))
        assert [one.kernel and one.kernel.source.split("    ")[1].strip() for one in before] == texts
        assert len(set(model.asked)) == len(model.asked) == (3 if texts[1] else 4)
    assert why == "it writes what it wrote before"
