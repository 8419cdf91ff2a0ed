"""One HTML page that needs nothing else: tables, figures, and every answer with its kernel beside the reference.

The page may load nothing: its content policy forbids the network. Sources and traces lie in it as one compressed JSON
text, which its script (`page.js`) unpacks when the first answer is opened.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from dice.data.highlight import runs
from dice.evaluate.report import facts
from dice.evaluate.report.figures import TITLES, draw_all, inline_svg
from dice.evaluate.report.gather import Answer, Report
from dice.evaluate.report.tables import EMPTY, Table, all_tables
from dice.verdict import Verdict

HERE = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
MESSAGE = 160  # characters of a reason in the table; an opened answer shows all of it


def render(report: Report) -> str:
    """The whole page."""
    tables = all_tables(report)
    first = [table for table in tables if not table.key.startswith(("failures", "causes"))]
    why = [table for table in tables if table.key.startswith(("failures", "causes"))]
    names = ", ".join(run.name for run in report.runs)
    figures = "".join(
        f"<figure>{inline_svg(figure, name, TITLES[name])}</figure>" for name, figure in draw_all(report).items()
    )
    body = [
        f"<header><h1>KernelBench: {escape(names)}</h1>{_subtitle(report)}</header>",
        '<nav aria-label="Sections"><a href="#results">Results</a><a href="#figures">Figures</a>'
        '<a href="#answers-section">Answers</a><a href="#failures">Failures</a></nav>',
        f'<main><section id="results">{"".join(map(table_html, first))}</section>',
        f'<section id="figures"><h2>Figures</h2><div class="figures">{figures}</div></section>',
        _answers(report),
        f'<section id="failures"><h2>Why kernels fail</h2>{"".join(map(_folded, why))}</section></main>',
        _DIALOG,
        f'<script type="text/plain" id="details">{_details(report)}</script>',
        f"<script>{_asset('page.js')}</script>",
    ]
    return document(f"KernelBench: {names}", "\n".join(body))


def document(title: str, body: str) -> str:
    """A page around `body`, which is HTML."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<style>{_asset('page.css')}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def table_html(table: Table) -> str:
    heads = "".join(f'<th scope="col"{_side(side)}>{escape(name)}</th>' for name, side in table.columns)
    rows = []
    for index, row in enumerate(table.rows):
        cells = (f"<td{_side(side)}>{escape(cell)}</td>" for cell, (_, side) in zip(row, table.columns, strict=True))
        kind = ' class="published"' if index in table.marked else ""
        rows.append(f"<tr{kind}>{''.join(cells)}</tr>")
    note = f"<caption>{escape(table.note)}</caption>" if table.note else ""
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll"><table>{note}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _folded(table: Table) -> str:
    inner = table_html(table).split("</h2>", 1)[1]
    return f"<details open><summary>{escape(table.title)}</summary>{inner}</details>"


def _subtitle(report: Report) -> str:
    tasks = len({answer.task.key for answer in report.answers})
    parts = [f"{tasks} problems", f"{len(report.answers)} answers", f"protocols: {', '.join(report.protocols)}"]
    return f'<p class="soft">{escape("; ".join(parts))}</p>'


def _answers(report: Report) -> str:
    """The sortable, filterable table: a row for each answer, a column for each protocol."""
    columns = ["problem", "run", "level", "family", "sample", *report.protocols, "speed-up", "tokens", "why"]
    heads = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in columns)
    rows = [_row(index, answer, report.protocols) for index, answer in enumerate(report.answers)]
    filtered = [(columns.index(name), name, _choices(report, name)) for name in ("run", "level", "family")]
    filtered += [(columns.index(name), name, _choices(report, name)) for name in report.protocols]
    selects = "".join(
        f'<label>{escape(name)}<select data-column="{column}" aria-label="{escape(name)}"><option value="">all</option>'
        + "".join(f"<option>{escape(choice)}</option>" for choice in choices)
        + "</select></label>"
        for column, name, choices in filtered
    )
    return (
        '<section id="answers-section"><h2>Answers</h2><p class="soft">Choose a problem to see its kernel beside the '
        'reference. / searches; in an opened answer the arrow keys go to its neighbours.</p><div class="filters">'
        f'<label>search<input id="search" type="search" autocomplete="off"></label>{selects}'
        '<button type="button" id="reset" class="plain">Reset</button>'
        '<output id="shown" aria-live="polite"></output></div><div class="scroll">'
        f'<table id="answers"><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div></section>'
    )


def _row(index: int, answer: Answer, protocols: Iterable[str]) -> str:
    first = next((verdict for verdict in answer.verdicts.values()), None)
    why = "" if first is None else ", ".join(first.deceptions) or first.message
    if first is None and answer.generation is not None:
        why = answer.generation.error
    tokens = str(answer.generation.tokens) if answer.generation and answer.generation.tokens else EMPTY
    speed = f"{answer.timing.speedup:.2f}" if answer.timing else EMPTY
    outcomes = "".join(_outcome(answer.verdicts.get(protocol)) for protocol in protocols)
    key = escape(answer.task.key).replace("_", "_<wbr>")  # a long name breaks between its words
    return (
        f'<tr data-index="{index}"><td><button type="button">{key}</button></td>'
        f"<td>{escape(answer.run)}</td><td>{answer.task.level}</td><td>{answer.family}</td><td>{answer.sample}</td>"
        f'{outcomes}<td class="r">{speed}</td><td class="r">{tokens}</td><td>{escape(why[:MESSAGE])}</td></tr>'
    )


def _outcome(verdict: Verdict | None) -> str:
    if verdict is None:
        return f'<td class="unknown">{_word(None)}</td>'
    kind = {"correct": "correct", "deceptive": "deceptive"}.get(verdict.outcome, "failed")
    return f'<td class="{kind if verdict.about_kernel else "unknown"}">{_word(verdict)}</td>'


def _word(verdict: Verdict | None) -> str:
    return "not judged" if verdict is None else verdict.outcome.replace("_", " ")


def _choices(report: Report, name: str) -> list[str]:
    if name in report.protocols:
        return sorted({_word(answer.verdicts.get(name)) for answer in report.answers})
    if name == "run":
        return [run.name for run in report.runs]
    return sorted({str(answer.task.level) if name == "level" else answer.family for answer in report.answers})


def _details(report: Report) -> str:
    """Sources, verdicts and traces for the script: base64 of compressed JSON. References are kept once."""
    references: dict[str, int] = {}
    for answer in report.answers:
        references.setdefault(answer.task.source, len(references))
    answers = [_detail(report, answer, references[answer.task.source]) for answer in report.answers]
    data = {"references": [_styled(text) for text in references], "answers": answers}
    packed = json.dumps(data, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return base64.b64encode(gzip.compress(packed, compresslevel=9, mtime=0)).decode("ascii")


def _detail(report: Report, answer: Answer, reference: int) -> dict[str, Any]:
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


def _asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _side(side: str) -> str:
    return ' class="r"' if side == "r" else ""


_DIALOG = (
    '<dialog id="case" aria-labelledby="case-title"><div class="bar"><h2 id="case-title"></h2>'
    '<button type="button" id="previous" class="plain" aria-label="Previous answer">&larr;</button>'
    '<button type="button" id="next" class="plain" aria-label="Next answer">&rarr;</button>'
    '<button type="button" id="close" class="plain">Close</button></div><div id="case-content"></div></dialog>'
)
