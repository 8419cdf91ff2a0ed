"""`Verdict`: what verification concluded about one (problem, kernel)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

from dice.files import JsonObject

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
Backend = Literal["cuda", "emulated"]  # a GPU, or the emulator on CPUs
ReplacedWork = Literal["any", "all"]  # of the reference's operators, by a kernel that counts as a solution
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
# The roofline counts the reference's own work with cold caches. A kernel may need less, so a share of it above 100%
# would mean nothing; what cannot be true at all was refused as `faster_than_physics` before.
BEYOND_ROOFLINE = (
    "faster than the roofline of that work: the kernel moves or computes less than the reference, or finds its data in"
    " the cache"
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Median times of one `forward` in milliseconds, and their quotient (reference / kernel)."""

    kernel_ms: float
    reference_ms: float
    speedup: float
    repeats: int
    kernel_spread_ms: float = 0.0  # interquartile range
    reference_spread_ms: float = 0.0
    rounds: int = 0  # reference and kernel measured in turns, this often
    speedup_low: float = 0.0  # the speed-up's 95% confidence interval; 0 in verdicts from before it was measured
    speedup_high: float = 0.0
    compile_ms: float | None = None  # the reference under torch.compile (inductor), when asked for
    bytes_moved: int = 0  # inputs, parameters and outputs, each moved once
    flops: int = 0  # floating-point operations of the reference
    ceiling_ms: float = 0.0  # that work at the device's measured bandwidth and arithmetic rate; 0 when not measured
    host_ms: float = 0.0  # of the host, until `forward` returns: calls in a row are no faster; 0 when not measured
    reference_host_ms: float = 0.0

    @property
    def roofline_share(self) -> float:
        """How much of the reference's roofline the kernel reached. Above 1 it passed it: see `BEYOND_ROOFLINE`."""
        return self.ceiling_ms / self.kernel_ms


@dataclass(frozen=True, slots=True)
class Finding:
    """What a sanitizer saw. `kind`: race | out_of_bounds | misaligned | barrier | fault | uninitialised | leak."""

    kind: str
    kernel: str  # the `__global__` function; "" for host code
    message: str  # one sentence
    lines: tuple[str, ...] = ()  # `line 27 (cuda_source:12)`: of the kernel file, and of the string it holds
    times: int = 1
    tool: str = ""  # "emulator" | "memcheck" | "racecheck" | "initcheck" | "synccheck"

    @classmethod
    def from_json(cls, data: JsonObject) -> Finding:
        known = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        return cls(**known | {"lines": tuple(known.get("lines", ()))})


