"""Audit and difficulty of the RL problems that the paper's authors released, held against an earlier count of them.

    python benchmarks/rl_problems_audit.py end_to_end_kernel_generation_4000.json -o benchmarks/audit/released_rl

The file is fetched from the authors' repository and never copied here; the report holds counts and row numbers only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dice.data import difficulty
from dice.data.difficulty import LEVELS, Difficulty
from dice.files.atomic import write_json, write_text
from dice.problem import Problem
from dice.verify.audit.findings import Audit
from dice.verify.audit.report import summarise
from dice.verify.audit.run import AuditSettings, audit_all

sys.path.insert(0, str(Path(__file__).parent))

from rank_agreement import kendall, outranks, spearman  # noqa: E402

# Counted before by other code: each problem run at full size, two seeds compared under KernelBench's first tolerance.
EARLIER = {
    "problems that ran": 3917,
    "degenerate: an answer that ignores the inputs passes (1e-2)": 989,
    "of these: get_inputs gives fixed values": 466,
    "of these: inputs vary, the output is in floating point": 303,
    "of these: inputs vary, the output is bool or integer": 218,
    "degenerate at 1e-4": 920,
    "zeros pass (1e-2)": 288,
    "one value passes, output not scalar (1e-2)": 451,
    "an input unchanged passes (1e-2)": 30,
    "returns a tuple, list or dict": 105,
    "returns complex numbers": 17,
    "returns NaN": 5,
    "returns a scalar": 187,
}
UNFINISHED = ("broken", "too_slow", "too_large", "audit_failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True, help="NAME of NAME.json and NAME.md")
    parser.add_argument("--record", type=Path, help="JSON Lines file that an interrupted run resumes from")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--timeout", type=float, default=8.0)
    parser.add_argument("--depth", choices=("full", "quick"), default="quick")
    parser.add_argument("--first", type=int, default=0, help="only so many")
    args = parser.parse_args()

    rows = json.loads(args.problems.read_text())[: args.first or None]
    problems = [Problem(row["pytorch_code"], name=str(row["idx"])) for row in rows]
    settings = AuditSettings(limit_s=args.timeout, protocol="kernelbench-v0", depth=args.depth)
    started = time.monotonic()
    load = os.getloadavg()[0]
    audits = audit_all(problems, settings, workers=args.workers, record=args.record, progress=_Progress(started))
    labels = [difficulty.from_audit(one.source, audit) for one, audit in zip(problems, audits, strict=True)]
    minutes = (time.monotonic() - started) / 60
    machine = {"minutes": round(minutes, 1), "workers": args.workers, "load": [round(load, 1), _load()]}
    spent = [audit.facts["cpu_s"] for audit in audits if "cpu_s" in audit.facts]
    machine["cpu_s_per_problem"] = round(sum(spent) / max(1, len(spent)), 3)
    report = machine | _report(rows, audits, labels)
    write_json(args.out.with_suffix(".json"), report)
    write_text(args.out.with_suffix(".md"), _page(report))
    print(_page(report))


class _Progress:
    def __init__(self, started: float):
        self.started = self.shown = started

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done and (now - self.shown > 5 or done == total):
            self.shown = now
            left = (now - self.started) / done * (total - done)
            print(f"\r{done}/{total}, {left / 60:.1f} min left", end="", file=sys.stderr, flush=True)


def _load() -> float:
    return round(os.getloadavg()[0], 1)


def _report(rows: Sequence[dict[str, Any]], audits: Sequence[Audit], labels: Sequence[Difficulty]) -> dict[str, Any]:
    counts, degenerate = _counts(rows, audits)
    tags = [int(row["level"]) for row in rows]
    return {
        "problems": len(rows),
        "unfinished": {kind: sum(kind in audit.kinds() for audit in audits) for kind in UNFINISHED},
        "counts": counts,
        "kinds": summarise(audits).kinds,
        "degenerate_rows": degenerate,
        "difficulty": _agreement(tags, labels),
    }


def _counts(rows: Sequence[dict[str, Any]], audits: Sequence[Audit]) -> tuple[dict[str, int], list[int]]:
    ran = [(row["idx"], audit) for row, audit in zip(rows, audits, strict=True) if audit.facts.get("output")]

    def passing(answer: str, protocol: str) -> list[int]:
        return [
            number
            for number, audit in ran
            if any(name.startswith(answer) and protocol in by for name, by in audit.passes.items())
        ]

    free = passing("input_free", "kernelbench-v0")
    outputs = {number: str(audit.facts["output"]) for number, audit in ran}
    fixed = {number for number, audit in ran if "fixed_inputs" in audit.kinds()}
    varying = set(free) - fixed
    discrete = {number for number in varying if "float" not in outputs[number] and "complex" not in outputs[number]}
    nested = sum(text.startswith(("a tuple", "a list", "a dict")) for text in outputs.values())
    counts = {
        "problems that ran": len(ran),
        "degenerate: an answer that ignores the inputs passes (1e-2)": len(free),
        "of these: get_inputs gives fixed values": len(fixed & set(free)),
        "of these: inputs vary, the output is in floating point": len(varying) - len(discrete),
        "of these: inputs vary, the output is bool or integer": len(discrete),
        "degenerate at 1e-4": len(passing("input_free", "kernelbench")),
        "zeros pass (1e-2)": len(passing("zeros", "kernelbench-v0")),
        "one value passes, output not scalar (1e-2)": len(passing("constant", "kernelbench-v0")),
        "an input unchanged passes (1e-2)": len(passing("identity", "kernelbench-v0")),
        "returns a tuple, list or dict": nested,
        "returns complex numbers": sum("complex" in text for text in outputs.values()),
        "returns NaN": sum("non_finite_output" in audit.kinds() for _, audit in ran),
        "returns a scalar": sum(text.endswith("scalar") and " of " not in text for text in outputs.values()),
    }
    return counts, free


def _agreement(tags: Sequence[int], labels: Sequence[Difficulty]) -> dict[str, Any]:
    places = [LEVELS.index(one.level) for one in labels]
    order = [10.0 * one.order[0] + one.order[1] for one in labels]
    table = Counter((str(tag), one.level) for tag, one in zip(tags, labels, strict=True))
    single = [(sum(one.operators.values()), tag) for one, tag in zip(labels, tags, strict=True)]
    by_operators = Counter((str(min(count, 5)), str(tag)) for count, tag in single)
    return {
        "levels": {level: sum(one.level == level for one in labels) for level in LEVELS},
        "by_text_alone": sum(one.by == "text" for one in labels),
        "tags_by_level": {
            f"tag {tag}": {level: table[tag, level] for level in LEVELS} for tag in sorted(set(map(str, tags)))
        },
        "operators_by_tag": {f"{count} operators, tag {tag}": n for (count, tag), n in sorted(by_operators.items())},
        "by_level": _correlations(places, tags),
        "by_level_and_score": _correlations(order, tags),
    }


def _correlations(order: Sequence[float], tags: Sequence[int]) -> dict[str, float]:
    easy = [place for place, tag in zip(order, tags, strict=True) if tag <= 1]
    hard = [place for place, tag in zip(order, tags, strict=True) if tag >= 2]
    return {
        "spearman": round(spearman(order, tags), 3),
        "kendall_tau_b": round(kendall(order, tags), 3),
        "harder_tag_ranks_higher": round(outranks(hard, easy), 3) if easy and hard else 0.5,
    }


def _page(report: dict[str, Any]) -> str:
    counts, found = report["counts"], report["difficulty"]
    ran = counts["problems that ran"] or 1
    lines = [
        "# The released RL problems, audited",
        f"{report['problems']} problems, audit and difficulty in one run: {report['minutes']} minutes with"
        f" {report['workers']} workers (load of the machine {report['load'][0]} before, {report['load'][1]} after);"
        f" {report['cpu_s_per_problem']} CPU seconds a problem, in its own process."
        f" Not audited to the end: {', '.join(f'{n} {kind}' for kind, n in report['unfinished'].items())}.",
        f"**{100 * counts['degenerate: an answer that ignores the inputs passes (1e-2)'] / ran:.1f}% of those that ran"
        " are degenerate**: an answer that never reads the inputs passes KernelBench's first tolerance, which is what"
        " they were trained with.",
        "| | here | share | earlier count | share |\n| --- | --- | --- | --- | --- |\n"
        + "\n".join(
            f"| {what} | {counts[what]} | {100 * counts[what] / ran:.1f}% | {then} | {100 * then / 3917:.1f}% |"
            for what, then in EARLIER.items()
        ),
        "The earlier count ran each problem at full size and compared two seeds; here large problems are audited at"
        " smaller sizes, and the answer that ignores the inputs is the mean of four outputs.",
        "## Findings\n\n| kind | problems |\n| --- | --- |\n"
        + "\n".join(f"| `{kind}` | {n} |" for kind, n in report["kinds"].items()),
        "## Difficulty\n\nLevels by the offline labeller: "
        + ", ".join(f"{n} {level}" for level, n in found["levels"].items())
        + f" ({found['by_text_alone']} by the text alone). Agreement with the released tags, which are 1 (easy) or 2"
        " (harder) for all but three problems, and say nothing of an order among equals:",
        "| order | Spearman | Kendall tau-b | a harder tag ranks above an easier one |\n| --- | --- | --- | --- |\n"
        + "\n".join(
            f"| {what} | {row['spearman']} | {row['kendall_tau_b']} | {row['harder_tag_ranks_higher']} |"
            for what, row in (
                ("levels alone", found["by_level"]),
                ("levels, and scores within them", found["by_level_and_score"]),
            )
        ),
        "| released tag | "
        + " | ".join(LEVELS)
        + " |\n| --- | --- | --- | --- |\n"
        + "\n".join(
            f"| {tag} | " + " | ".join(str(row[level]) for level in LEVELS) + " |"
            for tag, row in found["tags_by_level"].items()
        ),
    ]
    return "\n\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
