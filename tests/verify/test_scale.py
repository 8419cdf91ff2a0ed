"""Smaller versions of problems that take too long to emulate."""

from __future__ import annotations

from pathlib import Path

import pytest

from dice.verify.reference import scale

MATMUL = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b):
        return a @ b
{names}
def get_inputs():
    return [torch.rand({rows}, {inner}), torch.rand({inner}, {columns})]
def get_init_inputs():
    return []
"""
LINEAR = """
import torch
class Model(torch.nn.Module):
    def __init__(self, inside, outside, heads):
        super().__init__()
        assert inside > {least} and inside % heads == 0
        self.linear = torch.nn.Linear(inside, outside)
    def forward(self, x):
        return self.linear(x)
features = 65536
def get_inputs():
    return [torch.rand(16, features)]
def get_init_inputs():
    return [features, 65536, 8]
"""
LIMIT_S = 10.0


def shrunk(source: str, folder: Path) -> tuple[str, dict[str, object]]:
    with pytest.raises(scale.TooLarge, match="--scale"):
        scale.fit(source, folder, None, LIMIT_S)
    return scale.fit(source, folder, 1 / 16, LIMIT_S)


@pytest.mark.parametrize(
    ("names", "size"),
    [("N = 4096", "N"), ("N = 2048 * 2", "N"), ("M, N = 4096, 4096", "N"), ("N: int = 4096", "N"), ("", "4096")],
)
def test_a_square_matrix_shrinks_on_both_sides(tmp_path: Path, names: str, size: str) -> None:
    source = MATMUL.format(names=names, rows=size, inner=size, columns=size)
    _, changes = shrunk(source, tmp_path)
    assert changes == {f"input {index}": [[4096, 4096], [256, 256]] for index in (0, 1)}


def test_numbers_of_one_size_shrink_together_and_no_more_than_it_takes(tmp_path: Path) -> None:
    source = MATMUL.format(names="", rows=8192, inner=2048, columns=1024)
    _, changes = shrunk(source, tmp_path)
    assert changes == {"input 0": [[8192, 2048], [512, 2048]]}


def test_a_model_shrinks_where_its_code_allows(tmp_path: Path) -> None:
    _, changes = scale.fit(LINEAR.format(least=0), tmp_path, 1 / 16, 1.0)
    assert changes == {
        "input 0": [[16, 65536], [1, 4096]],
        "Model": ["[65536, 65536, 8]", "[4096, 4096, 8]"],
    }
    with pytest.raises(scale.TooLarge, match="even with --scale"):
        scale.fit(LINEAR.format(least=60000), tmp_path, 1 / 16, 1.0)


def test_a_problem_of_one_size_alone_is_said_to_be_one(tmp_path: Path) -> None:
    source = MATMUL.format(names="", rows=4096, inner=4096, columns=4096)
    source = source.replace("return a @ b", "assert a.shape == (4096, 4096); return a @ b")
    with pytest.raises(scale.TooLarge, match="runs at no smaller size"):
        scale.fit(source, tmp_path, 1 / 16, LIMIT_S)


def test_a_kernel_size_that_equals_a_number_of_channels_stays(tmp_path: Path) -> None:
    """A model's small numbers say what it does: a kernel for 3 by 3 is right for no other."""
    source = """
import torch
class Model(torch.nn.Module):
    def __init__(self, channels, kernel_size):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, 64, kernel_size)
    def forward(self, x):
        return self.conv(x)
channels, kernel_size, side = 3, 3, 16384
def get_inputs():
    return [torch.rand(2, channels, side, side)]
def get_init_inputs():
    return [channels, kernel_size]
"""
    text, changes = shrunk(source, tmp_path)
    assert changes == {"input 0": [[2, 3, 16384, 16384], [1, 3, 1024, 1024]]} and "(3, 3, 1024)" in text, changes


def test_what_an_operator_reads_takes_time_too(tmp_path: Path) -> None:
    """A mean writes little. Who looks up a few rows of a table reads those alone."""
    source = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, places):
        return {returned}
def get_inputs():
    return [torch.rand(64, 4096, 4096), torch.zeros(8, dtype=torch.int64)]
def get_init_inputs():
    return []
"""
    for returned in ("x.mean(1)", "torch.nn.functional.max_pool2d(x, 64)"):
        _, changes = shrunk(source.format(returned=returned), tmp_path)
        assert changes == {"input 0": [[64, 4096, 4096], [4, 4096, 4096]]}
    for returned in ("x[places]", "x[:, 0].exp()", "x.index_select(2, places)"):
        assert scale.fit(source.format(returned=returned), tmp_path, None, LIMIT_S)[1] == {}
