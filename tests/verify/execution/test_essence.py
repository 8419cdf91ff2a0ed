"""What calls of PyTorch's operators come to, whatever they are called by."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from dice.verify.execution import evidence
from dice.verify.ipc.operator_counts import Essence

X, KEYS, ROWS, TABLE = torch.rand(2, 3, 8, 8), torch.arange(40) % 5, torch.rand(40, 6), torch.rand(5, 6)
GRID = torch.rand(2, 4, 4, 2)


def heart_of(call: Callable[[], object]) -> Essence:
    """Of the first operator that it calls which is anything at heart."""
    with evidence.Census() as census:
        call()
    return next((one for kinds in census.work.essences.values() for one in kinds if any(one)), (0, 0, 0, 0))


CURVES = {
    "scalar base": lambda: torch.pow(2.0, X),
    "cube root": lambda: X ** (1 / 3),
    "powers of a list": lambda: torch._foreach_pow([X], [0.3]),
    "polygamma": lambda: torch.polygamma(0, X),
    "zeta": lambda: torch.special.zeta(2.0, X),
    "bessel": lambda: torch.special.bessel_j0(X),
    "glu": lambda: functional.glu(torch.cat((X, X))),
}
WINDOWS = {
    "pooled": lambda: functional.avg_pool2d(X, 2),
    "largest": lambda: functional.max_pool2d(X, 2),
    "resized": lambda: functional.interpolate(X, scale_factor=0.5, mode="bilinear"),
    "sampled": lambda: functional.grid_sample(X, GRID, align_corners=False),
}
PLACED = {
    "index_add": lambda: TABLE.index_add(0, KEYS, ROWS),
    "index_put": lambda: TABLE.index_put((KEYS,), ROWS, accumulate=True),
    "one value": lambda: TABLE.index_put((KEYS,), torch.tensor(1.0), accumulate=True),
    "scatter_add": lambda: TABLE.scatter_add(0, KEYS[:, None].expand(-1, 6), ROWS),
    "segments": lambda: torch.segment_reduce(ROWS, "sum", lengths=torch.tensor([30, 10])),
    "gradient": lambda: torch.ops.aten.embedding_dense_backward(ROWS, KEYS, 5, -1, False),
}
ARITHMETIC = {
    "square": lambda: X**2,
    "root": lambda: X**-0.5,
    "whole powers": lambda: X ** torch.tensor(3),
    "put": lambda: TABLE.index_put((KEYS,), ROWS),
}


@pytest.mark.parametrize(
    ("call", "heart"),
    [
        *((call, (0, X.numel(), 0, 0)) for call in CURVES.values()),
        *((call, (X.numel(), 0, 0, 0)) for call in WINDOWS.values()),
        *((call, (ROWS.numel(), 0, 0, 0)) for call in PLACED.values()),
        *((call, (0, 0, 0, 0)) for call in ARITHMETIC.values()),
        (lambda: torch.bucketize(X, torch.arange(9.0)), (0, 0, X.numel(), 0)),
        (lambda: torch.searchsorted(torch.arange(9.0), X), (0, 0, X.numel(), 0)),
    ],
    ids=[*CURVES, *WINDOWS, *PLACED, *ARITHMETIC, "bucketize", "searchsorted"],
)
def test_operators_of_one_kind_come_to_the_same(call: Callable[[], object], heart: Essence) -> None:
    assert heart_of(call) == heart
