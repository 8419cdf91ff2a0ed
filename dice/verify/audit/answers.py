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
from typing import Any

import torch

from dice.verify.audit import measures
from dice.verify.audit.messages import Found
from dice.verify.audit.subject import AuditSubject
from dice.verify.reference.judge import judge
from dice.verify.reference.trial import derive
from dice.verify.tensors import compare, transport

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
    def learn(cls, subject: AuditSubject, first: Any) -> Answers | None:
        """From `first`, the output for the first inputs, and others. None where the shape of the output depends on the
        values of the inputs."""
        total = transport.map_tensors(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, first)
        low = high = first
        effects = []
        for number in range(1, LEARNT):
            output = subject.forward(subject.draw(f"learn {number}"))
            if [one.shape for one in transport.tensors(output)] != [one.shape for one in transport.tensors(first)]:
                return None
            total = _zip(lambda a, b: a + b.double() if b.is_floating_point() else a, total, output)
            low, high = _zip(_least, low, output), _zip(_greatest, high, output)
            effects.append(_relative_effect(first, output))
        mean = _zip(lambda a, b: (a / LEARNT).to(b.dtype) if b.is_floating_point() else b, total, first)
        constant = _zip(_middle, low, high)
        known = [effect for effect in effects if effect is not None]
        return cls(mean, constant, transport.map_tensors(torch.zeros_like, first), max(known, default=None))

    def given(self, output: Any, inputs: Any) -> dict[str, object]:
        """Every answer to these inputs, by name."""
        found = {"input_free": self.input_free, "zeros": self.zeros}
        if any(tensor.numel() > 1 for tensor in transport.tensors(output)):
            found["constant"] = self.constant
        if isinstance(output, torch.Tensor):
            for index, tensor in enumerate(transport.tensors(inputs)):
                if tensor.shape == output.shape and tensor.dtype == output.dtype:
                    found[f"identity {index}"] = tensor
        return found


def find_answers(subject: AuditSubject, answers: Answers, protocol: str) -> tuple[dict[str, list[str]], list[Found]]:
    """The protocols that each answer passes, and a finding for each answer that passes any."""
    passes: dict[str, set[str]] = {}
    for number in range(TESTED):
        drawn = subject.draw(f"test {number}")
        output = subject.forward(drawn)
        for name, answer in answers.given(output, drawn).items():
            tried = [one for one in KERNELBENCH if one in passes.get(name, KERNELBENCH)]
            passes[name] = set(itertools.takewhile(lambda one: measures.alike(output, answer, one), tried))  # noqa: B023
    alive = {name for name, passed in passes.items() if passed}
    for name in _pass_ours(subject, answers, alive) if alive else ():
        passes[name].add("dice")
    found = {name: [label for label in LABELS if label in passed] for name, passed in passes.items() if passed}
    # Where zeros pass as well, they say better what a constant says.
    told = {name: labels for name, labels in found.items() if name != "constant" or found.get("zeros") != labels}
    return found, [_finding(name, labels, protocol) for name, labels in told.items()]


def _finding(name: str, passed: list[str], protocol: str) -> Found:
    kind, _, index = name.partition(" ")
    severity = "reject" if protocol in passed else "warn"
    refused = [LABELS[one] for one in LABELS if one not in passed]
    message = f"{WHAT[kind].format(index=index)} passes {' and '.join(LABELS[one] for one in passed)}"
    return Found(kind, severity, message + (f", not {' nor '.join(refused)}." if refused else "."))


def _pass_ours(subject: AuditSubject, answers: Answers, alive: set[str]) -> set[str]:
    """Which of these answers our own verification takes, tried as it tries candidates."""
    reference, secret = subject.reference, derive(subject.seed, "trials")
    for step in reference.plan(secret, OURS_TRIALS):
        trial = reference.trial(secret, step)
        if trial is None:
            continue
        given = answers.given(trial.expected, trial.inputs)
        alive = {
            name for name in alive & given.keys() if judge(reference, trial, _like(trial.expected, given[name])).equal
        }
        if not alive:
            break
    return alive


def _like(expected: Any, answer: Any) -> Any:
    """The answer on the CPU and in the dtypes of what is expected, which may be as wide as eight bits."""
    return _zip(lambda wanted, tensor: tensor.to("cpu", wanted.dtype), expected, answer)


def _zip(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], one: Any, other: Any) -> Any:
    """The tree of `one`, with `function` of both trees' tensors."""
    others = iter(transport.tensors(other))
    return transport.map_tensors(lambda tensor: function(tensor, next(others)), one)


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
    for before, after in zip(transport.tensors(one), transport.tensors(other), strict=False):
        moved = compare.rms_difference(before, after)
        if moved is not None and before.numel():
            size = float(before.abs().double().square().mean().sqrt())
            found.append(moved / size if size else moved)
    return max(found, default=None)
