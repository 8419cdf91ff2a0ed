"""Modules run without data, as programs: what a program computes is what the module does, and what is none."""

from __future__ import annotations

import json
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dice.verify.candidate import capture
from dice.verify.candidate.capture import NotCaptured
from dice.verify.candidate.program_model import NotThere, ProgramModel, _fixed, match_names
from dice.verify.execution import fake_cuda
from dice.verify.execution.program_code import Departed
from dice.verify.execution.running import Device
from dice.verify.ipc import program
from dice.verify.tensors import transport

Forward = Callable[..., Any]


def captured(model: nn.Module, *inputs: Any) -> ProgramModel:
    """The module's program, once through JSON, as a model that has the module's parameters."""
    values = {name: value.clone() for name, value in model.state_dict().items()}
    known = {name: [str(value.dtype)[6:], list(value.shape)] for name, value in values.items()}
    outline = capture.outline(json.loads(json.dumps(transport.signature(list(inputs)))))
    with torch.no_grad():
        sent, literals = capture.capture(model, outline, known)
    made = ProgramModel(program.read(json.loads(json.dumps(sent)), 0), [], literals, Device("emulated"))
    made.load_state_dict(values, strict=False)
    return made


def check(make: Callable[[], nn.Module], *inputs: Any) -> ProgramModel:
    torch.manual_seed(3)
    model, twin = make().eval(), make().eval()
    twin.load_state_dict(model.state_dict())
    made = captured(twin, *inputs)
    for _ in range(2):
        mine = transport.map_tensors(torch.clone, list(inputs))
        theirs = transport.map_tensors(torch.clone, list(inputs))
        with torch.no_grad(), fake_cuda.active(True):
            expected, actual = model(*mine), made(*theirs)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(theirs, mine)  # what it did to its inputs
        inputs = tuple(transport.map_tensors(lambda x: x + 1 if x.is_floating_point() else x, list(inputs)))
    return made


class Of(nn.Module):
    """A module of one function, which gets the module first."""

    def __init__(self, forward: Forward, **tensors: torch.Tensor):
        super().__init__()
        self.run = forward
        for name, tensor in tensors.items():
            setattr(self, name, nn.Parameter(tensor) if tensor.is_floating_point() else tensor)

    def forward(self, *inputs: Any) -> Any:
        return self.run(self, *inputs)


class Table(nn.Module):
    """Buffers that are kept, that are not, and a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.arange(5.0))
        self.register_buffer("mask", torch.tensor([1.0, 0, 1, 0, 1]), persistent=False)
        self.table = torch.linspace(0, 1, 5)

    def forward(self, x: torch.Tensor) -> Any:
        y = (x + self.shift) * self.mask + self.table.to("cuda")
        return {"sum": y.sum(-1), "parts": (y[:, 1:], [y.t(), 2.5, None])}


class Trains(nn.Module):
    """A module in training mode, whatever it is told."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module.train()(x), self.module.running_mean


class Differentiates(nn.Module):
    """Gives what a function does, and its gradients, as a module that is trained in its own forward."""

    def __init__(self, function: Forward):
        super().__init__()
        self.function = function
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self.function(self.norm.train(), x)
            return y.detach(), torch.autograd.grad(y, [x], torch.ones_like(y) + y.detach())


