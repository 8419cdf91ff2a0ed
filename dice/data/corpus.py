"""Write the synthetic corpus: generate, keep benchmarks out, verify each pair, write Parquet shards. Resumable.

Layout of the output folder:

    corpus.json                what was asked; a run resumes only what was asked the same way
    train/train-00000.parquet  shards of training pairs, each written whole or not at all
    heldout.parquet            compositions and operator contexts that no training pair has
    control.parquet            training compositions with other text, shapes and constants
    report.json                counts: kept, dropped and why, compositions, lengths
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dice import prompts
from dice.data import synth
from dice.data.decontaminate import Index, Match
from dice.data.layout import relaid
from dice.data.prose import without_prose
from dice.data.synth import Pair
from dice.errors import MachineError, UserError
from dice.problem import Problem
from dice.verdict import Verdict

SHARD_PAIRS = 500
COLUMNS = (
    "problem",
    "kernel",
    "prompt",
    "response",
    "name",
    "family",
    "style",
    "operators",
    "composition",
    "split",
    "heldout_by",
    "seed",
    "index",
    "verdict",
)
_SCHEMA = pa.schema(
    [
        (
            name,
            pa.int64() if name in ("seed", "index") else pa.list_(pa.string()) if name == "operators" else pa.string(),
        )
        for name in COLUMNS
    ]
)

Progress = Callable[[int, int, str], None]  # pairs done, pairs in all, what is under way


@dataclass(frozen=True, slots=True)
class Request:
    """What a corpus is made of. Two runs with equal requests write equal pairs."""

    pairs: int
    heldout: int
    control: int
    seed: int
    verify: bool
    shard_pairs: int
    prose_free: bool
    benchmarks: str  # hash of what is kept out
    generator: str  # hash of the generator's own source


def generator_version() -> str:
    """Content hash of the synth package: pairs made by different versions must not be mixed."""
    folder = Path(synth.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def build(
    out: Path,
    pairs: int,
    seed: int = 0,
    *,
    heldout: int = 240,
    control: int = 120,
    workers: int = 1,
    verify: bool = True,
    backend: str = "auto",
    decontaminate: Sequence[Path] = (),
    resume: bool = True,
    shard_pairs: int = SHARD_PAIRS,
    prose_free: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the corpus below `out` and return the report.

    `pairs` counts candidates: those that verification or decontamination drops are not replaced. `prose_free` writes
    each training pair a second time without docstrings and comments (`dice/data/prose.py`): the same program.
    Raises `UserError` when `out` holds another corpus, `MachineError` when verification cannot work here.
    """
    index = Index.from_folders(decontaminate) if decontaminate else None
    benchmarks = index.digest if index else ""
    request = Request(pairs, heldout, control, seed, verify, shard_pairs, prose_free, benchmarks, generator_version())
    _open_folder(out, request, resume)
    with ExitStack() as stack:
        writer = _Writer(
            index=index,
            verifier=stack.enter_context(_verifier(backend)) if verify else None,
            workers=workers,
            seed=seed,
            progress=progress or (lambda done, total, what: None),
            total=pairs + heldout + control,
        )
        for number, start in enumerate(range(0, pairs, shard_pairs)):
            indices = range(start, min(start + shard_pairs, pairs))
            writer.write(
                out / "train" / f"train-{number:05d}.parquet",
                partial(_train_pairs, seed, indices),
                len(indices),
                prose_free,
            )
        test_seed = seed + 1_000_003
        writer.write(out / "heldout.parquet", lambda: enumerate(synth.heldout(heldout, test_seed)), heldout)
        known = control if pairs else 0
        writer.write(
            out / "control.parquet", lambda: enumerate(synth.in_distribution(known, test_seed, seed, pairs)), known
        )
    report = _report(out, request)
    _replace(out / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    return report


def _train_pairs(seed: int, indices: Iterable[int]) -> Iterator[tuple[int, Pair]]:
    return ((index, synth.generate(seed, index)) for index in indices)


def _open_folder(out: Path, request: Request, resume: bool) -> None:
    path = out / "corpus.json"
    wanted = asdict(request)
    if path.exists():
        if not resume:
            raise UserError(f"{out} already holds a corpus; choose another folder.")
        present = json.loads(path.read_text(encoding="utf-8"))
        changed = [name for name in wanted if present.get(name) != wanted[name]]
        if changed:
            raise UserError(f"{out} holds a corpus with another {', '.join(changed)}; choose another folder.")
        return
    (out / "train").mkdir(parents=True, exist_ok=True)
    _replace(path, (json.dumps(wanted, indent=1) + "\n").encode())


class _Writer:
    """Writes one Parquet file at a time; what is finished already is left alone."""

    def __init__(
        self, *, index: Index | None, verifier: Any, workers: int, seed: int, progress: Progress, total: int
    ) -> None:
        self.index = index
        self.verifier = verifier
        self.workers = workers
        self.seed = seed
        self.progress = progress
        self.total = total
        self.done = 0
        self.seen: set[str] = set()  # problems of earlier files: each text occurs once

    def write(
        self, path: Path, draw: Callable[[], Iterator[tuple[int, Pair]]], count: int, prose_free: bool = False
    ) -> None:
        if path.exists():
            table = pq.read_table(path, columns=["problem"])
            self.seen.update(map(_text_id, table["problem"].to_pylist()))
            self.done += count
            self.progress(self.done, self.total, path.name)
            return
        started = time.monotonic()
        dropped: Counter[str] = Counter()
        matches: list[Match] = []
        kept = [item for item in draw() if self._is_wanted(item[1], dropped, matches)]
        self.done += count - len(kept)
        rows = [self._row(*item, verdict) for item, verdict in self._verified(kept, dropped, path.name)]
        if prose_free:
            rows = [row for pair in rows for row in (pair, _without_prose(pair))]
        self.seen.update(_text_id(row["problem"]) for row in rows)
        seconds = round(time.monotonic() - started, 2)
        notes = {"dropped": dict(dropped), "in_benchmarks": list(map(asdict, matches)), "seconds": seconds}
        schema = _SCHEMA.with_metadata({"dice": json.dumps(notes)})
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary, compression="zstd")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def _is_wanted(self, pair: Pair, dropped: Counter[str], matches: list[Match]) -> bool:
        text = _text_id(pair.problem.source)
        if text in self.seen:
            dropped["repeats an earlier problem"] += 1
            return False
        self.seen.add(text)
        match = self.index.find(pair.problem) if self.index else None
        if match is not None:
            dropped["is in a benchmark"] += 1
            matches.append(match)
            return False
        return True

    def _verified(
        self, items: list[tuple[int, Pair]], dropped: Counter[str], what: str
    ) -> Iterator[tuple[tuple[int, Pair], str]]:
        if self.verifier is None:
            self.done += len(items)
            self.progress(self.done, self.total, what)
            yield from ((item, "") for item in items)
            return
        jobs = [(pair.check_problem, pair.kernel) for _, pair in items]
        verdicts: dict[int, Verdict] = {}
        for position, verdict in self.verifier.verify_many(jobs, workers=self.workers):
            verdicts[position] = verdict
            self.done += 1
            self.progress(self.done, self.total, what)
        broken = [verdict for verdict in verdicts.values() if verdict.outcome == "infra_error"]
        if broken and 2 * len(broken) > len(items):
            raise MachineError(f"Most pairs of {what} could not be verified here: {broken[0].message}")
        for position, item in enumerate(items):  # in the order of the indices, whatever finished first
            verdict = verdicts[position]
            if verdict.correct:
                yield item, verdict.outcome
            else:
                dropped[f"{verdict.outcome}: {item[1].family}"] += 1

    def _row(self, index: int, pair: Pair, verdict: str) -> dict[str, Any]:
        source = relaid(pair.problem.source, random.Random(f"{self.seed}:{index}:layout"))
        return {
            "problem": source,
            "kernel": pair.kernel.source,
            "prompt": prompts.zero_shot(Problem(source, pair.problem.name)),
            "response": prompts.reply(pair.kernel),
            "name": pair.problem.name,
            "family": pair.family,
            "style": pair.style,
            "operators": list(pair.operators),
            "composition": pair.composition,
            "split": pair.split,
            "heldout_by": pair.heldout_by,
            "seed": self.seed,
            "index": index,
            "verdict": verdict,
        }


