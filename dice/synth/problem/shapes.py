"""Shapes of the inputs: small ones that can be verified in a moment, and the large ones that users print."""

from __future__ import annotations

import math
import random

from dice.synth.problem.builder import ProblemBuilder
from dice.synth.tables.operators import OPERATORS

SMALL: dict[str, tuple[int, ...]] = {
    "batch": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 100, 128),
    "features": (
        16,
        24,
        31,
        32,
        48,
        50,
        64,
        65,
        96,
        100,
        127,
        128,
        160,
        192,
        200,
        250,
        256,
        300,
        333,
        384,
        500,
        512,
        768,
        1000,
        1024,
    ),
    "sequence": (4, 8, 10, 12, 16, 20, 24, 32, 33, 48, 50, 64, 77, 96, 100, 128),
    "channels": (3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64),
    "height": (5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 20, 24, 28, 32),
    "width": (5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 20, 24, 28, 32),
    "depth": (4, 5, 6, 8, 10, 12),
    "length": (8, 10, 16, 20, 30, 32, 33, 48, 50, 64, 100, 128, 150, 200, 256),
    "m": (1, 4, 7, 8, 15, 16, 17, 20, 24, 31, 32, 33, 40, 48, 50, 64, 72, 80, 96, 100, 128),
    "n": (3, 4, 7, 8, 15, 16, 17, 20, 24, 31, 32, 33, 40, 48, 50, 64, 72, 80, 96, 100, 128),
    "k": (4, 8, 12, 16, 17, 20, 24, 31, 32, 33, 40, 48, 50, 64, 80, 96, 100, 128),
    "in_features": (8, 10, 16, 20, 24, 32, 33, 40, 48, 50, 64, 80, 96, 100, 128),
    "out_features": (4, 5, 8, 10, 16, 20, 24, 32, 33, 40, 48, 50, 64, 80, 96, 100, 128),
    "classes": (2, 3, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 1000),
}
LARGE: dict[str, tuple[int, ...]] = {
    "batch": (16, 32, 64, 100, 112, 128, 256, 512, 1024, 2048, 4096),
    "features": (1024, 2048, 3072, 4000, 4096, 5000, 6144, 8192, 10000, 12288, 16384, 32768, 65536, 131072, 393216),
    "sequence": (256, 384, 512, 1000, 1024, 2048, 4096, 8192),
    "channels": (32, 48, 64, 96, 128, 256, 512),
    "height": (56, 64, 96, 112, 128, 224, 256, 512),
    "width": (56, 64, 96, 112, 128, 224, 256, 512),
    "depth": (16, 24, 32, 48),
    "length": (512, 1000, 1024, 4096, 8192, 16384, 32768, 65536, 131072),
    "m": (256, 512, 1000, 1024, 2048, 4096, 8192),
    "n": (256, 512, 1000, 1024, 2048, 4096),
    "k": (32, 64, 256, 512, 1024, 2048, 4096),
    "in_features": (512, 768, 1024, 2048, 3072, 4096, 8192),
    "out_features": (512, 768, 1000, 1024, 2048, 4096, 8192),
    "classes": (1000, 1024, 4096, 10000, 32000, 50000),
}
ROLES: dict[int, tuple[tuple[str, ...], ...]] = {
    1: (("features",), ("length",), ("n",)),
    2: (("batch", "features"), ("batch", "features"), ("m", "n")),
    3: (("batch", "sequence", "features"), ("batch", "channels", "length"), ("batch", "m", "n")),
    4: (("batch", "channels", "height", "width"),),
    5: (("batch", "channels", "depth", "height", "width"),),
}
MAX_ELEMENTS = 32768  # of a small tensor, so that a pair is verified in a moment on a CPU


def draw_shape(
    builder: ProblemBuilder,
    rank: int,
    *,
    roles: tuple[str, ...] | None = None,
    most: int = MAX_ELEMENTS,
    multiple: dict[int, int] | None = None,
) -> list[str]:
    """New dimensions for one tensor; returns their marks. `multiple` maps an axis to a number that must divide it."""
    rng = builder.rng
    roles = roles or rng.choice(ROLES[rank])
    small = [rng.choice(SMALL[role]) for role in roles]
    while math.prod(small) > most:
        index = max(range(len(small)), key=small.__getitem__)
        small[index] = max(1, small[index] * rng.choice((1, 2)) // 3)
    large = [rng.choice(LARGE[role]) for role in roles]
    for axis, number in (multiple or {}).items():
        small[axis] = max(1, small[axis] // number) * number
        large[axis] = max(1, large[axis] // number) * number
    steps = [(multiple or {}).get(axis, 1) for axis in range(rank)]
    return [builder.tensors.dimension(role, *sizes) for role, *sizes in zip(roles, small, large, steps, strict=True)]


def draw_rank(rng: random.Random, weights: tuple[float, ...] = (1, 5, 2, 2, 0.3)) -> int:
    return rng.choices(range(1, 1 + len(weights)), weights)[0]


def describe(names: tuple[str, ...]) -> str:
    """The chain in words."""
    return ", then ".join(OPERATORS[name].phrase for name in names)


def sentence(*parts: str) -> str:
    """Non-empty parts joined into one phrase."""
    return " followed by ".join(part for part in parts if part)
