"""Operators without a rule of their own are taken apart into those that have one, and come to what PyTorch computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from dice.optimize.operators import kind_of
from dice.optimize.trace import parts
from tests.optimize.test_rules import check, graph_of

Results = tuple[torch.Tensor, ...]


def test_what_scatters(tmp_path: Path) -> None:
    """Each place looks for what belongs to it: the last of several, their sum, or the largest."""
    x, source, rows = torch.randn(4, 8), torch.randn(4, 5), torch.randn(3, 8)
    index = torch.stack([torch.randperm(8)[:5] for _ in range(4)])
    twice, some = torch.tensor([2, 0, 2]), torch.tensor([[-1, 2], [0, 2]])

    def several(x: torch.Tensor, source: torch.Tensor, index: torch.Tensor, rows: torch.Tensor,
                twice: torch.Tensor, some: torch.Tensor) -> Results:  # fmt: skip
        written = x.clone()
        written[x < 0] = 0.5
        written[some] = 1.5
        return (
            *(x.scatter(1, index, source), x.scatter(0, index[:, :3] % 4, 2.0), x.scatter_add(1, index % 3, source)),
            *(x.scatter_reduce(1, index % 3, source, "amax"), written, x.index_copy(0, twice[:2], rows[:2])),
            x.scatter_reduce(1, index % 3, source, "mean", include_self=False),
            *(x.index_add(0, twice, rows, alpha=0.5), x.index_fill(1, twice, 3.0)),
        )

    check(tmp_path, several, x, source, index, rows, twice, some)


def test_what_is_put_in_order(tmp_path: Path) -> None:
    """Equal elements in their order, and what is not a number behind all numbers."""
    x, whole = torch.randn(3, 9), torch.tensor([[3, 1, 3, 2, 1], [5, 5, 5, 5, 4]])
    x[1, 2] = float("nan")

    def several(x: torch.Tensor, whole: torch.Tensor) -> Results:
        return (
            *(*x.sort(-1), x.topk(4, 1)[0], *torch.sort(whole, dim=1, descending=True, stable=True)),
            *(x[2].kthvalue(3).values, x[0].median(), torch.quantile(x[0], 0.3, keepdim=True), x[:, :2].argsort(0)),
        )

    check(tmp_path, several, x, whole)
    # Sums of one size that are made of each other, and a result as small that is made of both.
    check(tmp_path, lambda x: torch.sigmoid(x).argsort(-1).argsort(-1).to(x.dtype) / 9, x)


def test_what_is_looked_up_in_sorted_values(tmp_path: Path) -> None:
    x, edges = torch.randn(3, 9), torch.tensor([-1.0, -0.5, 0.0, 0.5])
    x[0, :4] = edges  # which are below or above themselves, by the side

    def several(x: torch.Tensor, edges: torch.Tensor) -> Results:
        own = torch.sort(x, -1).values
        return (
            *(torch.searchsorted(edges, x), torch.searchsorted(edges, x, right=True, out_int32=True)),
            *(torch.searchsorted(own, x[:, :5].contiguous(), side="right"), torch.searchsorted(edges, 0.5)),
            torch.searchsorted(edges.flip(0), x, sorter=torch.arange(3, -1, -1)),
        )

    check(tmp_path, several, x, edges)


def test_what_lies_in_strides(tmp_path: Path) -> None:
    """Also a part of a tensor, and what is turned where it lies."""
    x = torch.randn(2, 48)

    def several(x: torch.Tensor) -> Results:
        turned = x.reshape(2, 6, 8).clone().transpose_(1, 2)
        spectrum = torch.stft(x, 16, hop_length=4, window=torch.ones(16), return_complex=True)
        return x.as_strided((2, 5, 8), (48, 8, 1)), x[1].as_strided((3, 4), (2, 5), 50), turned, spectrum.real

    check(tmp_path, several, x)


def test_what_lies_beyond_a_tensor_stays_with_pytorch() -> None:
    x = torch.randn(4, 8)
    assert "as_strided" in {node.base for node in graph_of(lambda x: x[1].as_strided((2, 4), (4, 1), 0), x).nodes}


def test_long_rows_stay_in_the_order_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing each with each costs too much there."""
    x = torch.randn(2, 64)
    assert "sort" not in {node.base for node in graph_of(lambda x: x.sort()[0], x).nodes}
    monkeypatch.setattr(parts, "MOST_COMPARISONS", 2 * 64 * 64 - 1)
    assert "sort" in {node.base for node in graph_of(lambda x: x.sort()[0], x).nodes}


def test_where_what_is_chosen_stands(tmp_path: Path) -> None:
    """As a router of experts and a search for neighbours ask."""
    x = torch.randn(4, 9)

    def several(x: torch.Tensor) -> Results:
        values, index = x.topk(3, -1)
        return values.softmax(-1), index, x.kthvalue(2, 0).indices, x.median(1).indices, x.topk(2, 0, False).indices

    assert "topk" not in {node.base for node in graph_of(several, x).nodes}
    check(tmp_path, several, x)


