"""The unchecked corpus of `runs/ablation.sh`: its deceptive answers deceive, and all that was changed is told."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import raw_corpus

from dice import synth
from dice.kernel import Kernel
from dice.prompts import reply
from dice.verify import Options, Verifier

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started


def rows(count: int) -> list[dict[str, object]]:
    pairs = [synth.generate(11, index) for index in range(count)]
    return [
        {
            "problem": pair.check_problem.source,
            "kernel": pair.kernel.source,
            "response": reply(pair.kernel),
            "operators": list(pair.operators),
        }
        for pair in pairs
    ]


@pytest.mark.parametrize("bare", [pytest.param(False, marks=pytest.mark.slow), True])
def test_deceptive_answers_deceive(bare: bool) -> None:
    pairs = [synth.generate(11, index) for index in range(12)]
    asked = []
    for pair in pairs:
        source = raw_corpus.deceptive(pair.problem.source, pair.kernel.source, bare)
        assert source is not None and ("load_inline" in source) != bare
        asked.append((pair.check_problem, Kernel(source)))
    with Verifier(backend="emulated", options=Options(trials=1), cache=False) as verifier:
        found = [verdict.outcome for _, verdict in verifier.verify_many(asked, workers=2)]
    assert found == ["deceptive"] * len(asked)


@pytest.mark.slow  # many drawn answers
def test_harder_problems_have_more_deceptive_answers_and_all_that_changed_is_told() -> None:
    rng = random.Random(5)
    made = [(row, *raw_corpus.raw(row, rng)) for row in rows(300)]
    assert all((kind == "right") == (new == old) for old, kind, new in made)
    assert all(new["kernel"].strip() in new["response"] for _, _, new in made)
    kinds = Counter((min(len(old["operators"]), 3), kind) for old, kind, _ in made)  # type: ignore[arg-type]
    shares = [
        kinds[level, "deceptive"] / sum(kinds[level, kind] for kind in ("right", "wrong", "deceptive"))
        for level in (1, 2, 3)
    ]
    assert all(abs(share - wanted) < 0.15 for share, wanted in zip(shares, raw_corpus.DECEPTIVE, strict=True))
    assert kinds[1, "wrong"] + kinds[2, "wrong"] + kinds[3, "wrong"] > 0
