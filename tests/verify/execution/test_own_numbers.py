"""A candidate's own numbers: read off its text, and put where a problem may draw them."""

from __future__ import annotations

import torch

from dice.verify.execution import own_numbers
from dice.verify.text.numbers import MOST_NUMBERS, numbers

SECRET = torch.Generator()


def test_numbers_of_a_text() -> None:
    text = """
    // 17 of a comment /* and 18 */
    __global__ void k2(float* x3) { x3[0] = 0.5f + 1e-3 * .25 - 7.f; int i = 0xFFFu & 33UL; float y = 0; }
    """
    assert numbers([text]) == (0.5, 1e-3, 0.25, 7.0, 4095.0, 33.0)


def test_a_number_of_32_bits_is_a_float_as_well() -> None:
    found = numbers(["v == 0xbf3b645a"])
    assert found[0] == 0xBF3B645A and abs(found[1] - 0.7320) < 1e-3


def test_there_is_an_end_to_the_numbers_of_a_text() -> None:
    assert len(numbers([" ".join(f"{number}.5f" for number in range(1000))])) == MOST_NUMBERS
    assert numbers(["1e999 + 0x" + "f" * 5000 + " + 0 + 1.2.3"]) == ()


def test_values_between_the_least_and_the_most_are_there_with_what_is_next_to_them() -> None:
    x = torch.randn(40, 50)
    least, most = x.aminmax()
    found = own_numbers.in_measured(x, (0.4375, 1e6), SECRET)
    number = torch.tensor(0.4375)
    for value in (number, -number, torch.nextafter(number, torch.tensor(9.0))):
        assert bool((found == value).any()) and not bool((x == value).any())
    assert found.min() == least or found.min() > least - 1e-6
    assert found.max() <= most and (found != x).float().mean() < 0.1


def test_last_bits_that_a_text_masks_are_there() -> None:
    found = own_numbers.in_measured(torch.randn(40, 50), (4095.0, 753.0), SECRET)
    assert bool(((found.view(torch.int32) & 4095) == 753).any())


def test_whole_numbers_stay_what_they_are_a_rule_of() -> None:
    order = torch.randperm(100)
    assert torch.equal(own_numbers.in_coded(order, (50.0,), SECRET), order)
    offsets = torch.arange(0, 1000, 10)
    assert torch.equal(own_numbers.in_coded(offsets, (55.0,), SECRET), offsets)
    codes = torch.randint(0, 1000, (64,)) | 1
    found = own_numbers.in_coded(codes, (500.0, 0.5, 5000.0), SECRET)
    assert bool((found == 500).any()) and not bool((found == 5000).any())


def test_values_in_order_stay_in_order() -> None:
    rising = torch.randn(100).sort().values
    assert torch.equal(own_numbers.in_measured(rising, (0.5,), SECRET), rising)