X = torch.rand(4, 5)
IMAGE = torch.rand(2, 3, 8, 8)

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "layers": (lambda: nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 2)), (X,)),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        (IMAGE,),
    ),
    "recurrence": (lambda: nn.LSTM(5, 6, batch_first=True), (torch.rand(2, 3, 5),)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.rand(2, 3, 8),)),
    "buffers and literals": (Table, (X,)),
    "recurrence, gated": (lambda: nn.GRU(5, 6, 2, bidirectional=True), (torch.rand(3, 2, 5),)),
    "gradients of attention": (
        lambda: Differentiates(lambda norm, x: F.scaled_dot_product_attention(x, x * 2, x.sin(), is_causal=True)),
        (torch.rand(2, 3, 6, 4),),
    ),
    "gradients of a normalisation": (lambda: Differentiates(lambda norm, x: norm(x).square()), (X,)),
    "gradients of both, called as PyTorch's own": (
        lambda: Differentiates(
            lambda norm, x: torch.batch_norm(
                F.scaled_dot_product_attention(x, x, x)[:, 0],
                norm.weight,
                norm.bias,
                None,
                None,
                True,
                0.1,
                1e-5,
                False,
            )
        ),
        (torch.rand(4, 3, 5),),
    ),
    "normalisation that keeps statistics": (lambda: Trains(nn.BatchNorm1d(5)), (X,)),
    "views": (lambda: Of(lambda self, x: x.t()[1:].contiguous().view(-1).flip(0)[::2]), (X,)),
    "writes to its input": (lambda: Of(lambda self, x: x.mul_(2)), (X,)),
    "writes to its parameter": (lambda: Of(lambda self, x: self.w.add_(1) + x, w=torch.rand(5)), (X,)),
    "numbers in tensors": (lambda: Of(lambda self, x: x * torch.tensor([1.0, 2, 3, 4, 5], device="cuda")), (X,)),
    "new_tensor": (lambda: Of(lambda self, x: x + x.new_tensor([1, 2, 3, 4, 5])), (X,)),
    "factories": (
        lambda: Of(lambda self, x: x + torch.arange(5, device=x.device) + torch.full((5,), float("inf")).cuda()),
        (X,),
    ),
    "types and formats": (
        lambda: Of(lambda self, x: x.to(memory_format=torch.channels_last).double().half().float()),
        (IMAGE,),
    ),
    "a number among its inputs": (lambda: Of(lambda self, x, n, more: x * n + more["by"]), (X, 3, {"by": X})),
    "several shapes": (lambda: Of(lambda self, x: [part * k for k, part in enumerate(x.split(2))]), (X,)),
    "asks what it has": (
        lambda: Of(lambda self, x: x * 2 if x.is_cuda and x.device.type == "cuda" and x.get_device() == 0 else x),
        (X,),
    ),
    "data of a parameter": (lambda: Of(lambda self, x: x @ self.w.data.t(), w=torch.rand(3, 5)), (X,)),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_program_computes_what_its_module_does(name: str) -> None:
    make, inputs = MODULES[name]
    check(make, *inputs)


def test_a_program_has_the_modules_parameters_and_takes_others() -> None:
    made = check(lambda: nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), X)
    assert {"0.weight", "0.bias", "1.running_mean", "1.num_batches_tracked"} <= set(made.state_dict())
    assert isinstance(made.get_parameter("0.weight"), nn.Parameter)
    before = made(X)
    with torch.no_grad():
        made.get_parameter("0.bias").add_(1)
    assert not torch.equal(made(X), before)


@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("convolutions", ["aten::batch_norm"]),
        ("recurrence", ["aten::lstm.input"]),
        ("attention", ["aten::scaled_dot_product_attention"]),
    ],
)
def test_what_a_library_computes_in_one_call_is_one_step(name: str, operators: list[str]) -> None:
    """On a GPU such operators are far faster than what they could be taken apart to."""
    make, inputs = MODULES[name]
    outline = capture.outline(transport.signature(list(inputs)))
    with torch.no_grad():
        sent, _ = capture.capture(make(), outline, {})
    assert set(operators) <= {step[0] for step in sent["steps"]}, [step[0] for step in sent["steps"]]
    assert torch.batch_norm is torch._C._VariableFunctions.batch_norm  # all is as before


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


