"""Kernels by rule whose time is that of reading and writing: vectors of 16 bytes, and rows that are read once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dice.optimize.templates import elements, layout, passes, teams
from dice.optimize.templates.layout import Layout
from dice.optimize.templates.teams import team_for
from dice.optimize.templates.values import Memory, Reduced
from dice.optimize.templates.vectors import VectorEmitter, width_for
from dice.optimize.templates.write import cuda_source
from tests.optimize.test_rules import check, graph_of

Several = Callable[..., tuple[torch.Tensor, ...]]


def test_elements_are_read_in_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many bytes, with what is broadcast to them; of counts that have no vector at the end, and from addresses
    where none begins."""
    monkeypatch.setattr(elements, "FEW", 64)
    x, channels, last, image = torch.randn(5, 8, 6, 12), torch.randn(8, 1, 1), torch.randn(12), torch.randn(5, 1, 1, 1)
    half, odd, double = torch.randn(37, 24).half(), torch.randn(37, 23), torch.randn(9, 14).double()
    index, apart = torch.randint(0, 37, (50,)), torch.randn(1001)[1:]

    def several(
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        x, channels, last, image, half, odd, double, index, apart = given
        return (
            *(x.relu() * channels + last, x * image + last, x.permute(0, 2, 3, 1) * channels.view(8), x.flip(1) + x),
            *(F.gelu(half) + half[0], half[:9].float() * 2, (half > 0) & (half < 1), half[index] * 2, torch.tril(half)),
            *(odd * 2 + odd[:, :1], odd.relu() + odd[0], odd.bfloat16() * 3, odd[index] + 1, double.exp() * 2),
            *(apart * 2, torch.arange(1000.0) + apart, torch.cat([apart, -apart]), F.pad(apart, (3, 2)), x.int()),
            *(torch.cat([x, x * 2], 1), F.pad(x, (0, 0, 1, 1)) * 2, x[:, :, 1:] * 2, x.transpose(2, 3) + 1),
        )

    cuda = check(tmp_path, several, x, channels, last, image, half, odd, double, index, apart)
    assert "Vector<float, 4> own_inputs_0[ITEMS" in cuda and "load_vector<4>(" in cuda
    for one in ("Vector<at::Half, 8> own_inputs_", "Vector<double, 2> own_"):
        assert one in cuda
    assert "k < 4 && c * 4 + k < 851; k++" in cuda, "an index that lies behind the last is not looked up"
    joined = cuda_source(graph_of(lambda x: torch.cat([x, -x]), apart), "region")[0]
    assert "own_inputs" not in joined, "a part of what is joined is not read where another one stands"


def test_what_is_broadcast_is_read_once_for_a_vector() -> None:
    """Where a row has whole vectors; else each element is."""
    x, y = torch.randn(64, 32, 12, 12), torch.randn(32, 1, 1)
    cuda = cuda_source(graph_of(lambda x, y: x * y, x, y), "region")[0]
    read, loop = cuda.index("inputs_1["), cuda.index("for (int k = 0;")
    assert read < loop and "c / 36 % 32" in cuda
    x = torch.randn(64, 32, 7, 12)[..., :7].contiguous()
    cuda = cuda_source(graph_of(lambda x, y: x * y, x, y), "region")[0]
    assert cuda.index("inputs_1[") > cuda.index("for (int k = 0;")
    assert "Vector" not in cuda_source(graph_of(lambda x: x.transpose(2, 3) * 2, x), "region")[0], "read one by one"


def test_an_index_keeps_its_place_in_a_vector() -> None:
    e = VectorEmitter(4)
    for name in ("row", "c"):
        e.declare(name, 0)
    with e.block() as frame:
        e.declare("k")
        flat = e.flat(e.at((6, 5, 8), ("row", "2", e.joined("c", 4, "k", 2))))
        assert e.vector_of(flat) is not None and e.dims(e.at_flat((30, 8), flat))[1].startswith("i")
        assert e.vector_of(e.flat(e.at((6, 9), ("row", "k")))) is None, "a row that has no whole vectors"
        assert e.vector_of(e.flat(e.at((3, 4), ("row", "k")))) == "row"
        assert not frame.names or all("k" in line for line in frame.lines)
    widest = Memory((8, 8), "float64", "y")
    assert width_for([Memory((8, 8), "float16", "x")], [widest], 64) == 2
    assert width_for([Memory((8, 8), "float16", "x")], [], 64) == 8


@pytest.fixture
def rows_of_all_kinds() -> tuple[Several, tuple[torch.Tensor, ...]]:
    x, rows_, long, odd, columns = (
        torch.randn(*shape) for shape in ((6, 36), (3, 4096), (2, 5000), (7, 37), (300, 70))
    )
    image, middle, half, whole = torch.randn(4, 6, 8, 8), torch.randn(3, 64, 36), torch.randn(9, 64).half(), None
    wide = torch.randn(2, 8200)
    wide[0, 5] = -torch.inf  # where a row's parts have nothing that counts
    wide[1, :5000] = -torch.inf
    whole = torch.randint(-9, 9, (3, 64))

    def several(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, rows_, long, odd, columns, image, middle, half, wide, whole = given
        weight, bias = rows_[0], rows_[1]
        top, place = middle.max(1)
        return (
            *(F.softmax(x, -1), F.log_softmax(long, -1), F.softmax(wide, -1), F.softmax(odd, 0), F.softmax(odd, 1)),
            *(F.layer_norm(rows_, (4096,), weight, bias), F.layer_norm(long + long.flip(1), (5000,)), x.std(-1)),
            *(F.batch_norm(columns, None, None, training=True), F.batch_norm(image, None, None, training=True)),
            *(F.group_norm(torch.sigmoid(rows_) * rows_ + bias, 64, weight, bias), F.instance_norm(image)),
            *(F.layer_norm(half, (64,)), F.rms_norm(odd, (37,)), F.normalize(x), F.layer_norm(x.softmax(-1), (36,))),
            *(whole.sum(-1), whole.amax(-1), whole.argmax(-1), middle.sum(1), top, place, middle.softmax(1)),
            *(columns.amax(0), (columns > 9).any(0), columns.argmin(0), image.mean((2, 3)), wide.argmax(-1)),
            columns.index_select(1, columns.argmax(0) % 70).sum(
                0
            ),  # of what is chosen by what another kernel has to find
            *(half.softmax(-1), long.double().var(-1), F.max_pool2d(image, 3, 2, 1), columns.sum(0)),
        )

    return several, (x, rows_, long, odd, columns, image, middle, half, wide, whole)


def test_rows_are_kept_where_they_are_read_again(
    tmp_path: Path, rows_of_all_kinds: tuple[Several, tuple[torch.Tensor, ...]]
) -> None:
    cuda = check(tmp_path, rows_of_all_kinds[0], *rows_of_all_kinds[1])
    for one in ("kept[STEPS", "warp_max<", "column_sum<", "block_sum<", "Vector<at::Half, 8>", "own_top"):
        assert (one in cuda) == (one != "own_top"), one


def test_rows_that_are_too_long_to_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_of_all_kinds: tuple[Several, tuple[torch.Tensor, ...]]
) -> None:
    """Maximum and sum of a softmax, mean and squares of a norm: a pass each."""
    for module, name, number in ((passes, "MOST_KEPT", 0), (layout, "ENOUGH", 0)):
        monkeypatch.setattr(module, name, number)
    cuda = check(tmp_path, rows_of_all_kinds[0], *rows_of_all_kinds[1])
    assert "kept" not in cuda and "own_top = top;" in cuda and "gap * gap * seen * share" in cuda
    softmax = cuda_source(graph_of(lambda x: F.softmax(x, -1), torch.randn(200, 65536)), "region")[0]
    assert softmax.count("for (int c = threadIdx.x;") == 2


def test_windows_are_reduced_where_they_are_read(tmp_path: Path) -> None:
    """If that is once; what is made of rows of windows has them in memory."""

    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pooled = F.max_pool2d(x, 2)
        return pooled.sum((1, 2, 3)), F.avg_pool2d(pooled, 2, 1), F.softmax(F.avg_pool2d(x * 2, 4), -1)

    cuda = check(tmp_path, several, torch.randn(3, 4, 16, 32))
    assert cuda.count("for (int tap = 0; tap < 4; tap++)") >= 2 and cuda.count("mid") > 0


def test_rows_in_parts_and_by_a_thread_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_of_all_kinds: tuple[Several, tuple[torch.Tensor, ...]]
) -> None:
    for module, name, number in (
        *((layout, "LEAST_PART", 16), (layout, "LEAST_COLUMN", 16), (layout, "ENOUGH", 1000)),
        *((teams, "MANY_COLUMNS", 64), (teams, "FEW_THREADS", 1)),
    ):
        monkeypatch.setattr(module, name, number)
    assert "mid1" in check(tmp_path, rows_of_all_kinds[0], *rows_of_all_kinds[1])


