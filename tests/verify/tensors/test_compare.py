"""Right outputs pass, wrong ones fail with the place and the values."""

from __future__ import annotations

import math

import pytest
import torch

from dice.verify.tensors import near, trees
from dice.verify.tensors.compare import NOISE_CAP, compare
from dice.verify.tensors.near import same_values

ONES = torch.ones(4, 3)


def test_equal_outputs_pass_and_report_zero_error() -> None:
    result = compare(ONES, ONES.clone())
    assert result.equal and result.max_abs_error == 0.0 and result.message == ""


def test_first_wrong_element_is_named_with_both_values() -> None:
    wrong = ONES.clone()
    wrong[2, 1] = 1.5
    result = compare(ONES, wrong)
    assert not result.equal
    assert "1 of 12 values" in result.message and "output[2, 1]: expected 1, got 1.5" in result.message
    assert result.max_abs_error == pytest.approx(0.5) and result.max_rel_error == pytest.approx(0.5)


@pytest.mark.parametrize("protocol", ["dice", "kernelbench"])
def test_what_was_allowed_is_said_of_right_and_wrong_outputs(protocol: str) -> None:
    """An error of 0.25 is right among thousands, where it stands beside what was allowed."""
    expected = torch.full((4, 3), 1e4)
    near_by, far = expected.clone(), expected.clone()
    near_by[1, 1], far[1, 1] = 10000.25, 10100.0
    right, wrong = compare(expected, near_by, protocol), compare(expected, far, protocol)
    assert right.equal and right.max_abs_error == 0.25 and not wrong.equal
    assert (
        right.tolerance
        == wrong.tolerance
        == {
            "dice": "1 + 0.0001 * |expected|",
            "kernelbench": "0.0001 + 0.0001 * |value|",
        }[protocol]
    )
    assert f"(allowed {wrong.tolerance})" in wrong.message
    numbers = compare(torch.arange(3), torch.tensor([0, 1, 5]), "dice")
    assert "(allowed no difference)" in numbers.message


@pytest.mark.parametrize(
    ("actual", "word"),
    [
        (torch.ones(12), "shape"),
        (torch.ones(1, 4, 3), "shape"),
        (torch.tensor(1.0), "shape"),
        (torch.ones(4, 1), "shape"),
        (ONES.double(), "dtype"),
        (ONES.half(), "dtype"),
        (1.0, "tensor"),
        (None, "None"),
        ([ONES], "list"),
        ({"output": ONES}, "dict"),
    ],
)
def test_wrong_form_fails_even_where_values_would_broadcast(actual: object, word: str) -> None:
    result = compare(ONES, actual)
    assert not result.equal and word in result.message


def test_nan_counts_as_equal_only_where_the_reference_has_it() -> None:
    expected = torch.tensor([1.0, math.nan, math.inf, -math.inf])
    assert compare(expected, expected.clone()).equal
    for position, value in [(0, math.nan), (1, 0.0), (2, -math.inf), (2, 1e30), (3, math.nan), (0, math.inf)]:
        actual = expected.clone()
        actual[position] = value
        assert not compare(expected, actual).equal, (position, value)


def test_a_candidate_of_nothing_but_nan_fails() -> None:
    result = compare(ONES, torch.full_like(ONES, math.nan))
    assert not result.equal and "12 are NaN" in result.message


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_and_booleans_are_exact(dtype: torch.dtype) -> None:
    expected = torch.tensor([0, 1, 1, 0]).to(dtype)
    assert compare(expected, expected.clone()).equal
    assert not compare(expected, torch.tensor([0, 1, 1, 1]).to(dtype)).equal


def test_structures_are_walked_and_the_path_is_named() -> None:
    expected = {"a": (ONES, [ONES, 3]), "b": None}
    assert compare(expected, {"a": [ONES, (ONES, 3)], "b": None}).equal
    result = compare(expected, {"a": [ONES, (ONES * 2, 3)], "b": None})
    assert not result.equal and "output['a'][1][0]" in result.message
    assert not compare(expected, {"a": (ONES, [ONES, 4]), "b": None}).equal
    assert not compare(expected, {"a": (ONES, [ONES, 3])}).equal
    assert not compare((ONES, ONES), (ONES,)).equal


