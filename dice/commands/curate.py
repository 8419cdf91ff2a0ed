"""`dice data measure`, `dice data cuke`, `dice data rl`: from samples to the sets that models are trained on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dice.commands.arguments import at_least, options
from dice.commands.progress import bars
from dice.errors import UserError
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.cli_data import Cuke, Measure, Rl
    from dice.data.decontaminate import Index


def measure(args: Measure) -> int:
    from dice.data.measure import Shard, measure

    _require(args.samples, "SAMPLES.parquet")
    at_least(0, workers=args.workers)
    asked = options(
        trials=args.trials,
        timing=args.timing,
        timing_s=args.timing_seconds,
        compile_baseline=args.compile_baseline,
        compile_timeout_s=args.compile_timeout,
        run_timeout_s=args.run_timeout,
        memory_mb=args.memory_mb,
    )
    with bars() as show:
        report = measure(
            args.samples,
            args.out,
            shard=Shard.parse(args.shard),
            backend=args.backend,
            options=asked,
            workers=args.workers or None,
            devices=args.devices or None,
            progress=partial(show, "measuring"),
        )
    if args.json:
        print(json.dumps(report))
    else:
        show_measured(Console(), report)
        print(f"written to {args.out}")
    return 0


def cuke(args: Cuke) -> int:
    from dice.data.cuke.candidates import Settings
    from dice.data.cuke.curate import candidates, curate, report_on
    from dice.data.cuke.write import write
    from dice.data.sample import read_sets

    _require_measured([*args.measured, *args.structural], "MEASURED")
    if args.out is None and not args.dry_run:
        raise UserError("Say where the set goes: --out DIR, or --dry-run for the report alone.")
    settings = Settings(
        base=args.base,
        min_speedup=args.min_speedup,
        confident=args.confident,
        concise=args.concise,
        near_duplicate=args.near_duplicate,
        prompt=args.prompt,
    )
    given = candidates(read_sets(args.measured), read_sets(args.structural), settings)
    curation = curate(given, settings, _index(args.benchmarks))
    report = report_on(curation)
    out = None if args.dry_run else args.out
    if out is not None:
        write(curation, report, out, _command(args))
    if args.json:
        print(json.dumps(report))
    else:
        show_curated(Console(), report)
        if out is not None:
            print(f"written to {out}")
    if not report["kept"]:
        print("dice: no row was kept; the report says which rule removed how many", file=sys.stderr)
    return 0 if report["kept"] else 1


def rl(args: Rl) -> int:
    from dice.data.rl.audit import Audits
    from dice.data.rl.build import generation, infilling
    from dice.data.rl.order import Ranker, offline_labeller
    from dice.data.rl.write import write
    from dice.data.sample import read_sets

    _require_measured(args.samples, "SAMPLES.parquet")
    at_least(0, infill=args.infill, generate=args.generate)
    at_least(1, workers=args.workers)
    samples, index = list(read_sets(args.samples)), _index(args.benchmarks)
    args.out.mkdir(parents=True, exist_ok=True)
    with bars() as show:
        labelling, auditing = partial(show, "labelling"), partial(show, "auditing")
        ranker = Ranker(offline_labeller(args.workers, args.out / "difficulty.jsonl", labelling))
        audits = Audits.open(args.audit, args.out / "audit.jsonl", args.backend, args.timeout, args.workers, auditing)
        cores, split = infilling(samples, args.infill, ranker, index)
        problems, audited = generation(samples, args.generate, ranker, audits, index)
    report = {
        "infilling": split.to_json() | {"levels": _levels(one.ranked.level for one in cores)},
        "generation": audited.to_json() | {"levels": _levels(one.level for one in problems)},
        "difficulty": ranker.counts,
        "audits": audits.counts,
        "benchmarks": index.digest if index else "",
    }
    write(cores, problems, report, args.out)
    if args.json:
        print(json.dumps(report))
        return 0
    _show_rl(Console(), report)
    print(f"written to {args.out}")
    return 0


# -- what they share ---------------------------------------------------------------------------------------------------


def _require_measured(paths: Sequence[Path], what: str) -> None:
    from dice.data.measure import require_complete

    _require(paths, what)
    for folder in filter(Path.is_dir, paths):
        require_complete(folder)


def _require(paths: Sequence[Path], what: str) -> None:
    if not paths:
        raise UserError(f"Give at least one {what}: a Parquet file of samples, or a folder of them.")
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise UserError(f"There is no file or folder {missing}.")


def _index(folders: Sequence[Path]) -> Index | None:
    from dice.data.decontaminate import Index

    return Index.from_folders(folders) if folders else None


def _command(args: Cuke) -> str:
    """The command line that builds the set again, with folder names alone: paths differ between machines."""
    words = ["dice data cuke", *(path.name for path in args.measured), "-o", args.out.name if args.out else "DIR"]
    words += ["--base", *args.base, "--min-speedup", f"{args.min_speedup:g}"]
    words += ["--structural", *(path.name for path in args.structural)] * bool(args.structural)
    words += ["--benchmarks", *(path.name for path in args.benchmarks)] * bool(args.benchmarks)
    words += ["--confident"] * args.confident + ["--concise"] * args.concise
    words += ["--near-duplicate", f"{args.near_duplicate:g}", "--prompt", args.prompt]
    return " ".join(words)


# -- the terminal ------------------------------------------------------------------------------------------------------


def show_measured(console: Console, report: dict[str, Any]) -> None:
    outcomes = Table("outcome", "pairs", title=f"{report['pairs']} pairs of {report['samples']} samples")
    for name, count in report["outcomes"].items():
        outcomes.add_row(name, str(count))
    for kind, count in report["deceptions"].items():
        outcomes.add_row(f"  {kind}", str(count))
    console.print(outcomes)
    _show_histogram(console, report["speedup"])
    if report["unmeasured"]:
        why = "; ".join(f"{message} ({count})" for message, count in report["unmeasured_because"].items())
        print(f"{report['unmeasured']} pairs are not measured yet, run again to try them: {why or 'not reached'}")


def show_curated(console: Console, report: dict[str, Any]) -> None:
    table = Table("rule", "rows", "a row that", title=f"{report['rows_in']} rows in, {report['kept']} kept")
    for name, one in report["removed"].items():
        table.add_row(name, str(one["rows"]), one["what"])
    console.print(table)
    parts = ", ".join(f"{count} {part}" for part, count in report["parts"].items())
    print(f"kept: {parts}")
    _show_histogram(console, report["speedup"])


def _show_histogram(console: Console, speedup: dict[str, Any]) -> None:
    measured = [name for name in ("eager", "compile") if speedup[name]["values"]]
    if not measured:
        print("speed-ups: none measured")
        return
    table = Table("speed-up", *(f"over {name}" for name in measured), title="correct and timed (paper, Table 12)")
    for bucket in speedup["eager"]["buckets"]:
        cells = [f"{speedup[name]['buckets'][bucket]} ({speedup[name]['percent'][bucket]}%)" for name in measured]
        table.add_row(bucket, *cells)
    console.print(table)


def _show_rl(console: Console, report: dict[str, Any]) -> None:
    for name in ("infilling", "generation"):
        part = report[name]
        levels = ", ".join(f"{count} {level}" for level, count in part["levels"].items())
        table = Table("left out", "rows", title=f"{name}: {part['kept']} of {part['rows_in']} rows ({levels})")
        for reason, one in part["removed"].items():
            table.add_row(reason, str(one["rows"]))
        console.print(table)


def _levels(levels: Iterator[str]) -> dict[str, int]:
    from collections import Counter

    from dice.data.difficulty import LEVELS

    counts = Counter(level or "unknown" for level in levels)
    return {level: counts[level] for level in (*LEVELS, "unknown") if counts[level]}
