"""One problem rendered: reference, kernel, trace, verdicts, time against the roofline (paper A.7). As values first."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from rich.syntax import Syntax
from rich.text import Text

from dice.errors import UserError
from dice.evaluate.cases import deceptive_cases
from dice.evaluate.report import facts
from dice.evaluate.report.gather import Answer, Report
from dice.evaluate.report.page import HERE, asset
from dice.evaluate.report.printing import tex
from dice.files import JsonObject
from dice.files.highlight import as_html, runs
from dice.files.templates import render
from dice.terminal import Console
from dice.verify.text.static import examine

STEP_COLOURS = ("green", "yellow", "dark_orange", "red")
DECEPTIVE = "deceptive"  # as a problem's name: the shipped samples


@dataclass(frozen=True, slots=True)
class Case:
    """`verdicts`: (heading, [(name, value)]). `times`: of `facts.times`. `trace`: of `denoised.pieces`."""

    title: str
    story: str
    reference: str
    kernel: str | None
    verdicts: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    times: tuple[tuple[str, str, float], ...] = ()
    work: str = ""
    trace: JsonObject | None = None

    def width(self, ms: float) -> float:
        """Of a bar, in percent of the longest; never so short that it is not seen."""
        return max(0.5, 100 * ms / max(longest for _, _, longest in self.times))


def cases_of(report: Report, problem: str) -> list[Case]:
    """Every answer to one problem, best first in each run. Raises `UserError` for a name that fits none or several."""
    keys = sorted({answer.task.key for answer in report.answers})
    exact = [key for key in keys if problem in (key, key.rpartition("/")[2])]
    fitting = exact or [key for key in keys if problem.lower() in key.lower()]
    if not fitting:
        near = difflib.get_close_matches(problem, keys, cutoff=0.4)
        raise UserError(
            f"No answer to a problem named {problem}; there are {len(keys)}, such as {', '.join(near or keys[:3])}."
        )
    if len(fitting) > 1:
        raise UserError(f"{problem} names {len(fitting)} problems: {', '.join(fitting[:5])}.")
    answers = [answer for answer in report.answers if answer.task.key == fitting[0]]
    order = {run.name: index for index, run in enumerate(report.runs)}
    return [_case(report, one) for one in sorted(answers, key=lambda one: (order[one.run], _rank(one), one.sample))]


def shipped_cases() -> list[Case]:
    """The deceptive samples, with what reading their text finds. Nothing is run."""
    cases = []
    for sample in deceptive_cases():
        found = examine(sample.kernel)
        labels = (("paper", "deceptive"), ("found in the text", ", ".join(found.deceptions) or "nothing"))
        cases.append(
            Case(sample.title, sample.story, sample.problem.source, sample.kernel.source, (("static", labels),))
        )
    return cases


def _rank(answer: Answer) -> tuple[bool, float]:
    verdict = next(iter(answer.verdicts.values()), None)
    speed = answer.timing.speedup if answer.timing else 0.0
    return not (verdict and verdict.correct), -speed


def _case(report: Report, answer: Answer) -> Case:
    timing = answer.timing
    return Case(
        title=answer.id,
        story="",
        reference=answer.task.source,
        kernel=answer.generation.kernel if answer.generation else None,
        verdicts=tuple((name, tuple(facts.verdict_facts(verdict))) for name, verdict in answer.verdicts.items()),
        times=() if timing is None else tuple(facts.times(timing)),
        work="" if timing is None else facts.work(timing),
        trace=facts.trace_pieces(report.run_of(answer), answer),
    )


def show(console: Console, case: Case) -> None:
    """In a terminal."""
    console.rule(Text(case.title))
    if case.story:
        console.print(case.story, markup=False, highlight=False)
    for name, told in case.verdicts:
        for fact, value in told:
            console.print(f"  {name}  {fact}: {value}", markup=False, highlight=False, soft_wrap=True)
    longest = max((ms for _, _, ms in case.times), default=1.0)
    for name, _, ms in case.times:
        console.print(
            f"  {name:28} {'#' * max(1, round(40 * ms / longest)):40} {ms:.4g} ms", markup=False, highlight=False
        )
    if case.work:
        console.print(f"  {case.work}", markup=False, highlight=False)
    for name, text in (("reference", case.reference), ("kernel", case.kernel)):
        console.print(f"\n--- {name}", markup=False, highlight=False)
        if text is None:
            console.print("(no kernel was found in the reply)", markup=False)
        elif console.is_terminal:
            console.print(Syntax(text, "python", theme="ansi_dark", background_color="default"))
        else:
            console.print(text, markup=False, highlight=False, soft_wrap=True)
    if case.trace:
        console.print(f"\n--- denoised in {case.trace['all_steps']} steps", markup=False, highlight=False)
        shown = Text()
        for within, piece in zip(case.trace["within"], case.trace["texts"], strict=True):
            shown.append(piece, style=STEP_COLOURS[min(within, 3)])
        console.print(shown)


def markdown(cases: Sequence[Case]) -> str:
    return "\n".join(map(_markdown, cases))


def _markdown(case: Case) -> str:
    lines = [f"## {case.title}", "", *([case.story, ""] if case.story else [])]
    for name, told in case.verdicts:
        lines += [f"- {name}: {fact}: {value}" for fact, value in told]
    lines += [f"- {name}: {ms:.4g} ms" for name, _, ms in case.times] + ([f"- {case.work}"] if case.work else [])
    for heading, text in (("Reference", case.reference), ("Kernel", case.kernel or "(none in the reply)")):
        fence = "`" * max(3, 1 + max((len(ticks) for ticks in re.findall("`+", text)), default=0))
        lines += ["", f"### {heading}", "", f"{fence}python", text.rstrip(), fence]
    return "\n".join([*lines, ""])


def latex(cases: Sequence[Case]) -> str:
    """A subsection for each; needs the listings package."""
    return "\n".join(map(_latex, cases))


def _latex(case: Case) -> str:
    told = [f"{name}: {fact}: {value}" for name, of in case.verdicts for fact, value in of]
    told += [f"{name}: {ms:.4g} ms" for name, _, ms in case.times] + ([case.work] if case.work else [])
    lines = [rf"\subsection*{{{tex(case.title)}}}", *([tex(case.story)] if case.story else []), r"\begin{itemize}"]
    lines += [rf"\item {tex(line)}" for line in told] + [r"\end{itemize}"]
    for text in filter(None, (case.reference, case.kernel)):
        safe = text.replace(r"\end{lstlisting}", r"\end {lstlisting}").rstrip()
        lines += [r"\begin{lstlisting}[language=Python,basicstyle=\ttfamily\scriptsize,breaklines]", safe]
        lines.append(r"\end{lstlisting}")
    return "\n".join([*lines, ""])


def html(cases: Sequence[Case], title: str) -> str:
    """A page without a script: everything is in its text."""
    return render(HERE / "cases.html", title=title, style=asset("page.css"), cases=cases, coloured=_coloured)


def _coloured(text: str) -> Markup:
    return Markup(as_html(text, runs(text)))  # which escapes it
