"""One HTML page that needs nothing else: tables, figures, and every answer with its kernel beside the reference.

The page (`page.html`) may load nothing: its content policy forbids the network. Sources and traces lie in it as one
compressed JSON text, which its script (`page.js`) unpacks when the first answer is opened.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup

from dice.evaluate.report import facts
from dice.evaluate.report.figures import TITLES, draw_all, inline_svg
from dice.evaluate.report.gather import Answer, Report
from dice.evaluate.report.published import PROBLEMS
from dice.evaluate.report.tables import EMPTY, all_tables, outcome, reason
from dice.files import templates
from dice.files.highlight import runs
from dice.verdict import Verdict

HERE = Path(__file__).parent


def render(report: Report) -> str:
    """The whole page."""
    tables = all_tables(report)
    told_apart = _told_apart(report)
    columns = ["problem", *told_apart, *report.protocols, "speed-up", "tokens", "why"]
    filtered = [*(name for name in told_apart if name != "sample"), *report.protocols]
    return templates.render(
        HERE / "page.html",
        title=_title(report),
        style=asset("page.css"),
        script=asset("page.js"),
        subtitle=_subtitle(report),
        columns=columns,  # one for each protocol, and none that says the same of every answer
        filters=[{"name": name, "column": columns.index(name), "choices": _choices(report, name)} for name in filtered],
        answers=[_row(answer, report, told_apart) for answer in report.answers],
        results=[table for table in tables if not table.key.startswith(("answers", "failures", "causes"))],
        figures=[Markup(inline_svg(figure, name, TITLES[name])) for name, figure in draw_all(report).items()],
        failures=[table for table in tables if table.key.startswith(("failures", "causes"))],
        details=_details(report),
    )


def asset(name: str) -> Markup:
    """A file of ours that goes into the page as it is."""
    return Markup((HERE / name).read_text(encoding="utf-8"))


def _title(report: Report) -> str:
    count = report.problems
    problems = f"{count} {'problem' if count == 1 else 'problems'}"
    if report.published:
        problems = "KernelBench" if count == len(PROBLEMS) else f"{problems} of KernelBench"
    return f"{', '.join(run.label for run in report.runs)} on {problems}"


def _subtitle(report: Report) -> str:
    given = report.answers
    parts = [f"problems: {report.problems}", f"answers: {len(given)}"]
    for protocol in report.protocols:
        correct = [one for one in given if protocol in one.verdicts and one.verdicts[protocol].correct]
        parts.append(f"{len(correct)} correct under {protocol}")
    return "; ".join(parts)


def _told_apart(report: Report) -> list[str]:
    """What answers are told apart by: `model` where several answered, `level` where problems have any."""
    names = ["model"] if len(report.runs) > 1 else []
    names += ["level"] if report.has_levels else []
    return [*names, "family", *(["sample"] if any(answer.sample for answer in report.answers) else [])]


def _fact(report: Report, answer: Answer, name: str) -> str:
    """What one of the columns of `_told_apart` says of an answer."""
    facts_of = {
        "model": report.run_of(answer).label,
        "level": str(answer.task.level or "none"),
        "family": answer.family,
        "sample": str(answer.sample),
    }
    return facts_of[name]


def _row(answer: Answer, report: Report, told_apart: Iterable[str]) -> dict[str, object]:
    """The cells of an answer; `outcomes` are (class, words) for each protocol."""
    return {
        "key": answer.task.key,
        "facts": [_fact(report, answer, name) for name in told_apart],
        "outcomes": [_outcome(answer.verdicts.get(protocol)) for protocol in report.protocols],
        "speedup": f"{answer.timing.speedup:.2f}" if answer.timing else EMPTY,
        "tokens": answer.generation.tokens if answer.generation and answer.generation.tokens else EMPTY,
        "why": reason(answer),
    }


def _outcome(verdict: Verdict | None) -> tuple[str, str]:
    if verdict is None or not verdict.about_kernel:
        return "unknown", outcome(verdict)
    return {"correct": "correct", "deceptive": "deceptive"}.get(verdict.outcome, "failed"), outcome(verdict)


def _choices(report: Report, name: str) -> list[str]:
    if name in report.protocols:
        return sorted({outcome(answer.verdicts.get(name)) for answer in report.answers})
    return sorted({_fact(report, answer, name) for answer in report.answers})


def _details(report: Report) -> str:
    """Sources, verdicts and traces for the script: base64 of compressed JSON. References are kept once."""
    references: dict[str, int] = {}
    for answer in report.answers:
        references.setdefault(answer.task.source, len(references))
    answers = [_detail(report, answer, references[answer.task.source]) for answer in report.answers]
    data = {"references": [_styled(text) for text in references], "answers": answers}
    packed = json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return base64.b64encode(gzip.compress(packed, compresslevel=9, mtime=0)).decode("ascii")


def _detail(report: Report, answer: Answer, reference: int) -> dict[str, object]:
    kernel = answer.generation.kernel if answer.generation else None
    timing = answer.timing
    return {
        "id": answer.id,
        "reference": reference,
        "kernel": None if kernel is None else _styled(kernel),
        "verdicts": {protocol: facts.verdict_facts(verdict) for protocol, verdict in answer.verdicts.items()},
        "timing": None if timing is None else facts.times(timing),
        "trace": facts.trace_pieces(report.run_of(answer), answer),
    }


@functools.cache
def _styled(text: str) -> tuple[str, str]:
    return text, runs(text)
