"""Write the synthetic corpus: generate, keep benchmarks out, verify each pair, write Parquet shards. Resumable.

Layout of the output folder:

    corpus.json                what was asked; a run resumes only what was asked the same way
    train/train-00000.parquet  shards of training pairs, each written whole or not at all
    heldout.parquet            compositions and operator contexts that no training pair has
    control.parquet            training compositions with other text, shapes and constants
    report.json                counts: kept, dropped and why, compositions, families and their styles, lengths
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dice.data.decontaminate import Index
from dice.errors import MachineError, UserError
from dice.files import JsonObject
from dice.files.atomic import read_json, write_json, write_parquet
from dice.launch import PACKAGE
from dice.synth import PLAIN, Styles
from dice.synth.drafting import Batch, Candidate, draft_all, text_id
from dice.verdict import Verdict

SHARD_PAIRS = 500  # pairs of one file: what a killed run has to make again at most
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

_WIDE_SCHEMA = _SCHEMA.append(pa.field("written", pa.list_(pa.string())))  # with the styles of `dice/synth/wide`

Progress = Callable[[int, int, str], None]  # pairs done, pairs in all, what is under way


@dataclass(frozen=True, slots=True)
class CorpusRequest:
    """What a corpus is made of. Two runs with equal requests write equal pairs."""

    pairs: int
    heldout: int
    control: int
    seed: int
    verify: bool
    shard_pairs: int
    prose_free: bool
    infill_share: float
    benchmarks: str  # hash of what is kept out
    generator: str  # `generator_version`
    styles: str = "plain"
    without_styles: str = ""  # names, with commas between
    canonical: bool = False  # whether a share of the pairs is in canonical form


# What shapes a row, below the package: the generator and layout of the pairs, the words of the prompts, where a kernel
# is cut for infilling, what counts as a repeat of a benchmark's problem, and the optimiser's printer.
SHAPING = (
    *("synth", "prompts.py", "kernel.py", "problem.py", "cpp.py", "syntax.py"),
    "kernel_form.py",
    *("data/decontaminate.py", "data/near_duplicates.py"),
    *("optimize/canonical", "optimize/graph.py", "optimize/operators.py", "optimize/printing.py"),
    *("optimize/python_text.py", "optimize/region.py", "optimize/regions.py", "optimize/trace/capture_graph.py"),
    "optimize/trace/simplify.py",
)


def generator_version(package: Path = Path(PACKAGE)) -> str:
    """Content hash of the code that shapes rows: those that different versions made must not be mixed."""
    digest = hashlib.sha256()
    for part in SHAPING:
        place = package / part
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
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
    infill_share: float = 0.0,
    styles: Styles = PLAIN,
    progress: Progress | None = None,
) -> JsonObject:
    """Write the corpus below `out` and return the report.

    `pairs` counts candidates: those that verification or decontamination drops are not replaced. `prose_free` writes
    each training pair a second time without docstrings and comments (`dice/synth/prose.py`): the same program.
    `infill_share` of them are written once more as infilling, the kernel's beginning and end given in the prompt.
    `workers` processes draw the pairs, and as many candidates are verified at once; the bytes do not depend on it.
    Raises `UserError` when `out` holds another corpus, `MachineError` when verification cannot work here.
    """
    folders = tuple(Path(folder) for folder in decontaminate)
    benchmarks = Index.from_folders(folders).digest if folders else ""
    request = CorpusRequest(
        *(pairs, heldout, control, seed, verify, shard_pairs, prose_free, infill_share, benchmarks),
        *(generator_version(), styles.width, ",".join(styles.without), styles.canonical is not None),
    )
    _open_folder(out, request, resume)
    batches = _batches(out, request, folders, styles)
    missing = [batch for path, batch in batches if not path.exists()]
    with ExitStack() as stack:
        drafts = stack.enter_context(closing(draft_all(missing, workers)))
        writer = _Writer(
            verifier=stack.enter_context(_verifier(backend)) if verify else None,
            workers=workers,
            progress=progress or (lambda done, total, what: None),
            total=pairs + heldout + control,
            schema=_SCHEMA if styles == PLAIN else _WIDE_SCHEMA,
        )
        for path, batch in batches:
            if path.exists():
                writer.skip(path, batch.stop - batch.start)
            else:
                writer.write(path, next(drafts))
    report = _report(out, request)
    write_json(out / "report.json", report)
    return report


def _batches(
    out: Path, request: CorpusRequest, benchmarks: tuple[Path, ...], styles: Styles
) -> list[tuple[Path, Batch]]:
    """Every file of the corpus with what it is drawn from, in the order in which they are written."""
    batches = []
    for number, start in enumerate(range(0, request.pairs, request.shard_pairs)):
        stop = min(start + request.shard_pairs, request.pairs)
        batch = Batch(
            *("train", request.seed, start, stop, benchmarks, request.prose_free, request.infill_share), styles=styles
        )
        batches.append((out / "train" / f"train-{number:05d}.parquet", batch))
    test_seed = request.seed + 1_000_003
    known = request.control if request.pairs else 0
    first = request.seed
    heldout = Batch("heldout", test_seed, 0, request.heldout, benchmarks, train_seed=first, styles=styles)
    control = Batch("control", test_seed, 0, known, benchmarks, train_seed=first, known=request.pairs, styles=styles)
    batches += [(out / "heldout.parquet", heldout), (out / "control.parquet", control)]
    return batches


def _open_folder(out: Path, request: CorpusRequest, resume: bool) -> None:
    path = out / "corpus.json"
    wanted = asdict(request)
    if path.exists():
        if not resume:
            raise UserError(f"{out} already holds a corpus; choose another folder.")
        present = read_json(path)
        changed = [name for name in wanted if present.get(name) != wanted[name]]
        if changed:
            raise UserError(f"{out} holds a corpus with another {', '.join(changed)}; choose another folder.")
        return
    (out / "train").mkdir(parents=True, exist_ok=True)
    write_json(path, wanted)


class _Writer:
    """Writes one Parquet file at a time; what is finished already is left alone."""

    def __init__(self, *, verifier: Any, workers: int, progress: Progress, total: int, schema: pa.Schema) -> None:
        self.verifier = verifier
        self.workers = workers
        self.progress = progress
        self.total = total
        self.schema = schema
        self.done = 0
        self.seen: set[str] = set()  # problems in finished files: each text occurs once

    def skip(self, path: Path, count: int) -> None:
        """Count a finished file."""
        self.seen.update(map(text_id, pq.read_table(path, columns=["problem"])["problem"].to_pylist()))
        self.done += count
        self.progress(self.done, self.total, path.name)

    def write(self, path: Path, candidates: list[Candidate]) -> None:
        dropped: Counter[str] = Counter()
        matches = [item.match for item in candidates if item.match]
        kept = self._wanted(candidates, dropped)
        self.done += len(candidates) - len(kept)
        rows = [
            row | {"verdict": verdict}
            for item, verdict in self._verified(kept, dropped, path.name)
            for row in item.rows
        ]
        self.seen.update(text_id(row["problem"]) for row in rows)
        notes = {"dropped": dict(dropped), "in_benchmarks": matches, "canonical": _asked(candidates)}
        schema = self.schema.with_metadata({"dice": json.dumps(notes)})
        write_parquet(path, pa.Table.from_pylist(rows, schema=schema))

    def _wanted(self, candidates: list[Candidate], dropped: Counter[str]) -> list[Candidate]:
        here: set[str] = set()
        kept = []
        for item in candidates:
            text = item.text_ids[0]
            if text in self.seen or text in here:
                dropped["repeats an earlier problem"] += 1
            elif item.fault:
                dropped[f"{item.fault}: {item.pair.family}"] += 1
            elif item.match:
                dropped["is in a benchmark"] += 1
            else:
                here.add(text)
                kept.append(item)
        return kept

    def _verified(self, items: list[Candidate], dropped: Counter[str], what: str) -> Iterator[tuple[Candidate, str]]:
        if self.verifier is None:
            self.done += len(items)
            self.progress(self.done, self.total, what)
            yield from ((item, "") for item in items)
            return
        jobs = [(item.pair.check_problem, item.pair.check_kernel) for item in items]
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
                dropped[f"{verdict.outcome}: {item.pair.family}"] += 1


def _asked(candidates: Sequence[Candidate]) -> dict[str, int]:
    """How many were asked for in canonical form and have it, and why the others have not."""
    answers = ("written" if item.pair.is_canonical else item.pair.not_canonical for item in candidates)
    return dict(Counter(filter(None, answers)))


def _report(out: Path, request: CorpusRequest) -> dict[str, object]:
    """Counts over the finished files alone, so that an interrupted run reports like an uninterrupted one."""
    report: JsonObject = {"request": asdict(request)}
    for name, paths in (
        ("train", sorted((out / "train").glob("train-*.parquet"))),
        ("heldout", [out / "heldout.parquet"]),
        ("control", [out / "control.parquet"]),
    ):
        dropped: Counter[str] = Counter()
        asked: Counter[str] = Counter()
        matches: list[JsonObject] = []
        characters: Counter[str] = Counter()
        rows: list[JsonObject] = []
        for path in paths:
            file = pq.ParquetFile(path)
            notes = json.loads((file.schema_arrow.metadata or {})[b"dice"])
            dropped.update(notes["dropped"])
            asked.update(notes["canonical"])
            matches += notes["in_benchmarks"]
            columns = {"family", "style", "composition", "heldout_by", "operators", "written"}
            rows += file.read(columns=[name for name in file.schema_arrow.names if name in columns]).to_pylist()
            texts = file.read(columns=["prompt", "response"])
            characters.update({name: pc.sum(pc.utf8_length(texts[name])).as_py() or 0 for name in texts.column_names})
        count = max(1, len(rows))
        families = Counter(row["family"] for row in rows)
        written = Counter(style for row in rows for style in row.get("written", ()))
        report[name] = {
            "pairs": len(rows),
            "dropped": dict(dropped.most_common()),
            "in_benchmarks": matches,
            "compositions": len({row["composition"] for row in rows}),
            "operators": len({operator for row in rows for operator in row["operators"]}),
            "families": dict(families.most_common()),
            "styles": dict(Counter(row["style"] for row in rows).most_common()),
            "family_styles": {
                family: dict(Counter(row["style"] for row in rows if row["family"] == family).most_common())
                for family, _ in families.most_common()
            },
            "heldout_by": dict(Counter(row["heldout_by"] for row in rows if row["heldout_by"])),
            "mean_prompt_characters": round(characters["prompt"] / count, 1),
            "mean_response_characters": round(characters["response"] / count, 1),
        }
        if request.styles != "plain":
            report[name]["written"] = dict(written.most_common())
            report[name]["canonical"] = dict(asked.most_common())
    return report


def _verifier(backend: str) -> Any:
    from dice.verify import Options, Verifier

    return Verifier(backend=backend, options=Options(trials=3, timing=False))
