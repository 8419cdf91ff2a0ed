"""Looks at outputs: what they are, what they are worth, and what moves them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dice.verify.audit.subject import AuditSubject
from dice.verify.execution import inputs, running
from dice.verify.protocols import protocol_named
from dice.verify.reference.trial import ReferenceFailed, derive
from dice.verify.tensors import compare, near, transport

LOW_STD = 1e-2  # of the output: a constant is within KernelBench's first tolerance for most of it
LOW_PART = 1e-3  # of the output's rms
SATURATED = 0.95  # of the elements are one value
SAMPLE = 1 << 18  # elements looked at where a look will do
LARGE_PARAMETER = 1 << 28  # elements; copies of larger ones do not fit into memory beside the model
FEW = 16  # elements of which nothing can be said


def alike(one: Any, other: Any, protocol: str) -> bool:
    """Whether `other` passes for `one`. KernelBench's tolerances are applied to each tensor of an output that they
    would refuse as a whole."""
    if protocol_named(protocol).ours:
        return compare.compare(one, other).equal
    left, right = transport.tensors(one), transport.tensors(other)
    if [tensor.shape for tensor in left] != [tensor.shape for tensor in right]:
        return False
    pairs = list(zip(left, right, strict=True))
    samples = [(_sample(one), _sample(other)) for one, other in pairs]  # most differ everywhere, which is told quickly
    return all(compare.compare(*pair, protocol).equal for pair in (*samples, *pairs))


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1)[:: max(1, tensor.numel() // SAMPLE)]


def identical(one: Any, other: Any) -> bool:
    left, right = transport.tensors(one), transport.tensors(other)
    return len(left) == len(right) and all(map(near.same_values, left, right))


def describe(value: Any) -> str:
    """`float32 16x64`, `a tuple of float32 16x64, int64 16`."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {'x'.join(map(str, value.shape)) or 'scalar'}"
    items = transport.opened(value)
    if isinstance(items, list | tuple | dict):
        items = items.values() if isinstance(items, dict) else items
        return f"a {type(value).__name__} of {', '.join(map(describe, items)) or 'nothing'}"
    return "None" if value is None else f"a {type(value).__name__}"


def why_unsupported(output: Any, folder: Path) -> str:
    """What no verifier can compare, or ""."""
    if not transport.tensors(output):
        return f"{describe(output)}, and no tensor"

    def sample(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1)[:1] if tensor.layout == torch.strided else tensor

    try:
        transport.write(transport.map_tensors(sample, output), folder, "sample")
    except transport.WireError as error:
        return str(error)
    if not any(tensor.numel() for tensor in transport.tensors(output)):
        return f"{describe(output)}, in which there is no element"
    return ""


def look_at_values(output: Any, protocol: str) -> Iterator[tuple[str, str, str]]:
    """Findings (kind, severity, message) about the values of one output."""
    for index, tensor in enumerate(transport.tensors(output)):
        what = "The output" if isinstance(output, torch.Tensor) else f"Output {index}"
        if not tensor.numel() or tensor.is_complex():
            continue
        flat = tensor.reshape(-1)
        if tensor.is_floating_point():
            wrong = int((~flat.isfinite()).sum())
            if wrong:
                ours = protocol_named(protocol).ours
                message = f"{what} holds {wrong} of {flat.numel()} values that are NaN or infinite."
                yield "non_finite_output", "warn" if ours and wrong < flat.numel() else "reject", message
                continue
        if flat.numel() < FEW:
            continue
        yield from _spread(what, flat)


def _spread(what: str, flat: torch.Tensor) -> Iterator[tuple[str, str, str]]:
    sample = _sample(flat)
    values, counts = sample.unique(return_counts=True)
    share, value = float(counts.max()) / sample.numel(), values[counts.argmax()].item()
    if share >= SATURATED:
        yield "saturated", "warn", f"{what} is {value:.6g} in {100 * share:.3g}% of its elements."
    elif flat.is_floating_point():
        rms, std = float(sample.double().square().mean().sqrt()), float(sample.double().std())
        if std < max(LOW_STD, LOW_PART * rms):
            message = f"{what} hardly varies: standard deviation {std:.2g} around {float(sample.double().mean()):.3g}."
            yield "low_variance", "warn", message


def effect_of_input(subject: AuditSubject, output: Any, index: int) -> str:
    """What other values of one input do to the output: "seen", "unseen" (less than 1e-4), or "none"."""
    running.seed_everything(derive(subject.seed, f"input {index}"))
    tensors = transport.tensors(subject.drawn)
    changes = [
        inputs.disturb(subject.drawn, index),
        _with(subject.drawn, index, transport.tensors(subject.draw("other"))[index]),
    ]
    if inputs.is_free(tensors[index]):
        changes.append(_with(subject.drawn, index, (tensors[index] - tensors[index].mean()) * 2))
    return _strongest(subject, output, changes)


def effect_of_parameter(subject: AuditSubject, output: Any, name: str, parameter: torch.nn.Parameter) -> str:
    """The same for a parameter."""
    if not parameter.is_floating_point() or parameter.numel() > LARGE_PARAMETER:
        return "seen"
    running.seed_everything(derive(subject.seed, f"parameter {name}"))
    kept = parameter.detach().clone()
    try:
        with torch.no_grad():
            parameter.add_(torch.rand_like(parameter) * (1 + kept.abs()))
        return _strongest(subject, output, [subject.drawn])
    finally:
        with torch.no_grad():
            parameter.copy_(kept)


def _with(drawn: Any, index: int, value: torch.Tensor) -> Any:
    count = iter(range(1 << 30))

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return value if next(count) == index and value.shape == tensor.shape else tensor

    return transport.map_tensors(change, drawn)


def _strongest(subject: AuditSubject, output: Any, changes: list[Any]) -> str:
    found = "none"
    for drawn in changes:
        try:
            changed = subject.forward(drawn)
        except ReferenceFailed:  # such values do not suit the problem
            continue
        if not alike(output, changed, "kernelbench"):
            return "seen"
        if not identical(output, changed):
            found = "unseen"
    return found
