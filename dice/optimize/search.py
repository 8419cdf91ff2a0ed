"""The search for kernels: who is asked, how often, what is looked at cheaply first, and when it is enough.

One loop over rounds. In a round every region that is still open gets one more candidate from each writer; they are
verified several at once; what was learned closes regions. Every candidate is in the run's journal with its verdict
before anything is built on it, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from dice.files.journal import Journal
from dice.kernel import Kernel
from dice.optimize.library import Library, proven_here
from dice.optimize.printing import Printed
from dice.optimize.region import Region
from dice.optimize.report import CandidateJudged, RegionBegun, RegionDone, Tell, tell_nobody
from dice.optimize.writers import Answer, KernelWriter, Written
from dice.prompts import NO_KERNEL
from dice.verdict import Verdict
from dice.verify import Options, Verifier
from dice.verify.sandbox.cancel import Cancellation

Show = Callable[[str, int, int], None]
TIMING_S = 0.4  # at most, of one candidate for a region: enough to tell it from PyTorch; the whole is timed for longer
LIBRARY = "library ("  # before the name of who wrote what the library had


@dataclass(frozen=True, slots=True)
class Policy:
    """How much is spent on a module. `samples`: candidates of one writer for one region. `seconds`: for all of it, 0
    for no limit. `enough`: the share of the roofline at which a region is done. `faster`: whether a right kernel that
    is slower is worth another candidate. `keep`: regions that make the whole faster, or all that are right. `tune`: for
    how many variants of its constants a region's kernel is timed; 0 for none."""

    samples: int = 4
    seconds: float = 0.0
    enough: float = 0.8
    faster: bool = True
    keep: Literal["faster", "right"] = "faster"
    tune: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel that was written for a region, and what became of it. `why`: why there is none."""

    region: str
    writer: str
    kernel: Kernel | None
    verdict: Verdict
    why: str = ""

    @property
    def speedup(self) -> float:
        return self.verdict.timing.speedup if self.verdict.timing else 0.0

    def to_json(self) -> dict[str, object]:
        kernel = self.kernel.source if self.kernel else None
        return {
            "region": self.region,
            "writer": self.writer,
            "kernel": kernel,
            "verdict": self.verdict.to_json(),
            "why": self.why,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, object]) -> Candidate:
        source = row["kernel"]
        kernel = Kernel(str(source), name=f"region_{row['region']}") if source is not None else None
        verdict = Verdict.from_json(row["verdict"])  # type: ignore[arg-type]
        return cls(str(row["region"]), str(row["writer"]), kernel, verdict, str(row["why"]))


@dataclass
class Search:
    """`kept`: the candidates of each region, in the order written; `best` is what a module is put together from. Raises
    `Cancelled` once it is called off."""

    verifier: Verifier
    device: str
    policy: Policy
    library: Library | None
    journal: Journal
    tell: Tell = tell_nobody
    cancellation: Cancellation = field(default_factory=Cancellation)
    kept: dict[str, list[Candidate]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _begun: set[str] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)

    def resume(self) -> int:
        """Take over what an earlier run of this folder had verified; how many candidates that were."""
        count = 0
        for row in self.journal.rows():
            if row.get("kind") == "candidate":
                self._note(Candidate.from_json(row))
                count += 1
        return count

    def run(self, regions: Sequence[tuple[Region, Printed]], writers: Sequence[KernelWriter], show: Show) -> None:
        """Search until each region is done or the budget is spent. Regions come in the order of their worth."""
        self._ask_library(regions)
        for number in range(self.policy.samples):
            asked = [(region, printed, writer) for region, printed in regions for writer in writers
                     if self._is_open(region, writer, number)]  # fmt: skip
            self._close(regions, {region.key for region, _, _ in asked})
            if not asked or self.is_late():
                break
            what = "kernels" if number == 0 else f"kernels, round {number + 1}"
            drafts = self._write(asked, partial(_counted, show, f"writing {what}", len(asked)))
            self.judge(drafts, partial(_counted, show, f"checking {what}", len(asked)))
        self._close(regions, set())

    def best(self, region: str) -> Candidate | None:
        """The right kernel to take: the fastest, where times are known."""
        right = [one for one in self.kept.get(region, []) if one.verdict.correct]
        return max(right, key=lambda one: one.speedup, default=None)

    def why_not(self, region: str) -> str:
        """Why a region has no kernel, as a sentence."""
        found = self.kept.get(region, [])
        if not found:
            return "the time for kernels was over" if self.is_late() else "nothing was written for it"
        last = next((one for one in reversed(found) if one.kernel is not None), found[-1])
        return last.why or last.verdict.message or last.verdict.outcome

    # ---- one round -----------------------------------------------------------------------------------------------

    def _is_open(self, region: Region, writer: KernelWriter, number: int) -> bool:
        """Whether another candidate of this writer is worth its time."""
        own = self._own(region, writer)
        if len(own) > number or (own and own[-1].why):
            return False
        best = self.best(region.key)
        if best is None:
            return True
        timing = best.verdict.timing
        if timing is None:  # nothing tells two right kernels apart
            return False
        done = timing.ceiling_ms and timing.roofline_share >= self.policy.enough
        return not own or (self.policy.faster and not done)

    def _own(self, region: Region, writer: KernelWriter) -> list[Candidate]:
        return [one for one in self.kept.get(region.key, []) if one.writer == writer.name]

    def is_late(self) -> bool:
        """Whether the time for writing and checking is spent."""
        return bool(self.policy.seconds) and time.monotonic() - self.began > self.policy.seconds

    def _ask_library(self, regions: Sequence[tuple[Region, Printed]]) -> None:
        """What was proven on this device is taken; what was proven elsewhere is a candidate."""
        foreign = []
        for region, _ in regions if self.library is not None else ():
            assert self.library is not None
            if self.kept.get(region.key):
                continue
            for entry in self.library.find(region.key, self.verifier.backend, self.device):
                if proven_here(entry, self.verifier.backend, self.device):
                    self._keep(Candidate(region.key, f"{LIBRARY}{entry.writer})", entry.kernel, entry.verdict))
                    break
                foreign.append((region, entry))
                break
        printed = {region.key: one for region, one in regions}
        pairs = [(printed[region.key].problem, entry.kernel) for region, entry in foreign]
        fully = _in_full(self.verifier.options)
        for index, verdict in self.verifier.verify_many(pairs, options=fully, cancellation=self.cancellation):
            region, entry = foreign[index]
            self._keep(Candidate(region.key, f"{LIBRARY}{entry.writer})", entry.kernel, verdict))

    def _write(
        self, asked: Sequence[tuple[Region, Printed, KernelWriter]], show: Callable[[int], None]
    ) -> list[tuple[Region, Printed, KernelWriter, Answer]]:
        drafts = []
        for done, (region, printed, writer) in enumerate(asked, 1):
            self.cancellation.check()
            if self.is_late():
                break
            self._begin(region.key)
            before = [Written(one.kernel, one.verdict) for one in self._own(region, writer)]
            answer = writer.write(region, printed, before)
            if answer is not None:
                drafts.append((region, printed, writer, answer))
            show(done)
        return drafts

    def judge(
        self, drafts: Sequence[tuple[Region, Printed, KernelWriter, Answer]], show: Callable[[int], None]
    ) -> None:
        """Of uncertain writers, one cheap trial first; what passes it is looked at in full, and timed."""
        for region, _, writer, answer in drafts:
            if answer.kernel is None:
                self._keep(Candidate(region.key, writer.name, None, NO_KERNEL, answer.why))
        having = [draft for draft in drafts if draft[3].kernel is not None]
        certain = [draft for draft in having if draft[2].is_certain]
        promising = list(certain)
        done = 0
        for draft, verdict in self._verdicts(
            [one for one in having if not one[2].is_certain], _cheap(self.verifier.options)
        ):
            if verdict.correct:
                promising.append(draft)
                continue
            self._keep(Candidate(draft[0].key, draft[2].name, draft[3].kernel, verdict))
            show(done := done + 1)
            if self.is_late():
                break
        for draft, verdict in () if self.is_late() else self._verdicts(promising, _in_full(self.verifier.options)):
            candidate = Candidate(draft[0].key, draft[2].name, draft[3].kernel, verdict)
            self._keep(candidate)
            if self.library is not None and candidate.kernel is not None:
                region, printed = draft[:2]
                self.library.keep(
                    region.key, region.title, printed.problem, printed.paths, candidate.kernel, draft[2].name, verdict
                )
            show(done := done + 1)
            if self.is_late():
                break  # which ends what is under way

    def _verdicts(
        self, drafts: Sequence[tuple[Region, Printed, KernelWriter, Answer]], options: Options
    ) -> Iterator[tuple[tuple[Region, Printed, KernelWriter, Answer], Verdict]]:
        pairs = [(draft[1].problem, draft[3].kernel) for draft in drafts if draft[3].kernel is not None]
        for index, verdict in self.verifier.verify_many(pairs, options=options, cancellation=self.cancellation):
            yield drafts[index], verdict

    def _keep(self, candidate: Candidate) -> None:
        """On the disk first."""
        self._begin(candidate.region)
        self.tell(CandidateJudged(candidate.region, candidate.writer, candidate.verdict, candidate.why))
        if candidate.verdict.outcome == "infra_error":  # our own fault: the next run asks again
            self._note(candidate)
            return
        self.journal.append({"kind": "candidate", **candidate.to_json()})
        self._note(candidate)

    def _note(self, candidate: Candidate) -> None:
        self.kept.setdefault(candidate.region, []).append(candidate)

    def _begin(self, region: str) -> None:
        if region not in self._begun:
            self._begun.add(region)
            self.tell(RegionBegun(region))

    def _close(self, regions: Sequence[tuple[Region, Printed]], still_open: set[str]) -> None:
        """Tell what became of the regions that get no further candidate."""
        for key in (region.key for region, _ in regions):
            if key in still_open or key in self._done:
                continue
            self._begin(key)
            self._done.add(key)
            best = self.best(key)
            self.tell(RegionDone(key, best.writer if best else "", "" if best else self.why_not(key)))


def _counted(show: Show, what: str, total: int, done: int) -> None:
    show(what, done, total)


def _cheap(options: Options) -> Options:
    return replace(options, trials=1, timing=False)


def _in_full(options: Options) -> Options:
    """Regions are chosen by their speed beside eager PyTorch, and the whole is timed again: compiling each of them for
    a baseline, with the GPU to itself, took longer than all the rest."""
    return replace(options, compile_baseline=False, timing_s=min(options.timing_s, TIMING_S))


def journal_path(folder: Path) -> Path:
    return folder / "candidates.jsonl"
