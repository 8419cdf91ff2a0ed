"""What measured samples amount to: outcomes, deceptions, speed-ups in the buckets of the paper's Table 12."""

from __future__ import annotations

import bisect
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dice.data.sample import Sample
from dice.verdict import Verdict

BOUNDS = (1.0, 1.5, 2.0, 2.5, 3.0)  # between the buckets of the paper's Table 12, as speed-ups over eager PyTorch
BUCKETS = ("< 1.0x", "1.0 - 1.5x", "1.5 - 2.0x", "2.0 - 2.5x", "2.5 - 3.0x", ">= 3.0x")


def bucket(speedup: float) -> str:
    """The bucket of Table 12; a bound belongs to the faster one."""
    return BUCKETS[bisect.bisect_right(BOUNDS, speedup)]


def describe(samples: Sequence[Sample]) -> dict[str, object]:
    """Counts over all samples, and by source. Pairs without a verdict are `unmeasured`, never failures."""
    sources = sorted({sample.source for sample in samples})
    by_source = {source or "(none)": _counts([one for one in samples if one.source == source]) for source in sources}
    return _counts(samples) | {"speedup": speedups(samples), "by_source": by_source}


def _counts(samples: Sequence[Sample]) -> dict[str, object]:
    pairs = [sample for sample in samples if sample.problem and sample.kernel]
    verdicts = [sample.verdict for sample in pairs if sample.verdict]
    correct = [verdict for verdict in verdicts if verdict.correct]
    return {
        "samples": len(samples),
        "without_problem": len([sample for sample in samples if not sample.problem]),
        "without_kernel": len([sample for sample in samples if sample.problem and not sample.kernel]),
        "pairs": len(pairs),
        "unmeasured": len(pairs) - len(verdicts),
        "outcomes": ranked(verdict.outcome for verdict in verdicts),
        "deceptions": ranked(
            kind for verdict in verdicts if verdict.outcome == "deceptive" for kind in verdict.deceptions
        ),
        "timed": len([verdict for verdict in correct if verdict.timing]),
        "untimed_because": ranked(verdict.no_timing for verdict in correct if verdict.timing is None),
        "devices": ranked(f"{verdict.device} ({verdict.backend})" for verdict in verdicts),
    }


def speedups(samples: Iterable[Sample]) -> dict[str, object]:
    """Histograms of the correct, timed samples: over eager PyTorch, by the lower bound of the 95% interval, and over
    torch.compile where that was measured."""
    timings = [one.verdict.timing for one in samples if one.verdict and one.verdict.correct and one.verdict.timing]
    compiled = [timing.compile_ms / timing.kernel_ms for timing in timings if timing.compile_ms]
    return {
        "eager": histogram([timing.speedup for timing in timings]),
        "eager_confident": histogram([timing.speedup_low for timing in timings if timing.speedup_low]),
        "compile": histogram(compiled),
    }


def histogram(values: Sequence[float]) -> dict[str, object]:
    """How many values, in which of the `BUCKETS`; a bucket begins with its lower bound."""
    counts = Counter(map(bucket, values))
    return {
        "values": len(values),
        "median": round(statistics.median(values), 3) if values else None,
        "buckets": {name: counts[name] for name in BUCKETS},
        "percent": {name: round(100 * counts[name] / max(1, len(values)), 1) for name in BUCKETS},
    }


def lower_bound(verdict: Verdict | None) -> float | None:
    """Of the speed-up's 95% interval; the point value in verdicts from before intervals were measured."""
    if verdict is None or not verdict.correct or verdict.timing is None:
        return None
    return verdict.timing.speedup_low or verdict.timing.speedup


def ranked(names: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    """Counts, largest first, then by name: the same order whatever order they came in."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))
