"""Values survive the trip between processes, and hostile files do not become tensors."""

from __future__ import annotations

import json
import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from dice.verify.tensors import compare, sampled, shared_memory, transport, trees
from dice.verify.tensors.near import same_values

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def trip(value: Any, folder: Path) -> Any:
    transport.write(value, folder, "value")
    return transport.read(folder, "value")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_tensors_of_every_kind(dtype: torch.dtype, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensor = torch.randn(shape).mul(9).to(dtype)
    back = trip(tensor, tmp_path)
    assert back.dtype == dtype and back.shape == tensor.shape and same_values(back, tensor)


def test_permuted_memory_stays_permuted_and_other_views_become_contiguous(tmp_path: Path) -> None:
    tensor = torch.randn(3, 4, 5)
    for view in (tensor.permute(2, 0, 1), tensor.to(memory_format=torch.contiguous_format), tensor[1].t()):
        back = trip(view, tmp_path)
        assert back.stride() == view.stride() and torch.equal(back, view)
    for view in (tensor[:, ::2], tensor[0, 0].expand(6, 5)):
        back = trip(view, tmp_path)
        assert back.is_contiguous() and torch.equal(back, view)


def test_trees_and_scalars(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, "text", torch.float16], "b": (math.inf, (), 3 + 4j, 10**30)}
    assert trip(value, tmp_path) == value


def test_a_tuple_keeps_the_names_of_its_parts(tmp_path: Path) -> None:
    value = Named(torch.arange(3), [Named(1, None)])
    back = trip(value, tmp_path)
    assert back._fields == ("left", "right") and back.right == [(1, None)] and back.right[0].left == 1
    assert torch.equal(back.left, value.left)
    moved = transport.map_tensors(lambda tensor: tensor + 1, back)
    assert type(moved) is type(back) and torch.equal(moved.left, torch.arange(1, 4))
    (tmp_path / "value.json").write_text((tmp_path / "value.json").read_text().replace('"left"', '"l eft"'))
    with pytest.raises(transport.WireError):
        transport.read(tmp_path, "value")


class Named(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Batch:
    ids: Any
    mask: Any = None


def test_dicts_that_were_filled_in_another_order_are_alike() -> None:
    one, other = {"b": torch.ones(2), "a": torch.zeros(3)}, {"a": torch.zeros(3), "b": torch.ones(2)}
    assert [tensor.numel() for tensor in transport.tensors(one)] == [3, 2]
    assert trees.identical(one, other) and sampled.are_equal(one, other)
    assert compare.compare({0: 1, "1": 2}, {"1": 2, "0": 1}).equal  # in programs keys are texts
    moved = transport.map_tensors(lambda tensor: tensor + 1, one)
    assert list(moved) == ["b", "a"] and moved["b"].tolist() == [2, 2] and moved["a"].tolist() == [1, 1, 1]


def test_keys_stay_numbers(tmp_path: Path) -> None:
    assert trip({0: 1.5, "a": {True: None}}, tmp_path) == {0: 1.5, "a": {True: None}}


def test_an_object_of_a_dataclass_keeps_its_fields(tmp_path: Path) -> None:
    value = [Batch(torch.arange(3), {"deep": Batch(torch.ones(2))})]
    (back,) = trip(value, tmp_path)
    assert torch.equal(back.ids, torch.arange(3)) and back.mask["deep"].mask is None
    assert len(transport.tensors(value)) == len(transport.tensors(back)) == 2
    for one in (*value, back):
        moved = transport.map_tensors(lambda tensor: tensor + 1, one)
        assert type(moved) is type(one) and torch.equal(moved.ids, torch.arange(1, 4))
        assert torch.equal(one.ids, torch.arange(3))
    assert compare.compare(value[0], back).equal
    assert not compare.compare(value[0], transport.map_tensors(lambda tensor: tensor + 1, back)).equal
    assert not compare.compare(value[0], tuple(transport.parts(back) or ())).equal


def test_gradients_and_conjugates_are_resolved(tmp_path: Path) -> None:
    signal = torch.tensor([1 + 2j])
    assert torch.equal(trip(signal.conj(), tmp_path), signal.conj().resolve_conj())
    assert not trip(torch.ones(2, requires_grad=True), tmp_path).requires_grad


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 0, torch.ones(2, 2).to_sparse()])
def test_what_has_no_form_is_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(transport.WireError):
        transport.write(value, tmp_path, "value")