def _report(out: Path, request: Request) -> dict[str, Any]:
    """Counts over the finished files alone, so that an interrupted run reports like an uninterrupted one."""
    report: dict[str, Any] = {"request": asdict(request)}
    for name, paths in (
        ("train", sorted((out / "train").glob("train-*.parquet"))),
        ("heldout", [out / "heldout.parquet"]),
        ("control", [out / "control.parquet"]),
    ):
        dropped: Counter[str] = Counter()
        seconds = 0.0
        matches: list[dict[str, Any]] = []
        rows: list[dict[str, Any]] = []
        for path in paths:
            file = pq.ParquetFile(path)
            notes = json.loads((file.schema_arrow.metadata or {})[b"dice"])
            dropped.update(notes["dropped"])
            matches += notes["in_benchmarks"]
            seconds += notes["seconds"]
            columns = ["family", "style", "composition", "heldout_by", "operators", "prompt", "response"]
            rows += file.read(columns=columns).to_pylist()
        count = max(1, len(rows))
        report[name] = {
            "pairs": len(rows),
            "dropped": dict(dropped.most_common()),
            "in_benchmarks": matches,
            "compositions": len({row["composition"] for row in rows}),
            "operators": len({operator for row in rows for operator in row["operators"]}),
            "families": dict(Counter(row["family"] for row in rows).most_common()),
            "styles": dict(Counter(row["style"] for row in rows).most_common()),
            "heldout_by": dict(Counter(row["heldout_by"] for row in rows if row["heldout_by"])),
            "mean_prompt_characters": round(sum(len(row["prompt"]) for row in rows) / count, 1),
            "mean_response_characters": round(sum(len(row["response"]) for row in rows) / count, 1),
            "seconds": round(seconds, 1),
        }
    return report


def _verifier(backend: str) -> Any:
    from dice.verify import Options, Verifier

    return Verifier(backend=backend, options=Options(trials=3, timing=False))


def _without_prose(row: dict[str, Any]) -> dict[str, Any]:
    rng = random.Random(f"{row['seed']}:{row['index']}:prose")
    source = relaid(without_prose(row["problem"], rng), rng)
    return row | {"problem": source, "prompt": prompts.zero_shot(Problem(source, row["name"]))}


def _text_id(source: str) -> str:
    """The same for every layout of a text."""
    source = "\n".join(line for line in source.split("\n") if line.strip())
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)
