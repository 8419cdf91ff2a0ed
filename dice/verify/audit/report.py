"""What an audit says of a whole set: counts, a JSON form, a Markdown page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import dice
from dice.errors import UserError
from dice.files.atomic import read_json
from dice.files.markdown import table
from dice.verify.audit.findings import KINDS, SEVERITIES, Audit
from dice.verify.audit.run import AuditSettings

ANSWERS = {
    "input_free": "an answer that never reads the inputs",
    "constant": "one repeated value",
    "zeros": "zeros",
    "identity": "an input, unchanged",
}
PROTOCOLS = {
    "kernelbench-v0": "KernelBench, 1e-2",
    "kernelbench": "KernelBench, 1e-4",
    "dice": "our own checks",
}


def label(audit: Audit) -> str:
    """`level1/19_ReLU`."""
    return audit.name if audit.level is None else f"level{audit.level}/{audit.name}"


@dataclass(frozen=True, slots=True)
class AuditSummary:
    """Counts of problems by worst finding ("": none) and by kind of finding; and the problems that each answer without
    work passes, by protocol and answer ("any": one answer at least)."""

    problems: int
    severity: dict[str, int]
    kinds: dict[str, int]
    passes: dict[str, dict[str, list[str]]]


def summarise(audits: Sequence[Audit]) -> AuditSummary:
    kinds = Counter(kind for audit in audits for kind in audit.kinds())
    return AuditSummary(
        problems=len(audits),
        severity={name: sum(audit.severity == name for audit in audits) for name in (*SEVERITIES, "")},
        kinds={kind: kinds[kind] for kind in KINDS if kinds[kind]},
        passes={protocol: _passing(audits, protocol) for protocol in PROTOCOLS},
    )


def _passing(audits: Sequence[Audit], protocol: str) -> dict[str, list[str]]:
    found = {answer: [label(audit) for audit in audits if _passes(audit, answer, protocol)] for answer in ANSWERS}
    return found | {"any": [label(audit) for audit in audits if _passes(audit, "", protocol)]}


def _passes(audit: Audit, answer: str, protocol: str) -> bool:
    return any(name.startswith(answer) and protocol in passed for name, passed in audit.passes.items())


def to_json(audits: Sequence[Audit], settings: AuditSettings) -> dict[str, object]:
    head = {"dice": dice.__version__, "settings": asdict(settings), "summary": asdict(summarise(audits))}
    return head | {"audits": [audit.to_json() for audit in audits]}


def read_audits(path: Path) -> dict[str, Audit]:
    """The audits of a report that `to_json` made, by the id of the problem. Raises `UserError`."""
    try:
        found = [Audit.from_json(row) for row in read_json(path)["audits"]]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no report of an audit: `dice data inspect PROBLEMS -o FILE` writes one.") from None
    return {audit.problem: audit for audit in found}


def to_markdown(audits: Sequence[Audit], settings: AuditSettings, title: str = "Problem audit") -> str:
    summary = summarise(audits)
    severity = summary.severity
    parts = [
        f"# {title}",
        f"{summary.problems} problems: {severity['reject']} to reject, {severity['warn']} with warnings,"
        f" {severity['note']} with notes only, {severity['']} without findings. Judged by protocol"
        f" `{settings.protocol}`, references run {'on a GPU' if settings.backend == 'cuda' else 'on the CPU'},"
        f" {settings.limit_s:g} s and {settings.memory_mb} MiB for each problem, seed {settings.seed}.",
        "## Findings",
        table(("kind", "problems", "meaning"), [(f"`{k}`", n, KINDS[k]) for k, n in summary.kinds.items()]),
        "## Answers that do no work",
        "How many problems each passes, by whose comparison:",
        table(
            ("answer", *PROTOCOLS.values()),
            [
                (text, *(len(summary.passes[protocol][answer]) for protocol in PROTOCOLS))
                for answer, text in (*ANSWERS.items(), ("any", "any of these"))
            ],
        ),
        *_names(summary.passes),
        "## Problems",
        table(
            ("problem", "worst", "findings"),
            [(label(audit), audit.severity, _sentences(audit)) for audit in audits if audit.findings],
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _names(passes: dict[str, dict[str, list[str]]]) -> Iterable[str]:
    for protocol, text in PROTOCOLS.items():
        for answer, what in ANSWERS.items():
            if names := passes[protocol][answer]:
                yield f"**{text}: {what}** ({len(names)}): {', '.join(names)}."


def _sentences(audit: Audit) -> str:
    return "<br>".join(f"`{found.kind}` {_escape(found.message)}" for found in audit.findings)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