@pytest.mark.parametrize(
    ("dtype", "within", "beyond"),
    [
        (torch.float32, 5e-5, 5e-4),
        (torch.float16, 5e-3, 5e-2),
        (torch.bfloat16, 1.6e-2, 8e-2),
        (torch.float64, 5e-8, 5e-7),
    ],
)
def test_tolerance_follows_the_dtype(dtype: torch.dtype, within: float, beyond: float) -> None:
    expected = torch.full((100,), 2.0, dtype=dtype)
    assert compare(expected, (expected.double() * (1 + within)).to(dtype)).equal
    assert not compare(expected, (expected.double() * (1 + beyond)).to(dtype)).equal


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_where_all_is_computed_in_float64_a_rounding_of_float32_is_wrong(dtype: torch.dtype) -> None:
    expected = torch.rand(100, dtype=dtype) + 1
    assert compare(expected, expected * (1 + 5e-13), double=True).equal
    rounded = expected.to(torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    assert not compare(expected, rounded, double=True).equal
    assert compare(expected, rounded).equal  # the reference may have done the same


def test_absolute_tolerance_follows_the_size_of_the_output() -> None:
    """An output of size 1e-6 gets no 1e-4 for free: zeros are wrong for it."""
    small = torch.full((50,), 1e-6)
    assert not compare(small, torch.zeros(50)).equal
    assert compare(small, torch.zeros(50), "kernelbench").equal


def test_noise_of_the_reference_widens_the_tolerance_up_to_the_cap() -> None:
    exact = torch.full((100,), 1.0, dtype=torch.float64)
    noisy = torch.full((100,), 1.0002)
    shifted = noisy + 0.001
    assert not compare(noisy, shifted).equal
    assert compare(noisy, shifted, exact=exact).equal
    assert not compare(noisy, noisy + 2 * NOISE_CAP, exact=exact).equal


@pytest.mark.parametrize(("protocol", "passes"), [("dice", False), ("kernelbench", False), ("dice-paper", True)])
def test_protocols_differ_as_documented(protocol: str, passes: bool) -> None:
    assert compare(ONES, ONES * 1.005, protocol).equal is passes
    assert compare(ONES, ONES * 1.005, "kernelbench-v0").equal


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown protocol"):
        compare(ONES, ONES, "lenient")


def test_complex_and_empty_outputs() -> None:
    signal = torch.tensor([1 + 2j, 3 - 1j])
    assert compare(signal, signal.clone()).equal
    assert not compare(signal, signal.conj().resolve_conj()).equal
    assert compare(torch.empty(0, 3), torch.empty(0, 3)).equal
    assert not compare(torch.empty(0, 3), torch.empty(3, 0)).equal


def test_python_numbers_get_a_tolerance_and_other_values_none() -> None:
    assert compare(0.5, 0.5000001).equal
    assert not compare(0.5, 0.51).equal
    assert not compare(2, 3).equal
    assert not compare(True, 1).equal


def test_same_values_tells_writes_from_nan() -> None:
    tensor = torch.tensor([math.nan, 1.0])
    assert same_values(tensor, tensor.clone())
    assert not same_values(tensor, torch.tensor([0.0, 1.0]))


def test_an_output_must_follow_the_inputs_where_their_effect_is_small() -> None:
    """Two in a thousand of the output come from the inputs: a constant is within 1e-4 of it half of the time."""
    expected = 5 + 0.0003 * torch.randn(200, generator=torch.Generator().manual_seed(1))
    constant = torch.full_like(expected, 5.0)
    assert compare(expected.clamp(4.9993, 5.0007), constant).equal
    result = compare(expected.clamp(4.9993, 5.0007), constant, effects=(0.0004,))
    assert not result.equal and "does not follow the inputs" in result.message
    assert compare(expected, expected + 1e-5, effects=(0.0004,)).equal
    assert compare(expected, constant, effects=(None,)).equal is compare(expected, constant).equal


def test_effects_belong_to_tensors_in_order() -> None:
    near = ONES + 5e-5
    assert compare((1, ONES, ONES), (1, near, ONES), effects=(None, 1e-5)).equal
    assert not compare((1, ONES, ONES), (1, near, ONES), effects=(1e-5, None)).equal


def test_small_elements_are_held_to_their_own_size_where_float64_is_known() -> None:
    values = torch.cat([torch.full((50,), 1e4), torch.full((50,), 1.0)])
    exact = values.double()
    off = values.clone()
    off[50:] = 0.5
    assert compare(values, off).equal  # 0.5 is nothing beside ten thousand
    assert not compare(values, off, exact=exact).equal
    noisy = values.clone()
    noisy[50:] += 0.1  # as cancellation would leave it
    assert compare(noisy, values, exact=exact).equal


@pytest.mark.parametrize(("dtype", "equal"), [(torch.float16, True), (torch.float32, False)])
def test_small_elements_of_half_precision_carry_the_rounding_of_large_ones(dtype: torch.dtype, equal: bool) -> None:
    """Sums that cancel to nearly nothing: accumulated in half precision, what is left is rounding."""
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(3)).double()
    exact[:4] *= 1e-5
    actual = exact.clone()
    actual[:4] += 1e-3
    result = compare(exact.to(dtype), actual.to(dtype), exact=exact)
    assert result.equal is equal, result.message


