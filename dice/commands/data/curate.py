"""`dice data measure`, `dice data cuke`, `dice data rl`: from samples to the sets that models are trained on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.table import Table
from tyro.conf import Positional, arg

from dice.commands.arguments import Backend, Clustered, at_least, options
from dice.commands.progress import bars
from dice.errors import UserError
from dice.files import JsonObject
from dice.terminal import Console

if TYPE_CHECKING:
    from dice.data.decontaminate import Index

CHAIN = ("concur", "cudallm-sft", "cudallm-rl")  # the published sets that CuKe and the sets of BiC-RL are made of
UNKNOWN_SIZE = "unknown until the hub answers"


@dataclass
class Measure(Clustered):
    """Verify and time every pair of a set: right or why not, honest or not, how fast. An interrupted run resumes.

    Example: dice data measure samples.parquet -o measured
    """

    samples: Annotated[Positional[tuple[Path, ...]], arg(metavar="SAMPLES.parquet", help_behavior_hint="")]
    """Files or folders of samples, as `dice data import` writes them, or of pairs that it reads: a synthetic corpus."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """Folder for the samples with their verdicts, and report.json."""
    shard: str = "1/1"
    """Measure the second of eight parts: 2/8. Each machine takes one; the folders together are the whole."""
    backend: Backend = "auto"
    """cuda verifies and times on a GPU; emulated verifies on the CPU and says nothing of speed."""
    workers: int = 0
    """Candidates under way at once; 0 for as many as this machine can compile and run."""
    devices: tuple[str, ...] = ()
    """The GPUs to use, as CUDA_VISIBLE_DEVICES names them; all of them by default."""
    trials: int = 5
    """Fresh inputs to check each pair on."""
    scale: float | None = None
    """Emulated backend: shrink batch-like dimensions by this factor for the check, as stated in the verdict."""
    timing: bool = True
    """Time what is correct (cuda backend only): the larger part of the cost."""
    timing_seconds: float = 3.0
    """Time one pair no longer than this; less leaves the speed-up's interval wider."""
    compile_baseline: bool = False
    """Also measure against torch.compile."""
    compile_timeout: float = 120.0
    """Seconds the compiler may take."""
    run_timeout: float = 60.0
    """Seconds a candidate may run."""
    memory_mb: int = 8192
    """Host memory a candidate may use."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from dice.data.measure import Shard, measure

        _require(self.samples, "SAMPLES.parquet")
        at_least(0, workers=self.workers)
        asked = options(
            trials=self.trials,
            scale=self.scale,
            timing=self.timing,
            timing_s=self.timing_seconds,
            compile_baseline=self.compile_baseline,
            compile_timeout_s=self.compile_timeout,
            run_timeout_s=self.run_timeout,
            memory_mb=self.memory_mb,
        )
        with bars() as show:
            report = measure(
                self.samples,
                self.out,
                shard=Shard.parse(self.shard),
                backend=self.backend,
                options=asked,
                workers=self.workers or None,
                devices=self.devices or None,
                make_verifier=self.make_verifier,
                progress=partial(show, "measuring"),
                advise=lambda sentence: print(f"dice: {sentence}", file=sys.stderr, flush=True),
            )
        if self.json:
            print(json.dumps(report))
        else:
            show_measured(Console(), report)
            print(f"written to {self.out}")
        return 0


@dataclass
class Cuke:
    """Curate the supervised set from measured samples: what is right, honest, fast, and said once (paper section 3).

    Exit code 1 when nothing is kept.

    Example: dice data cuke measured -o cuke
    """

    measured: Annotated[Positional[tuple[Path, ...]], arg(metavar="MEASURED", help_behavior_hint="")] = ()
    """Folders that `dice data measure` wrote, or files of them."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Folder for the set: Parquet, JSON, the report and the dataset card."""
    base: tuple[str, ...] = ("concur",)
    """Sources whose correct samples are kept whatever their speed."""
    keep_base: bool = False
    """Keep base samples as they are, as the paper keeps ConCuR: unverified, wrong and repeated ones too, each labelled.
    They need not be measured. Only --benchmarks still drops any."""
    min_speedup: float = 2.0
    """What pairs of other sources must exceed over eager PyTorch (paper: 2.0; Table 4 also 1.5 and 2.5)."""
    confident: bool = False
    """Hold the lower bound of the speed-up's 95% interval against thresholds, not its point value."""
    concise: bool = False
    """Of a base problem's answers keep one: correct, faster than PyTorch, with the shortest reasoning (ConCuR)."""
    structural: tuple[Path, ...] = ()
    """Measured structural samples: kept when their speed-up is confirmed."""
    benchmarks: tuple[Path, ...] = ()
    """Folders of benchmark problems: what equals or nearly equals one of theirs is dropped."""
    near_duplicate: float = 0.9
    """Similarity of problems and of kernels from which two samples count as one."""
    prompt: Literal["one-shot", "compact"] = "one-shot"
    """The prompt of samples that come without one."""
    dry_run: bool = False
    """Print the report and write nothing. Without MEASURED: which files the whole chain would fetch, how large they are
    and under which licences; nothing is fetched."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        if self.dry_run and not self.measured:
            return _show_needed(self.json)
        from dice.data.cuke.candidates import CurationSettings
        from dice.data.cuke.curate import candidates, curate, report_on
        from dice.data.cuke.write import write
        from dice.data.sample import read_sets

        _require_measured([*self.measured, *self.structural], "MEASURED")
        if self.out is None and not self.dry_run:
            raise UserError("Say where the set goes: --out DIR, or --dry-run for the report alone.")
        settings = CurationSettings(
            base=self.base,
            min_speedup=self.min_speedup,
            confident=self.confident,
            concise=self.concise,
            keep_base=self.keep_base,
            near_duplicate=self.near_duplicate,
            prompt=self.prompt,
        )
        given = candidates(read_sets(self.measured), read_sets(self.structural), settings)
        curation = curate(given, settings, _index(self.benchmarks))
        report = report_on(curation)
        out = None if self.dry_run else self.out
        if out is not None:
            write(curation, report, out, _command(self))
        if self.json:
            print(json.dumps(report))
        else:
            show_curated(Console(), report)
            if out is not None:
                print(f"written to {out}")
        if not report["kept"]:
            print("dice: no sample was kept; the report says which rule removed how many", file=sys.stderr)
        return 0 if report["kept"] else 1


@dataclass
class Rl:
    """Make the two sets of BiC-RL: kernels whose core is to be filled in, and problems to solve, each easy to hard.

    Example: dice data rl measured -o rl-data
    """

    samples: Annotated[Positional[tuple[Path, ...]], arg(metavar="SAMPLES.parquet", help_behavior_hint="")]
    """Files of samples or folders of them; those with a verdict can become infilling rows, all of them problems."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """Folder for both sets and report.json. An interrupted audit resumes here."""
    infill: int = 992
    """Rows of the infilling set."""
    generate: int = 4000
    """Rows of the generation set."""
    audit: Path | None = None
    """Take audits from the .json report of `dice data inspect`; what it lacks is audited here."""
    benchmarks: tuple[Path, ...] = ()
    """Folders of benchmark problems: what equals or nearly equals one of theirs is dropped."""
    backend: Backend = "auto"
    """Where the audit runs references: cuda (a GPU) or emulated (the CPU)."""
    workers: int = os.cpu_count() or 1
    """Problems audited at once."""
    timeout: float = 60.0
    """Seconds for one problem's audit."""
    json: bool = False
    """Print the report as JSON."""

    def run(self) -> int:
        from dice.data.rl.audit import Audits
        from dice.data.rl.build import generation, infilling
        from dice.data.rl.ranking import Ranker, offline_labeller
        from dice.data.rl.write import write
        from dice.data.sample import read_sets

        _require_measured(self.samples, "SAMPLES.parquet")
        at_least(0, infill=self.infill, generate=self.generate)
        at_least(1, workers=self.workers)
        samples, index = list(read_sets(self.samples)), _index(self.benchmarks)
        self.out.mkdir(parents=True, exist_ok=True)
        with bars() as show:
            labelling, auditing = partial(show, "labelling"), partial(show, "auditing")
            ranker = Ranker(offline_labeller(self.workers, self.out / "difficulty.jsonl", labelling))
            audits = Audits.open(
                self.audit, self.out / "audit.jsonl", self.backend, self.timeout, self.workers, auditing
            )
            cores, split = infilling(samples, self.infill, ranker, index)
            problems, audited = generation(samples, self.generate, ranker, audits, index)
        report = {
            "infilling": split.to_json() | {"levels": _levels(one.ranked.level for one in cores)},
            "generation": audited.to_json() | {"levels": _levels(one.level for one in problems)},
            "difficulty": ranker.counts,
            "audits": audits.counts,
            "benchmarks": index.digest if index else "",
        }
        write(cores, problems, report, self.out)
        if self.json:
            print(json.dumps(report))
            return 0
        _show_rl(Console(), report)
        print(f"written to {self.out}")
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
    for flag, folders in (("--structural", args.structural), ("--benchmarks", args.benchmarks)):
        if folders:
            words += [flag, *(path.name for path in folders)]
    switches = {"--keep-base": args.keep_base, "--confident": args.confident, "--concise": args.concise}
    words += [flag for flag, given in switches.items() if given]
    words += ["--near-duplicate", f"{args.near_duplicate:g}", "--prompt", args.prompt]
    return " ".join(words)


