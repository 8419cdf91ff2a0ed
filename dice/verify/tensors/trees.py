"""Trees of tensors: sizes, copies, and what two of them have in common."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

import torch

from dice.verify.tensors import compare, near, transport

REGISTERED = ("_parameters", "_buffers", "_modules")  # where a module keeps what it has names for
ROUNDING = 1e-5  # of the rms: what two right sums differ by


def elements(value: Any) -> int:
    return sum(tensor.numel() for tensor in transport.tensors(value))


def state_of(model: Any) -> dict[str, torch.Tensor]:
    state = model.state_dict()
    return {name: value.detach().clone() for name, value in state.items() if isinstance(value, torch.Tensor)}


def attributes_of(model: torch.nn.Module) -> dict[tuple[str, str], Any]:
    """What holds tensors that are neither parameters nor buffers nor computed from those, by the path of its part and
    its name."""
    registered = {id(one) for one in (*model.parameters(), *model.buffers())}

    def is_own(value: Any) -> bool:
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        return bool(items) and all(
            isinstance(one, torch.Tensor) and one.is_leaf and id(one) not in registered for one in items
        )

    return {
        (path, name): value
        for path, part in model.named_modules()
        for name, value in vars(part).items()
        if name not in REGISTERED and is_own(value)
    }


def varying(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What training would change: the parameters, and the statistics that normalisations keep."""
    yield from model.named_parameters()
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            yield name, buffer


def tensors_of(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def constant_buffers(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers of a model's state that hold one value everywhere, as scales of one do."""
    kept, known = model.state_dict().keys(), {name for name, _ in varying(model)}
    for name, buffer in model.named_buffers():
        alike = buffer.is_floating_point() and buffer.numel() > 0 and is_steady(buffer, None)
        if name in kept and name not in known and alike:
            yield name, buffer


def tables(model: torch.nn.Module, other: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Buffers of a model's state that hold a form of their own (`linspace`, sines), which is the same in `other`, the
    state under another seed."""
    kept, known = model.state_dict().keys(), {name for name, _ in varying(model)}
    for name, buffer in model.named_buffers():
        fixed = buffer.is_floating_point() and not is_mask(buffer) and is_steady(buffer, other.get(name))
        if name in kept and name not in known and buffer.numel() > 1 and fixed:
            yield name, buffer


def taken(
    model: torch.nn.Module, other: Mapping[str, torch.Tensor] | None = None
) -> tuple[tuple[str, torch.Tensor], ...]:
    """What a candidate has to take other values of. `other`: the state under another seed, where there is one."""
    fixed = dict(constant_buffers(model)) | (dict(tables(model, other)) if other else {})
    return (*varying(model), *fixed.items())


def is_steady(parameter: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether a parameter holds one value everywhere, or is `other`, under another seed, and no mask unless training
    would change it."""
    if not parameter.numel() or bool((parameter == parameter.reshape(-1)[:1]).all()):
        return True
    same = other is not None and other.shape == parameter.shape and torch.equal(parameter.detach().cpu(), other.cpu())
    return same and (parameter.requires_grad or not is_mask(parameter))


def is_mask(tensor: torch.Tensor) -> bool:
    """Whether it tells two values apart, as a causal mask does: its form is the problem's, and not its values."""
    least, most = tensor.detach().aminmax()
    return bool(least < most) and bool(((tensor == least) | (tensor == most)).all())


def to_cpu(value: Any) -> Any:
    return transport.map_tensors(lambda tensor: tensor.detach().to("cpu", copy=True), value)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64 if tensor.is_floating_point() else tensor.dtype, copy=True)


def between(one: Any, other: Any) -> Any:
    """Halfway from one output to another, as an answer that knows nothing of what changed would be."""
    others = iter(transport.tensors(other))

    def middle(tensor: torch.Tensor) -> torch.Tensor:
        there = next(others, tensor)
        same = there.shape == tensor.shape and tensor.is_floating_point()
        return ((near.wide(tensor) + near.wide(there)) / 2).to(tensor.dtype) if same else there

    return transport.map_tensors(middle, one)


def identical(one: Any, other: Any) -> bool:
    pairs = zip(transport.tensors(one), transport.tensors(other), strict=False)
    return all(near.same_values(*pair) for pair in pairs)


def own(value: Any, spare: bool) -> Any:
    """An output for good. It may be an input, or a tensor of the model's that the next forward writes to; `spare`: it
    is none, and will have been judged by then."""
    return transport.map_tensors(lambda tensor: tensor.detach() if spare else tensor.detach().clone(), value)


def changed(used: Any, kept: Any) -> tuple[int, ...]:
    """Indices of the tensors that are no longer what they were."""
    pairs = enumerate(zip(transport.tensors(used), transport.tensors(kept), strict=True))
    return tuple(index for index, (one, other) in pairs if one is not other and not near.same_values(one, other))


def picked(value: Any, indices: Container[int]) -> list[torch.Tensor]:
    return [tensor for index, tensor in enumerate(transport.tensors(value)) if index in indices]


def is_as_exact(actual: Any, expected: Any, exact: Any) -> bool:
    """Whether an output is about as near to the exact one as the expected one is (rms)."""
    for one, own, true in zip(*(transport.tensors(value) for value in (actual, expected, exact)), strict=False):
        off, allowed = compare.rms_difference(one, true), compare.rms_difference(own, true)
        if off is None or allowed is None:
            continue
        size = torch.linalg.vector_norm(own if own.dtype.itemsize >= 4 else own.float()) / own.numel() ** 0.5
        if off > compare.NO_WORSE_RMS * allowed + ROUNDING * float(size):
            return False
    return True


def is_finite(value: Any) -> bool:
    floats = (tensor for tensor in transport.tensors(value) if tensor.is_floating_point() or tensor.is_complex())
    return all(bool(near.wide(part).isfinite().all()) for tensor in floats for part in near.stretches(tensor))


def shape_of(value: Any) -> Any:
    value = transport.opened(value)
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shape_of(item) for item in value]
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
