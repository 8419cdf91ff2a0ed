"""Where the GPU's time goes: what is made of the profiler's counts."""

from __future__ import annotations

import json

import pytest
import torch

from dice.verdict import Verdict
from dice.verify.candidate import profiler_census
from dice.verify.ipc import untrusted


def test_times_become_shares_the_longest_first() -> None:
    said = [["relu", 1, 30.0], ["Memset (Device)", 2, 10.0], ["relu", 1, 60.0]]
    profile = untrusted.gpu_times(said)
    assert list(profile) == ["relu", "Memset (Device)"]
    assert profile["relu"] == {"calls": 2, "ms": 0.09, "share": 0.9}
    verdict = Verdict.from_json(json.loads(json.dumps(Verdict("correct", "done", profile=profile).to_json())))
    assert verdict.profile == profile


@pytest.mark.parametrize("said", [None, {}, [["k", 1]], [["k", True, 1.0]], [["k", 1, float("nan")]], [["k", -1, 2.0]]])
def test_a_candidate_cannot_break_it(said: object) -> None:
    assert untrusted.gpu_times(said) == {}


@pytest.mark.gpu
def test_kernels_are_named_and_counted() -> None:
    x = torch.rand(1000, device="cuda")
    times = profiler_census.gpu_times(lambda: torch.relu(x))
    assert len(times) == 1 and times[0][1] == 1 and "elementwise" in times[0][0]