def _show_needed(as_json: bool) -> int:
    """What `dice data import` would fetch for CuKe and the RL sets, and what lies in the hub's cache already."""
    from dice.data.sources.hub import needed

    files = [one for name in CHAIN for one in needed(name)]
    if as_json:
        print(json.dumps([one.to_json() for one in files]))
        return 0
    table = Table("set", "file", "size", "licence")
    for one in files:
        known = UNKNOWN_SIZE if one.bytes is None else f"{one.bytes / 1e6:.1f} MB, fetched before"
        table.add_row(one.source, one.url, known, one.licence or "not stated")
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    print("Nothing was fetched.")
    return 0


# -- the terminal ------------------------------------------------------------------------------------------------------


def show_measured(console: Console, report: JsonObject) -> None:
    outcomes = Table("outcome", "pairs", title=f"{report['pairs']} pairs of {report['samples']} samples")
    for name, count in report["outcomes"].items():
        outcomes.add_row(name, str(count))
    for kind, count in report["deceptions"].items():
        outcomes.add_row(f"  {kind}", str(count))
    console.print(outcomes)
    incomplete = report["without_problem"] + report["without_kernel"]
    if incomplete:
        print(f"incomplete: {incomplete} samples without a problem or a kernel, which cannot be measured")
    _show_histogram(console, report["speedup"])
    if report["unmeasured"]:
        why = "; ".join(f"{message} ({count})" for message, count in report["unmeasured_because"].items())
        print(f"unmeasured: {report['unmeasured']} pairs; run again to try them: {why or 'not reached'}")


def show_curated(console: Console, report: JsonObject) -> None:
    table = Table("rule", "samples", "a sample that", title=f"{report['kept']} kept of {report['rows_in']} samples")
    for name, one in report["removed"].items():
        table.add_row(name, str(one["rows"]), one["what"])
    console.print(table)
    parts = ", ".join(f"{count} {part}" for part, count in report["parts"].items())
    print(f"kept: {parts}")
    others = {name: count for name, count in report["checked"].items() if name != "correct"}
    if others:
        print(f"kept as they are: {', '.join(f'{count} {name}' for name, count in others.items())}")
    _show_histogram(console, report["speedup"])


def _show_histogram(console: Console, speedup: JsonObject) -> None:
    measured = [name for name in ("eager", "compile") if speedup[name]["values"]]
    if not measured:
        print("speed-ups: none measured")
        return
    table = Table("speed-up", *(f"over {name}" for name in measured), title="correct and timed (paper, Table 12)")
    for bucket in speedup["eager"]["buckets"]:
        cells = [f"{speedup[name]['buckets'][bucket]} ({speedup[name]['percent'][bucket]}%)" for name in measured]
        table.add_row(bucket, *cells)
    console.print(table)


def _show_rl(console: Console, report: JsonObject) -> None:
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