GOOD = {"kind": "tensor", "dtype": "float32", "shape": [4], "offset": 0}


@pytest.mark.parametrize(
    "tree",
    [
        GOOD | {"shape": [5]},
        GOOD | {"shape": [-1]},
        GOOD | {"shape": [2**62, 4]},
        GOOD | {"shape": ["4"]},
        GOOD | {"shape": [True]},
        GOOD | {"offset": -4},
        GOOD | {"offset": 2},
        GOOD | {"dtype": "object"},
        GOOD | {"stride": [2]},
        GOOD | {"stride": [0]},
        GOOD | {"stride": [1, 1]},
        {"kind": "pickle", "value": "x"},
        {"kind": "list", "items": "abcd"},
        {"kind": "dict", "items": [["a"]]},
        [GOOD],
        7,
    ],
)
def test_hostile_descriptions_are_refused(tree: object, tmp_path: Path) -> None:
    (tmp_path / "value.bin").write_bytes(bytes(16))
    (tmp_path / "value.json").write_text(json.dumps(GOOD))
    assert transport.read(tmp_path, "value").shape == (4,)
    (tmp_path / "value.json").write_text(json.dumps(tree))
    with pytest.raises(transport.WireError):
        transport.read(tmp_path, "value")


def test_deep_nesting_links_pipes_and_size_are_refused(tmp_path: Path) -> None:
    (tmp_path / "value.bin").write_bytes(bytes(16))
    deep = '{"kind": "list", "items": [' * 5000 + "]}" * 5000
    (tmp_path / "value.json").write_text(deep)
    with pytest.raises(transport.WireError):
        transport.read(tmp_path, "value")
    (tmp_path / "value.json").write_text(json.dumps(GOOD))
    with pytest.raises(transport.WireError, match="at most 8"):
        transport.read(tmp_path, "value", max_bytes=8)
    (tmp_path / "value.bin").unlink()
    os.symlink("/etc/passwd", tmp_path / "value.bin")
    with pytest.raises(transport.WireError):
        transport.read(tmp_path, "value")
    (tmp_path / "value.bin").unlink()
    os.mkfifo(tmp_path / "value.bin")
    with pytest.raises(transport.WireError, match="regular"):
        transport.read(tmp_path, "value")


@pytest.mark.parametrize("lent", [False, True])
def test_a_value_can_be_shown_without_a_copy_and_written_to_without_harm_to_the_file(
    tmp_path: Path, lent: bool
) -> None:
    value = {
        "a": torch.rand(5, 7),
        "b": [torch.arange(6).reshape(2, 3).t(), torch.zeros(0), torch.tensor(True)],
        "c": 3,
    }
    memory = shared_memory.lend(transport.room(value), on_gpu=False) if lent else None
    transport.write(value, tmp_path, "value", memory)
    shown = transport.show(tmp_path, "value", memory)
    for kept, there in zip(transport.tensors(value), transport.tensors(shown), strict=True):
        assert torch.equal(kept, there) and kept.stride() == there.stride() and kept.dtype == there.dtype
    shown["a"].zero_()
    again = transport.read(tmp_path, "value", memory=memory)
    assert torch.equal(again["a"], torch.zeros(5, 7) if lent else value["a"])
    if memory is not None:
        memory.close()


def test_an_empty_value_can_be_shown_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    transport.write({}, tmp_path, "empty")
    assert transport.show(tmp_path, "empty") == {}
    transport.write([torch.rand(300)], tmp_path, "cut")
    (tmp_path / "cut.bin").write_bytes(b"12345678")
    with pytest.raises(ValueError):
        transport.show(tmp_path, "cut")


def resident_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no memory file system")
def test_what_is_poured_counts_once_though_the_file_is_in_memory() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        value = {"odd": torch.rand(777), "large": torch.rand(1 << 26), "turned": torch.rand(3, 5).t()}
        transport.write(value, folder, "state")
        shown = transport.show(folder, "state")
        targets = {key: torch.zeros_like(tensor) for key, tensor in value.items()} | {"turned": torch.zeros(5, 3)}
        for target in targets.values():
            target.fill_(1)  # so that it is there
        before = resident_kb()
        for key, tensor in shown.items():
            transport.pour(tensor, targets[key])
        assert resident_kb() - before < 1 << 17  # of the 2^18 that the file has
        for key, tensor in value.items():
            assert torch.equal(targets[key], tensor) and torch.equal(shown[key], tensor)
