"""`dice data inspect PATH...`: a data set at a glance, and the audit of its problems before anyone trains on them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from dice.commands.arguments import Backend, at_least, spare
from dice.commands.progress import bars
from dice.errors import UserError
from dice.files import JsonObject
from dice.files.atomic import write_json, write_text
from dice.problem import Problem
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.data.sources import Input
    from dice.verify.audit.findings import Audit

SUFFIXES = (".json", ".md", ".jsonl")
SHOWN = 40  # problems of the table in the terminal
COLOURS = {"reject": "red", "warn": "yellow", "note": "dim", "": "green"}


@dataclass
class Inspect:
    """Look at a data set: what it holds, how long, how fast, some of it whole. Problems alone are audited instead.

    An audit finds problems that are broken, or can be passed without doing the work; exit code 1 when it rejects any.

    Example: dice data inspect samples.parquet --html samples.html
    """

    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="PATH", help_behavior_hint="")]
    """Files or folders: samples, tables of pairs or problems (.parquet, .arrow, .json, .jsonl), task files."""
    html: Path | None = None
    """Also write the glance to this page: one file, which needs no network."""
    show: int = 3
    """Random samples to show whole."""
    tokenizer: str = "nano"
    """The model whose tokenizer counts tokens: nano, a folder, or an id on the Hugging Face hub."""
    audited: Path | None = None
    """Report of an earlier audit, whose findings to show with the set."""
    audit: Literal["auto", "always", "never"] = "auto"
    """auto audits a set of problems alone that no earlier audit is given for; the options below are for the audit."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Write NAME.json and NAME.md; NAME.jsonl beside them keeps what is done, and an interrupted run resumes there."""
    column: str = ""
    """Column of a table that holds the source text of problems (default: the first of the usual names it has)."""
    protocol: Literal["dice", "kernelbench", "kernelbench-v0"] = "dice"
    """Whose comparison candidates will be judged by: an answer without work that passes it is a reason to reject."""
    backend: Backend = "auto"
    """Where references run: cuda (a GPU), or emulated (the CPU, where large problems are audited at smaller sizes)."""
    workers: int = 1
    """Problems audited at once."""
    quick: bool = False
    """Leave out the looks at inputs and parameters one by one."""
    timeout: float = 60.0
    """Seconds for one problem; a larger one is audited at smaller sizes, so that it fits."""
    memory_mb: int = 4096
    """Host memory for one problem."""
    seed: int = 0
    """Of the random samples, and of the audit."""
    json: bool = False
    """Print everything as JSON."""

    def run(self) -> int:
        """0 when no problem is to be rejected, or none was audited; else 1."""
        if not self.paths:
            raise UserError("Give at least one PATH: a folder of problems, a problem file or a table.")
        at_least(1, workers=self.workers)
        at_least(0, show=self.show)
        from dice.commands.data import overview
        from dice.data.sources import holds_kernels, read_problems, resolve
        from dice.verify.audit.report import read_audits

        inputs = resolve(list(map(str, self.paths)))
        base = _base(self.out) if self.out else None
        reports = [base.with_name(f"{base.name}{suffix}") for suffix in SUFFIXES] if base else []
        spare((one.file for one in inputs), self.html, *reports)
        alone = not any(holds_kernels(one) for one in inputs)
        known = read_audits(self.audited) if self.audited else {}
        wanted = self.audit == "always" or (self.audit == "auto" and alone and not known)
        if self.out is not None and not wanted:
            raise UserError(
                "--out is where the report of an audit goes, and nothing is to be audited; add --audit always."
            )
        result: JsonObject = {}
        audits: list[Audit] = []
        if wanted:
            problems = read_problems([one.file for one in inputs], self.column) if alone else _problems_of(inputs)
            audits, result = _audit(self, problems)
        if not (wanted and alone and self.html is None):
            shown = overview.show(self, inputs, known | {audit.problem: audit for audit in audits})
            result = result if wanted and alone else shown | ({"audit": result} if wanted else {})
        if self.json:
            print(json.dumps(result))
        return 1 if any(audit.severity == "reject" for audit in audits) else 0


