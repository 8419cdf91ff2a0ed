"""What is too fast to be true: proved by bytes that must move, with the size of L2 set aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dice.verify import roofline
from dice.verify.reference import workload
from dice.verify.roofline import Ceilings, Work

H100 = Ceilings(bandwidth=3.0e12, fp32=5.0e13, tf32=4.0e14, bf16=8.0e14, l2_bytes=50 << 20)
LARGE = Work(input_bytes=3 << 30, parameter_bytes=0, output_bytes=3 << 30, flops=1 << 30)  # 2.15 ms of copying


def refuse() -> int:
    raise AssertionError("not to be asked")


def test_a_copy_at_full_bandwidth_is_possible_and_one_at_twice_that_is_not() -> None:
    at_bandwidth = 1e3 * LARGE.bytes_moved / H100.bandwidth
    assert not roofline.is_impossible(at_bandwidth, H100, LARGE, refuse)
    assert not roofline.is_impossible(0.9 * at_bandwidth, H100, LARGE, refuse)
    assert roofline.is_impossible(0.5 * at_bandwidth, H100, LARGE, lambda: LARGE.bytes_moved)


def test_only_what_provably_moves_counts() -> None:
    # an embedding: the table is large, but few of its rows are read
    table = Work(input_bytes=4096, parameter_bytes=4 << 30, output_bytes=1 << 20, flops=0)
    assert not roofline.is_impossible(0.01, H100, table, lambda: 2 << 20)


def test_what_fits_into_the_cache_is_never_too_fast() -> None:
    small = Work(input_bytes=20 << 20, parameter_bytes=0, output_bytes=20 << 20, flops=1 << 40)
    assert not roofline.is_impossible(1e-3, H100, small, refuse)


def test_fewer_operations_than_the_references_never_reject() -> None:
    product = Work(input_bytes=200 << 20, parameter_bytes=0, output_bytes=100 << 20, flops=1 << 50)
    assert H100.ceiling_ms(product) > 1e4
    assert not roofline.is_impossible(0.2, H100, product, lambda: product.bytes_moved)


def test_ceilings_are_measured_once_per_device(tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(name: str) -> dict[str, Any]:
        measured.append(name)
        return {field: float(len(name)) for field in Ceilings.__dataclass_fields__}

    for name in ("one", "one", "other", "one"):
        found = roofline.stored_ceilings(tmp_path, name, lambda name=name: measure(name))  # type: ignore[misc]
        assert found.bandwidth == len(name)
    assert measured == ["one", "other"]
    known = roofline.known_ceilings(tmp_path, "other")
    assert known is not None and known.fp32 == 5.0
    assert roofline.known_ceilings(tmp_path, "new") is None and measured == ["one", "other"]
    (tmp_path / "ceilings.json").write_text("{cut off")
    assert roofline.stored_ceilings(tmp_path, "one", lambda: measure("one")).fp32 == 3.0


def test_work_of_a_linear_layer() -> None:
    layer = torch.nn.Linear(64, 32)
    found = workload.describe(layer, [torch.rand(16, 64)])
    assert found.input_bytes == 16 * 64 * 4
    assert found.parameter_bytes == (64 * 32 + 32) * 4
    assert found.output_bytes == 16 * 32 * 4
    assert 2 * 16 * 64 * 32 <= found.flops <= 2 * 16 * 64 * 32 + 4 * 16 * 64


def test_work_of_an_elementwise_chain_and_a_reduction() -> None:
    values = torch.rand(1000)
    assert workload.describe(lambda x: (x * 2).relu(), [values]).flops == 2000
    assert workload.describe(lambda x: x.view(10, 100).t().sum(), [values]).flops == 1000


def test_needed_bytes_are_outputs_and_what_has_a_gradient() -> None:
    values = torch.rand(100, 10) + 0.5
    table = torch.nn.Embedding(5000, 8)
    assert workload.needed_bytes(lambda x: x * 2, [values]) == 2 * values.nbytes
    assert workload.needed_bytes(lambda x: x[:10] * 2, [values]) == 2 * values[:10].nbytes
    indices = torch.tensor([3, 3, 7])
    assert workload.needed_bytes(table, [indices]) == 2 * 8 * 4 + 3 * 8 * 4
    assert workload.needed_bytes(lambda x: x.argmax(1), [values]) == 100 * 8
    assert all(parameter.requires_grad for parameter in table.parameters())


def test_inputs_are_left_as_they_are() -> None:
    values = torch.rand(6)
    kept = values.clone()
    workload.needed_bytes(lambda x: x.add_(1) * 2, [values])
    assert torch.equal(values, kept) and not values.requires_grad


@pytest.mark.gpu
def test_measured_ceilings_are_in_order() -> None:
    from dice.verify.execution.stopwatch import CudaStopwatch

    found = workload.measure_ceilings(CudaStopwatch())
    assert found.bf16 > found.fp32 > 1e12
    assert found.bandwidth > 1e11
    assert found.l2_bytes > 1 << 20
