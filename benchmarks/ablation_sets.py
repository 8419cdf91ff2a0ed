"""The problems of `ablation.py`: a third of each level of difficulty, which the corpus as it comes has not.

Of the synthetic corpus two in a hundred problems are whole models. Problems are drawn until each level has enough by
its text, then measured and labelled by what they run, and cut to equal thirds by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dice import synth
from dice.data.difficulty.levels import LEVELS, judge, read
from dice.errors import UserError
from dice.files.atomic import write_parquet
from dice.prompts import compact, reply
from dice.synth.pair import Pair

# More are drawn than needed: labels by text and by run differ, and some problems are dropped when measured or audited.
SPARE = 1.5
SHORT = 2000  # characters
CORPUS_SEED, POOL_SEED, HELDOUT_SEED = 300, 77, 78


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many problems of each level: to learn with RL, to fill in, held out, and to choose the start by."""

    generate: int
    infill: int
    heldout: int
    selection: int
    corpus_pairs: int
    heldout_draws: int


def draw(out: Path, sizes: Sizes) -> None:
    """`pool.parquet` has compositions of the training corpus in other words, `heldout.parquet` such as it has not."""
    known = synth.in_distribution(10**9, POOL_SEED, CORPUS_SEED, sizes.corpus_pairs)
    wanted = int(SPARE * max(sizes.generate, sizes.infill))
    _write(out / "pool.parquet", by_level(known, wanted))
    others = synth.heldout(sizes.heldout_draws, HELDOUT_SEED)
    _write(out / "heldout.parquet", by_level(others, int(SPARE * (sizes.heldout + sizes.selection))))


def draw_few(out: Path, per_level: int) -> None:
    """For a first look: all sets have the same few problems, with short kernels."""
    known = synth.in_distribution(10**9, POOL_SEED, CORPUS_SEED, 1000)
    pairs = by_level((pair for pair in known if len(pair.kernel.source) < SHORT), per_level)
    for place in ("pool.parquet", "heldout.parquet", "corpus/train/train-00000.parquet"):
        _write(out / place, pairs)


def by_level(pairs: Iterable[Pair], count: int) -> list[Pair]:
    """The first `count` distinct problems of each level, by their text; fewer where the pairs end before."""
    found: dict[str, dict[str, Pair]] = {level: {} for level in LEVELS}
    for pair in pairs:
        source = pair.problem.source
        bucket = found[judge(read(source), source, "text").level]
        if len(bucket) < count:
            bucket.setdefault(source, pair)
        if all(len(bucket) >= count for bucket in found.values()):
            break
    return [pair for level in LEVELS for pair in found[level].values()]


def cut(out: Path, sizes: Sizes) -> dict[str, int]:
    """Equal thirds of what was measured and labelled, by the levels found there; how many of each set.

    `problems.parquet` is evaluated on; the start is chosen on `selection.parquet`, which has others, if there are
    enough. Raises `UserError` where a level has none.
    """
    counts = {}
    for name, wanted in (("kernel_generation", sizes.generate), ("kernel_infilling", sizes.infill)):
        rows = pq.read_table(out / "rl-data" / f"{name}.parquet")
        counts[name] = _cut(rows, [wanted], [out / f"{name}.parquet"])[0]
    labelled = pq.read_table(out / "labelled.parquet")
    targets = [out / "problems.parquet", out / "selection.parquet"]
    counts["problems"], counts["selection"] = _cut(labelled, [sizes.heldout, sizes.selection], targets)
    return counts


def _cut(table: pa.Table, wanted: Sequence[int], targets: Sequence[Path]) -> list[int]:
    """Rows into one file after the other, each with as many of every level; what is too little is shared in order."""
    places: dict[str, list[int]] = {}
    for index, level in enumerate(table["difficulty"].to_pylist()):
        places.setdefault(level, []).append(index)
    most = min(len(places.get(level, [])) for level in LEVELS)
    if not most:
        lacking = ", ".join(level for level in LEVELS if level not in places)
        raise UserError(f"{targets[0].name} would have no problem of level {lacking}: draw more.")
    counts, start = [], 0
    for count, target in zip(wanted, targets, strict=True):
        if start >= most:
            start = 0  # a first look with a handful of problems: the same ones again
        end = min(most, start + count)
        chosen = [index for level in LEVELS for index in places.get(level, [])[start:end]]
        write_parquet(target, table.take(chosen))
        counts.append(len(chosen))
        start = end
    return counts


def _write(path: Path, pairs: Sequence[Pair]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(path, pa.Table.from_pylist([_row(pair) for pair in pairs]))


def _row(pair: Pair) -> dict[str, Any]:
    problem = pair.check_problem
    return {
        "problem": problem.source, "kernel": pair.kernel.source, "prompt": compact(problem),
        "response": reply(pair.kernel), "name": pair.problem.name, "operators": list(pair.operators),
        "composition": pair.composition,
    }  # fmt: skip
