"""`Verdict`: what verification concluded about one (problem, kernel)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Stage = Literal["extract", "static", "compile", "load", "run", "compare", "time", "done", "infra"]
Outcome = Literal[
    "correct",
    "wrong",
    "no_kernel",
    "compile_error",
    "load_error",
    "runtime_error",
    "timeout",
    "out_of_memory",
    "deceptive",
    "unsupported",
    "infra_error",
]
STAGES: tuple[str, ...] = get_args(Stage)
OUTCOMES: tuple[str, ...] = get_args(Outcome)

# The paper's Fig. 6 classes. `unsupported` and `infra_error` say nothing about the kernel, so they have none.
FAILURE_CLASS: dict[str, str] = {
    "no_kernel": "generation failure",
    "compile_error": "execution failure",
    "load_error": "execution failure",
    "runtime_error": "execution failure",
    "timeout": "execution failure",
    "out_of_memory": "execution failure",
    "wrong": "functional incorrectness",
    "deceptive": "deceptive",
}


@dataclass(frozen=True, slots=True)
class Timing:
    """Median times of one `forward` in milliseconds, and their quotient (reference / kernel)."""

    kernel_ms: float
    reference_ms: float
    speedup: float
    repeats: int
    kernel_spread_ms: float = 0.0  # interquartile range
    reference_spread_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to two separate questions: is the kernel right, and did our machinery work.

    `stage` is where verification ended: the stage that failed, or `done`. `outcome` is one of `OUTCOMES`;
    only `correct` counts for Exec. An `infra_error` or `unsupported` verdict says nothing about the kernel
    and must never be scored as a failure.
    """

    outcome: Outcome
    stage: Stage
    message: str = ""  # one sentence for a person
    deceptions: tuple[str, ...] = ()  # kinds, see dice/verify/static.py
    errors: tuple[str, ...] = ()  # what a writer needs to mend the kernel: compiler lines, failing index and values
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    trials: int = 0
    trials_passed: int = 0
    launches: dict[str, int] = field(default_factory=dict)  # `__global__` functions of this source seen running
    timing: Timing | None = None
    no_timing: str = ""  # why `timing` is None
    backend: str = ""  # "cuda" | "emulated"
    device: str = ""
    sandbox: str = ""  # the isolation this verdict was reached under
    toolchain: str = ""
    headers: str = ""  # "slim" (shadow headers) | "full" (PyTorch's own)
    scale: dict[str, Any] = field(default_factory=dict)  # how `--scale` shrank the inputs; empty when it did not
    seconds: dict[str, float] = field(default_factory=dict)  # wall time by stage

    @property
    def correct(self) -> bool:
        return self.outcome == "correct"

    @property
    def about_kernel(self) -> bool:
        """False when the verdict says something about our machinery only."""
        return self.outcome not in ("unsupported", "infra_error")

    @property
    def failure_class(self) -> str | None:
        """Class of the paper's Fig. 6; None for a correct kernel or a verdict that is not about the kernel."""
        return FAILURE_CLASS.get(self.outcome)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"correct": self.correct, "failure_class": self.failure_class}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        values = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        values["deceptions"] = tuple(values.get("deceptions", ()))
        values["errors"] = tuple(values.get("errors", ()))
        if values.get("timing") is not None:
            values["timing"] = Timing(**values["timing"])
        return cls(**values)
