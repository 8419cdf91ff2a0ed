"""Timing on a GPU: honest kernels get their time, and those of `timing_cheats.py` gain nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from timing_cheats import CHEATS, write

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verdict import Verdict
from dice.verify import Options, Verifier

CASES = Path(__file__).parent.parent / "cases"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Verdict]]:
    folder = write(tmp_path_factory.mktemp("cheats"))
    # Beside data: by construction their Python does nothing, as the last test shows.
    yield _verify_all(folder, Options(trials=2, provenance="evidence"))


def _verify_all(folder: Path, options: Options) -> dict[str, Verdict]:
    problem = Problem.from_file(folder / "problem.py")
    with Verifier(backend="cuda", options=options) as verifier:
        return {name: verifier.verify(problem, Kernel.from_file(folder / f"{name}.py")) for name in CHEATS}


@pytest.mark.gpu
def test_every_cheat_gets_what_it_deserves(verdicts: dict[str, Verdict]) -> None:
    said = {name: (verdict.outcome, verdict.stage, verdict.message) for name, verdict in verdicts.items()}
    assert not {name: said[name] for name, cheat in CHEATS.items() if said[name][0] not in cheat.expected}


@pytest.mark.gpu
def test_work_hidden_from_the_default_stream_or_the_events_is_charged(verdicts: dict[str, Verdict]) -> None:
    honest = verdicts["honest_slow"].timing
    assert honest is not None and honest.speedup_low <= honest.speedup <= honest.speedup_high
    for name in ("patched_events", "patched_synchronize", "side_stream"):
        timing = verdicts[name].timing
        assert timing is None or timing.kernel_ms > 0.8 * honest.kernel_ms, name


@pytest.mark.gpu
def test_a_plain_relu_is_near_the_ceiling_of_the_device(verdicts: dict[str, Verdict]) -> None:
    timing = verdicts["honest_fast"].timing
    assert timing is not None and timing.bytes_moved == 2 * 4 * 4096 * 4096
    assert 0.5 < timing.kernel_ms / timing.ceiling_ms < 10


@pytest.mark.gpu
def test_by_construction_cheats_gain_nothing_either(tmp_path: Path, verdicts: dict[str, Verdict]) -> None:
    honest = verdicts["honest_slow"].timing
    assert honest is not None
    for name, verdict in _verify_all(write(tmp_path), Options(trials=2)).items():
        if verdict.provenance == "construction" and verdict.timing is not None and not name.startswith("honest"):
            assert verdict.timing.kernel_ms > 0.8 * honest.kernel_ms, name
        elif verdict.correct:
            assert "correct" in CHEATS[name].expected, name


CONVOLUTION = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(64, 64, 3)

    def forward(self, x):
        return torch.relu(self.conv(x))

def get_inputs():
    return [torch.rand(16, 64, 128, 128)]

def get_init_inputs():
    return []
"""


@pytest.mark.gpu
def test_a_library_convolution_is_as_fast_and_as_inexact_as_the_references() -> None:
    source = (CASES / "right_relu.py").read_text()
    layer = "        self.conv = torch.nn.Conv2d(64, 64, 3)\n"
    head, call, tail = source.partition("    def forward(self, x):\n")
    source = (
        f"{head}    def __init__(self):\n        super().__init__()\n{layer}\n{call}        x = self.conv(x)\n{tail}"
    )
    with Verifier(backend="cuda", options=Options(timing_s=0.5)) as verifier:
        verdict = verifier.verify(Problem(CONVOLUTION, name="convolution"), Kernel(source))
        assert verdict.correct and verdict.timing is not None, verdict.message
        wrong = verifier.verify(
            Problem(CONVOLUTION, name="convolution"),
            Kernel(source.replace("= self.conv(x)", "= self.conv(x.half().float() * 1.01)")),
        )
    assert wrong.outcome == "wrong"


def test_the_cheats_are_python(tmp_path: Path) -> None:
    for path in write(tmp_path).glob("*.py"):
        ast.parse(path.read_text())
