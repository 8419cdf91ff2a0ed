"""The report's tables as values, whatever they are then printed as (`printing.py`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from dice.evaluate.failures import CLASSES
from dice.evaluate.metrics import Score
from dice.evaluate.report.gather import Report, Run
from dice.evaluate.report.published import PROTOCOL, over_all
from dice.evaluate.statistics import Estimate

EMPTY = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """`columns`: (heading, "l" or "r"). `marked`: indices of rows that are not this project's measurements."""

    key: str
    title: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    marked: frozenset[int] = frozenset()


def all_tables(report: Report) -> list[Table]:
    """Every table that has something to say about these runs."""
    tables = [results(report), let_through(report), speed(report), pass_at_k(report), comparison(report)]
    for breakdown in ("stage", "family", "level"):
        tables.append(failures(report, breakdown))
    tables += [causes(run, protocol) for run in report.runs for protocol in run.failures]
    return [table for table in tables if table.rows]


def results(report: Report) -> Table:
    """The layout of the paper's Tables 1 to 3; its own rows below, marked."""
    levels = sorted({level for run in report.runs for found in run.summaries.values() for level in found.levels})
    shown = sorted({*levels} | ({1, 2, 3} if set(levels) & {1, 2, 3} else set()))
    columns = [("model", "l"), ("protocol", "l")]
    for level in shown:
        name = f"L{level}" if level else "no level"
        columns += [(f"{name} Exec", "r"), (f"{name} fast1/fast2", "r")]
    columns += [("all Exec", "r"), ("95% interval", "r"), ("all fast1/fast2", "r"), ("not judged", "r")]
    rows = []
    for run in report.runs:
        for protocol, found in run.summaries.items():
            cells = [run.name, protocol]
            for level in shown:
                cells += _score(found.levels[level]) if level in found.levels else [EMPTY, EMPTY]
            exec_, fast = _score(found.total)
            rows.append((*cells, exec_, interval(found.total.exec), fast, str(found.total.unjudged)))
    measured = len(rows)
    for row in report.published:
        cells = [f"{row.name} (published)", "paper"]
        for level in shown:
            cells += _triple(row.levels[level]) if level in row.levels else [EMPTY, EMPTY]
        exec_, fast = _triple(row.total)
        rows.append((*cells, exec_, EMPTY, fast, EMPTY))
    return Table(
        "results",
        "Exec and speed-up on KernelBench (%)",
        tuple(columns),
        tuple(rows),
        f"Rows marked published are the paper's own numbers, on its hardware and under {PROTOCOL}."
        f" {_machines(report)} A share with nothing timed is {EMPTY}.",
        frozenset(range(measured, len(rows))),
    )


def let_through(report: Report) -> Table:
    """What each protocol calls correct, and what the strictest one here says of the same answers (Table 8)."""
    strictest = report.protocols[0]
    columns = [
        ("run", "l"),
        ("protocol", "l"),
        ("correct", "r"),
        ("Exec", "r"),
        ("fast1/fast2", "r"),
        ("deceptive", "r"),
    ]
    columns += [(f"not correct under {strictest}", "r"), ("of which", "l")]
    rows: list[tuple[str, ...]] = []
    for run in report.runs:
        for protocol, found in run.summaries.items():
            correct = [one for one in run.answers if protocol in one.verdicts and one.verdicts[protocol].correct]
            refused = Counter(
                one.verdicts[strictest].outcome.replace("_", " ")
                for one in correct
                if strictest in one.verdicts
                and not one.verdicts[strictest].correct
                and one.verdicts[strictest].about_kernel
            )
            which = ", ".join(f"{name} {count}" for name, count in refused.most_common())
            exec_, fast = _score(found.total)
            deceptive = percent(found.total.deception.value)
            rows.append(
                (run.name, protocol, str(len(correct)), exec_, fast, deceptive, str(refused.total()), which or EMPTY)
            )
    measured = len(rows)
    for row in report.published:
        if row.without_check:
            with_check, without = row.total, over_all(row.without_check)
            name, points = f"{row.name} (published)", 100 * (without[0] - with_check[0])
            rows.append((name, "paper", EMPTY, *_triple(with_check), EMPTY, EMPTY, EMPTY))
            cells = (EMPTY, *_triple(without), EMPTY, EMPTY, f"{points:.1f} points of Exec")
            rows.append((name, "paper, no robust check", *cells))
    note = (
        f"The same answers under each protocol, compared with {strictest}, the strictest one here; shares in %."
        " Rows marked published are from the paper's Table 8."
    )
    if not any(len(run.summaries) > 1 for run in report.runs):
        rows = []
    marked = frozenset(range(measured, len(rows)))
    return Table("protocols", "What each protocol lets through", tuple(columns), tuple(rows), note, marked)


