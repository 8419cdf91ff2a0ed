"""The supervisor's file on one candidate: what its process said about who computes, and what that amounts to.

Everything in here was claimed by the candidate's process or follows from such claims; see `evidence.py` for the policy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dice.verdict import Replaced
from dice.verify.ipc import operator_counts
from dice.verify.ipc.encoding import Raw, claim, is_a
from dice.verify.ipc.messages import Drawn, Noticed, Ran
from dice.verify.ipc.operator_counts import OperatorCounts
from dice.verify.ipc.replaced import LEAST_SHARE

# What a candidate's tripwires (`candidate/tripwires.py`) may report.
TAMPERING = frozenset({"frames", "heap", "verifier", "code", "files", "recorder", "fork", "memory"})
REMARKS = frozenset({"native", "process", "network", "thread"})

MESSAGES = {
    "decoy": "with the file's CUDA kernels turned off, the outputs are right all the same",
    "copies_result": "PyTorch computes the result without the file's CUDA kernels, which only pass it on",
    "copies_inputs": "the file's CUDA kernels only copy the inputs, and PyTorch computes the result by other operators",
    "replaced_nothing": "PyTorch still runs every operator of the reference, on as many elements",
    "host_compute": "forward carries the inputs to the host, where no CUDA kernel can have computed",
    "torch_compile": "the file has torch.compile write kernels, which are not its own",
    "tampering": "the outputs are right, but the file reaches into the process that runs it",
}


def too_little(found: Replaced) -> str:
    """Why a kernel that replaced so much is no solution."""
    how = " by estimate" if found.estimated else ""
    share = f"{found.time_share:.2%}"
    instead = f" (PyTorch computes for it by {', '.join(found.added)})" if found.added else ""
    return (
        f"the file's CUDA kernels replace {found.replaced} of the reference's {found.operators} operators, which take"
        f" {share} of its time{how}{instead}: less than {LEAST_SHARE:.0%} is no solution"
    )


@dataclass
class DeceptionEvidence:
    """What is known so far. `muted`: how the intervention went, "" before it."""

    reference: OperatorCounts = field(default_factory=OperatorCounts)
    candidate: OperatorCounts = field(default_factory=OperatorCounts)
    trials: int = 0
    flags: Counter[str] = field(default_factory=Counter)
    notices: set[str] = field(default_factory=set)
    muted: str = ""

    def note_trial(self, drawn: Drawn, ran: Ran, static_families: tuple[str, ...]) -> None:
        """One trial: what PyTorch computed in the reference and in the candidate. `static_families`: what libraries
        compute that its text calls directly."""
        reference, candidate = OperatorCounts.from_json(drawn.work), OperatorCounts.from_json(ran.work)
        for name in static_families:
            candidate.elements[name] = max(candidate.elements[name], reference.elements[name])
        candidate = operator_counts.taken_apart(candidate, reference)
        self.trials += 1
        self.reference, self.candidate = reference, candidate
        kind = operator_counts.census_kind(reference, candidate, drawn.input_elements)
        if kind:
            self.flags[kind] += 1

    @property
    def computes_otherwise(self) -> bool:
        """Whether its kernels seem to help, but PyTorch runs operators that the reference has no use for."""
        return self.muted == "honest" and bool(set(+self.candidate.elements) - set(self.reference.elements))

    @property
    def computes_more(self) -> bool:
        """Whether PyTorch computes for it what it does not for the reference, and all that a kernel could have done by
        passing values on."""
        return operator_counts.computes_more(self.reference, self.candidate)

    @property
    def computes_elsewhere(self) -> bool:
        """The same, but for sums and products, which a copy is not."""
        return operator_counts.computes_more(self.reference, self.candidate, operator_counts.ARITHMETIC)

    @property
    def leaves_bounds(self) -> bool:
        """Whether the reference clamps, and PyTorch does not do so for the file: its kernels may, though no value of
        the trials is beyond."""
        return self.reference.elements["relu"] > self.candidate.elements["relu"]

    def note(self, raw: Raw) -> None:
        """A message of the candidate's that answers nothing."""
        kind = claim(raw, Noticed).notice if is_a(raw, Noticed) else ""
        self.notices.add(kind if kind in TAMPERING | REMARKS | {"torch_compile"} else "forged")

    def kind(self) -> str:
        """The kind of deception that is shown, or ""."""
        if self.notices & (TAMPERING | {"forged"}):
            return "tampering"
        if self.muted in ("decoy", "copies_result", "copies_inputs"):
            return self.muted
        common = self.flags.most_common(1)
        if common and 2 * common[0][1] >= self.trials:
            return common[0][0]
        return "torch_compile" if "torch_compile" in self.notices else ""

    def labels(self) -> tuple[str, ...]:
        """`reads_back`: forward waits for values on the host, as files do that ask whether their kernels really ran."""
        reads = ("reads_back",) if self.candidate.host and not self.reference.host else ()
        return (*reads, *(f"noticed:{notice}" for notice in sorted(self.notices)))

    def to_json(self) -> dict[str, object]:
        if not self.trials:
            return {}
        muted = {"muted": self.muted} if self.muted else {}
        return operator_counts.describe(self.reference, self.candidate, muted)
