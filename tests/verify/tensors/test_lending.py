"""Large inputs and outputs cross in lent memory: the same verdicts as by files, and a borrower can do no harm."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier
from dice.verify.tensors import shared_memory, transport
from tests.conftest import CASES

pytestmark = pytest.mark.usefixtures("lasting_zygote")  # where verifiers are started

PROBLEMS = CASES / "problems"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64])
def test_a_value_comes_back_from_lent_memory_as_tensors_of_its_own(tmp_path: Path, dtype: torch.dtype) -> None:
    value = [torch.rand(3, 5).mul(9).to(dtype), {"x": torch.rand(4, 6).mul(9).to(dtype).t(), "y": None}, torch.zeros(0)]
    memory = shared_memory.lend(transport.room(value), on_gpu=False)
    transport.write(value, tmp_path, "value", memory)
    assert not (tmp_path / "value.bin").exists()
    other = shared_memory.borrow(os.dup(memory.descriptor), memory.size, on_gpu=False)
    found = transport.read(tmp_path, "value", memory=other)
    memory.bytes.fill_(255)  # what is lent may change; what was read may not
    for kept, back in zip(transport.tensors(value), transport.tensors(found), strict=True):
        assert back.dtype == kept.dtype and back.stride() == kept.stride() and torch.equal(back, kept)
    memory.close()
    other.close()


def test_more_than_there_is_room_for_is_refused(tmp_path: Path) -> None:
    memory = shared_memory.lend(64, on_gpu=False)
    transport.write([torch.zeros(16)], tmp_path, "fits", memory)
    with pytest.raises(transport.WireError, match="at most 64"):
        transport.write([torch.zeros(16), torch.zeros(1)], tmp_path, "fits not", memory)
    memory.close()


@settings(max_examples=60)
@given(offset=st.integers(-100, 200), count=st.integers(0, 300))
def test_a_description_cannot_reach_beyond_the_memory(
    tmp_path_factory: pytest.TempPathFactory, offset: int, count: int
) -> None:
    folder, memory = tmp_path_factory.mktemp("lent"), shared_memory.lend(256, on_gpu=False)
    tree = f'{{"kind": "tensor", "dtype": "float32", "shape": [{count}], "offset": {offset}}}'
    (folder / "value.json").write_text(tree)
    found = None
    with contextlib.suppress(transport.WireError):
        found = transport.read(folder, "value", memory=memory)
    assert (found is not None) == (offset >= 0 and offset + 4 * count <= 256 and (offset % 4 == 0 or not count))
    assert found is None or len(found) == count
    memory.close()


def verdicts(large_bytes: int, names: list[str], backend: Literal["cuda", "emulated"]) -> list[tuple[str, str]]:
    pairs = []
    for name in names:
        source = (CASES / f"{name}.py").read_text()
        problem = source.partition("# problem: ")[2].partition("\n")[0].strip()
        pairs.append((Problem.from_file(PROBLEMS / f"{problem}.py"), Kernel(source)))
    with Verifier(
        backend=backend, options=Options(large_bytes=large_bytes, seed=7, timing_s=0.1), cache=False
    ) as verifier:
        found = [verdict for _, verdict in verifier.verify_many(pairs, workers=2, ordered=True)]
    return [(verdict.outcome, verdict.stage) for verdict in found]


KINDS = ("right", "deceptive", "mutates", "returns_input", "unwritten", "constant", "output_flood", "identity")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_verdicts_do_not_depend_on_how_values_cross(backend: Literal["cuda", "emulated"]) -> None:
    chosen = [path.stem for path in sorted(CASES.glob("*.py")) if path.stem.startswith(KINDS)]
    assert len(chosen) > 10
    assert verdicts(0, chosen, backend) == verdicts(1 << 62, chosen, backend)


LARGE = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(4096, 100_000)]


def get_init_inputs():
    return []
"""


def test_who_comes_late_to_a_large_problem_spoils_nobodys_trial() -> None:
    """Both join one group before its size is known; the second comes for inputs while the first has a later trial."""
    problem = Problem(LARGE.replace("4096, 100_000", "64, 1024"), name="large")
    right = (CASES / "right_relu.py").read_text()
    slow = right.replace("def forward(self, x):", "def forward(self, x):\n        __import__('time').sleep(0.2)")
    assert slow != right
    late = [f"__import__('time').sleep({seconds})\n{right}" for seconds in (1, 2)]
    with Verifier(backend="emulated", options=Options(large_bytes=1 << 16), cache=False) as verifier:
        verifier.verify(problem, Kernel(right))  # built, so that only what sleeps takes time
        pairs = [(problem, Kernel(source)) for source in (slow, *late)]
        found = [verdict for _, verdict in verifier.verify_many(pairs, workers=4, ordered=True)]
    assert [(verdict.outcome, verdict.message) for verdict in found] == [("correct", "")] * 3


@pytest.mark.gpu
def test_gigabytes_take_seconds() -> None:
    with Verifier(backend="cuda", options=Options(timing_s=0.5, run_timeout_s=20), cache=False) as verifier:
        verdict = verifier.verify(Problem(LARGE, name="large"), Kernel((CASES / "right_relu.py").read_text()))
        assert verdict.correct and verdict.timing is not None, verdict.message
        wrong = (CASES / "right_relu.py").read_text().replace("i < n", "i < n - 1")
        verdict = verifier.verify(Problem(LARGE, name="large"), Kernel(wrong))
        assert verdict.outcome == "wrong", verdict.message


HUNGRY = """
    def forward(self, x):
        most = int(0.6 * torch.cuda.get_device_properties(0).total_memory)
        torch.empty(most, dtype=torch.uint8, device="cuda")[:1024] = 0
"""


@pytest.mark.gpu
def test_who_needs_most_of_the_memory_gets_it() -> None:
    plain = (CASES / "right_relu.py").read_text()
    head, found, tail = plain.partition("    def forward(self, x):\n")
    assert found
    problem = Problem.from_file(PROBLEMS / "relu.py")
    pairs = [(problem, Kernel(f"{head}{HUNGRY}{tail}\n# {number}\n")) for number in range(4)]
    with Verifier(backend="cuda", options=Options(timing_s=0.1), cache=False) as verifier:
        verdicts = [verdict for _, verdict in verifier.verify_many(pairs, workers=4)]
    assert [verdict.outcome for verdict in verdicts] == ["correct"] * 4, verdicts[0].message
