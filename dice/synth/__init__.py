"""A synthetic corpus of (PyTorch problem, CUDA kernel) pairs, written from PyTorch's operator documentation.

Every pair follows from a seed and an index alone:

    pair = generate(seed=1, index=17)

A pair is drawn in two stages. A `Plan` says what is computed (its `composition`); rendering then chooses shapes,
constants, names and spellings. Held-out compositions never occur among training pairs (see `split.py`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

from dice.kernel import Kernel
from dice.problem import Problem
from dice.synth.families import FAMILIES
from dice.synth.pair import Pair, Split
from dice.synth.problem.plan import Plan
from dice.synth.problem.printing import printed
from dice.synth.split import held_out_by

__all__ = ["FAMILIES", "Pair", "generate", "heldout", "in_distribution"]

LARGE_SHARE = 0.35  # of training pairs whose problem is printed with large sizes; held-out ones never are
_NAMES = tuple(FAMILIES)
_WEIGHTS = tuple(weight for _, weight in FAMILIES.values())


def generate(seed: int, index: int, split: Split = "train") -> Pair:
    """The pair of that seed and index, whatever was generated before it."""
    rng = random.Random(f"{seed}:{index}" if split == "train" else f"{seed}:{index}:{split}")
    return _render(_draw(rng, split), rng, f"{index}", large_share=LARGE_SHARE if split == "train" else 0.0)


def heldout(n: int, seed: int) -> list[Pair]:
    """`n` distinct held-out pairs, spread evenly over families and, within each, over the two hold-out rules."""
    pairs: dict[str, Pair] = {}
    for index in count():
        if len(pairs) >= n:
            return list(pairs.values())
        rng = random.Random(f"{seed}:{index}:heldout")
        family = _NAMES[index % len(_NAMES)]
        rule = ("composition", "operator")[(index // len(_NAMES) + index % len(_NAMES)) % 2]
        plan = _draw_family(rng, family, rule)
        pair = _render(plan, rng, f"heldout_{index}", large_share=0.0)
        pairs.setdefault(pair.problem.source, pair)
    raise AssertionError("unreachable")


def in_distribution(n: int, seed: int, train_seed: int, train_pairs: int) -> Iterator[Pair]:
    """`n` pairs whose compositions a corpus of `train_pairs` pairs contains, with new text, shapes and constants."""
    chooser = random.Random(f"{seed}:in_distribution")
    for number in range(n):
        plan = _draw(random.Random(f"{train_seed}:{chooser.randrange(train_pairs)}"), "train")
        yield _render(plan, random.Random(f"{seed}:{number}:control"), f"control_{number}", large_share=0.0)


def _draw(rng: random.Random, split: Split) -> Plan:
    while True:
        family = rng.choices(_NAMES, _WEIGHTS)[0]
        plan: Plan = FAMILIES[family][0].sample(rng)
        if (held_out_by(plan) == "") == (split == "train"):
            return plan


def _draw_family(rng: random.Random, family: str, rule: str) -> Plan:
    """A held-out plan of one family, by `rule` when the family offers one within a bounded number of draws."""
    fallback: Plan | None = None
    for attempt in count():
        plan: Plan = FAMILIES[family][0].sample(rng)
        reason = held_out_by(plan)
        if reason == rule or (fallback is not None and attempt > 400):
            return plan if reason == rule or fallback is None else fallback
        fallback = plan if reason else fallback
    raise AssertionError("unreachable")


def _render(plan: Plan, rng: random.Random, label: str, *, large_share: float) -> Pair:
    draft = FAMILIES[plan.family][0].render(plan, rng)
    is_large = rng.random() < large_share
    reason = held_out_by(plan)
    name = f"{plan.family}_{label}"
    small = printed(draft.builder)
    return Pair(
        problem=Problem(printed(draft.builder, large=True) if is_large else small, name),
        kernel=Kernel(draft.kernel, name),
        family=plan.family,
        style=draft.style,
        operators=plan.operators,
        composition=plan.composition,
        split="heldout" if reason else "train",
        heldout_by=reason,
        check_source=small if is_large else None,
    )
