"""The report's tables as values, whatever they are then printed as (`printing.py`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from dice.errors import UserError
from dice.evaluate.failures import CLASSES
from dice.evaluate.metrics import Score, Summary
from dice.evaluate.paper_tables import TABLES
from dice.evaluate.report.gather import Answer, Report, Run
from dice.evaluate.report.published import PROBLEMS, PROTOCOL, over_all
from dice.evaluate.statistics import Estimate
from dice.verdict import Verdict
from dice.verify.protocols import counts_as_published

EMPTY = "-"
MESSAGE = 160  # characters of a reason in a table; an opened answer shows all of it
LISTED_ANSWERS = 60  # a longer list belongs on the page, which can be searched


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
    tables = [answers(report), results(report), let_through(report), speed(report), pass_at_k(report)]
    tables.append(comparison(report))
    for breakdown in ("stage", "family", *(["level"] if report.has_levels else [])):
        tables.append(failures(report, breakdown))
    tables += [causes(run, protocol) for run in report.runs for protocol in run.failures]
    return [table for table in tables if table.rows]


def answers(report: Report) -> Table:
    """Every answer with its verdicts, where they are few enough to read."""
    several_runs, several_samples = len(report.runs) > 1, any(answer.sample for answer in report.answers)
    columns = [("problem", "l")]
    columns += [("model", "l")] if several_runs else []
    columns += [("sample", "r")] if several_samples else []
    columns += [*((protocol, "l") for protocol in report.protocols), ("speed-up", "r"), ("why", "l")]
    rows = []
    for answer in report.answers if len(report.answers) <= LISTED_ANSWERS else ():
        cells = [answer.task.key]
        cells += [report.run_of(answer).label] if several_runs else []
        cells += [str(answer.sample)] if several_samples else []
        cells += [outcome(answer.verdicts.get(protocol)) for protocol in report.protocols]
        cells += [f"{answer.timing.speedup:.2f}x" if answer.timing else EMPTY, reason(answer) or EMPTY]
        rows.append(tuple(cells))
    return Table("answers", "Answers", tuple(columns), tuple(rows))


def outcome(verdict: Verdict | None) -> str:
    """In a word or two."""
    return "not judged" if verdict is None else verdict.outcome.replace("_", " ")


def reason(answer: Answer) -> str:
    """Why an answer is not correct, as its first verdict says, or whoever should have answered."""
    first = next(iter(answer.verdicts.values()), None)
    if first is not None:
        why = ", ".join(first.deceptions) or first.message
    else:
        why = answer.generation.error if answer.generation else ""
    return why[:MESSAGE]


def results(report: Report) -> Table:
    """The layout of the paper's Tables 1 to 3; its own rows below, marked, where the problems are KernelBench's."""
    levels = {level for run in report.runs for found in run.summaries.values() for level in found.levels}
    shown = [1, 2, 3] if report.published else sorted(levels) if len(levels) > 1 else []
    columns = [("model", "l"), ("protocol", "l")]
    for level in shown:
        name = f"L{level}" if level else "no level"
        columns += [(f"{name} Exec", "r"), (f"{name} fast1/fast2", "r")]
    of_all = "all " if shown else ""
    columns += [(f"{of_all}Exec", "r"), ("95% interval", "r"), (f"{of_all}fast1/fast2", "r")]
    columns += [("Exec, all operators", "r"), ("fast1", "r"), ("not judged", "r")]
    rows = []
    for run in report.runs:
        for protocol, found in run.summaries.items():
            cells = [run.label, protocol]
            for level in shown:
                cells += _score(found.levels[level]) if level in found.levels else [EMPTY, EMPTY]
            exec_, fast = _score(found.total)
            whole = (percent(found.total.exec_all.value), percent(found.total.fast1_all.value))
            rows.append((*cells, exec_, interval(found.total.exec), fast, *whole, str(found.total.unjudged)))
    measured = len(rows)
    for row in report.published:
        cells = [f"{row.name} (published)", "paper"]
        for level in shown:
            cells += _triple(row.levels[level]) if level in row.levels else [EMPTY, EMPTY]
        exec_, fast = _triple(row.total)
        rows.append((*cells, exec_, EMPTY, fast, EMPTY, EMPTY, EMPTY))
    title, note = "Exec and speed-up (%)", f"{_machines(report)} A share with nothing timed is {EMPTY}."
    note += _what_counts(report) + _counted(report) + _prompted(report)
    if report.published:
        title, note = "Exec and speed-up on KernelBench (%)", f"{_beside(report)} {note}"
    return Table("results", title, tuple(columns), tuple(rows), note, frozenset(range(measured, len(rows))))


def let_through(report: Report) -> Table:
    """What each protocol calls correct, and what the strictest one here says of the same answers (Table 8)."""
    strictest = report.protocols[0]
    columns = [
        ("model", "l"),
        ("protocol", "l"),
        ("correct", "r"),
        ("by construction", "r"),
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
            cells = (str(len(correct)), _constructed(found), exec_, fast, deceptive, str(refused.total()))
            rows.append((run.label, protocol, *cells, which or EMPTY))
    measured = len(rows)
    for row in report.published:
        if row.without_check:
            with_check, without = row.total, over_all(row.without_check)
            name, points = f"{row.name} (published)", 100 * (without[0] - with_check[0])
            rows.append((name, "paper", EMPTY, EMPTY, *_triple(with_check), EMPTY, EMPTY, EMPTY))
            rest = (*_triple(without), EMPTY, EMPTY, f"{points:.1f} points of Exec")
            rows.append((name, "paper, no robust check", EMPTY, EMPTY, *rest))
    note = f"The same answers under each protocol, compared with {strictest}, the strictest one here; shares in %."
    if report.published:
        note += " Rows marked published are from the paper's Table 8."
    if not any(len(run.summaries) > 1 for run in report.runs):
        rows = []
    marked = frozenset(range(measured, len(rows)))
    return Table("protocols", "What each protocol lets through", tuple(columns), tuple(rows), note, marked)


def _constructed(found: Summary) -> str:
    """How many of the correct are known by construction; nothing where no protocol asked."""
    return str(found.provenance.get("construction", 0)) if found.provenance else EMPTY


def speed(report: Report) -> Table:
    columns = [
        ("model", "l"),
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
            rows.append((run.label, protocol, *times, *(_number(value) for value in figures)))
    note = "Speed-ups are geometric means of reference time over kernel time; tokens and seconds are means per answer."
    return Table("speed", "Speed-up, and what generation took", tuple(columns), tuple(rows), note)


def pass_at_k(report: Report) -> Table:
    rows_of = [(run, protocol, found.total.pass_at) for run in report.runs for protocol, found in run.summaries.items()]
    ks = sorted({k for _, _, found in rows_of for k in found})
    columns = (("model", "l"), ("protocol", "l"), *((f"pass@{k}", "r") for k in ks))
    rows = tuple(
        (run.label, protocol, *(percent(found[k].value) if k in found else EMPTY for k in ks))
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
    labels = {run.name: run.label for run in report.runs}
    rows = tuple(
        (
            f"{labels[b]} against {labels[a]}",
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
    columns = (("model", "l"), ("protocol", "l"), (breakdown, "l"), ("judged", "r"), *((name, "r") for name in CLASSES))
    rows = []
    failed = any(found.failed for run in report.runs for found in run.failures.values())
    for run in report.runs if failed else ():
        for protocol, found in run.failures.items():
            judged: dict[str, dict[Any, int]] = {"family": found.judged_by_family, "level": found.judged_by_level}
            counts = {str(key): value for key, value in getattr(found, f"by_{breakdown}").items()}
            of = {str(key): value for key, value in judged.get(breakdown, {}).items()} or {
                key: found.judged for key in counts
            }
            for key, total in of.items():
                classes = counts.get(key, {})
                cells = (str(classes.get(name, 0)) for name in CLASSES)
                rows.append((run.label, protocol, "none" if key == "0" else key, str(total), *cells))
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
    title = f"Most common causes of failure: {run.label}, {protocol}"
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


def _what_counts(report: Report) -> str:
    """By which setting an answer counts as solved."""
    if report.replaced == "all":
        return " Exec and fast count kernels that replace all of a reference's operators, and no others."
    return " Exec counts kernels that replace any part of a reference; beside it those that replace all operators."


def _number(value: float | None) -> str:
    return EMPTY if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _beside(report: Report) -> str:
    """What the paper's rows are, and how far they can be compared with the runs."""
    said = f"Rows marked published are the paper's own numbers, on its hardware and under {PROTOCOL}."
    if report.problems < len(PROBLEMS):
        said += f" They are over all problems; these runs are over {report.problems} of KernelBench's {len(PROBLEMS)}"
        said += " problems."
    return said