class Keeps(nn.Module):
    """Gives what it gave before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "kept"):
            self.kept = x * 2
        return self.kept


def in_a_thread(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    made: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: made.append(x * 2))
    thread.start()
    thread.join()
    return made[0]


def caught(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    try:
        return x * 2 if x.sum().item() > 0 else x
    except Exception:
        return x


def under_autocast(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    torch.set_autocast_enabled("cuda", True)  # as `torch.autocast` does where there is a GPU
    try:
        return x @ x.t()
    finally:
        torch.set_autocast_enabled("cuda", False)


def other_memory(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x.data = x * 2
    return x


NO_PROGRAMS: dict[str, tuple[Forward | nn.Module, str]] = {
    "a number": (lambda self, x: x * x.sum().item(), "reads values"),
    "a truth": (lambda self, x: x if x.sum() > 0 else -x, "reads values"),
    "an array": (lambda self, x: torch.from_numpy(x.cpu().numpy()), "reads values"),
    "a list": (lambda self, x: torch.tensor(x.tolist()), "reads values"),
    "to the host": (lambda self, x: x.to("cpu"), "reads values"),
    "a number whose refusal it catches": (caught, "reads values"),
    "a shape that depends on values": (lambda self, x: x[x > 0.5], "depends on values"),
    "an address": (lambda self, x: x * (x.data_ptr() + 1), "address"),
    "autocast": (under_autocast, "autocast"),
    "other memory": (other_memory, "other memory"),
    "counts its calls": (Counts(), "second time"),
    "keeps what it made": (Keeps(), "nothing was recorded"),
    "random numbers of Python's": (lambda self, x: x * random.random(), "random numbers"),
    "random numbers on the host": (lambda self, x: x * torch.rand(5).cuda(), "random numbers"),
    "a thread": (in_a_thread, "nothing was recorded"),
}


@pytest.mark.parametrize("name", NO_PROGRAMS)
def test_what_is_no_program_says_why(name: str) -> None:
    forward, reason = NO_PROGRAMS[name]
    model = forward if isinstance(forward, nn.Module) else Of(forward)
    with pytest.raises(NotCaptured, match=reason):
        captured(model, X)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (["aten::from_file", 0, "", ["/etc/passwd"], {}, {"value": 0}, 0], NotThere),
        (["aten::no_such_operator", 0, "", [{"input": 0}], {}, {"value": 0}, 0], NotThere),
        (["aten::relu", 0, "", [{"dtype": "load"}], {}, {"value": 0}, 0], NotThere),
        (["", 0, "missing", [{"input": 0}], {}, {"value": 0}, 0], NotThere),
        (["aten::size", 0, "", [{"input": 0}], {}, [4, 6], 0], Departed),
        (["aten::relu", 0, "", [{"input": 0}], {}, [{"value": 0}, {"value": 1}], 0], Departed),
    ],
)
def test_a_program_that_nobody_captured(step: list[Any], error: type[Exception]) -> None:
    raw = {"inputs": 1, "literals": 0, "state": {}, "steps": [step], "output": {"input": 0}}
    with pytest.raises(error):
        ProgramModel(program.read(raw, 1), [None], [], Device("emulated"))(X)


def test_python_waits_for_the_gpu_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.cuda.synchronize()
        return y * 2

    waits: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", fake_cuda._synchronize)
    sent, _ = capture.capture(Of(forward), capture.outline(transport.signature([X])), {})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append("once"))
    made = ProgramModel(program.read(sent, 0), [], [], Device("emulated"))
    assert torch.equal(made(X), (X + 1) * 2) and waits == ["once"]
    with pytest.raises(program.NoProgram, match="waits"):
        program.read(sent | {"steps": [[program.WAIT, 0, "", [1], {}, None, 0]]}, 0)


@pytest.mark.parametrize("name", ["forward", "a..b", "", "_modules", "_state", "_run", "passing"])
def test_a_parameter_that_no_model_can_have(name: str) -> None:
    raw = {"inputs": 0, "literals": 0, "state": {name: ["float32", [1], True, -1]}, "steps": [], "output": None}
    with pytest.raises(NotThere, match="parameter"):
        ProgramModel(program.read(raw, 0), [], [], Device("emulated"))


def test_values_are_let_go_after_their_last_use() -> None:
    """A chain of operators holds no more than it has to."""

    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(10):
                x = F.relu(x + 1)
            return x

    class Alive(TorchDispatchMode):
        results: list[weakref.ref[torch.Tensor]] = []
        most = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            self.results.append(weakref.ref(result))
            self.most = max(self.most, sum(one() is not None for one in self.results))
            return result

    made = check(Chain, X)
    with torch.no_grad(), Alive() as alive:
        made(X)
    assert len(alive.results) == 20 and alive.most == 2  # what a step takes and what it gives


def test_what_a_stranger_wrote_is_no_code() -> None:
    """Texts and names of a program are constants of the function that is made of it."""
    text = '"""\'); raise SystemExit #\n\\ \udcff'
    step = ["aten::relu", 0, "", [{"input": 0}], {text: 1}, {"value": 0}, 3]
    raw = {"inputs": 1, "literals": 0, "state": {}, "steps": [step], "output": [{"value": 0}, {"dict": [[text, text]]}]}
    with pytest.raises(RuntimeError, match="argument"):
        ProgramModel(program.read(raw, 0), [None], [], Device("emulated"))(X)
    step[4] = {}
    output = ProgramModel(program.read(raw, 0), [None], [], Device("emulated"))(X)
    assert torch.equal(output[0], F.relu(X)) and output[1] == {text: text}


