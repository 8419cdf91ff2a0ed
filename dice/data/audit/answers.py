"""Answers that do none of the work, and the protocols under which they pass.

| answer | what it is |
|---|---|
| `input_free` | for each element, its mean over outputs for other inputs: knows the model, never reads the inputs |
| `constant` | for each output tensor, one value: the middle of its range |
| `zeros` | zeros |
| `identity` | one of the inputs |

Each is held against outputs for inputs that it was not made from: by KernelBench's tolerances (1e-4 of today, 1e-2 of
its first version, which is what most published numbers were made with), and by our own verification, with its
changed values, by the very code that judges candidates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dice.data.audit import measures
from dice.verify import compare, wire
from dice.verify.trial import derive

if TYPE_CHECKING:
    from dice.data.audit.probe import Probe

LEARNT, TESTED = 4, 2  # draws
OURS_TRIALS = 5
KERNELBENCH = ("kernelbench-v0", "kernelbench")  # what passes the second passes the first
LABELS = {"kernelbench-v0": "KernelBench's 1e-2", "kernelbench": "KernelBench's 1e-4", "dice": "our own checks"}
WHAT = {
    "input_free": "An answer that never reads the inputs",
    "constant": "One repeated value",
    "zeros": "An output of zeros",
    "identity": "Returning input {index} unchanged",
}


@dataclass(frozen=True, slots=True)
class Answers:
    """What was learnt from a few outputs; each field is a tree like an output."""

    input_free: Any
    constant: Any
    zeros: Any
    effect: float | None  # how far other inputs move the output (rms), as a part of the output's own rms

    @classmethod
    def learn(cls, probe: Probe) -> Answers | None:
        """None where the shape of the output depends on the values of the inputs."""
        first = probe.output
        total = wire.map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, first)
        low = high = first
        effects = []
        for number in range(1, LEARNT):
            output = probe.forward(probe.draw(f"learn {number}"))
            if [one.shape for one in wire.tensors(output)] != [one.shape for one in wire.tensors(first)]:
                return None
            total = _zip(lambda a, b: a + b.double() if b.is_floating_point() else a, total, output)
            low, high = _zip(_least, low, output), _zip(_greatest, high, output)
            effects.append(_relative_effect(first, output))
        mean = _zip(lambda a, b: (a / LEARNT).to(b.dtype) if b.is_floating_point() else b, total, first)
        constant = _zip(_middle, low, high)
        known = [effect for effect in effects if effect is not None]
        return cls(mean, constant, wire.map_tensors(torch.zeros_like, first), max(known, default=None))

    def given(self, output: Any, inputs: Any) -> dict[str, Any]:
        """Every answer to these inputs, by name."""
        found = {"input_free": self.input_free, "zeros": self.zeros}
        if any(tensor.numel() > 1 for tensor in wire.tensors(output)):
            found["constant"] = self.constant
        if isinstance(output, torch.Tensor):
            for index, tensor in enumerate(wire.tensors(inputs)):
                if tensor.shape == output.shape and tensor.dtype == output.dtype:
                    found[f"identity {index}"] = tensor
        return found


def find_answers(probe: Probe, answers: Answers) -> dict[str, list[str]]:
    """The protocols that each answer passes, and a finding for each answer that passes any."""
    passes: dict[str, set[str]] = {}
    for number in range(TESTED):
        drawn = probe.draw(f"test {number}")
        output = probe.forward(drawn)
        for name, answer in answers.given(output, drawn).items():
            tried = [one for one in KERNELBENCH if one in passes.get(name, KERNELBENCH)]
            passes[name] = set(itertools.takewhile(lambda one: measures.alike(output, answer, one), tried))  # noqa: B023
    alive = {name for name, passed in passes.items() if passed}
    for name in _pass_ours(probe, answers, alive) if alive else ():
        passes[name].add("dice")
    found = {name: [label for label in LABELS if label in passed] for name, passed in passes.items() if passed}
    for name, labels in found.items():
        _report(probe, name, labels, found)
    return found


def _report(probe: Probe, name: str, passed: list[str], others: dict[str, list[str]]) -> None:
    kind, _, index = name.partition(" ")
    if kind == "constant" and others.get("zeros") == passed:
        return  # zeros say it better
    severity = "reject" if probe.protocol in passed else "warn"
    refused = [LABELS[one] for one in LABELS if one not in passed]
    message = f"{WHAT[kind].format(index=index)} passes {' and '.join(LABELS[one] for one in passed)}"
    probe.find(kind, severity, message + (f", not {' nor '.join(refused)}." if refused else "."))


def _pass_ours(probe: Probe, answers: Answers, alive: set[str]) -> set[str]:
    """Which of these answers our own verification takes, tried as it tries candidates."""
    reference, secret = probe.reference, derive(probe.seed, "trials")
    for step in reference.plan(secret, OURS_TRIALS):
        trial = reference.trial(secret, step)
        if trial is None:
            continue
        given = answers.given(trial.expected, trial.inputs)
        alive = {
            name for name in alive & given.keys() if reference.judge(trial, _like(trial.expected, given[name])).equal
        }
        if not alive:
            break
    return alive


def _like(expected: Any, answer: Any) -> Any:
    """The answer on the CPU and in the dtypes of what is expected, which may be as wide as eight bits."""
    return _zip(lambda wanted, tensor: tensor.to("cpu", wanted.dtype), expected, answer)


def _zip(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], one: Any, other: Any) -> Any:
    """The tree of `one`, with `function` of both trees' tensors."""
    others = iter(wire.tensors(other))
    return wire.map_tensors(lambda tensor: function(tensor, next(others)), one)


def _least(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one if one.is_complex() else torch.minimum(one, other)


def _greatest(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one if one.is_complex() else torch.maximum(one, other)


def _middle(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    if low.is_floating_point() and low.numel():
        return torch.full_like(low, (float(low.min()) + float(high.max())) / 2)
    return torch.full_like(low, low.reshape(-1)[0].item()) if low.numel() else low


def _relative_effect(one: Any, other: Any) -> float | None:
    """The largest of the outputs' rms changes, each as a part of the output's own rms."""
    found = []
    for before, after in zip(wire.tensors(one), wire.tensors(other), strict=False):
        moved = compare.rms_difference(before, after)
        if moved is not None and before.numel():
            size = float(before.abs().double().square().mean().sqrt())
            found.append(moved / size if size else moved)
    return max(found, default=None)