@dataclass(frozen=True, slots=True)
class Replaced:
    """How much of the reference the file's kernels took over from PyTorch."""

    operators: int  # that PyTorch computes in one forward of the reference: products, reductions, elementwise work
    replaced: int  # of those, how many PyTorch no longer computes for the kernel file
    time_share: float  # of the reference's time that these take, 0 to 1
    estimated: bool  # by a roofline of bytes and operations, where the operators were not timed on a GPU
    known_by: str  # "program": PyTorch's work was seen where none of the file's Python runs; "census": it was watched
    left: dict[str, int] = field(default_factory=dict)  # operators of the reference that PyTorch still computes
    added: tuple[str, ...] = ()  # operators that PyTorch computes for the file in their place

    @property
    def all(self) -> bool:
        """Whether PyTorch computes nothing of it any more."""
        return self.replaced == self.operators and not self.added

    @property
    def operators_share(self) -> float:
        return self.replaced / self.operators if self.operators else 1.0

    def describe(self) -> str:
        """In one line: how much, and what PyTorch still computes."""
        how = "by estimate" if self.estimated else "measured"
        known = "" if self.known_by == "program" else ", as far as its process shows"
        share = f"{100 * self.time_share:.3g}% of the reference's time"
        parts = [f"{self.replaced} of {self.operators} operators, {share} ({how}{known})"]
        if self.left:
            parts.append("PyTorch still computes " + ", ".join(f"{kind} x{count}" for kind, count in self.left.items()))
        if self.added:
            parts.append("PyTorch computes for it " + ", ".join(self.added))
        return "; ".join(parts)

    @classmethod
    def from_json(cls, data: JsonObject) -> Replaced:
        known = {key: value for key, value in data.items() if key in cls.__dataclass_fields__}
        return cls(**known | {"added": tuple(known.get("added", ()))})


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
    deceptions: tuple[str, ...] = ()  # kinds, see dice/verify/text/static.py
    errors: tuple[str, ...] = ()  # what a writer needs to mend the kernel: compiler lines, failing index and values
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    tolerance: str = ""  # what was allowed where the largest absolute error is, such as "0.01 + 0.0001 * |expected|"
    trials: int = 0
    trials_passed: int = 0
    launches: dict[str, int] = field(default_factory=dict)  # `__global__` functions of this source seen running
    timing: Timing | None = None
    no_timing: str = ""  # why `timing` is None
    backend: str = ""  # "cuda" | "emulated"
    device: str = ""
    host: str = ""  # the machine of a cluster that reached it; "" for this one
    sandbox: str = ""  # the isolation this verdict was reached under: mechanisms, see dice/verify/sandbox/jail.py
    lacking: tuple[
        str, ...
    ] = ()  # guarantees that it could not give on that machine, see dice/verify/supervisor/guarantees.py
    toolchain: str = ""
    headers: str = ""  # "slim" (shadow headers) | "full" (PyTorch's own)
    scale: JsonObject = field(default_factory=dict)  # how `--scale` shrank the inputs; empty when it did not
    seconds: dict[str, float] = field(default_factory=dict)  # wall time by stage; `wait`: for others
    protocol: str = ""  # how right was judged, see dice/verify/protocols.py; "" in verdicts from before it was noted
    provenance: str = ""  # how it is known who computed: "construction" | "evidence" | "" (nobody asked)
    determinism: bool | None = None  # the same inputs gave the same bits twice; None when not tried
    evidence: JsonObject = field(
        default_factory=dict
    )  # of who computed the outputs, see dice/verify/execution/evidence.py
    replaced: Replaced | None = None  # None where no kernel ran, and in verdicts from before it was noted
    labels: tuple[str, ...] = ()  # remarkable without being wrong: "precision_downgrade:float16", "unused_input:1"
    findings: tuple[Finding, ...] = ()  # of the sanitizers, under --sanitize
    profile: JsonObject = field(default_factory=dict)  # GPU time of one forward by kernel, under --profile

    @property
    def correct(self) -> bool:
        return self.outcome == "correct"

    def solves(self, replaced: ReplacedWork = "any") -> bool:
        """Whether this counts as solved: right, with any part of the reference replaced, or with all its operators."""
        return self.correct and (replaced == "any" or (self.replaced is not None and self.replaced.all))

    @property
    def about_kernel(self) -> bool:
        """False when the verdict says something about our machinery only."""
        return self.outcome not in ("unsupported", "infra_error")

    @property
    def failure_class(self) -> str | None:
        """Class of the paper's Fig. 6; None for a correct kernel or a verdict that is not about the kernel."""
        return FAILURE_CLASS.get(self.outcome)

    def to_json(self) -> dict[str, object]:
        said = asdict(self) | {"correct": self.correct, "failure_class": self.failure_class}
        if self.replaced is not None:
            shares = {"operators_share": self.replaced.operators_share, "all": self.replaced.all}
            said["replaced"] = asdict(self.replaced) | shares
        return said

    @classmethod
    def from_json(cls, data: JsonObject) -> Verdict:
        values = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        values["deceptions"] = tuple(values.get("deceptions", ()))
        values["errors"] = tuple(values.get("errors", ()))
        values["labels"] = tuple(values.get("labels", ()))
        values["lacking"] = tuple(values.get("lacking", ()))
        values["findings"] = tuple(Finding.from_json(found) for found in values.get("findings", ()))
        if values.get("replaced") is not None:
            values["replaced"] = Replaced.from_json(values["replaced"])
        if values.get("timing") is not None:
            known = {key: value for key, value in values["timing"].items() if key in Timing.__dataclass_fields__}
            values["timing"] = Timing(**known)
        return cls(**values)


def fast_p(verdicts: Iterable[Verdict], p: float, *, lower_bound: bool = False) -> float:
    """KernelBench's fast_p: the share that is correct and more than `p` times as fast as the reference; 0 of none.

    `lower_bound` counts a kernel only when its whole interval lies above `p`. fast_0 counts all correct ones, timed or
    not.
    """

    def counts(verdict: Verdict) -> bool:
        if not verdict.correct or verdict.timing is None:
            return verdict.correct and p <= 0
        return (verdict.timing.speedup_low if lower_bound else verdict.timing.speedup) > p

    hits = [counts(verdict) for verdict in verdicts]
    return sum(hits) / len(hits) if hits else 0.0
