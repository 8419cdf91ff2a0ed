"""Which drawn pairs the emulated verifier is asked about, and whether all of them are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from dice.synth import Pair


def of_every_style(pairs: Sequence[Pair]) -> list[Pair]:
    """The first pair of each style of each family."""
    chosen = {(pair.family, pair.style): pair for pair in reversed(pairs)}
    return [chosen[key] for key in sorted(chosen)]


def covering(pairs: Sequence[Pair]) -> list[Pair]:
    """Few of `pairs` that have among them every family, and every style: in some family, the rarest styles first."""
    common = Counter(pair.style for pair in pairs)
    chosen: list[Pair] = []
    families: set[str] = set()
    styles: set[str] = set()
    for new_families in (True, False):
        for pair in sorted(pairs, key=lambda pair: (common[pair.style], pair.style)):
            adds = pair.style not in styles or (not new_families and pair.family not in families)
            if adds and (not new_families or common[pair.style] == 1 or pair.family not in families):
                chosen.append(pair)
                families.add(pair.family)
                styles.add(pair.style)
    assert families == {pair.family for pair in pairs} and styles == set(common)
    return chosen


def assert_right(pairs: Sequence[Pair], trials: int = 1) -> None:
    verify = pytest.importorskip("dice.verify")
    try:
        verify.resolve_backend("emulated")
    except verify.BackendUnavailable as reason:
        pytest.skip(str(reason))
    with verify.Verifier(backend="emulated", options=verify.Options(trials=trials, timing=False)) as verifier:
        verdicts = verifier.verify_many([(pair.check_problem, pair.check_kernel) for pair in pairs], workers=2)
        wrong = [
            (pairs[k].composition, pairs[k].style, verdict.message) for k, verdict in verdicts if not verdict.correct
        ]
    assert not wrong