def test_indices_may_fall_the_other_way_as_often_as_the_references_own() -> None:
    expected, exact = torch.arange(20), torch.arange(20)
    exact[3] = 9
    flipped = torch.arange(20)
    flipped[7] = 1
    assert not compare(expected, flipped, exact=expected.clone()).equal
    assert compare(expected, flipped, exact=exact).equal
    assert not compare(expected, torch.zeros(20, dtype=torch.int64), exact=exact).equal


def test_comparison_by_stretches_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    expected = torch.randn(7, 11, generator=generator)
    exact, wrong = expected.double() + 1e-8, expected.clone()
    wrong[6, 9], wrong[3, 4] = 9.0, math.nan
    cases = [(expected, wrong, None), (expected, expected + 1e-6, exact), (expected.t(), wrong.t(), exact.t())]
    whole = [compare(one, two, exact=three) for one, two, three in cases]
    whole += [compare(expected, wrong, "kernelbench"), compare(expected, expected + 1e-5, "kernelbench")]
    monkeypatch.setattr(near, "STRETCH", 5)
    pieces = [compare(one, two, exact=three) for one, two, three in cases]
    pieces += [compare(expected, wrong, "kernelbench"), compare(expected, expected + 1e-5, "kernelbench")]
    assert pieces == whole and "[3, 4]" in whole[0].message and "[3, 4]" in whole[3].message