def _problems_of(inputs: Sequence[Input]) -> list[Problem]:
    """The problems of samples, each once."""
    from dice.data.sources import ImportReport, read

    found: dict[str, Problem] = {}
    for sample in read(inputs, ImportReport()):
        if sample.problem:
            problem = sample.as_problem()
            found.setdefault(problem.id, problem)
    if not found:
        raise UserError("There is no problem to audit: no sample says which problem its kernel is for.")
    return list(found.values())


def _audit(args: Inspect, problems: Sequence[Problem]) -> tuple[list[Audit], JsonObject]:
    """The audits and their report, which is written and shown as asked."""
    from dice.verify.audit.report import to_json, to_markdown
    from dice.verify.audit.run import AuditSettings, audit_all, audit_backend

    depth: Literal["full", "quick"] = "quick" if args.quick else "full"
    settings = AuditSettings(audit_backend(args.backend), args.protocol, args.timeout, args.memory_mb, args.seed, depth)
    base = _base(args.out) if args.out else None
    record = base.with_name(f"{base.name}.jsonl") if base else None
    with bars() as show:
        progress = partial(show, "auditing")
        audits = audit_all(problems, settings, workers=args.workers, record=record, progress=progress)
    report = to_json(audits, settings)
    if base is not None:
        write_json(base.with_name(f"{base.name}.json"), report)
        write_text(base.with_name(f"{base.name}.md"), to_markdown(audits, settings))
    if not args.json:
        _show(Console(), audits, base)
    return audits, report


def _base(out: Path) -> Path:
    """Where the three files of a report are, less their suffixes."""
    base = out.with_suffix("") if out.suffix in SUFFIXES else out
    if base.is_dir() or not base.name:
        raise UserError(f"{out} is a folder; give --out the name of a report, such as {out / 'audit.json'}.")
    return base


def _show(console: Console, audits: Sequence[Audit], base: Path | None) -> None:
    from dice.verify.audit.findings import KINDS
    from dice.verify.audit.report import ANSWERS, PROTOCOLS, label, summarise

    summary = summarise(audits)
    kinds = Table("findings", "problems", "meaning", title=f"{summary.problems} problems")
    worst = Counter[tuple[str, str]]()
    for audit in audits:
        for kind in audit.kinds():
            severities = [found.severity for found in audit.findings if found.kind == kind]
            worst[kind, "reject" if "reject" in severities else "warn" if "warn" in severities else "note"] += 1
    for kind, count in summary.kinds.items():
        colour = COLOURS[next(one for one in COLOURS if worst[kind, one])]
        kinds.add_row(Text(kind, style=colour), str(count), KINDS[kind])
    free = Table("an answer without work", *PROTOCOLS.values(), title="problems that it passes")
    for answer, text in (*ANSWERS.items(), ("any", "any of these")):
        free.add_row(text, *(str(len(summary.passes[protocol][answer])) for protocol in PROTOCOLS))
    order = ("reject", "warn", "note")
    found = sorted((audit for audit in audits if audit.severity), key=lambda audit: order.index(audit.severity))
    table = Table("problem", "worst", "findings", show_lines=True)
    for audit in found[:SHOWN]:
        table.add_row(label(audit), Text(audit.severity, style=COLOURS[audit.severity]), _lines(audit))
    for part in (kinds, free, table):
        if part.row_count:
            console.print(part)
    if len(found) > SHOWN:
        console.print(f"{len(found) - SHOWN} more problems have findings; --out FILE.md or --json has them all.")
    severity = summary.severity
    console.print(
        f"{severity['reject']} to reject, {severity['warn']} with warnings, {severity['note']} with notes only,"
        f" {severity['']} without findings"
    )
    if base is not None:
        console.print(f"written to {base}.json and {base}.md", soft_wrap=True)


def _lines(audit: Audit) -> str:
    return "\n".join(f"{found.kind}: {found.message}" for found in audit.findings)