def speed(report: Report) -> Table:
    columns = [
        ("run", "l"),
        ("protocol", "l"),
        ("speed-up, correct", "r"),
        ("95% interval", "r"),
        ("speed-up, faster", "r"),
    ]
    columns += [("tokens", "r"), ("s per answer", "r"), ("tokens per forward", "r"), ("tokens/s", "r"), ("USD", "r")]
    rows = []
    for run in report.runs:
        for protocol, found in run.summaries.items():
            total, cost = found.total, found.cost
            times = [_number(total.speedup_correct.value), interval(total.speedup_correct, 1, "{:.2f}")]
            times.append(_number(total.speedup_faster.value))
            figures = (cost.tokens, cost.seconds, cost.tokens_per_forward, cost.tokens_per_second, cost.usd or None)
            rows.append((run.name, protocol, *times, *(_number(value) for value in figures)))
    note = "Speed-ups are geometric means of reference time over kernel time; tokens and seconds are means per answer."
    return Table("speed", "Speed-up, and what generation took", tuple(columns), tuple(rows), note)


def pass_at_k(report: Report) -> Table:
    rows_of = [(run, protocol, found.total.pass_at) for run in report.runs for protocol, found in run.summaries.items()]
    ks = sorted({k for _, _, found in rows_of for k in found})
    columns = (("run", "l"), ("protocol", "l"), *((f"pass@{k}", "r") for k in ks))
    rows = tuple(
        (run.name, protocol, *(percent(found[k].value) if k in found else EMPTY for k in ks))
        for run, protocol, found in rows_of
        if found
    )
    return Table("pass_at_k", "pass@k (%)", columns, rows)


def comparison(report: Report) -> Table:
    """Each further run against the first, problem by problem."""
    columns: tuple[tuple[str, str], ...] = (
        ("B against A", "l"),
        ("protocol", "l"),
        ("problems", "r"),
        ("Exec", "r"),
        ("fast1", "r"),
        ("fast2", "r"),
    )
    columns += (("B better", "r"), ("B worse", "r"), ("p", "r"))
    rows = tuple(
        (
            f"{b} against {a}",
            found.protocol,
            str(found.problems),
            *(difference(one) for one in (found.exec, found.fast1, found.fast2)),
            str(found.better),
            str(found.worse),
            f"{found.p_value:.3g}",
        )
        for a, b, found in report.comparisons
    )
    note = "Percentage points with a 95% bootstrap interval over problems that both judged; p of an exact sign test."
    return Table("comparison", "Paired comparison", columns, rows, note)


def failures(report: Report, breakdown: str) -> Table:
    """The classes of Fig. 6 by `stage`, `family` or `level`."""
    columns = (("run", "l"), ("protocol", "l"), (breakdown, "l"), ("judged", "r"), *((name, "r") for name in CLASSES))
    rows = []
    for run in report.runs:
        for protocol, found in run.failures.items():
            judged: dict[str, dict[Any, int]] = {"family": found.judged_by_family, "level": found.judged_by_level}
            counts = {str(key): value for key, value in getattr(found, f"by_{breakdown}").items()}
            of = {str(key): value for key, value in judged.get(breakdown, {}).items()} or {
                key: found.judged for key in counts
            }
            for key, total in of.items():
                classes = counts.get(key, {})
                cells = (str(classes.get(name, 0)) for name in CLASSES)
                rows.append((run.name, protocol, key, str(total), *cells))
    return Table(f"failures_by_{breakdown}", f"Failures by {breakdown}", columns, tuple(rows))


def causes(run: Run, protocol: str) -> Table:
    columns = (("count", "r"), ("% of failures", "r"), ("class", "l"), ("stage", "l"), ("cause", "l"), ("example", "l"))
    rows = tuple(
        (
            str(cause.count),
            f"{100 * cause.share:.0f}",
            cause.failure_class,
            cause.stage,
            cause.text,
            cause.task + (f" #{cause.sample}" if cause.sample else ""),
        )
        for cause in run.failures[protocol].causes
    )
    title = f"Most common causes of failure: {run.name}, {protocol}"
    return Table(f"causes_{run.name}_{protocol}", title, columns, rows)


def percent(value: float | None) -> str:
    return EMPTY if value is None else f"{100 * value:.1f}"


def interval(estimate: Estimate, scale: float = 100, form: str = "{:.1f}") -> str:
    if estimate.low is None or estimate.high is None:
        return EMPTY
    return f"{form.format(scale * estimate.low)} to {form.format(scale * estimate.high)}"


def difference(estimate: Estimate) -> str:
    if estimate.value is None:
        return EMPTY
    span = "" if estimate.low is None else f" ({100 * estimate.low:+.1f} to {100 * (estimate.high or 0):+.1f})"
    return f"{100 * estimate.value:+.1f}{span}"


def _score(score: Score) -> list[str]:
    fast = (percent(score.fast1.value), percent(score.fast2.value))
    return [percent(score.exec.value), EMPTY if score.fast1.value is None else " / ".join(fast)]


def _triple(values: tuple[float, float, float]) -> list[str]:
    return [percent(values[0]), f"{percent(values[1])} / {percent(values[2])}"]


def _number(value: float | None) -> str:
    return EMPTY if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _machines(report: Report) -> str:
    """One sentence: which device and backend the runs' verdicts come from."""
    found = {
        f"{summary.backend or 'no'} backend" + (f" ({', '.join(summary.devices)})" if any(summary.devices) else "")
        for run in report.runs
        for summary in run.summaries.values()
    }
    return f"Measured here on: {'; '.join(sorted(found))}."
