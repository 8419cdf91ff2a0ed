"""Other values for the constants of right kernels, by measurement: a walk uphill, one constant a step.

From the fastest kernel of a region each constant is doubled and halved; every variant is a candidate like any other,
verified and timed. The fastest is where the next step begins, until none of its neighbours is faster or the region's
budget is spent. All variants are in the run's journal, so that a run that was killed goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dice.kernel import Kernel
from dice.optimize.printing import Printed
from dice.optimize.region import Region
from dice.optimize.search import LIBRARY, Candidate, Search
from dice.optimize.tuning.constants import changed, constants_of, differences
from dice.optimize.writers import Answer, KernelWriter, Written

Show = Callable[[str, int, int], None]
SUFFIX = ", tuned"  # of the writer's name
WORTH = 0.02  # of the module's time: what is below is not worth a build for each variant
WITHIN_REACH = 0.5  # times PyTorch's speed: constants alone rarely make more than twice as much of a kernel
NEEDS_GPU = "constants were not tuned: that needs a GPU, for nothing is timed here"
STEP = 1.02  # times as fast: less is noise, and no reason for another step


@dataclass(slots=True)
class Tuned:
    """Stands for the writer of a kernel's variants; those are the search's to ask for, and not a writer's."""

    name: str
    is_certain: bool = True  # no cheap look first: most variants are right, and each is built once

    def write(self, region: Region, printed: Printed, before: Sequence[Written]) -> Answer | None:
        return None


def tune(search: Search, regions: Sequence[tuple[Region, Printed]], share: Mapping[str, float], show: Show) -> None:
    """At most `policy.tune` variants for each region whose kernel is right and was timed. `share`: of the module's time
    that a region takes; those that are not known are tuned."""
    waiting = [one for one in regions if share.get(one[0].key, 1.0) >= WORTH]
    while waiting and not search.is_late():
        drafts: list[tuple[Region, Printed, KernelWriter, Answer]] = []
        begun: dict[str, float] = {}
        for region, printed in waiting:
            best = search.best(region.key)
            variants = list(_variants(search, region.key))
            if best is not None and variants:
                begun[region.key] = best.speedup
                writer: KernelWriter = Tuned(
                    best.writer.removeprefix(LIBRARY).rstrip(")").removesuffix(SUFFIX) + SUFFIX
                )
                drafts += [(region, printed, writer, Answer(kernel)) for kernel in variants]
        search.judge(drafts, partial(_counted, show, len(drafts)))
        waiting = [one for one in waiting if _gained(search, one[0].key, begun)]


def _counted(show: Show, total: int, done: int) -> None:
    show("tuning constants", done, total)


def _gained(search: Search, key: str, begun: Mapping[str, float]) -> bool:
    best = search.best(key)
    return best is not None and key in begun and best.speedup > begun[key] * STEP


def _variants(search: Search, key: str) -> Iterator[Kernel]:
    """The neighbours of a region's best kernel that were not tried yet, as many as its budget still has."""
    best = search.best(key)
    if best is None or best.kernel is None or best.verdict.timing is None or not _is_worth(best, search):
        return
    left = search.policy.tune - sum(one.writer.endswith(SUFFIX) for one in search.kept[key])
    tried = {one.kernel.id for one in search.kept[key] if one.kernel is not None}
    for constant in constants_of(best.kernel):
        for value in constant.others:
            variant = changed(best.kernel, constant, value)
            if left > 0 and variant.id not in tried:
                left -= 1
                yield variant


def _is_worth(best: Candidate, search: Search) -> bool:
    timing = best.verdict.timing
    assert timing is not None
    is_done = timing.ceiling_ms and timing.roofline_share >= search.policy.enough
    return best.speedup >= WITHIN_REACH and not is_done


def gain(search: Search, key: str) -> str:
    """What became of a region's tuning, as a sentence without its end; "" where there was none."""
    kept = search.kept.get(key, [])
    tried = [one for one in kept if one.writer.endswith(SUFFIX) and not one.writer.startswith(LIBRARY)]
    best = search.best(key)
    if not tried or best is None or best.kernel is None:
        return ""
    said = f"{len(tried)} variant{'s' * (len(tried) > 1)} tried"
    before = max((one for one in kept if one not in tried and one.verdict.correct), key=lambda one: one.speedup)
    if best not in tried or before.kernel is None:
        return f"{said}, none is faster"
    times = best.speedup / before.speedup if before.speedup else 0.0
    return f"{said}, {differences(best.kernel, before.kernel)}: {times:.2f} times as fast"
