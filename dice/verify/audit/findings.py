"""The nouns of the audit: `Finding`, what is remarkable about a problem, and `Audit`, all that was found about one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["reject", "warn", "note"]
SEVERITIES: tuple[Severity, ...] = ("reject", "warn", "note")

KINDS = {
    "broken": "does not import, has no Model, or its own code raises",
    "too_slow": "did not finish within the time limit, so it is not audited further",
    "too_large": "needs more memory than the limit even when shrunk, so it is not audited further",
    "unsupported_output": "returns what a verifier cannot compare",
    "non_finite_output": "returns NaN or infinity, which never equals itself or hides every error",
    "no_work": "forward computes nothing: it makes views, or returns what it was given",
    "fixed_inputs": "get_inputs() gives the same values whatever the seed: the answers can be written down",
    "input_free": "an answer that never reads the inputs passes",
    "constant": "one repeated value passes",
    "zeros": "zeros pass",
    "identity": "returning an input unchanged passes",
    "random_forward": "the output depends on random numbers drawn inside forward",
    "nondeterministic": "the same call gives different outputs",
    "dead_input": "an input whose values, changed in several ways, never change the output",
    "weak_input": "an input that may be left out without anyone noticing",
    "dead_parameter": "a parameter whose values, changed, never change the output",
    "weak_parameter": "a parameter that may be left out without anyone noticing",
    "low_variance": "the output hardly varies beside its size or beside a tolerance",
    "saturated": "nearly all of the output is one value",
    "launch_bound": "the work takes less time than launching a kernel",
    "shrunk": "audited at smaller sizes than it has",
    "mutates_input": "forward writes to its inputs",
    "audit_failed": "the audit itself failed on it, which says nothing about the problem",
    "duplicate": "the same source as an earlier problem",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind` is one of `KINDS`; `message` one sentence. `severity`:

    - `reject`: training on the problem teaches nothing, or the wrong thing: it cannot be verified, or an answer that
      does not do the work passes the checks that it will be judged by;
    - `warn`: some widely used check can be passed without the work, or part of the problem is without effect;
    - `note`: worth knowing.
    """

    kind: str
    severity: Severity
    message: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.severity not in SEVERITIES:
            raise ValueError(f"no such finding: {self.kind!r}, {self.severity!r}")


@dataclass(frozen=True, slots=True)
class Audit:
    """What is known about one problem. `passes`: for each answer that does no work, the protocols that it passes.

    `facts`: `full` (bytes and operations at full size), `ceiling_us` (the least time on the device of `sizes.py`),
    `census` (what a forward is made of, see `dice.data.difficulty`), `scale` (how inputs shrank), `forward_s`, `output`
    (shapes), `effect` (how far other inputs move the output), `parameters` (how many were looked at, of how many; time
    permitting), and `cpu_s` (CPU seconds of the problem's process).
    """

    name: str
    problem: str  # id: the hash of its source
    level: int | None = None
    findings: tuple[Finding, ...] = ()
    passes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def severity(self) -> Severity | Literal[""]:
        """The worst of its findings'; empty where nothing was found."""
        return next((one for one in SEVERITIES if any(found.severity == one for found in self.findings)), "")

    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(found.kind for found in self.findings))

    def to_json(self) -> dict[str, object]:
        return asdict(self) | {"severity": self.severity}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Audit:
        """Raises `ValueError`, `TypeError` or `KeyError` for what is no audit."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**known | {"findings": tuple(Finding(**found) for found in data["findings"])})
