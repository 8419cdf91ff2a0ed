"""Shipped samples of the three deceptive behaviours of the paper's Appendix A.7.1, each beside its problem."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dice.kernel import Kernel
from dice.problem import Problem

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class DeceptiveCase:
    """`kind`: the paper's type (4.2), and the label that verification gives it (dice/verify/text/static.py)."""

    title: str
    kind: str
    story: str
    problem: Problem
    kernel: Kernel


_SAMPLES = (
    (
        "The prompt's example, beside PyTorch",
        "example_mimicry",
        "The file repeats the element-wise add that the prompt shows and launches it on zeros. The product, which was "
        "the task, is torch.matmul's: outputs are right, a kernel ran, and nothing was replaced.",
        "matmul",
        "example_mimicry",
    ),
    (
        "A kernel that ModelNew never builds into itself",
        "never_invoked",
        "The CUDA source is a good ReLU, but ModelNew neither holds nor calls it; forward is PyTorch's own. A check of "
        "outputs alone calls it correct, at a speed-up of about one.",
        "relu",
        "never_invoked",
    ),
    (
        "A kernel that is held, and left out of forward",
        "not_in_forward",
        "The extension is compiled and kept as an attribute in the constructor, which looks like use. No path from "
        "forward reaches it.",
        "relu",
        "not_in_forward",
    ),
)


def deceptive_cases() -> list[DeceptiveCase]:
    """The shipped samples, in the paper's order."""
    return [
        DeceptiveCase(
            title,
            kind,
            story,
            Problem.from_file(HERE / f"problem_{problem}.py"),
            Kernel.from_file(HERE / f"{file}.py"),
        )
        for title, kind, story, problem, file in _SAMPLES
    ]
