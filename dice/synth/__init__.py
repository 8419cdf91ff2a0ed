"""A synthetic corpus of (PyTorch problem, CUDA kernel) pairs, written from PyTorch's operator documentation.

Every pair follows from a seed and an index alone:

    pair = generate(seed=1, index=17)

A pair is drawn in two stages. A `Plan` says what is computed (its `composition`); rendering then chooses shapes,
constants, names and spellings. Held-out compositions never occur among training pairs (see `split.py`).

With `Styles("wide")` a drawn pair is then written in the styles of `wide/`: helpers, properties, containers, einsum,
other inputs and outputs. The draw itself stays what it is, but for a share that comes from further families. A share
of wide pairs is written by a form that is given instead, the optimiser's canonical one: it lies above this room.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from types import ModuleType
from typing import Literal

from dice.errors import UserError
from dice.kernel import Kernel
from dice.problem import Problem
from dice.synth.families import FAMILIES, FURTHER
from dice.synth.pair import Pair, Split
from dice.synth.problem.plan import Plan
from dice.synth.problem.printing import printed
from dice.synth.split import held_out_by
from dice.synth.wide import STYLES, rewritten
from dice.synth.work import is_solution

__all__ = ["ALL_FAMILIES", "FAMILIES", "FURTHER", "PLAIN", "Pair", "Styles", "generate", "heldout", "in_distribution"]

LARGE_SHARE = 0.35  # of training pairs whose problem is printed with large sizes; held-out ones never are
CANONICAL_SHARE = 0.3  # of wide pairs that are tried in the given form: three of five have it
FURTHER_SHARE = 0.4  # of wide pairs that are of the families that plain pairs have not
Families = Mapping[str, tuple[ModuleType, float]]
ALL_FAMILIES: Families = FAMILIES | FURTHER


@dataclass(frozen=True, slots=True)
class Styles:
    """How pairs are written. `width` plain: as they are drawn; wide: in the styles of `wide/`, too.

    `canonical` writes a pair in the form in which kernels are asked for, or says why it has none; a share of
    wide pairs is written so. Styles in `without` are left out of training pairs; held-out and control pairs have them
    wherever they can be applied, so that what a model does with a style that it never saw can be measured.
    Raises `UserError` for a style that there is not.
    """

    width: Literal["plain", "wide"] = "plain"
    without: tuple[str, ...] = ()
    canonical: Callable[[Pair], Pair | str] | None = None

    def __post_init__(self) -> None:
        unknown = [name for name in self.without if name not in STYLES]
        if unknown:
            raise UserError(f"There is no style {unknown[0]}; styles are {', '.join(STYLES)}.")
        if self.without and self.width == "plain":
            raise UserError("Only wide styles can be left out: add --styles wide.")

    def applied(self, pair: Pair, key: str, *, hidden: bool) -> Pair:
        """The pair as these styles write it; `key` decides which. `hidden`: the styles in `without` are left out."""
        if self.width == "plain":
            return pair
        must_have_styles = bool(self.without) and not hidden  # which the canonical form has none of
        drawn = random.Random(f"{key}:canonical").random()
        if self.canonical and not must_have_styles and drawn < CANONICAL_SHARE:
            asked = self.canonical(pair)
            if isinstance(asked, Pair):
                return asked
            pair = replace(pair, not_canonical=asked)
        sources = (pair.problem.source,) if pair.check_source is None else (pair.problem.source, pair.check_source)
        chosen = frozenset(self.without)
        apart: frozenset[str] = getattr(ALL_FAMILIES[pair.family][0], "STYLES_APART", frozenset())
        found = rewritten(
            sources,
            pair.kernel.source,
            random.Random(f"{key}:wide"),
            without=apart | chosen if hidden else apart,
            always=frozenset() if hidden else chosen - apart,
        )
        return replace(
            pair,
            problem=replace(pair.problem, source=found.problems[0]),
            kernel=replace(pair.kernel, source=found.kernel),
            check_source=None if pair.check_source is None else found.problems[1],
            written=found.styles,
        )


PLAIN = Styles()


def generate(seed: int, index: int, split: Split = "train", styles: Styles = PLAIN) -> Pair:
    """The pair of that seed and index, whatever was generated before it."""
    key = f"{seed}:{index}" if split == "train" else f"{seed}:{index}:{split}"
    _, pair = _drawn(key, styles, split, f"{index}", LARGE_SHARE if split == "train" else 0.0)
    return styles.applied(pair, key, hidden=split == "train")


def heldout(n: int, seed: int, styles: Styles = PLAIN) -> list[Pair]:
    """`n` distinct held-out pairs, spread evenly over families and, within each, over the two hold-out rules."""
    pairs: dict[str, Pair] = {}
    names = tuple(FAMILIES if styles.width == "plain" else ALL_FAMILIES)
    for index in count():
        if len(pairs) >= n:
            return list(pairs.values())
        rng = random.Random(f"{seed}:{index}:heldout")
        family = names[index % len(names)]
        rule = ("composition", "operator")[(index // len(names) + index % len(names)) % 2]
        plans = iter(partial(_draw_family, rng, family, rule), None)
        _, pair = _solved(plans, rng, f"heldout_{index}", 0.0)
        pair = styles.applied(pair, f"{seed}:{index}:heldout", hidden=False)
        pairs.setdefault(pair.problem.source, pair)
    raise AssertionError("unreachable")


def in_distribution(n: int, seed: int, train_seed: int, train_pairs: int, styles: Styles = PLAIN) -> Iterator[Pair]:
    """`n` pairs whose compositions a corpus of `train_pairs` pairs contains, with new text, shapes and constants."""
    chooser = random.Random(f"{seed}:in_distribution")
    trained = (
        _drawn(f"{train_seed}:{index}", styles, "train", "", LARGE_SHARE)[0]
        for index in iter(partial(chooser.randrange, train_pairs), None)
    )
    for number in range(n):
        key = f"{seed}:{number}:control"
        _, pair = _solved(trained, random.Random(key), f"control_{number}", 0.0)
        yield styles.applied(pair, key, hidden=False)


def _drawn(key: str, styles: Styles, split: Split, label: str, large_share: float) -> tuple[Plan, Pair]:
    """What `key` draws, before it is written in styles; wide pairs have a share of the further families."""
    rng = random.Random(key)
    further = styles.width == "wide" and random.Random(f"{key}:further").random() < FURTHER_SHARE
    plans = iter(partial(_draw, rng, split, FURTHER if further else FAMILIES), None)
    return _solved(plans, rng, label, large_share)


def _solved(plans: Iterator[Plan], rng: random.Random, label: str, large_share: float) -> tuple[Plan, Pair]:
    """The first of the plans, and its pair, whose kernel does enough to be called a solution."""
    for plan in plans:
        pair = _render(plan, rng, label, large_share=large_share)
        if is_solution(pair):
            return plan, pair
    raise AssertionError("plans never end")


def _draw(rng: random.Random, split: Split, families: Families = FAMILIES) -> Plan:
    names, weights = tuple(families), [weight for _, weight in families.values()]
    while True:
        plan: Plan = families[rng.choices(names, weights)[0]][0].sample(rng)
        if (held_out_by(plan) == "") == (split == "train"):
            return plan


def _draw_family(rng: random.Random, family: str, rule: str) -> Plan:
    """A held-out plan of one family, by `rule` when the family offers one within a bounded number of draws."""
    fallback: Plan | None = None
    for attempt in count():
        plan: Plan = ALL_FAMILIES[family][0].sample(rng)
        reason = held_out_by(plan)
        if reason == rule or (fallback is not None and attempt > 400):
            return plan if reason == rule or fallback is None else fallback
        fallback = plan if reason else fallback
    raise AssertionError("unreachable")


def _render(plan: Plan, rng: random.Random, label: str, *, large_share: float) -> Pair:
    draft = ALL_FAMILIES[plan.family][0].render(plan, rng)
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