def paper_table(number: int, report: Report | None = None) -> Table:
    """A table of the paper's, its rows marked, below those of the runs: each run's Exec with its interval, by level."""
    published = TABLES[number]
    if number == 9 and report:
        raise UserError("Table 9 has costs of training, which runs of dice eval say nothing of; give no RUN with it.")
    scored = any(row.levels for row in published.rows)
    columns = [(name, "l") for name in published.facts]
    for level in (1, 2, 3) if scored else ():
        columns += [(f"L{level} Exec", "r"), (f"L{level} fast1/fast2", "r")]
    rows: list[tuple[str, ...]] = []
    for run in report.runs if report else ():
        for protocol, found in run.summaries.items():
            cells = [run.label, protocol] + [EMPTY] * len(published.facts[2:])
            for level in (1, 2, 3):
                own = found.levels.get(level)
                cells += [_with_interval(own.exec), _score(own)[1]] if own else [EMPTY, EMPTY]
            rows.append((*cells, _with_interval(found.total.exec), str(found.total.unjudged)))
    measured = len(rows)
    for one in published.rows:
        cells = list(one.facts)
        for numbers in one.levels.values():
            cells += [str(numbers[0]), f"{numbers[1]} / {numbers[2]}"]
        rows.append((*cells, *([EMPTY, EMPTY] if report else [])))
    columns += [("all Exec", "r"), ("not judged", "r")] if report else []
    note = f"Published rows are over all problems of KernelBench, under {PROTOCOL}." if scored else ""
    if report:
        columns[:2] = [(f"{columns[0][0]}, or run", "l"), (f"{columns[1][0]}, or protocol", "l")]
        note += " Of the runs, Exec has its 95% interval over problems." + _counted(report) + _prompted(report)
    title = f"Table {number} of the paper: {published.title}" + (" (%)" if scored else "")
    return Table(f"paper_{number}", title, tuple(columns), tuple(rows), note, frozenset(range(measured, len(rows))))


