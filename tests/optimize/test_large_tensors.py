"""Kernels by rule for tensors of more than 2^31 elements: their indices have 64 bits where they need them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_rules import check, graph_of

from dice.optimize.templates import emitter
from dice.optimize.templates.write import cuda_source

_DEFINITION = re.compile(r"\s*(int|int64_t) (i\d+) = (.*);")


class Number:
    """An integer of C++: arithmetic of 32 bits that leaves them is an error."""

    def __init__(self, value: int, is_wide: bool):
        self.value, self.is_wide = value, is_wide
        assert is_wide or -(2**31) <= value < 2**31, f"{value} is beyond 32 bits"

    def _with(self, other: Number | int, of: Callable[[int, int], int]) -> Number:
        other = other if isinstance(other, Number) else Number(other, other >= 2**31)
        return Number(of(self.value, other.value), self.is_wide or other.is_wide)

    def __add__(self, other: Number | int) -> Number:
        return self._with(other, int.__add__)

    def __mul__(self, other: Number | int) -> Number:
        return self._with(other, int.__mul__)

    def __floordiv__(self, other: int) -> Number:
        return self._with(other, int.__floordiv__)

    def __mod__(self, other: int) -> Number:
        return self._with(other, int.__mod__)


def last_indices(function: Callable[..., Any], *shapes: tuple[int, ...], **given: Number) -> tuple[str, list[int]]:
    """The kernel's source, and the values of its indices where those that nothing defines have the `given` ones."""
    cuda, _, _ = cuda_source(graph_of(function, *(torch.empty(shape, device="meta") for shape in shapes)), "region")
    known: dict[str, Any] = {"int64_t": lambda one: Number(one.value, True), **given}
    found = []
    for line in cuda.split("\n"):
        if defined := _DEFINITION.fullmatch(line):
            ctype, name, text = defined.groups()
            value = eval(text.replace("/", "//"), {}, known)
            known[name] = Number(value.value, ctype == "int64_t")
            found.append(value.value)
    return cuda, found


def test_a_window_that_is_never_stored_does_not_count() -> None:
    cuda, found = last_indices(
        lambda x: F.avg_pool2d(x, 4), (8, 64, 1024, 1024), row=Number(2**25 - 1, False), j=Number(15, False)
    )
    assert "int64_t" not in cuda and found[-1] == 2**29 - 1


def test_an_index_has_64_bits_where_it_needs_them() -> None:
    cuda, found = last_indices(
        lambda x: F.avg_pool2d(x, 4), (16, 64, 2048, 2048), row=Number(2**28 - 1, False), j=Number(15, False)
    )
    assert "int row = " in cuda and cuda.count("int64_t") == 2 and found[-1] == 2**32 - 1
    cuda, found = last_indices(lambda x: x.transpose(1, 2) * 2, (16, 64, 2048, 2048), c=Number(2**30 - 1, False))
    assert "int64_t" not in cuda and found[-1] == 2**30 - 1, "vectors are counted"
    size = 16 * 64 * 2048 * 2049
    cuda, found = last_indices(lambda x: x.transpose(1, 2) * 2, (16, 64, 2048, 2049), i=Number(size - 1, True))
    assert "int64_t i = first + step * BLOCK;" in cuda and "int i0 = i / 268566528;" in cuda and found[-1] == size - 1
    cuda, found = last_indices(
        lambda x, y: x @ y, (2048, 2**21 + 1), (2**21 + 1, 1), row=Number(2047, False), j=Number(2**21, False)
    )
    assert found[-1] == 2048 * (2**21 + 1) - 1
    cuda, found = last_indices(lambda x: x[::2] * 2, (2**32,), i=Number(2**31 - 1, True))
    assert found[-1] == 2**32 - 2
    cuda, found = last_indices(lambda x: x[3 :: 2**20] * 2, (2**32,), i=Number(4095, False))
    assert "int i = " in cuda and found[-1] == 2**32 - 2**20 + 3


def test_rows_beyond_32_bits() -> None:
    cuda, found = last_indices(lambda x: x.sum(1), (2**32, 3), row=Number(2**32 - 1, True), j=Number(2, False))
    assert "int64_t row = int64_t(blockIdx.x) * BLOCK + threadIdx.x;" in cuda and found[-1] == 3 * 2**32 - 1


def test_wide_indices_under_emulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitter, "MOST_ELEMENTS", 60)
    x, y, table, index = torch.randn(2, 4, 9, 10), torch.randn(36, 19), torch.randn(70, 3), torch.randint(-70, 70, (9,))

    def several(x: torch.Tensor, y: torch.Tensor, table: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            *(F.avg_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1), x.flatten(0, 1).transpose(1, 2) * 2, x.sum(1), x.amax(-1)),
            *(x.view(20, 36) @ y, x.view(20, 36) @ y[:, 0], F.softmax(x.flatten(1), 1), table[index] * 2),
            *(F.pad(x, (1, 2, 3, 0), mode="reflect"), x.flatten()[1::2] * 2, F.conv2d(x, x[..., 2:4, 2:4], padding=1)),
        )

    assert "int64_t i" in check(tmp_path, several, x, y, table, index)
