"""Modules in each of `dice generate`'s forms, one greedy sample of a model each: as written (or completed from the
module), region by region in canonical form, and region by region by rule, without the model. A run that was stopped
goes on. `OUT.summary.json` holds the counts of each way with Wilson's intervals.

    python benchmarks/plain_ways.py OUT.jsonl [--problems FILE] [--model MODEL] [--forms FORM ...] [--workers N]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch

import dice
from dice.errors import UserError
from dice.evaluate.statistics import wilson
from dice.files.atomic import write_json
from dice.files.journal import Journal
from dice.generation import DECODING, Attempt, Writer, attempts
from dice.model.checkpoint import resolve_model
from dice.optimize.run import attempt_by_regions, attempt_by_rules
from dice.problem import Problem
from dice.verify import Options, Verifier

FORMS = ("written", "canonical", "rules")  # in the order in which `dice generate` tries them
PLAIN = Path(__file__).parent / "plain.jsonl"
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=Path, default=PLAIN, help="JSON lines with `name` and `problem`")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="all, unless some are named")
    parser.add_argument("--workers", type=int, default=1, help="modules side by side, each in a process of one thread")
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    problems = [json.loads(line) for line in args.problems.read_text().splitlines()][: args.limit]
    subject = {"model": _fingerprint(resolve_model(args.model)), "problems": _fingerprint(args.problems)}
    subject["forms"] = " ".join(args.forms)
    with Journal(args.out, "run of plain_ways.py") as journal:
        found = list(journal.rows())
        if any(row.get("of") != subject for row in found):
            parser.error(f"{args.out} holds rows of another model, other problems or other forms; name another file.")
        done = {row["name"] for row in found}
        for row in _measure([row for row in problems if row["name"] not in done], args):
            row["of"] = subject
            journal.append(row)
            found.append(row)
            print(row["name"], *(row[form] for form in args.forms), flush=True)
    asked = {row["name"]: row.get("kind", "") for row in problems}
    summary = (
        _setup(args) | {"of": subject} | summarise([row for row in found if row["name"] in asked], asked, args.forms)
    )
    write_json(args.out.with_suffix(".summary.json"), summary)
    for way, counts in summary["ways"].items():
        low, high = counts["interval"]
        print(f"{way}: {counts['right']} of {summary['count']} ({counts['percent']}%, {low} to {high})")


def _measure(problems: Sequence[Row], args: argparse.Namespace) -> Iterator[Row]:
    """By completion. Processes are spawned, for a fork would share PyTorch's threads."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, args.workers), spawned, initializer=_begin, initargs=(args.model,)) as pool:
        asked = [pool.submit(_attempts, row["name"], row["problem"], args.forms) for row in problems]
        for done in as_completed(asked):
            yield done.result()


class Worker:
    """What a process of the pool keeps from module to module."""

    model: str
    writer: Writer
    verifier: Verifier


def _begin(model: str) -> None:
    Worker.model, Worker.writer = model, Writer.load(model, DECODING)
    torch.set_num_threads(1)
    Worker.verifier = Verifier(backend="emulated", options=Options(timing=False)).__enter__()
    Finalize(None, Worker.verifier.__exit__, args=(None, None, None), exitpriority=10)


def _attempts(name: str, source: str, forms: Sequence[str]) -> Row:
    """Each form, whether or not it is needed. What the model cannot be asked counts as not right."""
    problem = Problem(source, name)
    row: Row = {"name": name}
    for form in forms:
        attempt, why = _attempt(problem, form)
        row[form] = _said(attempt) | ({"why": why} if why else {})
    return row


def _attempt(problem: Problem, form: str) -> tuple[Attempt | None, str]:
    writer, verifier = Worker.writer, Worker.verifier
    if form == "rules":
        return attempt_by_rules(problem, verifier)
    if form == "canonical":
        return attempt_by_regions(problem, Worker.model, writer, verifier, samples=1, prompt="auto", seed=0)
    try:
        (attempt,) = attempts(problem, writer, verifier, samples=1, refine=0, prompt="auto", seed=0)
    except UserError as error:
        return None, str(error)
    return attempt, ""


def _said(attempt: Attempt | None) -> Row:
    if attempt is None:
        return {"outcome": "none"}
    verdict = attempt.verdict
    share = verdict.replaced.time_share if verdict.replaced else None
    all_of_it = verdict.solves("all")
    return {"outcome": verdict.outcome, "way": attempt.way, "all_operators": all_of_it, "time_share": share}


def _right(said: Row) -> bool:
    return bool(said["outcome"] == "correct")


def _first_right(row: Row) -> Row:
    """What `dice generate` gives: a form only where nothing right came of those before it."""
    said: Row = next((row[form] for form in FORMS if form in row and _right(row[form])), {"outcome": "none"})
    return said


def _all_operators(row: Row) -> bool:
    """Of what `dice generate` gives, with rules where PyTorch kept an operator."""
    found = (_first_right(row), row.get("rules", {}))
    return any(said.get("all_operators", False) for said in found)


WAYS: dict[str, tuple[str, Callable[[Row], bool]]] = {  # with the form that it is about, if it is one
    "as written": ("written", lambda row: _right(row["written"]) and row["written"]["way"] == "written"),
    "written, else completed": ("written", lambda row: _right(row["written"])),
    "canonical alone": ("canonical", lambda row: _right(row["canonical"])),
    "canonical alone, all operators": ("canonical", lambda row: row["canonical"].get("all_operators", False)),
    "by rule alone": ("rules", lambda row: _right(row["rules"])),
    "by rule alone, all operators": ("rules", lambda row: row["rules"].get("all_operators", False)),
    "one after the other": ("", lambda row: _right(_first_right(row))),
    "one after the other, all operators": ("", _all_operators),
}


def summarise(rows: Sequence[Row], kinds: dict[str, str], forms: Sequence[str]) -> Row:
    """Counts of each way over all rows, percent with Wilson's 95% interval, and counts by kind of module."""
    by_kind = {kind: [row for row in rows if kinds[row["name"]] == kind] for kind in sorted({*kinds.values()} - {""})}
    ways = {way: right for way, (form, right) in WAYS.items() if form in (*forms, "")}
    return {
        "count": len(rows),
        "ways": {way: _share(sum(map(right, rows)), len(rows)) for way, right in ways.items()},
        "kinds": {
            kind: {"count": len(own)} | {way: sum(map(right, own)) for way, right in ways.items()}
            for kind, own in by_kind.items()
        },
    }


def _share(right: int, count: int) -> Row:
    found = wilson(right, count)
    percents = [None if value is None else round(100 * value) for value in (found.value, found.low, found.high)]
    return {"right": right, "percent": percents[0], "interval": percents[1:]}


def _setup(args: argparse.Namespace) -> Row:
    versions = {"dice": dice.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {
        "model": args.model,
        "problems": args.problems.name,
        "samples": "one greedy of each way and region, emulated",
        "interval": "Wilson, 95%, percent",
        "cpu_cores": os.cpu_count(),
        "versions": versions,
    }


def _fingerprint(path: Path) -> str:
    """Of a file, or of a model's weights."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