def test_images_between_their_pixels(tmp_path: Path) -> None:
    x, grid = torch.randn(1, 2, 5, 6), torch.rand(1, 3, 4, 2) * 2 - 1

    def several(x: torch.Tensor, grid: torch.Tensor) -> Results:
        columns = F.unfold(x, 3, padding=1, stride=2)
        return (
            F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=False),
            *(F.interpolate(x, size=(4, 7)), F.grid_sample(x, grid, padding_mode="border", align_corners=False)),
            *(columns, F.fold(columns * 2, (5, 6), 3, padding=1, stride=2), F.pixel_unshuffle(x[..., :4, :], 2)),
        )

    check(tmp_path, several, x, grid)


def test_cells_and_bags(tmp_path: Path) -> None:
    x, h, c = torch.randn(2, 3), torch.randn(2, 4), torch.randn(2, 4)
    w, u, b = torch.randn(16, 3), torch.randn(16, 4), torch.randn(16)
    words, offsets, table = torch.randint(0, 9, (7,)), torch.tensor([0, 3, 3]), torch.randn(9, 5)

    def several(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, w: torch.Tensor, u: torch.Tensor, b: torch.Tensor,
                words: torch.Tensor, offsets: torch.Tensor, table: torch.Tensor) -> Results:  # fmt: skip
        return (
            *(*torch.lstm_cell(x, (h, c), w, u, b, b), torch.gru_cell(x, h, w[:12], u[:12], b[:12])),
            *(F.embedding_bag(words, table, offsets, mode=mode) for mode in ("sum", "mean", "max")),
            F.bilinear(x, h, w.view(4, 4, 3).transpose(1, 2)),
        )

    check(tmp_path, several, x, h, c, w, u, b, words, offsets, table)


def test_losses_of_every_form(tmp_path: Path) -> None:
    x, label, weight = torch.randn(5, 4), torch.tensor([0, 3, -100, 1, 2]), torch.rand(4)
    labels = torch.tensor([[3, 0, -1, 1], [1, 2, -1, -1], [0, 1, 2, 3], [-1, 2, 1, 0], [1, 1, -1, 2]])

    def several(x: torch.Tensor, label: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> Results:
        return (
            *(F.cross_entropy(x, label, weight, label_smoothing=0.1), F.cross_entropy(x, x.softmax(-1))),
            F.binary_cross_entropy_with_logits(x, x.sigmoid(), weight, pos_weight=weight),
            *(F.triplet_margin_loss(x, x * 2, x.flip(0)), F.hinge_embedding_loss(x, x.sign())),
            *(F.gaussian_nll_loss(x, x.flip(0), x.exp(), full=True), F.multilabel_margin_loss(x, labels)),
            *(F.multi_margin_loss(x, label.clamp(min=0)), F.margin_ranking_loss(x[0], x[1], x[2].sign(), 0.3)),
        )

    check(tmp_path, several, x, label, weight, labels)


def test_complex_values_are_two_real_ones(tmp_path: Path) -> None:
    """Rotary positions, and a product in the frequency domain."""
    x, angle, signal, weight = torch.randn(2, 5, 8), torch.randn(5, 4), torch.randn(2, 6, 7), torch.randn(6, 4, 2)

    def several(x: torch.Tensor, angle: torch.Tensor, signal: torch.Tensor, weight: torch.Tensor) -> Results:
        turned = torch.view_as_complex(x.unflatten(-1, (4, 2))) * torch.polar(torch.ones_like(angle), angle)
        waves = torch.fft.rfft(signal, norm="ortho") * torch.view_as_complex(weight)
        return (
            *(torch.view_as_real(turned).flatten(2), turned.abs(), (turned / (turned.conj() + 3)).imag),
            *(
                torch.fft.irfft(waves, n=7),
                torch.fft.irfft2(torch.fft.rfft2(signal)),
                torch.fft.fft(signal, dim=1).real,
            ),
        )

    graph = graph_of(several, x, angle, signal, weight)
    assert not any("complex" in node.spec.dtype for node in graph.nodes if not isinstance(node.output, tuple))
    check(tmp_path, several, x, angle, signal, weight)


def test_roots_and_choices_of_complex_values(tmp_path: Path) -> None:
    """Also on the axes, where a side of a root is nothing; and complex numbers that stand in the code."""
    x = torch.randn(6, 8)
    x[0], x[1, ::2], x[2, 1::2] = 0, 0, 0

    def several(x: torch.Tensor) -> Results:
        z = torch.view_as_complex(x.unflatten(-1, (4, 2)))
        root = torch.sqrt(torch.where(z.real > 0.5, torch.zeros_like(z), z))
        wave = torch.exp(1j * x.to(torch.complex64))
        return root.real, root.imag, torch.log(z + (3 + 1j)).imag, torch.view_as_real(wave), (x * 2j).imag

    graph = graph_of(several, x)
    assert not any("complex" in node.spec.dtype for node in graph.nodes)
    check(tmp_path, several, x)


def test_what_has_parts_without_a_rule_stays_one_operator() -> None:
    graph = graph_of(lambda x: torch.linalg.inv(x).abs(), torch.randn(3, 3))
    assert [node.base for node in graph.nodes if kind_of(node) == "other"] == ["linalg_inv"]
