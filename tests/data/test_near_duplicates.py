"""Near sets are found exactly, and what makes two kernels near."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dice import synth
from dice.data.decontaminate import kernel_shingles
from dice.data.near_duplicates import Near, Neighbours, jaccard
from dice.kernel import Kernel

SETS = st.lists(st.frozensets(st.integers(0, 12).map(lambda n: (str(n),)), max_size=9), max_size=12)


@given(
    sets=SETS, wanted=SETS, threshold=st.sampled_from([0.1, 1 / 3, 0.5, 2 / 3, 0.75, 0.9, 1.0]), learnt=st.booleans()
)
def test_every_near_set_is_found_and_no_other(sets, wanted, threshold, learnt) -> None:
    neighbours = Neighbours(threshold, sets if learnt else ())
    assert [neighbours.add(one) for one in sets] == list(range(len(sets)))
    for one in wanted:
        near = [Near(number, jaccard(one, other)) for number, other in enumerate(sets)]
        expected = {found for found in near if found.similarity >= threshold and (one or not sets[found.number])}
        found = neighbours.find(one)
        assert {each for each in found if one} == {each for each in expected if one}
        assert found == sorted(found, key=lambda each: (-each.similarity, each.number))


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.5])
def test_a_threshold_is_a_share(threshold: float) -> None:
    with pytest.raises(ValueError, match="similarity"):
        Neighbours(threshold)


PAIR = next(
    pair
    for pair in (synth.generate(0, index) for index in range(999))
    if "__global__ void softmax" in pair.kernel.source and "expf(" in pair.kernel.source
)


def test_names_numbers_and_comments_make_no_other_kernel() -> None:
    source = PAIR.kernel.source
    kernel = Kernel(source)
    for name in (*kernel.global_functions, *kernel.bound_functions):
        source = source.replace(name, f"my_{name}")
    changed = source.replace("__global__", "/* rows */ __global__").replace("256", "128").replace(" row ", " r ")
    assert changed != PAIR.kernel.source
    assert kernel_shingles(Kernel(changed)) == kernel_shingles(PAIR.kernel)


def test_another_computation_is_another_kernel() -> None:
    other = PAIR.kernel.source.replace("expf(", "tanhf(")
    assert other != PAIR.kernel.source
    assert jaccard(kernel_shingles(Kernel(other)), kernel_shingles(PAIR.kernel)) < 1.0


def test_text_that_is_not_python_has_shingles_too() -> None:
    broken = Kernel("class ModelNew(: 1 2 3 4 5")
    assert kernel_shingles(broken) != kernel_shingles(Kernel("class ModelNew(: 1 2 3 4 6"))
