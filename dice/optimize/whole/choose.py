"""Which regions are kept: those without which the whole module, verified and timed as any candidate, is no better.

Where times are known a region stays only if the whole is faster with it, and nothing is replaced if the whole is slower
than PyTorch with whatever is left. Where none are (under emulation), or where all is wanted (`keep` "right"), all that
are right stay. A whole that is not right although its parts are is halved until the part is found that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from dice.files.journal import Journal
from dice.kernel import Kernel
from dice.optimize.report import Tell, WholeJudged, tell_nobody
from dice.optimize.whole.compose import compose
from dice.optimize.whole.inline import NotInlined, inlined
from dice.optimize.whole.plan import Plan
from dice.problem import Problem
from dice.syntax import MAX_SOURCE
from dice.verdict import Verdict
from dice.verify import Verifier
from dice.verify.sandbox.cancel import Cancellation
from dice.verify.supervisor.dialogue import MOST_BUILDS

Keep = Literal["faster", "right"]
LEAST = 0.97  # times PyTorch's speed: a region that is as fast may still save the whole a launch
SLOWER = 1.02  # times the time that it takes with a build for each kernel: a whole in one build may be noise slower
BRIEF_S = 1.0  # at most, of timing a composition that is only tried


@dataclass(frozen=True, slots=True)
class Whole:
    """One composition: the keys of the regions that it replaces, its file, and its verdict. `apart`: whether each
    kernel of it has a build of its own. `brief`: whether it was only tried: timed for less, and not beside
    torch.compile."""

    keys: frozenset[str]
    kernel: Kernel
    verdict: Verdict
    apart: bool = False
    brief: bool = False

    @property
    def speedup(self) -> float:
        """Over the reference, timed in turns with it: compositions that were timed at other times, when the clocks were
        others or other processes had the cores, are compared by this."""
        return self.verdict.timing.speedup if self.verdict.timing else 0.0

    @property
    def least_speedup(self) -> float:
        """The lower end of its interval, where that was measured."""
        timing = self.verdict.timing
        return timing.speedup_low or timing.speedup if timing else 0.0


@dataclass
class Chooser:
    """`speedups`: of the regions' kernels alone, where they were timed. `dropped`: why a region that has a right kernel
    is not part of the module."""

    verifier: Verifier
    plan: Plan
    journal: Journal
    show: Callable[[str, int, int], None]
    keep: Keep = "faster"
    speedups: Mapping[str, float] = field(default_factory=dict)
    tell: Tell = tell_nobody
    cancellation: Cancellation = field(default_factory=Cancellation)
    most: int = 8  # regions without which a composition is tried for its speed alone
    dropped: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[str, bool, int], Verdict] = field(default_factory=dict)  # by kernel, whether brief, and trials
    _tried: int = 0
    _together: Cancellation = field(default_factory=Cancellation)  # of all compositions of a block

    @property
    def problem(self) -> Problem:
        """What compositions answer."""
        return self.plan.problem

    def composed(self, keys: Sequence[str] | frozenset[str], apart: bool) -> Kernel:
        """The file with the kernels of these regions."""
        parts = {key: part for key, part in self.plan.parts.items() if key in keys}
        return compose(replace(self.plan, parts=parts, apart=apart))

    def why_not_inlined(self, key: str) -> str:
        """Why a region's kernel cannot be part of a file, or ""."""
        part = self.plan.parts[key]
        try:
            inlined(part.kernel, part.paths, 0, part.constants)
        except NotInlined as error:
            return f"its kernel file cannot be put into another one: {error}"
        return ""

    def choose(self, keys: Sequence[str]) -> Whole | None:
        """The best composition of these regions; None where none is right. `keys`: the most valuable first."""
        for row in self.journal.rows():
            if row.get("kind") == "whole" and row.get("problem") == self.problem.id:
                trials = row.get("trials", self.verifier.options.trials)
                self._known[row["kernel"], row.get("brief", False), trials] = Verdict.from_json(row["verdict"])
        usable = self._fitting([key for key in keys if self._is_inlined(key) and self._is_promising(key)])
        if not usable:
            return None
        with self._beside_each_other():
            return self._best(usable)

    @contextmanager
    def _beside_each_other(self) -> Iterator[None]:
        """For the compositions of the block, inputs are drawn, and the module run on them, once for all."""
        self._together = self.cancellation.several_jobs()
        try:
            yield
        finally:
            self._together.cancel()

    def _best(self, usable: Sequence[str]) -> Whole | None:
        best: Whole | None = self._verified(usable, apart=False)
        assert best is not None
        if not best.verdict.correct and best.verdict.about_kernel:
            best = self._largest_right(usable)
        if best is None or not best.verdict.correct:
            return best
        right = best
        if best.verdict.timing and self.keep == "faster":
            best = self._if_faster(self._fastest(best, usable))
        whole = self._in_one_build(best)
        if whole is not None and not whole.verdict.correct and best is not right:  # right in its one trial alone
            return self._in_one_build(self._if_faster(right))
        return whole

    def _in_one_build(self, best: Whole | None) -> Whole | None:
        """The composition with its kernels in one build, where it is right and no slower so; verified in full."""
        if best is None:
            return None
        if best.apart:
            joined = self._verified(best.keys, apart=False)
            if joined.verdict.correct and joined.speedup * SLOWER >= best.speedup:
                return joined
        return self._verified(best.keys, best.apart) if best.brief else best

    def _fitting(self, keys: Sequence[str]) -> list[str]:
        """As many of these, the most valuable, as a file of a size that is still verified can hold."""

        def fits(count: int) -> bool:
            ways = (False, True) if self._kernels(keys[:count]) <= MOST_BUILDS else (False,)
            return all(len(self.composed(keys[:count], apart).source) <= MAX_SOURCE for apart in ways)

        most, least_over = len(keys), len(keys) + 1
        if keys and not fits(most):
            most, least_over = 0, most
            while least_over - most > 1:
                middle = (most + least_over) // 2
                most, least_over = (middle, least_over) if fits(middle) else (most, middle)
        for key in keys[most:]:
            self.dropped[key] = f"with it the file would be larger than {MAX_SOURCE >> 10} KiB"
        return list(keys[:most])

    def _is_inlined(self, key: str) -> bool:
        if why := self.why_not_inlined(key):
            self.dropped[key] = why
        return not why

    def _is_promising(self, key: str) -> bool:
        """Whether the region's kernel is no slower than PyTorch by itself, as far as that is known."""
        speedup = self.speedups.get(key)
        if self.keep == "right" or speedup is None or speedup >= LEAST:
            return True
        self.dropped[key] = f"slower than PyTorch ({speedup:.2f}x)"
        return False

    def _if_faster(self, best: Whole) -> Whole | None:
        timing = best.verdict.timing
        assert timing is not None
        if timing.kernel_ms < timing.reference_ms:
            return best
        for key in best.keys:
            self.dropped[key] = f"the whole is no faster than PyTorch with it ({timing.speedup:.2f}x)"
        return None

    def _tried_out(self, keys: Sequence[str] | frozenset[str], trials: int = 0) -> Whole:
        """With a build for each kernel, which is there already, as far as the verifier takes so many of one file."""
        return self._verified(keys, apart=self._kernels(keys) <= MOST_BUILDS, brief=True, trials=trials)

    def _kernels(self, keys: Sequence[str] | frozenset[str]) -> int:
        parts = {key: part for key, part in self.plan.parts.items() if key in keys}
        plan = replace(self.plan, parts=parts)
        return len(plan.replaced) + len(plan.behind)

    def _verified(
        self, keys: Sequence[str] | frozenset[str], apart: bool, brief: bool = False, trials: int = 0
    ) -> Whole:
        """The composition's verdict, from the journal where it was verified before. `trials`: 0 for the usual ones."""
        kernel = self.composed(keys, apart)
        self._tried += 1
        self.show("checking the whole module", self._tried, self._tried)
        options = self.verifier.options
        options = replace(options, trials=trials or options.trials)
        known = (kernel.id, brief, options.trials)
        verdict = self._known.get(known)
        if verdict is None:
            if brief:
                options = replace(options, compile_baseline=False, timing_s=min(options.timing_s, BRIEF_S))
            verdict = self.verifier.verify(self.problem, kernel, options=options, cancellation=self._together)
            if verdict.outcome != "infra_error":
                row = {"kind": "whole", "problem": self.problem.id, "kernel": kernel.id, "keys": sorted(keys)}
                self.journal.append(row | {"brief": brief, "trials": options.trials, "verdict": verdict.to_json()})
            self._known[known] = verdict
        self.tell(WholeJudged(tuple(sorted(keys)), verdict))
        return Whole(frozenset(keys), kernel, verdict, apart, brief)

    def _largest_right(self, keys: Sequence[str]) -> Whole | None:
        """Regions added in halves: a part that makes the whole wrong is halved again, until it is one region. One that
        is too little by itself, for it only moves values or takes no time, is tried again once there are others."""
        right: Whole | None = None
        waiting, little = [list(keys)], list[str]()  # all of them again: they may be right with builds of their own
        while waiting:
            part = waiting.pop(0)
            whole = self._tried_out([*(right.keys if right else ()), *part])
            if whole.verdict.correct:
                right = whole
                waiting += [[key] for key in little]
                little = []
            elif len(part) > 1:
                waiting = [*_halves(part), *waiting]
            else:
                said = whole.verdict.message or whole.verdict.outcome
                self.dropped[part[0]] = f"with it the whole is not right: {said}"
                little += part if right is None and whole.verdict.outcome == "deceptive" else []
        for key in right.keys if right else ():
            self.dropped.pop(key, None)
        return right

    def _fastest(self, best: Whole, keys: Sequence[str]) -> Whole:
        """Without each region in turn, as long as that is faster: those first that are least faster by themselves, and
        of these the least valuable. One trial each, for it is their speed that is asked, and the one that is chosen is
        verified in full: of a network, more trials took longer than the timing."""
        doubtful = sorted(reversed(keys), key=lambda key: self.speedups.get(key, 0.0))
        for key in [key for key in doubtful if key in best.keys][: self.most]:
            if len(best.keys) == 1:
                break
            without = self._tried_out(best.keys - {key}, trials=1)
            if without.verdict.correct and without.least_speedup > best.speedup:
                said = f"{without.speedup:.3g} times PyTorch's speed instead of {best.speedup:.3g}"
                self.dropped[key] = f"the whole is faster without it ({said})"
                best = without
        return best


def _halves(keys: list[str]) -> Iterator[list[str]]:
    middle = (len(keys) + 1) // 2
    yield from (half for half in (keys[:middle], keys[middle:]) if half)
