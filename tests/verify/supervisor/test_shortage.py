"""Memory that others hold: recognised wherever it lacks, no reason for another answer, free before others come in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import dice.verify.verifier
from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Options, Verifier
from dice.verify.execution.running import Device
from dice.verify.ipc import out_of_memory
from dice.verify.reference import workload
from dice.verify.sandbox.cancel import Cancellation, Spawner
from dice.verify.sandbox.process import Zygote
from dice.verify.supervisor import health
from dice.verify.supervisor.assignment import Assignment
from dice.verify.supervisor.job import Job
from dice.verify.supervisor.reference_pool import ReferencePool, ReferenceSettings
from dice.verify.tensors import shared_memory, transport
from tests.conftest import CASES

RELU = Problem.from_file(CASES / "problems" / "relu.py")
RIGHT = Kernel.from_file(CASES / "right_relu.py")
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 6.00 GiB.")


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (FULL, True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported later"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1"), True),
        (shared_memory.CannotLend("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of range"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR, where there is no GPU"), False),
        (None, False),
    ],
)
def test_a_lack_of_memory_is_recognised(error: BaseException | None, short: bool) -> None:
    assert out_of_memory.is_shortage(error) == short


@pytest.mark.parametrize(("free", "short"), [(2**28, True), (2**33, False)])
def test_a_vague_error_is_of_memory_where_there_is_little(
    free: int, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 2**37))
    assert out_of_memory.is_shortage(RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")) == short
    assert not out_of_memory.is_shortage(RuntimeError("CUDA error: an illegal memory access was encountered"))


class _Full(shared_memory.Memory):
    def view(self, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        raise FULL


def test_a_value_that_there_is_no_memory_for_is_not_unreadable(tmp_path: Path) -> None:
    memory = shared_memory.lend(64, on_gpu=False)
    transport.write([torch.zeros(4)], tmp_path, "value", memory)
    with pytest.raises(torch.OutOfMemoryError):
        transport.read(tmp_path, "value", memory=_Full(memory.size, memory.descriptor, memory.bytes))
    memory.close()


LASTING = pytest.mark.usefixtures("lasting_zygote")


@LASTING
def test_an_allocation_that_fails_in_cpp_is_told_of_as_itself() -> None:
    source = RIGHT.source.replace("torch::empty_like(x)", "torch::empty({1LL << 50}, x.options())")
    with Verifier(backend="emulated") as verifier:
        verdict = verifier.verify(RELU, Kernel(source))
    assert (verdict.outcome, verdict.stage) == ("out_of_memory", "run"), verdict.message


# Of inputs that are scaled up, as if they took more memory.
HUNGRY = RELU.source.replace(
    "        return",
    "        if x.abs().max() > 20:\n            raise torch.OutOfMemoryError('CUDA out of memory.')\n        return",
)


def share_memory(monkeypatch: pytest.MonkeyPatch, shares: bool = True) -> list[bool]:
    """Have jobs on the CPU share memory as they do on a GPU. Returns, of each job to come, whether it has it all."""
    alone: list[bool] = []

    class Sharing(Job):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            alone.append(self.assignment.whole)

    monkeypatch.setattr(Assignment, "shares", property(lambda job: shares and not job.whole))
    monkeypatch.setattr(dice.verify.verifier, "Job", Sharing)
    return alone


@LASTING
@pytest.mark.parametrize("shares", [False, True])
def test_what_a_reference_did_without_for_lack_of_memory_counts_only_where_nobody_else_has_it(
    shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = share_memory(monkeypatch, shares)
    with Verifier(backend="emulated", options=Options(trials=4)) as verifier:
        verdict = verifier.verify(Problem(HUNGRY), RIGHT)
    assert verdict.correct, verdict.message
    assert alone == ([False, True] if shares else [False])


@LASTING
def test_small_jobs_large_ones_and_those_that_need_all_the_memory_come_to_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = share_memory(monkeypatch)
    wide = RELU.source.replace("features = 100", "features = 700")
    problems = [Problem(HUNGRY), Problem(wide), RELU, Problem(wide.replace("700", "900"))]
    pairs = [(problems[number % 4], Kernel(f"{RIGHT.source}\n# {number}\n")) for number in range(12)]
    with Verifier(backend="emulated", options=Options(trials=2, large_bytes=20_000), max_concurrent=3) as verifier:
        for device in verifier.devices.devices:
            device.gpu_lock.memory = 2_000_000  # room for one of the larger problems, or for some of the others
        outcomes = [verdict.outcome for _, verdict in verifier.verify_many(pairs, workers=9)]
    assert outcomes == ["correct"] * 12
    assert alone.count(True) == 3


def test_a_group_is_gone_when_its_last_job_has_given_it_back(zygotes: Callable[[], Zygote]) -> None:
    zygote = zygotes()
    oracles = ReferencePool("emulated", "", 1)
    settings = ReferenceSettings.of(RELU, Options(), True, 1, lends=True, shares=True)
    try:
        for _ in range(5):
            with oracles.open(Spawner(zygote, Cancellation(single=True)), settings, 4096, ()) as session:
                session.open()
                session.construct()
                assert any(session.inputs.iterdir())
            assert not session.inputs.exists()
    finally:
        oracles.close()


@pytest.mark.parametrize(
    ("error", "found"), [(None, "well"), (FULL, "crowded"), (RuntimeError("CUDA error: unknown error"), "ill")]
)
def test_a_full_gpu_is_not_an_ill_one(error: RuntimeError | None, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ones(*_: object, **__: object) -> torch.Tensor:
        if error is not None:
            raise error
        return torch.zeros(1) + 1

    monkeypatch.setattr(torch, "ones", ones)
    assert health._find_out() == found


def problem(forward: str, init: str = "pass") -> ModuleType:
    module = ModuleType("problem")
    source = f"""
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        {forward}
def get_inputs():
    return [torch.rand(1000, 10)]
def get_init_inputs():
    return []
"""
    exec(source, module.__dict__)
    return module


@pytest.mark.parametrize(
    ("forward", "init", "largest"),
    [
        ("return torch.relu(x)", "pass", 40_000),
        ("return x @ x.t()", "pass", 4_000_000),
        ("return (x @ x.t()).sum()", "pass", 4_000_000),
        ("return self.layer(x)", "self.layer = torch.nn.Linear(10, 5000, bias=False)", 20_000_000),
        ("return x[:2, :2] @ self.weight[:2]", "self.weight = torch.nn.Parameter(torch.rand(2000, 100))", 800_000),
        ("return x if float(x.sum()) > 0 else -x", "pass", 40_000),  # needs values
        ("raise SystemExit", "pass", 40_000),
        ("for _ in range(10**9): x = x + 1", "pass", 40_000),
        ("__import__('time').sleep(100)", "pass", 40_000),
    ],
)
def test_the_largest_value_of_a_forward_is_known_without_running_it(forward: str, init: str, largest: int) -> None:
    found = workload.sizes(problem(forward, init), Device("emulated"))
    assert (found.inputs, max(found.inputs, found.parameters, found.value)) == (40_000, largest)
    assert found.outputs > 0