def _with_interval(estimate: Estimate) -> str:
    return percent(estimate.value) + (f" [{interval(estimate)}]" if estimate.low is not None else "")


def _counted(report: Report) -> str:
    """Which protocols of the report count every problem, and how many answers that says nothing of."""
    names = [name for name in report.protocols if counts_as_published(name)]
    scores = [run.summaries[name].total for run in report.runs for name in names if name in run.summaries]
    if not scores:
        return ""
    lacking = sum(one.unjudged for one in scores)
    return (
        f" Under {' and '.join(names)} every problem counts, as in the paper's Eq. 3, and the first code fence of a"
        f" reply is the kernel; {lacking or 'no'} answers were not judged{', and count as not solved' * bool(lacking)}."
        " Times are measured as under dice, not as 100 single calls against a stored baseline."
    )


def _prompted(report: Report) -> str:
    """With which prompt the runs of the paper's rows were asked."""
    said = []
    for run in report.runs:
        config = run.folder.config
        if config.get("row") and config.get("prompt") and config.get("kind") != "answers":
            theirs = config["prompt"] == "kernelbench"
            text = (
                f"KernelBench's own prompt ({config.get('prompt_text')})"
                if theirs
                else f"our {config['prompt']} prompt"
            )
            said.append(f"{run.label} was asked with {text}")
    return f" {'; '.join(said)}." if said else ""


def _machines(report: Report) -> str:
    """One sentence: which device and backend the runs' verdicts come from."""
    found = {
        f"{summary.backend or 'no'} backend" + (f" ({', '.join(summary.devices)})" if any(summary.devices) else "")
        for run in report.runs
        for summary in run.summaries.values()
    }
    return f"Measured here on: {'; '.join(sorted(found))}."
