"""Large inputs and outputs cross in lent memory: the same verdicts as by files, and a borrower can do no harm."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier, lending, wire

CASES = Path(__file__).parent.parent / "cases"
PROBLEMS = CASES / "problems"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_a_value_comes_back_from_lent_memory_as_tensors_of_its_own(tmp_path: Path, dtype: torch.dtype) -> None:
    value = [torch.rand(3, 5).mul(9).to(dtype), {"x": torch.rand(4, 6).mul(9).to(dtype).t(), "y": None}, torch.zeros(0)]
    memory = lending.lend(wire.room(value), on_gpu=False)
    wire.write(value, tmp_path, "value", memory)
    assert not (tmp_path / "value.bin").exists()
    other = lending.borrow(os.dup(memory.descriptor), memory.size, on_gpu=False)
    found = wire.read(tmp_path, "value", memory=other)
    memory.bytes.fill_(255)  # what is lent may change; what was read may not
    for kept, back in zip(wire.tensors(value), wire.tensors(found), strict=True):
        assert back.dtype == kept.dtype and back.stride() == kept.stride() and torch.equal(back, kept)
    memory.close()
    other.close()


def test_more_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    memory = lending.lend(64, on_gpu=False)
    wire.write([torch.zeros(16)], tmp_path, "fits", memory)
    with pytest.raises(wire.WireError, match="at most 64"):
        wire.write([torch.zeros(16), torch.zeros(1)], tmp_path, "fits not", memory)
    memory.close()


@settings(max_examples=60, deadline=None)
@given(offset=st.integers(-100, 200), count=st.integers(0, 300))
def test_a_description_cannot_reach_beyond_the_memory(
    tmp_path_factory: pytest.TempPathFactory, offset: int, count: int
) -> None:
    folder, memory = tmp_path_factory.mktemp("lent"), lending.lend(256, on_gpu=False)
    tree = f'{{"kind": "tensor", "dtype": "float32", "shape": [{count}], "offset": {offset}}}'
    (folder / "value.json").write_text(tree)
    found = None
    with contextlib.suppress(wire.WireError):
        found = wire.read(folder, "value", memory=memory)
    assert (found is not None) == (offset >= 0 and offset + 4 * count <= 256 and (offset % 4 == 0 or not count))
    assert found is None or len(found) == count
    memory.close()


def verdicts(large_bytes: int, names: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for name in names:
        source = (CASES / f"{name}.py").read_text()
        problem = source.partition("# problem: ")[2].partition("\n")[0].strip()
        pairs.append((Problem.from_file(PROBLEMS / f"{problem}.py"), Kernel(source)))
    with Verifier(backend="emulated", options=Options(large_bytes=large_bytes, seed=7), cache=False) as verifier:
        found = [verdict for _, verdict in verifier.verify_many(pairs, workers=2, ordered=True)]
    return [(verdict.outcome, verdict.stage) for verdict in found]


def test_verdicts_do_not_depend_on_how_values_cross() -> None:
    kinds = ("right", "deceptive", "mutates", "returns_input", "unwritten", "constant", "output_flood", "identity")
    chosen = [path.stem for path in sorted(CASES.glob("*.py")) if path.stem.startswith(kinds)]
    assert len(chosen) > 10
    assert verdicts(0, chosen) == verdicts(1 << 62, chosen)