@pytest.mark.parametrize("protocol", ["dice", "kernelbench"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_near_everywhere_is_found_so_without_a_closer_look(
    protocol: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quick way says nothing else than the whole comparison, and takes only what that takes."""
    generator = torch.Generator().manual_seed(5)
    taken = 0
    for case in range(300):
        size = 10.0 ** float(torch.randint(-12, 25 if dtype == torch.bfloat16 else 4, (1,), generator=generator))
        expected = (torch.randn(40, generator=generator) * size).to(dtype)
        error = 10.0 ** float(torch.randint(-9, 0, (1,), generator=generator))
        actual = (expected.double() * (1 + error * torch.randn(40, generator=generator))).to(dtype)
        for value in (math.nan, math.inf, 0.0)[: case % 4]:
            place = int(torch.randint(40, (1,), generator=generator))
            actual[place] = value
            expected[place] = value if case % 5 else expected[place]
        quick = compare(expected, actual, protocol)
        with monkeypatch.context() as patch:
            patch.setattr(near, "sums", lambda *_: None)
            whole = compare(expected, actual, protocol)
        assert quick.equal == whole.equal and quick.message == whole.message, (expected, actual)
        assert quick.max_abs_error == pytest.approx(whole.max_abs_error, rel=1e-5)
        assert quick.max_rel_error == pytest.approx(whole.max_rel_error, rel=1e-3)
        taken += quick != whole or near.sums(expected, actual) is not None
    assert taken > 50


@pytest.mark.parametrize(
    ("expected", "actual", "equal"),
    [
        (None, None, True),
        (None, torch.ones(1), False),
        ("text", "text", True),
        ("text", "other", False),
        (torch.float16, torch.float16, True),
        (torch.tensor(1.0), torch.tensor([1.0]), False),
        (torch.tensor(1.0), torch.tensor(1.0), True),
        (torch.tensor(1.0), 1.0, False),
        (2 + 1j, 2 + 1.0000001j, True),
        (2 + 1j, 2 - 1j, False),
        (0.5, None, False),
        (1, 1.0, False),
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        ([], (), True),
        ([[None, {"a": []}]], [[None, {"a": []}]], True),
        ([[None, {"a": []}]], [[None, {"b": []}]], False),
        ({"a": 1}, [1], False),
        (torch.tensor([True, False]), torch.tensor([True, False]), True),
        (torch.tensor([True, False]), torch.tensor([1, 0]), False),
        (torch.zeros(0), torch.zeros(0), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), True),
    ],
)
def test_values_of_every_kind(expected: object, actual: object, equal: bool) -> None:
    assert compare(expected, actual).equal is equal


def test_as_exact_as_the_reference_is_within_three_times_its_own_distance() -> None:
    exact = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    expected = exact + 1e-3 * torch.randn(1000, generator=torch.Generator().manual_seed(2))
    off = torch.randn(1000, generator=torch.Generator().manual_seed(3))
    assert trees.is_as_exact(exact + 2e-3 * off, expected, exact)
    assert not trees.is_as_exact(exact + 5e-3 * off, expected, exact)
    assert trees.is_as_exact([exact + 1e-6 * off, exact.long()], [exact, exact.long()], [exact, exact.long()])
    assert not trees.is_as_exact(exact + 1e-4 * off, exact, exact)
    assert not trees.is_as_exact(exact[:10], expected, exact)


def with_small(dim: int, shape: tuple[int, ...], size: float = 1e-5) -> torch.Tensor:
    """Values of which those at one index of a dimension are so much smaller."""
    whole = 2.0 * torch.randint(2, shape, generator=torch.Generator().manual_seed(0)) - 1
    whole.select(dim, 5).mul_(size)
    return whole


@pytest.mark.parametrize("known", [True, False], ids=["in float64 too", "in float32 only"])
@pytest.mark.parametrize(("dim", "shape"), [(1, (64, 129)), (0, (129, 64)), (1, (4, 200, 6, 6)), (2, (1, 20, 300))])
def test_a_part_that_is_small_beside_the_rest_is_not_left_out(known: bool, dim: int, shape: tuple[int, ...]) -> None:
    size = 1e-5 if known else 4e-5
    expected = with_small(dim, shape, size)
    exact = expected.double() if known else None
    for factor in (0.0, -1.0, 3.0):
        actual = expected.clone()
        actual.select(dim, 5).mul_(factor)
        result = compare(expected, actual, exact=exact)
        assert not result.equal and "is wrong beside its own values" in result.message
        assert f"output[{', '.join('5' if place == dim else ':' for place in range(len(shape)))}]" in result.message
    rounded = expected + 2e-6 * torch.randn(shape) * (1 if known else 5)  # roundings of the other values
    assert compare(expected, rounded, exact=exact).equal
    beside = expected.clone()
    beside.select(dim, 5).mul_(1.1)  # not missing
    assert compare(expected, beside, exact=exact).equal


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_small_part_in_a_short_format_may_be_as_coarse_as_that(dtype: torch.dtype) -> None:
    expected = with_small(1, (64, 129), 0.006)
    coarse = (expected.to(dtype) * (1 + 2 * torch.finfo(dtype).eps)).to(dtype)
    assert compare(expected.to(dtype), coarse, exact=expected.double()).equal
    noisy = (expected + 0.002 * torch.randn(64, 129)).to(dtype)  # intermediate values of that format
    assert compare(expected.to(dtype), noisy, exact=expected.double()).equal
    noisy[:, 5] = 0
    assert compare(expected.to(dtype), noisy, exact=expected.double()).equal is (dtype == torch.bfloat16)


def test_a_part_that_is_small_by_cancellation_is_as_uncertain_as_in_the_reference() -> None:
    large = 1e4 * torch.randn(64, 129, dtype=torch.float64)
    weights = torch.randn(64, 129, dtype=torch.float64)
    weights[:, 5] = 1e-3 * torch.randn(64, dtype=torch.float64)
    exact = weights + large - large
    own, other = ((weights + sign * large).float() - sign * large.float() for sign in (1, -1))
    assert float((own - other)[:, 5].square().mean() / exact[:, 5].square().mean()) > 0.04
    assert compare(own, other, exact=weights).equal
    other[:, 5] = 1.0
    assert not compare(own, other, exact=weights).equal


def test_values_that_are_no_numbers_hide_no_small_part() -> None:
    expected = with_small(1, (64, 129))
    expected[:, 7] = -math.inf
    actual = expected.clone()
    assert compare(expected, actual, exact=expected.double()).equal
    actual[:, 5] = 0
    assert not compare(expected, actual, exact=expected.double()).equal


def test_a_small_column_of_a_run_in_tf32_may_differ_by_its_roundings() -> None:
    """As much as intermediate values of the output's size leave where they cancel: no more, and only there."""
    torch.manual_seed(5)
    exact = torch.randn(64, 256) * 30
    exact[:, 5] = torch.randn(64) * 1e-3
    expected = exact.clone()
    other = exact.clone()
    other[:, 5] += torch.randn(64) * 6e-4
    assert not compare(expected, other, exact=exact).equal
    assert compare(expected, other, exact=exact, tf32=True).equal
    exact[:, 6] = expected[:, 6] = torch.randn(64) * 0.5
    other[:, 6] = torch.randn(64) * 0.5
    assert not compare(expected, other, exact=exact, tf32=True).equal


def test_doubles_beyond_float32_are_compared_as_any_values_are() -> None:
    """Small columns among huge ones have a tolerance of their own, and none of the numbers fits float32."""
    expected = torch.logspace(-3, 60, 64, dtype=torch.float64).repeat(20, 1)
    wrong = expected.clone()
    wrong[:, -1] *= 1.5
    assert compare(expected, expected.clone(), double=True).equal
    assert compare(expected, expected * (1 + 1e-13), "dice", expected, double=True).equal
    assert not compare(expected, wrong, double=True).equal
