"""What a verdict says of a kernel's time."""

from __future__ import annotations

from dice.commands.verdict_view import verdict_rows
from dice.verdict import Timing, Verdict, fast_p
from dice.verify.supervisor import timing


def test_timings_of_earlier_versions_are_read_and_unknown_fields_ignored() -> None:
    old = {"kernel_ms": 1.0, "reference_ms": 2.0, "speedup": 2.0, "repeats": 20, "kernel_spread_ms": 0.1}
    verdict = Verdict.from_json({"outcome": "correct", "stage": "done", "timing": old | {"from_the_future": 1}})
    assert verdict.timing == Timing(1.0, 2.0, 2.0, 20, 0.1)


def test_a_kernel_that_takes_longer_to_launch_than_to_run_is_told_so() -> None:
    def rows(kernel_ms: float) -> dict[str, str]:
        found = timing.Contest(
            timing.Side([kernel_ms] * 9, [0.03] * 9, [0.04] * 2), timing.Side([1.0] * 9, [0.02] * 9, [1.0])
        )
        return dict(verdict_rows(Verdict("correct", "done", timing=found.timing())))

    assert rows(0.01)["host"].startswith("0.03 ms until forward returns, PyTorch 0.02 ms")
    assert "host" not in rows(0.5)


def test_fast_p_counts_points_by_default_and_lower_bounds_on_request() -> None:
    def timed(speedup: float, low: float) -> Verdict:
        return Verdict("correct", "done", timing=Timing(1.0, speedup, speedup, 20, speedup_low=low, speedup_high=9.0))

    verdicts = [timed(1.05, 0.98), timed(2.0, 1.9), timed(0.5, 0.4), Verdict("wrong", "compare")]
    assert fast_p(verdicts, 1.0) == 0.5
    assert fast_p(verdicts, 1.0, lower_bound=True) == 0.25
    assert fast_p(verdicts, 0.0) == 0.75
    assert fast_p([Verdict("correct", "done")], 0.0) == 1.0
    assert fast_p([], 1.0) == 0.0