def test_equal_values_have_no_variance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept or not: a mean that is rounded, times the root of a small number, is far from 0."""
    x, near = torch.full((4, 1000), 3.7), torch.randn(4, 1000) * 0.01 + 1000

    def several(x: torch.Tensor, near: torch.Tensor) -> tuple[torch.Tensor, ...]:
        normed = F.layer_norm(x, (1000,))
        return normed + (normed != 0), F.batch_norm(x, None, None, training=True), near.var(1) * 1e4

    check(tmp_path, several, x, near)
    monkeypatch.setattr(passes, "MOST_KEPT", 0)
    check(tmp_path, several, x, near)
    for module, name, number in ((layout, "LEAST_PART", 100), (layout, "LEAST_COLUMN", 2), (layout, "ENOUGH", 1000)):
        monkeypatch.setattr(module, name, number)
    assert "mid" in check(tmp_path, several, x, near)


@pytest.mark.parametrize("most_kept", [passes.MOST_KEPT, 0])
def test_moments_of_few_long_rows_take_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_kept: int
) -> None:
    """Of the parts, then one small kernel that has all results of a number a row, then the one that normalises."""
    monkeypatch.setattr(passes, "MOST_KEPT", most_kept)
    x = torch.randn(4, 3, 64, 64) * torch.tensor([1.0, 1e-3, 30.0]).view(3, 1, 1) + 100
    x[:2, 1] += 5.0  # parts whose means are far from each other
    weight, bias = torch.randn(3), torch.randn(3)

    def several(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        variance, mean = torch.var_mean(x, (0, 2, 3), correction=0)
        return F.relu(F.batch_norm(x, None, None, weight, bias, training=True)), mean, variance

    cuda = check(tmp_path, several, x, weight, bias)
    first, second, third = cuda.split("__global__")[1:]
    assert "inputs_0[" in first and "out" not in first
    assert "out1[row]" in second and "out2[row]" in second and "inputs_0" not in second
    assert "out0" in third and "sum" not in third.split("torch::Tensor")[0]


def test_rows_whose_last_dimension_has_no_whole_vectors(tmp_path: Path) -> None:
    """An index into several dimensions still tells the row that it is in: all of it is one kernel."""

    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        variance, mean = torch.var_mean(x, (1, 2), correction=0, keepdim=True)
        return (x - mean).relu() / (variance + 1e-3).sqrt(), variance.flatten() + mean.flatten(), mean * 2

    cuda = check(tmp_path, several, torch.randn(7, 4, 33))
    assert cuda.count("__global__") == 1 and "Vector<float, 4>" in cuda


def test_threads_share_rows_by_how_they_lie() -> None:
    assert team_for(1 << 20, 64, 4, "along").lanes == 4
    assert team_for(1 << 20, 8, 4, "along").kind == "thread"
    assert team_for(128, 64, 4, "along").lanes == 16, "few rows"
    assert [team_for(1000, length, 4, "along").kind for length in (1024, 2048)] == ["warp", "block"]
    assert [team_for(number, 4096, 1, "down").kind for number in (1 << 20, 4096)] == ["thread", "column"]
    assert [team_for(1 << 20, length, 1, "apart").kind for length in (9, 729)] == ["thread", "warp"]
    for dims, lie in (((1,), "along"), ((0,), "down")):
        assert Layout(Reduced((64,), "float32", Memory((64, 64), "float32", "x"), dims)).lie == lie