def test_a_step_that_fails_is_told_by_its_line() -> None:
    steps = [["aten::relu", 0, "", [{"input": 0}], {}, {"value": number}, 10 + number] for number in range(3)]
    steps[1] = ["aten::view", 0, "", [{"value": 0}, [5, 5]], {}, {"value": 1}, 11]
    raw = {"inputs": 1, "literals": 0, "state": {}, "steps": steps, "output": {"value": 2}}
    with pytest.raises(RuntimeError, match="view|shape") as failed:
        ProgramModel(program.read(raw, 0), [None], [], Device("emulated"))(X)
    assert failed.value.lines[0] == "line 11"  # type: ignore[attr-defined]


FIXED = {  # a forward, and which tensors of its last step follow from nothing
    "table": ("torch.add(x, torch.arange(6.0, device='cuda').view(2, 3))", {1}),
    "of the input": ("torch.add(x, torch.zeros_like(x) + x)", set()),
    "like the input": ("torch.add(x, torch.ones_like(x))", set()),
    "of a table that was used": ("(x * TABLE) - TABLE", {1}),
    "written to": ("torch.add(x, TABLE.copy_(x))", set()),
    "written to by a view": ("[TABLE[:1].copy_(x[:1]), torch.add(x, TABLE)][1]", set()),
    "written to by what gives nothing": ("[torch._foreach_add_([TABLE], [x]), torch.add(x, TABLE)][1]", set()),
    "kept": ("torch.add(x, self.table)", {1}),
    "a literal": ("torch.add(x, torch.ones(3).cuda())", {1}),
}


@pytest.mark.parametrize("name", FIXED)
def test_what_follows_from_nothing_is_known(name: str) -> None:
    forward, wanted = FIXED[name]
    lines = ("def forward(self, x):", " TABLE = torch.arange(6.0, device='cuda').view(2, 3)", f" return {forward}")
    space: dict[str, Any] = {"torch": torch}
    exec("\n".join(lines), space)
    model = type("Tabled", (nn.Module,), {"forward": space["forward"]})()
    model.register_buffer("table", torch.rand(3))
    with torch.no_grad():
        sent, _ = capture.capture(model, [torch.empty(2, 3, device="meta")], {})
    assert set(_fixed(program.read(json.loads(json.dumps(sent)), 0))[-1]) == wanted


def test_parameters_are_matched_by_values_in_whatever_shape() -> None:
    """One number everywhere matches by name alone, and no parameter takes the name of another one of the file's."""
    torch.manual_seed(5)
    rows, ones = torch.randn(6), torch.ones(6)
    reference = {"rows": rows.view(6, 1, 1), "ones": ones.view(6, 1), "kept": torch.randn(4)}

    def matched(**own: torch.Tensor) -> dict[str, str]:
        state = {
            name: program.State("float32", tuple(value.shape), True, place)
            for place, (name, value) in enumerate(own.items())
        }
        return match_names(program.Program(0, 0, state, (), None), list(own.values()), reference)[0]

    assert matched(rows=rows, ones=ones) == {"rows": "rows", "ones": "ones"}
    assert matched(other=rows, more=ones) == {"other": "rows"}
    assert matched(other=rows * 1.00003) == {"other": "rows"}
    assert matched(other=rows * 1.001) == {}
    assert matched(rows=rows.flip(0), other=rows) == {}
