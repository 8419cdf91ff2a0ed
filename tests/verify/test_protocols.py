"""KernelBench's protocols as KernelBench runs them, re-enacted here from the description of its evaluator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import problem_texts as texts
import pytest
import torch

from dice.kernel import Kernel
from dice.problem import Problem
from dice.verify import Verifier
from dice.verify.execution.running import Device, exec_file, forward
from dice.verify.protocols import PROTOCOLS, protocol_named
from dice.verify.reference.judge import judge
from dice.verify.reference.reference import Reference
from dice.verify.reference.subject import Subject
from dice.verify.reference.trial import Trial

CASES = Path(__file__).parent.parent / "cases"
KERNELBENCH = ("kernelbench", "kernelbench-v0", "dice-paper")


@pytest.fixture
def first_trials(tmp_path: Path) -> Callable[[str, str], tuple[Reference, list[Trial]]]:
    def draw(source: str, protocol: str) -> tuple[Reference, list[Trial]]:
        reference = Reference(Subject(source, Device("emulated"), tmp_path, protocol=protocol))
        reference.construct(seed=99)  # which must not matter
        trials = [reference.trial(77, step) for step in reference.plan(77, 3)]
        assert all(trials)
        return reference, trials  # type: ignore[return-value]

    return draw


def kernelbench(source: str, folder: Path, cast: torch.dtype | None) -> list[tuple[Any, torch.Tensor, torch.Tensor]]:
    """Of three trials: inputs as the candidate sees them, the output, and that of a second copy as candidate."""
    problem = exec_file(source, folder, "theirs")
    models = []
    for _ in range(2):
        torch.manual_seed(42)
        arguments = problem.get_init_inputs()
        torch.manual_seed(42)
        models.append(problem.Model(*arguments))
    torch.manual_seed(42)
    seeds = [torch.randint(0, 2**32 - 1, (1,)).item() for _ in range(3)]
    found = []
    for seed in seeds:
        torch.manual_seed(seed)
        inputs = [value.to(cast) if cast else value for value in problem.get_inputs()]
        torch.manual_seed(seed)
        with torch.no_grad():
            expected = models[0].to(cast)(*inputs).clone()
            seen = [value.clone() for value in inputs]
            found.append((seen, expected, models[1].to(cast)(*inputs)))
    return found


@pytest.mark.parametrize("protocol", KERNELBENCH)
@pytest.mark.parametrize("source", [texts.LINEAR, texts.DROPOUT, texts.IN_PLACE, texts.BATCH_NORM])
def test_inputs_weights_and_generators_are_those_of_kernelbench(
    source: str, protocol: str, first_trials: Callable[..., Any], tmp_path: Path
) -> None:
    reference, trials = first_trials(source, protocol)
    theirs = kernelbench(source, tmp_path, torch.float32 if protocol == "kernelbench" else None)
    candidate = kernel_model(reference)
    for trial, (inputs, expected, actual) in zip(trials, theirs, strict=True):
        assert torch.equal(trial.expected, expected) and torch.equal(trial.inputs[0], inputs[0])
        ours = forward(candidate, trial.inputs, trial.seed, Device("emulated"), trial.rng)
        assert torch.equal(ours, actual)
        assert judge(reference, trial, ours).equal is torch.allclose(expected, actual, 1e-4, 1e-4)


def kernel_model(reference: Reference) -> Any:
    """A second copy of the reference, made as a candidate is."""
    torch.manual_seed(42)
    return reference.subject.module.Model(*reference.subject.module.get_init_inputs())


def test_only_the_newer_protocol_casts_labels_to_floats(first_trials: Callable[..., Any]) -> None:
    _, trials = first_trials(texts.problem("return inputs[1] + x", "[torch.rand(3), torch.arange(3)]"), "kernelbench")
    assert trials[0].inputs[1].dtype == torch.float32
    _, trials = first_trials(texts.problem("return inputs[1] + x", "[torch.rand(3), torch.arange(3)]"), "dice-paper")
    assert trials[0].inputs[1].dtype == torch.int64
    _, trials = first_trials(texts.LINEAR, "kernelbench-fp16")
    assert trials[0].expected.dtype == torch.float16


@pytest.mark.parametrize(
    ("protocol", "factor", "equal"),
    [
        ("kernelbench", 1.0001, True),
        ("kernelbench", 1.001, False),
        ("kernelbench-v0", 1.009, True),
        ("dice-paper", 1.03, False),
        ("kernelbench-fp16", 1.009, True),
    ],
)
def test_tolerances(protocol: str, factor: float, equal: bool, first_trials: Callable[..., Any]) -> None:
    reference, (trial, *_) = first_trials(texts.problem("return x * 100", "[torch.rand(50) + 1]"), protocol)
    assert judge(reference, trial, (trial.expected.double() * factor).to(trial.expected.dtype)).equal is equal


def test_their_comparison_with_its_quirks(first_trials: Callable[..., Any]) -> None:
    reference, (trial, *_) = first_trials(texts.problem("return x / 0", "[torch.rand(4) - 0.5]"), "kernelbench")
    assert judge(reference, trial, trial.expected).equal  # infinities of one sign are close
    reference, (trial, *_) = first_trials(texts.problem("return x * float('nan')", "[torch.rand(4)]"), "kernelbench")
    assert not judge(reference, trial, trial.expected).equal  # NaN never is, not even to itself
    reference, (trial, *_) = first_trials(texts.TWO_OUTPUTS, "kernelbench")
    assert "single tensors" in judge(reference, trial, trial.expected).message
    reference, (trial, *_) = first_trials(texts.RELU, "kernelbench")
    assert not judge(reference, trial, trial.expected.double()).equal  # allclose refuses two dtypes
    noted = judge(reference, trial, trial.expected, changed=[0], aliased=[0], written=["w"])
    assert noted.equal and noted.labels == ("mutates_input", "aliases_input", "writes_parameter")


def test_protocols_are_known_by_name() -> None:
    assert {"dice", *KERNELBENCH} <= set(PROTOCOLS)
    assert protocol_named("dice").ours and not protocol_named("dice-paper").ours
    with pytest.raises(ValueError, match="unknown protocol"):
        protocol_named("lenient")
    kinds = ("not_in_forward",)
    refusing = [name for name, protocol in PROTOCOLS.items() if protocol.refuses_kind(kinds)]
    assert refusing == ["dice", "dice-paper"]
    assert not protocol_named("dice-paper").refuses_kind(("try_fallback",))


OUTCOMES = {
    # case: outcome under dice, kernelbench, dice-paper
    "right_relu": ("correct", "correct", "correct"),
    "right_linear_own_names": ("correct", "correct", "correct"),
    "wrong_value": ("wrong", "wrong", "correct"),
    "identity_on_positive": ("wrong", "correct", "correct"),
    "mutates_input": ("wrong", "correct", "correct"),
    "deceptive_torch_only": ("deceptive", "correct", "deceptive"),
    "deceptive_not_in_forward": ("deceptive", "correct", "deceptive"),
    "deceptive_try_fallback": ("deceptive", "correct", "deceptive"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_cases_under_each_protocol(name: str, emulated: Verifier) -> None:
    kernel = Kernel.from_file(CASES / f"{name}.py")
    problem = Problem.from_file(CASES / "problems" / f"{kernel.source.split('# problem: ')[1].split()[0]}.py")
    for protocol, outcome in zip(("dice", "kernelbench", "dice-paper"), OUTCOMES[name], strict=True):
        verdict = emulated.verify(problem, kernel, replace(emulated.options, protocol=protocol))
        assert verdict.outcome == outcome, f"{protocol}: {verdict.message}"
        assert verdict.protocol == protocol
        if name.startswith("deceptive") and verdict.correct:
            assert verdict.deceptions
    if name == "mutates_input":
        verdict = emulated.verify(problem, kernel, replace(emulated.options, protocol="kernelbench"))
        assert "mutates_input" in verdict.labels
