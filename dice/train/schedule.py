"""Learning-rate schedules over a run's progress, from 0 (start) to 1 (end)."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant_with_warmup", "cosine"]


def lr_scale(progress: float, schedule: Schedule, *, warmup: float = 0.03, floor: float = 0.0) -> float:
    """What to multiply the peak learning rate with at `progress`.

    Both rise linearly over the first `warmup` share of the run. Then `constant_with_warmup` stays, and `cosine` falls
    to `floor` at the end.
    """
    if progress < warmup:
        return progress / warmup
    if schedule == "constant_with_warmup":
        return 1.0
    done = min(1.0, (progress - warmup) / max(1e-9, 1.0 - warmup))
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
