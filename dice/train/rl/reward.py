"""From verdicts to rewards, and from a group's rewards to advantages (paper section 4.2, "Reward Function")."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dice.train.rl.config import RLConfig
from dice.verdict import Verdict


def reward(verdict: Verdict, config: RLConfig) -> float | None:
    """1 for a kernel that is correct under `config.protocol`, 0 for any other, and where `config.provenance` is not to
    be had. Under the protocol `dice` a correct kernel is an honest one; the paper's reward asks for execution alone.

    None where nothing was found out about the kernel: the backend cannot say, or our own machinery failed.
    `config.speed_reward` adds to the reward of a correct kernel.
    """
    if not verdict.about_kernel:
        return None
    if config.provenance == "construction" and verdict.provenance == "evidence":
        return 0.0
    return 1.0 + config.speed_reward * _speed(verdict) if verdict.correct else 0.0


def _speed(verdict: Verdict) -> float:
    """0 to 1: the logarithm to base 2 of the speed-up that is certain, 1 from twice as fast on."""
    low = verdict.timing.speedup_low if verdict.timing else 0.0
    return min(1.0, math.log2(low)) if low > 1 else 0.0


def advantages(rewards: Sequence[float | None]) -> list[float | None]:
    """z-scores within a group, with the population's standard deviation; None for what was not judged.

    All None when fewer than two were judged or all rewards are equal: such a group says nothing about what is better.
    """
    judged = [value for value in rewards if value is not None]
    if len(set(judged)) < 2:
        return [None] * len(rewards)
    mean = math.fsum(judged) / len(judged)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in judged) / len(judged))
    return [None if value is None else (value - mean) / deviation for value in rewards]
