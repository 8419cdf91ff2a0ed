"""What a verification of a large problem takes at its peak, both sides together: no more than it asks for."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from host_stopwatch import HostStopwatch

from dice.verify.execution import dispatch, running, stopwatch
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.execution.running import Device
from dice.verify.ipc import messages as m
from dice.verify.ipc import timing_plan
from dice.verify.reference import scale, trials, workload
from dice.verify.reference.group import Group
from dice.verify.supervisor import timing
from dice.verify.tensors import near, transport, trees

MB = 1 << 20
SOURCE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return {forward}
def get_inputs():
    return [torch.rand(64, 256, 64)]
def get_init_inputs():
    return []
"""
INPUT = 4 * MB
SLACK = trials.OUTPUT_SLACK_BYTES + MB


class Allocations(OperatorMode):
    """Bytes of all tensors' storages that are alive, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in transport.tensors(result):
            self.see(tensor)
        return result

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if tensor.device.type != "meta" and key not in self.alive:
            self.alive[key] = storage.nbytes()
            weakref.finalize(storage, self.alive.pop, key, None)
            self.most = max(self.most, sum(self.alive.values()))


@pytest.fixture
def heavy(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> bool:
    """Sizes of the test's problems are what gigabytes are on a GPU; or a little less, where float64 is asked for."""
    monkeypatch.setattr(workload, "HEAVY_ELEMENTS", 1 << 18 if request.param else 1 << 24)
    monkeypatch.setattr(trials, "SHAREABLE_BYTES", MB)
    monkeypatch.setattr(near, "STRETCH", 1 << 14)
    monkeypatch.setattr(running, "STRETCH", 1 << 14)
    monkeypatch.setattr(stopwatch, "CudaStopwatch", HostStopwatch)
    monkeypatch.setattr(stopwatch, "ROTATE_BYTES", INPUT if request.param else 4 * INPUT)
    monkeypatch.setattr(stopwatch, "LARGE_BYTES", MB // 8)
    monkeypatch.setattr(timing_plan, "KEEP_BYTES", INPUT if request.param else 4 * INPUT)
    return bool(request.param)


T = TypeVar("T")


def group_of(forward: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    monkeypatch.chdir(folder)
    (folder / "inputs").mkdir()
    spec = m.OpenGroup(
        inputs=str(folder / "inputs"),
        secret=5,
        seed=1,
        fresh_seed=2,
        source=SOURCE.format(forward=forward),
        protocol="dice",
        scale=None,
        trials=5,
        vary=True,
        limit_s=1e9,
        threads=1,
        large_bytes=MB,
        shares=False,
    )
    monkeypatch.setattr(scale, "fit", lambda source, *_: (source, {}))
    return Group(spec, 0, Device("emulated"))


def ask(group: Group, command: Any, answer: type[T], outputs: Path | None = None) -> T:
    """The group's answer; it reads what the candidate wrote from the folder of outputs."""
    said, _ = group.answer(command, outputs)  # type: ignore[arg-type]
    assert isinstance(said, answer)
    return said


def run_trials(group: Group, forward: Any, outputs: Path) -> None:
    """A verification's trials; `forward` stands for the candidate, which does what `candidate.py` does."""
    ask(group, m.ConstructReference(), m.ReferenceConstructed)
    for step in ask(group, m.PlanTrials(), m.Planned).plan:
        if not ask(group, m.DrawTrial(step.name, step, False), m.Drawn).family:
            continue
        lent = group.trials._lent[step.name]
        folder = Path(group.spec.inputs)
        inputs = transport.read(folder, step.name, memory=lent.inputs)
        output = forward(*inputs)
        transport.write(output, outputs, "output", lent.outputs)
        assert trees.changed(inputs, transport.show(folder, step.name, lent.inputs)) == ()
        del inputs, output
        judged = ask(group, m.JudgeOutput(step.name, "output"), m.Judged, outputs)
        assert judged.equal, judged.message


def time_it(group: Group, forward: Any, outputs: Path) -> None:
    ask(group, m.DrawTrial("timing", m.Step("timing", "given"), False), m.Drawn)
    lent = group.trials._lent["timing"]
    started = ask(group, m.StartTiming("timing", 0.0), m.TimingStarted)
    pristine = transport.show(Path(group.spec.inputs), "timing", lent.inputs)
    bench = stopwatch.Bench(forward, pristine, started.salted, HostStopwatch())
    bench.warm_up(0.0)
    calls = timing._round(started.call_ms, started).calls
    for seed in range(2):
        ask(group, m.TimeRound(seed, calls, timing_plan.IDLE_CALLS), m.RoundTimed)
        checksums = bench.round(seed, calls).checksums
        transport.write(bench.kept[0], outputs, "output", lent.outputs)
        judged = ask(group, m.JudgeTimed("timing", "output", seed, 0, checksums[0]), m.Judged, outputs)
        assert judged.equal, judged.message


ALONE = pytest.mark.slow  # others show the same


@pytest.mark.parametrize("heavy", [True, False], indirect=True, ids=["heavy", "in float64 too"])
@pytest.mark.parametrize(
    "forward",
    [
        "torch.relu(x)",
        pytest.param("x * torch.sigmoid(x)", marks=ALONE),
        pytest.param("0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3)))", marks=ALONE),
        pytest.param("x / torch.sqrt((x * x).mean(1, keepdim=True))", marks=ALONE),
        pytest.param("torch.softmax(x, 1)", marks=ALONE),
        "x.sum(1)",
        "torch.nn.functional.avg_pool1d(x, 2)",
        pytest.param("x @ x.transpose(1, 2)", marks=ALONE),
        pytest.param("torch.cumsum(x, 1)", marks=ALONE),
    ],
)
def test_both_sides_together_take_no_more_than_was_asked_for(
    forward: str, heavy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatch.spare_compiler()
    torch.empty((2, 2), device="meta").sum()  # imports what it needs, which is no problem's
    counted = Allocations()
    with counted:
        group = group_of(forward, tmp_path, monkeypatch)
        sizes = group.reference.subject.sizes
        assert sizes.inputs == INPUT and sizes.is_heavy == heavy
        (tmp_path / "outputs").mkdir()

        def candidate(x: torch.Tensor) -> torch.Tensor:
            return group.reference.subject.module.Model()(x)  # type: ignore[no-any-return]

        run_trials(group, candidate, tmp_path / "outputs")
        checked = counted.most
        counted.most = 0
        time_it(group, candidate, tmp_path / "outputs")
        timed = counted.most
    assert max(checked, timed) <= sizes.needed + SLACK


CUT = "(x.view(torch.int32) & ~0x1FFF).view(torch.float32)"  # what TF32 leaves of a float


@pytest.mark.parametrize("heavy", [True, False], indirect=True, ids=["heavy", "in float64 too"])
def test_an_output_that_is_timed_may_be_as_inexact_as_the_references(
    heavy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(Device, "allow_tf32", lambda _, on: setattr(torch.backends.cudnn, "allow_tf32", on))
    rounds = "torch.backends.cudnn.allow_tf32 and x.dtype == torch.float32"
    group = group_of(f"(lambda y: y @ y.transpose(1, 2))({CUT} if {rounds} else x)", tmp_path, monkeypatch)
    ask(group, m.ConstructReference(), m.ReferenceConstructed)
    ask(group, m.PlanTrials(), m.Planned)
    outputs = tmp_path / "outputs"
    outputs.mkdir()

    def inexact(x: torch.Tensor) -> torch.Tensor:
        x = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
        return x @ x.transpose(1, 2)

    time_it(group, inexact, outputs)
    time_it(group, lambda x: x @ x.transpose(1, 2), outputs)
    with pytest.raises(AssertionError, match="less exact than the reference"):
        time_it(group, lambda x: 1.004 * (x @ x.transpose(1, 2)), outputs)
