"""A kernel file's `forward`, run without data, as a program (`ipc/program.py`).

Tensors on the GPU are PyTorch's meta tensors here: they have a shape, a type and strides, and no values. Operators on
them, and calls of functions that the file's libraries bind, are written down and give meta tensors again; the host code
of the libraries runs, with null pointers, and launches nothing. Tensors on the host are what they always are: what a
file makes there without looking at its inputs are constants, and cross as *literals* when they meet one on the GPU.

Nothing that a file does here can pass for a computation: what is verified, timed and scored is the program, which
another process executes. So all this is a convenience, and no guard: a file that spoils it has no program.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from dice.verify.build.sources import Built
from dice.verify.candidate import binding
from dice.verify.candidate.counting import Counters, later
from dice.verify.execution.dispatch import OperatorMode
from dice.verify.execution.fake_cuda import DEVICE, Streams, Work, goes_to_host, is_host
from dice.verify.ipc.program import WAIT
from dice.verify.tensors import transport

Captured = tuple[dict[str, Any], list[torch.Tensor]]  # a program in JSON, and its literals
META = torch.device("meta")
_CUDA_IS_INITIALIZED: Callable[[], bool] = torch.cuda.is_initialized  # PyTorch's own
_READS = "aten::_local_scalar_dense"


class NotCaptured(Exception):
    """What `forward` does is no program over its inputs; the message says why, as the end of a sentence."""


class Recorder(OperatorMode):
    """Writes down what happens to meta tensors in a block. `reason`: why the result is no program, or ""."""

    def __init__(self, state: dict[str, torch.Tensor], inputs: list[torch.Tensor]):
        super().__init__()
        self.steps: list[list[Any]] = []
        self.literals: list[torch.Tensor] = []
        self.reason = ""
        self._kept: list[torch.Tensor] = []  # so that no number of theirs is given away again
        self._terms: dict[int, dict[str, Any]] = {}
        self._values = 0
        self._in_call = False
        self._literal_of: dict[int, int] = {}
        for number, tensor in enumerate(inputs):
            self._name(tensor, {"input": number})
        for name, tensor in state.items():
            self._name(tensor, {"state": name})

    def _name(self, tensor: torch.Tensor, term: dict[str, Any]) -> dict[str, Any]:
        self._kept.append(tensor)
        return self._terms.setdefault(id(tensor), term)

    def _write_down(self, step: list[Any]) -> None:
        if _on_other_stream():
            raise self.fail("forward works on a stream of its own")
        self.steps.append(step)

    def fail(self, reason: str) -> NotCaptured:
        self.reason = self.reason or reason
        return NotCaptured(reason)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = {key: META if _is_cuda(value) else value for key, value in (kwargs or {}).items()}
        if options.get("device") == META:
            options.pop("pin_memory", None)
        given = transport.tensors([list(args), list(options.values())])
        if not any(tensor.is_meta for tensor in given) and options.get("device") != META:
            return func(*args, **options)
        name = func.name()
        if name == _READS or (name == "aten::_to_copy" and is_host(options.get("device"))):
            raise self.fail("forward reads values of tensors")
        try:
            result = func(*_on_meta(args), **_on_meta(options))
        except NotImplementedError:
            raise self.fail(f"what {name} gives depends on values") from None
        if self._in_call:
            return result
        if not name.startswith("aten::"):
            if not name.startswith("prim::"):
                raise self.fail(f"{name} is no operator of PyTorch's")
            return result
        arguments, keywords = self.terms(args), {key: self.term(value) for key, value in options.items()}
        self._write_down([name, 0, "", arguments, keywords, self._gives(result), 0])
        return result

    def call(self, library: int, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call of a function that a library binds."""
        if self._in_call:
            return function(*args, **kwargs)
        arguments, keywords = self.terms(args), {key: self.term(value) for key, value in kwargs.items()}
        result = self._unseen(function, args, kwargs)
        if binding.host_elements():
            raise self.fail("host code copies values of tensors to the host")
        if any(not tensor.is_meta for tensor in transport.tensors(result)):
            raise self.fail(f"{name} returns a tensor that is not on the GPU")
        line = sys._getframe(2).f_lineno
        self._write_down(["", library, name, arguments, keywords, self._gives(result), line])
        return result

    def whole(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An operator that PyTorch would take apart, as it does not where there is data."""
        if self._in_call or not args or not args[0].is_meta:
            return function(*args, **kwargs)
        arguments, keywords = self.terms(args), {key: self.term(value) for key, value in kwargs.items()}
        result = self._unseen(function, args, kwargs)
        self._write_down([name, 0, "", arguments, keywords, self._gives(result), 0])
        return result

    def wait(self) -> None:
        """Python waits for the GPU."""
        if not self._in_call:
            self._write_down([WAIT, 0, "", [], {}, None, 0])

    def _unseen(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a function gives, whose own operators are not written down."""
        self._in_call = True
        try:
            return function(*args, **kwargs)
        finally:
            self._in_call = False

    def terms(self, values: Any) -> list[Any]:
        return [self.term(value) for value in values]

    def term(self, value: Any) -> Any:
        """A value as a term. Raises `NotCaptured`."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, tuple):
            return {"tuple": self.terms(value)}
        if isinstance(value, list):
            return self.terms(value)
        value = transport.opened(value)
        if isinstance(value, dict):
            return {"dict": [[str(key), self.term(item)] for key, item in value.items()]}
        if isinstance(value, torch.device):
            return {"device": "cpu" if value.type == "cpu" else "cuda"}
        for key, kind in (
            ("dtype", torch.dtype),
            ("layout", torch.layout),
            ("memory_format", torch.memory_format),
        ):
            if isinstance(value, kind):
                return {key: str(value).removeprefix("torch.")}
        raise self.fail(f"an argument is a {type(value).__name__}")

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        known = self._terms.get(id(tensor))
        if known is not None:
            return known
        if tensor.is_meta:
            raise self.fail("a tensor comes from where nothing was recorded, such as another thread")
        self._kept.append(tensor)
        number = self._literal_of.setdefault(id(tensor), len(self.literals))
        if number == len(self.literals):
            self.literals.append(tensor.detach())
        return {"literal": number}

    def _gives(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            term = self._name(value, {"value": self._values})
            self._values += term == {"value": self._values}
            return term
        if isinstance(value, tuple):
            return {"tuple": [self._gives(item) for item in value]}
        if isinstance(value, list):
            return [self._gives(item) for item in value]
        return self.term(value)


class DataFree(TorchFunctionMode):
    """What is asked for on CUDA is a meta tensor, and says that it is on CUDA; to read from one is refused."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.device:
            return func(*args, **kwargs)
        if torch.is_autocast_enabled("cuda"):  # which leaves tensors without data as they are
            raise self._recorder.fail("forward works under autocast")
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is not None and first.is_meta:
            if func is torch.Tensor.item or goes_to_host(func, args, kwargs):
                raise self._recorder.fail("forward reads values of tensors")
            if func is torch.Tensor.data_ptr:
                raise self._recorder.fail("forward takes a tensor's address")
            if func == _SET_DATA:
                raise self._recorder.fail("forward gives a tensor other memory")
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if func in _OF_DATA and (_is_cuda(kwargs.get("device")) or (first is not None and first.is_meta)):
            return _from_data(func, first, *args, **kwargs)  # which as a meta tensor would lose its values
        if func in _OPERATORS:
            return _as_one(self._recorder, _OPERATORS[func], func, args, kwargs)
        args = tuple(META if _is_cuda(value) else value for value in args)
        kwargs = {key: META if key == "device" and _is_cuda(value) else value for key, value in kwargs.items()}
        return func(*args, **kwargs)


def why_not(error: Exception) -> str:
    """What to say of an exception that a file let out as it ran without data, as the end of a sentence."""
    return str(error) if isinstance(error, NotCaptured) else f"without data, it raises {type(error).__name__}: {error}"


def capture(model: Any, outline: Any, known: dict[str, Any]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """A model's `forward` on inputs of this outline (meta tensors), as a program in JSON and its literals. `known`:
    type and shape of the parameters that the reference has, by name.

    The second of two runs has to give what the first one gave; so does a third, a day later and with what counts the
    calls moved on. Raises `NotCaptured`, and what the file raises.
    """
    state, own = _move_state(model, known)
    told: dict[str, list[Any]] = {}
    for name, (tensor, parameter) in state.items():
        told[name] = [transport.type_name(tensor), list(tensor.shape), parameter, -1]

    def once() -> Captured:
        random_state, cpu_state = random.getstate(), torch.get_rng_state()
        inputs = transport.map_tensors(torch.clone, outline)
        recorder = Recorder({name: tensor for name, (tensor, _) in state.items()}, transport.tensors(inputs))
        for name, value in own.items():
            told[name][3] = recorder._tensor(value)["literal"]
        with (
            binding.without_data(),
            Recording(recorder),
            _whole_operators(recorder),
            recorder,
            DataFree(recorder),
        ):
            output = model(*inputs)
        if recorder.reason:  # which the file may have caught
            raise NotCaptured(recorder.reason)
        if random.getstate() != random_state or not torch.equal(torch.get_rng_state(), cpu_state):
            raise NotCaptured("forward draws random numbers on the host")
        count = len(transport.tensors(inputs))
        program = {"inputs": count, "literals": len(recorder.literals), "state": told, "steps": recorder.steps}
        return program | {"output": recorder.term(output)}, recorder.literals

    first = once()
    counters = Counters(model)
    second = once()
    if not _same(first, second):
        raise NotCaptured("forward does something else the second time")
    counters.move_on()
    with later():
        third = _later(once, second)
    counters.move_back()
    if not _same(second, third):
        raise NotCaptured("forward does something else once it was called often, or later")
    return second


def _later(once: Callable[[], Captured], before: Captured) -> Captured:
    """What comes of a call then; what came before, where it fails, by which nobody gains anything."""
    try:
        return once()
    except NotCaptured:
        raise
    except Exception:
        return before


def _same(one: Captured, other: Captured) -> bool:
    return one[0] == other[0] and all(map(_equal, one[1], other[1]))


class Recording:
    """For the length of a block, a recorder is told of calls of bound functions, and of each wait for the GPU."""

    current: Recorder | None = None

    def __init__(self, recorder: Recorder):
        self._recorder, self._before = recorder, Work.waited

    def __enter__(self) -> None:
        Recording.current, Work.waited = self._recorder, self._recorder.wait

    def __exit__(self, *_: object) -> None:
        Recording.current, Work.waited = None, self._before


# What PyTorch computes by one call of a library on a GPU, and takes apart where there is no data. Taken apart it is,
# too, where gradients are wanted of it.
_WHOLE: tuple[tuple[Any, str, str], ...] = (
    (F, "scaled_dot_product_attention", "aten::scaled_dot_product_attention"),
    (torch, "batch_norm", "aten::batch_norm"),
    (torch, "instance_norm", "aten::instance_norm"),
    *((torch._VF, name, f"aten::{name}.input") for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
)
_OPERATORS = {getattr(owner, name): operator for owner, name, operator in _WHOLE}


def _as_one(recorder: Recorder, operator: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    is_packed = operator.endswith(".input") and not isinstance(args[2], list)  # another operator
    given = transport.tensors([*args, *kwargs.values()])
    # Its backward takes what it has kept, which is in the program where its parts are.
    wants_gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    apart = is_packed or wants_gradients
    return function(*args, **kwargs) if apart else recorder.whole(operator, function, args, kwargs)


@contextlib.contextmanager
def _whole_operators(recorder: Recorder) -> Iterator[None]:
    """In the block, PyTorch's own Python finds these operators written down as one. What calls them within a function
    of PyTorch's, no function mode sees."""
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in _WHOLE]

    def replacement(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: _as_one(recorder, _OPERATORS[function], function, args, kwargs)

    for owner, name, function in kept:
        setattr(owner, name, replacement(function))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def watch_calls(module: types.ModuleType, built: Built) -> types.ModuleType:
    """A built module whose functions are recorded while there is a recorder."""
    library = int(built.path.parent.name) if built.path.parent.name.isdigit() else -1
    for name, function in list(vars(module).items()):
        if callable(function) and not name.startswith("__"):
            setattr(module, name, _watched(function, library if built.headers != "full" else -1, name))
    return module


def _watched(function: Callable[..., Any], library: int, name: str) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        recorder = Recording.current
        if recorder is None:
            return function(*args, **kwargs)
        if library < 0:
            raise recorder.fail("its host code needs PyTorch's own headers")
        return recorder.call(library, name, function, args, kwargs)

    return call


def outline(tree: Any) -> Any:
    """The value that a signature describes, its tensors without data."""
    return transport.outline(tree, META)


def _move_state(
    model: Any, known: dict[str, Any]
) -> tuple[dict[str, tuple[torch.Tensor, bool]], dict[str, torch.Tensor]]:
    """Replace the parameters and buffers of a model by meta tensors, as `.cuda()` would move them. They, and whether
    each is a parameter, by name; and the values of those that are not `known`."""
    if not isinstance(model, torch.nn.Module):
        return {}, {}
    state: dict[str, tuple[torch.Tensor, bool]] = {}
    own: dict[str, torch.Tensor] = {}
    moved: dict[int, torch.Tensor] = {}
    kept = set(model.state_dict())
    for prefix, module in model.named_modules():
        for owners, parameter in ((module._parameters, True), (module._buffers, False)):
            for key, tensor in list(owners.items()):
                if tensor is None or tensor.is_meta:
                    continue
                name = f"{prefix}.{key}" if prefix else key
                empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META)
                twin = moved.setdefault(id(tensor), empty)
                owners[key] = torch.nn.Parameter(twin, requires_grad=tensor.requires_grad) if parameter else twin
                state[name] = (owners[key], parameter)
                if name not in kept or known.get(name) != [transport.type_name(tensor), list(tensor.shape)]:
                    own[name] = tensor.detach()
    return state, own


def _is_emulated() -> bool:
    return torch.cuda.is_initialized is not _CUDA_IS_INITIALIZED


def _on_other_stream() -> bool:
    if _is_emulated():
        return Streams.switched()
    return _CUDA_IS_INITIALIZED() and torch.cuda.current_stream() != torch.cuda.default_stream()


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (
            value if value.is_meta else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
        )
    items = transport.parts(value)
    return value if items is None else transport.like(value, [_on_meta(item) for item in items])


def _is_cuda(value: Any) -> bool:
    return isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"


def _to_cuda(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return tensor if tensor.is_meta else tensor.to(META)


def _on_cuda(tensor: torch.Tensor) -> bool:
    """Where it is emulated, all tensors say so, as they do where there is data: none of them shows who moved it."""
    return tensor.is_meta or tensor.is_cuda or _is_emulated()


def _from_data(func: Any, first: torch.Tensor | None, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A tensor made of numbers, or of a tensor, and moved to the GPU."""
    kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory")}
    if func is torch.Tensor.new_tensor and first is not None:
        made = torch.tensor(*args[1:], **{"dtype": first.dtype} | kwargs)
    elif first is not None and first.is_meta:
        made = first.clone() if func is torch.tensor else first
        made = made.to(kwargs.get("dtype") or made.dtype)
    else:
        made = func(*args, **kwargs)
    return made.to(META)


_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_OF_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)
_ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.cuda: _to_cuda,
    torch.Tensor.pin_memory: lambda tensor, *args, **kwargs: tensor,
    torch.Tensor.record_stream: lambda *args, **kwargs: None,
    torch.Tensor.is_cuda.__get__: _on_cuda,  # type: ignore[attr-defined]
    torch.Tensor.device.__get__: lambda tensor: DEVICE if _on_cuda(tensor) else tensor.device,
    torch.Tensor.data.__get__: torch.Tensor.detach,  # type: ignore[attr-defined]
    torch.Tensor.get_device: lambda tensor: 0 if _on_cuda(tensor) else -1,
}
