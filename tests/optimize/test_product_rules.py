"""Products and convolutions by rule: whatever tile and however many parts, near to PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_rules import check, graph_of

from dice.optimize.templates.contractions import division, tensor_cores
from dice.optimize.templates.contractions.division import Division, Tile
from dice.optimize.templates.write import cuda_source


@pytest.mark.parametrize("on_tensor_cores", [False, True])
def test_transposed_convolutions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_tensor_cores: bool) -> None:
    """Strides with and without taps for every phase, dilations with and without a divisor in common with them, more
    taps than fit, groups, and few channels, which take no tile."""
    monkeypatch.setattr(tensor_cores, "LEAST_WORK", 1)
    monkeypatch.setattr(tensor_cores, "LEAST_EXTENT", 1)
    x, line, cube = torch.randn(2, 8, 5, 6), torch.randn(3, 8, 11), torch.randn(1, 8, 3, 4, 2)
    w3, w4, w1, w5 = (torch.randn(8, 12, k, k) for k in (3, 4, 1, 5))
    wide, thin, solid = torch.randn(8, 9, 3), torch.randn(8, 3, 3, 5), torch.randn(8, 9, 3, 2, 3)

    def several(x: torch.Tensor, line: torch.Tensor, cube: torch.Tensor, *w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        w3, w4, w1, w5, wide, thin, solid = w
        return (
            F.conv_transpose2d(x, w3, stride=2, padding=1, output_padding=1),
            F.conv_transpose2d(x, w4, stride=(2, 3), padding=(1, 0)),
            F.conv_transpose2d(x, w1, stride=2),
            F.conv_transpose2d(x, w5, stride=2, padding=2, dilation=(3, 2)),
            F.conv_transpose2d(x, w3, padding=1),
            F.conv_transpose2d(x, w5, stride=3, padding=1, groups=4),
            F.conv_transpose1d(line, wide, stride=2, padding=3, dilation=3),
            F.conv_transpose2d(x, thin, stride=(2, 2), padding=(1, 2), dilation=(1, 3)),
            F.conv_transpose2d(x, thin, stride=(2, 4), padding=(0, 1), dilation=2),
            F.conv_transpose3d(cube, solid, stride=(2, 1, 2), padding=(1, 0, 1), output_padding=(1, 0, 0)).relu(),
        )

    check(tmp_path, several, x, line, cube, w3, w4, w1, w5, wide, thin, solid, tensor_cores=on_tensor_cores)


def test_a_phase_has_its_own_taps_alone() -> None:
    cuda = written(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), (1, 16, 9, 9), (16, 8, 4, 4))
    assert "tile_k < 64;" in cuda, "16 channels, and 4 taps of 16"
    cuda = written(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), (1, 16, 9, 9), (16, 8, 3, 3))
    assert "tile_k < i" in cuda, "1, 2, 2 and 4 taps of 9"


def written(function: Callable[..., Any], *shapes: tuple[int, ...], on_tensor_cores: bool = False) -> str:
    graph = graph_of(function, *(torch.empty(shape, device="meta") for shape in shapes))
    return cuda_source(graph, "region", on_tensor_cores)[0]


@pytest.mark.parametrize("tile", division.TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
def test_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tile: Tile) -> None:
    """Each tile, with sizes that do not fit it: sums in three parts of which the last is short, a batch, factors that
    are computed, that are padded, and that lie turned in memory."""
    monkeypatch.setattr(tensor_cores, "LEAST_WORK", 1)
    monkeypatch.setattr("dice.optimize.templates.contractions.products.division", lambda extents: Division(tile, 3))
    for user in ("tiles", "tensor_cores"):
        monkeypatch.setattr(f"dice.optimize.templates.contractions.{user}.division", lambda extents: Division(tile, 3))
    x, y, many = torch.randn(131, 131), torch.randn(131, 37), torch.randn(2, 35, 131)

    def several(x: torch.Tensor, y: torch.Tensor, many: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            (x @ y).relu(),
            y.T @ x.T,
            many @ (x.sin() @ y)[None].expand(2, 131, 37),
            F.pad(x, (1, 2)) @ F.pad(y, (0, 0, 3, 0)),
        )

    cuda = check(tmp_path, several, x, y, many, tensor_cores=True)
    assert "int first = part * 48, last = min(first + 48, 131);" in cuda and "part = other % 3, z = other / 3;" in cuda


def test_rows_of_memory_are_copied_16_bytes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each of them begins at a multiple of those, also from a tensor that does not."""
    monkeypatch.setattr(tensor_cores, "LEAST_WORK", 1)
    x, y, image, taps = (
        torch.randn(68 * 36 + 1)[1:].view(68, 36),
        torch.randn(36, 44),
        torch.randn(2, 4, 8, 9),
        torch.randn(32, 4, 3, 3),
    )

    def several(x: torch.Tensor, y: torch.Tensor, image: torch.Tensor, taps: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ y, y.T @ x.T, F.conv2d(image, taps, padding=1)

    cuda = check(tmp_path, several, x, y, image, taps, tensor_cores=True)
    assert cuda.count("16, is_inside ? 0 : 16);") == 5, "all but the images, whose rows have conditions"
    assert cuda.count("make_float2") == 3 and "x = aligned(x);" not in cuda and "inputs_0 = aligned(inputs_0);" in cuda
    cuda = check(tmp_path, lambda x, y: x @ y, torch.randn(68, 37), torch.randn(37, 43), tensor_cores=True)
    assert "16, is_inside" not in cuda and "float2" not in cuda


def test_a_product_is_dealt_out_to_all_multiprocessors() -> None:
    def blocks(z: int, m: int, n: int, k: int) -> int:
        found = division.division((z, m, n, k))
        return z * found.parts * -(-m // found.tile.rows) * -(-n // found.tile.columns)

    for extents in ((1, 256, 256, 262144), (1, 128, 4096, 4096), (1, 512, 490, 4608), (1, 1024, 1024, 1024)):
        assert blocks(*extents) >= 0.9 * division.MULTIPROCESSORS
    assert division.division((1, 4096, 4096, 4096)).parts == 1
    assert division.division((1, 64, 64, 64)).parts == 1
    assert blocks(1, 16, 16, 1 << 20) >= 64
